"""Modules, optimizers, data and files, compared with formulas in NumPy."""

import copy
import os
import pickle

import numpy as np
import pytest

import netcl as nc
from netcl import nn, optim


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Sequential(nn.Tanh(), nn.Linear(4, 2, bias=False))
        self.register_buffer("scale", nc.tensor([2.0]))
        self.note = "no tensor"

    def forward(self, x):
        return self.b(self.a(x)) * self.scale


def test_parameters_are_found_by_name():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["a.weight", "a.bias", "b.1.weight"]
    assert list(net.state_dict()) == ["scale", "a.weight", "a.bias", "b.1.weight"]
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in net.parameters())
    assert len(list(net.modules())) == 5 and "Linear(in_features=3" in repr(net)
    net.a.bias = None
    assert [n for n, _ in net.named_parameters()] == ["a.weight", "b.1.weight"]
    net.b[1].weight = net.a.weight
    assert [n for n, _ in net.named_parameters()] == ["a.weight"], "a tied parameter appears once"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        net.nothing

    class Early(nn.Module):
        def __init__(self):
            self.x = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="super"):
        Early()


def test_states_go_from_one_module_to_another():
    one, other = Net(), Net()
    x = nc.tensor(normal(5, 3))
    assert one(x).tolist() != other(x).tolist()
    other.load_state_dict(one.state_dict())
    assert one(x).tolist() == other(x).tolist()
    assert copy.deepcopy(one)(x).tolist() == one(x).tolist()
    assert pickle.loads(pickle.dumps(one.a))(x).tolist() == one.a(x).tolist()
    state = one.state_dict()
    del state["scale"]
    state["more"] = nc.zeros(1)
    with pytest.raises(nc.errors.FormatError, match=r"missing names \['scale'\], unknown names \['more'\]"):
        other.load_state_dict(state)
    assert other.load_state_dict(state, strict=False) == (["scale"], ["more"])
    with pytest.raises(nc.errors.FormatError, match="a.weight has shape"):
        other.load_state_dict({**one.state_dict(), "a.weight": nc.zeros(2, 2)})


