"""Steps that are captured once and replayed: what the host does for each operation is then done once."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ._netcl import Captured, Device, Tensor, uninitialised
from ._state import state
from .autograd import is_grad_enabled
from .errors import FormatError


def _is_input(a: Any) -> bool:
    return isinstance(a, Tensor)


def _is_nested_input(a: Any) -> bool:
    # One within a list that needs a gradient may be a parameter, which the function must see itself.
    return isinstance(a, Tensor) and not a.requires_grad


def _is_no_input(a: Any) -> bool:
    return False


def _is_rebuilt(a: Any) -> bool:
    """Whether a copy of the container can be made with other tensors in it: not of classes derived from list and dict, which may do more."""
    return type(a) in (tuple, list, dict) or (isinstance(a, tuple) and hasattr(a, "_fields"))


def _mapped(args: Sequence[Any], change: Callable[[Tensor], Any]) -> Tuple[Any, ...]:
    """The arguments with ``change`` of each input tensor in its place, also within tuples, lists and dicts."""

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
    """``graph = netcl.Graph(function, *examples)`` captures a function of tensors; ``graph(*tensors)`` copies them to where the examples' copies are and replays.

    Results are where they were before: copy one that is to outlast the next call. The function runs once before it is captured, which compiles its kernels; ``first`` is
    what it gave. It reads nothing on the host, begins without gradients where it makes some, and draws no random numbers, which would be the same in every replay. An
    optimizer's step within it goes on with the learning rate and the step number of each replay.
    """

    def __init__(self, function: Callable[..., Any], *examples: Any) -> None:
        given = _tensors(examples)
        if state.scopes:
            raise FormatError("Graph: a step is captured within `with netcl.scope()`, which would free its memory; capture it before")
        if not given:
            raise FormatError("Graph: no tensor among the examples, which would say the device; give one")
        self.device: Device = given[0].device
        self.inputs = [uninitialised(t.shape, t.dtype, self.device) for t in given]
        self._copy(given)
        places = iter(self.inputs)
        arguments = _mapped(examples, lambda _: next(places))
        self.optimizers: List[Any] = []
        # Modules that the function calls, those within them, and whether each was training.
        self.modules: Dict[int, Tuple[Any, bool]] = {}
        self.arguments: Tuple[Any, ...] = ()
        self.first = function(*arguments)
        state.capturing.append(self)
        try:
            self._captured, self.results = Captured.capture(self.device, lambda: function(*arguments))
        finally:
            state.capturing.pop()
        # The mode of a module that the function itself changes is the function's.
        self.modules = {key: (module, mode) for key, (module, mode) in self.modules.items() if module.training == mode}

    def note_module(self, module: Any) -> None:
        """Remembers the mode of a module that is called during the capture."""
        if id(module) not in self.modules:
            self.modules.update((id(m), (m, m.training)) for m in module.modules())

    def modes_are_current(self) -> bool:
        """Whether the modules that the function called are training, or not, as they were when it was captured."""
        return all(module.training == training for module, training in self.modules.values())

    def _copy(self, tensors: Sequence[Tensor]) -> None:
        for place, t in zip(self.inputs, tensors):
            place.copy_(t)

    def replay(self) -> Any:
        """Enqueues the commands with the inputs that there are."""
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
            raise FormatError(f"Graph: tensors {forms}, expected {expected}, those that it was captured with")
        self._copy(given)
        return self.replay()

    @property
    def commands(self) -> Tuple[int, int]:
        """Commands that a replay enqueues: kernels, and everything."""
        return self._captured.commands


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as graphs: one for each combination of shapes, dtypes and other arguments. ``Graph`` says what that asks of it; the first call runs it
    and captures it, later ones replay. Parameters of a model may be overwritten in between, but not exchanged for others. Another graph is made where a module that
    the function calls has changed between ``train()`` and ``eval()``, under ``no_grad``, and for an argument of another type: ``2``, ``2.0`` and ``True`` differ.
    Tensors within tuples, lists and dicts are inputs as well, except for those that need gradients: another one is another argument. Inputs are copied:
    what the function writes to an input is not in the caller's tensor.
    """
    graphs: Dict[Any, List[Graph]] = {}

    def form(a: Any, is_input: Callable[[Any], bool] = _is_input) -> Any:
        if isinstance(a, Tensor):
            # A tensor that is not copied at each call counts by its identity.
            return (tuple(a.shape), a.dtype.name, a.device.name) if is_input(a) else id(a)
        if isinstance(a, (tuple, list, dict)):
            within = _is_nested_input if _is_rebuilt(a) and is_input is not _is_no_input else _is_no_input
            items = a.items() if isinstance(a, dict) else enumerate(a)
            return (type(a), tuple((key, form(v, within)) for key, v in items))
        # 0.0 and -0.0 are equal, and a NaN is not equal to itself.
        return (type(a), repr(a) if isinstance(a, (float, complex)) else a)

    @functools.wraps(function)
    def compiled(*args: Any) -> Any:
        alike = graphs.setdefault((is_grad_enabled(), tuple(map(form, args))), [])
        for graph in alike:
            if graph.modes_are_current():
                return graph(*args)
        graph = Graph(function, *args)
        # The ids in the key are those of these tensors as long as they live.
        graph.arguments = args
        alike.append(graph)
        return graph.first

    compiled.graphs = graphs  # type: ignore[attr-defined]
    return compiled


__all__ = ["Graph", "compile"]
