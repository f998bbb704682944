#!/usr/bin/env python3
"""Meshes in Lua: the guide's examples, collectives against their definitions, the prompt over several ranks.

usage: run.py HETRUN [unittest arguments]
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import termios
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / 'prompt'))
from session import INTERRUPT, KILL_LINE, TAB, Session   # noqa: E402

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def hetrun(self, *words, code=0, lines=''):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, input=lines, capture_output=True, text=True,
                              timeout=300, check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout, done.stderr


class Guide(Case):
    def test_its_examples_print_what_it_says(self):
        text = (ROOT / 'recipes' / 'guide' / 'meshes.md').read_text()
        examples = re.findall(r'```lua\n(.*?)```\n```text\n(.*?)```', text, re.S)
        self.assertGreater(len(examples), 5)
        lines, said = '', ''
        for i, (code, _) in enumerate(examples):
            lines += f'{code}print("example {i}")\n'
        done = subprocess.run([HETRUN, '--workers', '4'], cwd=self.folder, input=lines, text=True, timeout=300, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for i, (_, wanted) in enumerate(examples):
            said += f'{wanted}example {i}\n'
        self.assertEqual(re.sub(r'stdin:\d+:', 'stdin:LINE:', done.stdout), said)


class Recipes(Case):
    def test_collectives_are_what_they_are_defined_to_be(self):
        for first, second, checks in ((2, 2, 16), (1, 3, 12), (3, 2, 16)):
            out, _ = self.hetrun('--workers', first * second, HERE / 'collectives.lua', f'--first={first}',
                                 f'--second={second}')
            self.assertRegex(out, r'^\d+ checks on rank 0\n$')
            self.assertGreaterEqual(int(out.split()[0]), checks)

    def test_a_mesh_needs_its_ranks(self):
        (self.folder / 'mesh.lua').write_text('local het = require "het"\nlocal mesh = het.mesh { data = 2 }\n')
        _, err = self.hetrun('mesh.lua', code=2)
        self.assertEqual(err, 'hetrun: mesh.lua:2: mesh { data = 2 } needs 2 ranks; this run has 1 (hetrun --workers 2 starts '
                         'so many here)\n')
        self.hetrun('--workers', 2, 'mesh.lua')

    def test_a_rank_that_does_something_else_is_an_error_of_all(self):
        (self.folder / 'other.lua').write_text('''local het = require "het"
local mesh = het.mesh { model = 2 }
local x = het.ones(4, 4):shard(mesh, { model = 0 })
if mesh.rank == 0 then print(het.op.sum(x)) end
''')
        _, err = self.hetrun('--workers', 2, 'other.lua', code=2)
        self.assertEqual(err, 'hetrun: other.lua:4: ranks do different things: rank 0 is at sum(f32[4, 4]), rank 1 at the end '
                         'of its lines; lines on distributed tensors have to do the same on every rank\n')


    def test_a_mesh_of_more_ranks_than_the_run_has_says_how_to_start_them(self):
        _, err = self.hetrun('--workers', 2, code=2, lines='het.mesh { data = 2, model = 2 }\n')
        self.assertEqual(err, 'stdin:1: mesh { data = 2, model = 2 } needs 4 ranks; this run has 2 (hetrun --workers 4 starts so '
                         'many here)\n')

    def test_the_error_of_the_rank_that_fails_is_printed_and_not_what_follows_from_it(self):
        for failing in (0, 1, 2):
            (self.folder / 'fails.lua').write_text(f'''local het = require "het"
local mesh = het.mesh {{ model = 3 }}
local x = het.ones(4, 4):shard(mesh, {{ model = 0 }})
if mesh.rank == {failing} then error "a problem" end
print(het.op.sum(x))
''')
            _, err = self.hetrun('--workers', 3, 'fails.lua', code=2)
            name = f'[rank {failing}] ' if failing > 0 else ''
            self.assertEqual(err, f'{name}hetrun: fails.lua:4: a problem\n')


class Prompt(Case):
    def test_lines_run_on_all_ranks_and_are_printed_once(self):
        out, err = self.hetrun('--workers', 3, lines='m = het.mesh { model = 3 }\nm:all_reduce(het.tensor { m.rank }, "model")\n'
                               'm.rank\n')
        self.assertEqual(out, '[3.]\nf32[1]\n0\n')
        self.assertEqual(err, '')

    def test_errors_name_the_rank_unless_all_say_the_same(self):
        _, err = self.hetrun('--workers', 3, code=2, lines='m = het.mesh { model = 3 }\nnope\nif m.rank > 1 then nope() end\n'
                             'm.rank\n')
        self.assertEqual(err, "stdin:2: 'nope' is not declared\n"
                         "[rank 2] stdin:3: 'nope' is not declared\n")

    def test_a_gradient_may_use_other_tensors_as_constants(self):
        lines = """m = het.mesh { model = 2 }
