"""Functions, initial values and utilities next to PyTorch's: arguments, results, gradients, distributions, or both refuse."""

import inspect
import math
import warnings

import numpy as np
import pytest

import netcl as nc
import netcl.nn.functional as F
from netcl import nn

torch = pytest.importorskip("torch")

from torch_checks import REFUSALS, close, flat, graded, tensors  # noqa: E402
from torch_layers import Draw  # noqa: E402

TF = torch.nn.functional


def both(call, arrays, tolerance=3e-4):
    """Compares a call of a function with each library, and the gradients of its tensors, or requires that both refuse."""
    found, errors = [], []
    for lib, module in ((nc, F), (torch, TF)):
        given = tensors(lib, arrays)
        leaves = graded(given)
        try:
            made = call(lib, module, *given)
        except (*REFUSALS, KeyError, AttributeError) as error:
            errors.append((lib.__name__, error))
            continue
        parts = [p for p in flat(made) if p.requires_grad]
        if parts:
            sum((p * p).sum() for p in parts).backward()
        found.append((made, [t.grad for t in leaves]))
    assert len(errors) != 1, f"only {errors[0][0]} refuses: {errors[0][1]!r}"
    if not errors:
        close(found[0][0], found[1][0], "result", tolerance)
        close(found[0][1], found[1][1], "gradients", tolerance)


