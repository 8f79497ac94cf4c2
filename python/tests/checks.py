"""Inputs and checks that several tests share."""

import re

import numpy as np
import seeds

import netcl as nc
from netcl.compat.plan import autograd

RANDOM = np.random.default_rng(7)


def inline(number, start):
    """Returns the inline code of a document that begins with ``start``."""
    found = [code for code in re.findall(r"`([^`\n]+)`", seeds.text(number)) if code.startswith(start)]
    assert found, f"document {number} does not have inline code that begins with {start!r}"
    return found[0]


def data(*shape):
    """Draws normally distributed numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def device():
    """Returns the device of the tests."""
    return nc.default_device()


def slopes(f, xs, dy, h=1e-2):
    """Computes gradients of ``(f(*xs) * dy).sum()`` by central differences."""
    out = []
    for k, x in enumerate(xs):
        slope = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            ends = []
            for sign in (h, -h):
                moved = [a.copy() for a in xs]
                moved[k][at] += sign
                ends.append((f(*[nc.tensor(a) for a in moved]).to_host().astype(np.float64) * dy).sum())
            slope[at] = (ends[0] - ends[1]) / (2 * h)
        out.append(slope)
    return out


def check_gradients(f, *xs, atol=2e-2):
    leaves = [autograd.tensor(x, True) for x in xs]
    y = f(*leaves)
    dy = data(*y.shape)
    autograd.Tape().backward(y, nc.tensor(dy))
    for leaf, expected in zip(leaves, slopes(f, xs, dy)):
        assert np.allclose(leaf.grad.to_host(), expected, atol=atol, rtol=2e-2)
