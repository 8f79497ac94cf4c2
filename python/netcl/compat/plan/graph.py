"""Graphs of operations that are built first and run later."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ... import ops as _ops
from ..._graph import compile as _compile
from ..._netcl import Tensor as _Tensor
from ...autograd import no_grad
from ...errors import FormatError, IoError
from .memory import BufferPool


@dataclass(frozen=True)
class TensorRef:
    """A future tensor: name, shape and dtype."""

    name: str
    shape: Optional[Tuple[int, ...]] = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Node:
    """An operation, or an input if it does not have a function."""

    ref: TensorRef
    function: Optional[Callable[..., _Tensor]] = None
    inputs: Tuple[str, ...] = ()
    op: Optional[str] = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Graph:
    """Operations by name. A function is a Python function, or the name of an operation of ``netcl.ops`` with its attributes. Graphs of named
    operations can be saved.
    """

    def __init__(self) -> None:
        self.nodes: Dict[str, Node] = {}

    def _add(self, node: Node) -> TensorRef:
        if node.ref.name in self.nodes:
            raise FormatError(f"Graph: a tensor {node.ref.name!r} already exists")
        self.nodes[node.ref.name] = node
        return node.ref

    def add_input(self, name: str, shape: Optional[Sequence[int]] = None, dtype: str = "float32") -> TensorRef:
        """Adds an input, which each run must provide."""
        return self._add(Node(TensorRef(name, None if shape is None else tuple(shape), dtype)))

    def add_op(
        self,
        name: str,
        fn: Union[str, Callable[..., _Tensor]],
        inputs: Sequence[TensorRef],
        shape: Optional[Sequence[int]] = None,
        dtype: str = "float32",
        **attributes: Any,
    ) -> TensorRef:
        """Adds a tensor that an operation computes from others. If a shape is given, it is checked in each run."""
        ref = TensorRef(name, None if shape is None else tuple(shape), dtype)
        if isinstance(fn, str):
            if fn not in _ops.__all__:
                raise FormatError(f"Graph: netcl.ops does not have an operation {fn!r}")
            return self._add(Node(ref, getattr(_ops, fn), tuple(i.name for i in inputs), fn, attributes))
        return self._add(Node(ref, fn, tuple(i.name for i in inputs), None, attributes))

    @classmethod
    def from_layers(cls, layers: Sequence[Callable[..., _Tensor]], input_tensors: Sequence[_Tensor]) -> "Graph":
        """Builds a chain of layers. The first layer receives all inputs."""
        graph = cls()
        refs = [graph.add_input(f"input{i}", t.shape, t.dtype.name) for i, t in enumerate(input_tensors)]
        for i, layer in enumerate(layers):
            refs = [graph.add_op(f"layer{i}", layer, refs)]
        return graph

    def order(self) -> List[Node]:
        """Returns the operations in an order in which each follows those that it needs."""
        done: Dict[str, bool] = {}
        out: List[Node] = []

        def visit(name: str, path: Tuple[str, ...]) -> None:
            if name in path:
                raise FormatError(f"Graph: the operations form a cycle: {' → '.join((*path, name))}")
            if done.get(name):
                return
            node = self.nodes.get(name)
            if node is None:
                raise FormatError(f"Graph: {path[-1]!r} needs {name!r}, which does not exist")
            for each in node.inputs:
                visit(each, (*path, name))
            done[name] = True
            out.append(node)

        for name in self.nodes:
            visit(name, ())
        return out

    def results(self) -> List[str]:
        """Returns the tensors that no operation uses."""
        needed = {name for node in self.nodes.values() for name in node.inputs}
        return [name for name, node in self.nodes.items() if name not in needed and node.function is not None]


class GraphExecutor:
    """Runs graphs. A tensor's memory returns to the pool after the last operation that uses it.

    With ``capture``, the commands of a graph are captured in its first run with tensors of these shapes, and replayed in later runs, which
    overwrite the earlier results. ``fusion_hook(nodes)`` may return another list of nodes to run.
    """

    def __init__(self, pool: Optional[BufferPool] = None, capture: bool = False, fusion_hook: Optional[Callable[[List[Node]], List[Node]]] = None) -> None:
        self.pool, self.capture, self.fusion_hook = pool, capture, fusion_hook
        self._captured: "Dict[int, Tuple[Graph, Callable[..., Any]]]" = {}

    def run(self, graph: Graph, inputs: Optional[Mapping[str, _Tensor]] = None, outputs: Optional[Sequence[str]] = None) -> Dict[str, _Tensor]:
        """Returns results by name: ``outputs``, or those that no operation uses."""
        given = dict(inputs or {})
        names = graph.results() if outputs is None else list(outputs)
        wanted = [name for name, node in graph.nodes.items() if node.function is None]
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        if missing or unknown:
            raise FormatError(f"GraphExecutor: missing inputs {missing}, unknown inputs {unknown}")
        if not self.capture:
            return self._eager(graph, given, names)
        if id(graph) not in self._captured:

            def step(chosen: Tuple[str, ...], *tensors: _Tensor) -> Tuple[_Tensor, ...]:
                return tuple(self._eager(graph, dict(zip(wanted, tensors)), list(chosen)).values())

            self._captured[id(graph)] = (graph, _compile(step))
        made = self._captured[id(graph)][1](tuple(names), *[given[name] for name in wanted])
        return dict(zip(names, made))

    def _eager(self, graph: Graph, tensors: Dict[str, _Tensor], names: List[str]) -> Dict[str, _Tensor]:
        nodes = graph.order()
        if self.fusion_hook is not None:
            nodes = self.fusion_hook(nodes)
        left: Dict[str, int] = {}
        for node in nodes:
            for name in node.inputs:
                left[name] = left.get(name, 0) + 1
        for node in nodes:
            if node.function is not None:
                with no_grad():
                    made = node.function(*[tensors[name] for name in node.inputs], **node.attributes)
                if node.ref.shape is not None and tuple(made.shape) != node.ref.shape:
                    raise FormatError(f"Graph: {node.ref.name!r} has shape {tuple(made.shape)}, expected {node.ref.shape}")
                tensors[node.ref.name] = made
            for name in node.inputs:
                left[name] -= 1
                if left[name] == 0 and name not in names:
                    del tensors[name]
        return {name: tensors[name] for name in names}


def save_graph(graph: Graph, path: str) -> None:
    """Writes a graph of operations from ``netcl.ops`` as JSON."""
    own = [name for name, node in graph.nodes.items() if node.function is not None and node.op is None]
    if own:
        raise FormatError(f"save_graph: cannot save the Python functions {', '.join(own)}; use operations by name")
    nodes = [
        {"name": n.ref.name, "shape": n.ref.shape, "dtype": n.ref.dtype, "op": n.op, "inputs": list(n.inputs), "attributes": dict(n.attributes)} for n in graph.nodes.values()
    ]
    try:
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"version": 1, "nodes": nodes}, f, indent=2)
    except OSError as e:
        raise IoError(f"cannot write {path}: {e}") from e


def load_graph(path: str) -> Graph:
    """Reads a graph that ``save_graph`` wrote."""
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
        graph = Graph()
        for n in found["nodes"]:
            refs = [TensorRef(name) for name in n["inputs"]]
            if n["op"] is None:
                graph.add_input(n["name"], n["shape"], n["dtype"])
            else:
                graph.add_op(n["name"], n["op"], refs, n["shape"], n["dtype"], **n["attributes"])
    except OSError as e:
        raise IoError(f"cannot read {path}: {e}") from e
    except (KeyError, TypeError, json.JSONDecodeError) as e:
        raise FormatError(f"{path} was not written by save_graph: {e}") from e
    graph.order()
    return graph


__all__ = ["Graph", "GraphExecutor", "Node", "TensorRef", "load_graph", "save_graph"]
