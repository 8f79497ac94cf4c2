"""The plan of a framework over PyOpenCL, promise by promise: a test per row of the table of promises, named by the row's number. Rows from 167 on are
in test_seed_001_devices.py.

Code is read from the plan and run as it is; only names that it takes for granted are given.
"""

import json
import re
import threading

import numpy as np
import pytest
import seeds
from checks import check_gradients, data, device, inline

import netcl as nc
from netcl.compat import plan
from netcl.compat.plan import Tensor, autograd, executor, graph, ops


def names(**more):
    """Returns the names that the plan's code may use."""
    return {**{name: getattr(plan, name) for name in plan.__all__}, **{n: getattr(autograd, n) for n in autograd.__all__}, **more}


def test_row_127_tensor_is_made_of_device_shape_and_dtype():
    assert inline("001", "Tensor(") == "Tensor(device, shape, dtype, data=None, requires_grad=False)"
    for Class in (Tensor, nc.Tensor):
        t = Class(device(), (2, 3), "float32", data=np.arange(6), requires_grad=True)
        assert t.shape == (2, 3) and t.dtype is nc.float32 and t.device == device() and t.requires_grad and isinstance(t, Class)
        assert np.array_equal(t.to_host(), np.arange(6).reshape(2, 3))
        (t * t).sum().backward()
        assert np.array_equal(t.grad.to_host(), 2 * t.to_host())
    assert not Tensor(device(), (4,), np.int32).to_host().any() and Tensor(device().name, 3, "float16").dtype is nc.float16
    assert Tensor(device=None, shape=(1,), dtype="float32", data=[5.0]).item() == 5
    with pytest.raises(nc.errors.ShapeError, match=r"data has shape \(4,\), expected \(2, 3\)"):
        Tensor(device(), (2, 3), "float32", np.zeros(4))
    with pytest.raises(TypeError, match="Tensor"):
        Tensor(device())


def test_row_128_tensors_come_from_the_host_and_from_shapes():
    pool = plan.BufferPool(device())
    space = names(queue=device(), x=data(3, 2))
    exec(inline("001", "tx = "), space)
    assert np.array_equal(space["tx"].to_host(), space["x"]) and isinstance(space["tx"], nc.Tensor)
    made = nc.Tensor.from_shape(device(), (2, 2), dtype="float32", pool=pool, requires_grad=True)
    assert made.requires_grad and made.shape == (2, 2) and made.device == pool.device


def test_row_129_a_tensor_has_its_pool_handle():
    x, y = Tensor(device(), (64,), "float32"), Tensor(device(), (64,), "float32")
    assert x.pool_handle != y.pool_handle and x.pool_handle == x[:8].pool_handle and x.pool_handle.bytes >= 256
    assert x.pool_handle.device == device() and (x + y).pool_handle.number > y.pool_handle.number


def test_row_130_dtype_device_strides():
    x = Tensor(device(), (4, 5), "bfloat16")
    assert x.dtype.name == "bfloat16" and x.strides == (5, 1) and x.T.strides == (1, 5)


def test_row_131_to_a_device():
    x = nc.tensor(data(3)).to(nc.Device("sim"))
    assert x.device.name.startswith("sim") and x.to(device()).device == device()


def test_row_132_and_136_to_138_operations_with_their_arguments():
    a, b = nc.tensor(data(3, 4)), nc.tensor(data(4, 5))
    x, gamma, beta, axis = nc.tensor(data(3, 4)), nc.ones(4), nc.zeros(4), 0
    space = names(a=a, b=b, x=x, gamma=gamma, beta=beta, axis=axis, ops=ops)
    assert np.allclose(eval(inline("001", "ops.matmul("), space).to_host(), a.to_host() @ b.to_host(), atol=1e-5)
    assert ops.matmul(a, b, pool=plan.BufferPool()).shape == (3, 5)
    assert np.allclose(eval(inline("001", "ops.softmax("), space).to_host().sum(0), 1, atol=1e-5)
    assert np.allclose(ops.softmax(x).to_host().sum(1), 1, atol=1e-5)
    assert np.allclose(eval(inline("001", "ops.layer_norm("), space).to_host().mean(1), 0, atol=1e-5)
    assert np.array_equal(eval(inline("001", "ops.relu("), space).to_host(), np.maximum(x.to_host(), 0))
    for one in (None, 0, 1):
        assert np.allclose(ops.reduce_sum(x, axis=one).to_host(), x.to_host().sum(one), atol=1e-5)


