"""Methods and functions with PyTorch's names next to PyTorch's: arguments, results, indices, and NumPy's numbers."""

import operator

import numpy as np
import pytest

import netcl as nc
from netcl import nn

torch = pytest.importorskip("torch")

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(3, 4, 5)).astype(np.float32)
TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, -1.0]], dtype=np.float32)


def agree(ours, theirs, rtol=2e-5):
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            agree(a, b, rtol)
        return
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.detach().float().numpy(), theirs.detach().float().numpy(), rtol=rtol, atol=1e-5)


def same(call, *arrays, graded=True, rtol=2e-5):
    """Compares a call, and its gradients, or requires that both refuse."""
    made, leaves, errors = [], [], []
    for lib in (nc, torch):
        given = [lib.tensor(a) for a in arrays]
        floats = [g.requires_grad_() for g, a in zip(given, arrays) if graded and a.dtype == np.float32]
        try:
            made.append(call(lib, *given))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            errors.append(error)
        leaves.append(floats)
    assert len(errors) != 1, f"only one refuses: {errors}"
    if errors:
        return
    agree(made[0], made[1], rtol)
    for y, floats in zip(made, leaves):
        parts = y if isinstance(y, (tuple, list)) else (y,)
        total = sum((p * p).sum() for p in parts if p.requires_grad) if floats and any(p.requires_grad for p in parts) else None
        if total is not None:
            total.backward()
    for a, b in zip(*leaves):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            agree(a.grad, b.grad, max(rtol, 1e-4))


