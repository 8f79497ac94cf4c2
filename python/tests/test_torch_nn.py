"""Layers and losses next to PyTorch's: drawn calls with the same results, gradients, states and texts, or both refuse."""

import warnings
import zlib

import numpy as np
import pytest

import netcl as nc
from netcl import nn

torch = pytest.importorskip("torch")

from torch_checks import REFUSALS, close, flat, graded, tensors  # noqa: E402
from torch_layers import LAYERS, LOSSES, UNGRADED, Draw  # noqa: E402

CASES = 20
# Results of 16 bits are compared with PyTorch's float32 results of the same rounded numbers.
ROUNDED = {"float16": 2e-2, "bfloat16": 1e-1}
DTYPES = {"torch.float16": "float16", "torch.bfloat16": "bfloat16", "torch.float32": "float32"}
# The loss is float32 for every dtype.
FLOAT32 = ("CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss")


def run(lib, layer, arrays, training, dtype, weights):
    """Returns the result, and gradients of inputs and parameters."""
    layer.train(training)
    given = tensors(lib, arrays, dtype)
    leaves = graded(given[:-1] if type(layer).__name__ in UNGRADED else given)
    made = layer(*given)
    parts = [t for t in flat(made) if t.requires_grad]
    if parts:
        total = sum((p.float() * tensors(lib, w)).sum() for p, w in zip(parts, weights(parts)))
        total.backward()
    return made, [t.grad for t in leaves], {name: p.grad for name, p in layer.named_parameters()}


def rounded(arrays, dtype):
    if isinstance(arrays, (tuple, list)):
        return type(arrays)(rounded(a, dtype) for a in arrays)
    return torch.tensor(arrays).to(getattr(torch, dtype)).float().numpy() if arrays.dtype == np.float32 else arrays


def stored(made, dtype):
    """Rounds PyTorch's results of float32 to a dtype."""
    if isinstance(made, (tuple, list)):
        return [stored(t, dtype) for t in made]
    return made.to(getattr(torch, dtype)) if made is not None and made.is_floating_point() else made


def states(layer):
    return {name: tuple(t.shape) for name, t in layer.state_dict().items()}


def pair(name, args, options):
    """Creates the layer in both libraries. Returns what both refuse as ``None``."""
    made, errors = [], []
    for lib, modules in ((nc, nn), (torch, torch.nn)):
        try:
            made.append(getattr(modules, name)(*tensors(lib, args), **tensors(lib, options)))
        except REFUSALS as error:
            errors.append((modules.__name__, error))
    assert len(errors) != 1, f"{name}{args, options}: only {errors[0][0]} refuses: {errors[0][1]}"
    return None if errors else made


def check(title, draw, number):
    name = title.split()[0]
    d = Draw(zlib.crc32(f"{title} {number}".encode()))
    args, options, arrays = draw(d)
    layers = pair(name, args, options)
    if layers is None:
        return False
    ours, theirs = layers
    what = f"{name} {args, options} of {[np.shape(a) for a in flat(arrays)]}"
    assert repr(ours) == repr(theirs), what
    assert states(ours) == {n: tuple(t.shape) for n, t in theirs.state_dict().items()}, what
    assert list(ours.state_dict()) == list(theirs.state_dict()), what
    ours.load_state_dict(theirs.state_dict())
    before = {n: t.clone() for n, t in theirs.state_dict().items()}
    training = d.chance(0.5) and name != "RReLU"
    dtype = d.one(None, None, "float16", "bfloat16") if number % 4 == 3 else None
    if dtype:
        ours, theirs = ours.to(getattr(nc, dtype)), theirs.to(getattr(torch, dtype))
        arrays = rounded(arrays, dtype)

    def weights(parts):
        return [np.random.default_rng(i).normal(size=tuple(p.shape)).astype(np.float32) for i, p in enumerate(parts)]

    found, errors = [], []
    for lib, layer in ((nc, ours), (torch, theirs)):
        try:
            found.append(run(lib, layer, arrays, training, dtype, weights))
        except REFUSALS as error:
            errors.append((lib.__name__, error))
    if dtype and errors and errors[0][0] == "torch":
        return False  # PyTorch does not have this layer in 16 bits on the CPU.
    assert len(errors) != 1, f"{what}: only {errors[0][0]} refuses: {errors[0][1]}"
    if errors:
        return False
    if dtype:
        assert [t.dtype.name for t in flat(found[0][0])] == [DTYPES.get(str(t.dtype), "int32") for t in flat(found[1][0])] or name in FLOAT32, what
        theirs.load_state_dict(before)
        theirs.zero_grad()
        made, given, own = run(torch, theirs.float(), arrays, training, None, weights)
        found[1] = (made if name in FLOAT32 else stored(made, dtype), stored(given, dtype), {key: stored(g, dtype) for key, g in own.items()})
    tolerance = ROUNDED[dtype] if dtype else 3e-4
    close(found[0][0], found[1][0], f"{what}: result", tolerance)
    close(found[0][1], found[1][1], f"{what}: gradients of inputs", tolerance)
    assert list(found[0][2]) == list(found[1][2]), what
    for key, gradient in found[1][2].items():
        close(found[0][2][key], gradient, f"{what}: gradient of {key}", tolerance)
    close([ours.state_dict()[n] for n in theirs.state_dict()], list(theirs.state_dict().values()), f"{what}: state", tolerance)
    return True


@pytest.mark.parametrize("title", [*LAYERS, *LOSSES])
def test_layers(title):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = [check(title, {**LAYERS, **LOSSES}[title], number) for number in range(CASES)]
    assert sum(done) >= CASES // 2, f"{sum(done)} of {CASES} cases computed something"