def test_row_133_conv2d_with_stride_and_pad():
    space = names(x=nc.tensor(data(2, 3, 7, 7)), w=nc.tensor(data(4, 3, 3, 3)), stride=2, pad=1, ops=ops)
    assert eval(inline("001", "ops.conv2d("), space).shape == (2, 4, 4, 4)


def test_row_134_elementwise_operations():
    a, b = data(4, 5), data(5)
    assert np.allclose(ops.bias_add(nc.tensor(a), nc.tensor(b)).to_host(), a + b)
    assert np.allclose(ops.elementwise_binary("a - 2.0f * b")(nc.tensor(a), nc.tensor(a)).to_host(), -a, atol=1e-6)


@pytest.mark.parametrize(
    "expr",
    [
        "a * b + fmax(a, 0.0f)", "a / (b * b + 1.0f) - -a", "exp(-a * a) * tanh(b)", "a > b ? a * 2 : sin(b) * a", "pow(fabs(a) + 1.0f, b)", "sqrt(a * a + 1.0f) * log(b * b + 2.0f)",
        "fmin(a, b) + clamp(a * 3.0f, -1.0f, 1.0f)", "(float)(a) * M_PI_F + erf(b) / 2", "fma(a, b, a) + hypot(a, 2.0f) + atan2(a, b + 3.0f)", "!(a < b && b > 0) ? mix(a, b, 0.3f) : cos(a) * rsqrt(b * b + 1)",
    ],
)  # fmt: skip
def test_row_135_elementwise_expressions_have_gradients(expr):
    check_gradients(ops.elementwise_binary(expr), data(3, 4) + 0.01, data(3, 4))


def test_row_135_an_expression_without_a_derivative_is_refused_before_it_runs():
    a = autograd.tensor(np.full(3, 2.0, np.float32), True)
    gamma = ops.elementwise_binary("lgamma(a) + b")
    with pytest.raises(nc.errors.UnsupportedError, match="lgamma"):
        gamma(a, nc.ones(3))
    assert gamma(a.detach(), nc.ones(3)).shape == (3,)
    with pytest.raises(nc.errors.FormatError, match="unknown name 'c'"):
        ops.elementwise_binary("a * c").derivative(0)


def test_row_135_generated_trees_have_gradients():
    @nc.fuse
    def chain(x, bias):
        return ((x + bias).gelu() * x.sigmoid()).tanh()

    check_gradients(chain, data(3, 4), data(4))


def test_row_139_and_140_the_tape():
    x, w = data(3, 4), data(4, 2)
    space = names(tx=nc.tensor(x), w=nc.tensor(w))
    exec(inline("001", "tape = Tape(); y"), space)
    assert np.allclose(space["y"].to_host(), np.maximum(x @ w, 0), atol=1e-5)
    a = autograd.tensor(x, requires_grad=True)
    y = autograd.bias_add(autograd.add(a, a), autograd.tensor(data(4)))
    autograd.Tape().backward(y)
    assert np.array_equal(a.grad.to_host(), np.full((3, 4), 2, np.float32))
    autograd.Tape().backward(autograd.add(a, a), grad=nc.tensor(x))
    assert np.allclose(a.grad.to_host(), 2 + 2 * x)
    b = autograd.tensor(x, True)
    (b * 3.0).backward(grad=nc.tensor(x))
    assert np.allclose(b.grad.to_host(), 3 * x)


