"""Graphs of operations: values of the function, files, other devices, and errors by name."""

import json
import struct

import numpy as np
import pytest

import netcl as nc
from netcl import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, image, scale):
        x = self.norm(self.inner(image).gelu())
        return self.head(x).log_softmax(-1), x * scale


def made():
    nc.manual_seed(1)
    return Net()


def metadata(path, **changes):
    """Writes the file again with changed metadata."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_a_module_as_a_graph_for_any_rows(tmp_path):
    net = made()
    before = {name: p for name, p in net.named_parameters()}
    graph = nc.OpGraph(net, nc.zeros(2, 6), nc.zeros(2, 1), any_rows=True)
    assert {name: p for name, p in net.named_parameters()} == before and net.head.weight.requires_grad
    assert [i.name for i in graph.inputs] == ["image", "scale"] and graph.any_rows
    assert graph.inputs[0] == ("image", ("rows", 6), "float32")
    assert [o.shape for o in graph.outputs] == [("rows", 3), ("rows", 8)]
    assert {w.name for w in graph.weights} == set(before)
    assert "log_softmax" in graph.operations and "head" in str(graph)
    path = tmp_path / "net.safetensors"
    graph.save(path)
    there = nc.OpGraph.load(path)
    assert str(there) == str(graph) == nc.OpGraph.describe(path) and there.json() == nc.OpGraph.load(path).json()
    for rows in (1, 3, 4, 9):
        x, scale = nc.randn(rows, 6), nc.randn(rows, 1)
        for expected, y, z in zip(net(x, scale), graph(x, scale), there(x, scale)):
            np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
            assert y.tolist() == z.tolist() and not y.requires_grad
    # Any reader of safetensors can read the weights.
    stored = nc.load(str(path))
    np.testing.assert_array_equal(stored["inner.weight"].numpy(), net.inner.weight.numpy())


def test_another_device(tmp_path):
    net = made()
    graph = nc.OpGraph(lambda x: net(x, x[:, :1])[0], nc.zeros(1, 6), any_rows=True)
    graph.save(tmp_path / "net.safetensors")
    there = nc.OpGraph.load(tmp_path / "net.safetensors", device="sim:rx7900xtx")
    assert there.device == nc.Device("sim:rx7900xtx") and "rx7900xtx" in repr(there)
    x = nc.randn(4, 6)
    np.testing.assert_allclose(there(x.to("sim:rx7900xtx")).numpy(), graph(x).numpy(), rtol=1e-4, atol=1e-5)
    if graph.device != there.device:
        with pytest.raises(nc.errors.DeviceError, match="input x is on"):
            there(x)


def test_pictures_text_and_memory():
    w = nc.ones(3, 4)
    graph = nc.OpGraph(lambda a, b: (a @ w + b).relu(), nc.zeros(2, 3), nc.zeros(2, 4), names=["left", "right"])
    assert not graph.any_rows and graph.inputs[1].shape == (2, 4)
    text = str(graph)
    for part in ("input  %0 left", "weight %2 constant.0", "matmul", "relu", "output"):
        assert part in text, text
    assert graph.dot().startswith("digraph") and "matmul" in graph.dot()
    assert graph.svg().lstrip().startswith("<svg")
    assert graph.json()["inputs"][0]["name"] == "left"
    memory = graph.memory()
    assert "planned" in str(memory) and memory.weights == 48 and memory.inputs == 2 * 7 * 4
    assert 0 < memory.peak <= memory.unshared
    # Weights have their values from recording.
    w.copy_(nc.zeros(3, 4))
    assert graph(nc.ones(2, 3), nc.zeros(2, 4)).tolist() == [[3] * 4] * 2


def test_layers_and_buckets():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    layers = [("first", model[0]), ("middle", lambda x: x.relu()), ("last", model[2])]
    x = nc.randn(11, 4)
    graph = nc.OpGraph.from_layers(x[:1], layers, buckets=[2, 8])
    assert {w.name for w in graph.weights} == {"first.weight", "first.bias", "last.weight", "last.bias"}
    for name in ("first", "middle", "last"):
        assert name in str(graph)
    np.testing.assert_allclose(graph(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    again = nc.OpGraph.from_layers(x[:1], model)
    assert {w.name for w in again.weights} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    np.testing.assert_allclose(again(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="above 0"):
        nc.OpGraph(model, x, buckets=[0])


def test_arguments_that_do_not_fit_are_named():
    graph = nc.OpGraph(lambda x: x + 1, nc.zeros(2, 3))
    with pytest.raises(nc.errors.ShapeError, match=r"input x is f32 \[2, 4\]"):
        graph(nc.zeros(2, 4))
    with pytest.raises(nc.errors.ShapeError, match="expected 1: x"):
        graph(nc.zeros(2, 3), nc.zeros(2, 3))
    with pytest.raises(ValueError, match="called with float"):
        graph(1.0)
    with pytest.raises(ValueError, match="examples none"):
        nc.OpGraph(lambda: 1)
    with pytest.raises(ValueError, match="examples int"):
        nc.OpGraph(lambda x, n: x * n, nc.ones(2), 3)
    with pytest.raises(ValueError, match="returns str"):
        nc.OpGraph(lambda x: "no", nc.ones(2))
    with pytest.raises(ValueError, match="2 names for 1"):
        nc.OpGraph(lambda x: x, nc.ones(2), names=["a", "b"])
    with pytest.raises(KeyError, match="own"):

        def fails(x):
            raise KeyError("own")

        nc.OpGraph(fails, nc.ones(2))


def test_what_a_graph_cannot_hold_is_refused_by_name():
    with pytest.raises(nc.errors.UnsupportedError):
        nc.OpGraph(lambda x: x * x.sum().item(), nc.ones(2))
    with pytest.raises(nc.errors.UnsupportedError, match="seed|random"):
        nc.OpGraph(nn.Dropout(0.5), nc.ones(2))
    with pytest.raises(nc.errors.UnsupportedError, match="overwritten|outside of an operation"):
        kept = nc.zeros(2)

        def counts(x):
            kept.copy_(kept + x)
            return kept * 2

        nc.OpGraph(counts, nc.ones(2))
    with pytest.raises(nc.errors.UnsupportedError, match="rows"):
        nc.OpGraph(lambda x: x - x.mean(0, keepdim=True), nc.ones(2, 3), any_rows=True)
    assert (nc.ones(2) + 1).tolist() == [2, 2]


def test_broken_and_newer_files_are_refused_by_name(tmp_path):
    graph = nc.OpGraph(lambda x, w=nc.ones(3): x * w, nc.zeros(2, 3))
    path = tmp_path / "graph.safetensors"
    graph.save(path)
    whole = path.read_bytes()
    with pytest.raises(nc.errors.IoError):
        nc.OpGraph.load(tmp_path / "none.safetensors")
    metadata(path, schema="99")
    with pytest.raises(nc.errors.FormatError, match="schema 99 is newer"):
        nc.OpGraph.load(path)
    path.write_bytes(whole)
    metadata(path, graph="{}")
    with pytest.raises(nc.errors.FormatError, match="not what was saved"):
        nc.OpGraph.load(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(nc.errors.FormatError, match="graph.safetensors.*not a whole safetensors file"):
        nc.OpGraph.load(path)
    nc.save({"a": nc.ones(2)}, str(path))
    with pytest.raises(nc.errors.FormatError, match="not a graph of operations"):
        nc.OpGraph.describe(path)
    # A weight's bytes are checked when they are read.
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    broken = nc.OpGraph.load(path)
    with pytest.raises(nc.errors.FormatError, match="constant.0"):
        broken(nc.ones(2, 3))


def test_a_fused_function_is_noted_by_its_operations():
    f = nc.fuse(lambda x: (x * 2 + 1).relu())
    graph = nc.OpGraph(f, nc.zeros(3))
    assert "relu" in graph.operations
    assert graph(nc.tensor([1.0, -2.0, 0.0])).tolist() == [3, 0, 1]


def test_operations_with_indices():
    table, x = nc.randn(5, 3), nc.randn(4, 6)
    graph = nc.OpGraph(lambda ids: nc.ops.embedding(table, ids), nc.tensor([1, 2]))
    assert graph.operations == ["embedding"] and graph(nc.tensor([4, 0])).tolist() == table[[4, 0]].tolist()
    graph = nc.OpGraph(lambda x: x.argmax(-1), x)
    assert graph.operations[-1] == "argmax" and graph(x).tolist() == x.argmax(-1).tolist()
    model = nn.GPT(vocab=11, length=8, layers=1, heads=2, width=16).eval()
    ids = nc.tensor([[1, 2, 10]])
    np.testing.assert_allclose(nc.OpGraph(model, ids)(ids).numpy(), model(ids).detach().numpy(), atol=1e-5)
