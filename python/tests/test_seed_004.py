"""The GPU operations of a Clojure transformer, promise by promise: a test per row of the table of promises, named by the row's number."""

import json
import re

import models
import numpy as np
import pytest
import seeds

import netcl as nc
from netcl import distributed, hybrid

RANDOM = np.random.default_rng(4)


def data(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def vectors(text):
    """Returns the nested vectors of Clojure code."""
    return [json.loads(re.sub(r"\s+", ", ", found)) for found in re.findall(r"\[+[-\d.\s\[\]]+\]+", text)]


def slope(f, x, dy, h=1e-2):
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += h
        down[at] -= h
        out[at] = ((np.asarray(f(up), np.float64) - np.asarray(f(down), np.float64)) * dy).sum() / (2 * h)
    return out


def live():
    nc.default_device().synchronize()
    return nc.default_device().memory()[0]


def test_row_224_matmul_on_both_levels():
    x, w, b, dy = data(4, 3), data(3, 5), data(5), data(4, 5)
    before = live()
    found = hybrid.matmul_forward_hybrid(x.tolist(), w.tolist(), b.tolist())
    assert isinstance(found, list) and np.allclose(found, x @ w + b, atol=1e-5) and live() == before
    tx, tw, tb = map(hybrid.to_gpu, (x, w, b))
    y = hybrid.matmul_forward_gpu(tx, tw, tb)
    assert isinstance(y, nc.Tensor) and np.allclose(hybrid.to_cpu(y), x @ w + b, atol=1e-5)
    dx, dw, db = hybrid.matmul_backward_gpu(hybrid.to_gpu(dy), tx, tw)
    for found, expected in ((dx, dy @ w.T), (dw, x.T @ dy), (db, dy.sum(0))):
        assert np.allclose(found.to_host(), expected, atol=1e-5)


def test_row_225_the_listing_of_a_product():
    first = seeds.listings(seeds.text("004"), "clojure")[0]
    code = first[first.index("matmul-forward-hybrid") :]
    inp, weight, bias, stated = vectors(code)[:4]
    found = np.array(hybrid.matmul_forward_hybrid(inp, weight, bias))
    assert np.allclose(found, np.array(inp) @ np.array(weight) + bias, atol=1e-6)
    # The document's result takes one column from `x w` and the other from `x wᵀ`, so no product gives it.
    stated, turned = np.array(stated), np.array(inp) @ np.array(weight).T + bias
    assert np.allclose(stated[:, 0], found[:, 0]) and np.allclose(stated[:, 1], turned[:, 1]) and not np.allclose(stated, found)


def attention(qkv, heads):
    t, c = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = (qkv[:, i * c : (i + 1) * c].reshape(t, heads, -1).transpose(1, 0, 2) for i in range(3))
    scores = np.where(np.tril(np.ones((t, t), bool)), q @ k.transpose(0, 2, 1) / np.sqrt(c // heads), -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights, (weights @ v).transpose(1, 0, 2).reshape(t, c)


def test_row_226_attention_is_causal_and_returns_a_cache():
    qkv = data(4, 12)
    weights, expected = attention(qkv, 2)
    for forward, given in ((hybrid.attention_forward_qkv_hybrid, qkv.tolist()), (hybrid.attention_forward_qkv_gpu, hybrid.to_gpu(qkv))):
        made = forward(given, 2)
        out, cache = made["out"], made["cache"]
        assert np.allclose(out if isinstance(out, list) else out.to_host(), expected, atol=1e-5)
        assert all(np.array_equal(cache[name].to_host(), qkv[:, 4 * i : 4 * i + 4]) for i, name in enumerate("qkv"))
        assert np.allclose(cache["att_probs"].to_host(), weights, atol=1e-5)
        cache.free()
        with pytest.raises(nc.errors.FormatError, match="freed"):
            cache["q"]


def test_row_227_attention_backward_frees_the_cache():
    qkv, dout = data(3, 12), data(3, 4)
    expected = slope(lambda x: attention(x, 2)[1], qkv, dout)
    before = live()
    made = hybrid.attention_forward_qkv_hybrid(qkv, 2)
    assert live() > before
    found = hybrid.attention_backward_qkv_hybrid(dout.tolist(), made["cache"], 2)
    assert isinstance(found, list) and np.allclose(found, expected, atol=1e-2) and made["cache"].is_free
    del made
    assert live() == before
    made = hybrid.attention_forward_qkv_gpu(hybrid.to_gpu(qkv), 2)
    with pytest.raises(ValueError, match="n_heads is 3"):
        hybrid.attention_backward_qkv_gpu(hybrid.to_gpu(dout), made["cache"], 3)
    found = hybrid.attention_backward_qkv_gpu(hybrid.to_gpu(dout), made["cache"], 2)
    assert np.allclose(found.to_host(), expected, atol=1e-2) and made["cache"].is_free


def test_row_228_layernorm_on_both_levels():
    x, g, b, dy = data(3, 6), data(6), data(6), data(3, 6)

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b

    assert np.allclose(hybrid.layernorm_forward_hybrid(x.tolist(), g.tolist(), b.tolist()), norm(x), atol=1e-5)
    tensors = [hybrid.to_gpu(a) for a in (x, g, b)]
    assert np.allclose(hybrid.layernorm_forward_gpu(*tensors).to_host(), norm(x), atol=1e-5)
    dx, _, db = hybrid.layernorm_backward_gpu(hybrid.to_gpu(dy), *tensors)
    assert np.allclose(dx.to_host(), slope(norm, x, dy), atol=2e-2) and np.allclose(db.to_host(), dy.sum(0), atol=1e-5)


def test_row_229_and_230_gelu_and_residual_on_both_levels():
    x, y, dy = data(3, 4), data(3, 4), data(3, 4)
    gelu = hybrid.gelu_forward_hybrid(x.tolist())
    assert isinstance(gelu, list) and np.allclose(gelu, hybrid.gelu_forward_gpu(hybrid.to_gpu(x)).to_host(), atol=1e-6)
    found = hybrid.gelu_backward_gpu(hybrid.to_gpu(dy), hybrid.to_gpu(x)).to_host()
    assert np.allclose(found, slope(lambda a: hybrid.gelu_forward_hybrid(a), x, dy), atol=2e-2)
    assert np.allclose(hybrid.residual_forward_hybrid(x.tolist(), y.tolist()), x + y)
    assert np.allclose(hybrid.residual_forward_gpu(hybrid.to_gpu(x), hybrid.to_gpu(y)).to_host(), x + y)
    assert all(np.array_equal(d.to_host(), dy) for d in hybrid.residual_backward_gpu(hybrid.to_gpu(dy)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_row_231_a_residual_in_place(dtype):
    x, y = data(130, 7), data(130, 7)
    a, b = nc.tensor(x, dtype=dtype), nc.tensor(y, dtype=dtype)
    view, handle, before = a[0], a.pool_handle, live()
    expected = (a + b).numpy()
    nc.default_device().synchronize()
    assert hybrid.residual_forward_gpu_inplace(a, b) is a
    assert np.array_equal(a.numpy(), expected) and a.pool_handle == handle and np.array_equal(view.numpy(), expected[0]) and live() == before
    turned = nc.tensor(x, dtype=dtype)
    hybrid.residual_(turned.T, b.T)
    assert np.array_equal(turned.numpy(), expected)
    with pytest.raises(nc.errors.ShapeError, match="equal shapes"):
        hybrid.residual_(a, b[0])
    with pytest.raises(TypeError, match="device tensors"):
        hybrid.residual_(x, y)


@pytest.mark.parametrize("name", ["Matmul", "LayerNorm", "GELU", "Residual", "Attention"])
def test_row_232_and_236_benchmarks_print_the_table(name, capsys):
    assert name in seeds.text("004")
    benchmark = getattr(hybrid, f"benchmark_{name.lower()}")
    found = benchmark(sizes=(4, 8, 16), width=24, iterations=2)
    shown = capsys.readouterr().out
    header, _, without, with_transfers = shown.splitlines()[1:]
    assert [cell.split()[0] for cell in header.split("|")[1:-1]] == ["Operation", "Small", "Medium", "Large"]
    assert without.startswith(f"| {name}") and "with transfers" in with_transfers
    assert [speed.rows for speed in found] == [4, 8, 16] and all(min(speed[1:]) > 0 for speed in found)
    assert all(speed.speedup == speed.cpu / speed.gpu and speed.hybrid_speedup == speed.cpu / speed.hybrid for speed in found)
    assert len(re.findall(r"\d+(?:\.\d+)?x", without + with_transfers)) == 6


def test_row_233_availability_with_a_recommendation():
    found = hybrid.initialize_gpu()
    assert found["gpu_available"] == hybrid.gpu_available() and found["device"] == nc.default_device().name
    assert found["recommendation"].startswith("Use ")


def test_row_234_memory_has_an_owner():
    before = live()
    with nc.scope():
        x = hybrid.to_gpu(data(8, 8))
        y = hybrid.gelu_forward_gpu(hybrid.matmul_forward_gpu(x, x))
        assert np.shape(hybrid.to_cpu(y)) == (8, 8)
    assert live() == before
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        hybrid.to_cpu(y)


def test_row_235_wrong_arguments_are_named():
    x, t = data(2, 3), hybrid.to_gpu(data(2, 3))
    with pytest.raises(nc.errors.ShapeError, match="matmul"):
        hybrid.matmul_forward_hybrid(x, x)
    with pytest.raises(TypeError, match="expected device tensors"):
        hybrid.gelu_forward_gpu(x)
    with pytest.raises(TypeError, match="expected nested lists"):
        hybrid.gelu_forward_hybrid(t)
    with pytest.raises(KeyError, match="att_probs"):
        hybrid.attention_forward_qkv_gpu(hybrid.to_gpu(data(2, 6)), 2)["cache"]["w"]


def test_row_238_and_239_fused_kernels_and_recomputation(tmp_path):
    def losses(**settings):
        run = {"steps": 2, "eval_every": 0, "sample_every": 0, "checkpoint_every": 0, "context": 32, "seed": 1, **settings}
        with nc.Trainer("demo-tiny", data=models.folder() / "text.txt", out=tmp_path / str(len(settings)), device=nc.default_device(), **run) as trainer:
            trainer.run()
            return [m["loss"] for m in trainer.history]

    assert losses() == losses(recompute="block")


def test_row_241_data_parallel_with_summed_gradients():
    x, w = data(6, 4), nc.nn.Linear(4, 3)
    expected = nc.nn.Linear(4, 3)
    expected.load_state_dict(w.state_dict())
    expected(nc.tensor(x)).square().sum().backward()
    distributed.init(devices=[nc.default_device(), nc.default_device()])
    try:
        distributed.DataParallel(w)(nc.tensor(x)).square().sum().backward()
    finally:
        distributed.shutdown()
    assert np.allclose(w.weight.grad.to_host(), expected.weight.grad.to_host(), atol=1e-4)


def test_row_245_results_agree_with_the_cpu_within_the_tolerance():
    tolerance = float(re.search(r"numerical tolerance (1e-3)", seeds.text("004"))[1])
    x = data(64, 32)
    found = hybrid.layernorm_forward_hybrid(x, np.ones(32), np.zeros(32))
    assert np.allclose(found, (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5), atol=tolerance)
