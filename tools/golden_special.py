#!/usr/bin/env python3
"""Writes PyTorch's results for NaN, infinities, signed zeros, the largest number and subnormal numbers, for every op:
crates/tensor/tests/goldens/special_values.safetensors.

    python3 tools/golden_special.py    # needs torch, no GPU

Everything is computed in float32 on the CPU, because overflow is part of the result. Names number inputs and results:

    <case>.in.<i>      an input (float32, or int32 for ids, targets and masks)
    <case>.out.<i>     a result; int32 for indices and comparisons
    <case>.dout.<i>    the upstream gradient of that result
    <case>.grad.<i>    the gradient of that input, for each that has one
    __metadata__       <case> -> JSON: "op" as in the library's table of ops, and the op's own attributes; "wide": false if
                       float64 has another result, because an intermediate result overflows or underflows only in float32;
                       "gradient": false if PyTorch's own kernels disagree about the gradient; "relative": the relative
                       rounding error that is allowed
"""
import json
import math
import warnings
import zlib

import torch
import torch.nn.functional as F

from golden import OUT, write

NAN, INF, MAX, MIN, SUB = math.nan, math.inf, torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny, 1e-40
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, MAX, -MAX, SUB, -SUB, MIN, -MIN, 1.0, -1.0, 0.5, -3.5]
TENSORS, META = {}, {}
HALF = ["f16", "bf16"]


def case(name, op, fn, inputs, douts=None, grads=None, **attrs):
    """Adds a case. `fn` of the inputs returns a tensor or a tuple. Gradients are computed for all float inputs, or for those in `grads`."""
    assert name not in META, name
    if attrs.get("gradient") is False:
        grads = []
    given = [t.clone() for t in inputs]
    floats = [i for i, t in enumerate(given) if t.is_floating_point()] if grads is None else grads
    for i in floats:
        given[i].requires_grad_()
    outs = fn(*[t.long() if t.dtype == torch.int32 else t for t in given])
    outs = outs if isinstance(outs, tuple) else (outs,)
    META[name] = json.dumps({"op": op, **attrs})
    for i, t in enumerate(inputs):
        TENSORS[f"{name}.in.{i}"] = t
    for i, t in enumerate(outs):
        TENSORS[f"{name}.out.{i}"] = t.float() if t.is_floating_point() else t.to(torch.int32)
    followed = [t for t in outs if t.requires_grad]
    if not followed or not floats:
        return
    douts = [torch.ones_like(t) for t in followed] if douts is None else douts
    for i, t in enumerate(douts):
        TENSORS[f"{name}.dout.{i}"] = t.float()
    for i, t in zip(floats, torch.autograd.grad(followed, [given[i] for i in floats], douts, allow_unused=True)):
        if t is not None:
            TENSORS[f"{name}.grad.{i}"] = t


def random(name, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def rows(width, pairs=True):
    """Returns rows with one special value each among ordinary ones, at a varying position, then rows of one value and of two."""
    out = random("rows", len(SPECIAL), width)
    for i, v in enumerate(SPECIAL):
        out[i, i * 7 % width] = v
    whole = [NAN, INF, -INF, 0.0, -0.0, SUB, MAX, -MAX]
    out = [out, torch.tensor(whole)[:, None].expand(-1, width)]
    if pairs:
        two = random("pairs", 5, width)
        for row, (a, b) in zip(two, [(INF, -INF), (NAN, INF), (-INF, -INF), (NAN, -INF), (INF, INF)]):
            row[1], row[width - 2] = a, b
        two[2] = -INF
        two[2, 3] = 1.0                                  # all but one hidden
        out += [two, torch.tensor([-0.0, 0.0]).repeat(width)[None, :width]]
    return torch.cat(out)


class Gelu(torch.autograd.Function):
    """GELU in float64, because PyTorch's float32 GELU on CPUs is off by 1e-4 and NaN at infinity, unlike its other kernels. At the
    largest number, where float32's intermediate results overflow, the derivative is that of float32."""

    @staticmethod
    def forward(ctx, x, approximate):
        ctx.save_for_backward(x)
        ctx.approximate = approximate
        return F.gelu(x.double(), approximate=approximate).float()

    @staticmethod
    def backward(ctx, dy):
        grads = []
        for dtype in (torch.float64, torch.float32):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].to(dtype).requires_grad_()
                grads += torch.autograd.grad(F.gelu(x, approximate=ctx.approximate), x, dy.to(dtype))
        return torch.where(ctx.saved_tensors[0].abs() == MAX, grads[1], grads[0].float()), None


