#!/usr/bin/env python3
"""Writes the PyTorch goldens that the op suite reads: crates/tensor/tests/goldens/<op>.safetensors.

    python3 tools/golden.py            # needs torch, no GPU; same bytes on every run with the same torch

Inputs are float32. Outputs and gradients are computed in float64 from those inputs and rounded once, so a
golden is the correct result instead of another float32 result. A file has the cases of one op:

    <case>.in.<name>     an input (float32, or int32 for ids and targets)
    <case>.out           the output; an op with several has <case>.out.<name>
    <case>.dout          the upstream gradient, of out's shape
    <case>.grad.<name>   the gradient of that input
    __metadata__         <case> -> JSON of the attributes (eps, causal, lr, ...)
"""
import json
import math
import pathlib
import struct
import zlib

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/tensor/tests/goldens"
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.int32: "I32"}


def write(path, tensors, metadata):
    """Writes a safetensors file with sorted keys. The library's own writer keeps metadata in a hash map, so its bytes vary."""
    header, blobs, at = {"__metadata__": dict(sorted(metadata.items()))}, [], 0
    for name, t in sorted(tensors.items()):
        t = t.detach().contiguous()
        blob = bytes(t.flatten().view(torch.uint8).numpy()) if t.numel() else b""
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes, {len(tensors)} tensors")


class Goldens:
    """Cases of one op, with a generator seeded by its name."""

    def __init__(self, op):
        self.op, self.tensors, self.meta = op, {}, {}
        self.rng = torch.Generator().manual_seed(zlib.crc32(op.encode()))

    def randn(self, *shape, scale=1.0, shift=0.0):
        return torch.randn(shape, generator=self.rng) * scale + shift

    def randint(self, high, *shape):
        return torch.randint(high, shape, generator=self.rng, dtype=torch.int32)

    def put(self, name, t):
        self.tensors[name] = t if t.dtype == torch.int32 else t.float()

    def case(self, name, fn, attrs=None, **inputs):
        """Adds a case. fn gets the inputs in float64 (ids in int64) and returns the output; gradients are computed for every float input."""
        self.meta[name] = json.dumps(attrs or {})
        wide = {k: t.long() if t.dtype == torch.int32 else t.double().requires_grad_() for k, t in inputs.items()}
        out = fn(**wide)
        dout = self.randn(*out.shape)
        floats = [k for k, t in wide.items() if t.requires_grad]
        grads = torch.autograd.grad(out, [wide[k] for k in floats], dout.double())
        for k, t in inputs.items():
            self.put(f"{name}.in.{k}", t)
        for k, g in zip(floats, grads):
            self.put(f"{name}.grad.{k}", g)
        self.put(f"{name}.out", out)
        self.put(f"{name}.dout", dout)

    def save(self):
        write(OUT / f"{self.op}.safetensors", self.tensors, self.meta)


def matmul():
    g = Goldens("matmul")

    def one(name, a, b, ta=False, tb=False):
        # ta, tb: the operand, and its values and gradient here, are transposed in the last two axes
        def fn(a, b):
            return (a.mT if ta else a) @ (b.mT if tb else b)
        g.case(name, fn, {"ta": ta, "tb": tb}, a=a, b=b)

    one("nn", g.randn(5, 7), g.randn(7, 3))
    one("nt", g.randn(5, 7), g.randn(3, 7), tb=True)
    one("tn", g.randn(7, 5), g.randn(7, 3), ta=True)
    one("tt", g.randn(7, 5), g.randn(3, 7), ta=True, tb=True)
    one("wide", g.randn(33, 65), g.randn(65, 17))
    one("tile", g.randn(64, 32), g.randn(32, 48))
    one("one", g.randn(1, 1), g.randn(1, 1))
    one("row", g.randn(1, 130), g.randn(130, 9))
    one("shared", g.randn(3, 4, 6), g.randn(6, 5))
    one("batch", g.randn(3, 4, 6), g.randn(3, 6, 5))
    one("batch_nt", g.randn(3, 4, 6), g.randn(3, 5, 6), tb=True)
    one("four", g.randn(2, 3, 4, 6), g.randn(2, 3, 6, 5))
    one("four_tn", g.randn(2, 3, 6, 4), g.randn(2, 3, 6, 5), ta=True)
    one("broadcast", g.randn(2, 1, 4, 6), g.randn(1, 3, 6, 5))
    g.save()