def test_row_141_every_operation_has_a_gradient():
    tape = autograd.Tape()
    check_gradients(lambda x, w: autograd.conv2d(x, w, 1, 1, tape=tape), data(1, 2, 4, 4), data(2, 2, 3, 3))
    check_gradients(lambda x: autograd.softmax(x, axis=0, tape=tape), data(3, 4))
    check_gradients(lambda x: autograd.reduce_sum(x, axis=1, tape=tape), data(3, 4))
    check_gradients(lambda x, g, b: autograd.layer_norm(x, g, b, tape=tape), data(3, 4), data(4), data(4))
    check_gradients(lambda x, g, b: autograd.batch_norm(x, g, b, tape=tape), data(4, 2, 2), data(2), data(2))
    check_gradients(lambda x: autograd.max_pool2d(x, 2, tape=tape), data(1, 1, 4, 4))
    check_gradients(lambda x, y: autograd.matmul(x, y, tape=tape), data(2, 3), data(3, 2))
    check_gradients(lambda x: autograd.gelu(x, tape=tape), data(3, 4))
    check_gradients(lambda x: autograd.mse_loss(x, nc.zeros(3, 4), tape=tape), data(3, 4))
    assert set(nc.ops.__all__) <= set(dir(autograd))
    for name in nc.ops.__all__:
        assert callable(getattr(autograd, name))
    with pytest.raises(AttributeError, match="no_such"):
        autograd.no_such


def test_row_142_the_training_loop():
    code = re.search(r"```\n( *tape = Tape\(\).*?)```", seeds.text("001"), re.DOTALL)[1]
    lines = [line.strip() for line in code.splitlines()]
    space = names(x=data(8, 784), targets=np.arange(8) % 10)
    exec("\n".join(lines), space)
    first = space["loss"].item()
    for _ in range(5):
        exec("\n".join(lines[3:]), space)
    assert space["loss"].item() < first and all(p.grad is None for p in space["model"].parameters())


def test_row_143_and_144_optimizers_have_a_base():
    class Plain(plan.Optimizer):
        def step(self):
            for p in self.params:
                p.copy_(p.detach() - p.grad * self.lr)

    p = autograd.tensor(np.array([3.0, 4.0], np.float32), True)
    opt = Plain([p], lr=0.5)
    (p * p / 2).sum().backward()
    assert opt.clip_grad(1.0) == pytest.approx(5, rel=1e-5) and np.allclose(p.grad.to_host(), [0.6, 0.8], atol=1e-5)
    opt.step()
    assert np.allclose(p.to_host(), [2.7, 3.6], atol=1e-5)
    opt.zero_grad()
    assert p.grad is None and opt.clip_grad(1.0) == 0
    with pytest.raises(NotImplementedError, match="step"):
        plan.Optimizer([p], 0.1).step()
    with pytest.raises(ValueError, match="requires_grad"):
        plan.Optimizer([nc.ones(2)], 0.1)
    for kind in (plan.SGD, plan.Adam):
        assert isinstance(kind([p], lr=0.1), plan.Optimizer)


def test_row_145_and_146_sgd_and_adam():
    torch = pytest.importorskip("torch")
    start, gradients = data(5), [data(5) for _ in range(4)]
    cases = [
        (plan.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (plan.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.1}),
    ]
    for ours, theirs, settings in cases:
        p, q = autograd.tensor(start, True), torch.tensor(start.copy(), requires_grad=True)
        one, other = ours([p], **settings), theirs([q], **settings)
        for i, g in enumerate(gradients):
            p.grad, q.grad = nc.tensor(g), torch.tensor(g)
            if i == 2:
                one.lr = other.param_groups[0]["lr"] = 0.02
            one.step()
            other.step()
        assert np.allclose(p.to_host(), q.detach().numpy(), atol=1e-5)


def test_row_147_to_151_layers():
    assert plan.Linear(3, 2, bias=False).bias is None
    conv = plan.Conv2d(2, 4, (3, 1), stride=2, padding=(1, 0), groups=2)
    assert conv(nc.tensor(data(1, 2, 6, 6))).shape == (1, 4, 3, 3)
    model = plan.Sequential(plan.Linear(3, 4), plan.Sigmoid(), plan.Tanh(), plan.LeakyReLU(0.1), plan.ReLU(), plan.Dropout(0.5))
    assert len(list(model.parameters())) == 2 and model(nc.tensor(data(2, 3))).shape == (2, 4)
    assert plan.max_pool2d(nc.tensor(data(1, 1, 4, 4))).shape == (1, 1, 2, 2)


