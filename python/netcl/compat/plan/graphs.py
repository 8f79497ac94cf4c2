"""Graphs of operations that are built first and run later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, Union

from ... import nn
from ... import ops as _ops
from ..._graph import compile as _compile
from ..._netcl import Op, Tensor
from ...autograd import no_grad
from ...errors import FormatError
from .files import Path, described, read_json, read_weights, rebuilt, write_json, write_weights
from .memory import BufferPool


@dataclass(frozen=True)
class TensorRef:
    """A future tensor: name, shape and dtype."""

    name: str
    shape: Optional[Tuple[int, ...]] = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Node:
    """An operation, or an input if it does not have a function. A constant is an input with a value."""

    ref: TensorRef
    function: Optional[Callable[..., Any]] = None
    inputs: Tuple[Optional[str], ...] = ()
    op: Optional[str] = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    value: Optional[Tensor] = None
    """Value of an input that a run does not provide."""
    results: Tuple[Tuple[str, int], ...] = ()
    """Names of an operation's results, with their places, if it has several."""


def _called(op: str) -> Callable[..., Any]:
    """Returns the operation as a function of all its tensors by position."""
    function, lists = getattr(_ops, op), [i for i, (_, arity) in enumerate(Op(op).inputs) if arity == "list"]
    if not lists:
        return function  # type: ignore[no-any-return]
    return lambda *tensors, **attributes: function(*tensors[: lists[0]], list(tensors[lists[0] :]), **attributes)


class Graph:
    """Operations by name. A function is a layer, a Python function, or the name of an operation of ``netcl.ops`` with its attributes. Graphs of layers
    and named operations can be saved. ``with graph():`` builds a graph from the operations of a block.
    """

    def __init__(self) -> None:
        self.nodes: Dict[str, Node] = {}
        self.outputs: List[str] = []
        """Names of the results [default: the tensors that no operation uses]."""

    def _add(self, node: Node) -> TensorRef:
        for name in [name for name, _ in node.results] or [node.ref.name]:
            if name in self.nodes:
                raise FormatError(f"Graph: a tensor {name!r} already exists")
            self.nodes[name] = node
        return node.ref

    def add_input(self, name: str, shape: Optional[Sequence[int]] = None, dtype: str = "float32", value: Optional[Tensor] = None) -> TensorRef:
        """Adds an input, which each run must provide unless it has a default ``value``."""
        return self._add(Node(TensorRef(name, None if shape is None else tuple(shape), dtype), value=value))

    def add_op(
        self,
        name: str,
        fn: Union[str, Callable[..., Tensor]],
        inputs: Sequence[TensorRef],
        shape: Optional[Sequence[int]] = None,
        dtype: str = "float32",
        **attributes: Any,
    ) -> TensorRef:
        """Adds a tensor that an operation computes from others. If a shape is given, it is checked in each run."""
        ref = TensorRef(name, None if shape is None else tuple(shape), dtype)
        if isinstance(fn, str):
            return self._add_named(ref, fn, tuple(i.name for i in inputs), attributes)
        return self._add(Node(ref, fn, tuple(i.name for i in inputs), None, attributes))

    def _add_named(
        self, ref: TensorRef, op: str, inputs: Tuple[Optional[str], ...], attributes: Mapping[str, Any], results: Tuple[Tuple[str, int], ...] = ()
    ) -> TensorRef:
        if op not in _ops.__all__:
            raise FormatError(f"Graph: netcl.ops does not have an operation {op!r}")
        return self._add(Node(ref, _called(op), inputs, op, attributes, results=results))

    @classmethod
    def from_layers(cls, layers: Iterable[Callable[..., Tensor]], input_tensors: Union[Tensor, Sequence[Tensor]]) -> "Graph":
        """Builds a chain of layers. The first layer receives all inputs."""
        graph = cls()
        given = [input_tensors] if isinstance(input_tensors, Tensor) else list(input_tensors)
        refs = [graph.add_input(f"input{i}", t.shape, t.dtype.name) for i, t in enumerate(given)]
        for i, layer in enumerate(layers):
            refs = [graph.add_op(f"layer{i}", layer, refs)]
        return graph

    def order(self) -> List[Node]:
        """Returns the operations in an order in which each follows those that it needs."""
        done: Dict[int, Node] = {}

        def visit(name: str, path: Tuple[str, ...]) -> None:
            if name in path:
                raise FormatError(f"Graph: the operations form a cycle: {' → '.join((*path, name))}")
            node = self.nodes.get(name)
            if node is None:
                raise FormatError(f"Graph: {path[-1]!r} needs {name!r}, which does not exist")
            if id(node) in done:
                return
            for each in node.inputs:
                if each is not None:
                    visit(each, (*path, name))
            done[id(node)] = node

        for name in self.nodes:
            visit(name, ())
        return list(done.values())

    def inputs(self) -> List[str]:
        """Returns the names of the inputs."""
        return [name for name, node in self.nodes.items() if node.function is None]

    def results(self) -> List[str]:
        """Returns ``outputs``, or the tensors that no operation uses."""
        needed = {name for node in self.nodes.values() for name in node.inputs}
        return self.outputs or [name for name, node in self.nodes.items() if name not in needed and node.function is not None]