x = het.full({ 4, 6 }, 0.5):shard(m, { model = 1 })
labels, scale = het.full({ 4 }, 2, "i32"), het.full({ 1 }, 0.25)
w = het.ones(3, 6):shard(m, { model = 1 })
dx, loss = het.gradient(function(a) return op.cross_entropy(op.linear(a * 2 + w[1] or a, w), labels, scale) end, x)
dx, loss = het.gradient(function(a) return op.cross_entropy(op.linear(a * 2, w), labels, scale) end, x)
math.abs(loss:item() - math.log(3)) < 1e-6
d, y = het.gradient(function(a) return op.sum(het.full({ 4, 6 }, 3) * a) end, x)
d:gather()[1][1]
het.gradient(function(a) return op.sum(x) end, x)
d, y = het.gradient(function(a) return op.mean(a * a) end, het.full({ 2, 2 }, 3))
d
"""
        out, err = self.hetrun('--workers', 2, code=2, lines=lines)
        self.assertEqual(out, 'true\n3\n[[1.5000, 1.5000]\n [1.5000, 1.5000]]\nf32[2, 2]\n')
        self.assertEqual(err.splitlines()[1], 'stdin:10: het.gradient: the function returned a tensor; it returns a single '
                         'number, made of its arguments')
        self.assertIn('a distributed tensor has no rows to index', err.splitlines()[0])

    def test_layers_take_distributed_tensors(self):
        out, _ = self.hetrun('--workers', 2, lines='''m = het.mesh { model = 2 }
x = het.randn(8, 16)
model = nn.sequential { nn.linear(16, 32), nn.gelu(), nn.layer_norm(32), nn.linear(32, 4) }
whole, parts = model(x), model(x:shard(m, { model = 1 }))
op.global_norm(parts - whole):item() < 1e-4
parts.placements
own = nn.layer { parameters = { gain = { 16, init = "ones" } }, forward = function(self, y) return y * self.gain end }
own(x:shard(m, { model = 0 })).placements
dx, y = het.gradient(function(a) return op.sum(model(a)) end, x:shard(m, { model = 0 }))
dx.placements, math.abs(y:item() - op.sum(whole):item()) < 1e-4
''')
        self.assertEqual(out, 'true\n"model dim 0"\n"model dim 0"\n"model dim 0"\ttrue\n')

    def test_a_gradient_is_explained_without_its_constants(self):
        out, _ = self.hetrun('--workers', 2, lines='''m = het.mesh { model = 2 }
x = het.ones(4, 6):shard(m, { model = 0 })
dx, y = het.gradient(function(a) return op.mean(a * a) end, x)
print(het.explain(dx))
''')
        self.assertEqual(out, 'mul: model: a dim 0, b dim 0 -> y dim 0\n'
                         'mean: model: x dim 0 -> y partial\n'
                         'mul: model: a dim 0, b dim 0 -> y dim 0\n'
                         'mul: model: a dim 0, b dim 0 -> y dim 0\n'
                         'add: model: a dim 0, b dim 0 -> y dim 0\n')

    def test_devices_name_ranks_as_plans_do(self):
        out, err = self.hetrun('--workers', 4, code=2, lines='''m = het.mesh { data = 2, model = 2, devices = { "a:0-1", "b:0-1" } }
m
m.devices
het.ones(2, 2):shard(m, { model = 1 })
other = het.mesh { { "model", 4 }, devices = { "b:1", "a:1", "a:0", "b:0" } }
other
m:all_reduce(het.tensor { other:coordinate "model" }, "model")
het.mesh { data = 2, model = 2, ranks = { 1, 0, 3, 2 } }
het.mesh { model = 4, devices = { "c:0-3" } }
het.mesh { model = 4, devices = { "a:0", "b:0" } }
het.mesh { model = 4, devices = { "a:3-0" } }
het.mesh { model = 4, devices = "a:0-3" }
het.mesh { model = 4, devices = { "a:0-1", "b:0-1" }, ranks = { 3, 2, 1, 0 } }
het.mesh { model = 4, devices = { "a:0-1", "b:0", "a:0" } }
het.mesh { model = 4, devices = m.rank == 2 and { "a:0-1", "b:0-1" } or { "b:0-1", "a:0-1" } }
m:all_reduce(het.ones(1), "model"):item()
''')
        self.assertEqual(out, 'mesh { data = 2, model = 2, devices = { "a:0", "a:1", "b:0", "b:1" } }\n'
                         '{"a:0", "a:1", "b:0", "b:1"}\n'
                         '[[1., 1.]\n [1., 1.]]\nf32[2, 2]\n'
                         'dim 1 | 0:1     | 1:2    \n      | a:0 b:0 | a:1 b:1\n'
                         'data replicated, model dim 1 over mesh { data = 2, model = 2, devices = { "a:0", "a:1", "b:0", "b:1" } }\n'
                         'mesh { model = 4, devices = { "b:1", "a:1", "a:0", "b:0" } }\n'
                         '[3.]\nf32[1]\nmesh { data = 2, model = 2, ranks = { 1, 0, 3, 2 } }\n2\n')
        self.assertEqual([re.sub('; lines on .*', '', line) for line in err.splitlines()], [
            'stdin:9: het.mesh: no rank of this run is c:0; they are a:0, a:1, b:0, b:1',
            'stdin:10: het.mesh: 2 devices for 4 places',
            "stdin:11: het.mesh: devices: 'a:3-0' names no devices, or more than 65536",
            'stdin:12: het.mesh: devices is a list of devices, as in devices = { "a:0-1", "b:0-1" }',
            'stdin:13: het.mesh: devices and ranks both say who is at each place; give one of them',
            'stdin:14: mesh: ranks = { 0, 1, 2, 0 }; each of the ranks 0 to 3 has one place',
            'stdin:15: ranks do different things: rank 0 is at het.mesh { model = 4, devices = { "b:0", "b:1", "a:0", "a:1" } } over '
            'ranks 2, 3, 0, 1, rank 2 at het.mesh { model = 4, devices = { "a:0", "a:1", "b:0", "b:1" } } over ranks 0, 1, 2, 3'])

    def test_a_mesh_runs_at_the_pace_of_devices_of_a_cluster(self):
        out, err = self.hetrun('--workers', 2, code=2, lines='''mixed = het.cluster { bandwidth = "10 Gbit/s", latency = "40 us",
  het.node { name = "a", type = "A100-80", devices = 2 }, het.node { name = "b", type = "T4" } }
m = het.mesh { model = 2, devices = { "a:0", "b:0" }, pace = mixed }
m
x, w, b = het.randn(8, 16), het.randn(4, 16), het.randn(4)
cut = { model = { dim = 1, shares = { 3, 1 } } }
y = op.linear(x:shard(m, cut), w:shard(m, cut), b)
y.placements
op.global_norm(y - op.linear(x, w, b)):item() < 1e-5
seconds = m:time(function() y:gather() end)
type(seconds), seconds > 0
het.mesh { model = 2, pace = mixed }
het.mesh { model = 2, devices = { "a:0", "b:0" }, pace = "mixed" }
het.mesh { model = 2, devices = { "b:0", "a:0" }, pace = mixed }
other = het.cluster { bandwidth = "10 Gbit/s", het.node { name = "b", type = "T4", devices = 2 } }
het.mesh { model = 2, devices = { "a:0", "b:0" }, pace = other }
m:time(3)
m:time(function() error "stop" end)
m:all_reduce(het.ones(1), "model"):item()
''')
        self.assertEqual(out, 'mesh { model = 2, devices = { "a:0", "b:0" } }\n"model partial"\ntrue\n"number"\ttrue\n'
                         'mesh { model = 2, devices = { "b:0", "a:0" } }\n2\n')
        self.assertEqual(err, '''stdin:12: het.mesh: pace needs devices: which of the cluster each rank is, as in devices = { "a:0-1", "b:0-1" }
stdin:13: het.mesh: pace = "mixed"; a het.cluster { ... } is needed
stdin:16: the cluster has no device 'a:0'; did you mean 'b:0'?
stdin:17: mesh:time: a function is needed, not a number
stdin:18: stop
''')

    def test_meshes_are_equal_to_themselves(self):
        out, _ = self.hetrun('--workers', 2, lines='''m, n = het.mesh { model = 2 }, het.mesh { model = 2 }
x = het.ones(4):shard(m, { model = 0 })
x.mesh == m, x.mesh == n
''')
        self.assertEqual(out, 'true\tfalse\n')

    def test_a_distributed_tensor_is_explained(self):
        out, _ = self.hetrun('--workers', 2, lines='x = het.ones(4):shard(het.mesh { model = 2 }, { model = 0 })\n?x\n?x.gather\n')
        self.assertIn('lies over a mesh', out)
        self.assertIn('All of it on every rank', out)

    def test_arguments_that_differ_are_an_error_of_all(self):
        lines = """m = het.mesh { model = 2 }
