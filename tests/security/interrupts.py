#!/usr/bin/env python3
"""Ctrl-C, SIGTERM and --limit-time while code of a recipe runs, with real signals. The seconds it takes are printed;
none is asserted.

usage: interrupts.py HETRUN [unittest arguments]
"""
import os
import pathlib
import pty
import shutil
import signal
import time

from case import Case, HETRUN, main, recipe

AT_ONCE = 'ending at the next safe point of loops.lua; again ends at once\n'
HERE = 'io.open("here", "w"):close(); '
# A search that takes longer than anybody waits: no hook fires in it.
CATASTROPHE = '(("a"):rep(60)):find(("a?"):rep(60) .. ("a"):rep(60) .. "b") '
ENDLESS = 'while true do end '
LOOPS = {
    'a loop': ENDLESS,
    'a loop under pcall': f'while true do pcall(function() {ENDLESS} end) end',
    'pcall within pcall': f'pcall(function() while true do pcall(function() pcall(function() {ENDLESS} end) end) end end) {ENDLESS}',
    'coroutines': f'while true do coroutine.resume(coroutine.create(function() {ENDLESS} end)) end',
    'wrapped coroutines': f'while true do pcall(coroutine.wrap(function() pcall(function() {ENDLESS} end) {ENDLESS} end)) end',
    'a loop that was loaded': f'load("{ENDLESS}")()',
    'xpcall': f'while true do xpcall(function() {ENDLESS} end, function(problem) return problem end) end',
    'a handler of errors': f'xpcall(function() {ENDLESS} end, function() {ENDLESS} end) {ENDLESS}',
    'a handler of another error': f'xpcall(error, function() {ENDLESS} end) {ENDLESS}',
    'a metamethod': f'local t = setmetatable({{}}, {{ __index = function() {ENDLESS} end }}) local x = t.x',
    'calls of C': 'while true do local t = {} for i = 1, 100 do t[i] = i end table.sort(t) end',
}
slowest = {}