class LogSumExp(torch.autograd.Function):
    """PyTorch's gradient is exp(x - y). Close to the largest number, y equals the maximum, and the gradient would sum to the number of
    elements; there, the softmax is used."""

    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y = (t[:, None] if t.dim() == 1 else t for t in ctx.saved_tensors)
        return dy[:, None] * torch.where(y.abs() == MAX, x.softmax(-1), (x - y).exp())


def unary():
    def one(row, fn, scalars=(), half=True, **attrs):
        x = torch.tensor(SPECIAL)
        name = "_".join([row, *(str(s) for s in scalars)])
        case(f"unary/{name}", "elementwise::Unary", fn, [x], row=row, scalars=list(scalars), **attrs)
        # Special gradients of ordinary inputs, and ordinary gradients of special inputs.
        cross = torch.cartesian_prod(torch.tensor([-1.5, -0.0, 0.0, 0.5, 2.0, NAN]), torch.tensor([NAN, INF, -INF, 0.0, -0.0, -2.0]))
        x, dy = cross.T.contiguous()
        case(f"unary/{name}_gradient", "elementwise::Unary", fn, [x], [dy], row=row, scalars=list(scalars), **attrs)
        if half:
            x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, 3.5, -3.5])
            case(f"unary/{name}_half", "elementwise::Unary", fn, [x], row=row, scalars=list(scalars), dtypes=HALF, **attrs)

    one("neg", torch.neg)
    one("leaky_relu", lambda x: F.leaky_relu(x, 0.1), (0.1,))
    one("elu", lambda x: F.elu(x, 1.5), (1.5,), gradient=False)     # that of NaN follows from the place within a vector
    one("softplus", F.softplus)
    one("hard_swish", F.hardswish, wide=False, gradient=False)      # as elu
    one("mish", F.mish, gradient=False)                            # NaN at infinity, where it is 1
    one("exp", torch.exp)
    one("log", torch.log)
    one("sqrt", torch.sqrt)
    one("rsqrt", torch.rsqrt)
    one("tanh", torch.tanh)
    one("sigmoid", torch.sigmoid)
    one("relu", torch.relu)
    one("silu", F.silu)
    one("gelu", lambda x: Gelu.apply(x, "none"), relative=1e-4)    # 1 + erf(-3.5) has lost four digits in float32
    one("gelu_tanh", lambda x: Gelu.apply(x, "tanh"))
    one("abs", torch.abs)
    one("square", torch.square)
    one("sin", torch.sin)
    one("cos", torch.cos)
    for s in (1.5, 0.0, -0.0, INF):
        one("add_scalar", lambda x: x + s, [s] if s != INF else ["inf"], half=False)
    for s in (-2.5, 0.0):
        one("mul_scalar", lambda x: x * s, [s], half=False)
    one("rsub_scalar", lambda x: 1.0 - x, [1.0], half=False)
    for s in (2.0, 0.0):
        one("rdiv_scalar", lambda x: torch.tensor(s) / x, [s], half=False)
    for s in (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.7, 2.5, 4.0, 5.0, -3.0):
        one("pow_scalar", lambda x: x ** s, [s], half=s == 1.7)
    for low, high in ((-5.0, 2.9), (0.0, 1.0), (2.0, 1.0)):
        one("clamp", lambda x: x.clamp(low, high), [low, high], half=low == 0)
    one("clamp", lambda x: x.clamp(-INF, 1.0), ["-inf", 1.0], half=False)
    one("clamp", lambda x: x.clamp(-1.0, NAN), [-1.0, "nan"], half=False)
    one("clamp", lambda x: x.clamp(NAN, 1.0), ["nan", 1.0], half=False)


