"""Compares every operation with PyTorch on the samples of its OpInfo: values and gradients in float32. Skipped if PyTorch is not installed.

A sample passes, or needs something that netcl does not support (`Other` in opinfo_map.py, with the reason), or is in `KNOWN` below.
"""

from collections import Counter

import numpy as np
import pytest

import netcl as nc
import opinfo_map

torch = pytest.importorskip("torch", reason="PyTorch is not installed, so its OpInfo samples are not run")
methods = pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="this PyTorch does not have OpInfo")

INFOS = {(info.name, info.variant_test_name): info for info in methods.op_db}

# Samples that fail: operation, parts of the message, reason.
KNOWN = [
    (
        "layer_norm",
        ("input=Tensor[size=(1,)", "gradient"),
        "a row of one element: its gradient, 0, becomes a rounding error times 1 / sqrt(eps) = 316",
    ),
    ("pad", ("input=Tensor[size=(0, 3, 3)", "this tensor does not depend on anything that needs a gradient"), "a tensor without elements has an empty gradient"),
]


class Pairs:
    """PyTorch tensors and their netcl counterparts."""

    def __init__(self):
        self.leaves = []

    def of(self, value):
        if isinstance(value, torch.Tensor):
            if value.dtype in (torch.float64, torch.complex64):
                raise opinfo_map.Other(f"inputs of {value.dtype}")
            here = nc.tensor(value.detach().contiguous().numpy())
            if value.requires_grad:
                here.requires_grad = True
                self.leaves.append((value, here))
            return here
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return type(value)(self.of(v) for v in value)
        return tuple(value) if isinstance(value, torch.Size) else value


def flat(ys):
    return list(ys) if isinstance(ys, (tuple, list)) else [ys]


def close(ours, theirs, what):
    theirs = theirs.detach()
    assert tuple(ours.shape) == tuple(theirs.shape), f"{what}: shape {ours.shape}, expected {tuple(theirs.shape)}"
    a, b = ours.numpy().astype(np.float64), theirs.float().numpy().astype(np.float64)
    coarse = {"float16": 2e-3, "bfloat16": 2e-2}.get(ours.dtype.name, 1e-4)
    finite = np.abs(b[np.isfinite(b)])
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    np.testing.assert_allclose(a, b, rtol=coarse, atol=2e-6 * scale + 1e-6, err_msg=what)


def examine(info, call, sample, gradients, name):
    pairs = Pairs()
    given = [pairs.of(v) for v in (sample.input, *sample.args)]
    options = {k: pairs.of(v) for k, v in sample.kwargs.items()}
    ours = flat(call(*given, **options))
    theirs = flat(info.op(sample.input, *sample.args, **sample.kwargs))
    theirs = theirs[: len(ours)] if len(ours) < len(theirs) and len(ours) == 1 else theirs
    assert len(ours) == len(theirs), f"{len(ours)} results, expected {len(theirs)}"
    for a, b in zip(ours, theirs):
        close(a, b, "value")
    seen = [(a, b) for a, b in zip(ours, theirs) if gradients and b.requires_grad and a.dtype.is_floating_point]
    if not seen or not pairs.leaves:
        return
    if name in opinfo_map.NO_GRADIENT:
        assert not any(a.requires_grad for a, _ in seen), f"{name} has a gradient; remove it from NO_GRADIENT"
        return
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(b.shape, generator=generator, dtype=torch.float32) for _, b in seen]
    leaves = [leaf for leaf, _ in pairs.leaves]
    expected = torch.autograd.grad([b for _, b in seen], leaves, [w.to(b.dtype) for w, (_, b) in zip(weights, seen)], allow_unused=True)
    total = None
    for (a, _), w in zip(seen, weights):
        part = (a.float() * nc.tensor(w.numpy())).sum()
        total = part if total is None else total + part
    total.backward()
    for (leaf, here), grad in zip(pairs.leaves, expected):
        if grad is None:
            continue
        found = here.grad if here.grad is not None else nc.zeros(*here.shape)
        close(found, grad, "gradient")


def with_arguments(samples, instead):
    """Yields samples with other arguments, if there are any."""
    for sample in samples:
        if not instead:
            yield sample
            continue
        for args, kwargs in instead[0]:
            leaf = sample.input.detach().requires_grad_(sample.input.requires_grad)
            yield type(sample)(leaf, args=args, kwargs=kwargs)


@pytest.mark.parametrize("name", sorted(opinfo_map.MAPPED))
def test_samples(name, capsys):
    passed, others, failures = 0, Counter(), []
    for op_name, variant, call, *instead in opinfo_map.MAPPED[name]:
        info = INFOS[op_name, variant]
        gradients = info.supports_autograd and torch.float32 in info.supported_backward_dtypes("cpu")
        kind = torch.float32 if torch.float32 in info.supported_dtypes("cpu") else torch.int64
        for sample in with_arguments(info.sample_inputs("cpu", kind, requires_grad=gradients and kind.is_floating_point), instead):
            try:
                examine(info, call, sample, gradients, name)
                passed += 1
            except opinfo_map.Other as reason:
                others[str(reason)] += 1
            except Exception as error:
                words = f"{op_name} {sample.summary()}: {type(error).__name__}: {error}"
                known = [reason for op, parts, reason in KNOWN if op == name and all(part in words for part in parts)]
                if known:
                    others[known[0]] += 1
                else:
                    failures.append(words[:900])
    with capsys.disabled():
        left = "".join(f"; {n} with {reason}" for reason, n in others.items())
        print(f"\nOpInfo {name}: {passed} pass{', ' + str(len(failures)) + ' fail' if failures else ''}{left}", end="")
    assert not failures, "\n".join(failures[:5])
    assert passed > 0