class Results(Dict[str, Tensor]):
    """The results of a run by name."""

    def to_host(self) -> Any:
        """Returns the only result as a NumPy array."""
        if len(self) != 1:
            raise FormatError(f"a graph with the results {', '.join(self)}: call to_host() of one of them")
        return next(iter(self.values())).to_host()


Inputs = Union[None, Tensor, Sequence[Tensor], Mapping[str, Tensor]]


class GraphExecutor:
    """Runs graphs. A tensor's memory returns to the pool after the last operation that uses it.

    With ``capture``, the commands of a graph are captured in its first run with tensors of these shapes, and replayed in later runs, which
    overwrite the earlier results. ``fusion_hook(nodes)`` may return another list of nodes to run.
    """

    def __init__(self, pool: Optional[BufferPool] = None, capture: bool = False, fusion_hook: Optional[Callable[[List[Node]], List[Node]]] = None) -> None:
        self.pool, self.capture, self.fusion_hook = pool, capture, fusion_hook
        self._captured: "Dict[int, Tuple[Graph, Callable[..., Any]]]" = {}

    def run(self, graph: Any, inputs: Inputs = None, outputs: Optional[Sequence[str]] = None) -> Results:
        """Returns results by name: ``outputs``, or those of the graph. ``inputs`` are tensors by name, or in the order of ``graph.inputs()``.

        ``graph`` is a ``Graph``, or the function ``graph`` itself, which stands for the last graph of this thread.
        """
        graph = getattr(graph, "last", graph)
        wanted = graph.inputs()
        given = self._named(graph, inputs)
        names = graph.results() if outputs is None else list(outputs)
        defaults = {name: node.value for name, node in graph.nodes.items() if node.function is None and node.value is not None}
        missing = [name for name in wanted if name not in given and name not in defaults]
        unknown = [name for name in given if name not in wanted]
        if missing or unknown:
            raise FormatError(f"GraphExecutor: missing inputs {missing}, unknown inputs {unknown}")
        given = {**defaults, **given}
        if not self.capture:
            return Results(self._eager(graph, given, names))
        if id(graph) not in self._captured:

            def step(chosen: Tuple[str, ...], *tensors: Tensor) -> Tuple[Tensor, ...]:
                return tuple(self._eager(graph, dict(zip(wanted, tensors)), list(chosen)).values())

            self._captured[id(graph)] = (graph, _compile(step))
        made = self._captured[id(graph)][1](tuple(names), *[given[name] for name in wanted])
        return Results(zip(names, made))

    @staticmethod
    def _named(graph: Graph, inputs: Inputs) -> Dict[str, Tensor]:
        if inputs is None:
            return {}
        if isinstance(inputs, Mapping):
            return {getattr(name, "name", name): tensor for name, tensor in inputs.items()}
        free = [name for name in graph.inputs() if not isinstance(graph.nodes[name].value, nn.Parameter)]
        tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        if len(tensors) > len(free):
            raise FormatError(f"GraphExecutor: {len(tensors)} inputs, but the graph has {len(free)}: {', '.join(free)}")
        return dict(zip(free, tensors))

    def _eager(self, graph: Graph, tensors: Dict[str, Tensor], names: List[str]) -> Dict[str, Tensor]:
        nodes = graph.order()
        if self.fusion_hook is not None:
            nodes = self.fusion_hook(nodes)
        left: Dict[Optional[str], int] = {}
        for node in nodes:
            for name in node.inputs:
                left[name] = left.get(name, 0) + 1
        for node in nodes:
            if node.function is not None:
                with no_grad():
                    made = node.function(*[None if name is None else tensors[name] for name in node.inputs], **node.attributes)
                if node.results:
                    tensors.update((name, made[i] if isinstance(made, tuple) else made) for name, i in node.results)
                else:
                    if node.ref.shape is not None and tuple(made.shape) != node.ref.shape:
                        raise FormatError(f"Graph: {node.ref.name!r} has shape {tuple(made.shape)}, expected {node.ref.shape}")
                    tensors[node.ref.name] = made
            for name in node.inputs:
                left[name] -= 1
                if left[name] == 0 and name is not None and name not in names:
                    del tensors[name]
        unknown = [name for name in names if name not in tensors]
        if unknown:
            raise FormatError(f"GraphExecutor: the graph does not have a tensor {unknown[0]!r}")
        return {name: tensors[name] for name in names}


