"""Sharding programs that are synthesised: what is printed, that they train, and what is refused."""
import importlib
import json
import re
import sys
import unittest

from case import ROOT, Case

FAST_LINKS = '''local het = require "het"
local function device(name, rate)
  return het.device_type { name = name, f32 = rate, memory = "4 GiB", memory_bandwidth = "1 TB/s", efficiency = 1,
    bandwidth = "40 GB/s", latency = "1 us" }
end
return het.cluster { bandwidth = "40 GB/s", latency = "1 us", all_reduce = "mesh",
  device("slow", "0.1 GFLOP/s"), device("fast", "0.3 GFLOP/s"),
  het.node { name = "a", type = "slow" }, het.node { name = "b", type = "fast", devices = 2 } }
'''

# Before het.train: a function like nn.gpt for a model with adapters, its base, and a loss beside a reference.
ADAPTED = '''local op, base = het.op, nil
local function adapted(arguments)
  base = nn.gpt(arguments)
  return nn.lora { model = base, rank = 2 }
end
local function preference(logits, labels, scale, reference)
  local reward = op.log_probability(logits, labels) - op.log_probability(reference, labels)
  return op.reshape(op.reshape(op.sum(op.exp(reward * -1)), { shape = { 1 } }) * scale, { shape = {} })
end
'''


