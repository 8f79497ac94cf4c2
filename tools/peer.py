#!/usr/bin/env python3
"""The PyTorch side of `netcl bench`: a child process that times requests, one JSON object per line.

    echo '{"op":"gemm","shape":[768,768,768],"layout":"NT","dtype":"f32"}' | python3 tools/peer.py
    python3 tools/peer.py --selftest

A request has `op` and, if they apply, `shape`, `layout`, `pass`, `dtype` (f32, tf32, f16, bf16), `device` (cpu, cuda,
cuda:1), `repeats` (samples, 5), `threads` (all), `min_ms` (duration of a sample's calls, 2), `sets` (buffer sets
used in turn, to avoid caches, 1), `seed`, and any `id`, which the reply repeats. The reply has `median_ms`, `min_ms`,
`samples_ms` (per call), `calls` (per sample) and `peer`, or `error`. Tensors are random and created once: if the
same request is repeated, as in an interleaved measurement, the same warm buffers are timed.

    hello                       versions, threads, devices
    gemm          [m,n,k]       layout NN, NT (B stored (n,k)), TN (A stored (k,m)), TT
    attention     [B,H,T,D]     causal (true), kv_heads (H), memory BTHD, QKV (parts of one product's result) or BHTD; backend default,
                                cudnn, flash, efficient or math; the reply names the one that was used
    conv2d        [N,C,H,W,O,I,J]  stride, padding, dilation (pairs), groups; channels_last; no gradient of images of four channels or fewer
    layer_norm, rms_norm, softmax, log_softmax [rows,cols]; cross_entropy [rows,vocab]; embedding [vocab,width,ids]
    fuse          [rows,cols]   the expression `of` (TREES) through torch.compile, on CUDA as a graph of `calls` calls; the reply's backend
                                says if that did not run
    experts [tokens,slots,experts,width,hidden] gated by SiLU, a loop over the experts as in transformers
    gelu (approximate none or tanh), exp, tanh, sigmoid, relu, silu; add, mul, copy; any shape
    transpose [rows,cols]       a transposed copy;   sum [rows,cols] over the last axis;   adamw [parameters], fused
    train                       layers, heads, width, context, batch, vocab; clip (1.0), compile (false), tied head, fused
                                AdamW, bf16 by autocast; also tokens_per_s and, on cuda, memory_peak in bytes. repeats counts
                                steps. With `config`, a config.json of another family, transformers' model of it
    vision        [N,C,H,W]     training steps of `network` (resnet50; resnet18, resnet50-small, resnet18-small) with `classes`, channels_last,
                                fused AdamW, `compile` (false); 16 bits by `autocast` (true) or, if not, storage. repeats counts steps
    generate                    with `config`, a config.json: transformers' generate with its cache, prompt (16) and new tokens (128), temperature
                                (0.8), top_k (200); also tokens_per_s. repeats counts texts
    evaluate                    `of` one op on `inputs`, files of f32 with their shapes, computed in `dtype`; the f32 result goes to
                                the file `result`, which has its size. gemm (layout), matmul, attention, layer_norm, rms_norm,
                                softmax, log_softmax, cross_entropy, embedding, gelu (approximate), exp, tanh, …, add, mul
    quit
`pass` is fwd, bwd (the backward alone, from saved tensors) or fwd+bwd. gemm, add, mul, copy and transpose write into a
existing tensor; the others allocate their result in each call, as eager PyTorch does. Only replies are printed.
"""
import contextlib
import importlib.util
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

