#!/usr/bin/env python3
"""Write an assignment problem of the contest's kind: the training step of a transformer on a mesh of devices.

    generate.py --layers=40 --seed=1 [--mesh=4,8] [--tightness=0.3] > instance.json

Nodes are tensors and operators. A strategy shards a node's dimensions over the axes of the mesh; matrix products have
one more choice, the contracted dimension. Edges cost the bytes that resharding moves, and aliases (an optimizer
updates its parameter in place) forbid everything else. A node uses memory from its operator to its last reader;
activations are read again in the backward pass. `--tightness`: 0 allows what each node would choose alone, 1 hardly
more than the least that all together can use. `--share`: all layers have the same weights.
"""
import argparse
import itertools
import json
import random
import sys

FORBIDDEN = 10**18


class Graph:
    def __init__(self, mesh, seed):
        self.mesh, self.random = mesh, random.Random(seed)
        self.kinds = []  # by node: (dims, strategies); a strategy: (output sharding, shardings of operands, cost)
        self.bytes, self.births, self.deaths, self.costs = [], [], [], []
        self.edges, self.cache, self.time = [], {}, 0
        self.last = []

    def shardings(self, dims):
        """All (dimension or None for each axis) that divide the dimensions."""
        key = ("shardings", dims)
        if key not in self.cache:
            found = []
            for choice in itertools.product([None, *range(len(dims))], repeat=len(self.mesh)):
                shards = [1] * len(dims)
                for axis, dim in enumerate(choice):
                    if dim is not None:
                        shards[dim] *= self.mesh[axis]
                if all(d % s == 0 and d >= s for d, s in zip(dims, shards)):
                    found.append(choice)
            self.cache[key] = found
        return self.cache[key]

    def reshard(self, size, have, want):
        """Bytes a device receives when a tensor of `size` bytes goes from one sharding to another."""
        cost = 0
        for axis, (h, w) in enumerate(zip(have, want)):
            if h == w or h is None:
                continue
            others = 1
            for other, dim in enumerate(want):
                if other != axis and dim is not None:
                    others *= self.mesh[other]
            n = self.mesh[axis]
            cost += size * (n - 1) // n // others if w is None else size // n // others
        return cost

    def add(self, dims, strategies, operands, lives_always=False):
        """A node with these strategies, [(output sharding, operand shardings, cost)]; returns its number."""
        node = len(self.kinds)
        size = 2
        for d in dims:
            size *= d
        self.kinds.append(strategies)
        self.bytes.append(size)
        self.births.append(0 if lives_always else self.time)
        self.deaths.append(self.time + 1)
        self.last.append(lives_always)
        self.time += 1
        for position, operand in enumerate(operands):
            self.deaths[operand] = max(self.deaths[operand], self.time)
            self.edges.append((operand, node, position))
        return node

    def parameter(self, dims):
        return self.add(dims, [(s, (), 0) for s in self.shardings(dims)], [], lives_always=True)

    def elementwise(self, dims, *operands):
        noise = self.random.randrange(3)
        return self.add(dims, [(s, (s,) * len(operands), noise) for s in self.shardings(dims)], operands)

    def product(self, batch, m, k, n, left, right):
        """[batch, m, k] x [k, n]: axes shard the batch, m, n or k; a sharded k is summed over its axis."""
        dims, strategies = (batch, m, n), []
        size = 2 * batch * m * n
        for choice in itertools.product(["none", "batch", "m", "n", "k"], repeat=len(self.mesh)):
            shards = {"none": 1, "batch": 1, "m": 1, "n": 1, "k": 1}
            for axis, c in enumerate(choice):
                shards[c] *= self.mesh[axis]
            if batch % shards["batch"] or m % shards["m"] or n % shards["n"] or k % shards["k"]:
                continue
            out = tuple({"batch": 0, "m": 1, "n": 2}.get(c) for c in choice)
            a = tuple({"batch": 0, "m": 1, "k": 2}.get(c) for c in choice)
            b = tuple({"k": 0, "n": 1}.get(c) for c in choice)
            local = size // (shards["batch"] * shards["m"] * shards["n"])
            work = 2 * batch * m * n * k // 2000
            for s in ("batch", "m", "n", "k"):
                work //= shards[s]
            reduce = 2 * local * (shards["k"] - 1) // shards["k"] if shards["k"] > 1 else 0
            strategies.append((out, (a, b), work + reduce))
        return self.add(dims, strategies, [left, right])

    def gradient_product(self, dims, left, right, contracted):
        """A weight's gradient, dims = (k, n): sharded like the weight, or summed over axes that shard the batch."""
        strategies = []
        size = 2 * dims[0] * dims[1]
        for choice in itertools.product(["none", "k", "n", "batch"], repeat=len(self.mesh)):
            shards = {"none": 1, "k": 1, "n": 1, "batch": 1}
            for axis, c in enumerate(choice):
                shards[c] *= self.mesh[axis]
            if dims[0] % shards["k"] or dims[1] % shards["n"] or contracted[0] % shards["batch"]:
                continue
            out = tuple({"k": 0, "n": 1}.get(c) for c in choice)
            a = tuple({"batch": 0, "k": 2}.get(c) for c in choice)
            b = tuple({"batch": 0, "n": 2}.get(c) for c in choice)
            work = 2 * contracted[0] * contracted[1] * dims[0] * dims[1] // 2000
            for s in ("k", "n", "batch"):
                work //= shards[s]
            reduce = 2 * size // (shards["k"] * shards["n"]) * (shards["batch"] - 1) // shards["batch"] if shards["batch"] > 1 else 0
            strategies.append((out, (a, b), work + reduce))
        return self.add(dims, strategies, [left, right])

    def alias(self, dims, parameter, gradient):
        """The optimizer's update, in place: it has its parameter's sharding."""
        node = self.add(dims, [(s, (s, s), 1) for s in self.shardings(dims)], [parameter, gradient])
        self.edges[-2] = (parameter, node, "alias")
        return node

    def matrix(self, edge):
        source, target, position = edge
        key = (id(self.kinds[source]), tuple(s[0] for s in self.kinds[source]), self.bytes[source], position,
               tuple(s[1] if position == "alias" else s[1][position] for s in self.kinds[target]))
        if key not in self.cache:
            costs = []
            for have, _, _ in self.kinds[source]:
                for _, wants, _ in self.kinds[target]:
                    want = wants[0] if position == "alias" else wants[position]
                    cost = self.reshard(self.bytes[source], have, want)
                    costs.append(FORBIDDEN if position == "alias" and cost else cost)
            self.cache[key] = json.dumps(costs, separators=(",", ":"))
        return self.cache[key]

    def usage(self, node, sharding):
        shards = 1
        for axis, dim in enumerate(sharding):
            if dim is not None:
                shards *= self.mesh[axis]
        return self.bytes[node] // shards

    def peak(self, pick):
        change = [0] * (self.time + 2)
        for node in range(len(self.kinds)):
            used = pick(node)
            change[self.births[node]] += used
            change[self.deaths[node]] -= used
        total = most = 0
        for c in change:
            total += c
            most = max(most, total)
        return most

    def write(self, out, name, tightness):
        for node, always in enumerate(self.last):
            if always:
                self.deaths[node] = self.time
        least = self.peak(lambda n: min(self.usage(n, s[0]) for s in self.kinds[n]))
        alone = self.peak(lambda n: self.usage(n, min(self.kinds[n], key=lambda s: s[2])[0]))
        limit = int(least * 1.05 + (1 - tightness) * max(0, alone - least * 1.05))
        intervals = [[b, d] for b, d in zip(self.births, self.deaths)]
        costs = [[s[2] for s in kind] for kind in self.kinds]
        usages = [[self.usage(n, s[0]) for s in kind] for n, kind in enumerate(self.kinds)]
        dumps = lambda value: json.dumps(value, separators=(",", ":"))
        out.write('{"problem":{"name":"%s","nodes":{"intervals":%s,"costs":%s,"usages":%s},"edges":{"nodes":%s,"costs":[' %
                  (name, dumps(intervals), dumps(costs), dumps(usages), dumps([[a, b] for a, b, _ in self.edges])))
        for i, edge in enumerate(self.edges):
            out.write(("," if i else "") + self.matrix(edge))
        out.write(']},"usage_limit":%d}}\n' % limit)
        print(f"{name}: {len(self.kinds)} nodes, {len(self.edges)} edges, limit {limit}, least {least}, alone {alone}",
              file=sys.stderr)