def binary():
    a, b = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL)).T.contiguous()
    h, k = torch.cartesian_prod(*[torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -0.5, 3.5])] * 2).T.contiguous()
    dy = torch.tensor([1.0, -2.0, 3.0]).repeat(len(a))[:len(a)]
    for row in ("add", "sub", "mul", "div", "maximum", "minimum", "pow"):
        fn = getattr(torch, row)
        case(f"binary/{row}", "elementwise::Binary", fn, [a, b], [dy], row=row)
        case(f"binary/{row}_half", "elementwise::Binary", fn, [h, k], row=row, dtypes=HALF)
    for row in ("eq", "lt", "le", "gt", "ge"):
        case(f"compare/{row}", "comparison", getattr(torch, row), [a, b], grads=[], row=row)


def views():
    x = torch.tensor(SPECIAL + [NAN])
    case("reshape", "view::Reshape", lambda x: x.reshape(4, 4), [x], [x.reshape(4, 4)], shape=[4, 4])
    case("permute", "view::Permute", lambda x: x.T, [x.reshape(2, 8)], [x.reshape(8, 2)], axes=[1, 0])
    case("slice", "view::Slice", lambda x: x[2:9], [x], [x[2:9]], start=2, end=9)
    case("expand", "view::Expand", lambda x: x.expand(3, 16), [x.reshape(1, 16)],
         [torch.stack([x, torch.ones(16), torch.ones(16)])], shape=[3, 16])
    case("cat", "join::Cat", lambda *x: torch.cat(x), [x, -x, x[:3]], [torch.cat([x, x, x[:3]])])
    near = torch.tensor([65504.0, 65519.0, 65520.0, 7e4, 6e-8, 2.9e-8, 1e-8, -1e-8, 3.3e38, 3.4e38, 1e-5, 2049.0, 257.0])
    x = torch.cat([torch.tensor(SPECIAL), near, -near])
    for to, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        case(f"cast/{to}", "cast::Cast", lambda x: x.to(dtype), [x], [torch.ones_like(x).to(dtype)], to=to)
    mask = torch.tensor([1, 0, 0] * 5, dtype=torch.int32)
    x = torch.tensor(SPECIAL)
    case("where", "mask::Where", lambda m, a, b: torch.where(m.bool(), a, b), [mask, x, x.flip(0)], [x])
    case("where/float_mask", "mask::Where", lambda m, a, b: torch.where(m.bool(), a, b),
         [x, torch.ones(15), torch.zeros(15)], grads=[1, 2])
    for value in (-INF, 0.0):
        case(f"masked_fill/{value}", "mask::MaskedFill", lambda x, m: x.masked_fill(m.bool(), value), [x, mask], [x],
             value=str(value))
    ids = torch.tensor([0, 2, 1, 2, 4], dtype=torch.int32)
    table = torch.tensor(SPECIAL).reshape(5, 3)
    case("embedding", "embedding::Embedding", lambda t, i: F.embedding(i, t), [table, ids], [table.flip(0)])
    wide, places = torch.tensor(SPECIAL).reshape(1, 15), torch.tensor([[3, 0, 1, 14, 6, 7, 3]], dtype=torch.int32)
    case("gather", "gather::Gather", lambda x, i: x.gather(1, i), [wide, places], [wide[:, :7]])
    places = torch.tensor([[3, 0, 1, 14, 6, 7, 11]], dtype=torch.int32)
    case("scatter", "gather::Scatter", lambda x, i, s: x.scatter(1, i, s), [wide, places, wide[:, :7] * 2], [wide.flip(1)])
    case("scatter_add", "gather::ScatterAdd", lambda x, i, s: x.scatter_add(1, i, s), [wide, places, wide[:, 1:8]], [wide.flip(1)])
    before = torch.tensor([2], dtype=torch.int32)
    case("decode_embedding", "decode_embedding::DecodeEmbedding", lambda t, i, p, b: 2 * t[i] + p[b[0]:b[0] + i.shape[1]],
         [table, ids.reshape(1, -1), random("places", 2 + ids.numel(), table.shape[1]), before], grads=[], wide=False)
    # Rows 1 to 3 of a sequence in pages 2 and 0, with two rows each.
    pages, places = torch.tensor([2, 0], dtype=torch.int32), [(2, 1), (0, 0), (0, 1)]

    def appended(x, cache, pages):
        cache = cache.clone()
        for row, (page, at) in zip(x, places):
            cache[page, at] = row
        return cache

    held = torch.tensor(SPECIAL).repeat(4).reshape(3, 2, 2, 5)
    rows = torch.tensor(SPECIAL).repeat(2).reshape(3, 2, 5)
    case("cache_append", "paged_cache::CacheAppend", appended, [rows, held.flip(0), pages], grads=[], wide=False)
    case("cache_gather", "paged_cache::CacheGather", lambda c, p: torch.stack([c[page, at] for page, at in places]),
         [held, pages], grads=[], wide=False)


