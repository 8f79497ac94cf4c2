"""Graphs from blocks: ``with graph(): y = model(x)`` builds a static graph of the operations that the block calls."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from ... import nn
from ..._netcl import Tensor, start_observing, stop_observing
from ..._state import state
from ...errors import FormatError, UnsupportedError
from .graphs import Graph, GraphExecutor, TensorRef


class _Last(threading.local):
    graph: Optional[Graph] = None


_last = _Last()


class _Block:
    """A block that builds a graph: its operations run as usual, and the graph can run them again with other inputs."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.optimizers: List[Any] = []
        self._modules: List[nn.Module] = []

    def take_draw(self, form: Any, draw: Callable[[], Tensor]) -> Tensor:
        """Draws random numbers, which are constants of the graph. Dropout is refused, because its mask would be the same in every run."""
        if form[0] == "dropout":
            raise UnsupportedError("graph: a seed of dropout would be the same in every run; call the model in evaluation")
        return draw()

    def note_module(self, module: nn.Module) -> None:
        """Notes a module that is called within the block. Its tensors are weights of the graph."""
        self._modules.append(module)

    def __enter__(self) -> Graph:
        start_observing()
        state.capturing.append(self)
        return self.graph

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        state.capturing.pop()
        if error is not None:
            stop_observing([], True)
            return
        caller = sys._getframe(1)
        names: Dict[str, Tensor] = {name: x for name, x in caller.f_locals.items() if isinstance(x, Tensor)}
        weights = self._weights()
        observed = stop_observing([*weights.values(), *names.values()])
        assert observed is not None
        ops, values, found = observed
        if self.optimizers:
            raise FormatError("graph: an optimizer step cannot be part of the graph; use netcl.Graph to capture a training step")
        labels: Dict[int, Tuple[str, Tensor]] = {}
        for name, x, value in zip([*weights, *names], [*weights.values(), *names.values()], found):
            if value is not None:
                labels.setdefault(value, (name, x))
        self._build(ops, values, labels)
        _last.graph = self.graph

    def _weights(self) -> Dict[str, Tensor]:
        """Returns the tensors of the called modules by name. An outer module names the tensors of its parts."""
        seen: Dict[int, bool] = {}
        out: Dict[str, Tensor] = {}
        for module in self._modules:
            for name, x in [*module.named_parameters(), *module.named_buffers()]:
                if id(x) not in seen:
                    seen[id(x)] = True
                    out[name if name not in out else f"{name}.{len(out)}"] = x
        return out

    def _build(self, ops: List[Any], values: List[Tuple[Tensor, bool]], labels: Dict[int, Tuple[str, Tensor]]) -> None:
        graph, refs = self.graph, {}  # type: Graph, Dict[int, str]

        def unused(name: str) -> str:
            return name if name not in graph.nodes else f"{name}_{len(graph.nodes)}"

        for i, (x, before) in enumerate(values):
            if before:
                name, tensor = labels.get(i, (f"input{i}", x))
                refs[i] = unused(name)
                is_weight = isinstance(tensor, nn.Parameter) or any(tensor is b for m in self._modules for b in m._tables()[1].values())
                kept = tensor if isinstance(tensor, nn.Parameter) or not is_weight else nn.Parameter(tensor, False)
                graph.add_input(refs[i], x.shape, x.dtype.name, kept)
        for number, (op, inputs, attributes, results) in enumerate(ops):
            for value, _ in results:
                refs[value] = unused(labels[value][0] if value in labels else f"{op}{number}" if len(results) == 1 else f"{op}{number}_{value}")
            given = tuple(None if i is None else refs[i] for i in inputs)
            first = values[results[0][0]][0]
            ref = TensorRef(refs[results[0][0]], tuple(first.shape), first.dtype.name)
            many = tuple((refs[value], place) for value, place in results)
            graph._add_named(ref, op, given, attributes, many if len(many) > 1 or many[0][1] else ())
        made = {value for _, _, _, results in ops for value, _ in results}
        used = {i for _, inputs, _, _ in ops for i in inputs}
        ends = [i for i in made if i in labels and i not in used] or [i for i in made if i not in used]
        # A named result that other operations use is also a result of the block.
        graph.outputs = [refs[i] for i in sorted({*ends, *(i for i in made if i in labels)})]


class _Function:
    """``with graph(): y = model(x)`` builds a graph. Its inputs and results have the names of the variables; ``with graph() as g:`` gives the graph."""

    def __call__(self) -> _Block:
        return _Block()

    @property
    def last(self) -> Graph:
        """The graph of this thread's last block."""
        if _last.graph is None:
            raise FormatError("graph: this thread has not built a graph; call `with graph(): y = model(x)` first")
        return _last.graph


graph = _Function()
executor = GraphExecutor()

__all__ = ["executor", "graph"]
