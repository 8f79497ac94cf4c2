"""Fused blocks: one kernel, the results of single operations, and the same errors."""

import threading

import numpy as np
import pytest

import netcl as nc


def device():
    return nc.default_device()


def launched(f, *args):
    """Returns the result of `f` and the number of kernels that it launched."""
    f(*args)
    before = device().launches
    made = f(*args)
    return made, device().launches - before


def chain(x, y):
    a = x * 2.0 + y
    b = a.sigmoid() * x
    return (b - y).square() + 1


def test_a_fused_function_is_one_kernel_with_the_values_of_its_operations():
    x, y = nc.randn(5, 7), nc.randn(5, 7)
    expected, single = launched(chain, x, y)
    fused = nc.fuse(chain)
    got, count = launched(fused, x, y)
    assert count == 1 and single == 7
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert fused.__name__ == "chain" and fused(x, y).tolist() == got.tolist(), "the same bits in every run"


def test_gradients_are_those_of_the_operations():
    x, y = (nc.randn(4, 6, generator=nc.Generator(s)) for s in (1, 2))
    grads = []
    for f in (chain, nc.fuse(chain)):
        x.requires_grad, y.requires_grad = True, True
        x.grad = y.grad = None
        f(x, y).sum().backward()
        grads.append((x.grad.numpy(), y.grad.numpy()))
    for single, fused in zip(*grads):
        np.testing.assert_allclose(fused, single, rtol=1e-4, atol=1e-5)
    with nc.no_grad():
        assert not nc.fuse(chain)(x, y).requires_grad
    with nc.fuse():
        with nc.no_grad():
            quiet = x * y + 1
        loud = x * y + 1
    assert not quiet.requires_grad and loud.requires_grad
    loud.sum().backward()


def test_a_block_is_computed_when_something_uses_it():
    x = nc.tensor([1.0, 2.0, 3.0])
    with nc.fuse() as block:
        y = x * 2 + 1
        assert y.tolist() == [3, 5, 7], "the host reads within the block"
        assert (y.sum() + 1).item() == 16
        np.testing.assert_array_equal(y[1:].numpy(), [5, 7])
        z = (y * y).exp().log()
        assert z.shape == (3,)
        # Pending reads finish before a tensor is overwritten.
        before = x + 10
        x.copy_(nc.zeros(3))
    np.testing.assert_allclose(z.numpy(), [9, 25, 49], rtol=1e-5)
    assert before.tolist() == [11, 12, 13] and block.explanation == "" and str(block) == ""


def test_what_follows_a_product_is_its_epilogue():
    x, w, b = nc.randn(96, 64), nc.randn(64, 48), nc.randn(48)

    def layer(x):
        return (x @ w + b).relu() * 0.5

    expected = np.maximum(x.numpy() @ w.numpy() + b.numpy(), 0) * 0.5
    got, count = launched(nc.fuse(layer), x)
    assert count == 1
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_trees_and_sources_are_shown():
    x = nc.randn(3, 64)
    with nc.fuse(explain=True) as block:
        y = (x - x.mean(-1, keepdim=True)).exp()
    for part in ("__kernel void", "v4 = exp(v3)", "sum(v0, axes [-1])"):
        assert part in block.explanation, block.explanation
    del y
    fused = nc.fuse(lambda x: x * x + 1)
    text = fused.explain(x)
    assert "__kernel void" in text and text.count("__kernel void") == 1
    # A nested block is part of the outer block.
    with nc.fuse(explain=True) as outer:
        assert fused.explain(x) == ""
        z = x.sigmoid()
    assert "__kernel void" in outer.explanation
    del z


def test_errors_are_those_of_the_operations_and_of_the_block():
    x = nc.ones(3)
    with pytest.raises(nc.errors.ShapeError):
        with nc.fuse():
            y = x + 1
            y + nc.ones(4)
    assert y.tolist() == [2, 2, 2], "pending results are computed"
    with pytest.raises(KeyError, match="own"):
        with nc.fuse():
            z = x * 3
            raise KeyError("own")
    assert z.tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match="generator or coroutine"):

        @nc.fuse
        def yields():
            yield x + 1

    with pytest.raises(ValueError, match="generator or coroutine"):

        @nc.fuse
        async def waits():
            return x + 1

    inner = nc.fuse()
    inner.__enter__()
    outer = nc.fuse()
    outer.__enter__()
    with pytest.raises(NotImplementedError, match="order"):
        inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    with pytest.raises(IndexError):
        inner.__exit__(None, None, None)
    # The block's depth is lost, so the test closes the thread's scope itself.
    nc._netcl.exit_lazy(1)


def test_scopes_that_free_memory_compute_before():
    x = nc.ones(4)
    with nc.fuse():
        with nc.scope() as inside:
            part = x * 3
            kept = inside.keep(part + 1)
    assert kept.tolist() == [4, 4, 4, 4]
    with pytest.raises(nc.errors.LaunchError):
        part.tolist()


def test_threads():
    x, found = nc.ones(8), {}

    def use(y):
        try:
            found["values"] = y.tolist()
        except nc.errors.LaunchError as error:
            found["error"] = str(error)

    with nc.fuse():
        y = x + 1
        thread = threading.Thread(target=use, args=(y,))
        thread.start()
        thread.join()
    assert "lazy scope" in found["error"]
    use(y)
    assert found["values"] == [2] * 8

    def own():
        with nc.fuse():
            z = (x + 2) * 3
        found["own"] = z.tolist()

    thread = threading.Thread(target=own)
    thread.start()
    thread.join()
    assert found["own"] == [9] * 8
    # A thread can end with an open block.
    thread = threading.Thread(target=lambda: nc.fuse().__enter__())
    thread.start()
    thread.join()
    assert (x + 1).tolist() == [2] * 8


def test_captured_steps_may_be_fused():
    x = nc.randn(3, 5)
    graph = nc.Graph(nc.fuse(chain), x, x)
    assert graph.commands[0] == 1
    np.testing.assert_allclose(graph(x, x).numpy(), chain(x, x).numpy(), rtol=1e-5, atol=1e-6)
