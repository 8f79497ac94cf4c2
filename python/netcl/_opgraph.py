"""Graphs of operations: what a function computes, as a value that is shown, saved and run on any device."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._netcl import Device, Operations, Tensor
from ._state import state
from .errors import FormatError
from .nn.module import Module, Parameter

Path = Union[str, "os.PathLike[str]"]
Layers = Union[Module, Iterable[Tuple[str, Callable[[Tensor], Tensor]]]]


class Form(NamedTuple):
    """An input or a result of a graph. A size is a number, or a word where it grows with the rows of the inputs: ``rows``, ``2·rows``."""

    name: str
    shape: Tuple[Union[int, str], ...]
    dtype: str


class Memory(NamedTuple):
    """How a graph uses memory, in bytes; as text it is a table with a line a buffer."""

    text: str
    planned: int
    """What is allocated for results in between."""
    peak: int
    """What is in use of it at the fullest moment."""
    unshared: int
    """What it would be if no two buffers shared memory."""
    weights: int
    inputs: int

    def __str__(self) -> str:
        return self.text


class _Recording:
    """Within the block nothing that would be the same in every run is drawn: what draws random numbers says so."""

    def __init__(self) -> None:
        self.optimizers: List[Any] = []

    def __enter__(self) -> None:
        state.capturing.append(self)

    def __exit__(self, *_: Any) -> None:
        state.capturing.pop()

    def note_module(self, module: Module) -> None:
        """A graph of operations is made once, in the mode that its module has then."""


@contextlib.contextmanager
def _named(module: Module, prefix: str = "") -> Iterator[None]:
    """Within the block tensors of the module are called by their names in it."""
    before: List[Tuple[Dict[str, Any], str, Tensor]] = []
    named: Dict[int, Tensor] = {}
    try:
        for path, part in module.named_modules(prefix):
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
    """Names of the first arguments, as the function has them."""
    names: List[str] = []
    try:
        signature = inspect.signature(function.forward if isinstance(function, Module) else function)
        for p in signature.parameters.values():
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
            elif p.kind == p.VAR_POSITIONAL:
                names += [f"{p.name}{i}" for i in range(count - len(names))]
    except (TypeError, ValueError):
        pass  # a function that does not say
    return (names + [f"x{i}" for i in range(len(names), count)])[:count]


class OpGraph:
    """``netcl.OpGraph(function, *examples)`` notes the operations that a function or a module computes of tensors like the examples; ``graph(*tensors)`` runs them, here or, from a file,
    on any device.

    The function takes tensors and returns one or a tuple. It is called a few times, without gradients; tensors that it reads besides are the graph's weights, as they are then, and those of
    a module keep their names. Shapes are those of the examples, or of any number of rows with ``any_rows``: the first axis of every input grows together, nothing mixes rows, and a run
    computes the next of ``buckets`` (powers of two where none are given), whose further rows are cut off; the function is then called with 5 and 7 rows.

    ``Graph`` has the commands of one device and is for steps of training; this has operations, which every device has.

    Raises ``UnsupportedError`` with the operation or kernel where the function does what no operation does that can be called by name, reads results on the host, draws random numbers or
    overwrites memory (call ``eval()`` of a module first); ``FormatError`` for results that are no tensors.

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
            raise FormatError(f"OpGraph: examples {', '.join(wrong) or 'none'}, expected tensors; functools.partial holds other arguments")
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
        """Layers one after the other for any number of rows of ``x``: pairs of a name and a function of one tensor, or a module whose children are the layers."""
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
        """The graph of a file, for a device; kernels are chosen there. Weights are read when it is first run.

        Raises ``IoError``; ``FormatError`` that says what is wrong with the file and where: a newer schema, a graph or a weight that is not what was saved.
        """
        return cls._of(Operations.load(os.fspath(path), device, None if buckets is None else list(buckets)))

    @staticmethod
    def describe(path: Path) -> str:
        """The graph of a file as text, as ``str`` of a graph. Needs no device and reads no weights."""
        return Operations.describe(os.fspath(path))

    def save(self, path: Path) -> None:
        """Writes it into one safetensors file: operations, shapes, attributes and weights with a hash of each."""
        self._graph.save(os.fspath(path))

    def __call__(self, *inputs: Tensor) -> Any:
        """The result for inputs in their order, off the tape; a tuple where there are several. The first call with a number of rows chooses kernels and plans memory, later ones replay.

        Raises ``ShapeError`` or ``DeviceError`` with the input that does not fit.
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
        """As a picture for Graphviz."""
        return self._graph.dot()

    def svg(self) -> str:
        """As a picture, an SVG document."""
        return self._graph.svg()

    def json(self) -> Dict[str, Any]:
        """The description, as its file has it."""
        described: Dict[str, Any] = json.loads(self._graph.json())
        return described

    def memory(self, rows: int = 1) -> Memory:
        """How memory is used for so many rows on this device. Kernels are compiled, nothing is computed."""
        text, numbers = self._graph.memory(rows)
        return Memory(text, *numbers)

    @property
    def device(self) -> Device:
        """The device it runs on."""
        return self._graph.device

    @property
    def any_rows(self) -> bool:
        """Whether it takes any number of rows."""
        return self._graph.any_rows

    @property
    def inputs(self) -> List[Form]:
        """What it is called with, in order."""
        return [Form(name, tuple(sizes), dtype) for name, sizes, dtype in self._graph.inputs]

    @property
    def outputs(self) -> List[Form]:
        """What it gives, in order; names are those of values in its text."""
        return [Form(name, tuple(sizes), dtype) for name, sizes, dtype in self._graph.outputs]

    @property
    def weights(self) -> List[Form]:
        """The tensors that it has."""
        return [Form(name, tuple(sizes), dtype) for name, sizes, dtype in self._graph.weights]

    @property
    def operations(self) -> List[str]:
        """Names of its operations, in order."""
        return self._graph.operations


__all__ = ["Form", "Memory", "OpGraph"]