def test_hooks_training_and_evaluation():
    net = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    x = nc.ones(64, 64)
    assert 0.3 < (net(x) == 0.0).float().mean().item() < 0.7
    assert net.eval()(x).tolist() == x.tolist() and not net[1].training
    seen = []
    before = net.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    after = net.register_forward_hook(lambda m, args, y: seen.append(y) or y + 1)
    assert net(x)[0, 0].item() == 3 and len(seen) == 1
    before.remove(), after.remove()
    assert net(x)[0, 0].item() == 1
    net.train()
    assert net[1].training
    half = Net().to(dtype=nc.float16)
    assert half.a.weight.dtype is nc.float16 and isinstance(half.a.weight, nn.Parameter)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_layers_follow_their_formulas():
    x = normal(2, 5, 8)
    t = nc.tensor(x)
    linear = nn.Linear(8, 6)
    w, b = linear.weight.numpy(), linear.bias.numpy()
    np.testing.assert_allclose(linear(t).numpy(), x @ w.T + b, atol=1e-5)
    np.testing.assert_allclose(nn.LayerNorm(8)(t).numpy(), (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5), atol=1e-5)
    np.testing.assert_allclose(nn.RMSNorm(8, eps=1e-5)(t).numpy(), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), atol=1e-5)
    np.testing.assert_allclose(nn.ReLU()(t).numpy(), np.maximum(x, 0))
    np.testing.assert_allclose(nn.Softmax(-1)(t).numpy(), softmax(x), atol=1e-6)
    np.testing.assert_allclose(nn.Flatten()(t).numpy(), x.reshape(2, -1))
    table = nn.Embedding(7, 4)
    ids = np.array([[1, 6], [0, 3]], dtype=np.int32)
    np.testing.assert_allclose(table(nc.tensor(ids)).numpy(), table.weight.numpy()[ids])
    places = nn.SinusoidalPositions(9, 8)(nc.zeros(1, 5, 8)).numpy()[0]
    np.testing.assert_allclose(places[3, 2], np.sin(3 / 10000 ** (2 / 8)), atol=1e-6)
    np.testing.assert_allclose(places[3, 3], np.cos(3 / 10000 ** (2 / 8)), atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_follows_its_formula(causal, kv_heads):
    layer = nn.MultiHeadAttention(16, 4, kv_heads=kv_heads, causal=causal)
    x = normal(2, 6, 16)
    packed = x @ layer.qkv.weight.numpy().T + layer.qkv.bias.numpy()
    q = packed[..., :16].reshape(2, 6, 4, 4).transpose(0, 2, 1, 3)
    k, v = (packed[..., 16 + i * kv_heads * 4 :][..., : kv_heads * 4].reshape(2, 6, kv_heads, 4).transpose(0, 2, 1, 3) for i in range(2))
    k, v = (np.repeat(a, 4 // kv_heads, 1) for a in (k, v))
    scores = q @ k.swapaxes(-1, -2) / 2
    if causal:
        scores = np.where(np.triu(np.ones((6, 6)), 1) > 0, -np.inf, scores)
    mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(2, 6, 16)
    expected = mixed @ layer.out.weight.numpy().T + layer.out.bias.numpy()
    np.testing.assert_allclose(layer(nc.tensor(x)).numpy(), expected, atol=1e-4)


def test_losses_follow_their_formulas():
    x, y = normal(4, 3), normal(4, 3, seed=1)
    t, u = nc.tensor(x), nc.tensor(y)
    targets = np.array([0, 2, 1, -100], dtype=np.int32)
    losses = -np.log(softmax(x))[np.arange(3), targets[:3]]
    np.testing.assert_allclose(nn.CrossEntropyLoss()(t, nc.tensor(targets)).item(), losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(nn.CrossEntropyLoss(reduction="sum")(t, nc.tensor(targets)).item(), losses.sum(), rtol=1e-5)
    np.testing.assert_allclose(nn.MSELoss()(t, u).item(), ((x - y) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(nn.L1Loss(reduction="none")(t, u).numpy(), np.abs(x - y), rtol=1e-5)
    p = 1 / (1 + np.exp(-x))
    z = (y > 0).astype(np.float32)
    expected = -(z * np.log(p) + (1 - z) * np.log(1 - p)).mean()
    np.testing.assert_allclose(nn.BCEWithLogitsLoss()(t, nc.tensor(z)).item(), expected, rtol=1e-5)


def reference_steps(rule, w, gradients, lr, decay):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        if rule == "sgd":
            g = g + decay * w
            m = g if t == 1 else 0.9 * m + g
            w = w - lr * m
            continue
        if rule == "lion":
            w = w - lr * (np.sign(0.9 * m + 0.1 * g) + decay * w)
            m = 0.99 * m + 0.01 * g
            continue
        if rule == "adam":
            g = g + decay * w
        else:
            w = w * (1 - lr * decay)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


@pytest.mark.parametrize("rule", ["adamw", "adam", "lion", "sgd"])
def test_optimizers_follow_their_formulas_and_go_on_to_the_bit(rule):
    start = normal(5, 3)
    gradients = [normal(5, 3, seed=i + 1) for i in range(5)]
    make = {
        "adamw": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.01),
        "adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.01),
        "lion": lambda p: optim.Lion(p, lr=0.1, weight_decay=0.01),
        "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    }[rule]
    w = nn.Parameter(nc.tensor(start))
    optimizer = make([("w", w)])
    for i, g in enumerate(gradients):
        w.grad = nc.tensor(g)
        optimizer.step()
        optimizer.zero_grad()
        assert w.grad is None
        if i == 2:
            state, weights = pickle.loads(pickle.dumps(optimizer.state_dict())), w.detach().clone()
    np.testing.assert_allclose(w.numpy(), reference_steps(rule, start, gradients, 0.1, 0.01), atol=1e-4)
    again = nn.Parameter(weights)
    resumed = make([("w", again)])
    resumed.load_state_dict(state)
    for g in gradients[3:]:
        again.grad = nc.tensor(g)
        resumed.step()
    assert again.tolist() == w.tolist()


def test_clipping_groups_and_what_is_refused():
    a, b = nn.Parameter(nc.zeros(2)), nn.Parameter(nc.zeros(2))
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr_scale": 0.5}], lr=1.0)
    optimizer.clip_grad_norm(1.0)
    a.grad, b.grad = nc.tensor([3.0, 0.0]), nc.tensor([0.0, 4.0])
    optimizer.step()
    assert optimizer.grad_norm() == 5
    np.testing.assert_allclose(a.numpy(), [-0.6, 0], atol=1e-5)
    np.testing.assert_allclose(b.numpy(), [0, -0.4], atol=1e-5)
    assert optim.clip_grad_norm_([a, b], 1.0) == pytest.approx(5)
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0], atol=1e-5)
    optimizer.zero_grad()
    before = a.tolist(), b.tolist()
    optimizer.step()
    assert (a.tolist(), b.tolist()) == before, "parameters without a gradient are skipped"
    with pytest.raises(ValueError, match="no parameters"):
        optim.SGD([], lr=1.0)


def test_schedules():
    optimizer = optim.SGD([nn.Parameter(nc.zeros(1))], lr=9.0)
    schedule = optim.Schedule(optimizer, optim.cosine(1.0, warmup=3, decay=7, min_lr=0.1))
    rates = [optimizer.lr]
    for _ in range(8):
        schedule.step()
        rates.append(optimizer.lr)
    np.testing.assert_allclose(rates[:4], [0.25, 0.5, 0.75, 1.0])
    assert rates[5] == pytest.approx(0.55) and rates[7] == rates[8] == pytest.approx(0.1)
    assert optim.linear(1.0, 0, 10)(5) == 0.5


def test_a_small_gpt_learns():
    nc.manual_seed(0)
    text = [i * i % 11 for i in range(400)]
    model = nn.GPT(vocab=11, length=16, layers=2, heads=2, width=32)
    optimizer = optim.AdamW(model.named_parameters(), lr=3e-3)
    batches = nc.data.TokenBatches(text, batch=4, length=16)
    losses = []
    for _ in range(25):
        ids, targets = batches.next()
        loss = model(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(11), abs=0.2) and losses[-1] < 1.2
    assert model(ids).shape == (4, 16, 11)


def test_files(tmp_path):
    tensors = {"a.b": nc.tensor(normal(2, 3)), "half": nc.tensor([1.5], dtype="bfloat16"), "ids": nc.tensor([[1, -2]]), "empty": nc.zeros(0, 2), "one": nc.tensor(2.5)}
    nc.save(tensors, tmp_path / "x.safetensors")
    found = nc.load(tmp_path / "x.safetensors")
    assert {n: (t.dtype, t.tolist()) for n, t in found.items()} == {n: (t.dtype, t.tolist()) for n, t in tensors.items()}
    nc.save(tensors, tmp_path / "x.npz")
    found = nc.load(tmp_path / "x.npz")
    assert {n: t.tolist() for n, t in found.items()} == {n: t.tolist() for n, t in tensors.items()}
    with np.load(tmp_path / "x.npz") as arrays:
        np.testing.assert_array_equal(arrays["a.b"], tensors["a.b"].numpy())
    (tmp_path / "torn.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:60])
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:-3])
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], dtype=object))
    for name in ("torn.npz", "pickled.npz"):
        with pytest.raises(nc.errors.FormatError, match="pickles are not read"):
            nc.load(tmp_path / name)
    with pytest.raises(nc.NetclError):
        nc.load(tmp_path / "torn.safetensors")
    with pytest.raises(OSError):
        nc.load(tmp_path / "none.safetensors")
    with pytest.raises(OSError):
        nc.load(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="expected a tensor"):
        nc.save({"a": 1}, tmp_path / "y.npz")
    assert not [n for n in os.listdir(tmp_path) if "part" in n]


