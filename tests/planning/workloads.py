"""HAP's four workloads, small: sharding programs that cut state, on 2 to 8 ranks, most with uneven shares, train as one device
does; and so do the programs that they are compared with."""
import json
import math
import struct
import unittest

from case import Case

CLUSTER = '''local het = require "het"
local function device(name, rate)
  return het.device_type {{ name = name, f32 = rate, memory = "4 GiB", memory_bandwidth = "1 TB/s", efficiency = 1,
    bandwidth = "{link}", latency = "20 us" }}
end
return het.cluster {{ bandwidth = "{link}", latency = "20 us", all_reduce = "mesh",
  device("slow", "0.1 GFLOP/s"), device("fast", "0.3 GFLOP/s"),
  het.node {{ name = "a", type = "slow", devices = {slow} }}, het.node {{ name = "b", type = "fast", devices = {fast} }} }}
'''
RECIPE = '''local het = require "het"
local nn, data = het.nn, het.data
local opt = het.options {{ save = {{ "runs/model", "folder", path = "write" }} }}
local plan
{plan}
return het.train {{
  model = {model}, data = {data}, batch = 24, steps = 5, evaluate = {{ every = 0 }}, seed = 3, plan = plan, save = opt.save,
  optimizer = het.optim.adamw {{ lr = 1e-3, clip = 1, eps = 1e-4 }},
}}
'''
IMAGES, TEXT = 'data.shapes { samples = 200, holdout = 0.1 }', 'data.masked { path = "text.txt", tokenizer = "char" }'
SMALL = 'width = 32, heads = 4, layers = 2'
# Channels share the factor 3 with those of the images.
WORKLOADS = {
    'vgg19': ('nn.vgg { classes = 10, width = 6, hidden = 96, pool = 3 }', IMAGES),
    'vit': (f'nn.vit {{ classes = 10, image = 32, patch = 8, width = 24, heads = 3, layers = 2 }}', IMAGES),
    'bert': (f'nn.bert {{ vocab = 64, context = 16, {SMALL} }}', TEXT),
    'experts': ('''nn.bert { vocab = 64, context = 16, %s, block = function(width, heads, index)
      return nn.bert_block { width = width, heads = heads,
        mlp = index == 2 and nn.experts { width = width, experts = 8, top = 2 } or nil } end }''' % SMALL, TEXT),
}


def tensors_of(path):
    """The f32 tensors of a safetensors file, by name."""
    data = path.read_bytes()
    size = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == '__metadata__':
            continue
        begin, end = entry['data_offsets']
        tensors[name] = struct.unpack(f'<{(end - begin) // 4}f', data[8 + size + begin:8 + size + end])
    return tensors


class Workloads(Case):
    def outcome(self, name, *words):
        losses = self.losses('workload.lua', f'--save={name}', *words)
        return losses, tensors_of(self.folder / name / 'model.safetensors')

    def alone(self, workload):
        """The recipe without a plan, and with a given one; what one device finds."""
        model, data = WORKLOADS[workload]

        def write(plan=''):
            (self.folder / 'workload.lua').write_text(RECIPE.format(plan=plan, model=model, data=data))
        write()
        return write, self.outcome(f'alone {workload}', '--overwrite')

    def assert_same(self, alone, together, steps=5):
        (losses, tensors), (others, parts) = alone, together
        self.assertEqual(len(others), steps)
        for one, other in zip(losses, others):
            self.assertLess(abs(one - other), 1e-5 * abs(one))
        self.assertEqual(sorted(parts), sorted(tensors))
        for parameter, values in tensors.items():
            off = math.dist(values, parts[parameter])
            self.assertLess(off, 1e-5 * max(1, math.hypot(*values)), parameter)

    def ranks(self, workload, *settings):
        """The synthesised program alone, for each (slow devices, fast ones, link, whether shares are uneven)."""
        write, alone = self.alone(workload)
        for slow, fast, link, uneven in settings:
            with self.subTest(workload=workload, ranks=slow + fast, link=link):
                cluster = CLUSTER.format(link=link, slow=slow, fast=fast)
                if slow == 0:
                    cluster = cluster.replace('het.node { name = "a", type = "slow", devices = 0 }, ', '')
                (self.folder / 'mixed.lua').write_text(cluster)
                write()
                report = self.json_of('plan', 'workload.lua', '--cluster=mixed.lua', '--policy=hap')
                self.assertEqual(len(report['report']['devices']), slow + fast)
                self.assertEqual(len({device['share'] for device in report['report']['devices']}) > 1, uneven)
                self.assertEqual(report['report']['cut'], slow + fast > 1)
                self.assertEqual('unlike_devices = true' in report['lua'], slow > 0)
                write('plan = ' + report['lua'])
                together = self.outcome(f'{workload} {slow} {fast}', f'--workers={slow + fast}', '--threads=1')
                self.assert_same(alone, together)

    def compare(self, workload, slow, fast, link, uneven=True):
        (self.folder / 'mixed.lua').write_text(CLUSTER.format(link=link, slow=slow, fast=fast))
        write, alone = self.alone(workload)
        report = self.json_of('plan', 'workload.lua', '--cluster=mixed.lua', '--policy=hap')
        shares = {device['share'] for device in report['report']['devices']}
        self.assertEqual(len(shares) > 1, uneven)
        self.assertIn('state = ', report['lua'])
        self.assertEqual(len(report['report']['meshes']), slow > 1 and fast > 1 and slow % 2 == fast % 2)   # rows of equal length
        others = [*report['report']['baselines'], *report['report']['meshes']]
        plans = {'synthesised': report['lua'], **{other['name']: other['lua'] for other in others}}
        for name, plan in plans.items():
            if not plan or (name != 'synthesised' and plan == plans['synthesised']):
                continue
            with self.subTest(workload=workload, ranks=slow + fast, link=link, plan=name):
                write('plan = ' + plan)
                together = self.outcome(f'{workload} {slow} {fast} {name}', f'--workers={slow + fast}', '--threads=1')
                self.assert_same(alone, together)

    def test_vgg19(self):
        self.compare('vgg19', 1, 1, '100 MB/s')
        self.compare('vgg19', 2, 3, '1 MB/s')

    def test_vit(self):
        self.compare('vit', 1, 2, '10 GB/s')
        self.compare('vit', 2, 2, '100 MB/s')

    def test_bert(self):
        self.compare('bert', 2, 2, '10 GB/s')

    def test_experts(self):
        self.compare('experts', 1, 2, '100 MB/s')
        self.compare('experts', 6, 2, '1 MB/s', uneven=False)   # an expert for each device

    def test_vgg19_on_other_numbers_of_ranks(self):
        self.ranks('vgg19', (0, 1, '100 MB/s', False), (2, 4, '1 MB/s', True), (3, 4, '100 MB/s', True), (5, 3, '1 MB/s', True))

    def test_vit_on_other_numbers_of_ranks(self):
        self.ranks('vit', (0, 1, '100 MB/s', False), (2, 4, '100 MB/s', True), (3, 4, '10 GB/s', True), (5, 3, '100 MB/s', True))

    def test_bert_on_other_numbers_of_ranks(self):
        self.ranks('bert', (0, 1, '100 MB/s', False), (2, 4, '10 GB/s', True), (3, 4, '100 MB/s', True), (5, 3, '10 GB/s', True))

    def test_experts_on_other_numbers_of_ranks(self):
        self.ranks('experts', (0, 1, '100 MB/s', False), (2, 4, '100 MB/s', True), (3, 4, '10 GB/s', True), (5, 3, '10 GB/s', True))


if __name__ == '__main__':
    unittest.main()