class Interrupts(Case):
    def interrupt(self, process, name, code=130, asked=signal.SIGINT, file='here'):
        self.until_file(file, process)
        began = time.monotonic()
        process.send_signal(asked)
        out, err = self.end(process, code)
        slowest[name] = max(slowest.get(name, 0), time.monotonic() - began)
        return out, err

    def test_while_a_recipe_is_loaded(self):
        for name, code in LOOPS.items():
            with self.subTest(name):
                self.write('loops.lua', HERE + code)
                (self.folder / 'here').unlink(missing_ok=True)
                out, err = self.interrupt(self.start('loops.lua'), 'loading, in Lua')
                self.assertEqual((out, err), ('', 'hetrun: Ctrl-C: ' + AT_ONCE))

    def test_where_no_hook_fires_the_process_ends_while_a_recipe_is_loaded(self):
        for name, code in {'a search': CATASTROPHE,
                           'copies': 'while true do local s = ("x"):rep(1e8) end'}.items():
            with self.subTest(name):
                self.write('loops.lua', HERE + code)
                (self.folder / 'here').unlink(missing_ok=True)
                self.assertEqual(self.interrupt(self.start('loops.lua'), 'loading, in C'), ('', 'hetrun: Ctrl-C: ' + AT_ONCE))

    def test_the_graph_of_a_custom_loss_and_of_a_custom_layer(self):
        loss = recipe(fields=f'loss = function() {HERE} {ENDLESS} end,')
        layer = loss.replace(f'loss = function() {HERE} {ENDLESS} end,', '').replace(
            'return het.train', f'local own = het.nn.layer {{ name = "own", forward = function() {HERE} {ENDLESS} end }}\n'
            'return het.train').replace('layers = 1, heads = 2 }', 'layers = 1, heads = 2, block = function() return own end }')
        for text in (loss, layer):
            self.write('loops.lua', text)
            (self.folder / 'here').unlink(missing_ok=True)
            for command in ([], ['plan'], ['profile']):
                (self.folder / 'here').unlink(missing_ok=True)
                _, err = self.interrupt(self.start(*command, 'loops.lua'), 'building graphs')
                self.assertTrue(err.endswith('hetrun: Ctrl-C: ' + AT_ONCE), err)

    def test_of_several_workers_one_says_it(self):
        for code in (ENDLESS, CATASTROPHE):
            self.write('loops.lua', f'io.open("signs/" .. tostring({{}}), "w"):close(); {code}')
            process = self.start('--workers', 3, 'loops.lua')
            self.until(lambda: len(list((self.folder / 'signs').iterdir())) == 3, 'the ranks did not begin')
            process.send_signal(signal.SIGINT)
            self.assertEqual(self.end(process, 130), ('', 'hetrun: Ctrl-C: ' + AT_ONCE))
            for path in (self.folder / 'signs').iterdir():
                path.unlink()

    def test_in_on_step_the_step_is_kept(self):
        for name, code in LOOPS.items():
            with self.subTest(name):
                self.write('loops.lua', recipe(f'if step.step == 3 then {HERE} {code} end'))
                (self.folder / 'here').unlink(missing_ok=True)
                _, err = self.interrupt(self.start('loops.lua', '--steps=1000', '--overwrite'), 'training, in Lua')
                self.assertIn('hetrun: Ctrl-C: ' + AT_ONCE, err)
                self.assertIn('stopped and saved after step 3 in runs/x\n', err)
                self.assertEqual(self.steps(), 3)
        self.assertIn('going on after step 3', self.hetrun('r.lua', '--resume').stderr)

    def test_sigterm_is_as_ctrl_c_while_a_run_trains(self):
        self.write('loops.lua', recipe(f'if step.step == 3 then {HERE} {ENDLESS} end'))
        _, err = self.interrupt(self.start('loops.lua'), 'training, SIGTERM', asked=signal.SIGTERM)
        self.assertIn('hetrun: SIGTERM: ' + AT_ONCE, err)
        self.assertEqual(self.steps(), 3)

    def test_a_closed_terminal_and_output_that_no_one_reads_end_a_run_saved(self):
        for workers in ([], ['--workers', 2]):
            for name in ('SIGHUP', 'SIGPIPE'):
                with self.subTest(name, workers=workers):
                    self.write('loops.lua', recipe(f'if step.step == 3 then {HERE} end'))
                    (self.folder / 'here').unlink(missing_ok=True)
                    shutil.rmtree(self.folder / 'runs/x', ignore_errors=True)
                    process = self.start(*workers, 'loops.lua', '--steps=1000000')
                    self.until(lambda: (self.folder / 'here').exists(), 'the run did not train')
                    if name == 'SIGHUP':
                        process.send_signal(signal.SIGHUP)
                        err = self.end(process, 130)[1]
                        self.assertIn('hetrun: SIGHUP: the terminal, or who read the output, is gone: ', err)
                        self.assertIn(f'stopped and saved after step {self.steps()} in runs/x\n', err)
                    else:
                        process.stderr.close()
                        process.stdout.close()
                        self.assertEqual(process.wait(timeout=60), 130)
                    self.assertGreaterEqual(self.steps(), 3)

    def test_in_on_step_of_several_workers(self):
        loops = f'if step.step == 3 then io.open("signs/" .. tostring({{}}), "w"):close() {ENDLESS} end'
        self.write('loops.lua', recipe(loops))
        process = self.start('--workers', 2, 'loops.lua', '--steps=1000')
        self.until(lambda: len(list((self.folder / 'signs').iterdir())) == 2, 'the ranks did not train')
        process.send_signal(signal.SIGINT)
        _, err = self.end(process, 130)
        self.assertEqual(err.count('Ctrl-C'), 1, err)
        self.assertIn(f'stopped and saved after step {self.steps()} in runs/x\n', err)

    def test_in_on_step_of_one_worker(self):
        """The others are in the next step, and end it with the one that was interrupted."""
        self.write('loops.lua', recipe(
            f'if step.step == 3 and first then {HERE} {ENDLESS} end',
            before='local first = io.open("taken") == nil; io.open("taken", "w"):close()'))
        process = self.start('--workers', 2, 'loops.lua', '--steps=1000', '--timeout=100s')
        self.until(lambda: (self.folder / 'here').exists() or process.poll() is not None, 'it does not train')
        process.send_signal(signal.SIGINT)
        _, err = self.end(process, 130)
        self.assertIn(f'stopped and saved after step {self.steps()} in runs/x\n', err)

    def test_in_after_what_was_trained_is_saved_and_the_results_are_printed(self):
        self.write('loops.lua', recipe(fields=f'after = function() {HERE} {ENDLESS} end,'))
        out, err = self.interrupt(self.start('loops.lua', '--json'), 'training, in Lua')
        self.assertIn('saved after step 6 in runs/x\n', err)
        self.assertIn('"interrupted":true', out)

    def test_a_recipe_that_starts_its_run_itself_ends_too(self):
        self.write('loops.lua', recipe(f'if step.step == 3 then {HERE} {ENDLESS} end').replace(
            'return het.train', 'local run = het.train') + 'run:start() io.open("more", "w"):close() return run')
        self.interrupt(self.start('loops.lua'), 'training, in Lua')
        self.assertEqual(self.steps(), 3)
        self.assertFalse((self.folder / 'more').exists())

    def test_a_second_one_ends_a_run_at_once(self):
        self.write('loops.lua', recipe(f'if step.step == 3 then {HERE} {CATASTROPHE} end'))
        process = self.start('loops.lua', '--every=2')
        self.until_file('here', process)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stderr.readline()[-len('memory\n'):], 'memory\n')
        while 'Ctrl-C' not in process.stderr.readline():
            pass
        time.sleep(3)   # longer than where nothing is lost, and than signals that are one
        self.assertIsNone(process.poll())
        self.interrupt(process, 'the second one')

    def test_it_ends_before_the_first_step_what_was_interrupted_before(self):
        """Ctrl-C while the run is prepared, in code that is done within the second."""
        self.write('loops.lua', recipe(fields=f'loss = function(output, labels, scale) {HERE} '
                                       'local until_ = os.clock() + 0.3 while os.clock() < until_ do end '
                                       'error "not reached" end,'))
        self.interrupt(self.start('loops.lua'), 'building graphs')
        self.assertEqual(list((self.folder / 'runs' / 'x').glob('*.safetensors')), [])

    def test_the_prompt_goes_on(self):
        leader, follower = pty.openpty()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(leader)
            for fd in range(3):
                os.dup2(follower, fd)
            os.chdir(self.folder)
            os.execve(HETRUN, [HETRUN], {**self.environment, 'TERM': 'xterm'})
        os.close(follower)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.kill, child, signal.SIGKILL)
        text = b''

        def read_until(wanted):
            nonlocal text
            while wanted not in text:
                text += os.read(leader, 4096)
            text = text[text.index(wanted) + len(wanted):]
        begin = recipe(f'if step.step == 3 then {HERE} {ENDLESS} end').replace(
            'het.options', '(function() return { steps = 9, save = "", every = 0 } end)').replace(
            'return het.train', 'run = het.train').replace('local ', '')
        self.write('session.lua', begin)
        read_until(b'> ')
        os.write(leader, b'while true do end\r')
        time.sleep(1)
        os.kill(child, signal.SIGINT)
        read_until(b'interrupted')
        os.write(leader, ' '.join(begin.split('\n')).encode() + b'\r')
        os.write(leader, b'print("steps " .. run:start().steps)\r')
        self.until_file('here')
        os.kill(child, signal.SIGINT)
        read_until(b'steps 3')
        os.write(leader, b'print(40 + 2)\r')
        read_until(b'42')