METHODS = {
    "max": lambda x: x.max(), "max 0": lambda x: x.max(0), "max -1 keep": lambda x: x.max(-1, True), "max dim": lambda x: x.max(dim=1, keepdim=True),
    "min": lambda x: x.min(), "min 1": lambda x: x.min(1), "min keep": lambda x: x.min(0, keepdim=True), "max 7": lambda x: x.max(7), "min -9": lambda x: x.min(-9),
    "max two axes": lambda x: x.max((0, 1)), "max of both": lambda x: x.max(-x), "min of both": lambda x: x.min(x * 2),
    "amax": lambda x: x.amax(), "amax 1": lambda x: x.amax(1), "amin two": lambda x: x.amin((0, 1), True), "amax 5": lambda x: x.amax(5),
    "var": lambda x: x.var(), "var 0 False": lambda x: x.var(0, False), "var 0 True": lambda x: x.var(0, True), "var False": lambda x: x.var(False),
    "var keep": lambda x: x.var(1, False, True), "var words": lambda x: x.var(dim=1, unbiased=False, keepdim=True), "var correction": lambda x: x.var(1, correction=2),
    "std 0 False": lambda x: x.std(0, False), "std": lambda x: x.std(), "std axes": lambda x: x.std((0, 1), True), "std words": lambda x: x.std(dim=0, unbiased=False),
    "var 4": lambda x: x.var(4), "var of one": lambda x: x[:1, :1].var(0),
    "roll 1": lambda x: x.roll(1), "roll -2": lambda x: x.roll(-2), "roll 1 0": lambda x: x.roll(1, 0), "roll axes": lambda x: x.roll((1, 2), (0, 1)),
    "roll dims": lambda x: x.roll(shifts=3, dims=-1), "roll two": lambda x: x.roll((1, 2)), "roll 9": lambda x: x.roll(1, 9),
    "flatten": lambda x: x.flatten(0, 1), "flatten 7": lambda x: x.flatten(7), "flatten end": lambda x: x.flatten(0, 9), "flatten back": lambda x: x.flatten(1, 0),
    "squeeze 7": lambda x: x.squeeze(7), "squeeze": lambda x: x[:1].squeeze(0), "squeeze kept": lambda x: x.squeeze(1), "squeeze axes": lambda x: x[:1, :, :1].squeeze((0, 2)),
    "argmax": lambda x: x.argmax(), "argmax 1": lambda x: x.argmax(1), "argmax keep": lambda x: x.argmax(0, True), "argmax 8": lambda x: x.argmax(8),
    "argmin -1": lambda x: x.argmin(-1), "argmin -8": lambda x: x.argmin(-8), "argmax all keep": lambda x: x.argmax(keepdim=True), "argmin": lambda x: x.argmin(),
    "sum 9": lambda x: x.sum(9), "mean -9": lambda x: x.mean(-9), "softmax 9": lambda x: x.softmax(9), "transpose 9": lambda x: x.transpose(0, 9),
    "unsqueeze 9": lambda x: x.unsqueeze(9), "permute 9": lambda x: x.permute(0, 9, 1), "cumsum 9": lambda x: x.cumsum(9), "any 9": lambda x: (x > 0).any(9),
    "all -9": lambda x: (x > 0).all(-9), "prod 9": lambda x: x.detach().prod(9), "sort 9": lambda x: x.sort(9), "chunk 9": lambda x: x.chunk(2, 9), "logsumexp 9": lambda x: x.logsumexp(9),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("data", [X[:, :, 0], TIES, X[0, 0]], ids=["matrix", "ties", "vector"])
def test_methods(name, data):
    same(lambda lib, x: METHODS[name](x), data)


@pytest.mark.parametrize("name", [n for n in METHODS if n.split()[0] in ("max", "min", "argmax", "argmin") and "both" not in n])
def test_methods_of_integers(name):
    same(lambda lib, x: METHODS[name](x), np.array([[4, -2, 9], [9, 0, -7]], dtype=np.int32))


def test_the_results_of_max_have_names():
    for lib in (nc, torch):
        found = lib.tensor(TIES).max(1)
        assert found.values.tolist() == [3.0, 2.0] and found.indices.tolist() == [1, 0] and found[0] is found.values
        assert lib.tensor(TIES).min(dim=0).indices.tolist() == [0, 1, 1]


@pytest.mark.parametrize("axis", [-4, 3, 9])
def test_axes_of_functions_out_of_range(axis):
    for call in (lambda lib, x: lib.cat([x, x], axis), lambda lib, x: lib.stack([x, x], axis)):
        same(call, X[:, :, 0])


def test_indices_are_signed():
    same(lambda lib, x: x.argmax(0) - 1, np.array([[3.0, 1.0], [2.0, 5.0]], dtype=np.float32))
    same(lambda lib, x: x.argmin(1) * -1, X[0])
    same(lambda lib, x: x.sort(-1)[1] - 3, X[0])
    same(lambda lib, x: x.topk(2)[1] - 3, X[0])
    same(lambda lib, x: -x.max(0).indices, X[0])
    assert (nc.tensor([5, 1]).argmax() - 1).item() == -1 and nc.tensor([1.0]).multinomial(3, True).dtype is nc.int32
    same(lambda lib, x: x[x.argmax(0)], X[0, :3, :3])
    with pytest.raises(RuntimeError, match="replacement"):
        nc.tensor([1.0, 2.0]).multinomial(2)


FUNCTIONS = {
    "linear": ((X[0], RANDOM.normal(size=(7, 5)).astype(np.float32)), lambda F, x, w: F.linear(x, w)),
    "linear square": ((X[0, :, :4], X[1, :, :4]), lambda F, x, w: F.linear(x, w, w[0])),
    "linear of a vector": ((X[0, 0], X[1]), lambda F, x, w: F.linear(x, w)),
    "linear bad": ((X[0], X[0].T.copy()), lambda F, x, w: F.linear(x, w)),
    "dropout in eval": ((X,), lambda F, x: F.dropout(x, 0.5, False)),
    "dropout words": ((X,), lambda F, x: F.dropout(x, p=0.7, training=False)),
    "dropout 0": ((X,), lambda F, x: F.dropout(x, 0.0)),
    "dropout 1": ((X,), lambda F, x: F.dropout(x, 1.0)),
    "dropout 2": ((X,), lambda F, x: F.dropout(x, 2.0)),
    "avg_pool2d": ((X,), lambda F, x: F.avg_pool2d(x, 2)),
    "avg_pool2d all": ((X[None],), lambda F, x: F.avg_pool2d(x, (2, 3), 1, 1, False, False)),
    "avg_pool2d words": ((X[None],), lambda F, x: F.avg_pool2d(x, kernel_size=3, stride=2, padding=1, count_include_pad=True)),
    "max_pool2d": ((X[None],), lambda F, x: F.max_pool2d(x, kernel_size=2, stride=1, padding=1)),
    "softmax": ((X,), lambda F, x: F.softmax(x, 1)), "log_softmax": ((X,), lambda F, x: F.log_softmax(x, dim=-1)),
    "gelu": ((X,), lambda F, x: F.gelu(x, approximate="tanh")), "leaky_relu": ((X,), lambda F, x: F.leaky_relu(x)), "elu": ((X,), lambda F, x: F.elu(x)),
    "layer_norm": ((X, X[0], X[1]), lambda F, x, w, b: F.layer_norm(x, (4, 5), w, b)), "layer_norm plain": ((X,), lambda F, x: F.layer_norm(x, (5,))),
    "layer_norm bad": ((X,), lambda F, x: F.layer_norm(x, (4,))),
    "rms_norm": ((X * 1e-3,), lambda F, x: F.rms_norm(x, (5,))), "rms_norm eps": ((X, X[0, 0]), lambda F, x, w: F.rms_norm(x, (5,), w, 0.1)),
    "group_norm": ((X, X[0, 0, :4]), lambda F, x, w: F.group_norm(x, 2, w, w * 2)), "group_norm plain": ((X,), lambda F, x: F.group_norm(x, 4)),
    "instance_norm": ((X,), lambda F, x: F.instance_norm(x)),
    "embedding": ((np.array([[0, 2], [1, 1]], dtype=np.int32), X[0]), lambda F, i, w: F.embedding(i, w)),
    "conv_transpose2d": ((X[None], RANDOM.normal(size=(3, 2, 3, 3)).astype(np.float32)), lambda F, x, w: F.conv_transpose2d(x, w, None, 2, 1, 1)),
    "pad": ((X,), lambda F, x: F.pad(x, (1, 2), "constant", 3.0)), "pad reflect": ((X,), lambda F, x: F.pad(x, (1, 2), mode="reflect")),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    arrays, call = FUNCTIONS[name]
    same(lambda lib, *given: call(nc.functional if lib is nc else torch.nn.functional, *given), *arrays, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_updates_its_running_statistics(training):
    made = []
    for lib, F in ((nc, nc.functional), (torch, torch.nn.functional)):
        mean, variance = lib.zeros(4), lib.ones(4)
        y = F.batch_norm(lib.tensor(X), mean, variance, lib.tensor(X[0, :, 0].copy()), lib.tensor(X[1, :, 0].copy()), training, 0.3)
        made.append((y, mean, variance))
    agree(*made, rtol=1e-4)


LOSSES = {
    "vector": ((5,), ()), "rows": ((6, 5), (6,)), "sequence": ((3, 5, 4), (3, 4)), "image": ((2, 5, 3, 4), (2, 3, 4)), "square": ((5, 5, 5), (5, 5)),
    "last axis": ((3, 4, 5), (3, 4)), "two": ((5, 5), (5,)), "wrong": ((3, 5, 4), (3, 5)), "wrong rows": ((6, 5), (5,)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "none", "label_smoothing": 0.2}, {"ignore_index": 1}], ids=str)
def test_cross_entropy_has_the_classes_on_axis_1(name, options):
    shape, targets = LOSSES[name]
    logits, target = RANDOM.normal(size=shape).astype(np.float32), RANDOM.integers(0, 4, targets).astype(np.int32)

    def call(lib, x, t):
        F, modules = (nc.functional, nn) if lib is nc else (torch.nn.functional, torch.nn)
        t = t if lib is nc else t.long()
        return F.cross_entropy(x, t, **options), modules.CrossEntropyLoss(**options)(x, t)

    same(call, logits, target, rtol=1e-4)


def test_cross_entropy_of_probabilities():
    target = np.abs(RANDOM.normal(size=(3, 5, 4))).astype(np.float32)
    for options in ({}, {"label_smoothing": 0.3}, {"reduction": "sum"}):
        same(lambda lib, x, t: (nc.functional if lib is nc else torch.nn.functional).cross_entropy(x, t, **options), X.transpose(0, 2, 1).copy(), target, rtol=1e-4)


@pytest.mark.parametrize("eps", [None, 1e-2])
def test_rms_norm_has_the_epsilon_of_float32(eps):
    x = (X * 3e-4).astype(np.float32)
    agree(nn.RMSNorm(5, eps=eps)(nc.tensor(x)), torch.nn.RMSNorm(5, eps=eps)(torch.tensor(x)), 1e-4)
    for dtype in ("float16", "bfloat16"):
        made = nn.RMSNorm(5, eps=eps).to(getattr(nc, dtype))(nc.tensor(x).to(getattr(nc, dtype)))
        agree(made, torch.nn.RMSNorm(5, eps=eps).to(getattr(torch, dtype))(torch.tensor(x).to(getattr(torch, dtype))), 2e-2)


@pytest.mark.parametrize("shape", [(12,), (2, 6), (4, 3), (3, 4), (3, 2, 2)])
@pytest.mark.parametrize("base", ["plain", "transposed", "rows", "columns"])
def test_view_shares_memory_or_refuses(shape, base):
    def program(lib, x):
        y = {"plain": x, "transposed": x.T, "rows": x[::2], "columns": x[:, :2]}[base].view(shape)
        y += 1
        return x, y

    same(program, {"rows": X.reshape(15, 4)[:6], "columns": X.reshape(10, 6)[:6]}.get(base, X.reshape(15, 4)[:3]).copy(), graded=False)


def test_views_of_parts_have_gradients():
    def program(lib, x):
        q, k = x[..., :4], x[..., 4:]
        q, k = q.view(2, 3, 2, 2).transpose(1, 2), k.view(2, 3, 2, 2).transpose(1, 2)
        return (q @ k.transpose(-2, -1)).softmax(-1), q.transpose(1, 2).reshape(2, 3, -1), x[:, ::2].view(2, -1, 2, 4)

    same(program, RANDOM.normal(size=(2, 3, 8)).astype(np.float32), rtol=1e-4)


def test_positional_arguments_of_layers_are_those_of_pytorch():
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        assert modules.Embedding(4, 2, 0).weight[0].tolist() == [0.0, 0.0]
        loss = modules.CrossEntropyLoss(lib.tensor([1.0, 3.0]))
        ids = lib.tensor([0, 1], dtype=lib.int32 if lib is nc else torch.int64)
        np.testing.assert_allclose(loss(lib.tensor([[0.0, 2.0], [1.0, 0.5]]), ids).item(), (2.126928 + 3 * 0.974077) / 4, rtol=1e-5)


def test_what_a_module_refuses_to_assign():
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        layer = modules.Linear(2, 2)
        for name, value in (("weight", lib.zeros(2, 2)), ("weight", 1.0), ("bias", np.zeros(2))):
            with pytest.raises(TypeError, match=name):
                setattr(layer, name, value)
        layer.register_buffer("seen", lib.zeros(2))
        with pytest.raises(TypeError):
            layer.seen = 3
        outer = modules.Sequential(layer)
        outer.extra = layer
        with pytest.raises(TypeError):
            outer.extra = 3
        layer.bias = None
        assert layer.bias is None and len(list(layer.parameters())) == 1
        layer.weight = modules.Parameter(lib.ones(2, 2))
        layer.seen = lib.ones(2)
        assert layer(lib.ones(1, 2)).tolist() == [[2.0, 2.0]]


def test_to_keeps_ties_objects_and_integers():
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        first, second = modules.Linear(3, 3), modules.Linear(3, 3, bias=False)
        second.weight = first.weight
        both = modules.Sequential(first, second)
        both.register_buffer("count", lib.tensor([3]))
        both.register_buffer("scale", lib.tensor([3.0]))
        both.requires_grad_(True)
        first.bias.requires_grad_(False)
        weight = first.weight
        both.to(lib.float16)
        assert second.weight is first.weight is weight and weight.dtype == lib.float16 and weight.requires_grad
        assert not first.bias.requires_grad and len(list(both.parameters())) == 2
        assert "int" in str(both.count.dtype) and "float16" in str(both.scale.dtype)
        both.to(lib.float32)
        with lib.no_grad():
            second.weight.fill_(1.0)
        assert first.weight.tolist() == [[1.0] * 3] * 3


def test_an_optimizer_keeps_working_after_to_that_changes_nothing():
    for lib, modules, optim in ((nc, nn, nc.optim), (torch, torch.nn, torch.optim)):
        layer = modules.Linear(2, 1, bias=False)
        optimizer = optim.SGD(layer.parameters(), lr=1.0)
        layer.to(lib.float32)
        before = layer.weight.tolist()
        layer(lib.ones(1, 2)).sum().backward()
        optimizer.step()
        np.testing.assert_allclose(layer.weight.tolist(), np.array(before) - 1, atol=1e-6)


def test_an_optimizer_of_moved_parameters_says_so():
    layer = nn.Linear(2, 1)
    optimizer = nc.optim.SGD(layer.parameters(), lr=1.0)
    layer.to(nc.float16).to(nc.float32)
    layer(nc.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="moved"):
        optimizer.step()


OUTSIDE = {
    "embedding": lambda lib, F, x, i: F.embedding(i, x), "index": lambda lib, F, x, i: x[i], "module": lambda lib, F, x, i: (nn if lib is nc else torch.nn).Embedding(4, 2)(i),
    "cross_entropy": lambda lib, F, x, i: F.cross_entropy(x, i), "one_hot": lambda lib, F, x, i: F.one_hot(i, 4),
    "nll_loss": lambda lib, F, x, i: F.nll_loss(x, i), "index_select": lambda lib, F, x, i: x.index_select(i, 0) if lib is nc else x.index_select(0, i),
    "gather": lambda lib, F, x, i: x.gather(i[:, None], 1) if lib is nc else x.gather(1, i[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("bad", [4, 99, -1, -7])
def test_indices_out_of_range_raise(name, bad):
    data = np.arange(16, dtype=np.float32).reshape(4, 4)
    if name == "index" and bad == -1:
        return same(lambda lib, x: x[lib.tensor([0, -1])], data)
    for lib, F in ((nc, nc.functional), (torch, torch.nn.functional)):
        ids = lib.tensor([0, bad, 2, 1], dtype=lib.int32 if lib is nc else torch.int64)
        with pytest.raises((IndexError, RuntimeError)):
            OUTSIDE[name](lib, F, lib.tensor(data), ids).sum().item()
        # The next operation is fine.
        good = lib.tensor([0, 3, 2, 1], dtype=lib.int32 if lib is nc else torch.int64)
        assert np.isfinite(OUTSIDE[name](lib, F, lib.tensor(data), good).sum().item())


def test_unsigned_indices_out_of_range_raise():
    x, ids = nc.tensor([1.0, 2.0]), nc.tensor([0, 7], dtype="uint32")
    for call in (lambda: x[ids], lambda: nc.ops.gather(x, ids, 0), lambda: nc.ops.embedding(x.reshape(2, 1), ids)):
        with pytest.raises(IndexError):
            call().tolist()


def test_an_ignored_target_is_no_error():
    same(lambda lib, x, t: (nc.functional if lib is nc else torch.nn.functional).cross_entropy(x, t if lib is nc else t.long()), X[0], np.array([1, -100, 0, 2], dtype=np.int32))


NUMBERS = [np.float32(1.5), np.float64(-2.0), np.int64(3), np.int32(-2), np.uint8(2), np.bool_(True), np.array(2.0), np.array(3)]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.lt, operator.eq, operator.ge, operator.ne]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("call", ARITHMETIC, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_numbers_of_numpy_on_either_side(number, call, kind):
    data = np.array([[1, -5], [7, 2]], dtype=kind)
    if call is operator.sub and isinstance(number, np.bool_):
        with pytest.raises(TypeError, match="mask"):
            call(nc.tensor(data), number)
        return
    plain = number.item()
    for swapped in (False, True):
        x = nc.tensor(data)
        made = call(number, x) if swapped else call(x, number)
        assert isinstance(made, nc.Tensor)
        t = torch.tensor(data)
        expected = call(plain, t) if swapped else call(t, plain)
        agree(made, expected)
        assert ("int" in made.dtype.name) == (str(expected.dtype) in ("torch.int32", "torch.int64"))


@pytest.mark.parametrize("call", ARITHMETIC + [operator.matmul], ids=lambda f: f.__name__)
def test_arrays_of_numpy_on_either_side(call):
    a, b = X[0, :, :4].copy(), X[1, :, :4].copy()
    for swapped in (False, True):
        x = nc.tensor(a, requires_grad=True)
        made = call(b, x) if swapped else call(x, b)
        assert isinstance(made, nc.Tensor)
        expected = call(torch.tensor(b), torch.tensor(a)) if swapped else call(torch.tensor(a), torch.tensor(b))
        agree(made, expected, 1e-4)
        if call in (operator.add, operator.mul, operator.matmul):
            made.sum().backward()
            assert x.grad is not None


@pytest.mark.parametrize("call", [operator.add, operator.mul, operator.sub, operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
@pytest.mark.parametrize("other", [True, False, "mask", 2, 1.5, "integers"], ids=str)
def test_arithmetic_of_masks(call, other):
    def program(lib, m, n, i):
        given = n if other == "mask" else i if other == "integers" else other
        made = call(m, given)
        assert ("bool" in str(made.dtype)) == (other == "mask" or isinstance(other, bool))
        return made

    if call in (operator.and_, operator.or_, operator.xor) and isinstance(other, float):
        return
    same(program, np.array([True, False, True]), np.array([True, True, False]), np.array([3, -1, 0], dtype=np.int32))