def reductions():
    x = rows(37)
    for axis, x in ((1, x), (0, x.T.contiguous())):
        for keep in (False, True):
            name = f"axis_{axis}{'_keep' if keep else ''}"
            attrs = {"axes": [axis], "keep": keep}
            case(f"max/{name}", "reduce::Max", lambda x: x.amax(axis, keep), [x], **attrs)
            if not keep:
                case(f"sum/{name}", "reduce::Sum", lambda x: x.sum(axis), [x], mean=False, **attrs)
                case(f"mean/{name}", "reduce::Sum", lambda x: x.mean(axis), [x], mean=True, wide=False, **attrs)
    case("max/whole", "reduce::Max", lambda x: x.amax((0, 1)), [torch.tensor([[1.0, NAN], [3.0, INF]])], axes=[0, 1], keep=False)
    half = torch.tensor([[1.0, NAN, 3.0], [-INF, -INF, -INF], [INF, 1.0, INF], [0.0, -0.0, -1.0]])
    case("max/half", "reduce::Max", lambda x: x.amax(1), [half], axes=[1], keep=False, dtypes=HALF)
    case("sum/half", "reduce::Sum", lambda x: x.sum(1), [half], axes=[1], keep=False, mean=False, dtypes=HALF)
    # 23 rows with at most one special value each: PyTorch does not define which of equal values topk returns.
    x = rows(37)
    case("argmax", "argmax::ArgMax", lambda x: x.argmax(-1), [x], grads=[])
    for descending in (False, True):
        case(f"sort/{descending}", "sort::Sort", lambda x: tuple(x.sort(stable=True, dim=-1, descending=descending)), [torch.tensor([SPECIAL, SPECIAL[::-1]])],
             [torch.tensor([SPECIAL[::-1], SPECIAL])], descending=descending)
    case("cumsum", "cumsum::CumSum", lambda x: x.cumsum(-1), [torch.tensor([[v, 1.0, -1.0, v, 2.0] for v in SPECIAL])],
         [torch.tensor([[1.0, 2.0, 3.0, v, 4.0] for v in SPECIAL])])
    case("topk", "topk::TopK", lambda x: x.topk(5).indices, [x[:len(SPECIAL)]], grads=[], k=5)


def softmaxes():
    x = rows(37)
    dy = random("softmax", *x.shape)
    for name, fn in (("softmax::Softmax", F.softmax), ("softmax::LogSoftmax", F.log_softmax)):
        case(name, name, lambda x: fn(x, -1), [x], [dy])
        case(f"{name}/narrow", name, lambda x: fn(x, -1), [x[:, :8].contiguous()], [dy[:, :8].contiguous()])
        half = torch.tensor([[1.0, NAN, 3.0], [-INF, -INF, -INF], [INF, 1.0, 0.0], [-INF, 1.0, 2.0]])
        case(f"{name}/half", name, lambda x: fn(x, -1), [half], dtypes=HALF)
    op, of_rows = "logsumexp::LogSumExp", LogSumExp.apply
    case("logsumexp", op, of_rows, [x], [dy[:, 0].contiguous()])
    case("logsumexp/narrow", op, of_rows, [x[:, :8].contiguous()], [dy[:, 0].contiguous()])
    case("logsumexp/half", op, of_rows, [half], dtypes=HALF)