class Synthesis(Case):
    def setUp(self):
        super().setUp()
        (self.folder / 'fast.lua').write_text(FAST_LINKS)

    def plan(self, *words):
        return self.hetrun('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap', *words)[0]

    def test_a_program_with_uneven_shares_is_printed_and_trains_as_one_device_does(self):
        text = self.plan()
        for part in ('no program takes less than', 'even data parallelism', "HAP's published rules", 'forward', 'backward',
                     'update', ' -> ', 'het.plan { tensor = {'):
            self.assertIn(part, text)
        alone = self.losses('small.lua')
        self.recipe(self.plan('--lua'))
        together = self.losses('small.lua', '--workers=3')
        self.assertEqual(len(together), 3)
        for one, other in zip(alone, together):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_gradients_that_unlike_devices_gather_are_no_weights(self):
        self.recipe('het.plan { tensor = 3, microbatch = 8, unlike_devices = true, sharding = { nodes = { ["norm layer_norm"] = "replicated" } },'
                    ' het.pipeline { microbatches = 1, het.stage { "a:0", "b:0-1" } } }')
        parts = self.json_of('simulate', 'small.lua', '--cluster=fast.lua')['report']['parts']
        self.assertGreater(parts['gradients'], 0)
        self.assertEqual(parts['gather'], 0)

    def test_a_device_that_slows_the_others_down_is_named(self):
        self.assertNotIn('out of the cluster', self.plan())
        (self.folder / 'fast.lua').write_text(FAST_LINKS.replace('0.1 GFLOP/s', '0.00001 GFLOP/s'))
        report = self.json_of('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap')['report']
        self.assertEqual(report['smaller']['without'], ['a:0'])
        self.assertLess(report['smaller']['step_seconds'], 0.5 * report['step_seconds'])
        self.assertRegex(self.plan(), r'\nwithout a:0 a step takes [\d.]+ ms: leave it out of the cluster\n')

    def test_which_device_is_slow_is_said_of_the_precision_of_the_plan(self):
        unlike = FAST_LINKS.replace('f32 = rate', 'f32 = rate, bf16 = other').replace('(name, rate)', '(name, rate, other)')
        for before, after in [('"0.1 GFLOP/s"', '"0.1 GFLOP/s", "1 GFLOP/s"'), ('"0.3 GFLOP/s"', '"0.3 GFLOP/s", "0.00001 GFLOP/s"')]:
            unlike = unlike.replace(before, after)
        (self.folder / 'fast.lua').write_text(unlike)
        recipe = self.folder / 'small.lua'
        recipe.write_text(recipe.read_text().replace('steps = 3,', 'steps = 3, precision = "bf16",'))
        report = self.json_of('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap')['report']
        self.assertEqual(report['smaller']['without'], ['b:0', 'b:1'])

    def test_what_the_gain_of_rules_is_of(self):
        self.assertRegex(self.plan('--gains'), r'with which a step is \d\.\d+ times as fast without overlap:')

    def test_the_program_as_data(self):
        answer = self.json_of('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap')
        report = answer['report']
        self.assertTrue(answer['feasible'])
        self.assertGreater(report['devices'][2]['share'], report['devices'][0]['share'])
        self.assertLessEqual(report['bound_seconds'], report['summed_seconds'])
        self.assertAlmostEqual(report['summed_seconds'], report['compute_seconds'] + report['communication_seconds'])
        self.assertAlmostEqual(report['summed_seconds'], sum(line['seconds'] for line in report['instructions']),
                               delta=1e-3 * report['summed_seconds'])
        self.assertLessEqual(report['step_seconds'], 1.02 * report['summed_seconds'])
        for other in report['baselines']:
            if other['found']:
                self.assertLessEqual(report['step_seconds'], other['step_seconds'])

    def test_a_plan_that_cuts_nothing_says_so(self):
        self.assertRegex(self.plan(), r'devices with their shares of what is cut, and their memory:\n  a:0 +slow +\d+\.\d %  .*B\n'
                                      r'  b:0 \.\.\. b:1 +fast +\d+\.\d %  .*B, each\n')
        # Of unlike devices each would compute its gradients alone, and they would have to take the same.
        (self.folder / 'fast.lua').write_text(FAST_LINKS.replace('1 us', '2 s').replace('type = "fast"', 'type = "slow"'))
        text = self.plan()
        self.assertIn('nothing is cut: every device runs the whole model', text)
        self.assertRegex(text, r'devices, and their memory:\n  a:0 \.\.\. b:1 +slow +all  ')
        # What they do exchange is named, and counts with and without overlap.
        self.assertIn('as one device alone would; they exchange only norms and losses\n', text)
        self.assertRegex(text, r'exchange of norms and losses \d\d\.\d %')
        self.assertNotIn('gathering of weights', text)
        self.assertRegex(text, r'without overlap 2\.\d+ s: .* of computing, 0 us of communication, 2 s of norms and losses\n')
        report = self.json_of('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap')['report']
        self.assertFalse(report['cut'])
        self.assertEqual([device['part'] for device in report['devices']], [1, 1, 1])

    def test_baselines_are_what_they_are_called(self):
        (self.folder / 'fast.lua').write_text(FAST_LINKS.replace('1 us', '2 s'))
        found = {}
        for other in self.json_of('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap')['report']['baselines']:
            found[other['name']] = other['lua']
        for name in ('even data parallelism', 'proportional data parallelism', 'ZeRO'):
            self.assertIn('["tokens embedding"] = "ids dim 0 -> y dim 0"', found[name], name)
        few = self.hetrun('plan', 'small.lua', '--batch=2', '--cluster=fast.lua', '--policy=hap')[0]
        self.assertRegex(few, r'  even data parallelism +2 samples cannot be cut among 3 devices\n')

    def test_one_device_has_a_plan_without_sharding(self):
        alone = self.losses('small.lua')
        text = self.hetrun('plan', 'small.lua', '--devices=1', '--policy=hap')[0]
        self.assertIn('\nnothing is cut: there is one device\n', text)
        for words in ('others, simulated', 'sharding = ', 'partial\n', 'norms and losses'):
            self.assertNotIn(words, text)
        self.recipe('het.plan.hap {}')
        self.assertEqual(self.losses('small.lua'), alone)

    def test_other_solvers_check_the_program(self):
        self.assertRegex(self.plan('--check'), r'checked: the cheapest program takes [\d.]+ ms without overlap; with its shares no program '
                                               r'takes less, by branch and bound in .* \(\d+ nodes, \d+ strategies\)')
        check = self.json_of('plan', 'small.lua', '--layers=1', '--cluster=fast.lua', '--policy=hap', '--check')['report']['check']
        self.assertTrue(check['exact'])
        self.assertEqual(check['bound_seconds'], check['checked_seconds'])
        self.assertTrue(0 < check['linear_bound_seconds'] <= check['bound_seconds'])
        self.assertIn("by GLPK's linear relaxation in ", self.plan('--layers=1', '--check'))
        self.assertNotIn('checked:', self.plan())
        self.assertIn('--check is for --policy=hap', self.refused('plan', 'small.lua', '--check'))

    def test_a_run_finds_its_program_when_it_starts(self):
        alone = self.losses('small.lua')
        self.recipe('het.plan.hap {}')
        together = self.losses('small.lua', '--workers=2')
        for one, other in zip(alone, together):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_micro_batches(self):
        self.assertIn('microbatch = 4,', self.plan('--microbatch=4', '--lua'))
        error = self.hetrun('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap', '--microbatch=3', code=2)[1]
        self.assertIn('microbatch = 3 does not divide batch = 8', error)
        self.assertIn('--microbatch is for --policy=hap', self.refused('plan', 'small.lua', '--microbatch=4'))

    def adapted(self, more):
        """The small model with adapters, as adapted.lua; `more`: arguments of het.train."""
        recipe = (self.folder / 'small.lua').read_text()
        recipe = recipe.replace('return het.train {', ADAPTED + 'return het.train {').replace('data = corpus,', more + ' data = corpus,')
        (self.folder / 'adapted.lua').write_text(recipe.replace('model = nn.gpt {', 'model = adapted {'))

    def check_of_adapted(self, layers):
        """That the program for adapted.lua is planned, proven and trains as one device does."""
        answer = self.json_of('plan', 'adapted.lua', f'--layers={layers}', '--cluster=fast.lua', '--policy=hap', '--check')
        report = answer['report']
        self.assertLessEqual(report['bound_seconds'], report['check']['checked_seconds'])
        self.assertEqual(report['check']['bound_seconds'], report['check']['checked_seconds'])
        alone = self.losses('adapted.lua', f'--layers={layers}')
        text = (self.folder / 'adapted.lua').read_text()
        (self.folder / 'adapted.lua').write_text(text.replace('or nil --[[PLAN]]', 'or ' + answer['lua']))
        together = self.losses('adapted.lua', f'--layers={layers}', '--workers=3')
        self.assertEqual(len(together), 3)
        for one, other in zip(alone, together):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_model_with_adapters(self):
        self.adapted('')
        self.check_of_adapted(3)

    def test_a_model_with_adapters_and_a_reference_that_shares_its_weights(self):
        self.adapted('reference = base, loss = preference,')
        self.check_of_adapted(2)

    def test_auto_tries_sharding_programs_of_a_model_with_adapters(self):
        self.adapted('reference = base, loss = preference,')
        self.assertIn('programs', self.json_of('plan', 'adapted.lua', '--layers=1', '--cluster=fast.lua'))

    def test_auto_plans_experts_for_devices_that_differ_much(self):
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)
        (self.folder / 'differ.lua').write_text('''local het = require "het"
local function kind(name, rate)
  return het.device_type { name = name, f32 = rate, memory = "2 GiB", memory_bandwidth = "1 TB/s", efficiency = 1, launch = "0 us",
    bandwidth = "50 MB/s", latency = "800 us" }
end
return het.cluster { bandwidth = "50 MB/s", latency = "800 us", all_reduce = "mesh", kind("fast", "1 GFLOP/s"),
  kind("old", "0.125 GFLOP/s"), het.node { name = "fast", type = "fast", devices = 1 },
  het.node { name = "old", type = "old", devices = 3 } }''')
        (self.folder / 'experts.lua').write_text('''local het = require "het"
local nn, data = het.nn, het.data
return het.train { batch = 32, steps = 8, optimizer = het.optim.adamw { lr = 1e-3, clip = 1 },
  data = data.masked { path = "text.txt", tokenizer = "char" },
  model = nn.bert { vocab = 2048, context = 32, width = 64, heads = 4, layers = 4, block = function(width, heads, index)
    local mlp = index % 2 == 0 and nn.experts { width = width, experts = 16, top = 2 } or nil
    return nn.bert_block { width = width, heads = heads, mlp = mlp }
  end } }''')
        self.assertTrue(self.json_of('plan', 'experts.lua', '--cluster=differ.lua')['feasible'])

    def test_auto_takes_a_sharding_program_where_it_gains(self):
        (self.folder / 'slow.lua').write_text(FAST_LINKS.replace('40 GB/s', '5 MB/s').replace('1 us', '100 us'))
        recipe = '''local het = require "het"
return het.train { model = het.nn.vgg { classes = 10, depth = 11, width = 1, hidden = 512, pool = 4 }, batch = 12, steps = 3,
  data = het.data.shapes { samples = 100, holdout = 0.1 }, evaluate = { every = 0 }, optimizer = het.optim.adamw { lr = 1e-3 },
  plan = %s }
'''
        (self.folder / 'images.lua').write_text(recipe % 'nil')
        answer = self.json_of('plan', 'images.lua', '--cluster=slow.lua')
        programs = answer['programs']
        self.assertIn('sharding = ', answer['lua'])
        self.assertNotIn('sharding = ', answer['pipelines_lua'])
        self.assertLess(programs['step_seconds'], 0.98 * programs['rival_seconds'])
        self.assertEqual(answer['step_seconds'], programs['step_seconds'])
        self.assertEqual(programs['step_seconds'], min(each['step_seconds'] for each in programs['candidates'] if each['fits']))
        # The devices and the step that are printed are the program's.
        # Layers that run otherwise are named apart; * stands for all.
        program = self.hetrun('plan', 'images.lua', '--cluster=slow.lua', '--policy=hap')[0]
        for line in ('    features.* conv2d x8: x dim 0 -> y dim 0', '    classifier.0,3 linear x2: weight dim 0', '    classifier.6 linear: '):
            self.assertIn(line, program)
        self.assertNotIn('classifier.* linear', program)
        text = self.hetrun('plan', 'images.lua', '--cluster=slow.lua')[0]
        (self.folder / 'found.lua').write_text('local het = require "het"\nreturn ' + answer['lua'])
        simulated = self.hetrun('simulate', 'images.lua', '--cluster=slow.lua', '--plan=found.lua')[0]
        table = simulated[:simulated.index('\nlinks: ')]
        self.assertIn('what binds: ', table)
        self.assertTrue(text.startswith(f"a sharding program: {programs['name']}\n{table}\nthe best pipelines take "), text)
        self.assertRegex(text, r'the best pipelines take [\d.]+ ms, \d\.\d\d times as long; what the search says of them:\ndevice ')
        # One step time of each plan.
        self.assertEqual(re.findall(r'(?m)^step ([\d.]+ ms)', text), re.findall(r'(?m)^step ([\d.]+ ms), simulated', text))
        said = re.search(r'the best pipelines take ([\d.]+ ms)', text)[1]
        self.assertRegex(text, rf'(?m)^layer by layer: step {said}, ')
        self.assertEqual(answer['report']['step_seconds'], answer['step_seconds'])
        self.assertEqual(answer['pipelines_report']['step_seconds'], programs['rival_seconds'])
        self.assertNotIn('text', programs)
        self.assertNotIn('programs', self.json_of('plan', 'images.lua', '--cluster=slow.lua', '--without=sharding_programs'))
        alone = self.losses('images.lua')
        (self.folder / 'images.lua').write_text(recipe % answer['lua'])
        together = self.losses('images.lua', '--workers=3')
        for one, other in zip(alone, together):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_what_auto_prints_of_a_plan_is_what_its_simulation_says(self):
        """Launches of layers make up most of a step of small layers: micro-batches of one sample gain nothing."""
        options = ['--precision=bf16', '--width=768', '--layers=6', '--heads=12', '--kv_heads=12', '--context=128', '--batch=8']
        for cluster in ('bandwidth = "1 Gbit/s", het.node { name = "na", type = "H200", devices = 2 }',
                        'het.node { name = "a", type = "A100-80", devices = 2 }'):
            (self.folder / 'gpus.lua').write_text(f'local het = require "het"\nreturn het.cluster {{ {cluster} }}')
            answer = self.json_of('plan', ROOT / 'recipes' / 'llama_tiny.lua', *options, '--cluster=gpus.lua')
            (self.folder / 'found.lua').write_text('local het = require "het"\nreturn ' + answer['lua'])
            simulated = self.json_of('simulate', ROOT / 'recipes' / 'llama_tiny.lua', *options, '--cluster=gpus.lua',
                                     '--plan=found.lua')
            self.assertEqual(answer['step_seconds'], answer['report']['step_seconds'])
            self.assertAlmostEqual(simulated['step_seconds'] / answer['step_seconds'], 1, delta=1e-9)
            for each in answer['programs']['candidates']:
                self.assertNotRegex(each['name'], r'^{ \S+ } { \S+ },')   # a plain pipeline

    def test_auto_puts_unlike_devices_of_a_zone_into_one_stage_where_it_gains(self):
        sys.path.insert(0, str(ROOT / 'tests' / 'bench'))
        self.addCleanup(sys.path.pop, 0)
        mixed = importlib.import_module('mixed_stages')
        (self.folder / 'zones.lua').write_text(mixed.TWO_ZONES.format(**mixed.CLUSTERS['1 x 6 + 3 x 2, 1 Gbit/s']))
        recipe, *options = mixed.WORKLOADS['vgg19']
        answer = self.json_of('plan', ROOT / 'recipes' / recipe, *options, '--cluster=zones.lua')
        self.assertIn('{ a:0, b:0-2 } {', answer['programs']['name'])
        self.assertTrue(mixed.is_mixed(answer['programs']['name'], {'a': 'fast', 'b': 'slow', 'c': 'fast', 'd': 'slow'}))
        self.assertIn('unlike_devices = true', answer['lua'])
        self.assertLess(answer['programs']['step_seconds'], answer['programs']['rival_seconds'] / 1.2)

    def test_a_gate_that_chooses_all_experts(self):
        # Then probabilities and choices have one shape; the search ends at once, and its bound is near.
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 100)
        (self.folder / 'gate.lua').write_text('''local het = require "het"
local nn = het.nn
return het.train { model = nn.bert { vocab = 257, context = 16, width = 32, heads = 4, layers = 1, block = function(width, heads)
  return nn.bert_block { width = width, heads = heads, mlp = nn.experts { width = width, experts = 2, top = 2, capacity = 2 } } end },
  data = het.data.masked { path = "text.txt", tokenizer = "byte" }, batch = 3, steps = 1,
  optimizer = het.optim.sgd { lr = 0.02, momentum = 0.9, clip = 1 } }
''')
        (self.folder / 'two.lua').write_text('''local het = require "het"
return het.cluster { bandwidth = "5 GB/s", latency = "20 us", all_reduce = "mesh", het.node { name = "a", type = "cpu", devices = 2 },
  het.device_type { name = "cpu", f32 = "7 GFLOP/s", memory = "1 GiB", memory_bandwidth = "140 GB/s", efficiency = 1,
    bandwidth = "20 MB/s", latency = "20 us" } }
''')
        report = self.json_of('plan', 'gate.lua', '--cluster=two.lua', '--policy=hap')['report']
        self.assertLess(report['gap'], 0.01)

    def test_shares_that_suit_what_experts_exchange_are_found(self):
        """Exchanges between experts and samples are not linear in the shares."""
        (self.folder / 'cluster.lua').write_text('local het = require "het"\n'
                                                 'return het.cluster { bandwidth = "10 Gbit/s", latency = "50 us",\n'
                                                 '  het.node { name = "v", type = "V100-16", devices = 2 },\n'
                                                 '  het.node { name = "p", type = "P100", devices = 1 } }\n')
        report = self.json_of('plan', ROOT / 'recipes/bert_moe.lua', '--experts=16', '--context=32', f'--text={self.folder}/text.txt',
                              '--width=64', '--heads=4', '--layers=2', '--batch=64', '--cluster=cluster.lua', '--policy=hap')['report']
        self.assertLess(report['gap'], 0.02)

    def test_optimizers_that_are_written_with_operators(self):
        # The search takes one operator for each update: it ends at once, and the program runs with the real one.
        recipe = '''local het = require "het"
local corpus = het.data.masked { path = "text.txt", tokenizer = "char", holdout = 0 }
return het.train { model = het.nn.bert { vocab = corpus.vocab, context = 16, width = 32, layers = 2, heads = 4 }, data = corpus,
  batch = 12, steps = 3, optimizer = het.optim.%s { lr = 1e-2, clip = 0.5%s }, plan = %s }
'''
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 100)
        falling = ', beta1 = function(step) return 0.9 - 0.1 * step end'
        for optimizer, more in (('lion', ''), ('adafactor', ''), ('muon', ''), ('adamw', falling)):
            with self.subTest(optimizer=optimizer):
                (self.folder / 'own.lua').write_text(recipe % (optimizer, more, 'nil'))
                answer = self.json_of('plan', 'own.lua', '--cluster=fast.lua', '--policy=hap')
                said = self.hetrun('plan', 'own.lua', '--cluster=fast.lua', '--policy=hap')[0]
                self.assertIn(f"here the update of optim.{optimizer} takes what AdamW's does", said)
                alone = self.losses('own.lua')
                (self.folder / 'own.lua').write_text(recipe % (optimizer, more, answer['lua']))
                for one, other in zip(alone, self.losses('own.lua', '--workers=3'), strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-5 * one)

    def test_the_norm_of_all_gradients_is_of_no_loss(self):
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 100)
        (self.folder / 'normed.lua').write_text('''local het = require "het"
local op = het.op
return het.train { model = het.nn.gpt { vocab = 256, context = 16, width = 32, layers = 1, heads = 2 }, batch = 8, steps = 1,
  data = het.data.text { path = "text.txt", tokenizer = "byte", holdout = 0 }, optimizer = het.optim.sgd { lr = 0.1 },
  loss = function(logits, _, scale)
    local flat = op.reshape(logits, { shape = { -1, 256 } })
    local norm = op.reshape(op.global_norm(op.one_hot(op.argmax(flat), { classes = 256 })), { shape = { 1 } })
    return op.reshape(op.sum(op.sum(flat, { dims = { 1 } }) * norm), { shape = {} }) * scale
  end }
''')
        self.hetrun('normed.lua', '--quiet')   # on one device
        self.assertIn('global_norm is of all gradients of an update', self.refused('plan', 'normed.lua', '--cluster=fast.lua',
                                                                                   '--policy=hap'))

    def test_auto_compares_programs_with_the_update_that_runs(self):
        (self.folder / 'wide.lua').write_text('''local het = require "het"
return het.train { model = het.nn.gpt { vocab = 64, context = 128, width = 512, layers = 2, heads = 8 }, batch = 4, steps = 1,
  data = het.data.text { path = "text.txt", tokenizer = "byte", holdout = 0 }, optimizer = het.optim.muon { lr = 1e-2 } }
'''.replace('vocab = 64', 'vocab = 256'))
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 100)
        answer = self.json_of('plan', 'wide.lua', '--cluster=fast.lua')
        (self.folder / 'found.lua').write_text('local het = require "het"\nreturn ' + answer['lua'])
        simulated = self.json_of('simulate', 'wide.lua', '--cluster=fast.lua', '--plan=found.lua')
        self.assertAlmostEqual(simulated['report']['step_seconds'] / answer['step_seconds'], 1, delta=1e-6)

    def test_such_plans_are_simulated(self):
        report = self.json_of('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap')
        self.recipe(report['lua'])
        answer = self.json_of('simulate', 'small.lua', '--cluster=fast.lua')
        self.assertAlmostEqual(answer['report']['step_seconds'], report['report']['step_seconds'], delta=1e-9)
        devices = answer['report']['devices']
        self.assertEqual([device['device'] for device in devices], ['a:0', 'b:0', 'b:1'])
        self.assertAlmostEqual(sum(device['share'] for device in devices), 1, delta=1e-9)
        text = self.hetrun('simulate', 'small.lua', '--cluster=fast.lua')[0]
        for part in ('b:1', 'computes', 'waits', 'simulated from the programs of all ranks', '\nlinks: ', '\nwhat binds: '):
            self.assertIn(part, text)
        # What a step goes to adds up to it on each device.
        step = answer['report']['step_seconds']
        for device in devices:
            self.assertAlmostEqual(sum(device['parts'].values()) / step, 1, delta=1e-9)
            self.assertAlmostEqual(device['parts']['compute'] + device['parts']['update'], device['compute_seconds'], delta=1e-12)
            self.assertGreaterEqual(min(device['parts'].values()), 0)
        [slowest] = [device for device in devices if device['device'] == answer['report']['slowest']]
        self.assertEqual(slowest['parts'], answer['report']['parts'])
        self.assertEqual(report['report']['slowest'], slowest['device'])
        self.assertRegex(text, r'a step on %s, slowest in compute: compute \d' % slowest['device'])
        spread = answer['link_spread']
        self.assertEqual(len(spread['cases']), 4)
        self.assertTrue(spread['least'] <= step < spread['most'])
        self.hetrun('simulate', 'small.lua', '--cluster=fast.lua', '--html=simulated.html', '--trace=trace.json')
        page = (self.folder / 'simulated.html').read_text()
        self.assertEqual((page.count('class="row"'), page.count('class="bar"')), (3, 3))
        for words in ('linear of blocks.0', 'of what is cut; waits', 'Simulated from the programs of all ranks', 'sharding = '):
            self.assertIn(words, page)
        self.assertNotIn('nil', page)
        events = [event for event in json.loads((self.folder / 'trace.json').read_text())['traceEvents'] if event['ph'] == 'X']
        ends = [event['ts'] + event['dur'] for event in events]
        self.assertAlmostEqual(max(ends), 1e6 * answer['report']['step_seconds'], delta=1)
        for rank in range(3):
            computed = sum(event['dur'] for event in events if event['tid'] == 2 * rank)
            self.assertAlmostEqual(computed, 1e6 * devices[rank]['compute_seconds'], delta=1)
        self.hetrun('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap', '--html=planned.html')
        drawn = (self.folder / 'planned.html').read_text()
        drawn = re.sub(r'\n<h2>The program</h2>\n<pre>[^<]*</pre>\n', '', drawn[drawn.index('<h2>Cluster'):])
        self.assertEqual(drawn, page[page.index('<h2>Cluster'):])
        (self.folder / 'fast.lua').write_text(FAST_LINKS.replace('"b"', '"c"'))
        self.assertIn("the plan names 'b:0'; the cluster has no such device", self.refused('simulate', 'small.lua', '--cluster=fast.lua'))

    def test_auto_keeps_pipelines_where_a_program_does_not_gain(self):
        (self.folder / 'slow.lua').write_text(FAST_LINKS.replace('40 GB/s', '2 MB/s').replace('1 us', '100 us'))
        answer = self.json_of('plan', 'small.lua', '--cluster=slow.lua')
        self.assertNotIn('sharding = ', answer['lua'])
        self.assertNotIn('pipelines_lua', answer)
        # Those that cannot gain by their arithmetic alone are not simulated.
        programs = answer['programs']
        self.assertGreater(programs.get('step_seconds', float('inf')), 0.98 * programs['rival_seconds'])
        self.assertEqual(answer['step_seconds'], answer['report']['step_seconds'])

    def test_micro_batches_of_few_samples_among_very_unlike_devices(self):
        """The shares that suit a large micro-batch may leave a slow device nothing of a small one."""
        unlike = FAST_LINKS.replace('type = "slow" }', 'type = "slow", devices = 3 }').replace(', devices = 2 }', ' }')
        for fast, slow in [('40 GB/s', '50 MB/s'), ('1 us', '800 us'), ('0.1 GFLOP/s', '0.125 GFLOP/s'), ('0.3 GFLOP/s', '1 GFLOP/s')]:
            unlike = unlike.replace(fast, slow)
        (self.folder / 'unlike.lua').write_text(unlike)
        (self.folder / 'words.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 900)
        (self.folder / 'bert.lua').write_text('''local het = require "het"
return het.train {
  model = het.nn.bert { vocab = 2048, context = 32, width = 64, heads = 4, layers = 4 },
  data = het.data.masked { path = "words.txt", tokenizer = "char" }, batch = 32, steps = 8, evaluate = { every = 0 },
  optimizer = het.optim.adamw { lr = 1e-3, clip = 1 },
}
''')
        self.assertTrue(self.json_of('plan', 'bert.lua', '--cluster=unlike.lua')['feasible'])

    def test_what_it_does_not_take(self):
        error = self.refused('plan', 'small.lua', '--policy=hap', '--fallbacks=2', '--objective=cost')
        self.assertIn('--policy=hap does not take --fallbacks', error)
        self.assertIn('knows no other objective', error)

    def test_a_model_that_does_not_fit_says_which_device_lacks_how_much(self):
        small = FAST_LINKS.replace('4 GiB', '300 KiB')
        (self.folder / 'fast.lua').write_text(small)
        error = self.hetrun('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap', code=2)[1]
        self.assertIn('no plan fits', error)
        self.assertRegex(error, r'[ab]:\d \((slow|fast)\) lacks [\d.]+ [KM]iB')
        answer = json.loads(self.hetrun('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap', '--json', code=2)[0])
        self.assertFalse(answer['feasible'])
        self.assertRegex(answer['problems'][1], r'[ab]:\d \((slow|fast)\) lacks ')
        # Less than parameters and the optimizer's state take: no search, and shares like the devices' memory.
        (self.folder / 'fast.lua').write_text(FAST_LINKS.replace('4 GiB', '200 KiB', 1))
        lines = self.hetrun('plan', 'small.lua', '--cluster=fast.lua', '--policy=hap', code=2)[1].splitlines()
        self.assertRegex(lines[1], r"^  parameters and the optimizer's state take [\d.]+ KiB; the 3 devices together have [\d.]+ KiB$")
        self.assertRegex(lines[2], r'^  a:0 \(slow\) lacks [\d.]+ KiB at least, with a share of them like its memory: [\d.]+ KiB, it has 188 KiB$')
        self.assertEqual(len(lines), 5)
        # What lacks much is not looked for in every size: only the search of the whole batch and that of one sample is made.
        (self.folder / 'fast.lua').write_text(FAST_LINKS.replace('4 GiB', '500 KiB'))
        error = self.hetrun('plan', 'small.lua', '--batch=64', '--cluster=fast.lua', '--policy=hap', code=2)[1]
        self.assertRegex(error, r'[ab]:\d \((slow|fast)\) lacks [\d.]+ [KM]iB: its part needs')


if __name__ == '__main__':
    unittest.main()