def test_row_152_losses():
    x = data(4, 3)
    e = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    assert plan.cross_entropy(nc.tensor(x), nc.tensor([0, 1, 2, 0])).item() == pytest.approx(-np.log(e[range(4), [0, 1, 2, 0]]).mean(), abs=1e-5)
    assert plan.mse_loss(nc.tensor(x), nc.zeros(4, 3)).item() == pytest.approx((x * x).mean(), abs=1e-5)


def test_row_153_streams():
    code = inline("001", "with device.stream()").replace("...", "y = x @ x + 1.0")
    x = data(48, 48)
    space = {"device": device(), "x": nc.tensor(x)}
    exec(code, space)
    assert np.allclose((space["y"] * 2.0).to_host(), 2 * (x @ x + 1), atol=1e-3)
    with device().stream() as one, device().stream() as other:
        assert one.device == device() and other.ordered
        inside = (space["y"] - 1.0).to_host()
    assert np.allclose(inside, x @ x, atol=1e-3)
    free = device().stream(ordered=False)
    free.wait(device().record())
    with free:
        z = nc.tensor(x) @ nc.tensor(x)
        done = free.record()
    device().wait_for(done)
    assert np.allclose((z + 0.0).to_host(), x @ x, atol=1e-3)
    free.synchronize()
    done.synchronize()
    with pytest.raises(ZeroDivisionError), free:
        1 / 0
    assert np.allclose((nc.tensor(x) + 1.0).to_host(), x + 1)
    result = []

    def work():
        with device().stream():
            result.append((nc.tensor(x) * 3.0).to_host())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert np.allclose(result[0], 3 * x)


def test_row_154_a_block_becomes_a_graph():
    model = plan.Sequential(plan.Conv2d(1, 2, 3, padding=1), plan.BatchNorm(2), plan.ReLU(), plan.Flatten(), plan.Linear(32, 3)).eval()
    x = nc.tensor(data(2, 1, 4, 4))
    space = names(model=model, x=x)
    exec(inline("001", "with graph()"), space)
    for shape in ((2, 1, 4, 4),) * 2:
        new = nc.tensor(data(*shape))
        found = eval(inline("001", "executor.run("), {**space, "inputs": {"x": new}})
        assert list(found) == ["y"] and np.allclose(found["y"].to_host(), model(new).to_host(), atol=1e-5)
    assert np.allclose(executor.run(graph).to_host(), space["y"].to_host(), atol=1e-6)
    w = nc.tensor(data(3, 3))
    a, b = nc.tensor(data(2, 3)), nc.tensor(data(2, 3))
    with graph() as other:
        hidden = nc.cat([a, b], 0) @ w
        out = hidden.softmax(axis=1).sum()
    assert other.inputs() == ["a", "b", "w"] and other.results() == ["hidden", "out"]
    again = plan.GraphExecutor(capture=True)
    for _ in range(2):
        p, q = data(2, 3), data(2, 3)
        found = again.run(other, [nc.tensor(p), nc.tensor(q)])
        assert np.allclose(found["hidden"].to_host(), np.concatenate([p, q]) @ w.to_host(), atol=1e-5) and found["out"].item() == pytest.approx(4, abs=1e-4)
    with pytest.raises(nc.errors.FormatError, match="unknown inputs"):
        executor.run(other, {"c": a})


