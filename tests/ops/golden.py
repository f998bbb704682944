#!/usr/bin/env python3
"""Writes golden/*.json: what PyTorch gives for every differentiable operator, values and gradients.

Run it with a Python that has PyTorch, from anywhere:  python3 tests/ops/golden.py [family ...]
PyTorch computes in f64. Inputs are multiples of 1/64 wherever they are ours to choose, so that they are short and exact
in f32; all other numbers have 12 digits. The C++ side (golden.cpp) builds a graph of the same operator, differentiates sum(result * weight), and
compares. One file for each family; one case a line.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
FOLDER = pathlib.Path(__file__).parent / "golden"
generator = torch.Generator()
cases = []


def draw(*shape, low=-1.0, high=1.0):
    """Multiples of 1/64 in [low, high]."""
    return torch.randint(round(low * 64), round(high * 64) + 1, shape, generator=generator) / 64.0


def whole(*shape, low, high):
    return torch.randint(low, high, shape, generator=generator)


def apart(x, gap=0.125):
    return x + torch.where(x < 0, -gap, gap)


def numbers(tensor):
    return [int(v) if v == int(v) else float(f"{v:.12g}") for v in tensor.flatten().tolist()]


def written(tensor, kind):
    return None if tensor is None else {"kind": kind, "shape": list(tensor.shape), "values": numbers(tensor.detach())}


def case(op, function, inputs, attributes=None, through=None):
    """One case. `inputs`: tensors, or (tensor, kind) with kind T, A, i32 or i64, or None for an absent operand.
    `function` of the float tensors' leaves (and the others) returns the results. Gradients flow from the results
    numbered in `through` (default: the first)."""
    attributes = attributes or {}
    pairs = [i if isinstance(i, tuple) else (i, "T" if i is not None and i.is_floating_point() else "i32") for i in inputs]
    leaves = []
    for tensor, kind in pairs:
        floating = tensor is not None and tensor.is_floating_point()
        leaves.append(tensor.clone().requires_grad_(through != []) if floating else tensor)
    results = function(*leaves)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    through = [0] if through is None else through
    weights = {o: draw(*results[o].shape) for o in through}
    gradients = [None] * len(leaves)
    if through:
        floats = [i for i, leaf in enumerate(leaves) if leaf is not None and leaf.is_floating_point()]
        loss = sum((results[o] * weights[o]).sum() for o in through)
        grads = torch.autograd.grad(loss, [leaves[i] for i in floats], allow_unused=True)
        for i, gradient in zip(floats, grads):
            gradients[i] = None if gradient is None else numbers(gradient)
    cases.append({
        "op": op,
        "attributes": attributes,
        "inputs": [written(tensor, kind) for tensor, kind in pairs],
        "results": [{"shape": list(result.shape), "values": numbers(result.detach())} for result in results],
        "weights": [numbers(weights[o]) if o in weights else None for o in range(len(results))],
        "gradients": gradients,
    })


def elementwise():
    shapes = [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((4, 1), (1, 3)), ((3,), (2, 1)), ((), (5,))]
    for name, function in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul)]:
        for a, b in shapes:
            case(name, function, [draw(*a), draw(*b)])
    for a, b in shapes:
        case("div", torch.div, [draw(*a), apart(draw(*b))])
        # Odd and even multiples of 1/64 are never equal.
        case("maximum", torch.maximum, [draw(*a) * 2, draw(*b) * 2 + 1 / 64])
        case("minimum", torch.minimum, [draw(*a) * 2, draw(*b) * 2 + 1 / 64])
        for name, function in [("equal", torch.eq), ("not_equal", torch.ne), ("less", torch.lt), ("less_equal", torch.le)]:
            case(name, lambda a, b, f=function: f(a, b).double(), [draw(*a).round(), draw(*b).round()], through=[])
        zeros = torch.zeros(())
        case("mask", lambda c, b: torch.where(c != 0, b, zeros), [draw(*a).round(), draw(*b)])
        case("mask_out", lambda c, b: torch.where(c != 0, zeros, b), [draw(*a).round(), draw(*b)])
    for shape in [(7,), (3, 6), ()]:
        case("clamp_min", lambda x: x.clamp(min=0.25), [draw(*shape)], {"bound": 0.25})
        case("clamp_max", lambda x: x.clamp(max=0.25), [draw(*shape)], {"bound": 0.25})
        case("abs", torch.abs, [draw(*shape)])
        case("sign", torch.sign, [draw(*shape)])
        case("sin", torch.sin, [draw(*shape, low=-4, high=4)])
        case("cos", torch.cos, [draw(*shape, low=-4, high=4)])
        for exponent in [2.5, 3.0, -1.0, 0.0, 1.0]:
            case("pow", lambda x, e=exponent: x.pow(e), [draw(*shape, low=0.25, high=3)], {"exponent": exponent})
        case("scale", lambda x: x * -2.5, [draw(*shape)], {"factor": -2.5})
        case("shift", lambda x: x + 0.75, [draw(*shape)], {"amount": 0.75})
        case("neg", torch.neg, [draw(*shape)])
        case("square", torch.square, [draw(*shape)])
        case("sqrt", torch.sqrt, [draw(*shape, low=0.25, high=4)])
        case("exp", torch.exp, [draw(*shape, low=-3, high=3)])
        case("log", torch.log, [draw(*shape, low=0.25, high=4)])
        case("tanh", torch.tanh, [draw(*shape, low=-3, high=3)])
        case("sigmoid", torch.sigmoid, [draw(*shape, low=-6, high=6)])
        case("relu", torch.relu, [draw(*shape)])
        case("silu", F.silu, [draw(*shape, low=-6, high=6)])
        case("gelu", lambda x: F.gelu(x, approximate="tanh"), [draw(*shape, low=-4, high=4)])
        case("gelu", lambda x: F.gelu(x, approximate="tanh"), [draw(*shape, low=-4, high=4)], {"approximate": "tanh"})
        case("gelu", F.gelu, [draw(*shape, low=-4, high=4)], {"approximate": "none"})
    case("relu", torch.relu, [torch.tensor([0.0, 1.0, -1.0, 0.0])])  # 0 has the gradient 0
    case("cast", lambda x: x.to(torch.int32), [draw(12, low=-9, high=9)], {"dtype": "i32"}, through=[])
    case("cast", lambda x: x.to(torch.bool), [torch.tensor([0.0, 0.5, -2.0])], {"dtype": "bool"}, through=[])
    case("cast", lambda x: x.to(torch.float64), [whole(6, low=-9, high=9)], {"dtype": "f64"}, through=[])
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")]:
        values = torch.tensor([1.0, 1 / 3, -2 / 3, 257.0, 65503.0, 1e-3, 0.1, -1.00390625, 1.01171875])
        case("cast", lambda x, d=dtype: x.to(d).to(torch.float64), [values], {"dtype": name}, through=[])
    for a, b in shapes:
        case("power", torch.pow, [draw(*a, low=0.25, high=3), draw(*b, low=-2, high=2)])
    # 0 to the power of something has no slope in the exponent, and something to the power of 0 none in the base.
    case("power", torch.pow, [torch.tensor([0.0, 0.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 0.0, 0.0])])


def shape():
    case("reshape", lambda x: x.reshape(6, 4), [draw(2, 3, 4)], {"shape": [6, 4]})
    case("reshape", lambda x: x.reshape(2, -1), [draw(2, 3, 4)], {"shape": [2, -1]})
    case("transpose", lambda x: x.permute(0, 2, 1, 3), [draw(2, 3, 2, 2)], {"order": [0, 2, 1, 3]})
    case("transpose", lambda x: x.permute(2, 0, 1), [draw(2, 3, 4)], {"order": [2, 0, 1]})
    case("slice", lambda x: x[:, 2:5], [draw(3, 7)], {"dim": 1, "start": 2, "length": 3})
    case("slice", lambda x: x[1:2], [draw(3, 4)], {"dim": -2, "start": 1, "length": 1})
    case("split", lambda x: x.split([2, 3, 1], dim=1), [draw(3, 6)], {"dim": 1, "sizes": [2, 3, 1]}, through=[0, 1, 2])
    case("split", lambda x: x.split([2, 3, 1], dim=1), [draw(3, 6)], {"dim": -1, "sizes": [2, 3, 1]}, through=[1])
    case("concat", lambda *x: torch.cat(x, dim=1), [draw(2, 3), draw(2, 1), draw(2, 4)], {"dim": 1})
    case("concat", lambda *x: torch.cat(x, dim=0), [draw(2, 3), draw(1, 3)], {"dim": -2})
    case("copy", torch.clone, [draw(3, 4)])
    values = [1.0, -0.5, 2.25, 0.0, 3.0, -4.0]
    case("constant", lambda: torch.tensor(values).reshape(2, 3), [], {"values": values, "shape": [2, 3], "dtype": "f64"}, through=[])
    case("fill", lambda: torch.full((2, 3), -1.5), [], {"value": -1.5, "shape": [2, 3], "dtype": "f64"}, through=[])


def reduce():
    for name, function in [("sum", torch.sum), ("mean", torch.mean)]:
        for shape, dims, keep in [((3, 5), [0], False), ((3, 5), [1], True), ((2, 3, 4), [0, 2], False), ((2, 3, 4), [-2], True)]:
            case(name, lambda x, f=function, d=dims, k=keep: f(x, dim=d, keepdim=k), [draw(*shape)], {"dims": dims, "keep": keep})
        case(name, function, [draw(4, 3)])
        case(name, function, [draw()])


def softmax():
    for shape, dim in [((4, 7), -1), ((4, 7), 0), ((2, 3, 5), 1), ((6,), 0)]:
        case("softmax", lambda x, d=dim: torch.softmax(x, dim=d), [draw(*shape, low=-4, high=4)], {"dim": dim})

    # Of a part of the dimension; y and dy as any operands.
    for shape, dim in [((4, 7), -1), ((2, 3, 5), 1)]:
        def statistics(x, d=dim):
            top = torch.amax(x, dim=d, keepdim=True)
            return torch.stack([top, torch.exp(torch.logsumexp(x, dim=d, keepdim=True) - top)])

        case("softmax_statistics", statistics, [draw(*shape, low=-4, high=4)], {"dim": dim}, through=[])
        case("softmax_gradient_sums", lambda y, dy, d=dim: torch.linalg.vecdot(y, dy, dim=d).unsqueeze(d),
             [draw(*shape), draw(*shape)], {"dim": dim}, through=[])


def matmul():
    for lead, lead_b, m, k, n in [((), (), 3, 4, 5), ((2,), (2,), 3, 4, 2), ((2, 2), (2, 2), 1, 3, 2), ((3,), (), 2, 4, 3)]:
        for ta in (False, True):
            for tb in (False, True):
                a = draw(*lead, k, m) if ta else draw(*lead, m, k)
                b = draw(*lead_b, n, k) if tb else draw(*lead_b, k, n)
                function = lambda a, b, ta=ta, tb=tb: torch.matmul(a.mT if ta else a, b.mT if tb else b)
                case("matmul", function, [a, b], {"transpose_a": ta, "transpose_b": tb})
    for shape, out in [((5,), 3), ((4, 6), 5), ((2, 3, 7), 4)]:
        case("linear", F.linear, [draw(*shape), draw(out, shape[-1])])
        case("linear", F.linear, [draw(*shape), draw(out, shape[-1]), (draw(out), "A")])
    for lead, k, m, n in [((), 3, 4, 2), ((3,), 5, 2, 4)]:
        case("matmul_weight_gradient", lambda a, b: a.mT @ b, [draw(*lead, k, m), draw(*lead, k, n)], through=[])


def norm():
    for shape in [(6,), (4, 7), (2, 3, 5)]:
        n = shape[-1]
        for eps in (1e-5, 1e-2):
            def layer(x, weight=None, bias=None, n=n, eps=eps):
                # PyTorch's layer_norm, and the statistics that its native form returns.
                y, mean, rstd = torch.native_layer_norm(x, [n], weight, bias, eps)
                return y, mean.detach().flatten(), rstd.detach().flatten()

            case("layer_norm", layer, [draw(*shape), (draw(n), "A"), (draw(n), "A")], {"eps": eps})
            case("layer_norm", layer, [draw(*shape), (draw(n), "A")], {"eps": eps})
            case("layer_norm", layer, [draw(*shape)], {"eps": eps})
            case("layer_norm", layer, [draw(*shape), None, (draw(n), "A")], {"eps": eps})

            def rms(x, weight=None, n=n, eps=eps):
                return F.rms_norm(x, [n], weight, eps), torch.rsqrt(x.square().mean(-1) + eps).detach().flatten()

            case("rms_norm", rms, [draw(*shape), (draw(n), "A")], {"eps": eps})
            case("rms_norm", rms, [draw(*shape)], {"eps": eps})

    # Of a part of the columns. What a norm does to its row is y = (x - mean) rstd weight + bias with constant statistics;
    # of it the sums of g = dy weight and of g (x - mean) rstd, and the gradients of weight and bias.
    for shape in [(6,), (4, 7), (2, 3, 5)]:
        n = shape[-1]
        count = math.prod(shape[:-1])

        def moments(x, n=n):
            rows = x.reshape(-1, n)
            return torch.stack([torch.full((len(rows),), float(n)), rows.sum(-1), rows.var(-1, correction=0) * n])

        def sums(dy, x, weight, mean, rstd, n=n, count=count):
            shift = torch.zeros(count) if mean is None else mean
            h = (x.reshape(count, n) - shift[:, None]) * rstd[:, None]
            gain, bias = torch.ones(n, requires_grad=True), torch.zeros(n, requires_grad=True)
            leaf = h.clone().requires_grad_()
            (torch.addcmul(bias, leaf, gain if weight is None else gain * weight) * dy.reshape(count, n)).sum().backward()
            rows = torch.stack([leaf.grad.sum(-1), torch.linalg.vecdot(leaf.grad, h)])
            return (rows,) if weight is None else (rows, gain.grad / weight, bias.grad)

        case("row_moments", moments, [draw(*shape)], through=[])
        rstd = (draw(count, low=0.5, high=2), "A")
        case("norm_gradient_sums", sums, [draw(*shape), draw(*shape), (apart(draw(n)), "A"), (draw(count), "A"), rstd],
             through=[])
        case("norm_gradient_sums", sums, [draw(*shape), draw(*shape), None, None, rstd], through=[])


def turned(x, positions, base, interleaved, inverse, frequencies=None):
    """As Hugging Face's LLaMA (rotate_half), or as GPT-J (interleaved), through complex multiplication."""
    d = x.shape[-1]
    angle = positions[:, None] * (base ** (-torch.arange(0, d, 2) / d) if frequencies is None else frequencies)
    turn = torch.polar(torch.ones_like(angle), -angle if inverse else angle)[None, :, None, :]
    if interleaved:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2))
        return torch.view_as_real(pairs * turn).reshape(x.shape)
    pairs = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def rotary():
    for shape in [(1, 3, 1, 2), (2, 4, 3, 6)]:
        for interleaved in (False, True):
            for inverse in (False, True):
                base = 500.0 if inverse else 10000.0
                case("rotary", lambda x, p, b=base, i=interleaved, v=inverse: turned(x, p, b, i, v),
                     [draw(*shape), whole(shape[1], low=0, high=40)],
                     {"base": base, "interleaved": interleaved, "inverse": inverse})
    for interleaved in (False, True):
        frequencies = [1.5, 0.125, 0]
        case("rotary", lambda x, p, i=interleaved: turned(x, p, 1.0, i, False, torch.tensor(frequencies)),
             [draw(1, 3, 2, 6), whole(3, low=0, high=40)], {"frequencies": frequencies, "interleaved": interleaved})