def linear():
    g = Goldens("linear")                                # weight is (out, in), as torch.nn.Linear stores it
    g.case("bias", F.linear, {"bias": True}, input=g.randn(2, 5, 12), weight=g.randn(9, 12), bias=g.randn(9))
    g.case("plain", F.linear, {"bias": False}, input=g.randn(6, 12), weight=g.randn(20, 12))
    g.save()


def attention():
    g = Goldens("attention")

    def one(name, q, k, v, causal, scale=None):
        """q (B,H,T,D), k and v (B,G,S,D); query head h reads key head h / (H / G)."""
        def fn(q, k, v):
            r = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        d = q.shape[-1]
        g.case(name, fn, {"causal": causal, "scale": scale if scale else 1 / math.sqrt(d)}, q=q, k=k, v=v)

    def heads(b, h, kv, t, s, d):
        return g.randn(b, h, t, d), g.randn(b, kv, s, d), g.randn(b, kv, s, d)

    # Each head size, causal or not, needs a compiled kernel: the op's own samples also use 8, 20 and 256.
    one("causal_d64", *heads(1, 2, 2, 33, 33, 64), causal=True)
    one("causal_d13", *heads(1, 2, 2, 21, 21, 13), causal=True)
    one("batches", *heads(2, 3, 3, 17, 17, 8), causal=True)
    one("full_d20", *heads(1, 2, 2, 16, 16, 20), causal=False)
    one("cross_d20", *heads(2, 2, 2, 5, 11, 20), causal=False)
    one("gqa", *heads(1, 6, 2, 19, 19, 8), causal=True)
    one("mqa", *heads(2, 4, 1, 9, 9, 8), causal=True)
    one("scaled", *heads(1, 1, 1, 12, 12, 8), causal=True, scale=0.25)
    one("one_token", *heads(1, 2, 2, 1, 1, 8), causal=True)
    one("d256", *heads(1, 1, 1, 7, 7, 256), causal=True)
    q, k, v = heads(1, 2, 2, 24, 24, 8)
    one("large", q * 12, k * 12, v, causal=True)          # scores in the hundreds: the maximum must be subtracted
    g.save()


def norms():
    g = Goldens("layer_norm")

    def layer(name, x, eps=1e-5):
        n = x.shape[-1]
        g.case(name, lambda x, gamma, beta: F.layer_norm(x, (n,), gamma, beta, eps), {"eps": eps},
               x=x, gamma=g.randn(n, scale=0.5, shift=1.0), beta=g.randn(n))

    layer("small", g.randn(2, 3, 8))
    layer("odd", g.randn(5, 37))
    layer("gpt2", g.randn(3, 768))
    layer("offset", g.randn(3, 256, shift=1000.0))        # here, E[x^2] - mean^2 in float32 does not have correct digits
    layer("flat", torch.full((2, 16), 3.0))               # variance 0: rstd is 1/sqrt(eps)
    layer("eps", g.randn(4, 12, scale=1e-3), eps=1e-3)
    g.save()
    g = Goldens("rms_norm")

    def rms(name, x, eps=1e-6):
        n = x.shape[-1]
        g.case(name, lambda x, gamma: F.rms_norm(x, (n,), gamma, eps), {"eps": eps},
               x=x, gamma=g.randn(n, scale=0.5, shift=1.0))

    rms("small", g.randn(2, 3, 8))
    rms("odd", g.randn(5, 37))
    rms("llama", g.randn(3, 288), eps=1e-5)
    rms("zero", torch.zeros(2, 16))
    g.save()


