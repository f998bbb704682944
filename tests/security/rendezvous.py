#!/usr/bin/env python3
"""A rendezvous that a recipe names is shown and asked for on a terminal, and refused without one: rendezvous.py HETRUN."""
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
# Nothing listens at port 9: whoever is allowed to go there says so.
RECIPE = '''local het = require "het"
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 }, data = corpus, batch = 2, steps = 2,
  optimizer = het.optim.sgd { lr = 0.1 }, rendezvous = "etcd://127.0.0.1:9",
}
'''
REFUSED = ('hetrun: the recipe asks to meet other machines at etcd://127.0.0.1:9; a recipe may only talk to what the '
           'command line names: --rendezvous=etcd://127.0.0.1:9')
WENT = 'etcd at http://127.0.0.1:9 did not answer'


class Rendezvous(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 20)
        (self.folder / 'r.lua').write_text(RECIPE)
        self.environment = {**os.environ, 'RANK': '0', 'WORLD_SIZE': '2', 'HETRUN_SECRET': 'a secret of more than sixteen bytes'}
        self.words = [HETRUN, '--quiet', '--timeout=5s', 'r.lua']

    def on_a_terminal(self, answer):
        """Exit code and what was shown to a person who answers."""
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execve(HETRUN, self.words, self.environment)
        shown, answered = '', False
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:   # the terminal's other end is closed
                break
            if not piece:
                break
            shown += piece.decode()
            if '[y/N]' in shown and not answered:
                os.write(terminal, answer)
                answered = True
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown

    def without_a_terminal(self, *words):
        done = subprocess.run([*self.words, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stderr

    def test_a_person_may_say_no(self):
        code, shown = self.on_a_terminal(b'n\n')
        self.assertEqual(code, 2, shown)
        self.assertIn('r.lua asks to meet other machines at etcd://127.0.0.1:9. Allow it? [y/N]', shown)
        self.assertIn(REFUSED, shown)

    def test_a_person_may_say_yes(self):
        code, shown = self.on_a_terminal(b'y\n')
        self.assertEqual(code, 75, shown)
        self.assertIn(WENT, shown)

    def test_without_a_terminal_it_is_refused(self):
        self.assertEqual(self.without_a_terminal(), (2, REFUSED + '\n'))

    def test_the_command_line_decides(self):
        code, said = self.without_a_terminal('--rendezvous=etcd://127.0.0.1:9')
        self.assertEqual(code, 75, said)
        self.assertIn(WENT, said)


if __name__ == '__main__':
    unittest.main()