A = torch.ops.aten
DTYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
UNARY = {"exp": torch.exp, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": F.relu, "silu": F.silu}
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
KEEP = 4                # number of cached requests; more would use too much device memory


class Bad(Exception):
    """A request that cannot be measured."""


def need(value, count, what):
    if not isinstance(value, list) or len(value) != count:
        raise Bad(f"shape must be {what}, got {value}")
    return value


class Request:
    """A request's fields with their defaults, and the tensors that it needs."""

    def __init__(self, fields):
        self.fields = fields
        self.device = torch.device(fields.get("device", "cpu"))
        self.kind = fields.get("dtype", "f32")
        if self.kind not in DTYPES:
            raise Bad(f"dtype {self.kind}: expected one of {', '.join(DTYPES)}")
        self.dtype = DTYPES[self.kind]
        self.pass_ = fields.get("pass", "fwd")
        if self.pass_ not in ("fwd", "bwd", "fwd+bwd"):
            raise Bad(f"pass {self.pass_}: expected fwd, bwd or fwd+bwd")
        self.shape = fields.get("shape")

    def get(self, name, default):
        return self.fields.get(name, default)

    def randn(self, *shape, grad=False):
        t = torch.randn(*shape, device=self.device, dtype=self.dtype)
        return t.requires_grad_() if grad else t

    def randint(self, high, *shape):
        return torch.randint(high, shape, device=self.device)


def by_pass(r, make, fn, upstream=None):
    """Returns a closure that runs fn's pass over fresh inputs. For bwd, it repeats the backward of one forward."""
    grad = r.pass_ != "fwd"
    inputs = make(grad)
    leaves = [t for t in inputs if t.requires_grad]
    if not grad:
        def fwd():
            with torch.no_grad():
                fn(*inputs)
        return fwd
    out = fn(*inputs)
    dout = upstream if upstream is not None else torch.randn_like(out)
    if r.pass_ == "bwd":
        return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)
    del out
    return lambda: torch.autograd.grad(fn(*inputs), leaves, dout)


def gemm(r):
    m, n, k = need(r.shape, 3, "[m,n,k]")
    layout = r.get("layout", "NN")
    if layout not in ("NN", "NT", "TN", "TT"):
        raise Bad(f"layout {layout}: expected NN, NT, TN or TT")
    a = r.randn(k, m).t() if layout[0] == "T" else r.randn(m, k)
    b = r.randn(n, k).t() if layout[1] == "T" else r.randn(k, n)
    out = torch.empty(m, n, device=r.device, dtype=r.dtype)
    return lambda: torch.mm(a, b, out=out)


def attention(r):
    b, h, t, d = need(r.shape, 4, "[B,H,T,D]")
    kv, causal, memory = r.get("kv_heads", h), r.get("causal", True), r.get("memory", "BTHD")
    if memory not in ("BTHD", "QKV", "BHTD"):
        raise Bad(f"memory {memory}: expected BTHD, QKV or BHTD")
    used = []

    def make(grad):
        heads = (h, kv, kv)
        if memory == "QKV":
            return [p.transpose(1, 2).detach().requires_grad_(grad) for p in r.randn(b, t, sum(heads), d).split(heads, 2)]
        if memory == "BTHD":
            return [r.randn(b, t, n, d).transpose(1, 2).requires_grad_(grad) for n in heads]
        return [r.randn(b, n, t, d, grad=grad) for n in heads]

    def fn(q, k, v):
        if not used:
            used.append(chosen(r, lambda: torch._fused_sdp_choice(q, k, v, is_causal=causal, enable_gqa=kv != h)))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != h)
    run = by_pass(r, make, fn)
    if not used:                                          # if nothing has run yet
        run()
    run.backend = used[0]
    return run