def test_row_154_a_block_that_a_graph_cannot_contain_is_refused():
    x = nc.tensor(data(2, 3))
    with pytest.raises(nc.errors.UnsupportedError, match="read on the host"), graph():
        x * float((x + 1.0).sum().item())
    with pytest.raises(nc.errors.UnsupportedError, match="within the graph"), graph():
        nc.where(x > 0, x, x * 2.0) + 1.0
    with pytest.raises(nc.errors.UnsupportedError, match="overwritten"):
        norm = plan.BatchNorm(3)
        with graph():
            norm(x)
    with pytest.raises(nc.errors.UnsupportedError, match="seed"), graph():
        plan.Dropout(0.5)(x)
    assert np.allclose((x + 1.0).to_host(), x.to_host() + 1)


def test_row_155_to_157_graphs_by_hand():
    g = plan.Graph()
    x = g.add_input("x", (2, 3))
    ref = g.add_op("y", lambda t: t * 2.0, [x], (2, 3), "float32")
    assert isinstance(ref, plan.TensorRef) and ref.shape == (2, 3)
    g.add_op("z", "relu", [ref])
    seen = []
    run = plan.GraphExecutor(plan.BufferPool(), fusion_hook=lambda nodes: seen.append(len(nodes)) or nodes).run
    given = data(2, 3)
    assert np.allclose(run(g, {"x": nc.tensor(given)})["z"].to_host(), np.maximum(2 * given, 0)) and seen == [3]
    layers = [plan.Linear(3, 4), plan.ReLU()]
    chain = plan.Graph.from_layers(layers, [nc.tensor(given)])
    assert np.allclose(run(chain, [nc.tensor(given)]).to_host(), plan.Sequential(*layers)(nc.tensor(given)).to_host())


def cnn():
    return plan.Sequential(
        plan.Conv2d(1, 4, 3, padding=1, groups=1), plan.BatchNorm(4), plan.ReLU(), plan.AvgPool2d(2), plan.Conv2d(4, 4, 3, padding=1, groups=4), plan.LeakyReLU(0.2),
        plan.MaxPool2d(2), plan.Flatten(), plan.Dropout(0.3), plan.Linear(16, 5), plan.Tanh(), plan.Sigmoid(), nc.nn.LayerNorm(5), nc.nn.GELU("tanh"), nc.nn.Softmax(1),
    )  # fmt: skip


def test_row_158_and_160_models_are_saved(tmp_path):
    model, x = cnn(), nc.tensor(data(2, 1, 8, 8))
    model(x)
    plan.save(model, tmp_path / "m.json")
    stored = json.loads((tmp_path / "m.json").read_text())
    assert stored["version"] == 2 and (tmp_path / stored["weights"]).suffix == ".npz"
    for again in (plan.load(tmp_path / "m.json"), plan.load(tmp_path / "m.json", device=device())):
        assert np.array_equal(again.eval()(x).to_host(), model.eval()(x).to_host()) and repr(again) == repr(model)
    nested = plan.Sequential(nc.nn.Embedding(7, 8), nc.nn.TransformerBlock(8, 2, causal=False), plan.Sequential(nc.nn.RMSNorm(8), nc.nn.Identity(), nc.nn.SiLU()))
    nested.append(nc.nn.MultiHeadAttention(8, 2, rotary=4)).append(nc.nn.LearnedPositions(4, 8)).eval()
    plan.save(nested, tmp_path / "n.json")
    ids = nc.tensor([[1, 2, 3, 4]])
    assert np.array_equal(plan.load(tmp_path / "n.json").eval()(ids).to_host(), nested(ids).to_host())


class Scaled(nc.nn.Module):
    def __init__(self, size, factor=2.0):
        super().__init__()
        self.size, self.factor = size, factor
        self.weight = nc.nn.Parameter(nc.ones(size))

    def forward(self, x):
        return x * self.weight * self.factor


def test_row_160_a_layer_of_ones_own_is_saved(tmp_path):
    model = plan.Sequential(Scaled(3, 4.0), plan.ReLU())
    plan.save(model, tmp_path / "m.json")
    assert plan.load(tmp_path / "m.json", layers=[Scaled])(nc.ones(1, 3)).tolist() == [[4.0] * 3]
    with pytest.raises(nc.errors.FormatError, match="unknown layer Scaled"):
        plan.load(tmp_path / "m.json")