def _stored(name: str, node: Node, weights: Dict[str, Tensor]) -> Dict[str, Any]:
    """Returns the description of a node, and adds its weights."""
    words: Dict[str, Any] = {"name": node.ref.name, "shape": node.ref.shape, "dtype": node.ref.dtype, "op": node.op}
    words.update(inputs=list(node.inputs), attributes=dict(node.attributes))
    if node.results:
        words["results"] = [list(pair) for pair in node.results]
    if isinstance(node.function, nn.Module):
        words.update(layer=described(node.function), training=node.function.training)
        weights.update((f"{name}/{key}", tensor) for key, tensor in node.function.state_dict().items())
    elif node.function is not None and node.op is None:
        raise FormatError(f"save_graph: cannot save the Python function of {name}; use layers and operations by name")
    if node.value is not None:
        words["value"] = "parameter" if isinstance(node.value, nn.Parameter) else "default"
        weights[name] = node.value
    return words


def save_graph(graph: Any, path: Path) -> None:
    """Writes a graph of layers and operations of ``netcl.ops`` as JSON, and its weights next to it as ``.npz``, with a hash of each."""
    given: Graph = getattr(graph, "last", graph)
    weights: Dict[str, Tensor] = {}
    nodes = [_stored(node.ref.name, node, weights) for node in given.order()]
    write_json(path, {"version": 2, "nodes": nodes, "outputs": given.outputs, **write_weights(path, weights)})


def load_graph(path: Path, device: Any = None, layers: Iterable[Type[nn.Module]] = ()) -> Graph:
    """Reads a graph that ``save_graph`` wrote. ``layers`` has the classes of layers that are not netcl's."""
    found = read_json(path, "save_graph")
    graph = Graph()
    try:
        weights = read_weights(path, found, device)
        for n in found["nodes"]:
            ref = TensorRef(n["name"], None if n["shape"] is None else tuple(n["shape"]), n["dtype"])
            results = tuple((name, i) for name, i in n.get("results", ()))
            if "layer" in n:
                layer = rebuilt(n["layer"], layers)
                layer = layer if device is None else layer.to(device=device)
                start = f"{ref.name}/"
                layer.load_state_dict({name[len(start) :]: tensor for name, tensor in weights.items() if name.startswith(start)})
                graph._add(Node(ref, layer.train(n["training"]), tuple(n["inputs"]), None, n["attributes"]))
            elif n["op"] is not None:
                graph._add_named(ref, n["op"], tuple(n["inputs"]), n["attributes"], results)
            else:
                value = weights.get(ref.name)
                graph._add(Node(ref, value=nn.Parameter(value, False) if value is not None and n["value"] == "parameter" else value))
    except (KeyError, TypeError, ValueError) as e:
        if isinstance(e, FormatError):
            raise
        raise FormatError(f"{path} was not written by save_graph: {e}") from e
    graph.outputs = list(found.get("outputs", ()))
    graph.order()
    return graph


__all__ = ["Graph", "GraphExecutor", "Node", "Results", "TensorRef", "load_graph", "save_graph"]
