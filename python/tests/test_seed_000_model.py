"""Seed 000 (OCL-LLM), rows 81 to 101 and 110 to 114 of the table of promises: layers, model, optimizer, tokenizer, loss, checkpoints and kernels."""

import re
from pathlib import Path

import numpy as np
import pytest
import seeds

import netcl as nc
from netcl.compat import ocl_llm as ocl
from netcl.compat.ocl_llm import OclTensor, Parameter

ROOT = Path(__file__).parents[2]
CONFIG = {"vocab_size": 11, "max_len": 8, "embed_dim": 8, "num_heads": 2, "d_ff": 16, "num_layers": 2}
BAD_IDS = [-1, -100, 11, 99, 2**31 - 1, -(2**31), 2**40, -(2**63)]


@pytest.fixture(autouse=True)
def device():
    before = nc.default_device()
    ocl.ocl_initialize(before.name)
    nc.manual_seed(0)
    yield before
    nc.set_default_device(before)


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def log_softmax(x):
    x = np.asarray(x, dtype=np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_row_081_parameters_need_gradients():
    p = Parameter(drawn(2, 3))
    assert isinstance(p, OclTensor) and p.requires_grad and np.array_equal(p.to_host(), drawn(2, 3))
    assert not Parameter(drawn(2), requires_grad=False).requires_grad and type(p.T) is OclTensor


def test_row_082_linear():
    layer = ocl.Linear(3, 2)
    assert type(layer.W) is Parameter and layer.W.shape == (3, 2) and layer.b.shape == (2,) and ocl.Linear(3, 2, bias=False).b is None
    layer.b.data.write(drawn(2))
    x = OclTensor(drawn(4, 5, 3), requires_grad=True)
    y = layer(x)
    assert np.allclose(y.to_host(), drawn(4, 5, 3) @ layer.W.to_host() + drawn(2), atol=1e-5)
    y.backward(np.ones((4, 5, 2)))
    assert np.allclose(layer.b.grad.to_host(), 20) and np.allclose(layer.W.grad.to_host(), drawn(4, 5, 3).sum((0, 1))[:, None], atol=1e-4)
    assert layer.parameters() == [layer.W, layer.b] or [id(p) for p in layer.parameters()] == [id(layer.W), id(layer.b)]


def test_row_083_embedding_looks_up_rows_and_adds_gradients():
    layer = ocl.Embedding(11, 4)
    ids = np.array([[1, 5, 1], [10, 0, 1]])
    y = layer(ids)
    assert type(y) is OclTensor and np.array_equal(y.to_host(), layer.weight_param.to_host()[ids])
    dy = drawn(2, 3, 4)
    y.backward(dy)
    expected = np.zeros((11, 4))
    np.add.at(expected, ids, dy)
    assert np.allclose(layer.weight_param.grad.to_host(), expected, atol=1e-5)
    assert type(y._ctx).__name__ == "EmbeddingBackwardContext"


@pytest.mark.parametrize("bad", BAD_IDS)
def test_row_083_invalid_ids_give_rows_of_zeros(bad):
    layer = ocl.Embedding(11, 4)
    weights = layer.weight_param.to_host()
    weights[0] = np.nan  # an invalid id must not read any row
    layer.weight_host = weights
    for dtype in (np.int64, object):
        y = layer(np.array([[3, bad], [bad, 4]], dtype=dtype))
        assert np.array_equal(y.to_host(), [[weights[3], np.zeros(4)], [np.zeros(4), weights[4]]])
        layer.weight_param.zero_grad()
        y.backward(np.ones((2, 2, 4)))
        grad = layer.weight_param.grad.to_host()
        assert grad[[3, 4]].tolist() == [[1] * 4] * 2 and grad.sum() == 8
    assert not layer(np.array([[np.nan, 1.5]])).to_host().any()
    with pytest.raises(TypeError):
        layer(np.array([["a"]]))


def test_row_084_weight_host_follows_the_device():
    layer = ocl.Embedding(5, 3)
    p = layer.weight_param
    assert p._is_embedding_weight is True and p._associated_layer is layer
    assert isinstance(layer.weight_host, np.ndarray) and np.array_equal(layer.weight_host, p.to_host())
    optimizer = ocl.AdamOptimizer([p], lr=0.1)
    layer(np.array([[1, 2]])).sum().backward()
    before = layer.weight_host
    optimizer.step()
    assert not np.array_equal(layer.weight_host, before) and np.array_equal(layer.weight_host, p.to_host())
    with pytest.raises(ValueError):
        layer.weight_host[0] = 0
    layer.weight_host = np.zeros((5, 3))
    assert not p.to_host().any()


def test_row_085_gelu_activation():
    x = OclTensor(drawn(3))
    assert np.array_equal(ocl.GeLUActivation()(x).to_host(), x.gelu().to_host()) and ocl.GeLUActivation().parameters() == []


def test_row_086_layer_norm():
    x = OclTensor(drawn(3, 8))
    assert np.array_equal(ocl.LayerNorm(8)(x).to_host(), x.layer_norm().to_host()) and ocl.LayerNorm(8, eps=0.5).eps == 0.5


def test_row_087_positions_are_added_from_a_buffer():
    layer = ocl.PositionalEncoding(6, 4)
    assert isinstance(layer.pe_gpu_full, ocl.GPUBuffer)
    table = layer.pe_gpu_full.read((6, 4))
    angles = np.arange(6)[:, None] / 10000 ** (np.array([0, 2]) / 4)
    assert np.allclose(table[:, 0::2], np.sin(angles), atol=1e-6) and np.allclose(table[:, 1::2], np.cos(angles), atol=1e-6)
    x = OclTensor(drawn(2, 5, 4), requires_grad=True)
    y = layer(x)
    y.backward(np.ones((2, 5, 4)))
    assert np.allclose(y.to_host(), drawn(2, 5, 4) + table[:5], atol=1e-6) and type(y._ctx).__name__ == "AddBroadcastPEBackwardContext"
    assert np.array_equal(x.grad.to_host(), np.ones((2, 5, 4))) and layer.parameters() == []
    with pytest.raises(ValueError, match="max_len is 6"):
        layer(OclTensor(drawn(1, 7, 4)))


def attention(layer, x, mask=0.0):
    """Computes multi-head attention with NumPy."""
    b, t, c = x.shape
    project = lambda one: (x @ one.W.to_host() + (0 if one.b is None else one.b.to_host())).reshape(b, t, layer.num_heads, -1).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = project(layer.wq), project(layer.wk), project(layer.wv)
    scores = np.exp(log_softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(c // layer.num_heads) + mask))
    return (scores @ v).transpose(0, 2, 1, 3).reshape(b, t, c) @ layer.wo.W.to_host() + layer.wo.b.to_host()


def test_row_088_attention_has_heads_and_an_optional_mask():
    layer, x = ocl.MultiHeadAttention(8, 2), drawn(2, 5, 8)
    assert np.allclose(layer(OclTensor(x)).to_host(), attention(layer, x), atol=1e-4)
    mask = np.triu(np.full((5, 5), -1e9), 1)
    assert np.allclose(layer(OclTensor(x), mask=mask).to_host(), attention(layer, x, mask), atol=1e-4)
    assert np.array_equal(ocl.causal_mask(5).to_host(), mask.astype(np.float32))
    with pytest.raises(ValueError, match="added"):
        layer(OclTensor(x), mask=mask == 0)
    with pytest.raises(ValueError):
        ocl.MultiHeadAttention(8, 3)


def test_row_089_a_block_has_attention_feed_forward_residuals_and_norms():
    block, x = ocl.TransformerBlock(8, 2, 16), drawn(2, 5, 8)
    norm = lambda z: OclTensor(z).layer_norm().to_host()  # noqa: E731
    h = x + attention(block.attn, norm(x))
    wide = OclTensor(norm(h)).matmul(block.ff1.W).add(block.ff1.b).gelu().to_host()
    expected = h + wide @ block.ff2.W.to_host() + block.ff2.b.to_host()
    assert np.allclose(block(OclTensor(x)).to_host(), expected, atol=1e-4) and len(block.parameters()) == 12


def test_row_090_the_model_takes_a_config_and_ids():
    model = ocl.SimpleModel(CONFIG)
    ids = np.random.default_rng(0).integers(0, 11, (3, 6))
    logits = model(ids)
    assert type(logits) is OclTensor and logits.shape == (3, 6, 11) and logits.requires_grad
    x = ocl.PositionalEncoding(8, 8)(model.embedding(ids))
    for block in model.blocks:
        x = block(x)
    expected = x.layer_norm().matmul(model.output.W).add(model.output.b)
    assert np.allclose(logits.to_host(), expected.to_host(), atol=1e-5)
    with pytest.raises(ValueError, match="max_len"):
        model(np.zeros((1, 9), dtype=int))
    with pytest.raises(ValueError, match="expected"):
        model(np.zeros(4, dtype=int))


def test_row_091_without_a_mask_every_position_sees_all_others():
    model = ocl.SimpleModel(CONFIG)
    ids = np.random.default_rng(1).integers(0, 11, (1, 6))
    other = ids.copy()
    other[0, -1] = (other[0, -1] + 1) % 11
    with OclTensor.no_grad():
        changed = np.abs(model(ids).to_host() - model(other).to_host())[0].max(-1)
        hidden = np.abs(model(ids, ocl.causal_mask(6)).to_host() - model(other, mask=ocl.causal_mask(6)).to_host())[0].max(-1)
    assert (changed > 0).all() and not hidden[:-1].any() and hidden[-1] > 0


def test_row_092_the_model_has_parameters_states_and_modes():
    model, other = ocl.SimpleModel(CONFIG), ocl.SimpleModel(CONFIG)
    ids = np.array([[1, 2, 3]])
    assert len(model.parameters()) == 1 + 2 * 12 + 2 and all(type(p) is Parameter for p in model.parameters())
    other.load_state_dict(model.state_dict())
    model.train(), model.eval()
    assert np.array_equal(model(ids).to_host(), other(ids).to_host())
    wrong = {**model.state_dict(), "output.b": np.zeros(3)}
    with pytest.raises(ValueError, match="output.b"):
        other.load_state_dict(wrong)
    model.free_memory()
    with pytest.raises((nc.errors.LaunchError, nc.errors.FormatError)):
        model(ids).to_host()


def adam(p, grads, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, decay=0.0):
    """Computes steps of Adam as the seed's kernel ``adam_update`` describes them, in f64."""
    p, m, v = p.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(grads, 1):
        g = g + decay * p
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p, m, v


def test_row_093_adam_has_its_hyperparameters():
    p = Parameter(drawn(5))
    optimizer = ocl.AdamOptimizer([p], lr=0.05, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.0)
    grads = [drawn(5, seed=s) for s in range(1, 6)]
    for g in grads:
        optimizer.zero_grad()
        p.mul(OclTensor(g)).sum().backward()
        optimizer.step()
    assert np.allclose(p.to_host(), adam(drawn(5), grads, 0.05, (0.8, 0.9), 1e-3)[0], atol=1e-5)
    frozen = OclTensor(drawn(3))
    assert [id(q) for q in ocl.AdamOptimizer([p, frozen, p]).parameters] == [id(p)]


def test_row_094_weight_decay_is_added_to_the_gradient():
    p = Parameter(drawn(64))
    optimizer = ocl.AdamOptimizer([p], lr=1e-2, weight_decay=0.1)
    grads = [drawn(64, seed=s) for s in range(1, 11)]
    for g in grads:
        p.grad = OclTensor(g)
        optimizer.step()
    coupled, m, v = adam(drawn(64), grads, decay=0.1)
    decoupled = adam(drawn(64), grads)[0]
    assert np.abs(p.to_host() - coupled).max() < 2e-6 and np.abs(coupled - decoupled).max() > 1e-4
    assert np.allclose(optimizer.m[0].read((64,)), m, atol=1e-6) and np.allclose(optimizer.v[0].read((64,)), v, atol=1e-6)


def test_row_095_the_state_has_t_m_and_v():
    p, q = Parameter(drawn(2, 3)), Parameter(drawn(4))
    optimizer = ocl.AdamOptimizer([p, q])
    state = optimizer.state_dict()
    assert set(state) == {"t", "m", "v"} and optimizer.t == 0 == state["t"] and not state["m"][0].any()
    p.grad = OclTensor(drawn(2, 3))
    optimizer.step()
    state = optimizer.state_dict()
    assert optimizer.t == 1 == state["t"] and [a.shape for a in state["m"]] == [(2, 3), (4,)] == [a.shape for a in state["v"]]
    assert np.allclose(state["m"][0], 0.1 * drawn(2, 3), atol=1e-6) and state["m"][0].dtype == np.float32
    # q does not have a gradient and stays unchanged.
    assert np.array_equal(q.to_host(), drawn(4)) and not state["m"][1].any()


def test_row_096_adam_loads_its_state_and_zeroes_gradients():
    first, second = Parameter(drawn(6)), Parameter(drawn(6))
    one, two = ocl.AdamOptimizer([first], lr=0.1), ocl.AdamOptimizer([second], lr=0.1)
    for s in range(3):
        first.grad = OclTensor(drawn(6, seed=s))
        one.step()
    two.load_state_dict(one.state_dict())
    second.data.write(first.to_host())
    first.grad = second.grad = OclTensor(drawn(6, seed=7))
    one.step(), two.step()
    assert two.t == 4 and np.array_equal(first.to_host(), second.to_host())
    one.zero_grad()
    assert not first.grad.to_host().any()
    for wrong in ({"t": 1, "m": [np.zeros(5)], "v": [np.zeros(6)]}, {"t": 1, "m": [], "v": []}, {"t": 1}, {"t": -1, "m": [np.zeros(6)], "v": [np.zeros(6)]}):
        with pytest.raises(ValueError):
            two.load_state_dict(wrong)
    assert two.t == 4
    one.free_memory()
    with pytest.raises(ValueError, match="freed"):
        one.step()


def test_row_097_padding_and_unknown_are_added():
    tokenizer = ocl.TinyTokenizer({"a": 0, "b": 1})
    assert tokenizer.get_vocab() == {"a": 0, "b": 1, "<pad>": 2, "<unk>": 3} and tokenizer.get_inv_vocab() == {0: "a", 1: "b", 2: "<pad>", 3: "<unk>"}
    assert tokenizer.encode("abc", 5) == [0, 1, 3, 2, 2] and tokenizer.vocab_size == 4
    assert ocl.TinyTokenizer({"a": 7}, {7: "a"}).get_inv_vocab() == {7: "a", 8: "<pad>", 9: "<unk>"}
    assert ocl.TinyTokenizer({"<pad>": 0, "x": 4}).get_vocab() == {"<pad>": 0, "x": 4, "<unk>": 5}
    text = "Hello, world! Grüße\n0123"
    assert ocl.TinyTokenizer().decode(ocl.TinyTokenizer().encode(text, 40)) == text


def test_row_098_the_tokenizer_truncates_pads_and_copies():
    tokenizer = ocl.TinyTokenizer.of_text("abc")
    assert tokenizer.encode("abc", max_len=2) == [2, 3] and tokenizer.encode("", 2) == [0, 0] and tokenizer.decode([2, 0, 99]) == "a?"
    tokenizer.get_vocab()["z"] = 9
    tokenizer.get_inv_vocab()[9] = "z"
    assert "z" not in tokenizer.get_vocab() and 9 not in tokenizer.get_inv_vocab()


def loss_of(logits, targets, valid):
    """Computes mean loss and gradient over the valid targets with NumPy."""
    log, n = log_softmax(logits), max(valid.sum(), 1)
    rows = np.nonzero(valid)
    grad = np.zeros(logits.shape)
    grad[rows] = np.exp(log)[rows] / n
    grad[(*rows, targets[rows].astype(int))] -= 1 / n
    return -log[(*rows, targets[rows].astype(int))].sum() / n, grad


def test_row_099_the_loss_is_a_mean_over_valid_tokens_with_its_gradient():
    logits, targets = OclTensor(drawn(2, 5, 7), requires_grad=True), np.array([[1, 6, 0, 2, 3], [0, 0, 5, 5, 1]])
    loss = ocl.cross_entropy_loss_and_backward(logits, targets)
    expected, grad = loss_of(drawn(2, 5, 7), targets, targets != 0)
    assert type(loss) is float and abs(loss - expected) < 1e-5 and np.allclose(logits.grad.to_host(), grad, atol=1e-6)
    with OclTensor.no_grad():
        assert abs(ocl.cross_entropy_loss_and_backward(OclTensor(drawn(2, 5, 7)), targets) - expected) < 1e-5
    with pytest.raises(ValueError, match="shape"):
        ocl.cross_entropy_loss_and_backward(logits, targets[:1])


@pytest.mark.parametrize("bad", BAD_IDS)
def test_row_100_invalid_targets_contribute_nothing(bad):
    targets = np.array([[1, bad, 3], [bad, 0, 10]])
    for given in (targets, targets.astype(object), targets.tolist()):
        logits = OclTensor(drawn(2, 3, 11), requires_grad=True)
        loss = ocl.cross_entropy_loss_and_backward(logits, given)
        expected, grad = loss_of(drawn(2, 3, 11), targets, (targets > 0) & (targets < 11))
        assert abs(loss - expected) < 1e-5 and np.allclose(logits.grad.to_host(), grad, atol=1e-6)
    logits = OclTensor(drawn(2, 3, 11), requires_grad=True)
    for nothing in (np.full((2, 3), bad), np.full((2, 3), np.nan), np.full((2, 3), 2**63, dtype=np.uint64)):
        assert ocl.cross_entropy_loss_and_backward(logits, nothing) == 0.0 and not logits.grad.to_host().any()
    assert ocl.cross_entropy_loss_and_backward(logits, np.zeros((2, 3), int), padding_id=-5) > 0


def test_row_101_checkpoints_restore_everything(tmp_path):
    path, ids = str(tmp_path / "folder" / "model.npz"), np.random.default_rng(2).integers(1, 11, (2, 7))
    model = ocl.SimpleModel(CONFIG)
    optimizer = ocl.AdamOptimizer(model.parameters(), lr=0.02, betas=(0.8, 0.95), weight_decay=0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        loss = ocl.cross_entropy_loss_and_backward(model(ids[:, :-1]), ids[:, 1:])
        optimizer.step()
        return loss

    step(model, optimizer)
    ocl.save_checkpoint(path, model, optimizer, ocl.TinyTokenizer.of_text("abc"), 3, 1.25, {"lr": 0.02})
    expected = [step(model, optimizer) for _ in range(2)]
    other = ocl.SimpleModel(CONFIG)
    adam = ocl.AdamOptimizer(other.parameters())
    made = ocl.load_checkpoint(path, other, adam)
    assert (made["epoch"], made["best_val_loss"], made["config"]) == (3, 1.25, {**CONFIG, "lr": 0.02}) and made["tokenizer"].encode("c") == [4]
    assert [step(other, adam) for _ in range(2)] == expected and adam.t == 3 and adam.betas == (0.8, 0.95)
    made = ocl.load_checkpoint(path)
    assert [step(made["model"], made["optimizer"]) for _ in range(2)] == expected
    with np.load(path, allow_pickle=False) as arrays:
        assert {"optimizer/t", "optimizer/m/0", "optimizer/v/0", "model/output.W", "words"} <= set(arrays.files)
    for damage in (b"", b"PK\x03\x04 not a file", Path(path).read_bytes()[:-200]):
        (tmp_path / "bad.npz").write_bytes(damage)
        with pytest.raises(ValueError, match="bad.npz"):
            ocl.load_checkpoint(str(tmp_path / "bad.npz"))


def test_row_110_softmax_is_stable():
    for x in (drawn(3, 9) * 30, np.full((2, 4), 1e30), np.array([[1e4, -1e4, 0.0]]), np.array([[-np.inf, 0.0]])):
        y = OclTensor(x).softmax().to_host()
        assert np.isfinite(y).all() and np.allclose(y, np.exp(log_softmax(x)), atol=5e-6) and np.allclose(y.sum(-1), 1, atol=1e-5)


def test_row_111_sums_of_long_rows_are_accurate():
    x, dy = drawn(2, 20000) + 100, drawn(2, 20000, seed=1)
    exact = x.astype(np.float64)
    t = OclTensor(x, requires_grad=True)
    t.layer_norm().backward(dy)
    scale = 1 / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    hat = (exact - exact.mean(-1, keepdims=True)) * scale
    expected = (dy - dy.mean(-1, keepdims=True) - hat * (dy * hat).mean(-1, keepdims=True)) * scale
    assert np.allclose(t.layer_norm().to_host(), hat, atol=2e-4) and np.allclose(t.grad.to_host(), expected, atol=2e-4)


def test_row_112_the_gradient_of_repeated_ids_is_a_deterministic_sum():
    layer, ids = ocl.Embedding(7, 16), np.random.default_rng(3).integers(0, 7, (8, 50))
    found = []
    for _ in range(3):
        layer.weight_param.zero_grad()
        layer(ids).backward(drawn(8, 50, 16))
        found.append(layer.weight_param.grad.to_host())
    expected = np.zeros((7, 16))
    np.add.at(expected, ids, drawn(8, 50, 16).astype(np.float64))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2]) and np.allclose(found[0], expected, atol=1e-4)


def test_row_113_bias_gradients_are_sums_over_two_axes():
    bias, dy = Parameter(np.zeros(33)), drawn(17, 65, 33)
    OclTensor(np.zeros((17, 65, 33))).add(bias).backward(dy)
    assert np.allclose(bias.grad.to_host(), dy.astype(np.float64).sum((0, 1)), atol=1e-4)


def table():
    """Returns the table of kernels in the book: the names of OCL-LLM, with netcl's kernels and the linked files."""
    page = ROOT / "docs" / "book" / "from-the-seeds.md"
    part = page.read_text(encoding="utf-8").split("### Kernels of OCL-LLM", 1)[1].split("\n#", 1)[0]
    found = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and "`" in cells[0]:
            files = [(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", cells[2])]
            found.update({name: (re.findall(r"`(\w+)`", cells[1]), files) for name in re.findall(r"`(\w+)`", cells[0])})
    return found


def run_all():
    """Runs one operation for each kernel of the seed."""
    x = lambda *shape: nc.tensor(drawn(*shape), requires_grad=True)  # noqa: E731
    passes = lambda y: y.backward(nc.ones_like(y))  # noqa: E731
    ids = nc.tensor(np.array([[1, 2], [3, 1]]))
    p = x(8)
    (p * p).sum().backward()
    product, batched = (lambda: passes(x(6, 8) @ x(8, 4))), (lambda: passes(x(3, 6, 8) @ x(3, 8, 4)))
    return {
        "matrix_multiply": product, "matmul_backward_da": product, "matmul_backward_db": product,
        "matmul_batched": batched, "matmul_batched_backward_da": batched, "matmul_batched_backward_db": batched,
        "softmax_rowwise": lambda: x(4, 9).softmax(-1), "softmax_backward": lambda: passes(x(4, 9).softmax(-1)),
        "log_softmax_stable_rowwise": lambda: nc.ops.log_softmax(x(4, 9)),
        "cross_entropy_loss_grad": lambda: nc.ops.cross_entropy(x(4, 9), nc.tensor([1, 2, 3, 4])).backward(),
        "gelu_elementwise": lambda: x(9).gelu(), "gelu_backward_elementwise": lambda: passes(x(9).gelu()),
        "add_elementwise": lambda: x(9) + x(9), "mul_elementwise": lambda: x(9) * x(9), "mul_backward": lambda: passes(x(9) * x(9)),
        "layer_norm": lambda: OclTensor(drawn(4, 9)).layer_norm(), "layer_norm_backward": lambda: passes(nc.nn.LayerNorm(9)(x(4, 9))),
        "transpose": lambda: OclTensor(drawn(6, 8)).transpose(0, 1), "transpose_backward": lambda: OclTensor(drawn(8, 6)).transpose(0, 1),
        "transpose_batched_last_two": lambda: OclTensor(drawn(2, 6, 8)).transpose(1, 2),
        "transpose_12_batched": lambda: OclTensor(drawn(2, 3, 4, 5)).transpose(1, 2),
        "embedding_lookup": lambda: nc.ops.embedding(x(7, 8), ids), "embedding_backward_scatter_add": lambda: passes(nc.ops.embedding(x(7, 8), ids)),
        "reduce_sum_axis01": lambda: nc.ops.sum_to(x(5, 6, 7).detach(), (7,)),
        "broadcast_add_bias": lambda: x(5, 6, 7) + x(7), "add_broadcast_pe": lambda: x(5, 6, 7) + x(6, 7),
        "adam_update": lambda: nc.optim.Adam([p]).step(),
    }  # fmt: skip


def test_row_114_the_book_has_a_table_of_the_kernels():
    explained = seeds.section("000", "8. OpenCL Kernel Erklärungen")
    named = set(re.findall(r"^\*   \*\*`(\w+)`", explained, re.MULTILINE))
    rows, runs = table(), run_all()
    assert len(named) == 27 and set(rows) == named == set(runs)
    for name, (ours, files) in rows.items():
        sources = "".join(file.read_text(encoding="utf-8") for file in files)
        for kernel in ours:
            assert re.search(rf'__kernel void {kernel}\b|"{kernel}"', sources), (name, kernel)
        nc.default_device()._start_profile()
        runs[name]()
        launched = {each[0] for each in nc.default_device()._stop_profile()}
        assert launched & set(ours), (name, launched)