def losses():
    x = rows(40)                                         # whole vectors of 16 bytes, so that rows can be held
    target = torch.arange(len(x), dtype=torch.int32) * 7 % 40
    target[1::5] = 3                                     # not always the special one
    for smoothing in (0.0, 0.1):
        attrs = {"smoothing": smoothing}
        def loss(x, t, reduction):
            return F.cross_entropy(x, t, label_smoothing=smoothing, reduction=reduction)
        case(f"cross_entropy/none_{smoothing}", "cross_entropy::CrossEntropy", lambda x, t: loss(x, t, "none"), [x, target],
             reduction="none", wide=smoothing == 0, **attrs)
        for v in [NAN, INF, -INF, SUB] + ([] if smoothing else [MAX, -MAX]):
            for at in (5, 11):                           # the target, and another class
                some = random("loss", 4, 40)
                some[2, at] = v
                t = torch.tensor([3, -100, 5, 39], dtype=torch.int32)
                case(f"cross_entropy/mean_{smoothing}_{v}_{at}", "cross_entropy::CrossEntropy", lambda x, t: loss(x, t, "mean"),
                     [some, t], reduction="mean", **attrs)
    for v in (NAN, INF, -INF, MAX, SUB, -0.0):
        for where in (0, 1):
            given = [random("linear_x", 4, 8), random("linear_w", 24, 8)]
            given[where][2, 3] = v
            t = torch.tensor([3, 0, 2, 23], dtype=torch.int32)
            case(f"linear_cross_entropy/{v}_{where}", "linear_cross_entropy::LinearCrossEntropy",
                 lambda x, w, t: F.cross_entropy(x @ w.T, t), [*given, t], wide=v != MAX)


def norms():
    n = 24
    gamma, beta, eps = random("gamma", n), random("beta", n), 1e-5
    for v in SPECIAL[:10] + ["zeros", "-zeros", "flat", "gamma", "tiny"]:
        x, g = random("norm", 3, n), gamma
        if v == "gamma":
            g = gamma.clone()
            g[3], g[5], g[7] = NAN, INF, -0.0
        elif v == "tiny":
            x[1] = SUB
        elif isinstance(v, str):
            x[1] = {"zeros": 0.0, "-zeros": -0.0, "flat": 3.0}[v]
        else:
            x[1, 5] = v
        dy = random("norm_dy", 3, n)
        attrs = {"eps": eps, "wide": v not in (MAX, -MAX)}
        layer = lambda x, g, b: F.layer_norm(x, (n,), g, b, eps)
        rms = lambda x, g: F.rms_norm(x, (n,), g, eps)
        case(f"layer_norm/{v}", "layer_norm::LayerNorm", layer, [x, g, beta], [dy], **attrs)
        # PyTorch's fused and composed gradients of a row whose squares overflow are 0 and NaN.
        overflows = {"gradient": False} if v in (MAX, -MAX) else {}
        case(f"rms_norm/{v}", "rms_norm::RmsNorm", rms, [x, g], [dy], **attrs, **overflows)
        if v == "gamma" or v not in (INF, -0.0, "zeros") and v == v:
            continue
        past = random("past", 3, n)
        case(f"residual_layer_norm/{v}", "residual_norm::ResidualLayerNorm", lambda x, g, b: (x * 1, layer(x, g, b)),
             [x, g, beta], [past, dy], **attrs)
        case(f"residual_rms_norm/{v}", "residual_norm::ResidualRmsNorm", lambda x, g: (x * 1, rms(x, g)), [x, g],
             [past, dy], **attrs)


def products():
    def each(name, op, fn, shapes, **attrs):
        for v in SPECIAL[:9] if name == "matmul" else [NAN, INF, -INF, -0.0, SUB]:
            for i in range(len(shapes)):
                given = [random(f"{name}{k}", *s) for k, s in enumerate(shapes)]
                given[i][tuple(min(1, n - 1) for n in shapes[i])] = v
                case(f"{name}/{v}_{i}", op, fn, given, wide=v not in (MAX, -MAX), **attrs)
    each("matmul", "matmul::MatMul", torch.matmul, [(5, 7), (7, 6)])
    each("linear", "matmul::Linear", lambda x, w, b: x @ w + b, [(5, 7), (7, 6), (6,)])
    each("linear_add", "feed_forward::LinearAdd", lambda r, x, w, b: r + (x @ w + b), [(5, 6), (5, 7), (7, 6), (6,)])
    each("linear_residual", "feed_forward::LinearResidual", lambda r, x, w: r + x @ w, [(5, 6), (5, 7), (7, 6)])
    def feed(r, x, w1, b1, w2, b2):
        return r + (F.gelu(x @ w1 + b1, approximate="tanh") @ w2 + b2)
    each("feed_forward", "feed_forward::FeedForward", feed, [(3, 4), (3, 4), (4, 8), (8,), (8, 4), (4,)])
    def fused(x, w, g, b, bias, r):
        gate, value = (F.layer_norm(x, (7,), g, b, 1e-5) @ w + bias).chunk(2, -1)
        return F.silu(gate) * value + r
    each("fused_linear", "fused_linear::FusedLinear", fused, [(5, 7), (7, 12), (7,), (7,), (12,), (5, 6)])


