"""What the tests of this folder share: a folder with a text and a small recipe, and hetrun started in it."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60

# `code` is run in each step, with `step`; `fields` are further ones of het.train.
RECIPE = '''local het = require "het"
local opt = het.options {{ steps = {{ 6, "steps" }}, save = {{ "runs/x", "folder", path = "write" }}, every = {{ 0, "steps between saves" }} }}
local corpus = het.data.text {{ path = "text.txt" }}
{before}
return het.train {{
  model = het.nn.gpt {{ vocab = corpus.vocab, context = 16, width = 16, layers = 1, heads = 2 }},
  data = corpus, batch = 4, steps = opt.steps, save = opt.save ~= "" and opt.save or nil, save_every = opt.every,
  optimizer = het.optim.adamw {{ lr = 1e-2 }},
  on_step = function(run, step)
    {code}
  end, {fields}
}}
'''


def recipe(code='', fields='', before=''):
    return RECIPE.format(code=code, fields=fields, before=before)


# Files beside the run folder by which a test and the functions of its recipe know of each other.
SIGNS = ['--allow-write=here', '--allow-write=taken', '--allow-write=signs', '--allow-read=go']


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.environment = {**os.environ, 'XDG_CACHE_HOME': str(self.folder / 'cache')}
        (self.folder / 'text.txt').write_text(TEXT)
        (self.folder / 'signs').mkdir()
        self.write('r.lua', recipe())

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def start(self, *words, **environment):
        process = subprocess.Popen([HETRUN, *map(str, words), *SIGNS], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**self.environment, **environment})
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(), process.stderr.close()))
        return process

    def end(self, process, code):
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, f'{process.args}\n{out}\n{err}')
        return out, err

    def hetrun(self, *words, code=0, lines=None):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, input=lines, capture_output=True, text=True,
                              timeout=300, check=False, env=self.environment,
                              **({} if lines is not None else {'stdin': subprocess.DEVNULL}))
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done

    def until(self, condition, sentence):
        until = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), until, sentence)
            time.sleep(0.005)

    def until_file(self, name, process=None):
        """Wait for a file that the recipe writes where a test wants to meet it."""
        def is_there():
            if process and process.poll() is not None:
                self.fail(f'it ended: {process.communicate()}')
            return (self.folder / name).exists()
        self.until(is_there, f'no {name} came')

    def files(self, name='runs/x'):
        return {path.name: path.read_bytes() for path in (self.folder / name).iterdir() if path.is_file()}

    def steps(self, name='runs/x'):
        """Of a saved run."""
        return int(read_header(self.folder / name / 'model.safetensors')['__metadata__']['step'])


def crc32c(content):
    """As hetrun's files carry it."""
    remainder = 0xffffffff
    for byte in content:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82f63b78 if remainder & 1 else 0)
    return remainder ^ 0xffffffff


def change_snapshot(path, fields):
    """Change what a snapshot says of its run, as somebody would who knows the format: with checksums that match."""
    content = bytearray(path.read_bytes())
    offset, size = struct.unpack('<qq', content[24:40])
    begin = content.rindex(b'{', offset, content.index(b'"config"', offset))
    end = content.index(b'\0', begin)
    about = json.loads(content[begin:end]) | {'config': None} | fields
    encoded = json.dumps({name: value for name, value in about.items() if value is not None}).encode()
    content[begin:end] = encoded.ljust(end - begin)
    content[20:24] = struct.pack('<I', crc32c(content[offset:offset + size]))
    content[44:48] = struct.pack('<I', crc32c(content[:44]))
    path.write_bytes(content)


def read_header(path):
    content = path.read_bytes()
    (size,) = struct.unpack('<Q', content[:8])
    return json.loads(content[8:8 + size])


def change_metadata(path, change):
    """Rewrite a file of tensors with `change`d metadata."""
    content = path.read_bytes()
    (size,) = struct.unpack('<Q', content[:8])
    header = json.loads(content[8:8 + size])
    change(header)
    encoded = json.dumps(header).encode()
    encoded += b' ' * (-len(encoded) % 8)
    path.write_bytes(struct.pack('<Q', len(encoded)) + encoded + content[8 + size:])


def main():
    unittest.main(verbosity=1)


__all__ = ['Case', 'HETRUN', 'ROOT', 'TEXT', 'change_metadata', 'main', 'read_header', 'recipe', 'signal']
