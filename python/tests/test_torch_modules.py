"""Modules, containers, attention and transformers next to PyTorch's: names, states, hooks, masks, or both refuse."""

import copy
import warnings
from collections import OrderedDict

import numpy as np
import pytest

import netcl as nc
from netcl import nn

torch = pytest.importorskip("torch")

from torch_checks import REFUSALS, close, graded, tensors  # noqa: E402
from torch_layers import Draw  # noqa: E402


def both(program):
    """Runs a program with each library and compares what it returns: numbers, texts, names and tensors. Both must refuse otherwise."""
    found, errors = [], []
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        try:
            found.append(program(lib, modules))
        except (*REFUSALS, KeyError, AttributeError) as error:
            errors.append((modules.__name__, error))
    assert len(errors) != 1, f"only {errors[0][0]} refuses: {errors[0][1]!r}"
    if not errors:
        same(found[0], found[1])


def same(ours, theirs):
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        return same(list(ours.values()), list(theirs.values()))
    if isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), f"{ours} and {theirs}"
        for a, b in zip(ours, theirs):
            same(a, b)
        return None
    if isinstance(theirs, torch.Tensor):
        return close(ours, theirs, "tensor", 3e-4)
    return None if isinstance(theirs, float) and ours == pytest.approx(theirs, rel=1e-4, abs=1e-6) else _equal(ours, theirs)


def _equal(ours, theirs):
    assert ours == theirs


def net(lib, m):
    """Returns a module with nested modules, buffers and a shared weight. Its parameters count up from 0."""

    class Net(m.Module):
        def __init__(self):
            super().__init__()
            self.first = m.Linear(3, 4)
            self.norms = m.ModuleList([m.BatchNorm1d(4), m.LayerNorm(4)])
            self.rest = m.Sequential(OrderedDict([("act", m.Tanh()), ("out", m.Linear(4, 3, bias=False))]))
            self.again = self.first
            self.register_buffer("scale", lib.ones(2))
            self.register_buffer("hidden", lib.ones(1), persistent=False)
            self.register_parameter("none", None)
            self.tied = m.Linear(3, 4, bias=False)
            self.tied.weight = self.first.weight

        def forward(self, x, factor=1.0):
            for norm in self.norms:
                x = norm(self.first(x) if x.shape[-1] == 3 else x)
            return self.rest(x) * factor

    made = Net()
    with lib.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_(lib.tensor(np.random.default_rng(i).normal(size=tuple(p.shape)).astype(np.float32)))
    return made


def data(lib, *shape, seed=3):
    return lib.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