def attended(q, k, v, mask, scale, cap=None):
    """PyTorch's scaled_dot_product_attention in the layout [batch, tokens, heads, size], and the log-sum-exp. It has no capped scores:
    these as transformers has them for Gemma 2."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.mT * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if cap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    else:
        out = F.softmax(scores, dim=-1) @ v
    return out.transpose(1, 2), torch.logsumexp(scores, dim=-1).detach()


def attention():
    for b, t, s, hq, hk, d in [(1, 1, 1, 1, 1, 1), (2, 4, 4, 2, 2, 3), (1, 5, 5, 4, 2, 2), (1, 3, 6, 2, 1, 4)]:
        for causal in (False, True):
            for scale in (None, 0.75):
                if causal and t != s:
                    continue
                mask = torch.ones(t, s, dtype=torch.bool).tril() if causal else None
                attributes = {"causal": causal} | ({} if scale is None else {"scale": scale})
                case("attention", lambda q, k, v, m=mask, c=scale: attended(q, k, v, m, c),
                     [draw(b, t, hq, d, low=-2, high=2), draw(b, s, hk, d, low=-2, high=2), draw(b, s, hk, d)], attributes)
    for window in (1, 3):
        mask = torch.ones(5, 5, dtype=torch.bool).tril().triu(1 - window)
        case("attention", lambda q, k, v, m=mask: attended(q, k, v, m, None),
             [draw(1, 5, 4, 2, low=-2, high=2), draw(1, 5, 2, 2, low=-2, high=2), draw(1, 5, 2, 2)], {"causal": True, "window": window})
    for position, t, window in [(0, 3, None), (2, 1, None), (4, 2, None), (0, 3, 2), (4, 2, 3)]:
        def cached(q, k, v, k_cache, v_cache, at, position=position, t=t, window=window):
            k_new, v_new = k_cache.clone(), v_cache.clone()
            k_new[:, position:position + t], v_new[:, position:position + t] = k, v
            ahead = torch.arange(6)[None, :] - (position + torch.arange(t)[:, None])
            return attended(q, k_new, v_new, (ahead <= 0) & (ahead > -(window or 7)), None)[0], k_new, v_new

        case("attention_cached", cached,
             [draw(2, t, 2, 3), draw(2, t, 1, 3), draw(2, t, 1, 3), draw(2, 6, 1, 3), draw(2, 6, 1, 3), torch.tensor([position])],
             {} if window is None else {"window": window}, through=[])
    for cap, causal, scale in [(0.5, True, None), (2.0, False, 0.75), (50.0, True, None)]:
        mask = torch.ones(5, 5, dtype=torch.bool).tril() if causal else None
        case("attention", lambda q, k, v, m=mask, c=scale, cap=cap: attended(q, k, v, m, c, cap),
             [draw(1, 5, 4, 2, low=-2, high=2), draw(1, 5, 2, 2, low=-2, high=2), draw(1, 5, 2, 2)],
             {"causal": causal, "score_cap": cap} | ({} if scale is None else {"scale": scale}))


def embedding():
    for shape, rows, width in [((4,), 3, 5), ((2, 5), 6, 3), ((), 2, 4)]:
        case("embedding", F.embedding, [whole(*shape, low=0, high=rows), draw(rows, width)])


def conv():
    for samples, groups, inner, outer, size, kernel, stride, padding, dilation in [
            (1, 1, 1, 1, (1, 1), (1, 1), 1, 0, 1), (2, 1, 2, 3, (4, 5), (3, 3), 1, 1, 1), (1, 1, 3, 4, (4, 6), (2, 2), 2, 0, 1),
            (2, 2, 2, 1, (3, 4), (2, 3), (1, 2), (1, 0), 1), (1, 3, 1, 1, (6, 5), (3, 2), (2, 1), (2, 1), (1, 2))]:
        attributes = {"groups": groups}
        for name, value in [("stride", stride), ("padding", padding), ("dilation", dilation)]:
            attributes[name] = list(value) if isinstance(value, tuple) else value
        arguments = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        x, weight = draw(samples, groups * inner, *size), draw(groups * outer, inner, *kernel)
        case("conv2d", lambda *o, a=arguments: F.conv2d(*o, **a), [x, weight, (draw(groups * outer), "A")], attributes)
        case("conv2d", lambda *o, a=arguments: F.conv2d(*o, **a), [x, weight], attributes)


def pool():
    for shape, kernel, stride, padding in [((1, 1, 1, 1), 1, 1, 0), ((2, 2, 4, 6), 2, 2, 0), ((1, 3, 5, 7), 3, 2, 1),
                                           ((2, 1, 4, 5), (2, 3), (1, 2), (1, 0))]:
        attributes = {name: list(value) if isinstance(value, tuple) else value
                      for name, value in [("kernel", kernel), ("stride", stride), ("padding", padding)]}
        arguments = {"kernel_size": kernel, "stride": stride, "padding": padding}
        case("max_pool2d", lambda x, a=arguments: F.max_pool2d(x, **a), [draw(*shape)], attributes)
        for counted in (True, False):
            case("avg_pool2d", lambda x, a=arguments, c=counted: F.avg_pool2d(x, count_include_pad=c, **a), [draw(*shape)],
                 attributes | {"count_include_pad": counted})
    # Multiples of 1/64 are often equal: the first of equals has the gradient.
    case("max_pool2d", lambda x: F.max_pool2d(x, 2), [whole(2, 2, 4, 4, low=-1, high=2).double()], {"kernel": 2})
    for shape, size in [((2, 3, 6, 8), (2, 4)), ((1, 2, 5, 7), (3, 2)), ((2, 2, 1, 2), (3, 5)), ((2, 2, 4, 3), (1, 1))]:
        case("adaptive_avg_pool2d", lambda x, s=size: F.adaptive_avg_pool2d(x, s), [draw(*shape)], {"output_size": list(size)})


def loss():
    for rows, classes in [((3,), 5), ((2, 4), 6), ((1,), 1)]:
        for ignore in (-100, 2):
            labels = whole(*rows, low=0, high=classes)
            if rows == (2, 4):
                labels[0, 1] = ignore

            def cross(logits, labels, scale, ignore=ignore):
                flat = logits.reshape(-1, logits.shape[-1])
                sum_ = F.cross_entropy(flat, labels.flatten(), ignore_index=ignore, reduction="sum")
                return sum_ * scale.detach()[0], torch.logsumexp(flat, dim=-1).detach()

            scale = (torch.tensor([0.125]), "A")
            case("cross_entropy", cross, [draw(*rows, classes, low=-4, high=4), labels, scale], {"ignore": ignore})

            def by_label(logits, labels, ignore=ignore):
                flat = logits.reshape(-1, logits.shape[-1])
                losses = F.cross_entropy(flat, labels.flatten(), ignore_index=ignore, reduction="none")
                return -losses.reshape(labels.shape), torch.logsumexp(flat, dim=-1).detach()

            case("log_probability", by_label, [draw(*rows, classes, low=-4, high=4), labels], {"ignore": ignore})
            for bias in (False, True):
                def fused(hidden, weight, bias, labels, scale, ignore=ignore):
                    return cross(F.linear(hidden, weight, bias), labels, scale, ignore)[0]

                operands = [draw(*rows, 4), draw(classes, 4, low=-2, high=2), (draw(classes), "A") if bias else None, labels]
                case("linear_cross_entropy", fused, [*operands, scale], {"ignore": ignore})

                case("linear_log_probability", lambda h, w, b, labels, f=by_label: f(F.linear(h, w, b), labels), operands,
                     {"ignore": ignore})
    for ignore in (-100, 2):
        parted_loss((2, 4), 6, 3, ignore)


def parted_loss(rows, classes, parts, ignore):
    """The loss with its classifier cut into parts: what each part gives, and that they make the whole."""
    count, own = math.prod(rows), classes // parts
    labels = whole(*rows, low=0, high=classes)
    labels[0, 1] = ignore
    hidden, weight, bias = draw(*rows, 4), draw(classes, 4, low=-2, high=2), draw(classes)
    scale = torch.tensor([0.125])
    logits = F.linear(hidden, weight, bias).reshape(count, classes)
    lse = torch.logsumexp(logits, dim=-1)
    everything = []
    for part in range(parts):
        here = range(part * own, (part + 1) * own)

        def sums(hidden, weight, bias, labels, here=here):
            logits = F.linear(hidden, weight, bias).reshape(count, own)
            picked = [logits[r, label - here[0]] if label in here and label != ignore else torch.tensor(0.0)
                      for r, label in enumerate(labels.flatten().tolist())]
            return torch.stack([torch.logsumexp(logits, dim=-1), torch.stack(picked)])

        def gradient(*_, here=here):
            leaf = logits.clone().requires_grad_()
            F.cross_entropy(leaf, labels.flatten(), ignore_index=ignore, reduction="sum").backward()
            dlogits = leaf.grad[:, here[0]:here[-1] + 1] * scale
            return ((dlogits @ weight[here[0]:here[-1] + 1]).reshape(hidden.shape),
                    dlogits.T @ hidden.reshape(count, 4), dlogits.sum(0))

        operands = [hidden, weight[here[0]:here[-1] + 1], (bias[here[0]:here[-1] + 1], "A"), labels]
        attributes = {"ignore": ignore, "first": here[0], "of": classes}
        case("linear_log_sum_exp", sums, operands, attributes, through=[])
        case("linear_cross_entropy_gradient", gradient, operands + [(scale, "A"), (lse, "A")], attributes, through=[])
        everything.append(sums(hidden, operands[1], operands[2][0], labels))

    def loss_of(given, labels, scale):
        losses = F.cross_entropy(logits, labels.flatten(), ignore_index=ignore, reduction="none")
        return losses.sum() * scale[0], lse, losses

    case("cross_entropy_of_parts", loss_of, [(torch.stack(everything), "A"), labels, (scale, "A")], {"ignore": ignore},
         through=[])


def optimizer():
    for shape in [(5,), (2, 3)]:
        for step, coefficient, decay in [(1, 1.0, 0.125), (7, 0.5, 0.0)]:
            lr = 0.0625

            def adamw(param, m, v, gradient, rate, at, coefficient, step=step, decay=decay):
                weight = torch.nn.Parameter(param.detach().clone())
                optim = torch.optim.AdamW([weight], lr=lr, betas=(0.75, 0.875), eps=1e-6, weight_decay=decay, foreach=False)
                optim.state[weight] = {"step": torch.tensor(float(step - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
                weight.grad = gradient * coefficient
                optim.step()
                state = optim.state[weight]
                return weight, state["exp_avg"], state["exp_avg_sq"]

            case("adamw", adamw,
                 [(draw(*shape), "A"), (draw(*shape), "A"), (draw(*shape, low=0.25, high=1), "A"), (draw(*shape), "A"),
                  (torch.tensor(lr), "A"), (torch.tensor(step), "i64"), (torch.tensor(coefficient), "A")],
                 {"beta1": 0.75, "beta2": 0.875, "eps": 1e-6, "weight_decay": decay}, through=[])
        for momentum, nesterov, decay in [(0.0, False, 0.125), (0.75, False, 0.0), (0.75, False, 0.125), (0.75, True, 0.125)]:
            def sgd(param, buffer, gradient, rate, coefficient, momentum=momentum, nesterov=nesterov, decay=decay):
                weight = torch.nn.Parameter(param.detach().clone())
                optim = torch.optim.SGD([weight], lr=0.125, momentum=momentum, nesterov=nesterov, weight_decay=decay, foreach=False)
                if buffer is not None:
                    optim.state[weight] = {"momentum_buffer": buffer.clone()}
                weight.grad = gradient * coefficient
                optim.step()
                return (weight,) if buffer is None else (weight, optim.state[weight]["momentum_buffer"])

            case("sgd", sgd,
                 [(draw(*shape), "A"), (draw(*shape), "A") if momentum else None, (draw(*shape), "A"),
                  (torch.tensor(0.125), "A"), (torch.tensor(0.5), "A")],
                 {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}, through=[])
        case("assign", lambda state, value, coefficient: value, [(draw(*shape), "A"), (draw(*shape), "A"), (torch.tensor(0.5), "A")],
             through=[])
    for most in (0.0, 0.5, 100.0):
        def norm_of(*gradients, most=most):
            leaves = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
            for leaf, gradient in zip(leaves, gradients):
                leaf.grad = gradient.clone()
            # PyTorch's own coefficient has 1e-6 in its denominator; the norm is what is taken from it.
            norm = torch.nn.utils.clip_grad_norm_(leaves, most or math.inf)
            return norm, torch.clamp(most / norm, max=1.0) if most else torch.tensor(1.0)

        case("global_norm", norm_of, [(draw(5), "A"), (draw(2, 3), "A"), (draw(), "A")], {"max_norm": most}, through=[])
    case("add_n", lambda *g: sum(g), [(draw(2, 3), "A"), (draw(2, 3), "A"), (draw(2, 3), "A")])


def distinct(*shape):
    """Multiples of 1/64, no two of a row equal."""
    rows = [torch.randperm(shape[-1], generator=generator) for _ in range(math.prod(shape[:-1]))]
    return (torch.stack(rows).reshape(shape) - shape[-1] // 2) / 64.0


def gather():
    for shape, k in [((5,), 2), ((3, 8), 1), ((2, 4, 6), 9)]:
        index = whole(*shape[:-1], k, low=0, high=shape[-1])
        case("gather", lambda x, index: x.gather(-1, index), [draw(*shape), index])

        def added(x, index, shape=shape):
            return torch.zeros(shape).scatter_add(-1, index, x)

        case("scatter_add", added, [draw(*shape[:-1], k), index], {"size": shape[-1]})


def scan():
    for shape, dim in [((7,), -1), ((3, 5), 0), ((3, 5), -1), ((2, 4, 3), 1)]:
        case("cumsum", lambda x, d=dim: x.cumsum(d), [draw(*shape)], {"dim": dim})
        case("cumsum", lambda x, d=dim: x.flip(d).cumsum(d).flip(d), [draw(*shape)], {"dim": dim, "reverse": True})


def experts():
    for shape, k in [((5,), 2), ((3, 8), 1), ((2, 4, 6), 3)]:
        case("top_k", lambda x, k=k: torch.topk(x, k, dim=-1), [distinct(*shape)], {"k": k})
    for samples, tokens, k, count, capacity, width in [(2, 5, 1, 3, 2, 4), (3, 6, 2, 4, 3, 5)]:
        chosen = torch.topk(distinct(samples, tokens, count), k, dim=-1).indices

        # As GShard does: one-hot choices, summed up along the tokens, first choices of all tokens before second ones.
        def slots(expert, count=count, capacity=capacity):
            one_hot = F.one_hot(expert, count).transpose(1, 2).flatten(1, 2)   # [b, k · t, e]
            place = ((one_hot.cumsum(1) - 1) * one_hot).sum(-1).unflatten(1, (k, tokens)).transpose(1, 2)
            return torch.where(place < capacity, expert * capacity + place, -1), F.one_hot(expert[..., 0], count).sum(1)

        case("expert_slots", slots, [chosen], {"experts": count, "capacity": capacity}, through=[])
        slot = slots(chosen)[0]
        there = {"experts": count, "capacity": capacity}

        def mask(slot, weight, places=count * capacity):   # [b, t, e · cap]
            return (F.one_hot(slot + 1, places + 1)[..., 1:] * weight.unsqueeze(-1)).sum(2)

        def dispatch(x, slot, weight=None, count=count):
            weight = torch.ones(slot.shape) if weight is None else weight
            return torch.einsum("btc,bts->sbc", x, mask(slot, weight)).unflatten(0, (count, -1)).transpose(1, 2)

        def combine(y, slot, weight=None):
            weight = torch.ones(slot.shape) if weight is None else weight
            return torch.einsum("sbc,bts->btc", y.transpose(1, 2).flatten(0, 1), mask(slot, weight))

        x, y = draw(samples, tokens, width), draw(count, samples, capacity, width)
        weight = (draw(samples, tokens, k, low=0), "A")
        for inputs in ([x, slot], [x, slot, weight]):
            case("dispatch", dispatch, inputs, there)
        for inputs in ([y, slot], [y, slot, weight]):
            case("combine", combine, inputs)


def main():
    FOLDER.mkdir(exist_ok=True)
    families = [elementwise, shape, reduce, softmax, matmul, norm, rotary, attention, embedding, loss, optimizer, conv, pool,
                experts, gather, scan]
    total = 0
    for seed, family in enumerate(families):
        if sys.argv[1:] and family.__name__ not in sys.argv[1:]:
            continue
        generator.manual_seed(seed)
        cases.clear()
        family()
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        path = FOLDER / f"{family.__name__}.json"
        path.write_text(f'{{"pytorch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')
        total += path.stat().st_size
        print(f"{path.name}: {len(cases)} cases, {path.stat().st_size} bytes")
    print(f"{total} bytes")


if __name__ == "__main__":
    sys.exit(main())
