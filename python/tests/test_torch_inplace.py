"""Writes in place next to PyTorch's: operators, views, gradients, and refusals."""

import operator

import numpy as np
import pytest

import netcl as nc

torch = pytest.importorskip("torch")

BOTH = ((nc, np.float32), (torch, np.float32))
DATA = np.array([[1.5, -2.0, 3.0, 0.5], [4.0, 5.5, -6.0, 2.0], [0.25, 1.0, 2.5, -3.5]], dtype=np.float32)
OPERATORS = ["iadd", "isub", "imul", "itruediv", "ipow", "ifloordiv", "imod"]


def both(program, *arrays):
    """Runs a program in netcl and in PyTorch. Its results must agree, or both must refuse. Returns the number of refusals."""
    made, errors = [], []
    for lib in (nc, torch):
        try:
            made.append(program(lib, *(lib.tensor(a) for a in arrays)))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            errors.append(error)
    assert len(errors) != 1, f"only one refuses: {errors}"
    if not errors:
        for ours, theirs in zip(*(m if isinstance(m, (tuple, list)) else (m,) for m in made)):
            theirs = theirs.detach().float().numpy()
            np.testing.assert_allclose(ours.detach().float().numpy(), theirs, rtol=1e-5, atol=1e-5)
    return len(errors)


VIEWS = {
    "row": lambda x: x[1], "columns": lambda x: x[:, 1:3], "steps": lambda x: x[::2], "steps of columns": lambda x: x[:, ::3],
    "odd": lambda x: x[:, 1::2], "element": lambda x: x[2, 3], "transpose": lambda x: x.T, "reshape": lambda x: x.reshape(-1),
    "new axis": lambda x: x[None, ::2, 1:], "rest": lambda x: x[..., ::2], "nested": lambda x: x[::2][:, 1::2], "detach": lambda x: x.detach(),
    "unsqueeze": lambda x: x.unsqueeze(0), "past the end": lambda x: x[0:99:2], "one": lambda x: x[1::5],
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_on_a_view_changes_its_base(view, name):
    def program(lib, x):
        y = VIEWS[view](x)
        kept = y
        y = getattr(operator, name)(y, 2.0 if name != "ipow" else 2)
        assert y is kept
        return x, y

    assert not both(program, DATA)


@pytest.mark.parametrize("name", OPERATORS)
def test_operands_are_tensors_that_broadcast(name):
    def program(lib, x, other):
        x = x.abs() + 1
        before = x
        x = getattr(operator, name)(x, other)
        assert x is before
        return x

    assert not both(program, DATA, np.array([2.0, 3.0, 0.5, 1.0], dtype=np.float32))
    assert both(lambda lib, x, y: getattr(operator, name)(y, x), DATA, DATA[0]), "the result is larger than what is written"


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "ifloordiv", "imod", "itruediv", "iand", "ior", "ixor", "ilshift", "irshift"])
@pytest.mark.parametrize("other", [3, 2.5])
def test_integers_keep_their_type_or_refuse(name, other):
    values = np.array([5, -7, 12], dtype=np.int32)

    def program(lib, x):
        x = getattr(operator, name)(x, other)
        assert "int32" in str(x.dtype)
        return x

    if name in ("iand", "ior", "ixor", "ilshift", "irshift") and isinstance(other, float):
        for lib in (nc, torch):
            with pytest.raises((RuntimeError, TypeError)):
                program(lib, lib.tensor(values))
    else:
        both(program, values)


@pytest.mark.parametrize("name", ["iand", "ior", "ixor"])
def test_masks(name):
    a, b = np.array([True, False, True]), np.array([True, True, False])

    def program(lib, x, y):
        before = x
        x = getattr(operator, name)(x, y)
        assert x is before
        return x

    both(program, a, b)


def leaf(lib, array):
    return lib.tensor(array, requires_grad=True)


def trained(lib, x):
    p = leaf(lib, DATA)
    for _ in range(3):
        p.grad = None
        (p * p * x).sum().backward()
        with lib.no_grad():
            p -= 0.1 * p.grad
    return p, p.grad


def clipped(lib, x):
    p = leaf(lib, DATA)
    (p * x).sum().backward()
    g = p.grad
    g *= 0.25
    p.grad /= 2
    return p.grad, g


def computed(lib, x):
    p = leaf(lib, DATA)
    y = p * 2
    y += x
    y *= 3
    y -= p
    y /= 4
    y.sum().backward()
    return y, p.grad


def total(lib, x):
    p, loss = leaf(lib, DATA), lib.zeros(())
    for row in range(3):
        loss += (p[row] * x[row]).sum()
    loss /= 3
    loss.backward()
    return loss, p.grad


def zeroed(lib, x):
    p = leaf(lib, DATA)
    y = p * x
    y[0] = 0
    y[1, ::2] = 7
    y[:, -1] = p[:, 0]
    (y * x).sum().backward()
    return y, p.grad


def collected(lib, x):
    p, out = leaf(lib, DATA), lib.zeros((3, 4))
    for row in range(3):
        out[row] = p[2 - row] * x[row]
    (out * out).sum().backward()
    return out, p.grad


def masked(lib, x):
    p = leaf(lib, DATA)
    y = p * 2
    y[x > 1] = 0.5
    (y * x).sum().backward()
    return y, p.grad


