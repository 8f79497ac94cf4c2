"""The plan of a framework over PyOpenCL, rows of the table of promises from 167 on: several devices, operations, phases and open questions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import models
import numpy as np
import pytest
import seeds
from checks import check_gradients, data, device

import netcl as nc
from netcl.compat import plan
from netcl.compat.plan import Tensor, autograd, distributed, executor, ops


@pytest.fixture
def two():
    """Two ranks that this program drives."""
    yield distributed.init(devices=[device(), device()])
    distributed.shutdown()


def test_row_167_to_170_collective_operations(two):
    assert two.size == 2 and distributed.get_world_size() == 2 and distributed.is_initialized()
    x = data(5, 3)
    parts = distributed.scatter(nc.tensor(x))
    assert [p.shape for p in parts] == [(3, 3), (2, 3)] and np.array_equal(distributed.gather(parts).to_host(), x)
    copies = distributed.broadcast(nc.tensor(x))
    for op, expected in (("sum", 3 * x), ("mean", 1.5 * x), ("max", np.maximum(x, 2 * x))):
        tensors = [nc.tensor(x), nc.tensor(2 * x)]
        assert distributed.all_reduce(tensors, op=op) is tensors
        assert all(np.allclose(t.to_host(), expected, atol=1e-6) for t in tensors)
    turned = [c.T for c in copies]
    distributed.all_reduce(turned)
    assert np.array_equal(copies[1].to_host(), 2 * x)
    distributed.broadcast(copies, root=1)
    assert all(np.array_equal(a.to_host(), x[None].repeat(2, 0).reshape(10, 3)) for a in distributed.all_gather([nc.tensor(x)] * 2))
    with pytest.raises(nc.errors.FormatError, match="one tensor per device"):
        distributed.all_reduce(nc.tensor(x))
    with pytest.raises(nc.errors.ShapeError, match="differ"):
        distributed.all_reduce([nc.ones(2), nc.ones(3)])
    with pytest.raises(nc.errors.FormatError, match="root is 2"):
        distributed.broadcast(copies, root=2)
    with pytest.raises(nc.errors.FormatError, match="median"):
        distributed.all_reduce(copies, op="median")


def on_rank():
    ranks = distributed.init()
    own = nc.full((2,), float(ranks.rank + 1))
    distributed.all_reduce(own)
    told = distributed.broadcast(nc.full((2,), float(ranks.rank)), root=1)
    part = distributed.scatter(nc.arange(7, dtype="float32") if ranks.rank == 0 else None)
    whole = distributed.gather(part, root=1)
    everything = distributed.all_gather(part)
    distributed.barrier()
    return ranks.rank, own.tolist(), told.tolist(), part.tolist(), None if whole is None else whole.tolist(), everything.tolist()


def test_row_167_to_170_each_device_is_a_rank():
    found = distributed.run(on_rank, [device(), device(), device()], shares=[1, 2, 4])
    assert [f[0] for f in found] == [0, 1, 2] and [len(f[3]) for f in found] == [2, 2, 3]
    assert all(f[1] == [6.0, 6.0] and f[2] == [1.0, 1.0] and f[5] == list(range(7)) for f in found)
    assert [f[4] for f in found] == [None, list(range(7)), None] and not distributed.is_initialized()

    def fail():
        if distributed.get_rank() == 1:
            raise LookupError("of a rank")
        distributed.all_reduce(nc.ones(2))

    with pytest.raises(LookupError, match="of a rank"):
        distributed.run(fail, [device(), device()])


def write_rank(folder, name):
    """Writes the results of this rank to a file, because lines of several ranks mix on mpirun's output."""
    nc.set_default_device(name)
    ranks = distributed.init(devices=[name])
    Path(folder, f"rank{ranks.rank}.txt").write_text(str(on_rank()))


@pytest.mark.skipif(not any(os.access(Path(p) / "mpirun", os.X_OK) for p in os.environ.get("PATH", "").split(os.pathsep)), reason="no mpirun")
def test_row_167_to_170_processes_of_mpi(tmp_path):
    call = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_seed_001_devices as t; t.write_rank({str(tmp_path)!r}, {device().name!r})"
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    done = subprocess.run(["mpirun", "-n", "2", sys.executable, "-c", call], capture_output=True, text=True, timeout=240, env=environment)
    if done.returncode and "no MPI library" in done.stderr + done.stdout:
        pytest.skip("no MPI library")
    assert done.returncode == 0, done.stderr
    found = [path.read_text() for path in sorted(tmp_path.glob("rank*.txt"))]
    assert len(found) == 2 and all("[3.0, 3.0], [1.0, 1.0]" in text for text in found)


def make_model():
    nc.manual_seed(3)
    return plan.Sequential(plan.Linear(6, 8), plan.Tanh(), plan.Linear(8, 3))