class Limit(Case):
    def test_a_recipe_that_loads_for_too_long(self):
        for code in (ENDLESS, CATASTROPHE, f'while true do pcall(function() {ENDLESS} end) end'):
            self.write('loops.lua', code)
            self.assertEqual(self.hetrun('loops.lua', '--limit-time=300ms', code=130).stderr,
                             'hetrun: the limit of 300ms (--limit-time) is over: ending at the next safe point of loops.lua; '
                             'Ctrl-C ends at once\n')

    def test_a_run_that_trains_for_too_long_is_saved(self):
        for words, folder in (([], 'runs/x'), (['--workers', 2], 'runs/y')):
            err = self.hetrun(*words, 'r.lua', '--steps=100000000', '--limit-time=3s', f'--save={folder}', code=130).stderr
            self.assertEqual(err.count('the limit of 3s (--limit-time) is over'), 1, err)
            self.assertIn(f'stopped and saved after step {self.steps(folder)} in {folder}\n', err)

    def test_a_run_that_waits_in_its_own_code_is_saved(self):
        self.write('loops.lua', recipe(f'if step.step == 3 then {ENDLESS} end'))
        err = self.hetrun('loops.lua', '--limit-time=3s', code=130).stderr
        self.assertIn('the limit of 3s (--limit-time) is over', err)
        self.assertEqual(self.steps(), 3)

    def test_what_ends_in_time_is_not_touched(self):
        self.assertNotIn('limit', self.hetrun('r.lua', '--limit-time=10min').stderr)

    def test_what_is_no_time_is_refused(self):
        for words, sentence in (('--limit-time=soon', "--limit-time=soon: 'soon' is not a time such as"),
                                ('--limit-time=0s', '--limit-time=0s is not a time from 1 ms to 1000000000 s'),
                                ('--limit-time=-5s', '--limit-time=-5s'), ('--limit-time=nans', '--limit-time=nans'),
                                ('--limit-time', '--limit-time needs one value, such as --limit-time=30min')):
            self.assertIn(sentence, self.hetrun('r.lua', words, code=2).stderr)
        self.assertIn('--limit-time=5s needs a recipe or a command to end', self.hetrun('--limit-time=5s', code=2).stderr)


if __name__ == '__main__':
    try:
        main()
    finally:
        for what, seconds in slowest.items():
            print(f'{what}: at most {seconds:.2f} s from the signal to the end')