def conv2d(r):
    n, c, height, width, o, i, j = need(r.shape, 7, "[N,C,H,W,O,I,J]")
    groups = r.get("groups", 1)
    options = {name: r.get(name, usual) for name, usual in (("stride", [1, 1]), ("padding", [0, 0]), ("dilation", [1, 1]))}
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = r.kind == "tf32"
    last = torch.channels_last

    def make(grad):
        x, w = (r.randn(*shape).to(memory_format=last) for shape in ((n, c, height, width), (o, c // groups, i, j)))
        return [x.requires_grad_(grad and c > 4), w.requires_grad_(grad)]
    return by_pass(r, make, lambda x, w: F.conv2d(x, w, groups=groups, **options))


def only(r):
    """Restricts attention to the requested backend within the block."""
    name = r.get("backend", "default")
    if name == "default":
        return contextlib.nullcontext()
    if name not in BACKENDS:
        raise Bad(f"backend {name}: expected default, {', '.join(BACKENDS)}")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([getattr(SDPBackend, BACKENDS[name])])


def chosen(r, ask):
    """The backend that attention takes; PyTorch's own choice is "default" where it does not tell."""
    if r.get("backend", "default") != "default":
        return r.get("backend", "default")
    try:
        from torch.nn.attention import SDPBackend
        value = int(ask())
        return next(name for name, enum in BACKENDS.items() if int(getattr(SDPBackend, enum).value) == value)
    except Exception:                                     # not part of PyTorch's interface
        return "default"


def layer_norm(r):
    rows, n = need(r.shape, 2, "[rows,cols]")

    def make(grad):
        return [r.randn(rows, n, grad=grad), r.randn(n, grad=grad), r.randn(n, grad=grad)]
    return by_pass(r, make, lambda x, w, b: F.layer_norm(x, (n,), w, b))


def rms_norm(r):
    rows, n = need(r.shape, 2, "[rows,cols]")
    return by_pass(r, lambda grad: [r.randn(rows, n, grad=grad), r.randn(n, grad=grad)],
                   lambda x, w: F.rms_norm(x, (n,), w, 1e-5))


def rowwise(fn):
    def build(r):
        rows, n = need(r.shape, 2, "[rows,cols]")
        return by_pass(r, lambda grad: [r.randn(rows, n, grad=grad)], fn)
    return build


def unary(fn):
    return lambda r: by_pass(r, lambda grad: [r.randn(*r.shape, grad=grad)], fn)


def gelu(r):
    approximate = r.get("approximate", "tanh")
    return unary(lambda x: F.gelu(x, approximate=approximate))(r)


def cross_entropy(r):
    rows, vocab = need(r.shape, 2, "[rows,vocab]")
    target = r.randint(vocab, rows)
    return by_pass(r, lambda grad: [r.randn(rows, vocab, grad=grad)], lambda x: F.cross_entropy(x, target))


def embedding(r):
    vocab, width, count = need(r.shape, 3, "[vocab,width,ids]")
    ids = r.randint(vocab, count)
    return by_pass(r, lambda grad: [r.randn(vocab, width, grad=grad)], lambda w: F.embedding(ids, w))


def experts(r):
    n, k, e, c, h = need(r.shape, 5, "[tokens,slots,experts,width,hidden]")
    ids = r.randint(e, n, k)

    def make(grad):
        return [r.randn(*shape, grad=grad) for shape in ((n, c), (n, k), (e, 2 * h, c), (e, c, h))]

    def fn(x, weights, gate_up, down):
        y = torch.zeros_like(x)
        for i in range(e):
            token, slot = torch.where(ids == i)
            g, u = F.linear(x[token], gate_up[i]).chunk(2, -1)
            rows = F.linear(F.silu(g) * u, down[i]) * weights[token, slot, None]
            y = y.index_add(0, token, rows)
        return y
    return by_pass(r, make, fn)


def into(fn, count):
    """Applies an elementwise function to `count` inputs with an existing output, to time the arithmetic without an allocation."""
    def build(r):
        if r.pass_ != "fwd":
            return by_pass(r, lambda grad: [r.randn(*r.shape, grad=grad) for _ in range(count)], fn)
        inputs, out = [r.randn(*r.shape) for _ in range(count)], r.randn(*r.shape)
        return lambda: fn(*inputs, out=out)
    return build


def copy(r):
    x, y = r.randn(*r.shape), r.randn(*r.shape)
    return lambda: y.copy_(x)


def transpose(r):
    rows, cols = need(r.shape, 2, "[rows,cols]")
    x, y = r.randn(rows, cols), r.randn(cols, rows)
    return lambda: y.copy_(x.t())


def adamw(r):
    p = r.randn(*r.shape, grad=True)
    p.grad = r.randn(*r.shape)
    opt = torch.optim.AdamW([p], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    return opt.step


class Block(torch.nn.Module):
    def __init__(self, c, h):
        super().__init__()
        self.h, lin = h, torch.nn.Linear
        self.ln1, self.qkv, self.proj = torch.nn.LayerNorm(c), lin(c, 3 * c), lin(c, c)
        self.ln2, self.fc, self.out = torch.nn.LayerNorm(c), lin(c, 4 * c), lin(4 * c, c)

    def forward(self, x):                                                      # x (B,T,C)
        b, t, c = x.shape
        q, k, v = (s.view(b, t, self.h, c // self.h).transpose(1, 2) for s in self.qkv(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.proj(y)
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """GPT-2's layers: learned positions, biases, tied head."""

    def __init__(self, vocab, t, layers, heads, c):
        super().__init__()
        self.te, self.pe = torch.nn.Embedding(vocab, c), torch.nn.Embedding(t, c)
        self.blocks = torch.nn.ModuleList([Block(c, heads) for _ in range(layers)])
        self.ln, self.head = torch.nn.LayerNorm(c), torch.nn.Linear(c, vocab, bias=False)
        self.head.weight = self.te.weight
        for p in self.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):                                           # ids, targets (B,T)
        x = self.te(ids) + self.pe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1), targets.flatten())


def family(config):
    """Builds transformers' model of a config.json, with netcl's loss."""
    from transformers import AutoConfig, AutoModelForCausalLM
    config = dict(config)
    kind = config.pop("model_type")
    config = {k: v for k, v in config.items() if k not in ("architectures", "dtype", "torch_dtype", "netcl")}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config), attn_implementation="sdpa")

        def forward(self, ids, targets):
            logits = self.model(input_ids=ids, use_cache=False).logits
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return Model()


def train(r):
    layers, heads, width, t, b, vocab = (r.get(k, d) for k, d in (
        ("layers", 4), ("heads", 4), ("width", 128), ("context", 64), ("batch", 12), ("vocab", 65)))
    if width % heads:
        raise Bad(f"train: width {width} is not divisible by {heads} heads")
    if r.kind == "f16":
        raise Bad("train: f16 needs loss scaling, which is not measured here")
    model = (family(r.get("config", None)) if r.get("config", None) else Gpt(vocab, t, layers, heads, width)).to(r.device)
    clip, params = r.get("clip", 1.0), list(model.parameters())
    opt = torch.optim.AdamW(params, lr=1e-3, fused=True)
    # Small models are limited by launches, which CUDA graphs remove.
    small = r.device.type == "cuda" and sum(p.numel() for p in params) < 30e6
    mode = "reduce-overhead" if small else "default"
    run = torch.compile(model, mode=mode) if r.get("compile", False) else model
    batches = [(r.randint(vocab, b, t), r.randint(vocab, b, t)) for _ in range(8)]
    turn = [0]

    def step():
        ids, targets = batches[turn[0] % len(batches)]
        turn[0] += 1
        with torch.autocast(r.device.type, dtype=torch.bfloat16, enabled=r.kind == "bf16"):
            loss = run(ids, targets)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        opt.step()
        opt.zero_grad(set_to_none=True)
    step.tokens = b * t
    step.parameters = sum(p.numel() for p in params)
    return step


class Residual(torch.nn.Module):
    """A block of He et al. 2015, of two convolutions or, where `wide` is 4, of three."""

    def __init__(self, a, b, stride, wide):
        super().__init__()
        sizes = [(a, b, 3, stride), (b, b, 3, 1)] if wide == 1 else [(a, b, 1, 1), (b, b, 3, stride), (b, 4 * b, 1, 1)]
        layers = []
        for i, o, taps, step in sizes:
            layers += [conv_norm(i, o, taps, step), torch.nn.ReLU(inplace=True)]
        self.main = torch.nn.Sequential(*layers[:-1])
        self.short = conv_norm(a, wide * b, 1, stride) if stride > 1 or a != wide * b else torch.nn.Identity()

    def forward(self, x):
        return F.relu(self.main(x) + self.short(x))


def conv_norm(a, b, taps, stride):
    return torch.nn.Sequential(torch.nn.Conv2d(a, b, taps, stride, taps // 2, bias=False), torch.nn.BatchNorm2d(b))


def residual_network(name, channels, classes):
    kinds = {"resnet18": (1, (2, 2, 2, 2)), "resnet50": (4, (3, 4, 6, 3))}
    kind = name.removesuffix("-small")
    if kind not in kinds:
        raise Bad(f"vision {name}: expected {', '.join(kinds)}, or one of them with -small")
    wide, blocks = kinds[kind]
    small, relu = kind != name, torch.nn.ReLU(inplace=True)
    layers = [conv_norm(channels, 64, 3 if small else 7, 1 if small else 2), relu]
    layers += [] if small else [torch.nn.MaxPool2d(3, 2, 1)]
    a = 64
    for stage, count in enumerate(blocks):
        for i in range(count):
            layers.append(Residual(a, 64 << stage, 2 if i == 0 and stage else 1, wide))
            a = wide * (64 << stage)
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(a, classes))


def vision(r):
    n, c, height, width = need(r.shape, 4, "[N,C,H,W]")
    classes, auto, last = r.get("classes", 10), r.get("autocast", True), torch.channels_last
    if r.kind == "f16":
        raise Bad("vision: f16 needs loss scaling, which is not measured here")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = r.kind == "tf32"
    kept = torch.float32 if auto else r.dtype
    model = residual_network(r.get("network", "resnet50"), c, classes).to(device=r.device, dtype=kept, memory_format=last)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    run = torch.compile(model) if r.get("compile", False) else model
    x = torch.randn(n, c, height, width, device=r.device, dtype=kept).to(memory_format=last)
    y = torch.arange(n, device=r.device) % classes

    def step():
        with torch.autocast(r.device.type, dtype=torch.bfloat16, enabled=auto and r.kind == "bf16"):
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
    step.parameters = sum(p.numel() for p in model.parameters())
    return step


def generate(r):
    """Runs transformers' generate with its cache, starting from a prompt."""
    from transformers import AutoConfig, AutoModelForCausalLM
    config = dict(r.fields["config"])
    kind = config.pop("model_type")
    config = {k: v for k, v in config.items() if k not in ("architectures", "dtype", "torch_dtype", "netcl")}
    config = AutoConfig.for_model(kind, **config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(device=r.device, dtype=r.dtype).eval()
    model.generation_config.eos_token_id = None
    tokens, prompt = int(r.get("tokens", 128)), r.randint(config.vocab_size, 1, int(r.get("prompt", 16)))
    how = {"do_sample": True, "temperature": r.get("temperature", 0.8), "top_k": int(r.get("top_k", 200)), "pad_token_id": 0}

    def run():
        with torch.no_grad():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, use_cache=True, **how)
    run.tokens = tokens
    run.parameters = sum(p.numel() for p in model.parameters())
    return run


def standard(x):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt(d.square().mean(-1, keepdim=True) + 1e-5)


def chain_12(x, y, c):
    a = torch.maximum((x * c + y) * 0.5, x)
    return -torch.minimum(((a.square() + 1).sqrt() - y) * x, c).abs()


def gelu_like(x, w):
    x = x + w
    return x * 0.5 * ((x + x * x * x * 0.044715) * 0.7978846).tanh().add(1)


# Inputs: w (rows, cols), r (cols), c (rows, 1), m a mask (rows, cols). crates/lab/src/bench/fuse.rs has the same expressions.
TREES = {
    "chain_2": ("wr", lambda x, r: F.relu(x * r)),
    "chain_6": ("wwm", lambda x, y, m: torch.where(m, x.clamp(-0.5, 0.7) * 1.5 + y.abs(), y)),
    "chain_12": ("wwc", chain_12),
    "gelu": ("wr", gelu_like),
    "swiglu": ("ww", lambda x, y: x * torch.sigmoid(x) * y),
    "softmax": ("w", lambda x: torch.softmax(x, -1)),
    "masked_softmax": ("wm", lambda x, m: torch.softmax((x * 0.125).masked_fill(~m, -1e30), -1)),
    "layer_norm": ("wrr", lambda x, r, b: standard(x) * r + b),
    "rms_norm": ("wr", lambda x, r: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * r),
    "variance": ("w", lambda x: x.var(-1, correction=0, keepdim=True)),
    "logsumexp": ("w", lambda x: torch.logsumexp(x, -1, keepdim=True)),
    "l2_normalise": ("w", lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-12)),
}


def graphed(r, make):
    """Returns the closure from `make`. On CUDA devices, it is a graph of r.calls calls, so that the host's time is not included."""
    calls = int(r.get("calls", 1))
    if r.device.type != "cuda":
        run = make()
        run()
        return run
    stream = torch.cuda.Stream(r.device)
    stream.wait_stream(torch.cuda.current_stream(r.device))
    with torch.cuda.stream(stream):                        # a backward pass runs where its forward pass did
        run = make()
        for _ in range(3):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            run()

    def replay(kept=run):
        graph.replay()
    replay.calls, replay.called = calls, run
    return replay


def fuse(r):
    """Runs an expression through torch.compile, or eagerly if that fails, as the reply's backend says."""
    rows, n = need(r.shape, 2, "[rows,cols]")
    if r.get("of", None) not in TREES:
        raise Bad(f"of {r.get('of', None)}: expected one of {', '.join(TREES)}")
    kinds, fn = TREES[r.fields["of"]]

    def make(grad):
        shapes = {"w": (rows, n), "r": (n,), "c": (rows, 1)}
        return [r.randn(rows, n) > -0.5 if kind == "m" else r.randn(*shapes[kind], grad=grad) for kind in kinds]
    try:
        import torch._functorch.config as functorch        # a repeated backward must keep its buffers
        functorch.donated_buffer = False
        run = graphed(r, lambda: by_pass(r, make, torch.compile(fn, dynamic=False)))
        run.backend = "torch.compile"
    except Exception as e:                                 # usually because this machine does not have a compiler
        run = by_pass(r, make, fn)
        run.backend = f"eager ({type(e).__name__})"
    return run


OPS = {"gemm": gemm, "fuse": fuse, "attention": attention, "conv2d": conv2d, "layer_norm": layer_norm, "rms_norm": rms_norm, "gelu": gelu, "copy": copy,
       "softmax": rowwise(lambda x: F.softmax(x, -1)), "log_softmax": rowwise(lambda x: F.log_softmax(x, -1)),
       "sum": rowwise(lambda x: x.sum(-1)), "cross_entropy": cross_entropy, "embedding": embedding, "adamw": adamw, "experts": experts,
       "transpose": transpose, "add": into(torch.add, 2), "mul": into(torch.mul, 2), "train": train,
       "vision": vision, "generate": generate}
STEPS = ("train", "vision", "generate")                   # ops for which a sample is one call
OPS |= {name: unary(fn) for name, fn in UNARY.items()}


def evaluate(r):
    """Evaluates one op on given inputs: eager PyTorch in the storage type, as in training. With dy, also returns its gradients, and gradients in f64.
    """
    def load(entry, dtype):
        count = 1
        for n in entry["shape"]:
            count *= n
        data = torch.from_file(entry["path"], shared=False, size=count, dtype=torch.float32)
        return data.reshape(entry["shape"]).to(device=r.device, dtype=dtype)
    name, inputs = r.fields.get("of"), r.fields["inputs"]
    index = {"embedding": 1, "cross_entropy": 1}.get(name)
    xs = [load(e, torch.int64 if i == index else r.dtype) for i, e in enumerate(inputs)]
    last = xs[0].shape[-1:]
    layout = r.get("layout", "NN")
    ops = {"gemm": lambda a, b: torch.mm(a.t() if layout[0] == "T" else a, b.t() if layout[1] == "T" else b),
           "matmul": torch.matmul, "add": torch.add, "mul": torch.mul,
           "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
           "layer_norm": lambda x, w, b: F.layer_norm(x, last, w, b, 1e-5), "rms_norm": lambda x, w: F.rms_norm(x, last, w, 1e-5),
           "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
           "cross_entropy": lambda x, t: F.cross_entropy(x, t), "embedding": lambda w, ids: F.embedding(ids, w),
           "gelu": lambda x: F.gelu(x, approximate=r.get("approximate", "tanh"))} | UNARY
    if name not in ops:
        raise Bad(f"evaluate {name}: expected one of {', '.join(sorted(ops))}")
    torch.set_float32_matmul_precision("high" if r.kind == "tf32" else "highest")
    if "dy" in r.fields:
        def gradients(dtype):
            leaves = [x if i == index else x.detach().to(dtype).requires_grad_() for i, x in enumerate(xs)]
            y = ops[name](*leaves)
            y.backward(load(r.fields["dy"], y.dtype).reshape(y.shape))
            grads = [x.grad for i, x in enumerate(leaves) if i != index]
            return torch.cat([g.to(device="cpu", dtype=torch.float64).flatten() for g in grads])
        own, exact = gradients(r.dtype), gradients(torch.float64)
        torch.from_file(r.fields["result"], shared=True, size=own.numel(), dtype=torch.float32).copy_(own)
        torch.from_file(r.fields["exact"], shared=True, size=own.numel(), dtype=torch.float64).copy_(exact)
        return {"op": "evaluate", "of": name, "elements": own.numel(), "peer": peer_name(r.device)}
    with torch.no_grad():
        y = ops[name](*xs).to(device="cpu", dtype=torch.float32).contiguous().flatten()
    torch.from_file(r.fields["result"], shared=True, size=y.numel(), dtype=torch.float32).copy_(y)
    return {"op": "evaluate", "of": name, "elements": y.numel(), "peer": peer_name(r.device)}


def peer_name(device):
    if device.type == "cuda":
        return f"torch {torch.__version__} ({torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda})"
    blas = "MKL" if torch.backends.mkl.is_available() else "OpenBLAS" if "OpenBLAS" in torch.__config__.show() else "BLAS"
    return f"torch {torch.__version__} ({blas}, {torch.get_num_threads()} threads)"


def clock(device, fns, calls, turn):
    """Returns the milliseconds per call, over `calls` calls that use the buffer sets in turn."""
    if device.type == "cuda":
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        a.record()
        for i in range(calls):
            fns[(turn + i) % len(fns)]()
        b.record()
        b.synchronize()
        return a.elapsed_time(b) / calls
    start = time.perf_counter()
    for i in range(calls):
        fns[(turn + i) % len(fns)]()
    return (time.perf_counter() - start) * 1e3 / calls


class Peer:
    def __init__(self):
        self.ready = {}                                   # request -> (closures, calls per sample)

    def prepare(self, r):
        """Returns buffers, closures and the number of calls that fill a sample, warmed up. They are cached for the same request."""
        shown = {k: v for k, v in r.fields.items() if k not in ("id", "repeats")}
        key = json.dumps(shown, sort_keys=True)
        if key in self.ready:
            self.ready[key] = self.ready.pop(key)         # most recent last
            return self.ready[key]
        while len(self.ready) >= KEEP:
            del self.ready[next(iter(self.ready))]
        if r.device.type == "cuda":
            torch.cuda.empty_cache()
        torch.manual_seed(r.get("seed", 0))
        fns = [OPS[r.fields["op"]](r) for _ in range(max(1, int(r.get("sets", 1))))]
        warm, spent, ms = 0, 0.0, 0.0
        while warm < 3 or (spent < 50 and warm < 200):    # clocks, allocator, and library plans settle
            ms = clock(r.device, fns, 1, warm)
            spent, warm = spent + ms, warm + 1
        calls = 1 if r.fields["op"] in STEPS else int(min(10000, max(1, -(-r.get("min_ms", 2) // max(ms, 1e-4)))))
        self.ready[key] = (fns, calls)
        return self.ready[key]

    def measure(self, fields):
        r = Request(fields)
        if r.device.type == "cuda" and not torch.cuda.is_available():
            raise Bad("this PyTorch does not find a CUDA device")
        torch.set_num_threads(int(fields.get("threads", 0)) or len(os.sched_getaffinity(0)))
        torch.set_float32_matmul_precision("high" if r.kind == "tf32" else "highest")
        with only(r):
            fns, calls = self.prepare(r)
            if r.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(r.device)
            samples = [clock(r.device, fns, calls, i * calls) for i in range(max(1, int(fields.get("repeats", 5))))]
        if r.device.type == "cpu":
            time.sleep(0.01)                              # OpenMP's threads keep spinning after a loop; do not count this for the next measurement
        echo = {k: fields[k] for k in ("id", "op", "shape", "layout", "pass", "dtype", "device") if k in fields}
        samples = [ms / getattr(fns[0], "calls", 1) for ms in samples]
        median = statistics.median(samples)
        reply = {**echo, "median_ms": median, "min_ms": min(samples), "samples_ms": samples, "calls": calls,
                 "peer": peer_name(r.device)}
        if fields["op"] in ("attention", "fuse"):
            reply["backend"] = fns[0].backend
        if called := getattr(fns[0], "called", None):      # without a graph, as PyTorch is called from Python
            reply["called_ms"] = clock(r.device, [called], calls * fns[0].calls, 0)
        if fields["op"] in ("train", "generate"):
            reply["tokens_per_s"] = fns[0].tokens * 1e3 / median
        if fields["op"] in STEPS:
            reply["parameters"] = fns[0].parameters
            if r.device.type == "cuda":
                reply["memory_peak"] = torch.cuda.max_memory_allocated(r.device)
        return reply

    def hello(self):
        cuda = torch.cuda.is_available()
        return {"op": "hello", "protocol": 1, "torch": torch.__version__, "python": sys.version.split()[0],
                "threads": len(os.sched_getaffinity(0)), "mkl": torch.backends.mkl.is_available(), "ops": sorted(OPS),
                "cpu_capability": torch.backends.cpu.get_cpu_capability(), "peer": peer_name(torch.device("cpu")),
                "cuda": torch.version.cuda if cuda else None,
                "devices": ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count() if cuda else 0)],
                "device_names": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count() if cuda else 0)]}

    def answer(self, line):
        fields = {}
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict) or "op" not in fields:
                raise Bad("expected a JSON object with the field op")
            if fields["op"] == "hello":
                return self.hello()
            if fields["op"] == "evaluate":
                return evaluate(Request(fields))
            if fields["op"] not in OPS:
                raise Bad(f"op {fields['op']}: expected one of {', '.join(sorted(OPS))}")
            return self.measure(fields)
        except Exception as e:                            # every failure becomes a reply, including out of memory
            self.ready.clear()
            echo = {k: fields[k] for k in ("id", "op") if isinstance(fields, dict) and k in fields}
            return {**echo, "error": f"{type(e).__name__}: {e}"[:500]}


