"""Comparison of calls with PyTorch's: value, dtype, shape, gradient, and refusals."""

import numpy as np

import netcl as nc

REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError, KeyError, OverflowError)
DTYPES = {"int64": "int32", "float64": "float32", "uint8": "int32"}


def dtype_of(x):
    name = str(x.dtype).rsplit(".", 1)[-1]
    return DTYPES.get(name, name)


def agree(ours, theirs, rtol=2e-5, atol=1e-5, where=""):
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), where
        for key in theirs:
            agree(ours[key], theirs[key], rtol, atol, where)
    elif isinstance(theirs, (tuple, list)) and not all(isinstance(v, (int, float)) for v in theirs):
        assert len(ours) == len(theirs), f"{where}: {len(ours)} results, expected {len(theirs)}"
        for a, b in zip(ours, theirs):
            agree(a, b, rtol, atol, where)
    elif hasattr(theirs, "detach"):
        assert isinstance(ours, nc.Tensor), f"{where}: {ours!r}, expected a tensor"
        assert tuple(ours.shape) == tuple(theirs.shape), f"{where}: shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}"
        assert dtype_of(ours) == dtype_of(theirs), f"{where}: {ours.dtype}, expected {theirs.dtype}"
        np.testing.assert_allclose(ours.detach().float().numpy(), theirs.detach().float().numpy(force=True), rtol=rtol, atol=atol, err_msg=where)
    elif isinstance(theirs, float):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=where)
    else:
        assert (tuple(ours) == tuple(theirs)) if isinstance(theirs, (tuple, list)) else ours == theirs, f"{where}: {ours!r}, expected {theirs!r}"


def floats(made):
    """Returns the float tensors among results."""
    if isinstance(made, (tuple, list)):
        return [t for part in made for t in floats(part)]
    return [made] if hasattr(made, "detach") and "float" in str(made.dtype) else []


def same(torch, call, *arrays, graded=True, rtol=2e-5, atol=1e-5, where=""):
    """Compares a call on equal tensors. Returns "agree", "both refuse", or "refused" if only netcl refuses, with the error that says what to write."""
    made, leaves, errors = [], [], []
    for lib in (nc, torch):
        given = [lib.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
        own = [g.requires_grad_() for g, a in zip(given, arrays) if graded and isinstance(a, np.ndarray) and a.dtype == np.float32]
        try:
            made.append(call(lib, *given))
        except REFUSALS as error:
            errors.append((lib is nc, error))
        leaves.append(own)
    if len(errors) == 1:
        ours, error = errors[0]
        assert ours, f"{where}: only PyTorch refuses: {error}"
        assert isinstance(error, nc.errors.UnsupportedError) or isinstance(error, AttributeError) and "write" in str(error), f"{where}: only netcl refuses: {error!r}"
        return "refused"
    if errors:
        return "both refuse"
    agree(made[0], made[1], rtol, atol, where)
    for y, own in zip(made, leaves):
        parts = [p for p in floats(y) if p.requires_grad and p.numel()]
        if own and parts:
            total = sum((p * p + p).sum() for p in parts)
            try:
                total.backward()
            except (RuntimeError, NotImplementedError) as error:
                # PyTorch does not have every derivative.
                assert not isinstance(total, nc.Tensor) and "derivative" in str(error), where
                return "agree"
    for a, b in zip(*leaves):
        if a.grad is None and b.grad is not None and not b.grad.numel():
            continue
        assert (a.grad is None) == (b.grad is None), f"{where}: gradient {a.grad}, expected {b.grad}"
        if a.grad is not None:
            agree(a.grad, b.grad, max(rtol, 1e-4), max(atol, 1e-4), where + ", gradient")
    return "agree"