def transformer(graph, layers, batch, tokens, width, copies, share):
    """Forward, backward and update; `copies` elementwise operators stand between products. With `share` all layers have
    the same weights: nodes of many edges."""
    hidden = (batch, tokens, width)
    weights, sums = {}, {}

    def weight(name, dims):
        if not share or (name, dims) not in weights:
            weights[name, dims] = graph.parameter(dims)
        return weights[name, dims]

    def chain(dims, node):
        for _ in range(graph.random.randint(0, 2 * copies)):
            node = graph.elementwise(dims, node)
        return node

    def update(w, shape, g):
        graph.alias(shape, graph.parameter(shape), g)
        graph.alias(shape, w, g)

    x = graph.elementwise(hidden, graph.parameter(hidden))
    saved = []
    for _ in range(layers):
        wide = width * graph.random.choice([2, 4])
        norm = chain(hidden, graph.elementwise(hidden, x))
        wq, wk, wv, wo = (weight(name, (width, width)) for name in ("q", "k", "v", "o"))
        q, k, v = (chain(hidden, graph.product(batch, tokens, width, width, norm, w)) for w in (wq, wk, wv))
        scores = chain(hidden, graph.elementwise(hidden, q, k))
        mixed = chain(hidden, graph.elementwise(hidden, scores, v))
        attended = graph.product(batch, tokens, width, width, mixed, wo)
        y = graph.elementwise(hidden, x, attended)
        norm2 = chain(hidden, graph.elementwise(hidden, y))
        up, down = weight("up", (width, wide)), weight("down", (wide, width))
        h = graph.product(batch, tokens, width, wide, norm2, up)
        active = chain((batch, tokens, wide), graph.elementwise((batch, tokens, wide), h))
        z = graph.product(batch, tokens, wide, width, active, down)
        saved.append((x, norm, wq, wk, wv, wo, q, k, v, mixed, y, norm2, up, down, h, active, wide))
        x = graph.elementwise(hidden, y, z)
    d = graph.elementwise(hidden, x)
    for x, norm, wq, wk, wv, wo, q, k, v, mixed, y, norm2, up, down, h, active, wide in reversed(saved):
        dims = (batch, tokens)
        gdown = graph.gradient_product((wide, width), active, d, dims)
        dactive = chain((batch, tokens, wide), graph.product(batch, tokens, width, wide, d, down_t(graph, down, (width, wide))))
        dh = graph.elementwise((batch, tokens, wide), dactive, h)
        gup = graph.gradient_product((width, wide), norm2, dh, dims)
        dn = chain(hidden, graph.product(batch, tokens, wide, width, dh, down_t(graph, up, (wide, width))))
        d = graph.elementwise(hidden, d, dn)
        go = graph.gradient_product((width, width), mixed, d, dims)
        dm = chain(hidden, graph.product(batch, tokens, width, width, d, down_t(graph, wo, (width, width))))
        grads = []
        back = []
        for w, other in ((wq, k), (wk, q), (wv, v)):
            dx = graph.elementwise(hidden, dm, other)
            grads.append(graph.gradient_product((width, width), norm, dx, dims))
            back.append(graph.product(batch, tokens, width, width, dx, down_t(graph, w, (width, width))))
        total = graph.elementwise(hidden, back[0], back[1])
        total = chain(hidden, graph.elementwise(hidden, total, back[2]))
        d = graph.elementwise(hidden, d, total)
        for w, g, shape in ((wq, grads[0], (width, width)), (wk, grads[1], (width, width)), (wv, grads[2], (width, width)),
                            (wo, go, (width, width)), (up, gup, (width, wide)), (down, gdown, (wide, width))):
            g = chain(shape, g)
            if share:
                sums[w] = (shape, graph.elementwise(shape, sums[w][1], g) if w in sums else g)
            else:
                update(w, shape, g)
    for w, (shape, g) in sums.items():
        update(w, shape, g)


def down_t(graph, parameter, dims):
    """A transposed weight: dimensions swap, sharding follows."""
    swap = {0: 1, 1: 0, None: None}
    strategies = [(tuple(swap[d] for d in s), (s,), 0) for s in graph.shardings((dims[1], dims[0]))]
    return graph.add(dims, strategies, [parameter])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--share", action="store_true", help="all layers have the same weights")
    parser.add_argument("--mesh", default="4,8")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tightness", type=float, default=0.7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=2048)
    options = parser.parse_args()
    graph = Graph([int(n) for n in options.mesh.split(",")], options.seed)
    transformer(graph, options.layers, options.batch, options.tokens, options.width, options.copies, options.share)
    graph.write(sys.stdout, f"transformer-{options.layers}-{options.seed}", options.tightness)


if __name__ == "__main__":
    main()
