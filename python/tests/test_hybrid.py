"""Operations on device tensors and host arrays, and memory that is freed at the end of a block."""

import gc
import time

import numpy as np
import pytest

import netcl as nc

RANDOM = np.random.default_rng(0)


def array(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def live():
    """Returns bytes and buffers in use, after the threads of unreferenced models have freed their memory."""
    device, found = nc.default_device(), []
    while len(found) < 2 or found[-1] != found[-2]:
        gc.collect()
        device.synchronize()
        found.append((device.memory()[0], device.memory()[3]))
        time.sleep(0.05)
    return found[-1]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(qkv, heads, causal=True):
    t, c = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = (qkv[:, i * c : (i + 1) * c].reshape(t, heads, -1).transpose(1, 0, 2) for i in range(3))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(c // heads)
    if causal:
        scores = np.where(np.tril(np.ones((t, t), bool)), scores, -np.inf)
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(t, c)


def slope(f, x, dy, h=1e-3):
    """Computes the gradient of ``(f(x) * dy).sum()`` with central differences in double precision."""
    x = x.astype(np.float64)
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += h
        down[at] -= h
        out[at] = ((f(up) - f(down)) * dy).sum() / (2 * h)
    return out


def test_a_product_with_a_bias_on_both_levels():
    a, b, bias, dy = array(5, 3), array(3, 4), array(4), array(5, 4)
    y = nc.hybrid.matmul(a, b, bias)
    assert isinstance(y, np.ndarray) and np.allclose(y, a @ b + bias, atol=1e-5)
    assert np.allclose(nc.hybrid.matmul(a.tolist(), b.tolist()), a @ b, atol=1e-5)
    da, db, dbias = nc.hybrid.matmul_backward(dy, a, b, bias)
    assert np.allclose(da, dy @ b.T, atol=1e-5) and np.allclose(db, a.T @ dy, atol=1e-5) and np.allclose(dbias, dy.sum(0), atol=1e-5)
    assert len(nc.hybrid.matmul_backward(dy, a, b)) == 2
    on = [nc.tensor(x) for x in (a, b, bias, dy)]
    z = nc.hybrid.matmul(*on[:3])
    assert isinstance(z, nc.Tensor) and not z.requires_grad and np.array_equal(z.numpy(), y)
    assert all(isinstance(g, nc.Tensor) and np.array_equal(g.numpy(), h) for g, h in zip(nc.hybrid.matmul_backward(on[3], *on[:3]), (da, db, dbias)))


def test_norm_gelu_and_residual():
    x, gamma, beta, dy = array(4, 6), array(6), array(6), array(4, 6)

    def norm(x, gamma=gamma, beta=beta):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta

    assert np.allclose(nc.hybrid.layer_norm(x, gamma, beta), norm(x), atol=1e-5)
    dx, dgamma, dbeta = nc.hybrid.layer_norm_backward(dy, x, gamma, beta)
    assert np.allclose(dx, slope(norm, x, dy), atol=2e-3) and np.allclose(dbeta, dy.sum(0), atol=1e-5)
    assert np.allclose(dgamma, slope(lambda g: norm(x, g), gamma, dy), atol=2e-3)

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    assert np.allclose(nc.hybrid.gelu(x, "tanh"), gelu(x), atol=1e-5) and np.allclose(nc.hybrid.gelu(x), gelu(x), atol=2e-3)
    assert np.allclose(nc.hybrid.gelu_backward(dy, x, "tanh"), slope(gelu, x, dy), atol=1e-3)
    assert np.array_equal(nc.hybrid.residual(x, dy), x + dy)
    both = nc.hybrid.residual_backward(dy)
    assert np.array_equal(both[0], dy) and np.array_equal(both[1], dy)
    on = nc.hybrid.residual_backward(nc.tensor(dy))
    on[0].copy_(nc.zeros(4, 6))
    assert np.array_equal(on[1].numpy(), dy)  # each has separate memory
    with pytest.raises(ValueError, match="approximate"):
        nc.hybrid.gelu(x, "fast")


@pytest.mark.parametrize("causal", [True, False])
def test_attention_keeps_what_its_backward_needs_and_frees_it(causal):
    qkv, dout = array(5, 24), array(5, 8)
    before = live()
    out, cache = nc.hybrid.attention(qkv, 2, causal)
    assert isinstance(out, np.ndarray) and np.allclose(out, attention(qkv, 2, causal), atol=1e-5)
    assert live()[0] > before[0] and not cache.is_free
    dqkv = nc.hybrid.attention_backward(dout, cache)
    assert np.allclose(dqkv, slope(lambda x: attention(x, 2, causal), qkv, dout), atol=2e-3)
    assert cache.is_free and live() == before
    with pytest.raises(nc.errors.FormatError, match="free"):
        nc.hybrid.attention_backward(dout, cache)
    y, cache = nc.hybrid.attention(nc.tensor(qkv), 2, causal)
    assert np.array_equal(y.numpy(), out)
    with pytest.raises(TypeError, match="device tensors"):
        nc.hybrid.attention_backward(dout, cache)
    assert np.array_equal(nc.hybrid.attention_backward(nc.tensor(dout), cache).numpy(), dqkv)
    batch, cache = nc.hybrid.attention(np.stack([qkv, qkv]), 2, causal)
    assert np.allclose(batch[1], out, atol=1e-6)
    with cache:
        assert not cache.is_free
    assert cache.is_free


def test_host_calls_free_everything_also_where_they_raise():
    before = live()
    kept = []
    for _ in range(3):
        nc.hybrid.matmul(array(8, 8), array(8, 8))
        nc.hybrid.layer_norm_backward(array(3, 4), array(3, 4), array(4), array(4))
        try:
            nc.hybrid.matmul(array(8, 8), array(7, 8))
        except nc.errors.ShapeError as e:
            kept.append(e)  # the exception's frames refer to tensors
    assert len(kept) == 3 and live() == before
    with pytest.raises(TypeError, match="together"):
        nc.hybrid.matmul(nc.ones(2, 2), array(2, 2))
    with pytest.raises(TypeError, match="device"):
        nc.hybrid.gelu(nc.ones(2), device="sim")
    with pytest.raises(nc.errors.FormatError, match="dy has shape"):
        nc.hybrid.gelu_backward(array(3), array(4))


def test_a_scope_frees_what_was_made_in_it_although_names_are_left():
    outside = nc.ones(64, 64)
    before = live()
    with nc.scope() as inside:
        a = nc.randn(64, 64)
        b = a @ outside
        view = outside[:2]
        copy = outside.T
        kept = inside.keep(b + 1)
        assert live()[0] >= before[0] + 3 * 64 * 64 * 4
    assert inside.freed == 2
    assert live()[0] == before[0] + 64 * 64 * 4 and kept.shape == (64, 64) and np.isfinite(kept.numpy()).all()
    assert view.sum().item() == 128 and copy.sum().item() == 64 * 64
    for use in (a.sum, a.numpy, lambda: a + 1, lambda: outside @ b, lambda: a[:2].numpy(), lambda: a.copy_(outside), a.clone):
        with pytest.raises(nc.errors.LaunchError, match="scope"):
            use()
    assert a.shape == (64, 64)
    # Other tensors reuse the memory; the remains of the freed tensors do not disturb them.
    fresh = [nc.full((64, 64), float(i)) for i in range(4)]
    del a, b
    gc.collect()
    assert [f.numpy().mean() for f in fresh] == [0, 1, 2, 3]


def test_scopes_nest_and_end_by_exceptions():
    before = live()
    with nc.scope() as outer:
        with nc.scope() as inner:
            x = nc.ones(256)
            y = inner.keep([nc.ones(256), nc.ones(256)])[0]
        assert y.sum().item() == 256
        with pytest.raises(nc.errors.LaunchError, match="freed"):
            x.sum()
        kept = outer.keep({"y": y + 1})["y"]
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        y.sum()
    assert kept.sum().item() == 512
    del kept
    with pytest.raises(LookupError):
        with nc.scope():
            z = nc.ones(1000)
            raise LookupError
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        z.sum()
    del x, y, z
    assert live() == before


def test_gradients_of_tensors_from_outside_stay():
    w = nc.randn(8, 8, requires_grad=True)
    with nc.scope():
        x = nc.randn(4, 8)
        loss = (x @ w).square().sum()
        loss.backward()
        assert w.grad is not None
    assert np.isfinite(w.grad.numpy()).all()
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        loss.item()
    optimizer = nc.optim.SGD([w], lr=0.1)
    optimizer.step()
    with nc.scope():
        with pytest.raises(nc.errors.FormatError, match="scope"):
            nc.Graph(lambda x: x + 1, nc.ones(3))


def test_many_scopes_keep_memory_flat():
    w = nc.randn(16, 16)
    kept = []
    for _ in range(5):
        with nc.scope():
            kept.append(w @ w)
    level = live()
    for _ in range(200):
        with nc.scope():
            kept.append(((w @ w).gelu() @ w).softmax(-1))
    assert live()[0] == level[0]


def test_a_tensor_can_be_freed_by_itself():
    from netcl._netcl import free_memory

    x = nc.ones(100)
    before = live()
    assert free_memory(x) and live()[0] < before[0]
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        x.numpy()
    assert free_memory(x)  # a second time does nothing


# The listings of seed 004 in Python. Its product shows [[2.6 3.2] [5.6 7.2]], which is neither x w + b nor x wᵀ + b of its numbers; here it is
# x w + b.
def test_the_listings_of_calls_with_lists():
    y = nc.hybrid.matmul([[1.0, 2.0], [3.0, 4.0]], [[0.5, 0.5], [1.0, 1.0]], [0.1, 0.2])
    assert np.allclose(y, [[2.6, 2.7], [5.6, 5.7]], atol=1e-6)
    # The same as a pipeline on the device, whose tensors are freed at its end.
    with nc.scope() as pipeline:
        x, w, b = nc.tensor([[1.0, 2.0], [3.0, 4.0]]), nc.tensor([[0.5, 0.5], [1.0, 1.0]]), nc.tensor([0.1, 0.2])
        h = nc.hybrid.matmul(x, w, b)
        host = nc.hybrid.gelu(h).numpy()
    assert pipeline.freed == 4 and np.allclose(host, nc.hybrid.gelu(y), atol=1e-6)
    # Attention: the forward's cache stays on the device until the backward has used it.
    qkv = [[0.1 * (i + j) for j in range(12)] for i in range(4)]
    out, cache = nc.hybrid.attention(qkv, 2)
    dqkv = nc.hybrid.attention_backward([[1.0] * 4 for _ in range(4)], cache)
    assert out.shape == (4, 4) and dqkv.shape == (4, 12) and np.abs(dqkv).max() > 0 and cache.is_free
