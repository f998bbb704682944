"""The page that `--html` draws."""
import json
import subprocess
import unittest

from case import BROWSER, Case, HERE


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

    def test_the_page_of_a_sharding_program_shows_its_links_exchanges_and_bound(self):
        (self.folder / 'cluster.lua').write_text('''local het = require "het"
return het.cluster { bandwidth = "25 Gbit/s", latency = "30 us",
  het.node { name = "a", type = "A100-80", zone = "z" }, het.node { name = "h", type = "T4", devices = 2, zone = "z" },
  het.link { from = "z", to = "z", bandwidth = "200 Gbit/s", latency = "5 us" } }
''')
        plan = '''het.plan { tensor = 3, microbatch = 8, sharding = { nodes = { ["*mlp.up linear"] = "weight dim 0, bias dim 0 -> y dim 2" } },
  het.pipeline { microbatches = 1, het.stage { "a:0", "h:0-1" } } }'''
        page = self.simulated(plan)
        self.assertIn('200 Gbit/s', page)
        self.assertNotIn('25 Gbit/s', page)
        self.assertIn('activations exchanged', page)
        self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--policy=hap', '--html=plan.html')
        page = (self.folder / 'plan.html').read_text()
        for words in ('<h2>The program</h2>', 'takes less than', 'ZeRO'):
            self.assertIn(words, page)

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
        for words in ('<!doctype html>', '<h2>What a step goes to</h2>', 'slowest in compute', 'class="parts"', 'One step', 'A100-80', 'het.plan {', '</html>'):
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
