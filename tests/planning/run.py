#!/usr/bin/env python3
"""`hetrun plan`, `hetrun simulate` and `hetrun profile`: what they print, draw and refuse; that plans train, and that
what was measured is what plans are made of.

usage: run.py HETRUN [unittest arguments]
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60
CLUSTER = '''local het = require "het"
return het.cluster { bandwidth = "10 Gbit/s", latency = "50 us",
  het.node { name = "a", type = "A100-80", devices = 2, price = 8 },
  het.node { name = "t", type = "T4", devices = 2, price = 1 } }
'''
MEASURED = next((path for path in (pathlib.Path(os.environ.get('HETRUN_MEASURED', '/nowhere')),
                                   *(above / 'shared/data/measured' for above in (ROOT, *ROOT.parents)))
                 if (path / 'plans').is_dir()), None)
BROWSER = next((path for name in ('chromium', 'chromium-browser', 'google-chrome') if (path := shutil.which(name))), None)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        (self.folder / 'cluster.lua').write_text(CLUSTER)
        self.recipe('nil')

    def recipe(self, plan):
        (self.folder / 'small.lua').write_text((HERE / 'small.lua').read_text().replace('nil --[[PLAN]]', plan))

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, text=True, capture_output=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout, done.stderr

    def refused(self, *words):
        return self.hetrun(*words, code=2)[1]

    def json_of(self, *words):
        return json.loads(self.hetrun(*words, '--json', '--quiet')[0].splitlines()[-1])

    def losses(self, *words):
        metrics = self.folder / 'metrics.jsonl'
        self.hetrun(*words, '--quiet', f'--metrics={metrics}')
        return [line['loss'] for line in map(json.loads, metrics.read_text().splitlines()) if 'loss' in line]


class Plans(Case):
    def test_no_part_of_a_cluster_has_a_faster_plan(self):
        mixed = (ROOT / 'recipes' / 'clusters' / 'mixed.lua').read_text()
        seconds = []
        for cluster in (mixed, re.sub(r'.*name = "old".*\n', '', mixed)):
            (self.folder / 'cluster.lua').write_text(cluster)
            seconds.append(self.json_of('plan', ROOT / 'recipes' / 'llama_tiny.lua', '--text=text.txt', '--cluster=cluster.lua',
                                        '--precision=bf16', '--width=2048', '--layers=24', '--heads=16', '--kv_heads=8',
                                        '--context=2048', '--batch=64')['report']['step_seconds'])
        self.assertLessEqual(seconds[0], seconds[1] * (1 + 1e-9))

    def test_every_device_and_figure_is_told(self):
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua')
        for words in ('device', 'layers', 'memory', 'free', 'busy', 'why', 'tokens/s', 'bubble', 'exposed communication',
                      'no plan takes less than', 'for a billion tokens', 'estimated from the data sheet', 'het.plan {'):
            self.assertIn(words, out)

    def test_what_is_hardly_meant_is_noted(self):
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--objective=progress')
        self.assertIn('note: the objective is progress, and no node has a rate of preemptions', out)
        self.assertNotIn('note:', self.hetrun('plan', 'small.lua', '--cluster=cluster.lua')[0])

    def test_options_of_the_recipe_change_what_is_planned(self):
        few, many = (self.json_of('plan', 'small.lua', '--cluster=cluster.lua', f'--layers={n}') for n in (4, 12))
        self.assertEqual(len(few['model']['layers']), 6)
        self.assertEqual(len(many['model']['layers']), 14)
        self.assertGreater(many['model']['parameters'], 2 * few['model']['parameters'])

    def test_no_policy_beats_auto_and_none_its_bound(self):
        best = self.json_of('plan', 'small.lua', '--cluster=cluster.lua')['report']
        self.assertGreaterEqual(best['step_seconds'], best['lower_bound_seconds'])
        for policy in ('megatron', 'whale', 'autohet'):
            other = self.json_of('plan', 'small.lua', '--cluster=cluster.lua', f'--policy={policy}')['report']
            self.assertLessEqual(best['step_seconds'], other['step_seconds'] * (1 + 1e-9), policy)

    def test_a_plan_covers_every_layer_once_and_the_batch(self):
        answer = self.json_of('plan', 'small.lua', '--cluster=cluster.lua')
        plan, layers = answer['plan'], len(answer['model']['layers'])
        self.assertEqual(plan['microbatch'] * sum(p['microbatches'] for p in plan['pipelines']), 8)
        for pipeline in plan['pipelines']:
            self.assertEqual(sum(stage['layers'] for stage in pipeline['stages']), layers)

    def test_a_printed_plan_trains_the_same_model(self):
        alone = self.losses('small.lua')
        plan, _ = self.hetrun('plan', 'small.lua', '--devices=2', '--lua')
        self.recipe(plan.strip())
        ranks = len({f'here:{i}' for i in range(2) if f'"here:{i}"' in plan})
        spread = self.losses('--workers', ranks, 'small.lua') if ranks > 1 else self.losses('small.lua')
        for one, several in zip(alone, spread, strict=True):
            self.assertAlmostEqual(one, several, delta=1e-5 * abs(one))

    def test_the_planner_s_own_plan_trains_the_same_model(self):
        alone = self.losses('small.lua')
        for one, planned in zip(alone, self.losses('small.lua', '--auto'), strict=True):
            self.assertAlmostEqual(one, planned, delta=1e-5 * abs(one))

    def test_ranks_follow_the_plan_of_the_first(self):
        alone = self.losses('small.lua')
        # megatron uses every device that it is given.
        spread = self.losses('--workers', 2, 'small.lua', '--auto', '--policy=megatron')
        for one, planned in zip(alone, spread, strict=True):
            self.assertAlmostEqual(one, planned, delta=1e-5 * abs(one))


class Replans(Case):
    """Planning again, after a loss or with more machines, and ahead of a loss."""

    def cluster(self, *nodes, **more):
        more = ''.join(f', {name} = {value}' for name, value in more.items())
        nodes = ',\n'.join(f'  het.node {{ {node} }}' for node in nodes)
        (self.folder / 'cluster.lua').write_text(
            f'local het = require "het"\nreturn het.cluster {{ bandwidth = "10 Gbit/s", latency = "50 us"{more},\n{nodes} }}\n')

    def spot(self, *names, devices=2):
        self.cluster(*(f'name = "{name}", type = "T4", devices = {devices}' for name in names))

    def plan(self, *words):
        return self.json_of('plan', 'small.lua', '--cluster=cluster.lua', '--policy=search', *words)

    def save(self, name='old.lua', *words):
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--policy=search', '--lua', *words)
        (self.folder / name).write_text(out)
        return out

    def test_the_same_plan_moves_nothing(self):
        self.spot('a', 'b')
        self.save()
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--old=old.lua', '--near=50%')
        self.assertIn('no state moves', out)
        self.assertNotIn('moved', self.plan()['report'])

    def test_after_a_loss_the_rest_keeps_what_it_holds(self):
        self.recipe('het.plan { microbatch = 2, '
                    'het.pipeline { microbatches = 2, het.stage { "a:0", layers = 4 }, het.stage { "a:1" } }, '
                    'het.pipeline { microbatches = 2, het.stage { "b:0", layers = 4 }, het.stage { "b:1" } } }')
        self.spot('a')
        moved = self.plan('--old=small.lua', '--near=100%')['report']['moved']   # a recipe's own plan
        self.assertEqual((moved['bytes'], moved['unavailable_bytes'], moved['near']), (0, 0, 1))
        # Without b and a:1 no device holds the last layers.
        self.spot('a', devices=1)
        answer = self.plan('--old=small.lua')
        moved = answer['report']['moved']
        self.assertEqual([d['device'] for d in moved['devices']], ['a:0'])
        self.assertEqual(moved['bytes'], moved['devices'][0]['weight_bytes'] + moved['devices'][0]['optimizer_bytes'])
        self.assertEqual(moved['unavailable_bytes'], moved['bytes'])
        kinds = {kind['name']: kind['parameters'] for kind in answer['model']['kinds']}
        lost = sum(kinds[layer['kind']] for layer in answer['model']['layers'][4:])
        self.assertEqual(moved['bytes'], 12 * lost)   # f32 weights and AdamW's two moments
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--old=small.lua')
        self.assertIn('a snapshot must have them', out)

    def test_a_new_machine_takes_what_it_needs(self):
        self.spot('a')
        self.save()
        self.spot('a', 'z')
        answer = self.plan('--old=old.lua', '--near=0')
        moved = answer['report']['moved']
        self.assertEqual(moved['best_step_seconds'], answer['report']['step_seconds'])
        self.assertLessEqual(moved['bytes'], moved['best_bytes'])
        if moved['bytes'] > 0:
            self.assertGreater(moved['seconds'], 0)

    def test_fallbacks_are_made_for_the_likeliest_losses(self):
        self.cluster('name = "rare", type = "T4", devices = 2, preemptions = 0.01',
                     'name = "often", type = "T4", devices = 2, preemptions = 0.5')
        answer = self.plan('--policy=megatron', '--fallbacks=9')
        self.assertEqual([f['lost'] for f in answer['fallbacks'][:2]], ['often', 'rare'])
        self.assertEqual({f['lost'] for f in answer['fallbacks'][2:]}, {'rare:0', 'rare:1', 'often:0', 'often:1'})
        self.assertEqual([f['preemptions_per_hour'] for f in answer['fallbacks'][:3]], [0.5, 0.01, 0])
        for fallback in answer['fallbacks']:
            self.assertTrue(fallback['feasible'])
            used = {d['device'] for d in fallback['report']['devices']}
            self.assertFalse(used & set(fallback['devices']))
            self.assertIn('bytes', fallback['report']['moved'])
        self.assertEqual(len(self.plan('--fallbacks=1')['fallbacks']), 1)
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--fallbacks=2')
        self.assertRegex(out, r'without often \(0.5 preemptions an hour\): step .* to move')

    def test_a_loss_that_leaves_no_plan_is_said(self):
        (self.folder / 'cluster.lua').write_text(
            'local het = require "het"\nreturn het.cluster {\n'
            '  het.device_type { name = "big", f32 = "1 TFLOP/s", memory = "1 GB", memory_bandwidth = "10 GB/s" },\n'
            '  het.device_type { name = "small", f32 = "1 TFLOP/s", memory = "600 kB", memory_bandwidth = "10 GB/s" },\n'
            '  het.node { name = "a", type = "big" }, het.node { name = "b", type = "small" } }\n')
        answer = self.plan('--fallbacks=1')
        [fallback] = answer['fallbacks']
        self.assertEqual((fallback['lost'], fallback['feasible']), ('a', False))
        self.assertIn('lacks', ' '.join(fallback['problems']))
        out, _ = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--fallbacks=1')
        self.assertRegex(out, 'without a: no plan: .*lacks')

    def test_a_plan_with_fallbacks_is_read_back(self):
        self.spot('a', 'b')
        whole = self.save('old.lua', '--fallbacks=2')
        self.assertIn('lost = "a"', whole)
        self.assertEqual(self.plan('--old=old.lua', '--near=0.5')['report']['moved']['bytes'], 0)

    def test_a_run_has_its_fallbacks_and_starts_from_an_old_plan(self):
        recipe = (self.folder / 'small.lua').read_text().replace(
            'plan = opt.auto', 'after = function(run) for _, f in ipairs(run.fallbacks) do print(f.lost, f.plan or f.problems[1]) '
            'end end,\n  plan = opt.auto').replace(
            'policy = opt.policy', 'policy = "megatron", fallbacks = 2, old = het.plan { microbatch = 8, '
            'het.pipeline { het.stage { "here:0" } } }')
        (self.folder / 'small.lua').write_text(recipe)
        out, said = self.hetrun('--workers', 2, 'small.lua', '--auto')
        self.assertIn('here:0\thet.plan', out)
        self.assertIn('het.stage { "here:1"', out)
        self.assertIn('without here:1: step', said)
        self.assertRegex(said, 'of state move|no state moves')

    def test_an_old_plan_may_say_how_layers_are_cut(self):
        self.spot('a')

        def old(state):
            (self.folder / 'old.lua').write_text(
                'het.plan { tensor = 2, microbatch = 8, het.pipeline { het.stage { "a:0", "a:1" } }, '
                'sharding = { state = { %s } } }' % state)

        old('["*"] = "replicated"')   # both devices hold everything: nothing moves, whatever the plan is
        self.assertEqual(self.plan('--old=old.lua', '--near=0')['report']['moved']['bytes'], 0)
        old('["blocks.*.mlp.*.weight"] = 0, ["blocks.*.mlp.up.weight"] = 1')   # otherwise than any plan that is found
        moved = self.plan('--old=old.lua', '--near=0')['report']['moved']
        self.assertGreater(moved['bytes'], 0)
        self.assertEqual(moved['unavailable_bytes'], 0)
        old('["blocks.*.mpl.*"] = 0')
        self.assertIn("the old plan: the plan's sharding does not fit the model",
                      self.refused('plan', 'small.lua', '--cluster=cluster.lua', '--old=old.lua'))

    def test_what_cannot_be(self):
        self.spot('a')
        reply = self.refused('plan', 'small.lua', '--cluster=cluster.lua', '--old=cluster.lua')
        self.assertIn('cluster.lua holds no plan', reply)
        self.assertIn('--near=much is no share', self.refused('plan', 'small.lua', '--near=much'))
        self.assertIn('--fallbacks=none', self.refused('plan', 'small.lua', '--fallbacks=none'))
        (self.folder / 'old.lua').write_text('het.plan { het.pipeline { het.stage { "a:0", layers = 3 } } }')
        self.assertIn('the old plan: pipeline 1: its stages hold 3 layers, the model has 8',
                      self.refused('plan', 'small.lua', '--cluster=cluster.lua', '--old=old.lua'))
        recipe = (self.folder / 'small.lua').read_text()
        (self.folder / 'small.lua').write_text(recipe.replace('policy = opt.policy', 'old = het.plan.auto {}'))
        self.assertIn('give the het.plan { ... } that it found', self.refused('small.lua', '--auto'))


class Simulations(Case):
    def test_the_recipe_s_plan(self):
        self.recipe('het.plan { microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a:0", layers = 5 }, '
                    'het.stage { "t:0" } } }')
        answer = self.json_of('simulate', 'small.lua', '--cluster=cluster.lua')
        self.assertEqual([d['device'] for d in answer['report']['devices']], ['a:0', 't:0'])
        best = self.json_of('plan', 'small.lua', '--cluster=cluster.lua')
        self.assertLessEqual(best['report']['step_seconds'], answer['report']['step_seconds'])

    def test_no_plan_lies_below_the_bound(self):
        for size in (1, 3, 12):
            self.recipe(f'het.plan {{ microbatch = {size}, het.pipeline {{ microbatches = {12 // size}, '
                        'het.stage { "a:0" } } }')
            report = self.json_of('simulate', 'small.lua', '--cluster=cluster.lua', '--batch=12')['report']
            self.assertGreaterEqual(report['gap'], 0, size)
            best = self.json_of('plan', 'small.lua', '--cluster=cluster.lua', '--batch=12')['report']
            self.assertLessEqual(best['step_seconds'], report['step_seconds'], size)

    def test_stages_share_their_layers_unevenly_and_over_different_numbers_of_devices(self):
        plan = ('het.plan { tensor = 1, microbatch = 2,\n'
                '  het.pipeline { microbatches = 3, het.stage { "a:0", "t:0", tensor = { 3, 1 }, layers = 8 } },\n'
                '  het.pipeline { microbatches = 1, het.stage { "a:1", layers = 8 } },\n}')
        self.recipe(plan)
        out, _ = self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua')
        for words in ('a:0 .* 3/4 of each layer', 't:0 .* 1/4 of each layer', 'not used: t:1',
                      'stages divide layers differently: gradients are exchanged in up to 3 pieces a layer'):
            self.assertRegex(out, words)
        self.assertIn(plan, out)
        reply = self.json_of('simulate', 'small.lua', '--cluster=cluster.lua')
        (self.folder / 'plan.lua').write_text(reply['lua'])
        self.recipe('nil')
        again = self.json_of('simulate', 'small.lua', '--plan=plan.lua', '--cluster=cluster.lua')
        self.assertEqual(again['report'], reply['report'])
        self.assertGreaterEqual(reply['report']['gap'], 0)
        self.assertEqual([device['share'] for device in reply['report']['devices']], ['3/4', '1/4', ''])

    def test_shares_that_the_heads_do_not_have(self):
        self.recipe('het.plan { microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a:0-1", "t:0-1", '
                    'tensor = { 3, 1, 1, 1 } } } }')
        self.assertIn('2 query heads among shares { 3, 1, 1, 1 }; each device needs at least one',
                      self.refused('simulate', 'small.lua', '--cluster=cluster.lua', '--heads=2'))

    def test_a_trace_opens(self):
        self.recipe('het.plan { microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a:0" }, '
                    'het.stage { "t:0" } } }')
        self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua', '--trace=trace.json')
        events = json.loads((self.folder / 'trace.json').read_text())['traceEvents']
        self.assertEqual(sum(event['cat'] == 'forward' for event in events), 8)

    def test_a_recipe_without_a_plan(self):
        self.assertIn('small.lua has no `plan` to simulate', self.refused('simulate', 'small.lua'))
        self.recipe('het.plan.auto {}')
        self.assertIn("no `plan` to simulate but the planner's, het.plan.auto", self.refused('simulate', 'small.lua'))

    def test_a_device_that_the_cluster_has_not(self):
        self.recipe('het.plan { microbatch = 8, het.pipeline { het.stage { "x:0" } } }')
        self.assertIn('x:0', self.refused('simulate', 'small.lua', '--cluster=cluster.lua'))


class Measured(Case):
    """Plans that were run, beside their prediction. The made-up folder has figures that can be followed by hand:
    four layers of 30 ms on `fast`, 60 ms on `slow`, 4 MB of gradients each and 2 MB between them."""

    def setUp(self):
        super().setUp()
        shutil.copytree(HERE / 'measured', self.folder / 'measured')
        self.plans = self.folder / 'measured' / 'plans'

    def words(self, *more):
        return ('simulate', '--profiles', 'measured/profiles', '--model-info', 'measured/model_info.json', '--plans',
                'measured/plans', '--bandwidth=1 GB/s', *more)

    def answer(self, *more, code=0):
        out, err = self.hetrun(*self.words(*more), '--json', '--quiet', code=code)
        answer = json.loads(out.splitlines()[-1])
        answer['by_name'] = {plan['plan']: plan for plan in answer['plans']}
        return answer, err

    def edit(self, name, change):
        path = self.folder / 'measured' / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    def copy(self, source, name, change):
        shutil.copy(self.plans / f'{source}.json', self.plans / f'{name}.json')
        self.edit(f'plans/{name}.json', change)

    def test_a_single_group_takes_what_its_profile_says(self):
        plan = self.answer()[0]['by_name']['alone']
        self.assertAlmostEqual(plan['predicted_seconds'], 4 * 4 * 0.03 + 4 * 0.001)
        self.assertAlmostEqual(plan['bound_seconds'], 4 * 4 * 0.03)
        self.assertAlmostEqual(plan['error'], plan['predicted_seconds'] / 0.5 - 1)
        # 24 bytes a parameter, activations, the gradient of one output, 2 GB of the framework
        self.assertAlmostEqual(plan['predicted_memory_bytes'], 24 * 4e6 + 4 * 10e6 + 2e6 + 2e9)
        self.assertAlmostEqual(plan['memory_error'], plan['predicted_memory_bytes'] / 2.2e9 - 1)
        self.assertFalse(plan['contradicts'] or plan['interpolated'] or plan['notes'] or plan['problems'])

    def test_transfers_hold_up_both_stages(self):
        plan = self.answer()[0]['by_name']['two_stages']
        self.assertAlmostEqual(plan['predicted_seconds'], 3 * (2 * 0.03 + 2 * 0.002) + 2 * 0.001)
        self.assertEqual([stage['in_flight'] for stage in plan['stages']], [2, 1])
        self.assertIsNone(plan['measured_memory_bytes'])

    def test_replicas_of_two_types_wait_for_the_slower(self):
        plan = self.answer()[0]['by_name']['replicas_of_two_types']
        self.assertAlmostEqual(plan['predicted_seconds'], 2 * 4 * 0.06 + 4 * 4e6 / 1e9 + 4 * 0.002)
        self.assertEqual([stage['group'] for stage in plan['stages']], ['fast x 1', 'slow x 1'])

    def test_types_and_degrees_mix_within_a_stage(self):
        plan = self.answer()[0]['by_name']['stages_of_two_types']
        # Followed by hand: the slow group runs four micro-batches of 42 + 82 ms and waits 22 ms for its first.
        self.assertAlmostEqual(plan['pipeline_seconds'], 0.518)
        self.assertAlmostEqual(plan['predicted_seconds'], 0.518 + 2 * 4e6 / 1e9 + 2 * 0.002)
        self.assertEqual({(s['stage'], s['group']) for s in plan['stages']},
                         {(1, 'fast x 2'), (1, 'slow x 1'), (2, 'fast x 1'), (2, 'fast x 2')})
        memory = {(s['stage'], s['group']): s['predicted_memory_bytes'] for s in plan['stages']}
        self.assertAlmostEqual(memory[1, 'fast x 2'], 24 * 1e6 + 2 * 2 * 5e6 + 2e6 + 3e9)
        self.assertAlmostEqual(memory[1, 'slow x 1'], 24 * 2e6 + 2 * 2 * 10e6 + 2e6 + 2e9)
        self.assertEqual(plan['gpus'], 6)

    def test_a_group_over_two_machines_is_as_slow_as_the_slower_and_its_all_reduces(self):
        def half_as_long(profile):
            profile['1']['2'] = {layer: [t / 2 for t in three] for layer, three in profile['1']['1'].items()}
        self.edit('profiles/toy/slow.json', half_as_long)
        self.copy('alone', 'spread', lambda plan: plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['fast', 1, 'z'], ['slow', 1, 'z']], 2]]]))
        plan = self.answer()[0]['by_name']['spread']
        self.assertAlmostEqual(plan['predicted_seconds'], 4 * (4 * 0.03 + 10 * 2e6 / 1e9) + 4 * 0.001)
        self.assertIn('over 2 machines', plan['notes'][0])

    def test_machines_are_shared_in_the_order_of_ranks(self):
        self.copy('two_stages', 'one_machine', lambda plan: plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['fast', 2, 'z']], 1]]] * 2))
        plan = self.answer()[0]['by_name']['one_machine']
        # Both stages in one machine: PCIe instead of --bandwidth.
        transfer = 10e-6 + 2e6 / 12e9
        self.assertAlmostEqual(plan['predicted_seconds'], 3 * (2 * 0.03 + 2 * transfer) + 2 * 0.001)

    def test_only_a_bound_above_the_run_marks_it(self):
        self.copy('alone', 'at_the_edge', lambda plan: plan.update(real=0.437))  # the bound is 9.8 % above
        self.copy('alone', 'much_slower', lambda plan: plan.update(real=5))
        answer = self.answer()[0]
        for name, plan in answer['by_name'].items():
            self.assertEqual(plan['contradicts'], name == 'too_quick', name)
            self.assertEqual(plan['reason'] != '', plan['contradicts'])
        self.assertGreater(answer['by_name']['at_the_edge']['error'], 0.1)
        for words in ('120 ms', 'layers 0 to 3 on fast x 1', 'micro-batch 1', '480 ms', '12 % more', '430 ms'):
            self.assertIn(words, answer['by_name']['too_quick']['reason'])
        self.assertEqual(answer['summary']['marked'], 1)
        self.assertEqual(answer['summary']['seconds']['plans'], 6)
        self.assertEqual(answer['summary']['seconds']['within'], 4)
        self.assertAlmostEqual(answer['summary']['seconds']['worst'], 0.484 / 5 - 1)

    def test_a_profile_that_contradicts_itself_is_said_to(self):
        self.edit('profiles/toy/fast.json', lambda profile: profile['2'].update(
            {'1': {layer: [0.005, 0.01, 0.001] for layer in '0123'}}))
        self.assertIn('the same profile needs less for micro-batch 2, 60 ms for all layers',
                      self.answer()[0]['by_name']['too_quick']['reason'])

    def test_an_interpolated_size_is_said_and_never_marks(self):
        self.copy('alone', 'between', lambda plan: plan.update(mbs=4, gbs=8, real=0.01))
        plan = self.answer()[0]['by_name']['between']
        self.assertTrue(plan['interpolated'])
        self.assertFalse(plan['contradicts'])
        self.assertIn('micro-batch 4 on fast x 1 is interpolated: its profile has 1, 2', plan['notes'])
        self.assertAlmostEqual(plan['pipeline_seconds'], 2 * 4 * (0.054 + 2 * 0.024))

    def test_groups_that_differ_only_in_their_machines_are_distinguished(self):
        self.copy('alone', 'zones', lambda plan: plan.update(mbs=4, gbs=8) or plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['fast', 1, 'here-a']], 1], [[['fast', 1, 'there-a']], 1]]]))
        plan = self.answer()[0]['by_name']['zones']
        self.assertEqual([stage['group'] for stage in plan['stages']],
                         ['fast x 1 (1 GPUs in here-a)', 'fast x 1 (1 GPUs in there-a)'])
        self.assertAlmostEqual(plan['pipeline_seconds'], 4 * (0.054 + 2 * 0.024))

    def test_the_network_is_assumed_aloud(self):
        words = [word for word in self.words() if not word.startswith('--bandwidth')]
        out, _ = self.hetrun(*words)
        self.assertIn('nothing is published of the link between fast and slow: 100 Gbit/s assumed', out)

    def test_the_table(self):
        out, _ = self.hetrun(*self.words())
        self.assertRegex(out, r'(?m)^alone +1 +4 x 1 +0.484 s +0.500 s +-3.2 % +2.1 GB +2.2 GB +-2.8 %$')
        self.assertRegex(out, r'(?m)^too_quick .*\*$')
        for words in ('The profile contradicts these runs', '* too_quick: the profile has 120 ms',
                      'seconds: 4 of 4 within 10 %', 'memory of the fullest GPU: 2 of 2 within 15 %'):
            self.assertIn(words, out)

    def test_what_is_missing_is_listed_all_at_once(self):
        reply = self.refused('simulate', '--profiles', 'measured/profiles', '--plan=x', '--latency=1 us', 'more',
                            '--bandwidth=12 furlongs')
        for words in ('no option --plan', "did you mean 'plans'", '--model-info=FILE is missing',
                      '--plans=DIR is missing', "unexpected argument 'more'", '12 furlongs'):
            self.assertIn(words, reply)
        reply = self.refused('simulate', '--profiles=none', '--model-info=none.json', '--plans=nowhere')
        for words in ('none: cannot be read as a folder', 'none.json', 'nowhere: cannot be read as a folder'):
            self.assertIn(words, reply)

    def test_a_bad_plan_hides_no_other(self):
        (self.plans / 'broken.json').write_text('{"mbs": 1,')
        (self.plans / 'no_object.json').write_text('[1]')
        self.copy('alone', 'no_layers', lambda plan: plan['pipeline_list'][0].pop('layers_per_stage'))
        self.copy('alone', 'no_such_type', lambda plan: plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['H100', 1, 'z']], 1], [[['../toy/fast', 1, 'z']], 1]]]))
        self.copy('alone', 'no_such_degree', lambda plan: plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['slow', 4, 'z']], 4]]]))
        self.copy('alone', 'mistakes', lambda plan: plan.update(mbs=0, gbs='many', real=-1))
        self.copy('alone', 'gap', lambda plan: plan['pipeline_list'][0].update(layers_per_stage=[[0, 2, 3]]))
        self.copy('alone', 'too_few_gpus', lambda plan: plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['fast', 1, 'z']], 2]]]))
        self.copy('two_stages', 'uneven', lambda plan: plan['pipeline_list'][0]['tmp_per_stage'][1].append(
            [[['fast', 1, 'z']], 1]))
        self.copy('alone', 'small_batch', lambda plan: plan.update(mbs=8, gbs=8) or plan['pipeline_list'][0].update(
            tmp_per_stage=[plan['pipeline_list'][0]['tmp_per_stage'][0] * 2]))
        self.copy('alone', 'other_model', lambda plan: plan.update(model='tot'))
        self.copy('alone', 'many_layers', lambda plan: plan['pipeline_list'][0].update(
            layers_per_stage=[list(range(9))]))
        good = {'alone', 'replicas_of_two_types', 'stages_of_two_types', 'too_quick', 'two_stages'}
        answer, err = self.answer(code=2)
        for name, plan in answer['by_name'].items():
            self.assertEqual('predicted_seconds' in plan, name in good, name)
            self.assertEqual(plan['problems'] == [], name in good, name)
        for words in ('broken.json', 'no_object.json: is no JSON object',
                      'no_layers.json: pipeline 1: "layers_per_stage" is missing',
                      'profiles/toy: no profile of GPU type "H100"; there are fast, slow',
                      'no profile of GPU type "../toy/fast"',
                      'model_info.json: toy has no sizes for tensor-parallel degree 4; it has 1, 2',
                      'the profile of slow has no times for tensor-parallel degree 4; it has 1',
                      'mistakes.json: mbs is 0; it is a whole number above 0', 'mistakes.json: gbs is "many"',
                      'mistakes.json: real is -1', 'gap.json: pipeline 1, stage 1: layer 2 where 1 follows',
                      'too_few_gpus.json: pipeline 1, stage 1, replica 1: a tensor-parallel group of 2 has machines '
                      'with 1 GPUs',
                      'uneven.json: pipeline 1, stage 2 has 2 replicas, stage 1 1',
                      'small_batch.json: a batch of 8 is 1 micro-batches of 8, fewer than its 2 replicas',
                      'no model "tot"; there are toy', 'many_layers.json: the plan divides 9 layers'):
            self.assertIn(words, err)

    def test_damaged_profiles_and_sizes_cost_only_what_needs_them(self):
        (self.folder / 'measured/profiles/toy/slow.json').write_text('{"1": {"1": {"0": [1, 2], "2": [1, 2, 3]}}}')
        answer, err = self.answer(code=2)
        self.assertEqual([plan['plan'] for plan in answer['plans'] if plan['problems']],
                         ['replicas_of_two_types', 'stages_of_two_types'])
        self.assertIn('slow.json: micro-batch 1, degree 1, layer 0 is not [forward, backward, update]', err)
        self.assertIn('slow.json: micro-batch 1, degree 1 has 2 entries, but no layer 1', err)
        self.edit('model_info.json', lambda sizes: sizes['toy']['2'].pop('3'))
        answer, err = self.answer(code=2)
        self.assertIn('predicted_seconds', answer['by_name']['alone'])
        self.assertIn('toy has 3 layers at tensor-parallel degree 2; the plan divides 4', err)
        (self.folder / 'measured/model_info.json').write_text('nonsense')
        self.assertIn('model_info.json', self.answer(code=2)[1])

    def test_a_folder_of_one_model_and_several_models_of_one_size(self):
        self.edit('model_info.json', lambda sizes: sizes.update(twin=sizes['toy']))
        self.assertEqual(self.answer()[0]['by_name']['alone']['model'], 'toy')  # twin has no profiles
        shutil.copytree(self.folder / 'measured/profiles/toy', self.folder / 'measured/profiles/twin')
        self.assertIn('as many as each of toy, twin has; --model says which', self.answer(code=2)[1])
        self.assertEqual(self.answer('--model=twin')[0]['by_name']['alone']['model'], 'twin')
        words = [word.replace('measured/profiles', 'measured/profiles/toy') for word in self.words('--model=toy')]
        answer = json.loads(self.hetrun(*words, '--json', '--quiet')[0].splitlines()[-1])
        self.assertAlmostEqual(answer['plans'][0]['predicted_seconds'], 0.484)

    @unittest.skipUnless(MEASURED, 'skipped: no measured plans beside the repository (HETRUN_MEASURED)')
    def test_plans_that_were_really_run(self):
        out, _ = self.hetrun('simulate', '--profiles', MEASURED / 'profiles', '--model-info', MEASURED / 'model_info.json',
                             '--plans', MEASURED / 'plans', '--json', '--quiet')
        answer = json.loads(out.splitlines()[-1])
        self.assertEqual(len(answer['plans']), 15)
        for plan in answer['plans']:
            self.assertLessEqual(abs(plan['memory_error']), 0.15, plan['plan'])
            self.assertTrue(plan['contradicts'] or abs(plan['error']) <= 0.10, plan['plan'])
        self.assertEqual(answer['summary']['marked'], 4)


class Profiles(Case):
    def profile(self, *words):
        return self.json_of('profile', 'small.lua', '--runs=3', *words)

    def saved(self, name='small.profile.json'):
        return json.loads((self.folder / name).read_text())

    def test_each_kind_is_measured_once_for_each_size_and_degree(self):
        reply = self.profile('--microbatches=1,4', '--tensor=1,2')
        keys = [(p['kind'], p['tensor'], p['microbatch']) for p in reply['points']]
        kinds = ('embedding', 'blocks', 'head')
        self.assertEqual(sorted(keys), sorted((k, t, b) for k in kinds for t in (1, 2) for b in (1, 4)))
        self.assertEqual((reply['measured'], reply['reused']), (4, 0))
        for point in reply['points']:
            self.assertGreater(point['forward'], 0, point)
            self.assertGreater(point['update'], 0, point)
            self.assertGreater(point['weight_bytes'], 0, point)
            self.assertLessEqual(point['recompute'], point['forward'], point)
        [link] = reply['links']
        self.assertGreater(link['bandwidth'], 0)

    def test_by_default_the_sizes_and_degrees_that_the_model_admits(self):
        reply = self.profile()
        self.assertEqual({p['microbatch'] for p in reply['points']}, {1, 2, 4, 8})
        self.assertEqual({p['tensor'] for p in reply['points']}, {1, 2, 4})

    def test_people_get_a_table(self):
        out, _ = self.hetrun('profile', 'small.lua', '--runs=3', '--microbatches=2', '--tensor=1')
        for words in ('layer kind', 'forward', 'input', 'weight', 'again', 'activations', 'blocks', 'link cpu, inside'):
            self.assertIn(words, out)

    def test_what_is_known_is_not_measured_again(self):
        self.profile('--microbatches=2', '--tensor=1')
        before = self.saved()
        reply = self.profile('--microbatches=4,2,2', '--tensor=1')
        self.assertEqual((reply['measured'], reply['reused']), (1, 1))
        after = self.saved()
        self.assertEqual([p for p in after['points'] if p['microbatch'] == 2], before['points'])
        self.assertEqual(after['links'], before['links'])
        reply = self.profile('--microbatches=2', '--tensor=1', '--again')
        self.assertEqual((reply['measured'], reply['reused']), (1, 0))

    def test_several_types_share_a_file(self):
        self.profile('--microbatches=2', '--tensor=1')
        self.profile('--microbatches=2', '--tensor=1', '--type=A100-80')
        self.assertEqual({p['type'] for p in self.saved()['points']}, {'cpu', 'A100-80'})
        self.recipe('het.plan { microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a:0" } } }')
        report = self.json_of('simulate', 'small.lua', '--cluster=cluster.lua', '--profile=small.profile.json')['report']
        self.assertEqual(report['layers_measured'], 8)

    def test_another_device_of_the_same_name_is_measured_again(self):
        self.profile('--microbatches=2', '--tensor=1')
        saved = self.saved()
        saved['devices'][0]['name'] = 'an abacus'
        (self.folder / 'small.profile.json').write_text(json.dumps(saved))
        _, said = self.hetrun('profile', 'small.lua', '--runs=3', '--microbatches=4', '--tensor=1')
        self.assertIn('cpu was an abacus', said)
        self.assertEqual({p['microbatch'] for p in self.saved()['points']}, {4})

    def test_a_step_of_a_plan_is_the_sum_of_its_measured_layers(self):
        self.recipe('het.plan { microbatch = 4, het.pipeline { microbatches = 2, het.stage { "here:0" } } }')
        self.profile('--microbatches=4', '--tensor=1')
        answer = self.json_of('simulate', 'small.lua', '--profile=small.profile.json')
        points = {p['kind']: p for p in self.saved()['points']}
        counts = {'embedding': 1, 'blocks': 6, 'head': 1}
        passes = sum(n * (points[k]['forward'] + points[k]['input'] + points[k]['weight']) for k, n in counts.items())
        update = sum(n * points[k]['update'] for k, n in counts.items())
        report = answer['report']
        self.assertAlmostEqual(report['update_seconds'], update, delta=1e-6 * update)
        self.assertAlmostEqual(report['step_seconds'], 2 * passes + update, delta=1e-6 * passes)
        self.assertEqual(report['sources'], [{'type': 'cpu', 'layers_measured': 8, 'layers_interpolated': 0,
                                              'layers_extrapolated': 0,
                                              'layers_estimated': 0, 'link_measured': True, 'link': 'measured'}])

    def test_plans_say_what_they_were_made_of(self):
        self.profile('--microbatches=4', '--tensor=1')
        out, said = self.hetrun('plan', 'small.lua', '--profile=small.profile.json')
        self.assertIn('link measured', out)
        self.assertNotIn('holds nothing', said)
        _, said = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--profile=small.profile.json')
        self.assertIn('the profile holds nothing of A100-80', said)

    def test_measured_links_are_what_plans_are_made_of(self):
        self.profile('--microbatches=4', '--tensor=1')
        saved = self.saved()
        device = [{'type': 'T4', 'name': 'a card'}]
        points = [{**point, 'type': 'T4'} for point in saved['points']]
        (self.folder / 'cluster.lua').write_text('''local het = require "het"
return het.cluster { bandwidth = "10 Gbit/s", het.node { name = "x", type = "T4", devices = 2 },
  het.node { name = "y", type = "T4", zone = "far" } }
''')
        self.recipe('het.plan { microbatch = 4, het.pipeline { microbatches = 2, het.stage { "x:0" }, het.stage { "x:1" }, '
                    'het.stage { "y:0" } } }')

        def report(**seconds):
            links = [{'type': 'T4', 'from': ends[0], 'to': ends[1],
                      'messages': [{'bytes': size, 'seconds': each * (1 + size)} for size in (0, 1000, 100000)]}
                     for ends, each in seconds.items()]
            (self.folder / 'cards.json').write_text(
                json.dumps({**saved, 'devices': device, 'points': points, 'links': links}))
            words = ('simulate', 'small.lua', '--cluster=cluster.lua', '--profile=cards.json')
            return self.json_of(*words)['report'], self.hetrun(*words)[0]

        reply, out = report()
        self.assertIn('layer times on T4: 8 measured, 0 interpolated, 0 estimated from the data sheet; '
                      'link from the data sheet', out)
        self.assertIn('links between hosts: 0 measured, 1 as the cluster states them', out)
        inside, out = report(xx=1e-7)
        self.assertGreater(inside['step_seconds'], reply['step_seconds'])
        self.assertIn('; link measured', out)
        between, out = report(xx=1e-7, yx=1e-6)
        self.assertGreater(between['step_seconds'], inside['step_seconds'])
        self.assertIn('links between hosts: 1 measured, 0 as the cluster states them', out)
        self.assertEqual((between['links_measured'], between['sources'][0]['link']), (1, 'measured'))

    def test_a_run_plans_with_it(self):
        self.profile('--microbatches=4', '--tensor=1')
        recipe = (self.folder / 'small.lua').read_text()
        (self.folder / 'small.lua').write_text(recipe.replace('policy = opt.policy', 'profile = "small.profile.json"'))
        _, said = self.hetrun('small.lua', '--auto')
        self.assertRegex(said, r'layer times on cpu: \d+ measured')

    def test_ranks_measure_together(self):
        reply = json.loads(self.hetrun('--workers', 2, 'profile', 'small.lua', '--runs=3', '--microbatches=2', '--json',
                                      '--quiet', '--tensor=1')[0].splitlines()[-1])
        self.assertEqual({p['type'] for p in reply['points']}, {'cpu/2'})
        [link] = reply['links']
        self.assertEqual((link['type'], link['from']), ('cpu/2', link['to']))
        again = self.hetrun('--workers', 2, 'profile', 'small.lua', '--microbatches=2', '--tensor=1', '--json', '--quiet')
        self.assertEqual(json.loads(again[0].splitlines()[-1])['reused'], 1)
        report = self.json_of('plan', 'small.lua', '--devices=2', '--profile=small.profile.json')['report']
        self.assertEqual(report['layers_estimated'], 0)
        self.assertTrue(report['sources'][0]['link_measured'])

    def test_ranks_of_several_types_measure_for_one_profile(self):
        with socket.create_server(('127.0.0.1', 0)) as free:
            port = str(free.getsockname()[1])
        ranks = []
        for rank, kind in enumerate(('fast', 'slow')):
            environment = {**os.environ, 'RANK': str(rank), 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port,
                           'HETRUN_SECRET': 'x' * 32}
            ranks.append(subprocess.Popen(
                [HETRUN, 'profile', 'small.lua', '--runs=3', '--microbatches=2', '--tensor=1', f'--type={kind}'], cwd=self.folder,
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        said = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
        for kind in ('fast', 'slow'):
            self.assertIn(f' on {kind} (', said[0][0])
        profile = self.saved()
        kinds = {kind: sorted(p['kind'] for p in profile['points'] if p['type'] == kind) for kind in ('fast', 'slow')}
        self.assertGreater(len(kinds['fast']), 1)
        self.assertEqual(kinds['fast'], kinds['slow'])
        self.assertEqual({device['type'] for device in profile['devices']}, {'fast', 'slow'})

    def test_a_deeper_model_has_the_same_layers(self):
        self.profile('--microbatches=8', '--tensor=1')
        report = self.json_of('plan', 'small.lua', '--layers=12', '--profile=small.profile.json')['report']
        self.assertEqual(report['layers_estimated'], 0)

    def test_a_profile_that_cannot_be_used(self):
        self.profile('--microbatches=2', '--tensor=1')
        path = self.folder / 'small.profile.json'
        whole = path.read_text()
        plan = ('plan', 'small.lua', '--profile=small.profile.json')
        wide = (self.folder / 'small.lua').read_text().replace('width = 32', 'width = 64')
        (self.folder / 'wide.lua').write_text(wide)
        reply = self.refused('plan', 'wide.lua', '--profile=small.profile.json')
        for words in ('small.profile.json cannot be used', 'width 32', 'width 64', 'measure again'):
            self.assertIn(words, reply)
        reply = self.refused('profile', 'wide.lua', '--out=small.profile.json')
        self.assertIn('small.profile.json is there already', reply)
        (self.folder / 'other.lua').write_text((self.folder / 'small.lua').read_text().replace('adamw', 'sgd'))
        self.assertIn('with another precision, context or optimizer',
                      self.refused('plan', 'other.lua', '--profile=small.profile.json'))
        path.write_text(whole.replace('"hetrun": "', '"hetrun": "0.0.'))
        self.assertIn('it was measured by hetrun 0.0.', self.refused(*plan))
        path.write_text(whole.replace('"profile": 2', '"profile": 1'))
        self.assertIn('is not a profile of format 2', self.refused(*plan))
        path.write_text(whole[:len(whole) // 2])
        self.assertIn('small.profile.json', self.refused(*plan))
        path.write_text(whole.replace('"forward": ', '"forward": -'))
        self.assertIn('times are 0 or more', self.refused(*plan))
        path.write_text(whole.replace('"kind"', '"kin"'))
        self.assertIn('entry 1 of points: "kind" is missing or no text', self.refused(*plan))
        self.assertIn('nowhere.json', self.refused('plan', 'small.lua', '--profile=nowhere.json'))

    def test_a_size_that_does_not_fit_is_left_out(self):
        wide = (self.folder / 'small.lua').read_text().replace('width = 32', 'width = 512')
        (self.folder / 'small.lua').write_text(wide)
        out, said = self.hetrun('profile', 'small.lua', '--runs=2', '--microbatches=1,1000000', '--tensor=1', '--json')
        self.assertIn('left out: tensor 1, micro-batch 1000000', said)
        reply = json.loads(out.splitlines()[-1])
        self.assertEqual({p['microbatch'] for p in reply['points']}, {1})
        self.assertEqual(reply['skipped'], [{'microbatch': 1000000, 'tensor': 1}])

    def test_what_was_measured_before_a_stop_is_kept(self):
        # The second size would take long.
        child = subprocess.Popen([HETRUN, 'profile', 'small.lua', '--runs=200', '--microbatches=1,2000', '--tensor=1'],
                                 cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with child:
            self.assertIn('measured: tensor 1, micro-batch 1', child.stderr.readline())
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=120)
        self.assertEqual(child.returncode, 130)
        self.assertEqual({p['microbatch'] for p in self.saved()['points']}, {1})

    def test_options_that_cannot_be(self):
        self.assertIn('it admits 1, 2, 4', self.refused('profile', 'small.lua', '--tensor=3'))
        self.assertIn("'x' is not a whole number above 0", self.refused('profile', 'small.lua', '--microbatches=1,x'))
        self.assertIn('hetrun profile needs a recipe', self.refused('profile'))
        self.assertIn('--out needs a value', self.refused('profile', 'small.lua', '--out'))
        self.assertIn('--microbatches=LIST', self.hetrun('profile', '--help')[0])


INTERLEAVED = ('het.plan { microbatch = 2, schedule = "interleaved", chunks = 2, het.pipeline { microbatches = 4, '
               'het.stage { "a:0", layers = 2 }, het.stage { "a:1", layers = 2 }, '
               'het.stage { "a:0", layers = 3, recompute = true }, het.stage { "a:1" } } }')
# Two zones with a machine in each and two in one of them, and a plan that leaves one device alone.
ZONES = '''local het = require "het"
return het.cluster { bandwidth = "5 Gbit/s", latency = "90 us",
  het.node { name = "a", type = "A100-80", devices = 2, zone = "fast", price = 8.5 },
  het.node { name = "b", type = "T4", devices = 2, count = 2, zone = "desks", preemptions = 0.25 },
  het.link { from = "fast", to = "fast", bandwidth = "200 Gbit/s", latency = "8 us" },
  het.link { from = "fast", to = "desks", bandwidth = "25 Gbit/s", latency = "40 us" } }
'''


class Pages(Case):
    def simulated(self, plan):
        self.recipe(plan)
        self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua', '--html=plan.html')
        return (self.folder / 'plan.html').read_text()

    def test_interleaved_stages_are_printed_and_drawn_on_their_device(self):
        page = self.simulated(INTERLEAVED)
        self.assertEqual(page.count('class="row"'), 2)
        self.assertEqual(page.count('<rect class="forward"'), 4 * 4)
        self.assertIn('recomputes blocks.3 to blocks.5; ', page)
        out, _ = self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua', '--trace=trace.json')
        self.assertRegex(out, r'a:0 .* 0-1, 4-6 .*recomputes 4-6; ')
        self.assertRegex(out, r'a:1 .* 2-3, 7-7 ')
        events = json.loads((self.folder / 'trace.json').read_text())['traceEvents']
        self.assertEqual(len({event['tid'] for event in events if event['cat'] == 'forward'}), 2)
        report = self.json_of('simulate', 'small.lua', '--cluster=cluster.lua')['report']
        held = [chunk for device in report['devices'] for chunk in device['chunks']]
        self.assertEqual(sorted(layer for chunk in held for layer in
                                range(chunk['first_layer'], chunk['first_layer'] + chunk['layers'])), list(range(8)))

    def test_the_page_shows_the_cluster(self):
        (self.folder / 'cluster.lua').write_text(ZONES)
        page = self.simulated('het.plan { microbatch = 2, het.pipeline { microbatches = 3, het.stage { "a:0" }, '
                              'het.stage { "b1:1" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } }')
        for words in ('<h3>fast</h3>', '<h3>desks</h3>', '8.50 an hour', '0.25 preemptions an hour', '200 Gbit/s',
                      '25 Gbit/s', '5 Gbit/s', '90 us, as the cluster states it', 'b2:1, not used'):
            self.assertIn(words, page)
        self.assertEqual(page.count('<i class="idle" title='), 3)
        self.assertEqual(page.count('stage 1">2</i>'), 1)

    def test_the_page_shows_notes(self):
        self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--objective=progress', '--html=plan.html')
        self.assertIn('Note: the objective is progress, and no node', (self.folder / 'plan.html').read_text())

    def test_the_page_shows_what_moves_and_what_is_done_after_a_loss(self):
        (self.folder / 'old.lua').write_text('het.plan { microbatch = 2, het.pipeline { microbatches = 4, '
                                             'het.stage { "a:0", layers = 1 }, het.stage { "gone:0" } } }')
        self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--policy=search', '--old=old.lua', '--fallbacks=2',
                    '--html=plan.html')
        page = (self.folder / 'plan.html').read_text()
        self.assertIn('a snapshot must have them', page)
        self.assertRegex(page, r'<h2>After a loss</h2>[^\n]*\n<p>[^\n]*\n<table>.*<td>a</td>')

    def test_alike_pipelines_share_rows_of_a_large_page(self):
        (self.folder / 'cluster.lua').write_text(
            'local het = require "het"\nreturn het.cluster { bandwidth = "100 Gbit/s", '
            'het.node { name = "n", type = "T4", devices = 4, count = 25 } }\n')
        pipelines = ', '.join(
            f'het.pipeline {{ microbatches = 4, het.stage {{ "n{host}:{first}", layers = 4 }}, '
            f'het.stage {{ "n{host}:{first + 1}" }} }}' for host in range(1, 26) for first in (0, 2))
        recipe = (HERE / 'small.lua').read_text().replace('batch  = { 8', 'batch  = { 200')
        (self.folder / 'small.lua').write_text(recipe.replace('nil --[[PLAN]]', f'het.plan {{ microbatch = 1, {pipelines} }}'))
        self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua', '--html=plan.html')
        page = (self.folder / 'plan.html').read_text()
        self.assertEqual((page.count('class="row"'), page.count('class="bar"'), page.count('class="host"')), (2, 2, 25))
        self.assertIn('pipelines 1-50', page)
        self.assertIn('alike share their rows', page)
        self.assertLess(len(page), 60000)

    def test_no_more_rows_are_drawn_than_are_read(self):
        (self.folder / 'cluster.lua').write_text(
            'local het = require "het"\nreturn het.cluster { het.node { name = "n", type = "T4", devices = 130 } }\n')
        counts = range(1, 131)
        pipelines = ', '.join(f'het.pipeline {{ microbatches = {n}, het.stage {{ "n:{n - 1}" }} }}' for n in counts)
        recipe = (HERE / 'small.lua').read_text().replace('batch  = { 8', f'batch  = {{ {sum(counts)}')
        (self.folder / 'small.lua').write_text(recipe.replace('nil --[[PLAN]]', f'het.plan {{ microbatch = 1, {pipelines} }}'))
        self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua', '--html=plan.html')
        page = (self.folder / 'plan.html').read_text()
        self.assertEqual((page.count('class="row"'), page.count('class="bar"'), page.count(', stage 1">')), (128, 128, 130))
        self.assertIn('2 more rows are not drawn; --json has all', page)

    def test_the_page_is_whole(self):
        self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--html=plan.html')
        page = (self.folder / 'plan.html').read_text()
        for words in ('<!doctype html>', 'One step', 'A100-80', 'het.plan {', '</html>'):
            self.assertIn(words, page)
        self.assertNotIn('http', page)

    @unittest.skipUnless(BROWSER, 'skipped: no browser (chromium)')
    def test_a_browser_draws_it(self):
        (self.folder / 'cluster.lua').write_text(ZONES)
        self.simulated('het.plan { microbatch = 2, het.pipeline { microbatches = 3, het.stage { "a:0" }, '
                       'het.stage { "b1:1" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } }')
        done = subprocess.run([BROWSER, '--headless', '--no-sandbox', '--disable-gpu', '--enable-logging=stderr', '--v=0',
                               f'--user-data-dir={self.folder}/browser', '--dump-dom', str(self.folder / 'plan.html')],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertIn('<h2>Devices</h2>', done.stdout)
        for drawn, count in (('class="zone"', 2), ('class="host"', 3), ('<hr ', 3), ('class="row"', 3), ('class="bar"', 3),
                             ('<rect class="forward"', 3 * 2 + 1)):
            self.assertEqual(done.stdout.count(drawn), count, drawn)
        self.assertNotIn('CONSOLE', done.stderr)


class Policies(Case):
    def policy(self, body):
        """`hetrun plan` of small.lua on two A100 and two T4, by a policy whose function is `body`, from line 3 on."""
        (self.folder / 'cluster.lua').write_text('local het = require "het"\nreturn het.cluster { bandwidth = "10 Gbit/s", '
            'het.node { name = "a", type = "A100-80", devices = 2 }, het.node { name = "b", type = "T4", devices = 2 } }\n')
        (self.folder / 'policy.lua').write_text(f'local het = require "het"\nreturn function(problem)\n{body}\nend\n')
        return 'plan', 'small.lua', '--cluster=cluster.lua', '--policy=policy.lua'

    ONE_PIPELINE = """local stages = {}
          for i, device in ipairs(problem.devices) do
            stages[i] = het.stage { device.name, layers = i < #problem.devices and 1 or #problem.layers - i + 1 }
          end
          local plan = het.plan { tensor = 1, microbatch = 1,
            het.pipeline { microbatches = problem.batch, unpack(stages) } } """

    def test_a_policy_of_a_file_chooses_the_plan(self):
        self.recipe('nil')
        answer = self.json_of(*self.policy(self.ONE_PIPELINE + 'return plan'))
        stages = answer['plan']['pipelines'][0]['stages']
        self.assertEqual([stage['devices'] for stage in stages], [['a:0'], ['a:1'], ['b:0'], ['b:1']])
        self.assertEqual([stage['layers'] for stage in stages[:3]], [1, 1, 1])
        self.assertEqual(answer['origin'], 'given')

    def test_a_policy_simulates_plans_and_finds_those_of_the_planner(self):
        self.recipe('nil')
        found = self.json_of(*self.policy('return (problem:find "megatron")'))
        wanted = self.json_of('plan', 'small.lua', '--cluster=cluster.lua', '--policy=megatron')
        self.assertEqual(found['lua'], wanted['lua'])
        self.assertEqual(found['report']['step_seconds'], wanted['report']['step_seconds'])
        out, _ = self.hetrun(*self.policy(self.ONE_PIPELINE + """
          local slow, fast = problem:simulate(plan), problem:simulate(problem:find())
          print(slow.step_seconds > fast.step_seconds, slow.over_bytes, #slow.devices)
          print(problem:simulate(het.plan { microbatch = problem.batch, het.pipeline { het.stage { "c:0" } } }))
          return plan"""))
        self.assertTrue(out.startswith('true\tnil\t4\nnil\t'), out)
        self.assertIn('c:0', out.splitlines()[2])

    def test_a_wrong_policy_is_refused_with_its_line(self):
        self.recipe('nil')
        for body, words in (('return nil, "too few devices"', 'no plan fits:\n  too few devices'),
                            ('return nil', 'the policy returned nil'),
                            ('return 7', 'the policy returned 7; het.plan { ... } is needed'),
                            ('return het.plan.auto {}', 'het.plan { ... } is needed'),
                            ('return problem.devcies', "policy.lua:3: a problem has no 'devcies'; did you mean 'devices'?"),
                            ('return nil + 1', 'policy.lua:3: attempt to perform arithmetic'),
                            ('return problem:find "megatro"', "did you mean 'megatron'?"),
                            ('problem:simulate(3)', 'problem:simulate is given 3'),
                            ('return het.plan { microbatch = 1, het.pipeline { microbatches = problem.batch, '
                             'het.stage { "a:0", layers = 0 } } }', 'policy.lua:3: stage.layers = 0 is below 1')):
            self.assertIn(words, self.refused(*self.policy(body)), body)
        self.assertIn('--fallbacks is for the planner\'s policies', self.refused(*self.policy('return nil'), '--fallbacks=2'))
        self.assertIn('--without is for the planner\'s policies', self.refused(*self.policy('return nil'), '--without=schedules'))
        (self.folder / 'policy.lua').write_text('return 7\n')
        self.assertIn('policy.lua returns 7; a policy file ends with', self.refused('plan', 'small.lua', '--policy=policy.lua'))

    def test_a_policy_of_the_recipe_plans_its_run(self):
        self.recipe('het.plan.auto { policy = function(problem) ' + self.ONE_PIPELINE + 'return plan end }')
        plan = 'het.stage { "here:0", layers = 1 }, het.stage { "here:1", layers ='
        self.assertIn(plan, self.hetrun('--workers', '2', 'small.lua')[1])
        self.recipe('het.plan.auto { policy = function() return nil, "not today" end, fallbacks = 2 }')
        self.assertIn('plan.auto.fallbacks are plans of the planner', self.refused('small.lua'))


class Mistakes(Case):
    def cluster(self, text):
        (self.folder / 'cluster.lua').write_text(f'local het = require "het"\nreturn {text}\n')
        return self.refused('plan', 'small.lua', '--cluster=cluster.lua')

    def test_words_of_the_command_line(self):
        self.assertIn("did you mean 'megatron'?", self.refused('plan', 'small.lua', '--policy=megaton'))
        self.assertIn('--objective=speed is not one of time, cost, progress',
                      self.refused('plan', 'small.lua', '--objective=speed'))
        self.assertIn('--cluster needs a value', self.refused('plan', 'small.lua', '--cluster'))
        self.assertIn('did you mean --layers?', self.refused('plan', 'small.lua', '--layer=3'))
        self.assertIn("there is no extension 'schedule'; did you mean 'schedules'?",
                      self.refused('plan', 'small.lua', '--without=schedule'))
        self.assertIn('hetrun plan needs a recipe', self.refused('plan'))

    def test_money_needs_prices(self):
        free = CLUSTER.replace(', price = 8', '')
        for text, wanted_words in ((free, 'beside nodes with a price these have none: a; give `price =`'),
                           (free.replace(', price = 1', ''), 'no node has a price; give `price =`')):
            (self.folder / 'cluster.lua').write_text(text)
            self.assertIn(wanted_words, self.refused('plan', 'small.lua', '--cluster=cluster.lua', '--objective=cost'))
        self.assertIn('the price of this machine is unknown', self.refused('plan', 'small.lua', '--objective=cost'))

    def test_nodes_that_no_plan_can_name_or_count(self):
        for line, wanted_words in (('name = "a", devices = 2000000000', 'devices = 2000000000 is above 1024'),
                           ('name = "a", count = 2000000000', 'count = 2000000000 is above 100000'),
                           ('name = "a:0"', 'the node name "a:0" cannot stand in a plan')):
            self.assertIn(wanted_words, self.cluster(f'het.cluster {{ het.node {{ type = "T4", {line} }} }}'))

    def test_a_file_that_is_no_cluster(self):
        self.assertIn('a cluster file ends with `return het.cluster', self.cluster('{}'))

    def test_mistakes_of_a_cluster_come_all_at_once(self):
        reply = self.cluster('het.cluster { latencyy = "1 us", het.node { name = "a", type = "A100-80", devices = 0 }, '
                            'het.node { name = "b", type = "T4", bandwidth = "10 furlongs" } }')
        for words in ("latency", "devices", "10 furlongs"):
            self.assertIn(words, reply)

    def assert_cluster_refused(self, cluster, *lines):
        """What a cluster on line 2 of its file is refused with, word for word."""
        self.assertEqual(self.cluster(cluster).removeprefix('hetrun: ').splitlines(), [f'cluster.lua:2: {line}' for line in lines])

    def test_wrong_quantities_are_reported_with_their_place_and_what_would_work(self):
        self.assert_cluster_refused('het.cluster { bandwidth = -1, latency = "fast", het.node { name = "a", type = "T4", bandwidth = "10 furlongs" } }',
                  'node.bandwidth = "10 furlongs" is not a bandwidth such as "25 GB/s" or "100 Gbit/s"',
                  'cluster.bandwidth = -1 is a number; a text is needed, such as "25 GB/s" or "100 Gbit/s"',
                  'cluster.latency = "fast" is not a time such as "5 us", "1.5 s" or "10 min"')
        self.assert_cluster_refused('het.cluster { bandwidth = "0 Gbit/s", het.node { name = "a", type = "T4" }, '
                  'het.node { name = "b", type = "T4", zone = "x" } }',
                  'cluster.bandwidth = "0 Gbit/s" has to be above 0, such as "25 GB/s" or "100 Gbit/s"')
        self.assert_cluster_refused('het.cluster { het.device_type { name = "d", memory = "0 GB", f32 = "-1 TFLOP/s", memory_bandwidth = "9 GB/s" }, '
                  'het.node { name = "a", type = "d" } }',
                  'device_type.f32 = "-1 TFLOP/s" is not a rate; write for example 40 GF/s',
                  'device_type.memory = "0 GB" has to be above 0, such as "24 GiB"')

    def test_a_mistaken_field_holds_no_other_mistake_back(self):
        self.assert_cluster_refused('het.cluster { het.node { name = "a", type = "T5", devices = 0 }, het.node { name = "a", type = 4 }, '
                  'het.node { name = "b", type = "T4", zone = "x" }, het.link { from = "x", to = "y", bandwidth = "1" } }',
                  'node.devices = 0 is below 1, the least that works',
                  'node.type = 4 is a number; a text is needed',
                  'link.bandwidth = "1" is not a bandwidth such as "25 GB/s" or "100 Gbit/s"',
                  "link needs 'latency': of a message",
                  "node a: no device type is called 'T5'; did you mean 'T4'?",
                  'host a is named twice',
                  'link x - y: no node is in zone "y"',
                  'no link between zones "" and "x" ("": nodes without a zone); add het.link { from = "", to = "x", ... }, '
                  'or bandwidth = to het.cluster for all zones without one')

    def test_a_link_that_is_missing(self):
        self.assert_cluster_refused('het.cluster { het.node { name = "a", type = "T4", count = 2, zone = "x" }, '
                  'het.node { name = "b", type = "T4", zone = "y" }, '
                  'het.link { from = "x", to = "x", bandwidth = "1 GB/s", latency = "5 us" } }',
                  'no link between zones "x" and "y"; add het.link { from = "x", to = "y", ... }, or bandwidth = to '
                  'het.cluster for all zones without one')
        self.assert_cluster_refused('het.cluster { het.node { name = "a", type = "T4" }, het.node { name = "b", type = "T4", zone = "y" } }',
                  'no link between zones "" and "y" ("": nodes without a zone); add het.link { from = "", to = "y", ... }, '
                  'or bandwidth = to het.cluster for all zones without one')

    def test_a_link_that_is_assumed_is_said(self):
        (self.folder / 'cluster.lua').write_text('local het = require "het"\nreturn het.cluster { '
                                                 'het.node { name = "a", type = "T4", count = 2 } }\n')
        self.recipe('het.plan { microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a1:0" }, het.stage { "a2:0" } } }')
        out, _ = self.hetrun('simulate', 'small.lua', '--cluster=cluster.lua', '--html=plan.html')
        self.assertIn('links between hosts: 0 measured, 0 as the cluster states them, 1 assumed: 10 Gbit/s, 50 us', out)
        self.assertIn('50 us, assumed: not stated', (self.folder / 'plan.html').read_text())

    def test_mistakes_of_options_cluster_and_profile_come_at_once(self):
        (self.folder / 'cluster.lua').write_text('local het = require "het"\nreturn het.cluster {}\n')
        reply = self.refused('plan', 'small.lua', '--policy=fst', '--objective=x', '--near=5', '--fallbacks=0',
                            '--without=schedule', '--old=nowhere.lua', '--cluster=cluster.lua', '--profile=nowhere.json')
        no_node = 'cluster.lua:2: cluster needs at least one het.node { ... }: the machines that a plan may use'
        self.assertEqual(reply.splitlines(), [
            'hetrun: --policy=fst is not one of autohet, megatron, whale, exhaustive, search, auto',
            '--objective=x is not one of time, cost, progress',
            '--near=5 is no share between 0 and 1, such as 2% or 0.02',
            '--fallbacks=0 is not a whole number above 0, such as --fallbacks=2',
            "--without=schedule: there is no extension 'schedule'; did you mean 'schedules'?",
            "there is no file 'nowhere.lua'", no_node, "there is no file 'nowhere.json'"])
        reply = self.refused('simulate', 'small.lua', '--cluster=cluster.lua', '--profile=nowhere.json')
        self.assertEqual(reply.splitlines(), [
            f'hetrun: {no_node}', "there is no file 'nowhere.json'",
            'small.lua has no `plan` to simulate; `hetrun plan` finds one, and --plan=FILE takes one'])
        (self.folder / 'cluster.lua').write_text(CLUSTER.replace(', price = 8', ''))
        (self.folder / 'broken.json').write_text('{"profile": 1}')
        reply = self.refused('plan', 'small.lua', '--layer=3', '--cluster=cluster.lua', '--objective=cost', '--profile=broken.json')
        self.assertEqual(reply.splitlines(), [
            'hetrun: small.lua:5: this recipe has no option --layer; did you mean --layers?',
            'broken.json is not a profile of format 2; measure again with `hetrun profile`',
            'the objective is cost, and beside nodes with a price these have none: a; give `price =` (of one machine for an hour) '
            'to every node, a small one where it costs nothing'])
        (self.folder / 'cluster.lua').write_text('local het = require "het"\nreturn het.cluster {}\n')
        reply = self.refused('plan', 'small.lua', '--layer=3', '--cluster=cluster.lua', '--policy')
        self.assertEqual(reply.splitlines(), [
            'hetrun: --policy needs a value, such as --policy=NAME',
            'small.lua:5: this recipe has no option --layer; did you mean --layers?', no_node])

    def test_a_plan_of_a_file_is_simulated(self):
        words = ('--cluster=cluster.lua', '--json', '--quiet')
        (self.folder / 'plan.lua').write_text(self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--lua')[0])
        planned = json.loads(self.hetrun('plan', 'small.lua', *words)[0].splitlines()[-1])
        simulated = json.loads(self.hetrun('simulate', 'small.lua', '--plan=plan.lua', *words)[0].splitlines()[-1])
        self.assertEqual(simulated['report']['step_seconds'], planned['report']['step_seconds'])
        self.assertIn('cluster.lua holds no plan: a file of --plan holds',
                      self.refused('simulate', 'small.lua', '--plan=cluster.lua', '--cluster=cluster.lua'))
        (self.folder / 'plan.lua').write_text('het.plan { tensor = 3, het.pipeline { microbatches = 8, het.stage { "a:0-2" } } }')
        (self.folder / 'cluster.lua').write_text(CLUSTER.replace('devices = 2', 'devices = 3'))
        reply = self.refused('simulate', 'small.lua', '--plan=plan.lua', '--cluster=cluster.lua')
        self.assertRegex(reply, 'cannot be cut among 3 devices')

    def test_extensions_that_are_switched_off(self):
        self.assertIn('--without=schedules: the policy megatron has no extensions to switch off; these have: search, auto',
                      self.refused('plan', 'small.lua', '--policy=megatron', '--without=schedules'))
        recipe = (self.folder / 'small.lua').read_text()
        (self.folder / 'small.lua').write_text(recipe.replace('policy = opt.policy', 'without = { "schedule", 3 }'))
        self.assertEqual(self.refused('small.lua', '--auto').splitlines(), [
            "hetrun: small.lua:19: plan.auto.without: there is no extension 'schedule'; did you mean 'schedules'?",
            'small.lua:19: plan.auto.without: item 2 is 3; the name of an extension is needed'])
        (self.folder / 'small.lua').write_text(recipe.replace('policy = opt.policy', 'policy = "whale", without = { "schedules" }'))
        self.assertEqual(self.refused('small.lua', '--auto').splitlines(), [
            'hetrun: small.lua:19: plan.auto.without: the policy whale has no extensions to switch off; these have: search, auto'])

    def test_a_run_plans_without_an_extension_as_the_command_does(self):
        cluster = '''het.cluster { bandwidth = "10 GB/s", latency = "1 us",
  het.device_type { name = "fast", f32 = "3 GFLOP/s", memory = "1 GB", memory_bandwidth = "10 GB/s" },
  het.device_type { name = "slow", f32 = "1 GFLOP/s", memory = "1 GB", memory_bandwidth = "10 GB/s" },
  het.node { name = "a", type = "fast" }, het.node { name = "b", type = "slow" } }'''
        (self.folder / 'cluster.lua').write_text(f'local het = require "het"\nreturn {cluster}\n')
        words = ('plan', 'small.lua', '--cluster=cluster.lua', '--policy=search')
        whole, off = (self.hetrun(*words, *more)[0] for more in ((), ('--without=uneven_microbatches,schedules',)))
        self.assertNotEqual(whole, off)
        recipe = (self.folder / 'small.lua').read_text()
        for without, wanted in (('', whole), ('without = { "uneven_microbatches", "schedules" }, ', off)):
            (self.folder / 'small.lua').write_text(
                recipe.replace('policy = opt.policy', f'policy = "search", {without}cluster = {cluster}'))
            # The plan is printed before ranks are found to be missing.
            reply = self.refused('small.lua', '--auto')
            self.assertIn(wanted[:wanted.index('\n\nhet.plan')], reply)

    def test_an_unknown_type(self):
        self.assertIn("no device type is called 'A100-81'; did you mean 'A100-80'?",
                      self.cluster('het.cluster { het.node { name = "a", type = "A100-81" } }'))

    def test_a_zone_that_no_node_is_in(self):
        reply = self.cluster('het.cluster { het.node { name = "a", type = "T4", zone = "x" }, '
                            'het.link { from = "x", to = "y", bandwidth = "1 GB/s", latency = "5 us" } }')
        self.assertIn('no node is in zone "y"', reply)

    def test_a_model_that_fits_nowhere(self):
        (self.folder / 'cluster.lua').write_text('''local het = require "het"
return het.cluster { het.device_type { name = "toy", f32 = "1 TFLOP/s", memory = "600 kB", memory_bandwidth = "10 GB/s" },
  het.node { name = "a", type = "toy", devices = 1 } }
''')
        reply = self.refused('plan', 'small.lua', '--cluster=cluster.lua')
        for words in ('no plan fits', 'lacks', 'what would help'):
            self.assertIn(words, reply)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[1:])