def test_loading_data():
    xs, ys = normal(10, 3), list(range(10))
    loader = nc.data.DataLoader(nc.data.TensorDataset(xs, ys), batch_size=4)
    batches = list(loader)
    assert len(loader) == 3 and [b[0].shape for b in batches] == [(4, 3), (4, 3), (2, 3)]
    np.testing.assert_array_equal(batches[1][0].numpy(), xs[4:8])
    shuffled = nc.data.DataLoader(nc.data.TensorDataset(xs, ys), batch_size=4, shuffle=True, drop_last=True, seed=3)
    first, second = ([i for b in shuffled for i in b[1].tolist()] for _ in range(2))
    assert len(first) == 8 and len(set(first)) == 8 and first != second
    again = nc.data.DataLoader(nc.data.TensorDataset(xs, ys), batch_size=4, shuffle=True, drop_last=True, seed=3)
    assert [i for b in again for i in b[1].tolist()] == first
    ids, targets = nc.data.TokenBatches(range(100), 3, 8).next()
    assert ids.shape == (3, 8)
    np.testing.assert_array_equal(ids.numpy() + 1, targets.numpy())
    with pytest.raises(ValueError):
        nc.data.TokenBatches(range(8), 1, 8)


def test_a_block_of_fused_operations_is_the_one_of_its_layers():
    nc.manual_seed(4)
    block = nc.nn.TransformerBlock(16, 2)
    x, dy = nc.randn(2, 5, 16, requires_grad=True), nc.randn(2, 5, 16)
    assert block._fused() is not None

    def both():
        x.grad = None
        block.zero_grad()
        y = block(x)
        y.backward(dy)
        return [y.detach().numpy(), x.grad.numpy(), *[p.grad.numpy() for p in block.parameters()]]

    fused = both()
    seen = []
    hook = block.down.register_forward_hook(lambda module, args, y: seen.append(tuple(y.shape)))
    assert block._fused() is None
    layers = both()
    assert seen == [(2, 5, 16)]
    for a, b in zip(fused, layers):
        assert np.allclose(a, b, atol=2e-5), np.abs(a - b).max()
    hook.remove()
    assert block._fused() is not None
    block.act = nc.nn.ReLU()
    assert block._fused() is None and not np.allclose(both()[0], fused[0], atol=1e-3)
    dropping = nc.nn.TransformerBlock(16, 2, dropout=0.1)
    assert dropping._fused() is None and dropping.eval()._fused() is not None