NAMES = {
    "state": lambda n: list(n.state_dict()), "parameters": lambda n: [k for k, _ in n.named_parameters()], "all": lambda n: [k for k, _ in n.named_parameters(remove_duplicate=False)],
    "own": lambda n: [k for k, _ in n.named_parameters("p", False)], "buffers": lambda n: [k for k, _ in n.named_buffers()], "modules": lambda n: [k for k, _ in n.named_modules()],
    "modules twice": lambda n: [k for k, _ in n.named_modules(prefix="m", remove_duplicate=False)], "children": lambda n: [k for k, _ in n.named_children()], "count": lambda n: len(list(n.buffers())),
    "submodule": lambda n: type(n.get_submodule("rest.out")).__name__, "self": lambda n: n.get_submodule("") is n, "no submodule": lambda n: n.get_submodule("rest.in"),
    "parameter": lambda n: tuple(n.get_parameter("rest.out.weight").shape), "no parameter": lambda n: n.get_parameter("scale"), "buffer": lambda n: n.get_buffer("norms.0.running_mean"),
    "no buffer": lambda n: n.get_buffer("first.weight"), "text": repr, "prefix": lambda n: list(n.state_dict(prefix="x.")), "vars": lambda n: [t.requires_grad for t in n.state_dict(keep_vars=True).values()],
    "detached": lambda n: [t.requires_grad for t in n.state_dict().values()], "is None": lambda n: n.none is None, "missing": lambda n: n.nothing,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    both(lambda lib, m: NAMES[name](net(lib, m)))


REGISTER = {
    "buffer": lambda lib, m, n: n.register_buffer("b", lib.zeros(1)), "buffer of None": lambda lib, m, n: n.register_buffer("b", None), "dot": lambda lib, m, n: n.register_buffer("a.b", lib.zeros(1)),
    "empty": lambda lib, m, n: n.register_parameter("", None), "taken": lambda lib, m, n: n.register_buffer("forward", lib.zeros(1)), "number": lambda lib, m, n: n.register_buffer("b", 3),
    "parameter": lambda lib, m, n: n.register_parameter("p", m.Parameter(lib.ones(2))), "not a parameter": lambda lib, m, n: n.register_parameter("p", lib.ones(2)), "again": lambda lib, m, n: n.register_buffer("scale", lib.zeros(3)),
    "module": lambda lib, m, n: n.add_module("z", m.ReLU()), "module again": lambda lib, m, n: n.register_module("first", m.ReLU()), "not a module": lambda lib, m, n: n.add_module("z", 3),
    "set": lambda lib, m, n: n.set_submodule("rest.act", m.ReLU()), "set none": lambda lib, m, n: n.set_submodule("rest.none.x", m.ReLU()), "set strict": lambda lib, m, n: n.set_submodule("rest.none", m.ReLU(), strict=True),
    "delete": lambda lib, m, n: delattr(n.first, "bias"), "delete buffer": lambda lib, m, n: delattr(n, "hidden"), "delete nothing": lambda lib, m, n: delattr(n, "nothing"),
    "assign Buffer": lambda lib, m, n: setattr(n, "late", m.Buffer(lib.ones(1))), "Buffer apart": lambda lib, m, n: setattr(n, "late", m.Buffer(lib.ones(1), persistent=False)),
    "assign None": lambda lib, m, n: setattr(n.first, "bias", None), "parameter over buffer": lambda lib, m, n: setattr(n, "scale", m.Parameter(lib.ones(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", REGISTER)
def test_registration(name):
    def program(lib, m):
        n = net(lib, m)
        REGISTER[name](lib, m, n)
        return list(n.state_dict()), [k for k, _ in n.named_parameters()], [k for k, _ in n.named_buffers()], repr(n)

    both(program)


def test_setting_before_init():
    def program(lib, m, value):
        class Early(m.Module):
            def __init__(self):
                self.early = value
                super().__init__()

        return Early().early if isinstance(value, int) else Early()

    both(lambda lib, m: program(lib, m, 3))
    both(lambda lib, m: program(lib, m, m.ReLU()))
    both(lambda lib, m: program(lib, m, m.Parameter(lib.ones(1))))


def test_properties_of_a_class_are_set():
    def program(lib, m):
        class Own(m.Module):
            @property
            def size(self):
                return self._size

            @size.setter
            def size(self, value):
                self._size = 2 * value

        own = Own()
        own.size = 4
        return own.size

    both(program)


STATES = {
    "same": lambda s: s, "without": lambda s: {k: v for k, v in s.items() if k != "rest.out.weight"}, "more": lambda s: {**s, "other": s["scale"]},
    "shape": lambda s: {**s, "scale": s["scale"][:1]}, "no count": lambda s: {k: v for k, v in s.items() if "tracked" not in k}, "number": lambda s: {**s, "scale": 3}, "empty": lambda s: {},
}  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("name", STATES)
def test_loading_states(name, strict, assign):
    def program(lib, m):
        source, target = net(lib, m), net(lib, m)
        with lib.no_grad():
            source.scale.mul_(5)
            source.first.weight.mul_(2)
        given = STATES[name](dict(source.state_dict()))
        before = target.first.weight
        found = target.load_state_dict(given, strict=strict, assign=assign)
        kept = target.first.weight is before, target.tied.weight is target.first.weight, type(target.first.weight) is m.Parameter
        return list(found.missing_keys), list(found.unexpected_keys), dict(target.state_dict()), kept

    both(program)


def test_further_contents_and_hooks_of_states():
    def program(lib, m):
        class Counted(m.Linear):
            count = 3

            def get_extra_state(self):
                return {"count": self.count}

            def set_extra_state(self, state):
                self.count = state["count"]

        model, seen = m.Sequential(Counted(1, 1)), []
        model[0].count = 7
        model[0].register_state_dict_pre_hook(lambda mod, prefix, keep: seen.append(prefix))
        model[0].register_state_dict_post_hook(lambda mod, state, prefix, meta: seen.append(state.pop(prefix + "bias").shape[0]))
        state = model.state_dict()
        other = m.Sequential(Counted(1, 1))
        other[0].register_load_state_dict_pre_hook(lambda mod, given, prefix, *rest: given.update({prefix + "bias": lib.ones(1)}))
        other.register_load_state_dict_post_hook(lambda mod, keys: seen.append(list(keys.missing_keys)))
        other.load_state_dict(dict(state))
        return list(state), seen, other[0].count, other[0].bias

    both(program)


def test_a_state_of_pytorch_loads_in_any_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        theirs = torch.nn.Linear(3, 2).to(dtype)
        ours = nn.Linear(3, 2)
        ours.load_state_dict(theirs.state_dict())
        close(ours.weight, theirs.weight, "weight", 1e-6)


def test_hooks():
    def program(lib, m):
        n, seen = net(lib, m), []

        def shapes(values):
            return [None if v is None else tuple(v.shape) for v in (values if isinstance(values, tuple) else (values,))]

        handles = [
            n.register_forward_pre_hook(lambda mod, args: seen.append(("pre", shapes(args)))),
            n.register_forward_pre_hook(lambda mod, args, kw: (seen.append(("kw", sorted(kw))), (args, {"factor": 2.0}))[1], with_kwargs=True),
            n.register_forward_pre_hook(lambda mod, args: seen.append("early"), prepend=True),
            n.rest.register_forward_hook(lambda mod, args, y: y * 3),
            n.register_forward_hook(lambda mod, args, kw, y: seen.append(("after", sorted(kw), shapes(y))), with_kwargs=True),
            n.rest.register_full_backward_hook(lambda mod, gi, go: seen.append(("back", shapes(gi), shapes(go)))),
            n.rest.register_full_backward_pre_hook(lambda mod, go: (seen.append("back pre"), (go[0] * 0.5,))[1]),
            n.rest.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,)),
        ]
        x = data(lib, 5, 3)
        y = n(x, factor=1.0)
        y.sum().backward()
        gradients = [p.grad for p in n.parameters()]
        for h in handles:
            h.remove()
        return seen, y, gradients, n(x)

    both(program)


def test_backward_hooks_without_gradients_of_inputs():
    def program(lib, m):
        layer, seen = m.Linear(2, 2), []
        with lib.no_grad():
            layer.weight.fill_(1.0)
        layer.register_full_backward_hook(lambda mod, gi, go: seen.append((gi[0] is None, go[0])))
        with layer.register_forward_hook(lambda mod, args, y: y * 2):
            layer(lib.ones(1, 2)).sum().backward()
        layer(lib.ones(1, 2, requires_grad=True)).sum().backward()
        return seen, layer.weight.grad

    both(program)


def test_modes_gradients_and_functions():
    def program(lib, m):
        n, order = net(lib, m), []
        n.eval()
        n.norms[1].train()
        modes = [mod.training for mod in n.modules()]
        n(data(lib, 4, 3)).sum().backward()
        n.zero_grad(set_to_none=False)
        zeros = [p.grad for p in n.parameters()]
        n.zero_grad()
        n.apply(lambda mod: order.append(type(mod).__name__))
        n.requires_grad_(False)
        return modes, zeros, [p.grad is None for p in n.parameters()], order, [p.requires_grad for p in n.parameters()]

    both(program)
    both(lambda lib, m: net(lib, m).train("yes"))


def test_dtypes():
    def program(lib, m):
        n, kinds = net(lib, m), []
        for step in (lambda: n.half(), lambda: n.bfloat16(), lambda: n.float(), lambda: n.to(lib.float16), lambda: n.to(lib.ones(1)), lambda: n.type(lib.float16)):
            assert step() is n
            kinds.append([str(t.dtype).replace("torch.", "").replace("int64", "int32") for t in n.state_dict().values()])
        return kinds[:-1], [str(p.dtype)[-7:] for p in n.parameters()], n.tied.weight is n.first.weight

    both(program)
    both(lambda lib, m: net(lib, m).to(lib.int32))


def test_copies():
    def program(lib, m):
        n = copy.deepcopy(net(lib, m))
        with lib.no_grad():
            n.first.weight.fill_(2.0)
        return n.tied.weight, n.again is n.first, list(n.state_dict())

    both(program)


LISTS = {
    "slice": lambda m, s: [type(x).__name__ for x in s[1:]], "negative": lambda m, s: type(s[-1]).__name__, "out of range": lambda m, s: s[9], "append": lambda m, s: s.append(m.GELU()),
    "insert": lambda m, s: (s.insert(1, m.GELU()), s)[1], "insert before": lambda m, s: (s.insert(-1, m.GELU()), s)[1], "insert at the end": lambda m, s: (s.insert(9, m.GELU()), s)[1], "pop": lambda m, s: (type(s.pop(0)).__name__, s)[1], "extend": lambda m, s: s.extend([m.GELU(), m.ReLU()]),
    "delete": lambda m, s: (s.__delitem__(0), s)[1], "delete slice": lambda m, s: (s.__delitem__(slice(0, 2)), s)[1], "set": lambda m, s: (s.__setitem__(-1, m.GELU()), s)[1], "add": lambda m, s: s + type(s)(*([m.GELU()],) if type(s).__name__ == "ModuleList" else (m.GELU(),)),
    "number": lambda m, s: s.append(3), "none": lambda m, s: s.append(None), "length": lambda m, s: len(s), "contains": lambda m, s: s[0] in s, "iterate": lambda m, s: [type(x).__name__ for x in s],
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("kind", ["Sequential", "ModuleList"])
def test_lists_of_modules(name, kind):
    def program(lib, m):
        parts = [m.Linear(2, 3), m.ReLU(), m.ReLU()]
        made = LISTS[name](m, m.Sequential(*parts) if kind == "Sequential" else m.ModuleList(parts))
        return [repr(made), [k for k, _ in made.named_modules()]] if isinstance(made, m.Module) else made

    both(program)


def test_dicts_and_parameters():
    def modules(lib, m):
        d = m.ModuleDict({"b": m.Linear(1, 2), "a": m.ReLU()})
        d.update([("c", m.Tanh())])
        d["d"] = m.GELU()
        del d["a"]
        return list(d.keys()), len(d), "b" in d, repr(d), type(d.pop("c")).__name__, [k for k, _ in d.items()], list(d.state_dict())

    def parameters(lib, m):
        p = m.ParameterList([m.Parameter(lib.ones(2)), lib.zeros(1)])
        p.append(lib.ones(3))
        p += [lib.ones(1)]
        p[0] = lib.zeros(2)
        return len(p), list(p.state_dict()), [type(x).__name__ for x in p], [tuple(x.shape) for x in p[1:3]], [tuple(x.shape) for x in p.parameters()]

    def by_name(lib, m):
        p = m.ParameterDict({"b": m.Parameter(lib.ones(2)), "a": lib.zeros(1)})
        p["c"] = lib.ones(3)
        p.update(m.ParameterDict({"z": lib.ones(1)}))
        del p["b"]
        return list(p), list(p.state_dict()), p.get("q", 5), tuple(p.setdefault("r", lib.ones(4)).shape), p.pop("z"), "a" in p, len(p), [k for k, _ in p.named_parameters()]

    for program in (modules, parameters, by_name):
        both(program)
    both(lambda lib, m: m.ModuleDict({"a": 3}))
    both(lambda lib, m: m.ModuleDict({"a.b": m.ReLU()}))
    both(lambda lib, m: m.ParameterList(lib.ones(2)))
    both(lambda lib, m: m.Sequential(m.ReLU(), 3))


def attention_case(d):
    """Draws arguments, inputs and options of multi-head attention."""
    heads = d.size(1, 3)
    width, length, keys, n = heads * d.size(1, 4), d.size(1, 4), d.size(1, 5), d.size(1, 3)
    options = d.some(bias=False, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    alone = d.chance(0.2)
    if d.chance(0.4):
        options.update(kdim=d.size(2, 5), vdim=d.size(2, 5))

    def given(t, w):
        return d.normal(t, w) if alone else d.normal(n, t, w) if options.get("batch_first") else d.normal(t, n, w)

    query = given(length, width)
    if "kdim" not in options and d.chance(0.4):
        arrays, keys = [query], length
    else:
        arrays = [query, given(keys, options.get("kdim", width)), given(keys, options.get("vdim", width))]
    call = d.some(need_weights=False, average_attn_weights=False)
    if d.chance(0.4):
        shape = (length, keys) if d.chance(0.6) else ((1 if alone else n) * heads, length, keys)
        mask = d.arrays.random(shape) < 0.4
        mask[..., 0] = False
        call["attn_mask"] = mask if d.chance(0.5) else d.normal(*shape)
    if d.chance(0.3):
        padding = d.arrays.random((keys,) if alone else (n, keys)) < 0.3
        padding[..., 0] = False
        call["key_padding_mask"] = padding
    return heads, width, options, arrays, call


@pytest.mark.parametrize("number", range(40))
def test_multi_head_attention(number):
    heads, width, options, arrays, call = attention_case(Draw(number))
    state = {}

    def program(lib, m):
        layer = m.MultiheadAttention(width, heads, **options)
        if lib is nc:
            state.update({k: (np.random.default_rng(len(k)).normal(size=tuple(t.shape)) * 0.5).astype(np.float32) for k, t in layer.state_dict().items()})
        layer.load_state_dict({k: lib.tensor(v) for k, v in state.items()})
        given = tensors(lib, arrays)
        leaves = graded(given)
        made, weights = layer(*(given * 3 if len(given) == 1 else given), **tensors(lib, call))
        total = (made * made).sum() + (0 if weights is None else (weights * weights).sum())
        total.backward()
        return made, weights, [t.grad for t in leaves], {k: p.grad for k, p in layer.named_parameters()}, repr(layer).replace("NonDynamicallyQuantizableLinear", "Linear")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both(program)


def loaded(lib, layer, state):
    if lib is nc:
        state.update({k: (np.random.default_rng(i).normal(size=tuple(t.shape)) * 0.4).astype(np.float32) for i, (k, t) in enumerate(layer.state_dict().items())})
    layer.load_state_dict({k: lib.tensor(v) for k, v in state.items()})
    return layer


@pytest.mark.parametrize("number", range(24))
@pytest.mark.parametrize("kind", ["encoder", "decoder", "both"])
def test_transformers(kind, number):
    d, state = Draw(number), {}
    options = {"dropout": d.one(0.0, 0.1), **d.some(batch_first=True, norm_first=True, activation=d.one("gelu", "relu"), layer_norm_eps=1e-3, bias=False)}
    training = options["dropout"] == 0.0 and d.chance(0.5)
    heads, n, t, s = d.size(1, 2), d.size(1, 3), d.size(1, 4), d.size(1, 4)
    width, layers = 4 * heads, d.size(1, 2)
    first = options.get("batch_first")
    src, tgt = (d.normal(*((n, k, width) if first else (k, n, width))) for k in (s, t))
    causal, padded, normed = d.chance(0.5), d.chance(0.4), d.chance(0.5)
    padding = np.zeros((n, s), dtype=bool)
    padding[:, -1] = s > 1

    def program(lib, m):
        if kind == "both":
            layer = m.Transformer(width, heads, layers, layers, 8, **options)
        else:
            one = (m.TransformerEncoderLayer if kind == "encoder" else m.TransformerDecoderLayer)(width, heads, 8, **options)
            norm = m.LayerNorm(width) if normed else None
            layer = (m.TransformerEncoder(one, layers, norm) if kind == "encoder" else m.TransformerDecoder(one, layers, norm)) if d.size(1, 1) else one
        layer = loaded(lib, layer, state).train(training)
        mask = {"tgt_mask": m.Transformer.generate_square_subsequent_mask(t)} if causal else {}
        x, y = tensors(lib, [src, tgt])
        x.requires_grad_(), y.requires_grad_()
        hidden = lib.tensor(padding)
        if kind == "encoder":
            made = layer(x, **({"mask": m.Transformer.generate_square_subsequent_mask(s)} if causal else {}), **({"src_key_padding_mask": hidden} if padded else {}))
        elif kind == "decoder":
            made = layer(y, x, **mask, **({"memory_key_padding_mask": hidden} if padded else {}))
        else:
            made = layer(x, y, **mask, **({"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden} if padded else {}))
        (made * made).sum().backward()
        return made, x.grad, y.grad, {k: p.grad for k, p in layer.named_parameters()}, repr(layer).replace("NonDynamicallyQuantizableLinear", "Linear")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both(program)


def test_what_attention_refuses():
    both(lambda lib, m: m.MultiheadAttention(5, 2))
    both(lambda lib, m: m.MultiheadAttention(4, 2)(*[data(lib, 3, 2, 5)] * 3))
    both(lambda lib, m: m.MultiheadAttention(4, 2)(*[data(lib, 3, 2, 4)] * 3, is_causal=True))
    both(lambda lib, m: m.MultiheadAttention(4, 2)(*[data(lib, 3, 2, 4)] * 3, attn_mask=lib.zeros(2, 3)))
    both(lambda lib, m: m.TransformerEncoderLayer(4, 2, activation="silu"))