def gates():
    acts = {"silu": F.silu, "gelu_tanh": lambda x: Gelu.apply(x, "tanh"), "gelu": lambda x: Gelu.apply(x, "none"), "relu": F.relu}
    for act, fn in acts.items():
        # Every special gate with an ordinary value, and every special value with an ordinary gate.
        plain = random(f"gated_{act}", len(SPECIAL))
        for where, parts in {"gate": (torch.tensor(SPECIAL), plain), "value": (plain, torch.tensor(SPECIAL))}.items():
            x = torch.cat(parts)[None]
            case(f"gated/{act}_{where}", "gated::Gated", lambda x: fn(x[:, :len(SPECIAL)]) * x[:, len(SPECIAL):], [x],
                 [random("gated_dy", 1, len(SPECIAL))], act=act, wide=False)


def rotary():
    def rope(x, c, s):
        a, b, rest = x[..., :4], x[..., 4:8], x[..., 8:]
        return torch.cat([a * c - b * s, b * c + a * s, rest], -1)
    angles = random("rope_angles", 2, 4)
    for v in SPECIAL:
        x = random("rope", 1, 2, 10)
        x[0, 1, 2] = x[0, 0, 7] = x[0, 1, 9] = v
        case(f"rope/{v}", "rope::Rope", rope, [x, angles.cos(), angles.sin()], [random("rope_dy", 1, 2, 10)], grads=[0], wide=abs(v) != MAX)


def mixtures():
    """Ids are those of the largest logits: PyTorch's choice is arbitrary if all probabilities are NaN or equal."""
    some = rows(6)[:len(SPECIAL)]

    def route(x, k, renormalise):
        ids = x.topk(k).indices
        p = torch.softmax(x, -1).gather(-1, ids)
        return (p / p.sum(-1, keepdim=True) if renormalise else p), ids

    for renormalise in (True, False):
        case(f"route/{renormalise}", "route::Route", lambda x: route(x, 2, renormalise), [some], [random("route_dy", len(SPECIAL), 2)],
             k=2, renormalise=renormalise)
    dy = torch.tensor([[NAN, 1.0], [INF, 1.0], [1.0, -INF], [0.0, -0.0], [MAX, 1.0]])
    case("route/gradient", "route::Route", lambda x: route(x, 2, False), [random("route", 5, 6)], [dy], k=2, renormalise=False, wide=False)

    def balance(x, k):
        chosen = F.one_hot(x.topk(k).indices, x.shape[-1]).float().sum(1)
        return x.shape[-1] * (chosen.mean(0) * torch.softmax(x, -1).mean(0)).sum()

    for v in SPECIAL:
        x = random("balance", 5, 6)
        x[2, 1] = v
        case(f"balance_loss/{v}", "balance_loss::BalanceLoss", lambda x: balance(x, 2), [x], k=2)

    def mixed(x, ids, weights, gate_up, down):
        y = []
        for row, slots, shares in zip(x, ids, weights):
            gates = [(gate_up[e] @ row).chunk(2) for e in slots]
            y.append(sum(w * (down[e] @ (F.silu(g) * u)) for w, e, (g, u) in zip(shares, slots, gates)))
        return torch.stack(y)

    shapes = [(4, 6), None, (4, 2), (3, 10, 6), (3, 6, 5)]
    for v in (NAN, INF, -INF, -0.0, SUB):
        for i in (0, 2, 3, 4):
            given = [random(f"experts{j}", *shape) if shape else None for j, shape in enumerate(shapes)]
            given[1] = torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0]], dtype=torch.int32)
            given[i][(1,) * given[i].dim()] = v
            # The gradient of a weight is computed before or after its expert's output map, so infinities combine differently.
            attrs = {"gradient": False} if v in (INF, -INF) else {}
            case(f"experts/{v}_{i}", "experts::Experts", mixed, given, [random("experts_dy", 4, 6)], **attrs)