t = het.ones(4, 2)
m:broadcast(t, "model", m.rank)
m:all_reduce(t, "model", m.rank == 0 and "sum" or "max")
t:shard(m, { model = m.rank })
m:all_gather(t, "model", m.rank == 0 and 0 or 7)
m:all_reduce(het.ones(2, "bool"), "model")
x = t:shard(m, { model = 0 })
p = x:local_part()
p[1][1] = 5
y = m.rank == 0 and x * 2 or x * 3
op.global_norm(x):item() > 2.8
x:gather()[1][1] + x:local_part()[1][1]
"""
        out, err = self.hetrun('--workers', 2, code=2, lines=lines)
        said = [re.sub(r'; lines on distributed .*', '', line) for line in err.splitlines()]
        self.assertEqual(said, [
            'stdin:3: ranks do different things: rank 0 is at mesh:broadcast of f32[4, 2] along model (from 0), rank 1 at '
            'mesh:broadcast of f32[4, 2] along model (from 1)',
            'stdin:4: ranks do different things: rank 0 is at mesh:all_reduce of f32[4, 2] along model (sum), rank 1 at '
            'mesh:all_reduce of f32[4, 2] along model (max)',
            'stdin:5: ranks do different things: rank 0 is at shard of f32[4, 2] (sharded by 0 in [4] by 1:1), rank 1 at '
            'shard of f32[4, 2] (sharded by 1 in [2] by 1:1)',
            '[rank 0] stdin:6: ranks do different things: rank 0 is at mesh:all_gather of f32 of 2 dimensions along model, '
            'rank 1 at the end of line 6',
            '[rank 1] stdin:6: mesh:all_gather: there is no dimension 7 of f32[4, 2]',
            'stdin:7: mesh:all_reduce: truth values have no sum',
            'stdin:11: ranks do different things: rank 0 is at scale(f32[4, 2]) ({factor = 2}; model dim 0), rank 1 at '
            'scale(f32[4, 2]) ({factor = 3}; model dim 0)'])
        self.assertEqual(out, 'true\n2\n')

    def test_placements_that_cannot_be(self):
        lines = ['m = het.mesh { data = 2 }', 'x = het.ones(4, 6)']
        wrong = {
            'x:shard(m, { dta = 0 })': "mesh { data = 2 } has no axis 'dta'; did you mean 'data'?",
            'x:shard(m, { data = 2 })': 'shard: data = 2; f32[4, 6] has the dimensions 0 to 1',
            'x:shard(m, { data = { 0 } })': 'shard: data = { [number] }; a placement has dim and shares',
            'x:shard(m, { data = { dim = 0, shares = { 1 } } })': 'shard: 1 share for the axis data, which has 2 ranks',
            'x:shard(m, { data = { dim = 0, shares = { 0, 0 } } })': 'shard: shares of the axis data: one at least is above 0',
            'x:shard(m, { data = 0.5 })': 'shard: data = 0.5; a dimension is a whole number, from 0',
            'x:shard(m, { data = { dim = "a" } })': 'shard: data = string; a dimension, from 0, or { dim =, shares = } is '
            'needed',
            'x:shard(m, { data = { dim = 0, shares = { 0.5, 1 } } })': 'shard: shares of the axis data: 0.5 is no whole number '
            'from 0 on; { 3, 1 } gives the first rank three quarters',
            'x:shard(m, { data = { dim = 0, shares = { 3, -1 } } })': 'shard: shares of the axis data: -1 is no whole number '
            'from 0 on; { 3, 1 } gives the first rank three quarters',
            'x:shard(m, { data = { dim = 0, shares = 3 } })': 'shard: shares of the axis data are a list, such as { 1, 1 }; this '
            'is a number',
            'het.full({}, 1):shard(m, { data = 0 })': 'shard: data = 0; f32[] has no dimension to cut',
            'x:shard(m, { data = 0 }):redistribute { data = 7 }': 'redistribute: data = 7; f32[4, 6] has the dimensions 0 to 1',
            'm:all_reduce(x)': 'mesh:all_reduce: the second argument names an axis, as in mesh:all_reduce(t, "data")',
            'm:all_gather(x, "data", 0.5)': 'mesh:all_gather: argument 3 is a dimension of the tensor: a whole number, from 0',
            'm:reduce_scatter(x, "data", 0, { 1, 0.5 })': 'mesh:reduce_scatter: shares of the axis data: 0.5 is no whole '
            'number from 0 on; { 3, 1 } gives the first rank three quarters',
            'x:shard(m, 0)': 'tensor:shard: argument 2 must be a table such as { data = 0 }: axis = dimension, it is 0',
            'x:shard(m, { data = 0 })[1]': 'a distributed tensor has no rows to index; :gather() has it whole, '
                                           ":local_part() this rank's",
            'het.mesh { data = 3 }': 'mesh { data = 3 } needs 3 ranks; this run has 2 (hetrun --workers 3 starts so many here)',
            'het.mesh { a = 2, b = 1, c = 1 }': 'het.mesh: 3 axes; a mesh has 1 or 2',
            'het.mesh { data = 2, ranks = { 0, 0 } }': 'mesh: ranks = { 0, 0 }; each of the ranks 0 to 1 has one place',
            'het.mesh { data = 2, ranks = { 0.5, 1 } }': 'het.mesh: ranks is a list of ranks, as in ranks = { 1, 0 }',
            'het.mesh { data = { "a:0", "a:1" } }': 'het.mesh: data is a number of ranks, as in het.mesh { data = 2 }; devices '
            '= { "a:0-1" } names them',
            'het.mesh { data = 2, device = { "a:0-1" } }': "het.mesh has no field 'device'; did you mean 'devices'?",
            'x:shard { data = 0 }': 'tensor:shard: the mesh comes first, as in x:shard(mesh, { model = 0 })',
            'm.size = 3': 'nothing of a mesh or a distributed tensor can be set; x:gather() is a tensor that can',
            'x:shard(m, { data = 0 }).y = 3': 'nothing of a mesh or a distributed tensor can be set; x:gather() is a tensor '
                                              'that can',
            'x:shard(m, { data = 0 }) + x:shard(het.mesh { data = 2 }, { data = 0 })': 'operands lie on two meshes, mesh '
            "{ data = 2 } and mesh { data = 2 }, each made by a call of het.mesh; x:redistribute(mesh, ...) brings one to the other's",
            'het.explain(x)': 'het.explain: a tensor f32[4, 6] was given; a distributed tensor is needed, as tensor:shard and '
            'operators on one return it',
            'nn.linear(2, 2)(3)': 'nn.linear: 3 was given; a tensor or a value of a graph is needed',
            'm:all_reduce(x:shard(m, { data = 0 }), "data")': 'mesh:all_reduce: it works on what each rank has; of a '
            'distributed tensor x that is x:local_part(), and x:redistribute(...) moves it',
        }
        _, err = self.hetrun('--workers', 2, code=2, lines='\n'.join([*lines, *wrong]) + '\n')
        for line, (words, sentence) in zip(err.splitlines(), wrong.items()):
            self.assertEqual(re.sub(r'^stdin:\d+: ', '', line), sentence, words)
        self.assertEqual(len(err.splitlines()), len(wrong))


class Terminal(Case):
    def start(self, workers):
        session = Session([HETRUN, '--workers', str(workers)], self.folder)
        self.addCleanup(session.close)
        session.ready()
        return session

    def test_tab_completes_what_meshes_and_their_tensors_have(self):
        session = self.start(2)
        session.run('mesh = het.mesh { data = 2 }', '')
        session.run('x = het.ones(4, 4):shard(mesh, { data = 0 })', '')
        for typed, offered in (('mesh.', 'axes coordinate devices rank'), ('mesh:', 'all_reduce coordinate time'),
                               ('x.', 'mesh placements shape redistribute'), ('x:', 'gather local_part redistribute')):
            session.type(f'{typed}{TAB}')
            self.assertLessEqual(set(offered.split()), set(session.read_until(r'\n([a-z_]+  )+\n')[0].split()), typed)
            session.type(KILL_LINE)
        session.run(f'x.pl{TAB}', r'"data dim 0"')
        session.run(f'x:ga{TAB}().pl{TAB} == nil', "a tensor has no 'pl'")
        self.assertEqual(session.leave(), 0)

    def test_ctrl_c_stops_a_line_on_all_ranks(self):
        session = self.start(3)
        session.run('m = het.mesh { model = 3 }', '')
        session.run('m.size', r'\n3\n')
        session.type('print("be" .. "gun"); while true do end\r')
        session.read_until('begun')
        session.type(INTERRUPT)
        session.read_until('interrupted')
        session.ready()
        session.run('m:all_reduce(het.ones(1), "model"):item()', r'\n3\n')
        session.type('x = het.ones(4, 4):shard(m, { model = 0 }); print("be" .. "gun"); while true do x:gather() end\r')
        session.read_until('begun')
        session.type(INTERRUPT)
        session.read_until('interrupted')
        session.ready()
        session.run('m:all_reduce(het.ones(1), "model"):item()', r'\n3\n')
        self.assertEqual(session.leave(), 0)

    def test_a_rank_that_dies_ends_the_session_and_the_terminal_is_as_before(self):
        session = self.start(3)
        session.run('m = het.mesh { model = 3 }', '')
        session.run('m:all_reduce(het.ones(1), "model"):item()', r'\n3\n')
        children = pathlib.Path(f'/proc/{session.process}/task/{session.process}/children').read_text().split()
        self.assertEqual(len(children), 3)
        os.kill(int(children[2]), signal.SIGKILL)
        session.read_until('rank 2 was killed by signal 9')
        _, status = os.waitpid(session.process, 0)
        session.code = os.waitstatus_to_exitcode(status)
        self.assertEqual(session.code, 75)
        self.assertTrue(termios.tcgetattr(session.terminal)[3] & termios.ECHO)


if __name__ == '__main__':
    unittest.main()