def cross_entropy():
    g = Goldens("cross_entropy")

    def one(name, logits, target, **attrs):
        attrs = {"reduction": "mean", "label_smoothing": 0.0, "ignore_index": -100, **attrs}
        g.case(name, lambda logits, target: F.cross_entropy(logits, target, **attrs), attrs,
               logits=logits, target=target)

    some = g.randint(11, 8)
    some[2] = some[5] = -100
    one("mean", g.randn(6, 11), g.randint(11, 6))
    one("gpt", g.randn(12, 65, scale=3.0), g.randint(65, 12))
    one("wide", g.randn(3, 1031), g.randint(1031, 3))
    one("ignore", g.randn(8, 11), some)
    one("smooth", g.randn(6, 11), g.randint(11, 6), label_smoothing=0.1)
    one("smooth_ignore", g.randn(8, 11), some, label_smoothing=0.2)
    one("pad_zero", g.randn(7, 5), torch.tensor([0, 1, 4, 0, 2, 3, 0], dtype=torch.int32), ignore_index=0)
    one("sum", g.randn(6, 11), g.randint(11, 6), reduction="sum")
    one("none", g.randn(6, 11), g.randint(11, 6), reduction="none")
    one("large", g.randn(4, 9, scale=300.0), g.randint(9, 4))
    g.save()


def pointwise():
    g = Goldens("gelu")
    ends = torch.tensor([0.0, -0.0, 1e-6, -1e-6, 0.5, -0.5, 3, -3, 6, -6, 12, -12, 100, -100])
    for approximate in ("none", "tanh"):
        for name, x in (("randn", g.randn(7, 13, scale=2.0)), ("ends", ends)):
            g.case(f"{'erf' if approximate == 'none' else 'tanh'}_{name}",
                   lambda x, a=approximate: F.gelu(x, approximate=a), {"approximate": approximate}, x=x)
    g.save()
    for op, fn in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        g = Goldens(op)

        def one(name, x, dim):
            g.case(name, lambda x: fn(x, dim), {"dim": dim}, x=x)
        one("last", g.randn(3, 4, 9), -1)
        one("middle", g.randn(3, 5, 4), 1)
        one("first", g.randn(6, 7), 0)
        one("long", g.randn(2, 1025), -1)
        one("one", g.randn(4, 1), -1)
        one("large", g.randn(3, 16, scale=400.0), -1)
        if op == "softmax":
            masked = g.randn(4, 10)
            masked[0, 3:] = masked[2, :9] = float("-inf")
            one("masked", masked, -1)
        g.save()


def embedding():
    g = Goldens("embedding")
    g.case("gpt", lambda weight, ids: F.embedding(ids, weight), weight=g.randn(17, 12), ids=g.randint(17, 3, 8))
    g.case("repeat", lambda weight, ids: F.embedding(ids, weight), weight=g.randn(5, 7),
           ids=torch.tensor([1, 1, 1, 4, 1, 0, 4], dtype=torch.int32))
    g.save()


