"""`hetrun profile`, and plans by what it measured."""
import json
import os
import signal
import socket
import subprocess

from case import Case, HETRUN


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
        # The head's table is the embedding's, beside 16 positions of 32 elements, and is updated once.
        table = points['embedding']['weight_bytes'] - 4 * 16 * 32
        again = points['head']['update'] * table / points['head']['weight_bytes']
        update = sum(n * points[k]['update'] for k, n in counts.items()) - again
        report = answer['report']
        self.assertAlmostEqual(report['update_seconds'], update, delta=1e-6 * update)
        self.assertAlmostEqual(report['step_seconds'], 2 * passes + update, delta=1e-6 * passes)
        self.assertEqual(report['sources'], [{'type': 'cpu', 'layers_measured': 8, 'layers_interpolated': 0,
                                              'layers_extrapolated': 0,
                                              'layers_calibrated': 0, 'calibrated_by': '', 'layers_estimated': 0,
                                              'link_measured': True, 'link': 'measured'}])

    def test_plans_say_what_they_were_made_of(self):
        self.profile('--microbatches=4', '--tensor=1')
        out, said = self.hetrun('plan', 'small.lua', '--profile=small.profile.json')
        self.assertIn('link measured', out)
        self.assertNotIn('holds nothing', said)
        _, said = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--profile=small.profile.json')
        self.assertIn('the profile holds nothing of A100-80', said)

    def test_one_measured_kind_calibrates_the_data_sheet_of_the_others(self):
        self.recipe('het.plan { microbatch = 4, het.pipeline { microbatches = 2, het.stage { "a:0" } } }')
        words = ('simulate', 'small.lua', '--cluster=cluster.lua', '--profile=small.profile.json')
        reply = self.profile('--microbatches=4', '--tensor=1', '--type=A100-80', '--kinds=blocks')
        self.assertEqual([point['kind'] for point in reply['points']], ['blocks'])
        [source] = self.json_of(*words)['report']['sources']
        self.assertEqual((source['layers_measured'], source['layers_calibrated'], source['layers_estimated']), (6, 2, 0))
        self.assertEqual(source['calibrated_by'], 'blocks')
        out, said = self.hetrun(*words)
        self.assertIn('layer times on A100-80: 6 measured, 0 interpolated, 2 from the data sheet calibrated by blocks, 0 '
                      'estimated from the data sheet', out)
        self.assertNotIn('holds nothing', said)
        before = self.saved()['points']
        reply = self.profile('--microbatches=4', '--tensor=1', '--type=A100-80')
        self.assertEqual((reply['measured'], {point['kind'] for point in reply['points']}),
                         (1, {'embedding', 'blocks', 'head'}))
        self.assertIn(before[0], self.saved()['points'])
        self.assertEqual(self.json_of(*words)['report']['layers_measured'], 8)

    def test_what_calibrates_nothing_is_refused(self):
        said = self.refused('profile', 'small.lua', '--kinds=blocks,cellar')
        self.assertIn("the model has no layer kind 'cellar'; it has embedding, blocks, head", said)
        self.profile('--microbatches=4', '--tensor=1', '--kinds=blocks')
        saved = self.saved()
        saved['points'][0]['forward'] = 0
        (self.folder / 'small.profile.json').write_text(json.dumps(saved))
        said = self.refused('plan', 'small.lua', '--profile=small.profile.json')
        self.assertIn('(blocks on cpu): forward takes 0 seconds, though the layer does work', said)

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
