#!/usr/bin/env python3
"""What the prompt and the command line say, word for word.

usage: run.py HETRUN [unittest arguments]
"""
import fcntl
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60
CLUSTER = '''local het = require "het"
return het.cluster {
  het.node { name = "a", type = "T4",
    devices = 2 },
}
'''
# A model of the recipe's own layers, or with --whole a GPT.
OWN = '''local het = require "het"
local nn = het.nn
local opt = het.options { text = { "text.txt", "to train on", path = "read" }, whole = { false, "a GPT" },
  save = { "", "folder", path = "write" } }
local corpus = het.data.text { path = opt.text }
return het.train {
  model = opt.whole and nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 }
    or nn.sequential { nn.embedding(corpus.vocab, 8), nn.attention { width = 8, heads = 1 }, nn.linear(8, corpus.vocab) },
  data = corpus, context = 8, batch = 2, steps = 20, optimizer = het.optim.adamw { lr = 1e-2 },
  sample = { prompt = "the ", tokens = 3 }, save = opt.save ~= "" and opt.save or opt.whole and "runs/gpt" or "runs/own",
}
'''

LORA = '''local het = require "het"
local opt = het.options { text = { "text.txt", "to train on", path = "read" }, steps = { 20, "steps" },
  base = { "runs/gpt", "model", path = "read" }, fresh = { false, "a new base" },
  save = { "runs/lora", "folder", path = "write" } }
local corpus = het.data.text { path = opt.text, holdout = 0 }
local base = opt.fresh and het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 }
  or het.load(opt.base)
return het.train {
  model = het.nn.lora { model = base, rank = 4, targets = { "c_attn", "mlp.up" } },
  data = corpus, batch = 4, steps = opt.steps, save = opt.save, optimizer = het.optim.adamw { lr = 5e-2 },
}
'''


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        for name in ('gpt_text', 'mlp', 'bert_base'):
            (self.folder / f'{name}.lua').write_text((ROOT / 'recipes' / f'{name}.lua').read_text())
        self.cluster()

    def cluster(self, was='', now=''):
        (self.folder / 'cluster.lua').write_text(CLUSTER.replace(was, now))

    def hetrun(self, *words, code=0, lines='', **options):
        done = subprocess.run([HETRUN, *words], cwd=self.folder, input=lines, capture_output=True, text=True, timeout=120,
                              check=False, **options)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout, done.stderr

    def refused(self, words, *sentences, code=2):
        out, err = self.hetrun(*words.split(), code=code)
        self.assertEqual(err, 'hetrun: ' + '\n'.join(sentences) + '\n', words)
        self.assertEqual(out, '', words)


