"""Conversions and comparisons for tests next to PyTorch."""

import numpy as np
import torch

REFUSALS = (AssertionError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


def tensors(lib, given, dtype=None):
    """Converts arrays, also in tuples and dicts, to tensors. Arrays of int32 are indices, which are int64 in PyTorch."""
    if isinstance(given, (tuple, list)):
        return type(given)(tensors(lib, g, dtype) for g in given)
    if isinstance(given, dict):
        return {name: tensors(lib, g, dtype) for name, g in given.items()}
    if isinstance(given, np.generic):
        given = np.asarray(given)
    if not isinstance(given, np.ndarray):
        return given
    if lib is torch and given.dtype == np.int32:
        return torch.tensor(given).long()
    made = lib.tensor(given)
    return made.to(getattr(lib, dtype)) if dtype and given.dtype == np.float32 else made


def close(ours, theirs, what, tolerance):
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), what
        for a, b in zip(ours, theirs):
            close(a, b, what, tolerance)
        return
    assert (ours is None) == (theirs is None), what
    if theirs is None:
        return
    assert tuple(ours.shape) == tuple(theirs.shape), f"{what}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
    a, b = ours.detach().float().numpy(), theirs.detach().float().numpy()
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0))), err_msg=what)


def flat(y):
    return [part for t in y for part in flat(t)] if isinstance(y, (tuple, list)) else [y]


def graded(given):
    """Returns the tensors of floats, which get gradients."""
    return [t.requires_grad_() for t in flat(given) if "float" in str(t.dtype)]