def decoding():
    D, room, p = 8, 6, 3
    angles = random("decode_angles", room, 4)
    angles = [angles.cos(), angles.sin()]

    def turned(x):
        a, b, (c, s) = x[:4], x[4:], [t[p] for t in angles]
        return torch.cat([a * c - b * s, b * c + a * s])

    def step(qkv, cache, *_):
        q, k, v = qkv[0, 0].split(D)
        cache = cache.clone()
        cache[0, p, 0], cache[0, p, 1] = turned(k), v
        scores = cache[0, :p + 1, 0] @ turned(q) / math.sqrt(D)
        return (torch.softmax(scores, -1) @ cache[0, :p + 1, 1])[None, None], cache

    def one(name, qkv, cache, **attrs):
        cache[0, p + 1:] = NAN                           # unwritten rows must not be read
        given = [qkv, cache, torch.tensor([p], dtype=torch.int32), *angles, torch.ones(D), torch.ones(D),
                 torch.zeros(1, 1, dtype=torch.int32)]
        case(f"decode_attention/{name}", "decode_attention::DecodeAttention", step, given, grads=[], **attrs)

    for v in SPECIAL[:5] + [SUB]:
        for place in range(3):
            qkv, cache = random("decode_qkv", 1, 1, 3 * D), random("decode_cache", 1, room, 2, D)
            qkv[0, 0, place * D + 2] = v
            one(f"new_{'qkv'[place]}_{v}", qkv, cache)
        for place in range(2):
            qkv, cache = random("decode_qkv", 1, 1, 3 * D), random("decode_cache", 1, room, 2, D)
            cache[0, 1, place, 2] = v
            one(f"cached_{'kv'[place]}_{v}", qkv, cache)
    for sign, name in ((-1.0, "below"), (1.0, "above")):
        qkv, cache = random("decode_qkv", 1, 1, 3 * D), random("decode_cache", 1, room, 2, D)
        qkv[0, 0, :D], qkv[0, 0, D:2 * D] = 1e25 * turned(torch.ones(D)), sign * 1e25 * turned(torch.ones(D))
        cache[0, :p, 0] = sign * 1e25 * turned(turned(torch.ones(D)))
        one(f"all_scores_{name}", qkv, cache, wide=False)


def attentions():
    T, D = 5, 8

    def composed(q, k, v, causal):
        scores = q @ k.mT / math.sqrt(D)
        if causal:
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -INF)
        return torch.softmax(scores, -1) @ v

    def one(name, q, k, v, causal, **attrs):
        fn = lambda q, k, v: composed(q, k, v, causal)
        dy = random("attention_dy", 1, 1, T, D)
        case(f"attention/{name}", "attention::Attention", fn, [q, k, v], [dy], causal=causal, **attrs)
        if not causal or "score" in name or "_v_" in name:
            return                                       # the same kernels
        qkv = torch.cat([t[0, 0] for t in (q, k, v)], -1)[None]
        case(f"attention_qkv/{name}", "attention::AttentionQkv",
             lambda x: composed(*[p[:, None] for p in x.split(D, -1)], causal)[:, 0], [qkv], [dy[:, 0]], causal=causal, **attrs)

    # Every query sees the first key. A key that a query does not see must not affect its result here, whatever its value;
    # PyTorch multiplies it by 0 or omits it, depending on the kernel.
    for causal in (False, True):
        kind = "causal" if causal else "full"
        for which in range(3):
            # Whether a score with the largest number overflows depends on the order of multiplications. For values that are not finite,
            # the gradients of PyTorch's kernels differ, because some take the sum over a row from the result.
            for v in SPECIAL[:5] + ([MAX, -MAX] if which == 2 else []) + [SUB]:
                given = [random(f"attention{i}", 1, 1, T, D) for i in range(3)]
                row = T - 1 if which == 0 else 0
                given[which][0, 0, row, 2] = v
                attrs = {"gradient": False} if which == 2 and not abs(v) < MAX else {}
                if (which, causal, v) == (1, True, -INF):
                    attrs = {"gradient": False}          # 0 times NaN of a row with one key, for the others' gradients
                one(f"{kind}_{'qkv'[which]}_{v}", *given, causal, **attrs)
        for sign, name in ((-1.0, "below"), (1.0, "above")):
            q, k, v = [random(f"attention{i}", 1, 1, T, D) for i in range(3)]
            q[0, 0, 3], k[0, 0] = 1e25, sign * 1e25      # every score of a row overflows
            one(f"{kind}_all_scores_{name}", q, k, v, causal, wide=False, gradient=False)
            q, k, v = [random(f"attention{i}", 1, 1, T, D) for i in range(3)]
            q[0, 0, 4], k[0, 0, 1] = 1e25, sign * 1e25   # one does
            q[0, 0, 4, 1:] = 0.0
            k[0, 0, 0], k[0, 0, 2:] = 1e-25, 1e-25
            one(f"{kind}_one_score_{name}", q, k, v, causal, wide=False, gradient=False)
            q, k, v = [random(f"attention{i}", 1, 1, T, D) for i in range(3)]
            q[0, 0, 2] = sign * 1e16                     # large, without overflow
            k[0, 0] *= 1e16
            one(f"{kind}_scores_of_1e32_{name}", q, k, v, causal, gradient=False)
            q, k, v = [random(f"attention{i}", 1, 1, T, D) for i in range(3)]
            q[0, 0, 2, 0], q[0, 0, 2, 1:], k[0, 0, :, 0] = sign * 1e16, 0.0, 1e16
            one(f"{kind}_equal_scores_of_1e32_{name}", q, k, v, causal, wide=False, gradient=False)