class Prompt(Case):
    def says(self, line, sentence):
        """The third line of a script fails with a sentence."""
        out, err = self.hetrun(lines=f'x = het.randn(2, 3)\nmodel = het.nn.linear(2, 2)\n{line}\nprint("on")\n', code=2)
        self.assertEqual(err, f'stdin:3: {sentence}\n', line)
        self.assertEqual(out, 'on\n', line)

    def test_an_index_outside_names_the_index_and_the_shape(self):
        self.says('x[3]', 'index 3 is outside 1 to 2 of f32[2, 3]')
        self.says('x[0]', 'index 0 is outside 1 to 2 of f32[2, 3]')
        self.says('x[1][9]', 'index 9 is outside 1 to 3 of f32[3]')
        self.says('x:at(1, -4)', 'index -4 is outside 1 to 3 of f32[2, 3]')
        self.says('x[1][4] = 0', 'index 4 is outside 1 to 3 of f32[3]')
        self.says('x[1.5]', 'index 1.5 of f32[2, 3] is not whole')
        self.says('het.tensor {}[1]', 'index 1: f32[0] has no elements')
        gap = ' is missing, and others of its list are there; each has to be a number'
        for values, place in (('{ { 1, nil, 3 }, { 4, nil, 5 } }', '[1][2]'), ('{ 1, nil, 3 }', '[2]'), ('{ 1, [3] = 2 }', '[2]'),
                              ('{ a = 1 }', '[1]')):
            self.says(f'het.tensor({values})', f'tensor: entry {place}{gap}')
        self.says('het.tensor { { 1, 2 }, { 3, "4" } }', 'tensor: entry [2][2] is a string; each has to be a number')
        self.assertEqual(self.hetrun(lines='x = het.tensor { { 1, 2 }, { 3, 4 } }\nx[-1]\nx[2][1]\n')[0],
                         '[3., 4.]\nf32[2]\n3\n')

    def test_powers_have_numbers_and_tensors_on_both_sides(self):
        lines = ('x, y = het.tensor { 1, 2, 3 }, het.tensor { 2, 3, -1 }', 'print(x ^ 2)', 'print(2 ^ x)', 'print(x ^ y)',
                 'print(het.op.pow(x, y))', 'print(het.op.pow(x, { exponent = 2 }))', 'print(het.op.pow(2, x))')
        said = self.hetrun(lines='\n'.join(lines) + '\n')[0]
        self.assertEqual([line for line in said.splitlines() if line.startswith('[')], [
            '[1., 4., 9.]', '[2., 4., 8.]', '[1.0000, 8.0000, 0.3333]', '[1.0000, 8.0000, 0.3333]', '[1., 4., 9.]', '[2., 4., 8.]'])

    def test_a_method_that_tensors_lack_is_named(self):
        self.says('x:sum()', "a tensor has no 'sum'; het.op.sum(x) computes it")
        self.says('x:matmul(x)', "a tensor has no 'matmul'; het.op.matmul(x) computes it")
        self.says('x:tolst()', "a tensor has no 'tolst'; did you mean 'tolist'?")
        self.says('x.elements_per_row', "a tensor has no 'elements_per_row'; it has at, clone, contiguous, data, "
                  'dtype, item, numel, shape, shard, to, tolist; operators are functions of '
                  'het.op, such as op.reshape')

    def test_what_looks_like_another_library_is_explained(self):
        self.says('#x', 'a tensor has no one length: x.shape[1] is the rows of f32[2, 3], x:numel() its elements')
        arithmetic = ("attempt to perform arithmetic on global 'x' (a userdata value); tensors and values of a model have "
                      '+ - * / and ^; op has others, such as op.clamp')
        self.says('x % 2', arithmetic)
        self.says('x .. "a"', "attempt to concatenate global 'x' (a userdata value); tostring(x) is the text of a tensor")
        self.says('het.grad(function(y) return y ^ 2 end)(x)', 'het.grad: the function returned f32[2, 3]; a gradient is of a '
                  'single number, such as op.sum or op.mean of it')
        self.says('x:shape()', "attempt to call method 'shape' (a table value); a tensor's shape is a field: x.shape, "
                  'without parentheses')
        self.says('x.dtype()', "attempt to call field 'dtype' (a string value); a tensor's dtype is a field: x.dtype, "
                  'without parentheses')
        for name in ('randn', 'zeros', 'ones'):
            self.says(f'het.{name}("a")', f'het.{name}: a shape comes first, as in het.{name}(2, 3) or '
                      f'het.{name}({{ 2, 3 }}, "f32"); it was given "a"')
        self.says('het.randn(2, "a")', "'a' is not a dtype; there are f32, f64, bf16, f16, i32, i64, u8, bool")

    def test_a_tensors_memory_is_reached_with_trust(self):
        lines = """x = het.zeros(2, 3)
p = x:data()
p[0], p[4] = 5, 7
x[1][1]
x[2][2]
do local y = het.full({ 1000 }, 3, "i64"); q = y:data() end
for i = 1, 20 do collectgarbage(); local other = het.full({ 1000 }, i, "i64") end
print(q[0] == 3 and q[999] == 3, x[2]:data()[1])
for _, dtype in ipairs { "f32", "f64", "bf16", "f16", "i32", "i64", "u8", "bool" } do
  local first = het.ones(2, dtype):data()
  print(dtype, (tostring(require "ffi".typeof(first)):gsub("ctype", "")), tonumber(first[1]))
end
"""
        self.assertEqual(self.hetrun('--trust', lines=lines)[0], """5
7
true\t7
f32\t<float *>\t1
f64\t<double *>\t1
bf16\t<unsigned short *>\t16256
f16\t<unsigned short *>\t15360
i32\t<int *>\t1
i64\t<int64_t *>\t1
u8\t<unsigned char *>\t1
bool\t<unsigned char *>\t1
""")
        _, err = self.hetrun('--trust', lines='het.op.transpose(het.ones(2, 3), { order = { 1, 0 } }):data()\n', code=2)
        self.assertEqual(err, 'stdin:1: data: this is a strided view of f32[3, 2]; take :contiguous() first\n')
        self.says('x:data()', "tensor:data() is a pointer of LuaJIT's ffi, and ffi needs --trust")
        self.assertTrue(self.hetrun(lines='?tensor:data\n')[0].startswith('tensor:data()\n'))

    def test_a_name_that_is_not_declared(self):
        self.says('bananas', "'bananas' is not declared")
        self.says('nq.linear(3, 4)', "'nq' is not declared; did you mean 'nn'?")
        self.says('train {}', "'train' is not declared; did you mean het.train?")
        out, _ = self.hetrun(lines='nn == het.nn\noptim == het.optim\nop == het.op\ndata == het.data\n')
        self.assertEqual(out, 4 * 'true\n')
        for line, sentence in (('nn.linear(3, 4)', "'nn' is not declared; did you mean het.nn?"),
                               ('ab()', "'ab' is not declared"),
                               ('het.nn.linear(3, 4)', """'het' is not declared; write `local het = require "het"`""")):
            (self.folder / 'bare.lua').write_text(line + '\n')
            self.refused('bare.lua', f'bare.lua:1: {sentence}')

    def test_zeros_and_ones_take_a_dtype(self):
        out, _ = self.hetrun(lines='het.zeros({ 1 }, "f64")\nhet.zeros(1, 2, "f64")\nhet.ones(1, "bf16")\n'
                             'het.randn(2, 3, "f64").dtype\nhet.ones(2)\n')
        self.assertEqual(out, '[0.]\nf64[1]\n[[0., 0.]]\nf64[1, 2]\n[1.]\nbf16[1]\n"f64"\n[1., 1.]\nf32[2]\n')
        self.says('het.zeros(2, 3, "f63")', "'f63' is not a dtype (did you mean 'f64'?); there are f32, f64, bf16, f16, "
                  'i32, i64, u8, bool')

    def test_ways_out_and_to_help_are_shown(self):
        self.says('exit', 'Ctrl-D leaves')
        self.says('quit()', 'Ctrl-D leaves')
        self.says('help', '?name explains, as in ?nn.attention; ?het lists all names')
        self.assertEqual(self.hetrun(lines='exit = 3\nexit\n')[0], '3\n')

    def test_what_a_script_raises_itself_has_its_line(self):
        self.says('error("boo")', 'boo')
        self.says('do local y = 1; error("boo") end', 'boo')
        self.says('require "nope"', f"require: there is no 'nope' (recipes can require \"het\" and Lua files in "
                  f'{self.folder.resolve()})')
        self.says('io.open "/etc/passwd"', f"'/etc/passwd' lies outside the current folder {self.folder.resolve()}; "
                  'hetrun --trust opens any file')
        self.says('het.nn.gtp {}', "het.nn has no 'gtp'; did you mean 'gpt'?")

    def test_a_script_that_fails_says_which_line_and_exits_2(self):
        _, err = self.hetrun(lines='x = 1\nfor i = 1, 2 do\n  x = x + nil\nend\ny = 2\nlocal = 3\n', code=2)
        first, second = err.splitlines()
        self.assertEqual(first, "stdin:3: attempt to perform arithmetic on a nil value")
        self.assertTrue(second.startswith("stdin:6: '<name>' expected"), second)
        self.hetrun(lines='x = 1\nx + 1\n')
        _, err = self.hetrun(lines='x = 1\n\nif x then\n', code=2)
        self.assertTrue(err.startswith('stdin:3: '), err)

    def test_generate_is_a_method(self):
        self.assertTrue(self.hetrun(lines='?generate\n')[0].startswith('model:generate { ... }\n'))
        self.says('model.generate { prompt = "a" }', 'generate belongs to a model; call it with a colon: '
                  'model:generate { ... }')
        self.says('model:generate { prompt = "a" }', 'this model has no weights yet; train it, or load one: '
                  'het.load(folder)')

    def test_names_are_suggested_not_listed(self):
        out, _ = self.hetrun(lines='?fo\n?options\n?help\n?het\n')
        lines = out.splitlines()
        self.assertEqual(lines[0], "no help for 'fo'; ?het lists all names")
        self.assertTrue(lines[1].startswith('het.options {'))
        self.assertIn('\nhet.help(name)\n', out)
        self.assertTrue(lines[-1].startswith('op '))
        self.says('het.zzz', "het has no 'zzz'; `?het` at the prompt lists all")

    def test_ctrl_c_cuts_nothing_off_that_is_being_written(self):
        with subprocess.Popen([HETRUN], cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
            process.stdin.write(f'do io.write(("x"):rep({full})) end\n("y"):rep(9999)\n'.encode())
            process.stdin.close()
            status, waiting = pathlib.Path(f'/proc/{process.pid}/status'), 0
            while waiting < full or '\nState:\tS' not in status.read_text():   # it sleeps until there is room to write
                self.assertIsNone(process.poll())
                (waiting,) = struct.unpack('i', fcntl.ioctl(process.stdout, termios.FIONREAD, b'    '))
            process.send_signal(signal.SIGINT)
            while '\nShdPnd:\t0000000000000000' not in status.read_text():   # it has yet to wake up
                pass
            written, problem = process.stdout.read(), process.stderr.read()
        self.assertEqual(problem, b'')
        self.assertEqual(written, b'x' * full + b'"' + b'y' * 9999 + b'"\n')

    def test_a_far_name_is_not_suggested(self):
        out, _ = self.hetrun(lines='?lineer\n?nn.attenton\n?corpsu\n?zebra_crossing\n')
        self.assertEqual(out.splitlines(), [
            "no help for 'lineer'; did you mean 'nn.linear'?",
            "no help for 'nn.attenton'; did you mean 'nn.attention'?",
            "no help for 'corpsu'; did you mean 'corpus'?",
            "no help for 'zebra_crossing'; ?het lists all names"])

    def test_fields_of_constructors_are_explained(self):
        out, _ = self.hetrun(lines='?window\n?momentum\n')
        self.assertRegex(out, r'^window  \(whole number, at least 1\)\n    .*\n    in nn\.attention')
        # Where they mean different things, each is explained.
        self.assertRegex(out, r'(?s)\nmomentum  \(number.*\n    in optim\.sgd\nmomentum  \(number.*\n    in optim\.muon\n')

    SESSION = '''corpus = het.data.text { path = "text.txt" }
mine = het.train { model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 3, optimizer = het.optim.adamw { lr = 1e-3 } }
x = het.randn(2, 3)
layer = het.nn.linear(2, 3)
three = 3
'''

    def explained(self, *names):
        """The first line of ?name for each, in a session."""
        marked = ''.join(f'print("-- of {name}")\n?{name}\n' for name in names)
        out, _ = self.hetrun(lines=self.SESSION + marked)
        return [part.split('\n')[1] for part in out.split('-- of ')[1:]]

    def test_a_value_of_the_session_is_explained_by_what_it_is(self):
        self.assertEqual(self.explained('mine', 'mine.start', 'mine:start', 'run:start', 'corpus', 'corpus.vocab', 'x', 'x:to',
                                        'layer', 'layer:count', 'mine.arguments.model:generate', 'three',
                                        'het.tensor'),
                         ['run', 'run:start()', 'run:start()', 'run:start()', 'corpus', 'corpus.vocab',
                          'het.tensor(values [, dtype])', 'tensor:to(dtype)', 'model', 'model:count()',
                          'model:generate { ... }', 'three is a number',
                          'het.tensor(values [, dtype])'])

    def test_every_public_method_is_explained(self):
        """What is called on runs, corpora, tensors and models, as the metatables of such values have it."""
        methods = '''for name, value in pairs { run = mine, corpus = corpus, tensor = x, model = layer } do
  local meta = debug.getmetatable(value)
  local index = meta.methods or meta.__index
  if type(index) == "function" then index = select(2, debug.getupvalue(index, 1)) end
  for method, body in pairs(index) do
    if type(body) == "function" and not method:match "^__" then print(name .. ":" .. method) end
  end
end
'''
        names = self.hetrun('--trust', lines=self.SESSION + methods)[0].split()
        self.assertLessEqual({'run:start', 'corpus:encode', 'tensor:to', 'model:generate'}, set(names))
        self.hetrun('docs', 'pages')
        stubs = (self.folder / 'pages' / 'het.lua').read_text()
        for name, said in zip(names, self.explained(*names)):
            self.assertTrue(said.startswith(f'{name}(') or said.startswith(f'{name} {{'), f'{name}: {said}')
            owner = name.split(':')[0]
            if name != 'model:generate':   # it stands on a separate page
                self.assertIn(f'`{said}`', (self.folder / 'pages' / f'{owner}.md').read_text())
                self.assertIn(f'function {name}(...) end', stubs)

    def test_every_public_function_is_explained(self):
        lines = '''define = require "het.language.define"
local _ = het.help "run"   -- it loads all parts
function look(path, module)
  for _, name in ipairs(debug.getmetatable(module).__names) do
    local value = module[name]
    if type(value) == "function" or type(value) == "table" and getmetatable(value) then
      local full = path == "" and name or path .. "." .. name
      print(full, define.lookup(full) and "explained" or "unexplained")
    end
  end
end
look("", het)
for _, module in ipairs { "nn", "optim", "data", "op", "plan", "cluster", "policy" } do look(module, het[module]) end
'''
        reply = [line.split() for line in self.hetrun('--trust', lines=lines)[0].splitlines()]
        modules = {'nn', 'optim', 'data', 'op', 'policy'}   # which are lists of what is explained
        self.assertLessEqual({'train', 'nn.gpt', 'optim.wsd', 'data.text', 'op.softmax', 'plan.auto', 'cluster.here'},
                             {name for name, _ in reply})
        self.assertEqual([name for name, how in reply if how == 'unexplained' and name not in modules], [])
        self.hetrun('docs', 'pages')
        pages = '\n'.join(page.read_text() for page in (self.folder / 'pages').glob('*.md'))
        have_pages = set(re.findall(r'^#+ (?:het\.)?([\w.]+)$', pages, re.MULTILINE))
        self.assertEqual([name for name, _ in reply if name not in have_pages], [])

    def test_an_operator_says_how_it_is_called(self):
        reply = self.hetrun(lines='?op.softmax\n?op.linear\n')[0]
        self.assertIn('op.softmax(x, { dim = })', reply)
        self.assertIn('op.linear(x, weight, bias?, { activation = })', reply)

    def test_schedules_take_the_rates_they_say(self):
        """By their formulas, written again."""
        peak, floor, warmup, steps = 3.0, 0.5, 4, 20
        lines = ''.join(f'for step = 1, {steps} do print(het.optim.{call}:at(step, {steps})) end\n' for call in (
            f'constant {{ peak = {peak}, warmup = {warmup} }}', f'cosine {{ peak = {peak}, floor = {floor}, warmup = {warmup} }}',
            f'linear {{ peak = {peak}, warmup = {warmup}, steps = 12 }}', f'wsd {{ peak = {peak}, floor = {floor}, decay = 0.25 }}'))
        rates = [float(word) for word in self.hetrun(lines='local het = require "het"\n' + lines)[0].split()]

        def through(first, last, step):   # from the step after `first` to the one after `last`
            return min(max((step - 1 - first) / (last - first), 0), 1)

        def warm(step, rate):
            return peak * step / (warmup + 1) if step <= warmup else rate
        wanted = [warm(step, peak) for step in range(1, steps + 1)]
        wanted += [warm(step, floor + (peak - floor) * (1 + math.cos(math.pi * through(warmup, steps, step))) / 2)
                   for step in range(1, steps + 1)]
        wanted += [warm(step, peak / 10 + (peak - peak / 10) * (1 - through(warmup, 12, step))) for step in range(1, steps + 1)]
        wanted += [floor + (peak - floor) * (1 - through(15, steps, step)) for step in range(1, steps + 1)]
        self.assertEqual(len(rates), len(wanted))
        for rate, want in zip(rates, wanted):
            self.assertAlmostEqual(rate, want, delta=1e-9)

    def test_groups_decay_by_their_names(self):
        lines = '''a = het.optim.adamw { lr = 1, weight_decay = 0.1, decay = { { "tokens", 0 }, { "norm", 0.2 } } }
for _, p in ipairs { { "tokens.weight", 2 }, { "norm.scale", 1 }, { "mlp.weight", 2 }, { "mlp.bias", 1 } } do
  print(a:decay_of { name = p[1], shape = p[2] == 2 and { 3, 3 } or { 3 } })
end
'''
        self.assertEqual(self.hetrun(lines=lines)[0].split(), ['0', '0.2', '0.1', '0'])

    def test_layers_and_operators_compute_on_tensors(self):
        lines = '''x = het.tensor { { 1, -2 }, { 3, 0.5 } }
function tell(y) for _, row in ipairs(y:tolist()) do print(unpack(row)) end end
tell(het.op.softmax(x, { dim = 1 }))
tell(het.nn.relu()(x))
tell(het.nn.layer_norm(2)(x))
tell(x * 2 + 1)
tell(x ^ 3)
tell(het.grad(function(y) return het.op.sum(y ^ 3) end)(x))
'''
        rows = [[float(word) for word in line.split()] for line in self.hetrun('--trust', lines=lines)[0].splitlines()]
        x = [[1, -2], [3, 0.5]]
        wanted = [[1 / (1 + math.exp(b - a)), 1 / (1 + math.exp(a - b))] for a, b in x]
        wanted += [[max(value, 0) for value in row] for row in x] + [[1, -1], [1, -1]]
        wanted += [[value * 2 + 1 for value in row] for row in x]
        wanted += [[value ** 3 for value in row] for row in x] + [[3 * value ** 2 for value in row] for row in x]
        self.assertEqual(len(rows), len(wanted))
        for row, want in zip(rows, wanted):
            for a, b in zip(row, want):
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_completion_offers_what_recipes_call(self):
        lines = 'local _ = het.load\nprint(table.concat(require("het.prompt").completions("het."), " "))\n'
        names = self.hetrun('--trust', lines=lines)[0].split()
        self.assertEqual(names, sorted(set(names)))
        self.assertLessEqual({'train', 'load', 'tensor', 'options', 'help'}, set(names))
        self.assertFalse({'begin_recipe', 'load_recipe', 'load_value', 'run_recipe', 'load_all', 'recipe_text'} & set(names))

    def test_completion_offers_methods_after_a_colon(self):
        lines = ('local _ = het.load\nc = het.data.text { path = "text.txt" }\ncompletions = require("het.prompt").completions\n'
                 'print(table.concat(completions "c:", " "))\nprint(table.concat(completions "c.", " "))\n')
        methods, fields = (line.split() for line in self.hetrun('--trust', lines=lines)[0].splitlines())
        self.assertEqual(sorted(methods), ['decode', 'encode', 'has_holdout', 'sampler', 'vocabulary'])
        self.assertEqual(set(fields) - set(methods), {'vocab', 'known', 'tokens', 'examples', 'documents'})

    def test_fields_of_constructors_are_completed(self):
        asked = ('x = het.train { mod', 'het.train { model = nn.linear(2, 2), evaluate = { ev', 'nn.attention { hea',
                 'nn.attention { width = 8, causal = tr', 'data.text { path = "a", tok', 'print({ hea',
                 'nn.mlp { width = 8, activation = "gel', 'het.train { precision = "')
        lines = 'local _ = het.load\n' + ''.join(
            f'print(table.concat(require("het.prompt").completions {json.dumps(line)}, " "))\n' for line in asked)
        out, _ = self.hetrun('--trust', lines=lines)
        self.assertEqual(out, 'model\nevery\nhead_size heads\ntrue\ntokenizer\n\ngelu gelu_exact\nbf16 f16 f32\n')

    def test_files_are_completed_in_strings(self):
        for name in ('runs/shakespeare', 'runs/shapes', 'runs/.hidden'):
            (self.folder / name).mkdir(parents=True)
        (self.folder / 'shards.txt').write_text('text')
        asked = ('het.data.text { path = "sh', "het.load 'runs/sha", 'x = "runs/', 'print("nothing/', 'print("a" .. "runs/.')
        lines = 'local _ = het.load\n' + ''.join(
            f'print(table.concat(require("het.prompt").completions {json.dumps(line)}, " "))\n' for line in asked)
        out, _ = self.hetrun('--trust', lines=lines)
        self.assertEqual(out, 'shards.txt\nruns/shakespeare/ runs/shapes/\nruns/shakespeare/ runs/shapes/\n\nruns/.hidden/\n')

    def test_operators_are_named_where_a_layer_is_asked_for(self):
        self.says('het.nn.sigmoid()', "het.nn has no 'sigmoid'; op.sigmoid computes it, in a list of layers as function(x) return "
                  'op.sigmoid(x) end')
        for rest in ('0.1', '{ p = 0.1 }'):
            self.says(f'het.op.dropout(x, {rest})', 'op.dropout draws by a counter: nn.dropout(0.1) among `layers` and '
                      'self.builder:dropout(x, 0.1) have the one of the run')
        self.says('het.op.cross_entropy(x, het.tensor({ 1, 3 }, "i32"), het.ones(1))', 'cross_entropy: index 3 at position 1 is '
                  'outside 0 to 2: there are 3 rows of a table, or classes of labels')

    def test_the_example_of_a_plan_is_one(self):
        example = re.search(r'het.plan {.*}', self.hetrun(lines='?run.use_plan\n')[0], re.S)[0]
        self.assertEqual(self.hetrun(lines=f'plan = {example}\nprint(plan.microbatch)\n')[0], '2\n')

    def test_names_of_other_libraries_lead_to_ours(self):
        for name, meant in (('epochs', '`steps`'), ('batch_size', '`batch`'), ('lr', '`optimizer = optim.adamw { lr = ... }`')):
            self.says(f'het.train {{ {name} = 3 }}', f"unknown field '{name}'; use {meant}")

    def test_what_a_forward_has_beside_its_self_is_explained(self):
        self.assertEqual(self.explained('builder', 'builder.mode', 'builder:normal', 'builder.begin_layer'),
                         ['builder', 'builder.mode', 'builder:normal(x)', 'builder:begin_layer(name)'])

    def test_a_script_may_declare_options(self):
        self.assertEqual(self.hetrun(lines='opt = het.options { steps = { 5, "steps" } }\nprint(opt.steps)\n')[0], '5\n')

    def test_a_run_is_started_without_arguments(self):
        out, err = self.hetrun(lines=f'{self.SESSION}mine:start {{ steps = 3 }}\n', code=2)
        self.assertIn('run:start takes no arguments, and ', err)

    def test_a_prompt_that_the_model_cannot_read(self):
        said = "the character 'ï' (U+00EF) at character 3 (line 1) is not in the vocabulary"
        for call in ('mine:generate { prompt = "naïve", tokens = 2 }', 'mine:save "mine"; het.load("mine"):generate { prompt = '
                     '"naïve", tokens = 2 }'):
            self.assertIn(said, self.hetrun(lines=f'{self.SESSION}{call}\n', code=2)[1])

    def test_a_model_is_trained_and_writes(self):
        lines = '''corpus = het.data.text { path = "text.txt" }
run = het.train { model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 3, optimizer = het.optim.adamw { lr = 1e-3 } }
run:start().steps
#run:generate { prompt = "the ", tokens = 10 }
run:save "run"
run:generate { prompt = "fox\\njumps", tokens = 10 } == het.load "run":generate { prompt = "fox\\njumps", tokens = 10 }
run:generate { prompt = "the\\nfox", tokens = 1, temperature = 0 }
{ "the\\nfox" }
'''
        out, _ = self.hetrun('--quiet', lines=lines)
        self.assertRegex(out, '^3\n14\ntrue\nthe\nfox[^"]\n\\{"the\\\\nfox"\\}\n$')

    def test_what_is_asked_of_a_run_is_checked(self):
        makes = """corpus = data.text { path = "text.txt" }
run = het.train { model = nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 3, optimizer = optim.sgd { lr = 1e-3 } }
"""
        asked = (
            ('run:generate { tokns = 100 }', "generate has no field 'tokns'; did you mean 'tokens'?"),
            ('run:generate "ROMEO:"', 'generate takes a table of named fields, as in generate { prompt = ... }; it was '
             'given "ROMEO:"'),
            ('run:generate { temperature = -1 }', 'generate.temperature = -1 is below 0, the least that works'),
            ('run:generate { top_p = 7 }', 'generate.top_p = 7 is above 1, the most that works'),
            ('run:generate { top_k = 0 }', 'generate.top_k = 0 is below 1, the least that works'),
            ('run:generate { tokens = 2.5 }', 'generate.tokens = 2.5 is not whole; a whole number is needed'),
            ('run:generate { tokens = "many" }', 'generate.tokens = "many" is a string; a whole number is needed'),
            ('run.generate { tokens = 1 }', 'generate belongs to a run; call it with a colon: run:generate { ... }'),
            ('run.start()', 'start belongs to a run; call it with a colon: run:start()'),
            ('run.save "run"', 'save belongs to a run; call it with a colon: run:save "folder"'),
            ('run:save()', 'run:save: give a folder, as in run:save "runs/mine" (or het.train { save = "runs/mine" })'),
            ('run:save(3)', 'run:save: give a folder, as in run:save "runs/mine"; it was given 3'),
        )
        out, err = self.hetrun('--quiet', lines=makes + '\n'.join(line for line, _ in asked) + '\n', code=2)
        self.assertEqual(out, '')
        self.assertEqual(err.splitlines(), [f'stdin:{4 + i}: {sentence}' for i, (_, sentence) in enumerate(asked)])

    @staticmethod
    def lines_of(page):
        """The lines for the prompt that a page has."""
        lines = [line[4:] for line in (ROOT / page).read_text().splitlines() if line.startswith('    >')]
        return '\n'.join(line.lstrip('>').strip() for line in lines) + '\n'

    def test_the_lines_of_the_readme_do_what_it_says(self):
        script = self.lines_of('README.md')
        self.assertIn('steps = 200,', script)
        (self.folder / 'shakespeare.txt').write_text(TEXT + 'ROMEO:\nBut soft!\n' * 20)
        out, err = self.hetrun('--threads=1', lines=script.replace('steps = 200,', 'steps = 2, evaluate = { every = 0 },'))
        self.assertIn('\nROMEO:', out)
        self.assertIn('optim.adamw', out)
        self.assertNotIn('stdin:', err)

    def test_the_lines_of_the_guide_run(self):
        out, err = self.hetrun(lines=self.lines_of('recipes/guide/prompt.md'))
        self.assertIn('het.tensor(values', out)
        self.assertEqual(err, '')


class CommandLine(Case):
    def test_kernels_are_measured(self):
        reply = json.loads(self.hetrun('bench', 'kernels', '--json')[0])
        names = [kernel['name'] for kernel in reply['kernels']]
        self.assertEqual(len(names), 14)
        self.assertIn('attention, head 128, 512 tokens, backward', names)
        self.assertIn('attention, head 64, 512 tokens, window 64, forward', names)
        self.assertIn('attention, head 64, 512 tokens, capped, backward', names)
        for kernel in reply['kernels']:
            self.assertGreater(kernel['share'], 0, kernel)
            self.assertIn('tflops' if 'attention' in kernel['name'] else 'gb_per_s', kernel)
        self.assertGreater(reply['copy_gb_per_s'], 0)

    def test_commands_tell_what_they_do_and_do_nothing(self):
        for words, option in (('bench', '--precision'), ('bench gpt2-124m', '--precision'), ('bench plans', '--trials'),
                            ('doctor', 'hetrun doctor shows'), ('docs', 'hetrun docs FOLDER writes'),
                            ('docs pages', 'hetrun docs FOLDER writes'), ('profile', 'layer'), ('plan', '--cluster'),
                            ('simulate', '--plan'), ('snapshot', 'verify PLACE'), ('status', '--rendezvous'), ('attach', 'resume'), ('solve', '--seconds'),
                            ('generate', '--top_p=1'), ('eval', '--context=N'), ('merge', '--base=FOLDER'),
                            ('convert', '--shard=5GB')):
            self.assertIn(option, self.hetrun(*words.split(), '--help')[0])
        self.assertFalse((self.folder / 'pages').exists())

    def test_a_saved_model_writes_and_predicts(self):
        (self.folder / 'own.lua').write_text(OWN)
        self.hetrun('own.lua', '--quiet', '--allow-write=runs/own')
        self.hetrun('own.lua', '--quiet', '--whole', '--allow-write=runs/gpt')
        for words in (['runs/gpt'], ['runs/own', '--recipe=own.lua', '--text=text.txt']):
            out, _ = self.hetrun('generate', *words, '--prompt=the ', '--tokens=9')
            self.assertRegex(out, '(?s)^the .{9}\n$')
            self.assertEqual(json.loads(self.hetrun('generate', *words, '--prompt=the ', '--tokens=9', '--json')[0])['text'],
                             out[4:-1])
            found = json.loads(self.hetrun('eval', *words[:2], '--text=text.txt', '--context=5', '--json')[0])
            self.assertEqual((found['tokens'], found['windows'], found['context']), (len(TEXT) - 1, 540, 5))
            self.assertAlmostEqual(found['perplexity'], math.exp(found['loss']))
            self.assertLess(found['loss'], 3.5)
        self.refused('generate runs/own', 'runs/own holds a model that only a recipe describes; het.load("runs/own", { model = ... }) '
                     'reads it into the recipe\'s description, from = "runs/own" of het.train goes on from it, and hetrun generate '
                     'or eval runs/own --recipe=FILE use that recipe')
        out, err = self.hetrun('generate', 'runs/gpt', '--prompt=the ☃', code=2)   # before the prompt is written
        self.assertEqual(out, '')
        self.assertIn('☃', err)
        self.refused('generate', 'hetrun generate:', '  the folder of the model is missing: hetrun generate FOLDER')
        self.refused('generate runs/gpt more --prompt --tokns=3 --precision=f16', 'hetrun generate:',
                     '  --prompt needs a value, such as --prompt=TEXT', "  there is no option --tokns; did you mean '--tokens'?",
                     "  unexpected argument 'more'; options are --name=value", '  --precision=f16 is neither f32 nor bf16')
        self.refused('generate runs/gpt --chat --prompt=the', 'runs/gpt has no chat template; without --chat the prompt is '
                     'continued')
        self.refused('generate runs/gpt --chat --json', '--chat --json prints one answer: give --prompt=TEXT')
        self.refused('generate runs/gpt --tokens=many', '--tokens=many is not a number')
        self.refused('generate runs/gpt --top_p=2', 'generate.top_p = 2 is above 1, the most that works')
        self.refused('generate runs/none', "there is no folder 'runs/none'")
        self.refused('eval runs/gpt', 'hetrun eval:', '  the text is missing: hetrun eval runs/gpt --text=FILE')
        self.refused('eval runs/gpt --text=text.txt --context=9', "--context=9 is more than the model's context = 8")
        (self.folder / 'one.txt').write_text('t')
        self.refused('eval runs/gpt --text=one.txt', 'one.txt has 1 tokens; there is nothing to predict')

    def test_a_long_evaluation_says_how_far_it_is_and_its_loss_when_it_is_interrupted(self):
        (self.folder / 'own.lua').write_text(OWN)
        self.hetrun('own.lua', '--quiet', '--whole', '--allow-write=runs/gpt')
        words = (self.folder / 'text.txt').read_text()
        (self.folder / 'long.txt').write_text(words * (12_000_000 // len(words)))
        process = subprocess.Popen([HETRUN, 'eval', 'runs/gpt', '--text=long.txt'], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killer = threading.Timer(100, process.kill)
        killer.start()
        self.addCleanup(killer.cancel)
        self.assertRegex(process.stderr.readline(), r'^\d+ of \d+ tokens  loss \d+\.\d{4}  .+ tokens/s  .+ left\n$')
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertRegex(out, r'^loss \d+\.\d{6}, perplexity \S+ over the first \d+ tokens\n$')

    def test_a_model_does_not_fit_its_folder_or_its_data(self):
        def train(model, data, *words):
            (self.folder / 'recipe.lua').write_text(f'''local het = require "het"
local data = het.data.text {{ {data} }}
return het.train {{ model = {model}, data = data, context = 8, batch = 1, steps = 1, optimizer = het.optim.sgd {{ lr = 1e-3 }},
  evaluate = {{ every = 0 }}, save = "runs/gpt" }}''')
            return self.hetrun('recipe.lua', *words)[1]

        train('het.nn.gpt { vocab = data.vocab, context = 8, width = 8, layers = 2, heads = 2 }', 'path = "text.txt"')
        (self.folder / 'runs/gpt').rename(self.folder / 'runs/base')
        (self.folder / 'few.txt').write_text('the het ' * 100)
        other = "the data's vocabulary (char) is not that of the model in runs/base (char), whose weights know other tokens; " \
                'vocabulary = "runs/base" takes that\n'
        self.assertIn(other, train('het.load "runs/base"', 'path = "few.txt", tokenizer = "char"'))
        shutil.rmtree(self.folder / 'runs/gpt')
        self.assertNotIn('vocabulary', train('het.load "runs/base"', 'path = "few.txt", vocabulary = "runs/base"'))
        path = self.folder / 'runs/base/config.json'
        path.write_text(json.dumps({**json.loads(path.read_text()), 'n_layer': 1}))
        self.refused('generate runs/base', "runs/base holds 'transformer.h.1.attn.c_attn.bias', but config.json says 1 layer")

    def test_a_folder_is_converted(self):
        (self.folder / 'own.lua').write_text(OWN)
        self.hetrun('own.lua', '--quiet', '--whole', '--allow-write=runs/gpt')
        self.hetrun('own.lua', '--quiet', '--allow-write=runs/own')

        def loss(folder, *words):
            return json.loads(self.hetrun('eval', folder, *words, '--text=text.txt', '--json')[0])['loss']

        def size(folder):
            return sum(path.stat().st_size for path in (self.folder / folder).glob('*.safetensors'))

        whole = loss('runs/gpt')
        for precision, dtype in (('bf16', 'bfloat16'), ('f16', 'float16')):
            out, _ = self.hetrun('convert', 'runs/gpt', precision, f'--precision={precision}')
            self.assertRegex(out, rf'^{precision}: the model of runs/gpt in one file, \d[\d.]* KiB\n$')
            self.assertEqual(json.loads((self.folder / precision / 'config.json').read_text())['torch_dtype'], dtype)
            self.assertNotEqual(loss(precision), whole)
            self.assertAlmostEqual(loss(precision), whole, 2)
            self.assertLess(size(precision), 0.75 * size('runs/gpt'))   # the header is as long
        self.hetrun('convert', 'bf16', 'again', '--precision=f32', '--shard=1KiB')
        parts = sorted(path.name for path in (self.folder / 'again').glob('*.safetensors'))
        self.assertEqual(parts, [f'model-{i:05}-of-{len(parts):05}.safetensors' for i in range(1, len(parts) + 1)])
        self.assertGreater(len(parts), 2)
        index = json.loads((self.folder / 'again' / 'model.safetensors.index.json').read_text())
        self.assertEqual(set(index['weight_map'].values()), set(parts))
        self.assertEqual(loss('again'), loss('bf16'))
        self.hetrun('convert', 'again', 'one')   # of several files one
        content = (self.folder / 'one' / 'model.safetensors').read_bytes()
        header = json.loads(content[8:8 + int.from_bytes(content[:8], 'little')])
        self.assertEqual(header['__metadata__'], {'format': 'pt', 'step': '20'})   # also of parts it is known
        self.assertEqual(loss('one'), loss('bf16'))
        self.hetrun('convert', 'runs/own', 'own')   # as they are
        self.assertEqual((self.folder / 'own/config.json').read_bytes(), (self.folder / 'runs/own/config.json').read_bytes())
        own = ('--recipe=own.lua', '--context=5')
        self.assertEqual(loss('own', *own), loss('runs/own', *own))

        self.refused('convert runs/gpt bf16', 'bf16 holds a model of 20 steps; another folder keeps both')
        self.refused('convert runs/gpt --precision=int8 --shard=small --sort', 'hetrun convert:',
                     '  there is no option --sort; there are --precision, --shard',
                     '  two folders are needed: hetrun convert FOLDER TO', '  --precision=int8 is not f32, bf16 or f16',
                     "  --shard: 'small' is not an amount of memory; write for example 2 GiB")
        self.refused('convert runs/none other', "there is no folder 'runs/none'")
        (self.folder / 'lora.lua').write_text(LORA)
        self.hetrun('lora.lua', '--quiet', '--allow-write=runs/lora')
        self.refused('convert runs/lora other', 'runs/lora holds adapters; hetrun merge runs/lora MODEL writes the model with '
                     'them')
        (self.folder / 'large.lua').write_text(OWN.replace('lr = 1e-2', 'lr = 1e6').replace('steps = 20', 'steps = 1'))
        self.hetrun('large.lua', '--quiet', '--whole', '--save=large', '--allow-write=large')
        _, err = self.hetrun('convert', 'large', 'half', '--precision=f16', code=2)
        self.assertRegex(err, r"^hetrun: '[\w.]+' has the value [\d.e+]+, and f16 holds 65504 at most; --precision=bf16 holds it\n$")
        self.assertFalse((self.folder / 'half').exists())

    def test_adapters_are_saved_loaded_and_merged(self):
        (self.folder / 'own.lua').write_text(OWN)
        self.hetrun('own.lua', '--quiet', '--whole', '--allow-write=runs/gpt')
        (self.folder / 'lora.lua').write_text(LORA)

        def loss(folder):
            return json.loads(self.hetrun('eval', folder, '--text=text.txt', '--json')[0])['loss']

        before = {path.name: path.read_bytes() for path in (self.folder / 'runs/gpt').iterdir()}
        out = json.loads(self.hetrun('lora.lua', '--json', '--allow-write=runs/lora')[0].splitlines()[-1])
        self.assertIn(' trained, f32', self.hetrun('lora.lua', '--resume', '--steps=21', '--allow-write=runs/lora')[1])
        self.assertEqual({path.name for path in (self.folder / 'runs/lora').iterdir()},
                         {'adapter_config.json', 'adapter_model.safetensors', 'training.snapshot', 'vocabulary.json', 'tokenizer.json',
                          'tokenizer_config.json'})
        self.assertLess(loss('runs/lora'), loss('runs/gpt') - 0.01)
        self.assertGreater(out['parameters'], 1000)
        self.assertEqual(self.hetrun('merge', 'runs/lora', 'merged')[0],
                         'merged: the model of runs/gpt with its adapters merged\n')
        self.assertAlmostEqual(loss('merged'), loss('runs/lora'), 5)
        self.assertEqual({path.name: path.read_bytes() for path in (self.folder / 'runs/gpt').iterdir()}, before)
        # Of a base that no folder has, the base is saved, too.
        self.hetrun('lora.lua', '--quiet', '--fresh', '--save=runs/fresh', '--allow-write=runs/fresh')
        self.assertIn('model.safetensors', {path.name for path in (self.folder / 'runs/fresh').iterdir()})
        self.assertLess(loss('runs/fresh'), 3.4)
        self.refused('merge runs/lora merged', 'merged holds a model; another folder keeps both')
        self.refused('merge runs/gpt other', 'runs/gpt holds no adapters')
        self.refused('merge runs/lora', 'hetrun merge:', '  two folders are needed: hetrun merge ADAPTERS MODEL')
        self.refused('own.lua --whole --save=runs/lora --overwrite --allow-write=runs/lora',
                     'runs/lora holds a model of 21 steps with adapters, whose files would stay beside those of this model; '
                     'another folder works')

    def test_counts_are_whole_and_bounded(self):
        for words in ('--threads=0', '--threads=abc', '--threads=1.5', '--threads=-1', '--workers=0', '--workers=two'):
            works = {'--threads': '--threads=4', '--workers': '--workers=2'}[words.split('=')[0]]
            self.refused(f'{words} mlp.lua', f'{words} is not a whole number above 0, such as {works}')
        self.refused('--workers -3 mlp.lua', '--workers=-3 is not a whole number above 0, such as --workers=2')
        self.refused('bench gpt-nano --steps=abc', '--steps=abc is not a whole number above 0, such as --steps=2')
        self.refused('plan mlp.lua --devices=x', '--devices=x is not a whole number above 0, such as --devices=2')
        self.refused('--threads=100000 mlp.lua', '--threads=100000 is above 4096, the most that works')
        self.refused('--workers=1000 mlp.lua', '--workers=1000 is above 512, the most that works')

    def test_a_gpu_that_is_not_there_is_reported_in_a_sentence(self):
        for device in ('cuda', 'cuda:3'):
            out, err = self.hetrun(f'--device={device}', 'mlp.lua', '--steps=1', code=71,
                                   env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
            self.assertRegex(err, '^hetrun: device cuda: [^\\n]+\\n$')
            self.assertEqual(out, '')
        self.refused('--device=cuda:x mlp.lua',
                     "--device=cuda:x is neither cpu nor cuda nor reference; did you mean 'cuda'?")

    def test_options_without_value_and_unknown_ones(self):
        self.refused('mlp.lua --metrics', '--metrics needs one value, such as --metrics=metrics.jsonl')
        self.refused('--device=gpu mlp.lua', "--device=gpu is neither cpu nor cuda nor reference; did you mean 'cuda'?")
        self.refused('--worker 2 mlp.lua',
                     'there is no option --worker; did you mean --workers? (hetrun --help lists the options)')
        self.refused('plan mlp.lua --clutser=cluster.lua',
                     'mlp.lua:6: this recipe has no option --clutser; did you mean --cluster?')
        self.refused('gpt_text.lua --no-resume',
                     'gpt_text.lua:13: this recipe has no option --no-resume; did you mean --resume?')
        self.refused('mlp.lua --no-such', 'mlp.lua:6: this recipe has no option --no-such; it has --hidden, --steps')
        self.refused('mlp.lua --hidden', 'mlp.lua:6: --hidden needs a value, such as --hidden=64')
        self.refused('plan mlp.lua --objective=speed', '--objective=speed is not one of time, cost, progress')
        self.refused('plan mlp.lua --objective=cots',
                     "--objective=cots is not one of time, cost, progress; did you mean 'cost'?")

    def test_files_that_are_not_there(self):
        self.refused('nosuch.lua', "there is no file 'nosuch.lua'")
        self.refused('mpl.lua', "there is no file 'mpl.lua'; did you mean 'mlp.lua'?")
        self.refused('--workers 2 mpl.lua', "there is no file 'mpl.lua'; did you mean 'mlp.lua'?")
        self.refused('plan mlp.lua --cluster=clutser.lua', "there is no file 'clutser.lua'; did you mean 'cluster.lua'?")
        self.refused('gpt_text.lua --text=', 'gpt_text.lua:34: an empty path names no file')
        self.refused('gpt_text.lua --text=tetx.txt',
                     "gpt_text.lua:34: there is no file 'tetx.txt'; did you mean 'text.txt'?")
        self.refused('doctr', "'doctr' is neither a recipe nor a command; did you mean 'doctor'? (hetrun --help)")
        self.refused('gpt_text.lua --elastc 2:3',
                     "there is no option --elastc; did you mean --elastic? (hetrun --help lists the options)")
        self.refused('zebra', "'zebra' is neither a recipe nor a command; commands are doctor, bench, plan, simulate, "
                     'profile, solve, snapshot, status, attach, generate, eval, merge, convert, docs (hetrun --help)')

    def test_workers_need_a_recipe(self):
        self.refused('--workers 2 doctor', "--workers 2 runs a recipe in several processes; 'doctor' is a command, not a "
                     'recipe')
        self.refused('--workers 60 mlp.lua --steps=1 --warn-after=10min',
                     '60 ranks share a batch of 50 samples; at least one sample for each is needed')

    def test_zones_and_prices(self):
        for price in ('lots', '-1', 'nan', '1e7', '3x'):
            self.refused(f'--price={price} mlp.lua', f'--price={price} is no price of an hour: a number from 0 to 1000000, such as '
                         '--price=1.2')
        for zone in ('a;b', 'z' * 65):
            self.refused(f'--zone={zone} mlp.lua', f'--zone={zone} is no name of a zone: letters, digits and - _ . : /, at most 64 '
                         'of them, such as us-east-1a')

    def test_numbers_that_nothing_can_hold(self):
        most = 'is beyond 2^53 = 9007199254740992, the greatest whole number that is kept exactly'
        self.refused('gpt_text.lua --text=text.txt --steps=1e30 --seed=99999999999999999999 --batch=1e18',
                     *(f'gpt_text.lua:13: --{words} {most}' for words in
                       ('steps=1e30', 'seed=99999999999999999999', 'batch=1e18')))
        self.refused('mlp.lua --hidden=1e20', f'mlp.lua:6: --hidden=1e20 {most}')
        self.refused('gpt_text.lua --text=text.txt --lr=nan --width=inf',
                     'gpt_text.lua:13: --lr=nan is not finite; a number is needed',
                     'gpt_text.lua:13: --width=inf is not finite; a whole number is needed')
        self.refused('gpt_text.lua --text=text.txt --layers=1e6',
                     'gpt_text.lua:38: nn.gpt.layers = 1000000 is above 1000, the most that works')
        self.refused('gpt_text.lua --text=text.txt --batch=1e15',
                     'gpt_text.lua:42: train.batch = 1e+15 samples of 64 tokens are more than 2^40 tokens in a '
                     'step')
        self.refused('gpt_text.lua --text=text.txt --context=1e15',
                     'gpt_text.lua:42: train.batch = 12 samples of 1e+15 tokens are more than 2^40 tokens in a '
                     'step')
        _, err = self.hetrun(lines='het.zeros(1e9, 1e9)\nhet.zeros(1e10)\nhet.zeros(1e20)\n', code=2)
        self.assertEqual(err.splitlines()[0], 'stdin:1: a tensor of shape [1000000000, 1000000000] is too large: it has '
                         'more than 2^48 elements')
        self.assertEqual(err.splitlines()[-1], 'stdin:3: het.full: argument 1 must be a list of whole numbers of at most '
                         '2^53, it is table')

    def test_mistakes_of_a_cluster_file_have_its_own_lines(self):
        def refused(was, now, *sentences):
            self.cluster(was, now)
            self.refused('plan gpt_text.lua --text=text.txt --cluster=cluster.lua', *sentences)
        refused('devices = 2', 'devices = 0', 'cluster.lua:4: node.devices = 0 is below 1, the least that works')
        refused('devices = 2', 'zone = 3', 'cluster.lua:4: node.zone = 3 is a number; a string is needed')
        refused('devices = 2', 'preemptions = 2000',
                'cluster.lua:4: node.preemptions = 2000 is above 60, the most that works')
        refused('"T4"', '"T40"', "cluster.lua:2: node a: no device type is called 'T40'; did you mean 'T4'?")
        refused('het.node', 'het.nod', "cluster.lua:3: het has no 'nod'; did you mean 'node'?")
        (self.folder / 'cluster.lua').write_text('local het = require "het"\nreturn het.cluster {}\n')
        self.refused('plan gpt_text.lua --text=text.txt --cluster=cluster.lua',
                     'cluster.lua:2: cluster needs at least one het.node { ... }: the machines that a plan may use')
        self.refused('plan mlp.lua --cluster=mlp.lua',
                     'mlp.lua is a recipe (it returns het.train); a cluster file ends with `return het.cluster { ... }`')

    def test_help_needs_no_data(self):
        (self.folder / 'plain.lua').write_text('''-- A recipe that teaches.
local het = require "het"
local corpus = het.data.text { path = "nowhere.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 }, data = corpus,
  batch = 2, steps = 3, optimizer = het.optim.adamw { lr = 1e-3 },
}
''')
        out, err = self.hetrun('plain.lua', '--help')
        self.assertIn('A recipe that teaches.', out)
        self.assertEqual(err, '')
        self.refused('plain.lua', "plain.lua:3: there is no file 'nowhere.txt'")
        self.assertIn('--hidden', self.hetrun('mlp.lua', '--help')[0])

    def test_quiet_leaves_the_results(self):
        words = ('gpt_text.lua', '--text=text.txt', '--steps=2', '--every=0', '--prompt=the', '--write=10', '--width=8',
                 '--heads=1', '--layers=1', '--quiet')
        out, err = self.hetrun(*words)
        self.assertEqual((len(out), out[:3], err), (len('the') + 10 + 1, 'the', ''))
        json_out, err = self.hetrun(*words, '--json')
        self.assertEqual(err, '')
        self.assertEqual(json_out.count('\n'), 1)
        self.assertEqual(json.loads(json_out)['sample'], out[:-1])

    def test_a_mask_that_hides_nothing_is_refused(self):
        self.refused('bert_base.lua --text=text.txt --mask=0.00001',
                     'bert_base.lua:39: data.masked.mask_share = 1e-05 hides less than one of the 2048 tokens of a step; '
                     '0.00049 and more work')

    def test_a_plan_that_leaves_layers_out_gets_an_error_that_lists_them(self):
        (self.folder / 'short.lua').write_text('''local het = require "het"
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 4, heads = 1 }, data = corpus,
  batch = 2, steps = 3, optimizer = het.optim.adamw { lr = 1e-3 },
  plan = het.plan { microbatch = 1, het.pipeline { microbatches = 2, het.stage { "here:0", layers = 4 } } },
}
''')
        self.refused('short.lua', 'the plan cannot be run:',
                     '  pipeline 1: its stages hold 4 layers, the model has 6 (embedding, blocks.0, ..., blocks.3, head)')

    def test_memory_that_runs_out_is_the_machines(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (2 ** 30, 2 ** 30))
        greedy = 't = {} for i = 1, 1e6 do t[i] = ("x"):rep(1e7 + i) end\n'
        (self.folder / 'greedy.lua').write_text('local ' + greedy)
        _, err = self.hetrun('greedy.lua', code=71, preexec_fn=limit)
        self.assertEqual(err, 'hetrun: greedy.lua: there is not enough memory for the tables and texts of the Lua code\n')
        _, err = self.hetrun(lines=greedy, code=71, preexec_fn=limit)
        self.assertEqual(err, 'stdin:1: not enough memory\n')

    def test_a_model_without_heads_is_planned(self):
        out, _ = self.hetrun('plan', 'mlp.lua', '--cluster=cluster.lua', '--lua')
        self.assertIn('het.plan', out)


if __name__ == '__main__':
    unittest.main()