def train(model, x, y, steps=3):
    opt = plan.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        plan.cross_entropy(model(nc.tensor(x)), nc.tensor(y)).backward()
        opt.step()
        opt.zero_grad()
    return [p.to_host() for p in model.parameters()]


def same(a, b, atol=1e-5):
    return all(np.allclose(x, y, atol=atol) for x, y in zip(a, b))


def test_row_167_data_parallel_models(two):
    x, y = data(10, 6), np.arange(10) % 3
    expected = train(make_model(), x, y)
    two.shares = [3, 1]
    model = distributed.DataParallel(make_model())
    assert same(train(model, x, y), expected)
    leaf = nc.tensor(x, requires_grad=True)
    model(leaf).sum().backward()
    other = nc.tensor(x, requires_grad=True)
    model.module(other).sum().backward()
    assert np.allclose(leaf.grad.to_host(), other.grad.to_host(), atol=1e-6)
    with nc.no_grad():
        assert not model(nc.tensor(x[:1])).requires_grad
    with pytest.raises(nc.errors.FormatError, match="common first axis"):
        model(nc.tensor(x).sum())

    # Ranks that are threads share the default random stream, so the models are made before. Rank 1 starts with other values.
    models_of_ranks = [make_model(), plan.Sequential(plan.Linear(6, 8), plan.Tanh(), plan.Linear(8, 3))]

    def rank():
        ranks = distributed.current()
        start = sum(ranks.divide(10)[: ranks.rank])
        rows = slice(start, start + ranks.divide(10)[ranks.rank])
        return train(distributed.DataParallel(models_of_ranks[ranks.rank]), x[rows], y[rows])

    one, two_ = distributed.run(rank, [device(), device()], shares=[2, 1])
    assert same(one, expected) and same(one, two_, atol=0)


def test_row_171_batch_norm():
    torch = pytest.importorskip("torch")
    ours, theirs = plan.BatchNorm(3), torch.nn.BatchNorm2d(3)
    for _ in range(2):
        x = data(4, 3, 2, 2)
        assert np.allclose(ours(nc.tensor(x)).to_host(), theirs(torch.tensor(x)).detach().numpy(), atol=1e-4)
    assert np.allclose(ours.running_var.to_host(), theirs.running_var.numpy(), atol=1e-5)
    assert np.allclose(ours.eval()(nc.tensor(x)).to_host(), theirs.eval()(torch.tensor(x)).detach().numpy(), atol=1e-4)


def test_row_172_depthwise_convolution():
    x, w = data(2, 3, 5, 5), data(3, 1, 3, 3)
    expected = sum(x[:, :, i : i + 3, j : j + 3] * w[:, 0, i, j][None, :, None, None] for i in range(3) for j in range(3))
    assert np.allclose(ops.depthwise_conv2d(nc.tensor(x), nc.tensor(w)).to_host(), expected, atol=1e-4)
    assert np.allclose(ops.conv2d(nc.tensor(x), nc.tensor(w), groups=3).to_host(), expected, atol=1e-4)
    check_gradients(lambda a, b: autograd.depthwise_conv2d(a, b), data(1, 2, 4, 4), data(2, 1, 3, 3))


def test_row_173_and_174_scatter_gather_and_random_numbers():
    x = data(5, 3)
    assert np.array_equal(nc.ops.index_select(nc.tensor(x), nc.tensor([3, 0])).to_host(), x[[3, 0]])
    for name in ("sim", device().name):
        nc.manual_seed(9)
        drawn = nc.rand(16, device=name).numpy()
        assert np.array_equal(drawn, nc.Generator(9).uniform((16,), device="sim").numpy())


def test_row_175_half_precision():
    x = data(4, 8)
    for dtype in (nc.float16, nc.bfloat16):
        y = nc.tensor(x, dtype=dtype)
        assert np.allclose((y @ y.T).float().to_host(), x @ x.T, atol=0.1)


def test_row_176_and_177_devices_and_memory():
    assert device().kind in ("cpu", "gpu", "accelerator") and device().total_memory > 0
    with pytest.raises(nc.errors.DeviceError, match="no device"):
        nc.Device("nothing:7")


def test_row_178_fused_chains_are_one_launch():
    x = nc.tensor(data(32, 32))

    def chain(x):
        return ((x + 1.0) * x).tanh().relu()

    fused = nc.fuse(chain)
    fused(x), chain(x)
    device().synchronize()
    before = device().launches
    fused(x)
    assert device().launches - before == 1


def test_row_181_gradients_by_differences():
    check_gradients(lambda a, b: (a @ b).softmax(axis=1), data(3, 4), data(4, 2))


def test_row_182_graphs_plan_memory():
    found = nc.OpGraph(lambda x: ((x @ x).relu() @ x).relu() @ x, nc.tensor(data(16, 16))).memory()
    assert 0 < found.planned < found.unshared


