"""Graphs of operations: the computation of a function, as a value that can be displayed, saved and run on any device."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._netcl import Device, Operations, Tensor, plain_operations
from ._state import state
from .errors import FormatError, UnsupportedError
from .nn.module import Module
from .nn.parameter import Parameter

Path = Union[str, "os.PathLike[str]"]
Layers = Union[Module, Iterable[Tuple[str, Callable[[Tensor], Tensor]]]]


class Form(NamedTuple):
    """Description of a graph's input or result. A size is a number, or a word if it grows with the rows of the inputs: ``rows``, ``2·rows``."""

    name: str
    shape: Tuple[Union[int, str], ...]
    dtype: str


class Memory(NamedTuple):
    """Memory use of a graph in bytes. Its text form is a table with one line per buffer."""

    text: str
    planned: int
    """Memory allocated for intermediate results."""
    peak: int
    """Peak use of that memory."""
    unshared: int
    """Size of that memory if no two buffers shared memory."""
    weights: int
    inputs: int

    def __str__(self) -> str:
        return self.text


class _Recording:
    """Within the block, operations that would draw random numbers raise an error, because the numbers would be the same in every run."""

    allows_writes = False

    def __init__(self) -> None:
        self.optimizers: List[Any] = []
        self._before: List[bool] = []

    def __enter__(self) -> None:
        state.capturing.append(self)
        self._before.append(plain_operations(True))

    def __exit__(self, *_: Any) -> None:
        plain_operations(self._before.pop())
        state.capturing.pop()

    def take_draw(self, form: Any, draw: Any) -> Tensor:
        """Refuses random numbers."""
        raise UnsupportedError("OpGraph: random numbers would be the same in every run; draw them before, and pass them as an input")

    def note_module(self, module: Module) -> None:
        """Accepts any mode: a graph of operations is made once, in the mode that its module has then."""


@contextlib.contextmanager
def _named(module: Module, prefix: str = "") -> Iterator[None]:
    """Within the block, the module's tensors are named by their names in the module."""
    before: List[Tuple[Dict[str, Any], str, Tensor]] = []
    named: Dict[int, Tensor] = {}
    try:
        for path, part in module.named_modules(prefix=prefix):
            tables: Tuple[Dict[str, Any], ...] = part._tables()[:2]
            for table in tables:
                for name, tensor in list(table.items()):
                    if not isinstance(tensor, Tensor):
                        continue
                    if id(tensor) not in named:
                        twin = Parameter(tensor) if isinstance(tensor, Parameter) else Tensor(tensor.detach())
                        twin._parameter(f"{path}.{name}" if path else name)
                        named[id(tensor)] = twin
                    before.append((table, name, tensor))
                    table[name] = named[id(tensor)]
        yield
    finally:
        for table, name, tensor in before:
            table[name] = tensor


def _results(made: Any, what: str) -> List[Tensor]:
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    wrong = [type(y).__name__ for y in results if not isinstance(y, Tensor)]
    if wrong or not results:
        raise FormatError(f"OpGraph: {what} returns {', '.join(wrong) or 'nothing'}, expected a tensor or a tuple of tensors")
    return results


def _names(function: Callable[..., Any], count: int) -> List[str]:
    """Returns the names of the function's first ``count`` arguments."""
    names: List[str] = []
    try:
        signature = inspect.signature(function.forward if isinstance(function, Module) else function)
        for p in signature.parameters.values():
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
            elif p.kind == p.VAR_POSITIONAL:
                names += [f"{p.name}{i}" for i in range(count - len(names))]
    except (TypeError, ValueError):
        pass  # a function without a signature
    return (names + [f"x{i}" for i in range(len(names), count)])[:count]


