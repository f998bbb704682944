"""`hetrun solve`: instances of google/iopddl, what is printed and written, and what is refused."""
import itertools
import json
import random
import signal
import subprocess
import sys
import time

from case import HETRUN, ROOT, Case

EXAMPLE = {'problem': {'name': 'example', 'nodes': {
    'intervals': [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
    'costs': [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
    'usages': [[10], [25, 25], [15, 20, 15], [10, 10], [15]]},
    'edges': {'nodes': [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
              'costs': [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]]}, 'usage_limit': 50}}


def evaluate(instance, choice):
    """Cost and largest usage, as the contest's evaluator counts them."""
    problem = instance['problem']
    nodes, edges = problem['nodes'], problem['edges']
    cost = sum(costs[s] for costs, s in zip(nodes['costs'], choice))
    usage = {}
    for (begin, end), usages, s in zip(nodes['intervals'], nodes['usages'], choice):
        for t in range(begin, end):
            usage[t] = usage.get(t, 0) + usages[s]
    for members, costs in zip(edges['nodes'], edges['costs']):
        index = 0
        for node in members:
            index = index * len(nodes['costs'][node]) + choice[node]
        cost += costs[index]
    return cost, max(usage.values(), default=0)


class Solving(Case):
    def write(self, instance, name='instance.json'):
        (self.folder / name).write_text(instance if isinstance(instance, str) else json.dumps(instance))
        return name

    def hard(self, nodes=120):
        """An instance that is not proven within seconds: tight usage at every time, edges that form no tree."""
        draw = random.Random(5)
        sizes = [draw.randrange(3, 7) for _ in range(nodes)]
        pairs = [(i, i + step) for i in range(nodes) for step in (1, 4, 9, 23) if i + step < nodes]
        return {'problem': {'name': 'hard', 'nodes': {
            'intervals': [[i, i + 6] for i in range(nodes)],
            'costs': [[1000 * s + draw.randrange(500) for s in range(n)] for n in sizes],
            'usages': [[100 * (n - s) + draw.randrange(30) for s in range(n)] for n in sizes]},
            'edges': {'nodes': pairs, 'costs': [[draw.randrange(2000) for _ in range(sizes[a] * sizes[b])] for a, b in pairs]},
            'usage_limit': 1500}}

    def test_an_unknown_option_is_refused_with_all_that_there_are(self):
        error = self.refused('solve', self.write(EXAMPLE), '--foo=1')
        self.assertRegex(error, 'there is no option --foo; there are seconds, seed, out, threads, json')

    def test_the_example_is_solved_to_the_optimum(self):
        file = self.write(EXAMPLE)
        self.assertEqual(evaluate(EXAMPLE, [0, 1, 2, 0, 0]), (495, 50))
        lines = self.hetrun('solve', file)[0].splitlines()
        self.assertEqual(lines[-1], '[0, 0, 2, 1, 0]')
        self.assertIn('cost       445', lines)
        self.assertIn('bound      445', lines)
        self.assertIn('gap        0 %, proven optimal', lines)
        self.assertIn('peak usage 50 at time 50, limit 50', lines)
        answer = self.json_of('solve', file)
        self.assertEqual((answer['cost'], answer['bound'], answer['gap'], answer['solution'], answer['optimal'], answer['peak_usage']),
                         (445, 445, 0, [0, 0, 2, 1, 0], True, 50))
        for words in (('--seconds', 5, file, '--seed', 7), (file, '--seconds=5', '--out', 'choice.txt'), ('--out=choice.txt', file)):
            self.hetrun('solve', *words)
        self.assertEqual((self.folder / 'choice.txt').read_text(), '[0, 0, 2, 1, 0]\n')

    def test_a_choice_that_cannot_do_without_what_is_not_allowed_says_so(self):
        costs = [0, 0, 0, 10 ** 18]   # of the strategies that fit together
        name = self.write({'problem': {'name': 'x', 'nodes': {
            'intervals': [[0, 4], [2, 6]], 'costs': [[1, 2], [3, 4]], 'usages': [[4, 3], [4, 3]]},
            'edges': {'nodes': [[0, 1]], 'costs': [costs]}, 'usage_limit': 6}})
        out, _ = self.hetrun('solve', name)
        self.assertIn('1000000000000000006', out)
        self.assertRegex(out, r'(?m)^note +it has 1 cost of 10\^18, which means not allowed: ')

    def test_an_instance_without_a_limit_says_so_and_costs_may_be_negative(self):
        # As the contest's own code reads them: the limit is optional, costs are any whole numbers of 64 bits.
        instance = json.loads(json.dumps(EXAMPLE))
        del instance['problem']['usage_limit']
        instance['problem']['nodes']['costs'][1][1] = -500
        instance['problem']['edges']['costs'][1][1] = -7
        file = self.write(instance)
        out, _ = self.hetrun('solve', file)
        self.assertRegex(out, r'(?m)^peak usage \d+ at time \d+, limit none$')
        self.assertRegex(out, r'(?m)^note +the file has no usage_limit: a choice may use any amount$')
        self.assertNotIn('no usage_limit', self.hetrun('solve', self.write(EXAMPLE, 'limited.json'))[0])
        answer = self.json_of('solve', file)
        best = min((evaluate(instance, choice)[0], choice) for choice in itertools.product(
            *(range(len(costs)) for costs in instance['problem']['nodes']['costs'])))
        self.assertEqual((answer['cost'], answer['bound'], tuple(answer['solution'])), (best[0], best[0], best[1]))
        self.assertLess(best[0], 0)

    def test_a_hard_instance_ends_in_time_with_a_choice_that_fits(self):
        instance = self.hard()
        file = self.write(instance)
        answer = self.json_of('solve', file, '--seconds=3')
        cost, peak = evaluate(instance, answer['solution'])
        self.assertTrue(answer['feasible'])
        self.assertEqual((answer['cost'], answer['peak_usage']), (cost, peak))
        self.assertLessEqual(peak, 1500)
        self.assertLessEqual(answer['bound'], cost)

    def test_signals_end_the_search_and_the_best_choice_is_printed(self):
        instance = self.hard()
        file = self.write(instance)
        for which in (signal.SIGTERM, signal.SIGINT):
            process = subprocess.Popen([HETRUN, 'solve', file, '--seconds=600', '--json'], cwd=self.folder, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(process.kill)
            time.sleep(4)
            process.send_signal(which)
            out, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130)
            answer = json.loads(out.splitlines()[-1])
            self.assertTrue(answer['interrupted'])
            self.assertEqual(evaluate(instance, answer['solution'])[0], answer['cost'])

    def test_the_generator_of_the_benchmark_makes_instances_that_are_solved(self):
        made = subprocess.run([sys.executable, ROOT / 'tests/bench/assignment/generate.py', '--layers=1', '--copies=0', '--seed=3'],
                              text=True, capture_output=True, check=True)
        instance = json.loads(made.stdout)
        answer = self.json_of('solve', self.write(made.stdout), '--seconds=5')
        cost, peak = evaluate(instance, answer['solution'])
        self.assertEqual(answer['cost'], cost)
        self.assertLessEqual(peak, instance['problem']['usage_limit'])
        self.assertLess(answer['gap'], 0.05)

    def test_mistakes_are_refused(self):
        def changed(change):
            instance = json.loads(json.dumps(EXAMPLE))
            change(instance['problem'])
            return self.refused('solve', self.write(instance))
        self.assertIn('node 1 has 1 costs but 2 usages', changed(lambda p: p['nodes']['costs'].__setitem__(1, [55])))
        self.assertIn('node 2, strategy 1 has the usage -3', changed(lambda p: p['nodes']['usages'][2].__setitem__(1, -3)))
        self.assertIn('edge 3 has 2 costs', changed(lambda p: p['edges']['costs'].__setitem__(3, [1, 2])))
        self.assertIn('node 4 has no costs and no usages: problem.nodes has 5 intervals, 4 lists of costs and 4 of usages',
                      changed(lambda p: (p['nodes']['costs'].pop(), p['nodes']['usages'].pop())))
        self.assertIn('node 4 has no interval: ', changed(lambda p: p['nodes']['intervals'].pop()))
        self.assertIn('edge 4 has no nodes: problem.edges has 4 lists of nodes and 5 of costs',
                      changed(lambda p: p['edges']['nodes'].pop()))
        self.assertIn('edge 4 has no costs: ', changed(lambda p: p['edges']['costs'].pop()))
        self.assertIn('node 2: problem.nodes.intervals[2] has 3 numbers; an interval has 2',
                      changed(lambda p: p['nodes']['intervals'][2].append(3)))
        self.assertIn('edge 0: problem.edges.nodes[0] names node 9', changed(lambda p: p['edges']['nodes'].__setitem__(0, [0, 9])))
        self.assertIn('there are no nodes', changed(lambda p: (p.__setitem__('nodes', {'intervals': [], 'costs': [], 'usages': []}),
                                                              p.__setitem__('edges', {'nodes': [], 'costs': []}))))
        self.assertIn('at time 50 the nodes use 50 at least, which is 1 above the limit 49',
                      changed(lambda p: p.__setitem__('usage_limit', 49)))
        self.assertIn('the field problem.nodes.costs is missing', changed(lambda p: p['nodes'].pop('costs')))
        self.assertIn('problem.usagelimit is no field; did you mean usage_limit?',
                      changed(lambda p: p.__setitem__('usagelimit', p.pop('usage_limit'))))
        self.assertIn('instance.json', self.refused('solve', self.write('{"problem": ')))
        self.assertIn('byte', self.refused('solve', self.write('{"problem": 3}')))
        file = self.write(EXAMPLE)
        self.assertIn('the file of the instance is missing', self.refused('solve'))
        self.assertIn("there is no option --second; did you mean 'seconds'?", self.refused('solve', file, '--second=3'))
        self.assertIn('--seconds=0 is not a time in seconds', self.refused('solve', file, '--seconds=0'))
        self.assertIn('--seed=x is not a whole number', self.refused('solve', file, '--seed=x'))
        self.assertIn('--out needs a value', self.refused('solve', file, '--out'))
        self.assertIn("unexpected argument 'more'", self.refused('solve', file, 'more'))
        self.assertIn('missing.json', self.refused('solve', 'missing.json'))