def test_row_183_and_184_division_by_profile():
    found = distributed.profile(device())
    assert found.memory > 0 and found.flops > 0 and found.link > 0
    fast, slow = found._replace(flops=3e9, memory=1000), found._replace(flops=1e9, memory=10**9)
    assert distributed.divide(8, [fast, slow]) == [6, 2]
    assert distributed.divide(8, [fast, slow], row_bytes=250) == [2, 6]
    with pytest.raises(nc.errors.OutOfMemoryError, match="do not fit"):
        distributed.divide(8, [fast, fast], row_bytes=500)
    try:
        ranks = distributed.init(devices=[device(), device()], shares="profile")
        assert sum(ranks.divide(9)) == 9 and min(ranks.divide(9)) > 0
    finally:
        distributed.shutdown()
    for wrong in ("fast", [1], [1, 0]):
        with pytest.raises(nc.errors.FormatError, match="shares"):
            distributed.init(devices=[device(), device()], shares=wrong)


def test_row_186_profiles():
    with nc.profiler.profile(device()) as found:
        nc.ones(8, 8) @ nc.ones(8, 8)
    assert found.kernels and "launches" in str(found)


def test_row_188_checks_of_bounds():
    wrong = nc.kernel("__kernel void k(__global const float *x, __global float *y, const uint n) { y[get_global_id(0)] = x[get_global_id(0) + n]; }")
    with pytest.raises(nc.errors.LaunchError, match="bounds|outside|beyond"):
        wrong.check(nc.ones(64), n=64)


def test_row_190_errors_leave_a_usable_device():
    with pytest.raises(nc.errors.OutOfMemoryError):
        nc.zeros(1 << 20, 1 << 20)
    with pytest.raises(nc.errors.BuildError):
        ops.elementwise_binary("a +* b")(nc.ones(2), nc.ones(2))
    assert (nc.ones(2) + 1.0).tolist() == [2.0, 2.0]


def test_row_191_the_open_questions_are_answered():
    questions = re.findall(r"^- (.+\?)$", seeds.text("001").split("## Offene Fragen")[1], re.MULTILINE)
    page = (Path(__file__).parents[2] / "docs" / "book" / "from-the-seeds.md").read_text(encoding="utf-8")
    answers = page.split("### Answers to the open questions")[1].split("\n#")[0]
    assert len(questions) == 4 and len(re.findall(r"^\| ", answers, re.MULTILINE)) == 2 + len(questions)


def test_row_246_and_247_results_have_to_host():
    model, x = make_model(), autograd.tensor(data(2, 6), True)
    y = model(x)
    y.sum().backward()
    for found in (y, x.grad, next(model.parameters()).grad, y.T, y[0], y + y, 2.0 * y, y.softmax(axis=1), executor.run(plan.Graph.from_layers(list(model), x), x)["layer2"]):
        assert isinstance(found, Tensor) and isinstance(found.to_host(), np.ndarray)


SETTINGS = {"steps": 3, "eval_every": 0, "sample_every": 0, "checkpoint_every": 0, "grad_accum": 2, "seed": 5, "context": 32}


@pytest.mark.parametrize("more", [{}, {"zero": 1}, {"pipeline": 2}, {"shares": [3, 1]}])
def test_row_185_and_248_trainers_on_several_devices(tmp_path, more):
    def begin(name, **settings):
        return nc.Trainer("demo-tiny", data=models.folder() / "text.txt", out=tmp_path / name, **SETTINGS, **settings)

    kinds = []
    one = begin("one", device=device())
    several = begin("several", devices=[device(), device().name], callbacks=lambda event: kinds.append(event.kind) and None, **more)
    assert one.run() == several.run() == "finished"
    assert np.allclose([m["loss"] for m in several.history], [m["loss"] for m in one.history], atol=1e-4)
    assert kinds.count("step") == 3 and several.step == 3
    ours, whole = several.state_dict(), one.state_dict()
    assert set(ours) == set(whole) and all(np.allclose(ours[n].to_host(), whole[n].to_host(), atol=1e-3) for n in whole)
    several.close()
    with nc.Trainer.resume(several.folder, devices=[device(), device()], steps=4) as more_steps:
        assert more_steps.step == 3 and more_steps.run() == "finished" and more_steps.step == 4


def test_row_248_settings_that_contradict_are_refused(tmp_path):
    def begin(**settings):
        return nc.Trainer("demo-tiny", data=models.folder() / "text.txt", out=tmp_path / "run", **SETTINGS, **settings)

    with pytest.raises(TypeError, match="both given"):
        begin(device=device(), devices=[device(), device()])
    with pytest.raises(TypeError, match="expected a list"):
        begin(devices=device())
    with pytest.raises(TypeError, match="shares needs several"):
        begin(device=device(), shares="equal")
    with pytest.raises(nc.errors.FormatError, match="shares has 3 numbers for 2"):
        begin(devices=[device(), device()], shares=[1, 2, 3])
    with pytest.raises(nc.errors.FormatError, match="pipeline 9"):
        begin(devices=[device(), device()], pipeline=9)
