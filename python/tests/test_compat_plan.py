"""The names of the plan over PyOpenCL and its listings: a sequence of layers with Adam, the tape, and graphs."""

import json

import numpy as np
import pytest

import netcl as nc
from netcl.compat import plan
from netcl.compat.plan import autograd, ops


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# The plan's listing of a training loop: a tape, a Sequential of Linear, ReLU, Linear, Adam, cross entropy, the tape's backward, a step, and
# zero_grad. The listing is one pass; here it is repeated on blobs of two classes until the model separates them. The sizes 784 and 256 are
# reduced for the simulated GPU.
def test_a_sequence_of_layers_with_adam_learns():
    nc.manual_seed(0)
    targets = np.arange(32) % 2
    x = data(32, 12) + np.where(targets[:, None] == 1, 1.0, -1.0).astype(np.float32)
    tape = autograd.Tape()
    model = plan.Sequential(plan.Linear(12, 16), plan.ReLU(), plan.Linear(16, 2))
    opt = plan.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        out = model(autograd.tensor(x, True), tape=tape)
        loss = plan.cross_entropy(out, autograd.tensor(targets))
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert (model(autograd.tensor(x)).numpy().argmax(1) == targets).all()


# The plan's usage: data from the host, y = relu(matmul_op(tensor, tensor)), and a backward.
def test_the_tape_gives_gradients():
    x, w, bias = data(4, 3), data(3, 5, seed=1), data(5, seed=2)
    tape = autograd.Tape()
    tx = plan.Tensor.from_host(None, x, dtype="float32")
    a, b, c = autograd.tensor(tx, True), autograd.tensor(w, True), autograd.tensor(bias, requires_grad=True)
    y = autograd.relu(autograd.bias_add(autograd.matmul_op(a, b, tape=tape), c, tape=tape), tape=tape)
    z = x @ w + bias
    assert np.allclose(y.to_host(), np.maximum(z, 0), atol=1e-5) and isinstance(y, plan.Tensor)
    tape.backward(y)  # a gradient of ones
    d = (z > 0).astype(np.float32)
    assert np.allclose(a.grad.numpy(), d @ w.T, atol=1e-5) and np.allclose(b.grad.numpy(), x.T @ d, atol=1e-5) and np.allclose(c.grad.numpy(), d.sum(0), atol=1e-5)
    tape.backward(ops.reduce_sum(ops.matmul(a, b)))  # added to the existing gradient
    assert np.allclose(b.grad.numpy(), x.T @ (d + 1), atol=1e-4)
    y = autograd.add(a, 1.0)
    a.grad = None
    tape.backward(y, nc.tensor(x))
    assert np.array_equal(a.grad.numpy(), x)
    assert not tx.requires_grad


def test_operations_have_their_names():
    x, w = data(2, 3, 6, 6), data(4, 3, 3, 3, seed=1)
    y = ops.conv2d(nc.tensor(x), nc.tensor(w))
    expected = sum(np.einsum("bchw,oc->bohw", x[:, :, i : i + 4, j : j + 4], w[:, :, i, j]) for i in range(3) for j in range(3))
    assert np.allclose(y.to_host(), expected, atol=1e-4)
    assert ops.max_pool2d(nc.tensor(x)).shape == (2, 3, 3, 3)
    a = data(5, 7)
    t = nc.tensor(a)
    assert np.allclose(ops.softmax(t).to_host().sum(1), 1, atol=1e-5) and np.allclose(ops.softmax(t, axis=0).to_host().sum(0), 1, atol=1e-5)
    for axis in (None, 0, 1):
        assert np.allclose(ops.reduce_sum(t, axis).to_host(), a.sum(axis), atol=1e-5)
    assert np.allclose(ops.layer_norm(t, nc.ones(7), nc.zeros(7)).to_host().mean(1), 0, atol=1e-5)
    fused = ops.elementwise_binary("a * b + fmax(a, 0.0f)")
    b = data(5, 7, seed=3)
    assert np.allclose(fused(t, nc.tensor(b)).to_host(), a * b + np.maximum(a, 0), atol=1e-5)
    with pytest.raises(ValueError, match="one shape"):
        fused(t, nc.ones(7))


def test_a_pool_takes_memory_back_and_a_timer_times():
    pool = plan.BufferPool()
    pool.device.synchronize()
    before = pool.stats()["live"]
    x = plan.Tensor.from_shape(None, (64, 64), pool=pool)
    assert pool.stats()["live"] >= before + 64 * 64 * 4 and pool.stats()["reserved"] >= pool.stats()["live"]
    pool.release(x)
    pool.trim()
    assert pool.stats()["live"] == before
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        x.to_host()
    timer = plan.EventTimer(rounds=2)
    a = nc.ones(16, 16)
    assert timer.time_event(lambda: a @ a) > 0
    kernels = timer.kernels(lambda: (a @ a).gelu())
    assert len(kernels) >= 2 and all(count >= 1 and ms >= 0 for _, count, ms in kernels)


def chain():
    graph = plan.Graph()
    x, w = graph.add_input("x", (4, 3)), graph.add_input("w", (3, 5))
    y = graph.add_op("y", "matmul", [x, w], (4, 5))
    z = graph.add_op("z", "leaky_relu", [y], slope=0.1)
    graph.add_op("s", "softmax", [z], axis=1)
    return graph