def images():
    """Images with a special value each. Weights are ordinary, because padding is not a pixel and PyTorch's kernels differ about 0 times a special
    value.
    """
    finite = [0.0, -0.0, SUB, MIN, 0.5]
    values = [NAN, INF, -INF, *finite]
    x = random("images", len(values), 2, 5, 4)
    for i, v in enumerate(values):
        x[i, 0, i % 5, i % 4] = v
    w, b = random("kernels", 3, 2, 3, 3), random("biases", 3)
    case("conv2d/values", "conv::Conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), [x, w, b])
    t = random("transposed", 2, 3, 3, 3)
    case("conv_transpose2d/values", "conv::ConvTranspose2d", lambda x, w, b: F.conv_transpose2d(x, w, b), [x, t, b])
    case("max_pool2d/values", "pool::MaxPool2d", lambda x: F.max_pool2d(x, 2), [x])
    a, b = torch.tensor(SPECIAL).repeat_interleave(5).reshape(15, 5), torch.tensor([-0.0, 1.0, -1.0, INF, -INF]).repeat(15, 1)
    case("add_relu", "add_relu::AddRelu", lambda a, b: F.relu(a + b), [a, b])
    case("avg_pool2d/values", "pool::AvgPool2d", lambda x: F.avg_pool2d(x, 2), [x])

    def normed(x, gamma, beta):
        mean, var = x.mean((0, 2)), x.var((0, 2), unbiased=False)
        return F.batch_norm(x, None, None, gamma, beta, training=True), mean, var

    x = random("channels", 3, len(values), 4)
    for i, v in enumerate(values):
        x[1, i, 2] = v
    x[:, -1] = 0.25                                      # without spread
    gamma, beta = random("gamma", len(values)), random("beta", len(values))
    case("batch_norm/values", "batch_norm::BatchNorm", normed, [x, gamma, beta], gradient=False)


def optimizers():
    """in.0 the parameter, in.1 two given gradients; out.0 the parameter after each step."""
    for kind, attrs in ((torch.optim.AdamW, {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}),
                        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})):
        grads = torch.stack([torch.tensor(SPECIAL), torch.ones(len(SPECIAL))])
        param = torch.nn.Parameter(random("optimizer", len(SPECIAL)))
        start, opt, out = param.detach().clone(), kind([param], **attrs), []
        for g in grads:
            param.grad = g.clone()
            opt.step()
            out.append(param.detach().clone())
        name = f"optimizer/{kind.__name__}"
        META[name] = json.dumps({"op": "optimizer::Update", "rule": kind.__name__, **attrs})
        TENSORS.update({f"{name}.in.0": start, f"{name}.in.1": grads, f"{name}.out.0": torch.stack(out)})


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for fn in (unary, binary, views, reductions, softmaxes, losses, norms, products, gates, rotary, mixtures, decoding, attentions, images, optimizers):
        fn()
    write(OUT / "special_values.safetensors", TENSORS, META)
    print(f"{len(META)} cases, torch {torch.__version__}")


if __name__ == "__main__":
    main()