def test_row_159_each_weight_has_a_hash(tmp_path):
    path = tmp_path / "m.json"
    plan.save(cnn(), path)
    assert set(json.loads(path.read_text())["hashes"]) == set(cnn().state_dict())
    with np.load(tmp_path / "m.npz") as file:
        arrays = dict(file)

    def refused(pattern, **changed):
        np.savez(tmp_path / "m.npz", **{name: a for name, a in {**arrays, **changed}.items() if a is not None})
        with pytest.raises(nc.errors.FormatError, match=pattern):
            plan.load(path)

    bits = arrays["9.weight"].copy()
    bits.view(np.uint8).reshape(-1)[5] ^= 1
    refused("weight 9.weight .* was altered", **{"9.weight": bits})
    refused("weight 0.bias .* was altered", **{"0.bias": arrays["0.bias"].astype(np.float64)})
    refused("weight 4.weight .* was altered", **{"4.weight": arrays["4.weight"].reshape(4, 9)})
    refused("lacks the weight 1.running_var", **{"1.running_var": None})
    refused("does not list: more", more=bits)
    np.savez(tmp_path / "m.npz", **arrays)
    plan.load(path)
    packed = bytearray((tmp_path / "m.npz").read_bytes())
    place = packed.find(arrays["9.weight"].tobytes())
    packed[place] ^= 1
    (tmp_path / "m.npz").write_bytes(packed)
    with pytest.raises(nc.errors.FormatError, match="weight 9.weight .* is damaged"):
        plan.load(path)


def test_row_161_and_162_graphs_are_saved(tmp_path):
    model, x = cnn().eval(), nc.tensor(data(2, 1, 8, 8))
    layers = plan.Graph.from_layers(list(model), x)
    with graph() as block:
        y = model(x)
    g = plan.Graph()
    g.add_op("s", "softmax", [g.add_input("x", (2, 3))], axis=1)
    for given, inputs in ((layers, x), (block, x), (g, nc.tensor(data(2, 3)))):
        plan.save_graph(given, tmp_path / "g.json")
        again = plan.load_graph(tmp_path / "g.json")
        assert np.array_equal(executor.run(again, inputs).to_host(), executor.run(given, inputs).to_host())
    assert np.allclose(executor.run(layers, x).to_host(), y.to_host(), atol=1e-6)
    plan.save_graph(layers, tmp_path / "g.json")
    with np.load(tmp_path / "g.npz") as file:
        arrays = dict(file)
    arrays["layer9/bias"] = arrays["layer9/bias"] + 1
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(nc.errors.FormatError, match="layer9/bias .* was altered"):
        plan.load_graph(tmp_path / "g.json")


def test_row_163_progress(capsys):
    bar = plan.ProgressBar(4, epoch=1)
    for step in range(1, 5):
        bar.update(step, info={"loss": 0.5, "acc": 0.9, "it/s": 10})
    bar.close()


def test_row_164_the_pool():
    pool = plan.BufferPool(device())
    x = pool.allocate((1000,))
    first = pool.stats()
    pool.release(x)
    assert pool.stats()["live"] < first["live"]
    pool.trim()
    assert set(first) == {"live", "reserved", "peak", "buffers"}


def test_row_165_and_166_events_are_timed_by_the_driver():
    timer, a = plan.EventTimer(device(), rounds=2), nc.tensor(data(64, 64))
    a @ a
    with timer.record() as event:
        b = a @ a
        b.to_host()
    assert event.kernels and event.transfers and event.start < event.end
    ms = timer.time_event(event)
    assert ms == pytest.approx((event.end - event.start) * 1e-6) and ms > 0
    for name, start, end, moved, _ in event.commands:
        assert name and event.start <= start <= end <= event.end and moved > 0
    assert timer.time_event(lambda: a @ a) > 0 and timer.bandwidth(event) > 0
    assert sum(row[2] for row in timer.kernels(event)) <= ms * 1.01
    with pytest.raises(TypeError, match="event"):
        timer.time_event(3)
    with timer.record() as nothing:
        pass
    assert timer.time_event(nothing) == 0