def filled(lib, x):
    p = leaf(lib, DATA)
    y, z = p * x, p * 3
    y.fill_(2.0)
    z.zero_()
    (y * p + z).sum().backward()
    return y, z, p.grad


def copied(lib, x):
    p, q = leaf(lib, DATA), leaf(lib, DATA[0])
    y = p * x
    y.copy_(q * 3)
    z = lib.zeros((3, 4))
    z.copy_(p)
    (y * z).sum().backward()
    return y, z, p.grad, q.grad


def by_tensors(lib, x):
    p, w = leaf(lib, DATA), leaf(lib, DATA[0])
    y = p * 1
    y += w
    y -= w * w
    y.sum().backward()
    return y, p.grad, w.grad


def without_recording(lib, x):
    p = leaf(lib, DATA)
    with lib.no_grad():
        p[0] = 5
        p[:, ::2] *= 2
        p[2].fill_(1.0)
        p[1].zero_()
        row = p[0]
        row += 1
    (p * p).sum().backward()
    return p, p.grad


def detached(lib, x):
    p = leaf(lib, DATA)
    y = p * x
    d = p.detach()
    d += 1
    return p, y, d


AGREE = [trained, clipped, computed, total, zeroed, collected, masked, filled, copied, by_tensors, without_recording, detached]


@pytest.mark.parametrize("program", AGREE, ids=lambda f: f.__name__)
def test_programs_that_write(program):
    assert not both(program, DATA[::-1].copy())


LEAF_WRITES = {
    "+=": lambda lib, p: operator.iadd(p, 1), "*= tensor": lambda lib, p: operator.imul(p, lib.ones(4)), "[0] =": lambda lib, p: operator.setitem(p, 0, 1.0),
    "fill_": lambda lib, p: p.fill_(1.0), "zero_": lambda lib, p: p.zero_(), "copy_": lambda lib, p: p.copy_(lib.ones(4)),
    "a row": lambda lib, p: operator.iadd(p[0], 1), "mask": lambda lib, p: operator.setitem(p, p > 0, 0.0), "add_": lambda lib, p: p.add_(1),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAF_WRITES)
def test_a_leaf_refuses_outside_no_grad_and_keeps_its_values(name):
    for lib in (nc, torch):
        p = leaf(lib, DATA)
        with pytest.raises(RuntimeError):
            LEAF_WRITES[name](lib, p)
        np.testing.assert_array_equal(p.detach().numpy(), DATA)
    with pytest.raises(RuntimeError, match="no_grad|new result"):
        LEAF_WRITES[name](nc, leaf(nc, DATA))


def through_a_view(lib, p):
    y = p * 2
    row = y[0]
    row *= 3
    return y


def under_a_view(lib, p):
    y = p * 2
    row = y[0]
    y *= 3
    return row


def under_a_reshape(lib, p):
    y = p * 2
    flat = y.reshape(-1)
    y[0] = 0
    return flat


def under_a_detached_tensor(lib, p):
    y = p * 2
    d = y.detach()
    y += 1
    return d


def under_a_step(lib, p):
    y = p * 2
    z = y[::2]
    y.fill_(1.0)
    return z


@pytest.mark.parametrize("program", [through_a_view, under_a_view, under_a_reshape, under_a_detached_tensor, under_a_step], ids=lambda f: f.__name__)
def test_a_write_that_views_would_see_is_right_or_refused(program):
    theirs = program(torch, leaf(torch, DATA))
    try:
        ours = program(nc, leaf(nc, DATA))
    except NotImplementedError as error:
        assert "clone" in str(error)
    else:
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy())


def saved_by_square(lib, p):
    y = p * 2
    z = y * y
    y += 1
    z.sum().backward()


def saved_by_exp(lib, p):
    y = p.exp()
    y += 1
    y.sum().backward()


def weight_written(lib, p):
    z = (p * leaf(lib, DATA)).sum()
    with lib.no_grad():
        p += 1
    z.backward()


@pytest.mark.parametrize("program", [saved_by_square, saved_by_exp, weight_written], ids=lambda f: f.__name__)
def test_overwriting_what_a_backward_needs_is_an_error(program):
    for lib in (nc, torch):
        with pytest.raises(RuntimeError):
            program(lib, leaf(lib, DATA))


def test_expanded_tensors_refuse():
    for lib in (nc, torch):
        x = lib.tensor(DATA[:1]).expand(3, 4)
        with pytest.raises(RuntimeError):
            x += 1


def test_matrix_products_make_a_new_tensor():
    for lib in (nc, torch):
        x = y = lib.tensor(DATA)
        x @= lib.tensor(DATA.T.copy())
        assert x is not y and tuple(x.shape) == (3, 3)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("start", [None, 0, 1, 5, -3])
@pytest.mark.parametrize("stop", [None, 4, 11, -1])
def test_slices_with_steps_are_views_with_gradients(step, start, stop):
    values = np.arange(24, dtype=np.float32).reshape(12, 2)

    def program(lib, x):
        p = lib.tensor(values, requires_grad=True)
        y = p[start:stop:step]
        (y * y).sum().backward()
        x[start:stop:step] = -1
        z = x[start:stop:step]
        z *= 2
        return y, p.grad, x

    assert not both(program, values)