def x(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


IDS = np.array([[0, 2], [3, 1]], dtype=np.int32)
MASK = np.array([[True, False, True], [True, True, False]])
CALLS = {
    "relu of integers": ([IDS - 2], lambda lib, F, i: F.relu(i)), "gelu of integers": ([IDS], lambda lib, F, i: F.gelu(i)),
    "conv3d": (
        [x(2, 4, 3, 4, 5), x(6, 2, 2, 3, 2), x(6)],
        lambda lib, F, a, w, b: F.conv3d(a, w, b, (1, 2, 1), (1, 0, 1), (2, 1, 1), 2),
    ),
    "normalize": ([x(3, 4)], lambda lib, F, a: F.normalize(a)), "normalize 1": ([x(3, 4)], lambda lib, F, a: F.normalize(a, 1.0, -1)), "normalize 3": ([x(3, 4)], lambda lib, F, a: F.normalize(a, p=3.0, dim=0)),
    "normalize inf": ([x(3, 4)], lambda lib, F, a: F.normalize(a, float("inf"), 0)), "normalize axes": ([x(3, 4, 2)], lambda lib, F, a: F.normalize(a, dim=(1, 2))),
    "normalize of zeros": ([np.zeros((2, 3), np.float32)], lambda lib, F, a: F.normalize(a)), "normalize eps": ([x(2, 3)], lambda lib, F, a: F.normalize(a, eps=10.0)),
    "one_hot": ([IDS], lambda lib, F, i: F.one_hot(i)), "one_hot 6": ([IDS], lambda lib, F, i: F.one_hot(i, 6)), "one_hot of floats": ([x(2)], lambda lib, F, i: F.one_hot(i)),
    "pad": ([x(2, 3, 4)], lambda lib, F, a: F.pad(a, (1, 2, 0, 3))), "pad less": ([x(2, 3, 4)], lambda lib, F, a: F.pad(a, (-1, 2, 1, -2), value=2.0)), "pad ints": ([IDS], lambda lib, F, i: F.pad(i, (1, 0, 0, 2), value=7)),
    "pad replicate": ([x(2, 3, 4)], lambda lib, F, a: F.pad(a, (3, 1), "replicate")), "pad circular": ([x(2, 3, 4)], lambda lib, F, a: F.pad(a, (4, 1), "circular")), "pad too far": ([x(2, 3, 4)], lambda lib, F, a: F.pad(a, (5, 1), "circular")),
    "pad reflect too far": ([x(2, 3, 4)], lambda lib, F, a: F.pad(a, (4, 1), "reflect")), "pad odd": ([x(2, 3)], lambda lib, F, a: F.pad(a, (1, 2, 3))), "pad mode": ([x(2, 3)], lambda lib, F, a: F.pad(a, (1, 2), "mirror")),
    "pad reflect axes": ([x(3, 4)], lambda lib, F, a: F.pad(a, (1, 1, 1, 1), "reflect")), "pad nothing": ([x(3, 4)], lambda lib, F, a: F.pad(a, ())),
    "pdist": ([x(4, 3)], lambda lib, F, a: F.pdist(a)), "pdist 1": ([x(4, 3)], lambda lib, F, a: F.pdist(a, 1.0)), "pdist of one": ([x(1, 3)], lambda lib, F, a: F.pdist(a)),
    "cosine broadcasts": ([x(4, 3), x(1, 3)], lambda lib, F, a, b: F.cosine_similarity(a, b)), "cosine of zeros": ([np.zeros((2, 3), np.float32), x(2, 3)], lambda lib, F, a, b: F.cosine_similarity(a, b, dim=1)),
    "distance of equal": ([x(2, 3), x(2, 3)], lambda lib, F, a, b: F.pairwise_distance(a, b)), "distance broadcasts": ([x(2, 3), x(3)], lambda lib, F, a, b: F.pairwise_distance(a, b, 3.0)),
    "conv_tbc": ([x(5, 2, 3), x(2, 3, 4), x(4)], lambda lib, F, a, w, b: F.conv_tbc(a, w, b, 1)), "conv1d": ([x(2, 4, 6), x(4, 2, 3), x(4)], lambda lib, F, a, w, b: F.conv1d(a, w, b, 2, 1, 1, 2)),
    "conv2d same": ([x(3, 6, 5), x(2, 3, 2, 3)], lambda lib, F, a, w: F.conv2d(a, w, padding="same", dilation=2)), "conv2d wrong": ([x(2, 4, 6, 6), x(2, 3, 2, 2)], lambda lib, F, a, w: F.conv2d(a, w)),
    "conv2d stride 0": ([x(2, 3, 6, 6), x(2, 3, 2, 2)], lambda lib, F, a, w: F.conv2d(a, w, stride=0)), "conv2d large": ([x(2, 3, 2, 2), x(2, 3, 3, 3)], lambda lib, F, a, w: F.conv2d(a, w)),
    "conv3d small": ([x(1, 1, 1, 4, 4), x(1, 1, 2, 1, 1)], lambda lib, F, a, w: F.conv3d(a, w)),
    "transposed": ([x(2, 4, 3), x(4, 3, 2), x(6)], lambda lib, F, a, w, b: F.conv_transpose1d(a, w, b, 3, 1, 2, 2, 2)), "transposed wide": ([x(2, 4, 3), x(4, 3, 2)], lambda lib, F, a, w: F.conv_transpose1d(a, w, output_padding=1)),
    "bilinear": ([x(2, 3), x(2, 4), x(5, 3, 4)], lambda lib, F, a, b, w: F.bilinear(a, b, w)), "linear": ([x(3), x(4, 3), x(4)], lambda lib, F, a, w, b: F.linear(a, w, b)),
    "embedding": ([IDS, x(4, 3)], lambda lib, F, i, w: F.embedding(i, w, 2)), "embedding -1": ([IDS, x(4, 3)], lambda lib, F, i, w: F.embedding(i, w, padding_idx=-1)), "embedding 9": ([IDS, x(4, 3)], lambda lib, F, i, w: F.embedding(i, w, 9)),
    "bag": ([IDS, x(4, 3)], lambda lib, F, i, w: F.embedding_bag(i, w, mode="max")), "bag weights": ([IDS, x(4, 3), x(2, 2)], lambda lib, F, i, w, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p)),
    "bag wrong": ([IDS, x(4, 3), x(2, 2)], lambda lib, F, i, w, p: F.embedding_bag(i, w, mode="mean", per_sample_weights=p)), "bag without offsets": ([IDS[0], x(4, 3)], lambda lib, F, i, w: F.embedding_bag(i, w)),
    "instance_norm": ([x(2, 3, 4), x(3), x(3)], lambda lib, F, a, w, b: F.instance_norm(a, None, None, w, b)), "group_norm wrong": ([x(2, 3, 4)], lambda lib, F, a: F.group_norm(a, 2)),
    "lrn": ([x(2, 3, 4)], lambda lib, F, a: F.local_response_norm(a, 3, 0.1, 0.5, 2.0)), "batch_norm eval": ([x(4, 3), np.abs(x(3)), np.abs(x(3))], lambda lib, F, a, m, v: F.batch_norm(a, m.detach(), v.detach())),
    "max_pool": ([x(1, 2, 6)], lambda lib, F, a: F.max_pool1d(a, 3, 2, 1, 1, True, True)), "max_pool wide": ([x(1, 2, 6)], lambda lib, F, a: F.max_pool1d(a, 2, padding=2)), "avg_pool 0": ([x(1, 2, 6, 6)], lambda lib, F, a: F.avg_pool2d(a, 2, divisor_override=0)),
    "avg_pool": ([x(2, 5, 6)], lambda lib, F, a: F.avg_pool2d(a, (2, 3), (1, 2), (1, 1), True, False)), "adaptive": ([x(1, 2, 5, 7)], lambda lib, F, a: F.adaptive_avg_pool2d(a, (None, 3))), "adaptive 0": ([x(2, 5, 7)], lambda lib, F, a: F.adaptive_max_pool2d(a, 2)),
    "adaptive indices": ([x(2, 3, 5, 7)], lambda lib, F, a: F.adaptive_max_pool2d(a, (2, 3), return_indices=True)), "adaptive indices 1": ([x(3, 7)], lambda lib, F, a: F.adaptive_max_pool1d(a, 4, True)),
    "adaptive indices 3": ([x(1, 2, 3, 4, 5)], lambda lib, F, a: F.adaptive_max_pool3d_with_indices(a, 2)), "with indices": ([x(2, 6, 7)], lambda lib, F, a: F.max_pool2d_with_indices(a, 3, 2)),
    "nearest 2.3": ([x(1, 2, 5)], lambda lib, F, a: F.interpolate(a.detach(), scale_factor=2.3)), "nearest 0.7": ([x(1, 2, 5, 6)], lambda lib, F, a: F.interpolate(a.detach(), scale_factor=(0.7, 1.5))),
    "transposed to nothing": ([x(2, 4, 3), x(4, 3, 1)], lambda lib, F, a, w: F.conv_transpose1d(a, w, padding=1, stride=1).sum() + F.conv_transpose1d(a[:, :, :2], w, padding=1).sum()),
    "interpolate both": ([x(1, 2, 3)], lambda lib, F, a: F.interpolate(a, 4, 2.0)), "interpolate none": ([x(1, 2, 3)], lambda lib, F, a: F.interpolate(a)), "interpolate mode": ([x(1, 2, 3)], lambda lib, F, a: F.interpolate(a, 4, mode="bilinear")),
    "interpolate corners": ([x(1, 2, 3)], lambda lib, F, a: F.interpolate(a, 4, align_corners=True)), "upsample": ([x(1, 2, 3, 3)], lambda lib, F, a: F.upsample_bilinear(a, scale_factor=2)),
    "glu": ([x(2, 3, 4)], lambda lib, F, a: F.glu(a, 2)), "prelu": ([x(2, 3, 4), x(3)], lambda lib, F, a, w: F.prelu(a, w)), "prelu wrong": ([x(2, 3, 4), x(4)], lambda lib, F, a, w: F.prelu(a, w)), "softplus": ([x(9) * 9], lambda lib, F, a: F.softplus(a, 2, 3)),
    "threshold": ([x(9)], lambda lib, F, a: F.threshold(a, 0.1, 20.0)), "hardtanh wrong": ([x(9)], lambda lib, F, a: F.hardtanh(a, 2.0, 1.0)), "softshrink wrong": ([x(9)], lambda lib, F, a: F.softshrink(a, -1.0)), "celu 0": ([x(9)], lambda lib, F, a: F.celu(a, 0.0)),
    "softmax dtype": ([x(2, 3)], lambda lib, F, a: F.softmax(a, -1, dtype=lib.float32)), "softmin": ([x(2, 3)], lambda lib, F, a: F.softmin(a, 1)), "softmax 5": ([x(2, 3)], lambda lib, F, a: F.softmax(a, 5)), "log_softmax": ([x(2, 3)], lambda lib, F, a: F.log_softmax(a, 0)),
    "dropout1d 1": ([x(2, 3, 4)], lambda lib, F, a: F.dropout1d(a, 1.0)), "dropout2d eval": ([x(2, 3, 4, 4)], lambda lib, F, a: F.dropout2d(a, 0.5, False)), "alpha eval": ([x(4)], lambda lib, F, a: F.alpha_dropout(a)), "dropout -1": ([x(4)], lambda lib, F, a: F.alpha_dropout(a, -1.0, True)),
    "mse broadcasts": ([x(2, 3), x(3)], lambda lib, F, a, b: F.mse_loss(a, b)), "mse weight": ([x(2, 3), x(2, 3), np.abs(x(2, 3, seed=4))], lambda lib, F, a, b, w: F.mse_loss(a, b, weight=w.detach())), "reduction": ([x(2), x(2)], lambda lib, F, a, b: F.mse_loss(a, b, reduction="all")),
    "huber 0": ([x(2), x(2)], lambda lib, F, a, b: F.huber_loss(a, b, delta=0.0)), "smooth -1": ([x(2), x(2)], lambda lib, F, a, b: F.smooth_l1_loss(a, b, beta=-1.0)), "bce of logits": ([x(2) * 5, np.abs(x(2))], lambda lib, F, a, b: F.binary_cross_entropy(a, b)),
    "cross_entropy of ignored": ([x(2, 3), np.array([1, 1], np.int32)], lambda lib, F, a, t: F.cross_entropy(a, t, ignore_index=1, reduction="sum")), "nll mean of ignored": ([x(2, 3), np.array([1, 1], np.int32), np.abs(x(3))], lambda lib, F, a, t, w: F.nll_loss(a.detach(), t, w.detach(), ignore_index=1)),
    "weight of 2": ([x(2, 3), np.array([1, 0], np.int32), x(2)], lambda lib, F, a, t, w: F.cross_entropy(a, t, w)), "smoothing 2": ([x(2, 3), np.array([1, 0], np.int32)], lambda lib, F, a, t: F.cross_entropy(a, t, label_smoothing=2.0)),
    "gaussian number": ([x(2, 3), x(2, 3, seed=2)], lambda lib, F, a, b: F.gaussian_nll_loss(a, b, 0.5)), "linear_cross_entropy": ([x(4, 3), x(5, 3), np.array([1, 0, 4, 2], np.int32)], lambda lib, F, a, w, t: F.linear_cross_entropy(a, w, t)),
    "linear_cross_entropy all": ([x(4, 3), x(5, 3), np.array([1, 0, 4, 2], np.int32), x(5), np.abs(x(5))], lambda lib, F, a, w, t, b, v: F.linear_cross_entropy(a, w, t, linear_bias=b, weight=v.detach(), reduction="sum", ignore_index=4, label_smoothing=0.1)),
    "unfold large": ([x(1, 2, 2, 2)], lambda lib, F, a: F.unfold(a, 3)), "fold": ([x(8, 4)], lambda lib, F, a: F.fold(a, (3, 3), 2)), "triplet 0": ([x(2, 3)] * 3, lambda lib, F, a, b, c: F.triplet_margin_loss(a, b, c, margin=0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_functions(name):
    arrays, call = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both(call, arrays)


@pytest.mark.parametrize("number", range(40))
def test_scaled_dot_product_attention(number):
    d = Draw(number)
    lead, t, s, e = d.one([], [2], [2, 3], [2, 2, 4]), d.size(1, 4), d.size(1, 4), d.size(1, 5)
    options = d.some(scale=0.7)
    keys = list(lead)
    if len(lead) > 1 and d.chance(0.3):
        options["enable_gqa"] = True
        keys[-1] = 1 if lead[-1] == 3 else 2
    if d.chance(0.4):
        options["is_causal"] = True
    mask = [d.one(d.arrays.random((t, s)) < 0.6, d.normal(t, s), d.arrays.random((*lead, t, s)) < 0.5)] if d.chance(0.4) else []
    arrays = [d.normal(*lead, t, e), d.normal(*keys, s, e), d.normal(*keys, s, d.one(e, e, e + 1)), *mask]
    both(lambda lib, F, q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *(g.detach() for g in m), **options), arrays)


def test_attention_of_sixteen_bits():
    for dtype in ("float16", "bfloat16"):
        q, k, v = x(2, 2, 5, 8), x(2, 2, 5, 8, seed=2), x(2, 2, 5, 8, seed=3)
        made = [F.scaled_dot_product_attention(*tensors(nc, (q, k, v), dtype), is_causal=True), TF.scaled_dot_product_attention(*tensors(torch, (q, k, v), dtype), is_causal=True)]
        assert made[0].dtype.name == dtype
        close(*made, dtype, 3e-2)


@pytest.mark.parametrize("number", range(40))
def test_samples_at_grids(number):
    d = Draw(number)
    n, size, out = d.size(1, 3), (d.size(1, 5), d.size(1, 5)), (d.size(1, 4), d.size(1, 4))
    options = d.some(mode=d.one("nearest", "bilinear"), padding_mode=d.one("border", "reflection", "zeros"), align_corners=d.one(True, False))
    both(lambda lib, F, a, g: F.grid_sample(a, g * 1.3, **options), [d.normal(n, 2, *size), d.normal(n, *out, 2)], 1e-3)
    axes = d.size(2, 3)
    sizes = [n, 2, *(d.size(1, 4) for _ in range(axes))]
    both(lambda lib, F, t: F.affine_grid(t, sizes, d.random.random() < 2), [d.normal(n, axes, axes + 1)])
    both(lambda lib, F, t: F.affine_grid(t, sizes), [d.normal(n, axes, axes + d.one(1, 1, 0))])


@pytest.mark.parametrize("number", range(30))
def test_temporal_classification(number):
    d = Draw(number)
    t, n, c, blank = d.size(2, 7), d.size(1, 3), d.size(2, 5), d.one(0, 1)
    steps, counts = [d.size(1, t) for _ in range(n)], [d.size(0, 3) for _ in range(n)]
    labels = np.array([[v if v < blank else v + 1 for v in d.arrays.integers(0, c - 1, 3)] for _ in range(n)], dtype=np.int32)
    options = {"blank": blank, "reduction": d.one("none", "mean", "sum"), "zero_infinity": True}
    flat_targets = np.concatenate([row[:k] for row, k in zip(labels, counts)])
    alone = n == 1 and d.chance(0.5)
    targets = labels if d.chance(0.5) or not flat_targets.size or alone else flat_targets
    if alone:
        targets = labels[0, : counts[0]] if counts[0] else labels

    def call(lib, F, a, targets):
        lengths = (lib.tensor(steps), lib.tensor(counts)) if number % 2 else (tuple(steps), tuple(counts))
        return F.ctc_loss(F.log_softmax(a, -1), targets, *lengths, **options)

    both(call, [d.normal(t, c) if alone and counts[0] else d.normal(t, n, c), targets])
    both(lambda lib, F, a, targets: F.ctc_loss(F.log_softmax(a, -1), targets, tuple(steps), tuple(counts)).detach(), [d.normal(t, n, c), labels])


IN_PLACE = {
    "relu_": (), "elu_": (0.5,), "selu_": (), "celu_": (2.0,), "leaky_relu_": (0.3,), "hardtanh_": (-0.5, 0.5), "threshold_": (0.1, 3.0), "rrelu_": (0.2, 0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place(name):
    def written(lib, F, a):
        y = a * 2
        z = getattr(F, name)(y, *IN_PLACE[name])
        assert z is y
        return y + z

    both(written, [x(3, 4)])
    both(lambda lib, F, a: getattr(F, name)(a, *IN_PLACE[name]), [x(3)])

    def of_a_view(lib, F, a):
        given = a.detach()
        getattr(F, name)(given[1], *IN_PLACE[name])
        return given

    both(of_a_view, [x(3, 4)])


@pytest.mark.parametrize("name", ["ReLU", "ReLU6", "SiLU", "Mish", "SELU", "Hardswish", "Hardsigmoid", "LeakyReLU", "ELU", "CELU", "Hardtanh", "Dropout"])
def test_layers_in_place(name):
    def program(lib, modules):
        model = modules.Sequential(modules.Linear(3, 4), modules.BatchNorm1d(4), getattr(modules, name)(inplace=True), modules.Linear(4, 2)).eval()
        with lib.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(lib.tensor(x(*p.shape, seed=i)))
        y = model(lib.tensor(x(5, 3)))
        y.sum().backward()
        return [y, *(p.grad for p in model.parameters())], repr(model)

    ours, theirs = program(nc, nn), program(torch, torch.nn)
    close(ours[0], theirs[0], name, 3e-4)
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("name", ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"])
@pytest.mark.parametrize("p", [0.2, 0.7])
def test_dropout(name, p):
    """Compares the share of dropped elements or channels, the kept values, mean and variance."""
    axes = {"Dropout1d": 1, "Dropout2d": 2, "Dropout3d": 3, "FeatureAlphaDropout": 2}.get(name, 0)
    shape = (40, 50, *(3,) * axes)
    given = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    nc.manual_seed(1), torch.manual_seed(1)
    ours, theirs = getattr(nn, name)(p)(nc.tensor(given)).numpy(), getattr(torch.nn, name)(p)(torch.tensor(given)).numpy()
    changed = [np.isclose(y, y.flat[np.argmin(np.abs(y - np.median(y)))]) if "Alpha" in name else y == 0 for y in (ours, theirs)]
    if "Alpha" not in name:
        kept = (ours != 0) & (theirs != 0)
        np.testing.assert_allclose(ours[kept], theirs[kept], rtol=1e-5)
        assert abs(changed[0].mean() - p) < 0.04
        if axes:
            rows = changed[0].reshape(2000, -1)
            assert (rows.all(1) | ~rows.any(1)).all()
    else:
        low = min(ours.min(), theirs.min())
        assert abs(np.sort(np.unique(np.round(ours, 4)))[0] - np.sort(np.unique(np.round(theirs, 4)))[0]) < 1 or low < 0
    assert abs(ours.mean() - theirs.mean()) < 0.1 and abs(ours.std() - theirs.std()) < 0.1


def signature(function):
    return [(p.name, p.default if not callable(p.default) else "function") for p in inspect.signature(function).parameters.values()]


def test_arguments_have_pytorchs_names_order_and_defaults():
    different = []
    for name in nn.__all__:
        theirs = getattr(torch.nn, name, None)
        if theirs is None or not inspect.isclass(theirs) or theirs.__init__ is torch.nn.Module.__init__ or name in ("Buffer", "Parameter", "Module", "RNN", "GRU", "LSTM"):
            continue
        ours = [a for a in signature(getattr(nn, name).__init__) if (name, a[0]) != ("Embedding", "std")]
        if ours != signature(theirs.__init__):
            different.append(name)
        if getattr(nn, name).forward is not nn.Module.forward and name != "RNNBase" and signature(getattr(nn, name).forward) != signature(theirs.forward):
            different.append(f"{name}.forward")
    for name in F.__all__:
        theirs = getattr(TF, f"_{name}", None) if "args" in str(_quiet(getattr(TF, name, None))) else getattr(TF, name, None)
        expected = _quiet(theirs)
        if expected is not None and [a for a in signature(getattr(F, name)) if a[0] != "axis"] != expected:
            different.append(f"F.{name}")
    assert not different


def _quiet(function):
    """Returns a signature, or ``None`` for a function of C."""
    try:
        return None if function is None else signature(function)
    except (TypeError, ValueError):
        return None


def test_missing_names_say_what_to_write():
    for name in torch.nn.modules.__all__:
        if name not in nn.__all__:
            with pytest.raises(AttributeError, match=name):
                getattr(nn, name)
    with pytest.raises(AttributeError, match="nn.Linear"):
        nn.LazyLinear(3)
    with pytest.raises(AttributeError, match="write"):
        F.fractional_max_pool2d  # noqa: B018
    with pytest.raises(NotImplementedError, match="bilinear"):
        F.grid_sample(nc.ones(1, 1, 2, 2), nc.ones(1, 1, 1, 2), "bicubic")
    with pytest.raises(AttributeError, match="forward"):
        nn.utils.weight_norm  # noqa: B018
    for call in (lambda: nn.utils.rnn.pack_padded_sequence(1, 2), lambda: nn.Linear(1, 1).double(), lambda: nn.Linear(1, 1).cuda(), lambda: nn.Linear(1, 1).compile()):
        with pytest.raises(NotImplementedError):
            call()
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        with pytest.raises(NotImplementedError):
            nn.Embedding(3, 2, **options)


INITS = {
    "uniform_": [(), (-1.0, 2.0)], "normal_": [(), (1.0, 0.5)], "trunc_normal_": [(), (0.5, 2.0, -1.0, 3.0), (0.0, 1.0, 1.0, 4.0)], "xavier_uniform_": [(), (2.0,)], "xavier_normal_": [(), (2.0,)],
    "kaiming_uniform_": [(), (0.5,), (0.0, "fan_out", "relu")], "kaiming_normal_": [(), (0.0, "fan_out"), (0.1, "fan_in", "selu")],
}  # fmt: skip


@pytest.mark.parametrize("shape", [(60, 50), (30, 8, 3, 3)])
@pytest.mark.parametrize("name", INITS)
def test_distributions_of_initial_values(name, shape):
    nc.manual_seed(0), torch.manual_seed(0)
    for args in INITS[name]:
        ours, theirs = nc.zeros(*shape), torch.zeros(*shape)
        assert getattr(nn.init, name)(ours, *args) is ours
        getattr(torch.nn.init, name)(theirs, *args)
        a, b = np.sort(ours.numpy().ravel()), np.sort(theirs.numpy().ravel())
        spread = b.std()
        # The distance between the distributions (Kolmogorov and Smirnov), at a level of about 1e-5.
        places = np.concatenate([a, b])
        distance = np.abs(np.searchsorted(a, places, "right") / a.size - np.searchsorted(b, places, "right") / b.size).max()
        assert distance < 2.5 * math.sqrt(2 / a.size), f"{name}{args}: distance {distance}"
        assert abs(a.mean() - b.mean()) < 0.1 * spread and abs(a.std() / spread - 1) < 0.06
        if "trunc" in name:
            low, high = args[2:] or (-2.0, 2.0)
            assert a[0] >= low and a[-1] <= high
        elif "uniform" in name:
            assert abs(a[0] - b[0]) < 0.05 * (b[-1] - b[0]) and abs(a[-1] - b[-1]) < 0.05 * (b[-1] - b[0])


LAYERS = {
    "Linear": (30, 40), "Conv1d": (6, 8, 5), "Conv2d": (6, 8, 5), "ConvTranspose2d": (12, 8, 5), "Bilinear": (5, 6, 7), "Embedding": (30, 20), "RNN": (20, 30), "GRU": (20, 30), "LSTM": (20, 30),
    "LSTMCell": (20, 30), "MultiheadAttention": (24, 2), "TransformerEncoderLayer": (16, 2, 32), "BatchNorm2d": (4,), "LayerNorm": (4,), "PReLU": (3,), "Transformer": (8, 2, 1, 1, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_initial_values_of_layers(name):
    """Compares the spread of each parameter over several layers with PyTorch's."""
    nc.manual_seed(2), torch.manual_seed(2)
    made = []
    for modules in (nn, torch.nn):
        layers = [getattr(modules, name)(*LAYERS[name]) for _ in range(6)]
        made.append({k: np.stack([dict(layer.named_parameters())[k].detach().numpy() for layer in layers]) for k, _ in layers[0].named_parameters()})
    assert list(made[0]) == list(made[1])
    for k, theirs in made[1].items():
        ours, few = made[0][k], 4 / math.sqrt(theirs.size)
        assert abs(ours.mean() - theirs.mean()) <= few * max(theirs.std(), 1e-12) * 2 and abs(ours.std() - theirs.std()) <= (0.02 + few) * theirs.std(), k
        if "Embedding" not in name:
            assert abs(np.abs(ours).max() - np.abs(theirs).max()) <= (0.03 + 2 * few) * np.abs(theirs).max(), k


def test_fixed_initial_values():
    def program(lib, modules):
        init = modules.init
        made = [init.constant_(lib.empty(2, 3), 1.5), init.ones_(lib.empty(3)), init.zeros_(lib.ones(3)), init.eye_(lib.empty(3, 4)), init.dirac_(lib.empty(4, 3, 3), 2), init.dirac_(lib.empty(2, 2, 3, 3))]
        q = init.orthogonal_(lib.empty(5, 2, 2), 2.0)
        q = q.reshape(5, 4)
        wide = init.orthogonal_(lib.empty(3, 7))
        return [*made, q.T @ q, wide @ wide.T], [tuple((init.sparse_(lib.empty(10, 4), 0.3) == 0).sum(0).tolist())]

    ours, theirs = program(nc, nn), program(torch, torch.nn)
    close(ours[0], theirs[0], "values", 1e-4)
    assert ours[1] == theirs[1]
    for name in ("linear", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"):
        assert nn.init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    assert nn.init.calculate_gain("leaky_relu", 0.3) == pytest.approx(torch.nn.init.calculate_gain("leaky_relu", 0.3))
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        for call in (lambda: modules.init.calculate_gain("gelu"), lambda: modules.init.xavier_uniform_(lib.ones(3)), lambda: modules.init.kaiming_normal_(lib.ones(3, 3), mode="fan"), lambda: modules.init.eye_(lib.ones(3)), lambda: modules.init.dirac_(lib.ones(3, 3))):
            with pytest.raises(ValueError):
                call()


@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping(norm, limit):
    def program(lib, modules):
        params = [modules.Parameter(lib.zeros(2, 3)), modules.Parameter(lib.zeros(4)), modules.Parameter(lib.zeros(1))]
        for i, p in enumerate(params[:2]):
            p.grad = lib.tensor(x(*p.shape, seed=i))
        utils = modules.utils
        total = utils.clip_grad_norm_(params, limit, norm)
        after = utils.get_total_norm([p.grad for p in params[:2]], norm)
        utils.clip_grad_value_(params, 0.2)
        empty = utils.clip_grad_norm_(params[2:], 1.0)
        return [total, after, empty, *(p.grad for p in params)]

    close(program(nc, nn), program(torch, torch.nn), "norms", 1e-4)
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        p = modules.Parameter(lib.zeros(1))
        p.grad = lib.tensor([float("inf")])
        with pytest.raises(RuntimeError):
            modules.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)


def test_vectors_sequences_and_merged_layers():
    def program(lib, modules):
        utils = modules.utils
        model = modules.Sequential(modules.Linear(2, 3), modules.Linear(3, 1))
        vector = lib.tensor(x(13))
        utils.vector_to_parameters(vector, model.parameters())
        rows = [lib.tensor(x(n, 2, seed=n)) for n in (3, 1, 2)]
        padded = [utils.rnn.pad_sequence(rows), utils.rnn.pad_sequence(rows, True, 7.0), utils.rnn.pad_sequence(rows, True, padding_side="left")]
        apart = utils.rnn.unpad_sequence(padded[1], lib.tensor([3, 1, 2]), True)
        conv, norm = modules.Conv2d(2, 3, 2).eval(), modules.BatchNorm2d(3).eval()
        with lib.no_grad():
            for i, t in enumerate([*conv.parameters(), *norm.parameters(), norm.running_mean, norm.running_var]):
                t.copy_(lib.tensor(np.abs(x(*t.shape, seed=i))))
        image = lib.tensor(x(1, 2, 4, 4))
        return [utils.parameters_to_vector(model.parameters()), model(lib.ones(1, 2)), *padded, *apart, utils.fusion.fuse_conv_bn_eval(conv, norm)(image) if lib is torch else utils.fuse_conv_bn_eval(conv, norm)(image)]

    close(program(nc, nn), program(torch, torch.nn), "values", 3e-4)
