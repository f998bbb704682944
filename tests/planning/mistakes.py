"""Policies of a recipe, and what is refused."""
import json

from case import CLUSTER, Case


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

    def test_a_policy_sees_what_layers_share(self):
        self.recipe('nil')
        out, _ = self.hetrun(*self.policy(self.ONE_PIPELINE + """
          local table = problem.shared[1]
          print(#problem.shared, table.layers[1], table.layers[2], #problem.layers)
          print(table.parameters + 16 * 32 == problem.layers[1].parameters)  -- the embedding has 16 positions
          return plan"""))
        self.assertTrue(out.startswith('1\t1\t8\t8\ntrue\n'), out)

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
        self.assertIn('hetrun plan needs a recipe', self.refused('plan', '--policy', 'hap'))
        self.assertIn("unexpected argument 'small.lua'", self.refused('plan', '--gains', 'hap', 'small.lua'))

    def test_values_of_options_may_follow_as_words(self):
        wanted = self.hetrun('plan', 'small.lua', '--cluster=cluster.lua', '--policy=megatron', '--lua')[0]
        for words in (('--policy', 'megatron', '--cluster', 'cluster.lua', '--lua', 'small.lua'),
                      ('small.lua', '--cluster', 'cluster.lua', '--lua', '--policy', 'megatron'),
                      ('--cluster', 'cluster.lua', 'small.lua', '--policy=megatron', '--lua')):
            self.assertEqual(self.hetrun('plan', *words)[0], wanted, words)
        self.assertIn("did you mean 'megatron'?", self.refused('plan', '--policy', 'megaton', 'small.lua'))

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
                  'cluster.bandwidth = -1 is a number; a string is needed, such as "25 GB/s" or "100 Gbit/s"',
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
                  'node.type = 4 is a number; a string is needed',
                  'link.bandwidth = "1" is not a bandwidth such as "25 GB/s" or "100 Gbit/s"',
                  "link needs 'latency': of a message",
                  "node a: no device type is called 'T5'; did you mean 'T4'?",
                  'host a is named twice; give each node another name',
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
            'hetrun: --policy=fst is not one of autohet, megatron, whale, exhaustive, search, auto, hap',
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

    def test_a_plan_is_simulated_as_other_frameworks_run_it(self):
        plan = ('het.plan { microbatch = 1, schedule = "%s", '
                'het.pipeline { microbatches = 8, het.stage { "a:0", layers = 2 }, het.stage { "a:1" } } }')
        words = ('--plan=plan.lua', '--cluster=cluster.lua')
        (self.folder / 'plan.lua').write_text(plan % '1f1b')

        def simulated(*more):
            return json.loads(self.hetrun('simulate', 'small.lua', *words, *more, '--json', '--quiet')[0].splitlines()[-1])
        own, blocking = simulated(), simulated('--runtime=blocking,late-reduction')
        self.assertGreater(blocking['report']['step_seconds'], own['report']['step_seconds'])
        self.assertEqual(simulated('--runtime=overlapping')['report']['step_seconds'], own['report']['step_seconds'])
        spread = own['link_spread']
        self.assertEqual(len(spread['cases']), 4)
        self.assertLessEqual(spread['least'], own['report']['step_seconds'])
        self.assertGreater(spread['most'], own['report']['step_seconds'])
        self.assertIn('\nlinks: ', self.hetrun('simulate', 'small.lua', *words)[0])
        self.assertIn("runtime 'lazy' is not one of overlapping, blocking, late-reduction",
                      self.refused('simulate', 'small.lua', *words, '--runtime=lazy'))
        (self.folder / 'plan.lua').write_text(plan % 'split_backward')
        self.assertIn("runtime 'blocking' runs the schedules 1f1b and gpipe",
                      self.refused('simulate', 'small.lua', *words, '--runtime=blocking'))

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