@pytest.mark.parametrize("capture", [False, True])
def test_graphs_run_in_order(capture):
    graph, executor = chain(), plan.GraphExecutor(plan.BufferPool(), capture=capture)
    for seed in range(3):
        x, w = data(4, 3, seed=seed), data(3, 5, seed=seed + 9)
        found = executor.run(graph, {"x": nc.tensor(x), "w": nc.tensor(w)})
        assert list(found) == ["s"]
        y = x @ w
        e = np.exp(np.where(y > 0, y, 0.1 * y))
        assert np.allclose(found["s"].numpy(), e / e.sum(1, keepdims=True), atol=1e-5)
    more = executor.run(graph, {"x": nc.tensor(x), "w": nc.tensor(w)}, outputs=["y", "s"])
    assert np.allclose(more["y"].numpy(), y, atol=1e-5) and list(more) == ["y", "s"]


def test_graphs_are_made_of_layers_saved_and_checked(tmp_path):
    model = plan.Sequential(plan.Linear(3, 4), plan.Tanh())
    x = nc.tensor(data(2, 3))
    graph = plan.Graph.from_layers(list(model), [x])
    assert [n.ref.name for n in graph.order()] == ["input0", "layer0", "layer1"]
    seen = []
    executor = plan.GraphExecutor(fusion_hook=lambda nodes: seen.append(len(nodes)) or nodes)
    assert np.allclose(executor.run(graph, {"input0": x})["layer1"].numpy(), model(x).detach().numpy()) and seen == [3]
    plan.save_graph(graph, tmp_path / "layers.json")
    stored = plan.load_graph(tmp_path / "layers.json")
    assert np.array_equal(executor.run(stored, {"input0": x})["layer1"].numpy(), model(x).detach().numpy())
    with pytest.raises(nc.errors.FormatError, match="cannot save"):
        plan.save_graph(plan.Graph.from_layers([lambda x: x + 1.0], [x]), tmp_path / "graph.json")
    plan.save_graph(chain(), tmp_path / "graph.json")
    again = plan.load_graph(tmp_path / "graph.json")
    inputs = {"x": nc.tensor(data(4, 3)), "w": nc.tensor(data(3, 5))}
    run = plan.GraphExecutor().run
    assert np.array_equal(run(again, inputs)["s"].numpy(), run(chain(), inputs)["s"].numpy())
    with pytest.raises(nc.errors.FormatError, match="missing inputs \\['w'\\]"):
        run(chain(), {"x": inputs["x"]})
    with pytest.raises(nc.errors.FormatError, match="already"):
        again.add_input("x")
    with pytest.raises(nc.errors.FormatError, match="does not have an operation"):
        again.add_op("q", "no_such", [])
    with pytest.raises(nc.errors.FormatError, match="shape"):
        wrong = plan.Graph()
        wrong.add_op("y", "relu", [wrong.add_input("x")], (9, 9))
        run(wrong, {"x": inputs["x"]})
    wrong = json.loads((tmp_path / "graph.json").read_text())
    wrong["nodes"][2]["inputs"] = ["s", "w"]
    (tmp_path / "circle.json").write_text(json.dumps(wrong))
    with pytest.raises(nc.errors.FormatError, match="cycle"):
        plan.load_graph(tmp_path / "circle.json")


def test_models_are_words_and_weights(tmp_path):
    nc.manual_seed(1)
    model = plan.Sequential(plan.Conv2d(1, 2, 3, padding=1), plan.LeakyReLU(0.2), plan.MaxPool2d(2), nc.nn.Flatten(), plan.Linear(8, 3))
    x = nc.tensor(data(2, 1, 4, 4))
    plan.save(model, str(tmp_path / "cnn.json"))
    assert np.array_equal(plan.load(str(tmp_path / "cnn.json"))(x).detach().numpy(), model(x).detach().numpy())

    class Own(nc.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.twice = 2 * factor

    with pytest.raises(nc.errors.FormatError, match="Own does not keep its argument 'factor'"):
        plan.save(plan.Sequential(Own(1)), str(tmp_path / "own.json"))
    model = plan.Sequential(plan.Conv2d(1, 2, 3, padding=1, bias=False), plan.LeakyReLU(0.2), plan.MaxPool2d(2), plan.Dropout(0.5)).eval()
    plan.save(model, str(tmp_path / "model.json"))
    again = plan.load(str(tmp_path / "model.json"))
    assert np.array_equal(again.eval()(x).detach().numpy(), model(x).detach().numpy()) and isinstance(again, plan.Sequential)
    (tmp_path / "model.json").write_text('{"version": 1}')
    with pytest.raises(nc.errors.FormatError, match="not written by save"):
        plan.load(str(tmp_path / "model.json"))
    with pytest.raises(nc.errors.IoError):
        plan.load(str(tmp_path / "nothing.json"))


def test_first_values_lie_within_their_bounds():
    nc.manual_seed(2)
    w = nc.zeros(40, 60)
    plan.xavier_uniform(w)
    bound = np.sqrt(6 / 100)
    assert 0.9 * bound < np.abs(w.numpy()).max() <= bound and abs(w.numpy().mean()) < 0.02
    plan.kaiming_uniform(w)
    assert 0.9 * np.sqrt(0.1) < np.abs(w.numpy()).max() <= np.sqrt(0.1)
    assert plan.mse_loss(nc.ones(3), nc.zeros(3)).item() == 1


def test_what_is_not_there_says_so():
    with pytest.raises(nc.errors.DeviceError, match="distributed.init"):
        plan.distributed.all_reduce(nc.ones(3))
    with pytest.raises(AttributeError, match="nothing"):
        plan.nothing