class OpGraph:
    """Records the operations that a function or a module computes: ``graph = netcl.OpGraph(function, *examples)``. ``graph(*tensors)`` runs them, on
    this device or, from a file, on any device.

    The function takes tensors and returns a tensor or a tuple. It is called a few times, without gradients. Other tensors that it reads become the
    graph's weights with their current values; tensors of a module keep their names. Shapes are those of the examples. With ``any_rows``, the first
    axis of all inputs may have any common size, and no operation may mix rows. A run then computes the next larger size of ``buckets`` [default:
    powers of two] and cuts off the additional rows; for this, the function is called with 5 and 7 rows.

    ``Graph`` records the commands of one device and is meant for training steps. ``OpGraph`` records operations, which every device supports.

    Raises ``UnsupportedError``, with the name of the operation or kernel, if the function computes something that is not a named operation. Reads
    on the host, random numbers and overwritten memory are refused too (call a module's ``eval()`` first). Raises ``FormatError`` if a result is
    not a tensor.

    >>> import netcl as nc
    >>> w = nc.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> graph = nc.OpGraph(lambda x: (x @ w).relu(), nc.zeros(1, 2), any_rows=True)
    >>> graph(nc.tensor([[1.0, -2.0], [3.0, 4.0]])).tolist()
    [[1.0, 0.0], [3.0, 4.0]]
    >>> graph.operations
    ['matmul', 'relu']
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *examples: Tensor,
        any_rows: bool = False,
        buckets: Optional[Sequence[int]] = None,
        names: Optional[Sequence[str]] = None,
    ) -> None:
        wrong = [type(x).__name__ for x in examples if not isinstance(x, Tensor)]
        if wrong or not examples:
            raise FormatError(f"OpGraph: examples {', '.join(wrong) or 'none'}, expected tensors; bind other arguments with functools.partial")
        names = list(_names(function, len(examples)) if names is None else names)
        if len(names) != len(examples):
            raise FormatError(f"OpGraph: {len(names)} names for {len(examples)} examples")
        inputs = list(zip(names, examples))
        with _Recording(), _named(function) if isinstance(function, Module) else contextlib.nullcontext():
            self._graph = Operations.record(
                inputs,
                lambda xs: _results(function(*xs), "the function"),
                any_rows or buckets is not None,
                None if buckets is None else list(buckets),
            )

    @classmethod
    def _of(cls, graph: Operations) -> "OpGraph":
        made = cls.__new__(cls)
        made._graph = graph
        return made

    @classmethod
    def from_layers(cls, x: Tensor, layers: Layers, buckets: Optional[Sequence[int]] = None) -> "OpGraph":
        """Records layers in sequence for any number of rows of ``x``. ``layers`` is a list of pairs of name and function of one tensor, or a module
        whose children are the layers.
        """
        pairs = list(layers._tables()[2].items() if isinstance(layers, Module) else layers)

        def call(name: str, layer: Callable[[Tensor], Tensor]) -> Callable[[List[Tensor]], List[Tensor]]:
            return lambda xs: _results(layer(xs[0]), f"layer {name}")

        with _Recording(), contextlib.ExitStack() as stack:
            for name, layer in pairs:
                if isinstance(layer, Module):
                    stack.enter_context(_named(layer, name))
            calls = [(name, call(name, layer)) for name, layer in pairs]
            return cls._of(Operations.record_layers(x, calls, None if buckets is None else list(buckets)))

    @classmethod
    def load(cls, path: Path, device: Union[None, str, Device] = None, buckets: Optional[Sequence[int]] = None) -> "OpGraph":
        """Loads a graph from a file for a device. Kernels are chosen on that device. Weights are read at the first run.

        Raises ``IoError``, or ``FormatError`` with the cause and place: a newer schema, or a graph or weight that differs from what was saved.
        """
        return cls._of(Operations.load(os.fspath(path), device, None if buckets is None else list(buckets)))

    @staticmethod
    def describe(path: Path) -> str:
        """Describes the graph in a file as text, like ``str`` of a graph. Does not need a device and does not read weights."""
        return Operations.describe(os.fspath(path))

    def save(self, path: Path) -> None:
        """Writes the graph to one safetensors file: operations, shapes, attributes, and weights with a hash of each."""
        self._graph.save(os.fspath(path))

    def __call__(self, *inputs: Tensor) -> Any:
        """Computes the result for inputs in their order, off the tape; several results are a tuple. The first call for each number of rows chooses
        kernels and plans memory; later calls replay.

        Raises ``ShapeError`` or ``DeviceError`` that names the input that does not match.
        """
        wrong = [type(x).__name__ for x in inputs if not isinstance(x, Tensor)]
        if wrong:
            raise FormatError(f"OpGraph: called with {', '.join(wrong)}, expected tensors")
        results = self._graph.run(list(inputs))
        return results[0] if len(results) == 1 else tuple(results)

    def __str__(self) -> str:
        return self._graph.text()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{i.name} {list(i.shape)}" for i in self.inputs)
        return f"<OpGraph of {len(self.operations)} operations: {inputs}, on {self.device}>"

    def dot(self) -> str:
        """Formats the graph for Graphviz."""
        return self._graph.dot()

    def svg(self) -> str:
        """Draws the graph as an SVG document."""
        return self._graph.svg()

    def json(self) -> Dict[str, Any]:
        """Returns the description as it is stored in the file."""
        described: Dict[str, Any] = json.loads(self._graph.json())
        return described

    def memory(self, rows: int = 1) -> Memory:
        """Returns the memory use for ``rows`` rows on this device. Compiles kernels, but computes nothing."""
        text, numbers = self._graph.memory(rows)
        return Memory(text, *numbers)

    @property
    def device(self) -> Device:
        """Device of the graph."""
        return self._graph.device

    @property
    def any_rows(self) -> bool:
        """Whether the graph accepts any number of rows."""
        return self._graph.any_rows

    @property
    def inputs(self) -> List[Form]:
        """Descriptions of the inputs, in order."""
        return [Form(name, tuple(sizes), dtype) for name, sizes, dtype in self._graph.inputs]

    @property
    def outputs(self) -> List[Form]:
        """Descriptions of the results, in order. Names are those in the graph's text."""
        return [Form(name, tuple(sizes), dtype) for name, sizes, dtype in self._graph.outputs]

    @property
    def weights(self) -> List[Form]:
        """Descriptions of the weights."""
        return [Form(name, tuple(sizes), dtype) for name, sizes, dtype in self._graph.weights]

    @property
    def operations(self) -> List[str]:
        """Names of its operations, in order."""
        return self._graph.operations


__all__ = ["Form", "Memory", "OpGraph"]