def optimizers():
    """in.param and in.grads (3, ...): three given gradients; out (3, ...): the parameter after each step."""
    g = Goldens("optim")

    def one(name, kind, **attrs):
        param, grads = g.randn(5, 7), g.randn(3, 5, 7)
        grads[:, 0, :3] = 0.0                             # a weight without gradient still decays
        p = torch.nn.Parameter(param.double())
        opt, out = kind([p], **attrs), []
        for grad in grads:
            p.grad = grad.double()
            opt.step()
            out.append(p.detach().clone())
        g.meta[name] = json.dumps({"optimizer": kind.__name__, **attrs})
        g.put(f"{name}.in.param", param)
        g.put(f"{name}.in.grads", grads)
        g.put(f"{name}.out", torch.stack(out))

    o = torch.optim
    one("adamw", o.AdamW, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    one("adamw_default", o.AdamW, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    one("adamw_eps", o.AdamW, lr=1e-2, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.0)
    one("adam", o.Adam, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    one("adam_l2", o.Adam, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    one("sgd", o.SGD, lr=0.1)
    one("sgd_momentum", o.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    one("sgd_dampening", o.SGD, lr=0.1, momentum=0.9, dampening=0.5)
    one("sgd_nesterov", o.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    g.save()


def clip():
    """in.<i>: gradients; out: their norm before clipping; out.<i>: the gradients after it."""
    g = Goldens("clip_grad_norm")
    for name, max_norm, scale in (("above", 1.0, 1.0), ("below", 1e3, 1.0), ("tiny", 1.0, 1e-4), ("zero", 1.0, 0.0)):
        grads = [g.randn(*s, scale=scale) for s in ((4, 6), (6,), (3, 2, 5))]
        params = [torch.nn.Parameter(torch.zeros_like(t, dtype=torch.float64)) for t in grads]
        for p, t in zip(params, grads):
            p.grad = t.double()
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        g.meta[name] = json.dumps({"max_norm": max_norm})
        g.put(f"{name}.out", norm)
        for i, (p, t) in enumerate(zip(params, grads)):
            g.put(f"{name}.in.{i}", t)
            g.put(f"{name}.out.{i}", p.grad)
    g.save()


def schedules():
    """out: float64, the learning rate of step 0, 1, ... Each case names its formula."""
    g = Goldens("schedules")

    def nanogpt(it, lr, min_lr, warmup, decay):          # nanoGPT's get_lr
        if it < warmup:
            return lr * (it + 1) / (warmup + 1)
        if it > decay:
            return min_lr
        return min_lr + 0.5 * (1 + math.cos(math.pi * (it - warmup) / (decay - warmup))) * (lr - min_lr)

    def put(name, values, **attrs):
        g.meta[name] = json.dumps(attrs)
        g.tensors[f"{name}.out"] = torch.tensor(values, dtype=torch.float64)

    def by_torch(factor, lr, count):                     # learning rates of torch.optim.lr_scheduler.LambdaLR with a factor
        opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        schedule, out = torch.optim.lr_scheduler.LambdaLR(opt, factor), []
        for _ in range(count):
            out.append(opt.param_groups[0]["lr"])
            opt.step()
            schedule.step()
        return out

    for name, lr, low, warm, decay, n in (("cosine_nanogpt", 6e-4, 6e-5, 10, 100, 120),
                                          ("cosine_nanogpt_cold", 1e-3, 1e-4, 0, 50, 60)):
        put(name, [nanogpt(i, lr, low, warm, decay) for i in range(n)], schedule="cosine", lr=lr, min_lr=low,
            warmup=warm, decay=decay, warmup_factor="(step + 1) / (warmup + 1)")

    def warm(i, warmup):
        return i / max(1, warmup) if i < warmup else None

    forms = {
        "cosine": lambda i, w, n: max(0.0, 0.5 * (1 + math.cos(math.pi * (i - w) / max(1, n - w)))),
        "linear": lambda i, w, n: max(0.0, (n - i) / max(1, n - w)),
        "constant": lambda i, w, n: 1.0,
    }
    for kind, form in forms.items():
        for w in (0, 10):
            def factor(i, w=w, form=form):
                up = warm(i, w)
                return form(i, w, 60) if up is None else up
            put(f"{kind}_lambda_{w}", by_torch(factor, 3e-4, 70), schedule=kind, lr=3e-4, min_lr=0.0, warmup=w,
                decay=60, warmup_factor="step / warmup")
    g.save()


def mixtures():
    """Routers and experts as in transformers' Mixtral and Qwen3-MoE, and their load_balancing_loss_func."""
    def shares(logits, k, renormalise):
        p, ids = torch.softmax(logits, -1).topk(k)
        return (p / p.sum(-1, keepdim=True) if renormalise else p), ids

    g = Goldens("route")
    for name, shape, k in (("mixtral", (2, 7, 8), 2), ("qwen", (5, 60), 8), ("all", (3, 4), 4), ("one", (3, 5), 1)):
        for renormalise in (True, False):
            logits = g.randn(*shape, scale=2.0)
            ids = shares(logits.double(), k, renormalise)[1].to(torch.int32)
            g.case(f"{name}_{'shares' if renormalise else 'probabilities'}", lambda logits, ids: shares(logits, k, renormalise)[0],
                   {"k": k, "renormalise": renormalise}, logits=logits, ids=ids)
    g.save()

    def balance(logits, k):
        rows = logits.reshape(-1, logits.shape[-1])
        p = torch.softmax(rows, -1)
        chosen = F.one_hot(p.topk(k).indices, rows.shape[-1]).to(p.dtype).sum(1)
        return rows.shape[-1] * (chosen.mean(0) * p.mean(0)).sum()

    g = Goldens("balance_loss")
    for name, shape, k, scale in (("layers", (3, 14, 8), 2, 1.0), ("many", (40, 60), 8, 1.0), ("sure", (9, 4), 1, 20.0)):
        g.case(name, lambda logits: balance(logits, k), {"k": k}, logits=g.randn(*shape, scale=scale))
    g.save()

    gates = {"silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}

    def mixed(x, ids, weights, gate_up, down, gate):
        y = torch.zeros_like(x)
        for e in range(len(gate_up)):
            token, slot = torch.where(ids == e)
            g, u = F.linear(x[token], gate_up[e]).chunk(2, -1)
            y = y.index_add(0, token, F.linear(gates[gate](g) * u, down[e]) * weights[token, slot, None])
        return y

    g = Goldens("experts")
    for name, (n, k, e, c, h), gate in (("mixtral", (14, 2, 4, 12, 10), "silu"), ("odd", (9, 3, 5, 7, 5), "gelu_tanh"),
                                        ("relu", (5, 2, 3, 8, 4), "relu"), ("one", (1, 1, 2, 4, 3), "silu")):
        logits = g.randn(n, e)
        weights, ids = shares(logits, k, True)
        if name == "mixtral":
            ids[ids == 2] = 9                            # an expert without tokens, and ids that are not experts
        g.case(name, lambda x, ids, weights, gate_up, down: mixed(x, ids, weights, gate_up, down, gate), {"gate": gate},
               x=g.randn(n, c), ids=ids.to(torch.int32), weights=weights, gate_up=g.randn(e, 2 * h, c), down=g.randn(e, c, h))
    g.save()


def images():
    g = Goldens("conv2d")
    for name, x, w, bias, attrs in (
        ("padded", (2, 3, 7, 6), (5, 3, 3, 3), True, {"padding": [1, 1]}),
        ("strided", (1, 4, 9, 8), (6, 4, 3, 2), False, {"stride": [2, 3], "padding": [1, 0]}),
        ("dilated", (1, 2, 11, 10), (3, 2, 3, 3), True, {"dilation": [2, 3], "padding": [2, 1]}),
        ("groups", (2, 6, 5, 7), (4, 3, 2, 3), True, {"groups": 2, "stride": [1, 2]}),
        ("depthwise", (1, 5, 8, 7), (5, 1, 3, 3), True, {"groups": 5, "stride": [2, 2], "padding": [1, 1]}),
        ("multiplied", (1, 3, 6, 6), (6, 1, 5, 5), False, {"groups": 3, "padding": [2, 2]}),
        ("pointwise", (2, 7, 4, 3), (9, 7, 1, 1), True, {}),
        ("pointwise_strided", (1, 5, 7, 6), (4, 5, 1, 1), False, {"stride": [2, 2]}),
        ("wide", (1, 16, 6, 6), (40, 16, 3, 3), True, {"padding": [1, 1]}),
        ("large_kernel", (1, 3, 17, 15), (8, 3, 7, 7), False, {"stride": [2, 2], "padding": [3, 3]}),
        ("all_at_once", (2, 4, 13, 11), (8, 2, 3, 5), True,
         {"stride": [3, 2], "padding": [3, 4], "dilation": [2, 2], "groups": 2})):
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": bias, **attrs}
        options = {k: v for k, v in attrs.items() if k != "bias"}
        inputs = {"x": g.randn(*x), "w": g.randn(*w), **({"bias": g.randn(w[0])} if bias else {})}
        g.case(name, lambda x, w, bias=None: F.conv2d(x, w, bias, **options), attrs, **inputs)
    g.save()

    g = Goldens("conv_transpose2d")
    for name, x, w, attrs in (
        ("plain", (2, 3, 4, 5), (3, 4, 3, 3), {}),
        ("strided", (1, 4, 5, 4), (4, 2, 3, 2), {"stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2]}),
        ("groups", (1, 6, 4, 4), (6, 2, 2, 3), {"groups": 3, "stride": [2, 2]}),
        ("dilated", (1, 3, 5, 6), (3, 2, 3, 3), {"dilation": [2, 2], "padding": [1, 2]})):
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "output_padding": [0, 0], **attrs}
        inputs = {"x": g.randn(*x), "w": g.randn(*w), "bias": g.randn(w[1] * attrs["groups"])}
        g.case(name, lambda x, w, bias: F.conv_transpose2d(x, w, bias, **attrs), attrs, **inputs)
    g.save()

    g = Goldens("pool2d")
    sliding = {"size": [3, 2], "stride": [2, 1], "padding": [1, 1]}
    def pooled(x, kind, size=None, stride=None, padding=None, include_pad=True, dilation=None, output=None):
        if kind == "max":
            return F.max_pool2d(x, size, stride, padding, dilation)
        if kind == "avg":
            return F.avg_pool2d(x, size, stride, padding, count_include_pad=include_pad)
        return F.adaptive_avg_pool2d(x, output) if kind == "adaptive_avg" else F.adaptive_max_pool2d(x, output)
    for name, shape, attrs in (
        ("max_padded", (2, 3, 7, 6), {"kind": "max", **sliding, "dilation": [1, 1]}),
        ("max_dilated", (1, 4, 9, 8), {"kind": "max", "size": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [2, 2]}),
        ("max_overlapping", (1, 2, 6, 6), {"kind": "max", "size": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}),
        ("avg_padded", (2, 3, 7, 6), {"kind": "avg", **sliding, "include_pad": True}),
        ("avg_of_pixels", (2, 3, 7, 6), {"kind": "avg", **sliding, "include_pad": False}),
        ("adaptive_avg", (1, 3, 7, 5), {"kind": "adaptive_avg", "output": [3, 4]}),
        ("adaptive_max", (1, 3, 7, 5), {"kind": "adaptive_max", "output": [3, 2]}),
        ("global", (2, 5, 4, 6), {"kind": "adaptive_avg", "output": [1, 1]})):
        g.case(name, lambda x: pooled(x, **attrs), attrs, x=g.randn(*shape))
    g.save()

    g = Goldens("interpolate")
    for name, shape, size, how in (
        ("nearest", (2, 3, 5, 4), (8, 7), "nearest"),
        ("nearest_smaller", (1, 2, 9, 11), (4, 5), "nearest"),
        ("bilinear", (2, 3, 5, 4), (9, 7), "bilinear"),
        ("bilinear_smaller", (1, 2, 9, 11), (4, 5), "bilinear"),
        ("bilinear_twice", (1, 3, 4, 6), (8, 12), "bilinear"),
        ("bilinear_of_a_pixel", (1, 2, 1, 1), (3, 5), "bilinear"),
        ("corners", (2, 3, 5, 4), (9, 7), "corners"),
        ("corners_smaller", (1, 2, 9, 11), (4, 5), "corners"),
        ("corners_to_a_line", (1, 2, 4, 5), (1, 9), "corners")):
        mode = {"mode": "nearest"} if how == "nearest" else {"mode": "bilinear", "align_corners": how == "corners"}
        g.case(name, lambda x: F.interpolate(x, size, **mode), {"size": list(size), "how": how}, x=g.randn(*shape))
    g.save()

    # Two training steps, whose running statistics are kept, then inference with them.
    g = Goldens("batch_norm")
    for name, shape, momentum in (("images", (4, 3, 5, 6), 0.1), ("rows", (7, 9), 0.3), ("far", (3, 2, 4, 4), 0.1)):
        c, shift = shape[1], 100.0 if name == "far" else 0.0
        before, x, gamma, beta = g.randn(*shape, shift=1.0), g.randn(*shape, shift=shift), g.randn(c), g.randn(c)
        mean, var = torch.zeros(c, dtype=torch.float64), torch.ones(c, dtype=torch.float64)
        F.batch_norm(before.double(), mean, var, training=True, momentum=momentum)
        kept = [mean.clone(), var.clone()]
        def fn(x, gamma, beta):
            return F.batch_norm(x, mean, var, gamma, beta, training=True, momentum=momentum, eps=1e-5)
        g.case(name, fn, {"momentum": momentum, "eps": 1e-5}, x=x, gamma=gamma, beta=beta)
        inference = F.batch_norm(x.double(), mean, var, gamma.double(), beta.double(), eps=1e-5)
        for kind, t in (("mean_before", kept[0]), ("var_before", kept[1]), ("mean_after", mean), ("var_after", var), ("inference", inference)):
            g.put(f"{name}.{kind}", t)
    g.save()


def main():
    torch.set_num_threads(1)                             # one order of summation
    for fn in (matmul, linear, attention, norms, cross_entropy, pointwise, embedding, optimizers, clip, schedules, mixtures, images):
        fn()
    total = sum(p.stat().st_size for p in OUT.glob("*.safetensors"))
    print(f"total {total} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
