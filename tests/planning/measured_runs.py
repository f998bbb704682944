"""Plans that were run elsewhere, predicted."""
import json
import shutil
import unittest

from case import Case, HERE, MEASURED

MIB = 2**20


class Measured(Case):
    """Plans that were run, beside their prediction. The made-up folder has figures that can be followed by hand:
    four layers of 30 ms on `fast`, 60 ms on `slow`, 4 MB of gradients each and 2 MB between them."""

    def setUp(self):
        super().setUp()
        shutil.copytree(HERE / 'measured', self.folder / 'measured')
        self.plans = self.folder / 'measured' / 'plans'

    def words(self, *more, bandwidth='1 GB/s'):
        return ('simulate', '--profiles', 'measured/profiles', '--model-info', 'measured/model_info.json', '--plans',
                'measured/plans', f'--bandwidth={bandwidth}', *more)

    def answer(self, *more, code=0, **links):
        out, err = self.hetrun(*self.words(*more, **links), '--json', '--quiet', code=code)
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
        # Gradients of 16 MB in one flat tensor, in whole segments of 2 MiB; going back, a layer's output and input and both
        # sides of an MLP's activation, 4 outputs each; a weight's gradient of 4 MB has a segment of 20 MiB.
        parts = {'state': 16 * 4e6, 'flat_gradients': 8 * 2 * MIB, 'activations': 4 * 10e6, 'loss': 0,
                 'backward': (2 + 8) * 2e6, 'weight_gradient': 20 * MIB, 'segments': 22 * MIB, 'communication': 0,
                 'framework': 2e9}
        self.assertEqual(plan['stages'][0]['memory_parts'], parts)
        self.assertAlmostEqual(plan['predicted_memory_bytes'], sum(parts.values()))
        self.assertAlmostEqual(plan['memory_error'], plan['predicted_memory_bytes'] / 2.2e9 - 1)
        self.assertFalse(plan['contradicts'] or plan['interpolated'] or plan['notes'] or plan['problems'])

    def test_transfers_hold_up_both_stages(self):
        plan = self.answer()[0]['by_name']['two_stages']
        # Followed by hand: forward 20 ms, backward 40 ms, transfers of 2 ms. The second activation and the first gradient
        # move one after the other once the last stage has gone back, at 82 ms; its second unit ends at 146 ms.
        self.assertAlmostEqual(plan['predicted_seconds'], 0.146 + 0.002 + 0.04 + 2 * 0.001)
        self.assertEqual([stage['in_flight'] for stage in plan['stages']], [2, 1])
        self.assertIsNone(plan['measured_memory_bytes'])

    def test_each_prediction_says_how_much_it_depends_on_the_links(self):
        plans = self.answer()[0]['by_name']
        slow, fast = (self.answer(bandwidth=rate)[0]['by_name'] for rate in ('0.7 GB/s', '1.4 GB/s'))
        for name in ('two_stages', 'replicas_of_two_types'):
            spread = plans[name]['link_spread']
            self.assertAlmostEqual(spread['most'], slow[name]['predicted_seconds'])
            self.assertAlmostEqual(spread['least'], fast[name]['predicted_seconds'])
        self.assertEqual(plans['alone']['link_spread']['least'], plans['alone']['link_spread']['most'])
        out, _ = self.hetrun(*self.words())
        self.assertRegex(out, r'two_stages .* 0\.190 s +0\.188 to 0\.193 s +0\.200 s')

    def test_replicas_of_two_types_wait_for_the_slower(self):
        plan = self.answer()[0]['by_name']['replicas_of_two_types']
        self.assertAlmostEqual(plan['predicted_seconds'], 2 * 4 * 0.06 + 4 * 4e6 / 1e9 + 4 * 0.002)
        self.assertEqual([stage['group'] for stage in plan['stages']], ['fast x 1', 'slow x 1'])

    def test_types_and_degrees_mix_within_a_stage(self):
        plan = self.answer()[0]['by_name']['stages_of_two_types']
        # Followed by hand: the slow group runs four micro-batches of 42 + 82 ms and waits 20 ms to send its second.
        self.assertAlmostEqual(plan['pipeline_seconds'], 0.516)
        self.assertAlmostEqual(plan['predicted_seconds'], 0.516 + 2 * 4e6 / 1e9 + 2 * 0.002)
        self.assertEqual({(s['stage'], s['group']) for s in plan['stages']},
                         {(1, 'fast x 2'), (1, 'slow x 1'), (2, 'fast x 1'), (2, 'fast x 2')})
        memory = {(s['stage'], s['group']): s['predicted_memory_bytes'] for s in plan['stages']}
        # Exchange with the other replica and messages to the next stage; gradients and one weight's have 20 MiB each.
        buffers = 2 * (4 + 2) * (4 * MIB + 512 * 1024 + 4915200) + (2 * 20 + 22) * MIB
        self.assertAlmostEqual(memory[1, 'fast x 2'], 16 * 1e6 + 2 * 2 * 5e6 + (2 + 4) * 2e6 + buffers + 3e9)
        self.assertAlmostEqual(memory[1, 'slow x 1'], 16 * 2e6 + 2 * 2 * 10e6 + (2 + 8) * 2e6 + buffers + 2e9)
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
        self.assertAlmostEqual(plan['predicted_seconds'], 3 * 2 * 0.03 + 4 * transfer + 2 * 0.001)

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

    def test_a_size_that_was_not_measured_is_said_and_never_marks(self):
        self.copy('alone', 'between', lambda plan: plan.update(mbs=4, gbs=8, real=0.01))
        plan = self.answer()[0]['by_name']['between']
        self.assertTrue(plan['interpolated'])
        self.assertFalse(plan['contradicts'])
        self.assertIn('micro-batch 4 on fast x 1 is extrapolated: its profile has 1, 2', plan['notes'])
        self.assertAlmostEqual(plan['pipeline_seconds'], 2 * 4 * (0.054 + 2 * 0.024))

    def test_from_one_size_launches_do_not_grow(self):
        self.edit('profiles/toy/fast.json', lambda profile: profile.pop('2'))
        self.copy('alone', 'larger', lambda plan: plan.update(mbs=4, gbs=8))
        plan = self.answer()[0]['by_name']['larger']
        self.assertIn('micro-batch 4 on fast x 1 is taken in proportion but for launches: its profile has 1', plan['notes'])
        # Of 30 ms one launch forward and two backward.
        self.assertAlmostEqual(plan['pipeline_seconds'], 2 * 4 * (3 * 20e-6 + 4 * (0.03 - 3 * 20e-6)))

    def test_from_one_size_goes_by_the_data_sheet_of_a_known_type(self):
        times = {layer: [0.4e-3, 0.8e-3, 0.001] for layer in '0123'}  # of launches, for the most part
        (self.folder / 'measured/profiles/toy/B200.json').write_text(json.dumps({'1': {'1': times}}))
        self.copy('alone', 'larger', lambda plan: plan.update(mbs=4, gbs=8) or plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['B200', 1, 'here-a']], 1]]]))
        plan = self.answer()[0]['by_name']['larger']
        self.assertIn('micro-batch 4 on B200 x 1 is extrapolated by the data sheet: its profile has 1', plan['notes'])
        # A million parameters are 12 x 289^2; 2 MB are 1,732 tokens. Three passes, each at half of 75 TFLOP/s.
        pass_seconds = 2 * 1e6 * (0.5e6 / (1e6 / 12)**0.5) / (0.5 * 75e12)
        self.assertAlmostEqual(plan['pipeline_seconds'], 2 * 4 * (0.0012 + 3 * 3 * pass_seconds), delta=1e-4)
        self.assertLess(plan['pipeline_seconds'], 0.5 * 2 * 4 * 4 * 0.0012)

    def test_a_batch_of_no_whole_micro_batches_is_said(self):
        self.copy('alone', 'odd', lambda plan: plan.update(mbs=2, gbs=7))
        self.assertIn('a batch of 7 is not whole micro-batches of 2: 8 samples are counted',
                      self.answer()[0]['by_name']['odd']['notes'])

    def test_lists_count_where_a_plan_contradicts_itself(self):
        self.edit('plans/two_stages.json', lambda plan: plan['pipeline_list'][0].update(num_stages=3, dp=[1, 2]))
        plan = self.answer()[0]['by_name']['two_stages']
        self.assertAlmostEqual(plan['predicted_seconds'], 0.19)
        self.assertEqual(plan['notes'], [
            'pipeline 1: num_stages is 3; layers_per_stage has 2, which count',
            'pipeline 1: dp is [1,2]; the stages of tmp_per_stage have 1, 1 replicas, which count'])

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
        self.assertRegex(out, r'(?m)^alone +1 +4 x 1 +0.484 s +0.484 to 0.484 s +0.500 s +-3.2 % +2.2 GB +2.2 GB +-0.7 %$')
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
                      'no_such_type.json, pipeline 1, stage 1 has GPUs of type "H100"',
                      'it has 1, 2; measured/plans/no_such_degree.json, pipeline 1, stage 1 has this degree',
                      'no_layers.json: pipeline 1: "layers_per_stage" is missing',
                      'profiles/toy: no profile of GPU type "H100"; there are fast, slow',
                      'no profile of GPU type "../toy/fast"',
                      'model_info.json: toy has no sizes for tensor-parallel degree 4; it has 1, 2',
                      'the profile of slow has no times for tensor-parallel degree 4; it has 1',
                      'mistakes.json: mbs is 0; it must be a whole number above 0', 'mistakes.json: gbs is "many"',
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

    def test_a_profile_without_times_says_so_once(self):
        def change(layer_of):
            self.edit('profiles/toy/fast.json', lambda profile: [
                table.update({layer: layer_of(times) for layer, times in table.items()})
                for degrees in profile.values() for table in degrees.values()])
        whole = (self.folder / 'measured/profiles/toy/fast.json').read_text()
        change(lambda times: [0, 0, 0])
        answer, err = self.answer(code=2)
        self.assertIn('fast.json: micro-batch 1, degree 1: all forward times are 0; nothing was measured', err)
        (self.folder / 'measured/profiles/toy/fast.json').write_text(whole)
        change(lambda times: [*times[:2], None])
        problems = self.answer(code=2)[0]['by_name']['alone']['problems']
        self.assertEqual(len(problems), 5, problems)   # four layers, and that other sizes are alike
        self.assertIn('fast.json: micro-batch 1, degree 1, layer 0, update is null', problems[0])
        self.assertRegex(problems[-1], r'fast.json: mistakes also at micro-batch 2, degree 1')

    def test_a_folder_of_one_model_and_several_models_of_one_size(self):
        self.edit('model_info.json', lambda sizes: sizes.update(twin=sizes['toy']))
        self.assertEqual(self.answer()[0]['by_name']['alone']['model'], 'toy')  # twin has no profiles
        shutil.copytree(self.folder / 'measured/profiles/toy', self.folder / 'measured/profiles/twin')
        self.assertIn('as many as each of toy, twin has; --model says which', self.answer(code=2)[1])
        self.assertEqual(self.answer('--model=twin')[0]['by_name']['alone']['model'], 'twin')
        words = [word.replace('measured/profiles', 'measured/profiles/toy') for word in self.words('--model=toy')]
        answer = json.loads(self.hetrun(*words, '--json', '--quiet')[0].splitlines()[-1])
        self.assertAlmostEqual(answer['plans'][0]['predicted_seconds'], 0.484)

    def test_the_published_tree_and_one_file_of_all_profiles_are_read(self):
        profiles = self.folder / 'measured/profiles'
        expected = {name: plan['predicted_seconds'] for name, plan in self.answer()[0]['by_name'].items()}
        combined = {'toy': {kind: json.loads((profiles / f'toy/{kind}.json').read_text()) for kind in ('fast', 'slow')}}
        (self.folder / 'all.json').write_text(json.dumps(combined))
        for kind in ('fast', 'slow'):
            (profiles / 'toy' / kind).mkdir()
            (profiles / f'toy/{kind}.json').rename(profiles / f'toy/{kind}/profile.json')
        nested = self.plans / 'two' / 'deep'
        nested.mkdir(parents=True)
        (self.plans / 'two_stages.json').rename(nested / 'two_stages.json')
        (nested / 'results.json').write_text('{"throughput": 3}')
        expected['two/deep/two_stages'] = expected.pop('two_stages')
        for words in (self.words(), [word.replace('measured/profiles', 'all.json') for word in self.words()]):
            answer = json.loads(self.hetrun(*words, '--json', '--quiet')[0].splitlines()[-1])
            self.assertEqual({plan['plan']: plan['predicted_seconds'] for plan in answer['plans']}, expected)
            self.assertEqual([text.split(':')[0] for text in answer['skipped']],
                             ['measured/plans/two/deep/results.json'])
        self.assertIn('results.json: is no plan', self.hetrun(*self.words())[0])
        self.copy('alone', 'other_type', lambda plan: plan['pipeline_list'][0].update(
            tmp_per_stage=[[[[['H100', 1, 'z']], 1]]]))
        self.assertIn('no profile of GPU type "H100"; there are fast, slow', self.answer(code=2)[1])
        (self.folder / 'all.json').write_text('{"toy": {"fast": 3}}')
        reply = self.hetrun(*[word.replace('measured/profiles', 'all.json') for word in self.words()], code=2)[1]
        self.assertIn('all.json, toy, fast: the profile is no object', reply)
        self.assertIn('all.json, toy: no profile of GPU type "slow"; there are fast', reply)

    def test_a_layer_gap_costs_only_plans_of_that_size(self):
        self.edit('profiles/toy/fast.json', lambda profile: profile['2']['1'].pop('1'))
        answer = self.answer()[0]
        self.assertIn('skipped: measured/profiles/toy/fast.json: micro-batch 2, degree 1 has 3 entries, but no layer 1',
                      answer['by_name']['alone']['notes'][0])
        self.copy('alone', 'of_two', lambda plan: plan.update(mbs=2, gbs=8))
        answer, err = self.answer(code=2)
        self.assertEqual([plan['plan'] for plan in answer['plans'] if plan['problems']], ['of_two'])
        self.assertIn('micro-batch 2, degree 1 has 3 entries, but no layer 1', err)

    def test_measured_values_that_cannot_be_are_marked(self):
        self.assertEqual([plan['suspicious'] for plan in self.answer()[0]['plans']], [[]] * 5)
        # 4 bytes for each of 4 million parameters and 40 MB of activations
        self.copy('alone', 'in_ms', lambda plan: plan.update(real=503.17))
        self.copy('alone', 'too_small', lambda plan: plan.update(real=0.49, max_mem=55e6))
        self.copy('alone', 'same', lambda plan: plan.update(real=0.50012, max_mem=57e6))
        self.edit('plans/alone.json', lambda plan: plan.update(real=0.50012))
        found = self.answer()[0]['by_name']
        self.assertIn('its measured memory, 0.1 GB, is less than weights and one micro-batch need',
                      found['too_small']['suspicious'][0])
        self.assertEqual(found['in_ms']['suspicious'], [
            'its measured step, 8 min 23 s, is 1048 times what its layers take by the profile, 480 ms; real is in seconds'])
        self.assertEqual(found['same']['suspicious'], ['its measured step is that of alone to the last digit'])
        self.assertEqual(found['alone']['suspicious'], ['its measured step is that of same to the last digit'])
        out, _ = self.hetrun(*self.words())
        self.assertRegex(out, r'(?m)^same .* \?$')
        self.assertIn('? too_small: its measured memory', out)

    def test_a_second_profile_is_shown_beside_the_first(self):
        shutil.copytree(self.folder / 'measured/profiles', self.folder / 'again')
        (self.folder / 'again/toy/slow.json').unlink()
        path = self.folder / 'again/toy/fast.json'
        profile = json.loads(path.read_text())
        profile['1']['1'] = {layer: [t / 2 for t in three] for layer, three in profile['1']['1'].items()}
        path.write_text(json.dumps(profile))
        answer = self.answer('--other-profiles=again')[0]['by_name']
        self.assertAlmostEqual(answer['alone']['predicted_seconds'], 0.484)
        self.assertAlmostEqual(answer['alone']['other_seconds'], 0.242)
        self.assertTrue(answer['too_quick']['contradicts'])
        self.assertFalse(answer['too_quick']['other_contradicts'])
        self.assertIsNone(answer['replicas_of_two_types']['other_seconds'])
        self.assertIn('no second prediction', ' '.join(answer['replicas_of_two_types']['notes']))
        out, _ = self.hetrun(*self.words('--other-profiles=again'))
        self.assertRegex(out, r'(?m)^alone +1 +4 x 1 +0.484 s +0.484 to 0.484 s +0.500 s +-3.2 % +0.242 s')

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
