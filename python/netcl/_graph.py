"""Steps that are captured once and replayed, so that the host's work per operation is done only once."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ._draws import Draws
from ._guards import Guards
from ._netcl import Captured, Device, Tensor, uninitialised
from ._state import state
from .autograd import is_grad_enabled
from .errors import FormatError, UnsupportedError


MAX_GRAPHS_PER_FORM = 8
"""Graphs that differ only in values outside of the function. The oldest is dropped."""
logger = logging.getLogger("netcl.compile")


def _is_input(a: Any) -> bool:
    return isinstance(a, Tensor)


def _is_nested_input(a: Any) -> bool:
    # A tensor that needs a gradient may be a parameter, so the function must receive the original.
    return isinstance(a, Tensor) and not a.requires_grad


def _is_no_input(a: Any) -> bool:
    return False


def _is_rebuilt(a: Any) -> bool:
    """Whether the container can be rebuilt with other tensors. Classes derived from list and dict are excluded, because they may have more state."""
    return type(a) in (tuple, list, dict) or (isinstance(a, tuple) and hasattr(a, "_fields"))


def _mapped(args: Sequence[Any], change: Callable[[Tensor], Any]) -> Tuple[Any, ...]:
    """Applies ``change`` to each input tensor in the arguments, including those in tuples, lists and dicts."""

    def inner(a: Any) -> Any:
        if _is_nested_input(a):
            return change(a)
        if not _is_rebuilt(a):
            return a
        if isinstance(a, dict):
            return {key: inner(v) for key, v in a.items()}
        return type(a)(*map(inner, a)) if hasattr(a, "_fields") else type(a)(map(inner, a))

    return tuple(change(a) if _is_input(a) else inner(a) for a in args)


def _tensors(args: Sequence[Any]) -> List[Tensor]:
    found: List[Tensor] = []
    _mapped(args, found.append)
    return found


class Graph:
    """A captured function of tensors: ``graph = netcl.Graph(function, *examples)`` captures it, and ``graph(*tensors)`` copies the tensors to the
    captured inputs and replays it.

    Each replay overwrites the results of the previous one; copy a result that must survive the next call. The function runs once before the
    capture, which compiles its kernels; ``first`` is the result of that run. The function must not read results on the host. If it computes
    gradients, it must start without gradients. Random numbers and dropout are drawn anew for each replay; the function must draw the same numbers
    of them in every run. An optimizer step in the function uses the learning rate and step number of each replay.
    """

    def __init__(self, function: Callable[..., Any], *examples: Any) -> None:
        given = _tensors(examples)
        if state.scopes:
            raise FormatError("Graph: cannot capture a step within `with netcl.scope()`, which would free its memory; capture it before the scope")
        if not given:
            raise FormatError("Graph: no tensor among the examples; give at least one, which determines the device")
        self.device: Device = given[0].device
        self.inputs = [uninitialised(t.shape, t.dtype, self.device) for t in given]
        self._copy(given)
        places = iter(self.inputs)
        arguments = _mapped(examples, lambda _: next(places))
        self.optimizers: List[Any] = []
        self.guards, self.draws = Guards(function), Draws()
        self.arguments: Tuple[Any, ...] = ()
        state.preparing.append(self)
        try:
            self.first = function(*arguments)
        finally:
            state.preparing.pop()
        state.capturing.append(self)
        try:
            self._captured, self.results = Captured.capture(self.device, lambda: function(*arguments))
        finally:
            state.capturing.pop()
        self.guards.settle()

    def note_module(self, module: Any) -> None:
        """Records a module that is called during the capture."""
        self.guards.note_module(module)

    def refuse_read(self, x: Tensor) -> None:
        """Raises an error if ``x`` is an input or has random numbers: the value that the host reads during the capture would stay in all replays."""
        if x._buffer()[0] in {place._buffer()[0] for place in (*self.inputs, *self.draws.memories())}:
            raise UnsupportedError("capture: the step reads an input or a random number on the host, which would stay the same in every replay; use tensor operations or an argument")

    def take_draw(self, form: Any, draw: Callable[[], Tensor]) -> Tensor:
        """Returns the memory of random numbers, during the capture."""
        return self.draws.take(form, draw)

    def _copy(self, tensors: Sequence[Tensor]) -> None:
        for place, t in zip(self.inputs, tensors):
            place.copy_(t.detach())

    def replay(self) -> Any:
        """Enqueues the commands with the current inputs and new random numbers."""
        self.draws.refill()
        for optimizer in self.optimizers:
            optimizer._set_rate()
        self._captured.replay()
        for optimizer in self.optimizers:
            optimizer._count()
        return self.results

    def __call__(self, *args: Any) -> Any:
        given = _tensors(args)
        forms = [(tuple(t.shape), t.dtype) for t in given]
        expected = [(tuple(t.shape), t.dtype) for t in self.inputs]
        if forms != expected:
            raise FormatError(f"Graph: got tensors {forms}, expected {expected}, those that it was captured with")
        self._copy(given)
        return self.replay()

    @property
    def commands(self) -> Tuple[int, int]:
        """Number of commands of a replay: kernels, and all commands."""
        return self._captured.commands


def _form(a: Any, is_input: Callable[[Any], bool] = _is_input) -> Any:
    if isinstance(a, Tensor):
        # A tensor that is not copied at each call is identified by its id.
        return (tuple(a.shape), a.dtype.name, a.device.name) if is_input(a) else id(a)
    if isinstance(a, (tuple, list, dict)):
        within = _is_nested_input if _is_rebuilt(a) and is_input is not _is_no_input else _is_no_input
        items = a.items() if isinstance(a, dict) else enumerate(a)
        return (type(a), tuple((key, _form(v, within)) for key, v in items))
    # 0.0 and -0.0 are equal, and a NaN is not equal to itself.
    return (type(a), repr(a) if isinstance(a, (float, complex)) else a)


def _reason(key: Tuple[Any, ...], earlier: Optional[Tuple[Any, ...]]) -> str:
    """Returns why a call needs another graph."""
    if earlier is None:
        return "first call"
    if key[0] != earlier[0]:
        return "gradients are on" if key[0] else "gradients are off"
    if len(key[2]) != len(earlier[2]) or key[1] != earlier[1]:
        return f"{len(key[2])} arguments, before {len(earlier[2])}" + (f", with the keywords {', '.join(key[1])}" if key[1] else "")
    place = next(i for i, (a, b) in enumerate(zip(key[2], earlier[2])) if a != b)
    first = place - (len(key[2]) - len(key[1]))
    return f"argument {key[1][first] if first >= 0 else place} is {key[2][place]}, before {earlier[2][place]}"


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles the function to graphs, one for each combination of shapes, dtypes and other arguments. The first call runs and captures the function,
    later calls replay it. ``Graph`` lists the requirements for the function.

    A model's parameters may be overwritten between calls, but not replaced by other tensors. A new graph is captured if a module has switched
    between ``train()`` and ``eval()``, if one of its numbers or a variable outside of the function has changed, and under ``no_grad``. An argument
    of another type needs a new graph too: ``2``, ``2.0`` and ``True`` differ. Tensors in tuples, lists and dicts are inputs as
    well, except tensors that need gradients; for those, each tensor is a different argument. Inputs are copied, so writing to an input does not
    change the caller's tensor.

    The logger ``netcl.compile`` reports at level INFO why a graph is captured; ``compiled.reasons`` lists the reasons. At most
    ``MAX_GRAPHS_PER_FORM`` graphs of one form of arguments are kept.
    """
    graphs: Dict[Any, List[Graph]] = {}
    reasons: List[str] = []

    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        names = tuple(sorted(kwargs))
        given = (*args, *(kwargs[name] for name in names))
        key = (is_grad_enabled(), names, tuple(map(_form, given)))
        changes: List[str] = []
        for graph in graphs.get(key, ()):
            change = graph.guards.change()
            if change is None:
                return graph(*given)
            changes.append(change)
        reasons.append(changes[-1] if changes else _reason(key, next(reversed(graphs), None)))
        logger.info("%s: captures a graph: %s", getattr(function, "__qualname__", function), reasons[-1])
        graph = Graph(_positional(function, len(args), names), *given)
        # Keeping the tensors alive keeps the ids in the key valid.
        graph.arguments = given
        graphs[key] = [*graphs.get(key, ()), graph][-MAX_GRAPHS_PER_FORM:]
        return graph.first

    compiled.graphs, compiled.reasons = graphs, reasons  # type: ignore[attr-defined]
    return compiled


def _positional(function: Callable[..., Any], count: int, names: Tuple[str, ...]) -> Callable[..., Any]:
    """Returns the function with its keyword arguments after the others."""
    return functools.partial(_called, function, count, names) if names else function


def _called(function: Callable[..., Any], count: int, names: Tuple[str, ...], *given: Any) -> Any:
    return function(*given[:count], **dict(zip(names, given[count:])))


def _read(name: str) -> Any:
    plain = getattr(Tensor, name)

    @functools.wraps(plain)
    def method(self: Tensor) -> Any:
        if state.capturing and isinstance(state.capturing[-1], Graph):
            state.capturing[-1].refuse_read(self)
        return plain(self)

    return method


def attach() -> None:
    """Makes reads of tensors on the host follow captured steps."""
    for name in ("item", "_bytes"):
        setattr(Tensor, name, _read(name))


__all__ = ["Graph", "attach", "compile"]