def serve():
    peer, out = Peer(), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                                         # a library that prints must not break the protocol
    for line in sys.stdin:
        if not line.strip():
            continue
        if '"quit"' in line:
            break
        print(json.dumps(peer.answer(line)), file=out, flush=True)


def selftest():
    """Runs every op and pass on each device with small sizes. Checks that invalid requests give an error instead of a crash."""
    peer = Peer()
    assert peer.hello()["torch"]
    shapes = {"vision": [2, 3, 32, 32], "gemm": [16, 24, 8], "attention": [2, 4, 16, 8], "conv2d": [2, 8, 9, 7, 6, 3, 2], "embedding": [50, 8, 20], "experts": [9, 2, 3, 8, 6], "adamw": [1000], "add": [64, 3]}
    trees = list(TREES)
    count = 0
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for op in OPS:
            for dtype in ("f32", "bf16"):
                once = op in ("gemm", "copy", "transpose", "adamw", *STEPS)
                if op == "generate" and importlib.util.find_spec("transformers") is None:
                    continue
                for p in ("fwd",) if once else ("fwd", "bwd", "fwd+bwd"):
                    fields = {"op": op, "shape": shapes.get(op, [8, 32]), "pass": p, "dtype": dtype, "device": device, "repeats": 3,
                              "min_ms": 0.1, "layers": 1, "width": 16, "heads": 2, "context": 8, "batch": 2, "sets": 1 if op == "fuse" else 2, "id": count, "of": trees[count % len(trees)]}
                    if op == "generate":
                        fields |= {"prompt": 3, "tokens": 4, "config": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16,
                                                                        "n_positions": 32, "vocab_size": 50}}
                    reply = peer.answer(json.dumps(fields))
                    assert reply.get("median_ms", 0) > 0 and reply["id"] == count, (fields, reply)
                    assert op not in ("train", "generate") or reply["tokens_per_s"] > 0
                    count += 1
        for layout in ("NN", "NT", "TN", "TT"):
            assert "error" not in peer.answer(json.dumps({"op": "gemm", "shape": [4, 5, 6], "layout": layout, "device": device}))
        assert "error" not in peer.answer(json.dumps({"op": "attention", "shape": [1, 4, 8, 8], "kv_heads": 2, "device": device}))
        named = {}
        for backend in ("default", "flash", "math"):
            for memory in ("BTHD", "QKV", "BHTD"):
                for kv_heads in (4, 2):
                    reply = peer.answer(json.dumps({"op": "attention", "shape": [2, 4, 16, 8], "kv_heads": kv_heads, "device": device,
                                                    "pass": "fwd+bwd", "dtype": "bf16", "backend": backend, "memory": memory}))
                    assert reply.get("median_ms", 0) > 0, (backend, reply)
                    named.setdefault(backend, set()).add(reply["backend"])
        assert named["flash"] == {"flash"} and named["math"] == {"math"} and named["default"] <= set(BACKENDS) | {"default"}, named
        if device == "cpu":                               # the request is rejected, and the earlier setting is restored
            assert "error" in peer.answer(json.dumps({"op": "attention", "shape": [1, 4, 8, 8], "backend": "cudnn"}))
            assert "error" not in peer.answer(json.dumps({"op": "attention", "shape": [1, 4, 8, 8]}))
    for bad in ("not json", "[1]", '{"op":"nothing"}', '{"op":"gemm","shape":[1]}', '{"op":"gemm","shape":[4,4,4],"dtype":"f8"}',
                '{"op":"train","width":10,"heads":3}', '{"op":"gemm","shape":[4,4,4],"layout":"XX"}',
                '{"op":"attention","shape":[1,4,8,8],"backend":"fast"}', '{"op":"attention","shape":[1,4,8,8],"memory":"TBHD"}'):
        assert "error" in peer.answer(bad), bad
    print(f"{count} measurements and 9 rejections are correct: {peer.hello()['peer']}")


if __name__ == "__main__":
    selftest() if "--selftest" in sys.argv[1:] else serve()
