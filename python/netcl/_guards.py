"""Values that a captured step took from its surroundings. A step is captured anew if one of them has changed."""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ._netcl import Tensor

MAX_ELEMENTS = 64
"""Largest container whose elements are compared."""
SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def _is_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (Tensor, ModuleType, FunctionType, MethodType, type)) and not hasattr(value, "param_groups") and not hasattr(value, "_tables")


def state_of(value: Any, depth: int = 3) -> Any:
    """Returns what is compared of a value: numbers and text, elements of small containers, numbers of plain objects, and otherwise which object it is."""
    if isinstance(value, SIMPLE):
        return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
    if depth and isinstance(value, (list, tuple, set, frozenset)) and len(value) <= MAX_ELEMENTS:
        return (type(value), *(state_of(v, depth - 1) for v in value))
    if depth and isinstance(value, dict) and len(value) <= MAX_ELEMENTS:
        return (type(value), *((key, state_of(v, depth - 1)) for key, v in value.items()))
    if depth and _is_object(value):
        return (id(value), *((key, state_of(v, 0)) for key, v in vars(value).items() if isinstance(v, SIMPLE)))
    return id(value)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions(value: Any) -> List[FunctionType]:
    if isinstance(value, functools.partial):
        return [f for part in (value.func, *value.args) for f in _functions(part)]
    found = [value.__func__] if isinstance(value, MethodType) else [value]
    return [f for f in found if isinstance(f, FunctionType) and not f.__module__.startswith("netcl.")]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return None


def outside(function: Callable[..., Any]) -> Dict[str, Any]:
    """Returns the global and closure variables, and the defaults, that a function and the functions among them use, by name."""
    found: Dict[str, Any] = {}
    waiting, seen = _functions(function), set()
    while waiting:
        f = waiting.pop()
        if id(f) in seen:
            continue
        seen.add(id(f))
        values = {name: _cell(cell) for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ())}
        values.update({name: f.__globals__[name] for name in _names(f.__code__) if name in f.__globals__})
        values.update({f"default {i}": v for i, v in enumerate(f.__defaults__ or ())})
        for name, value in values.items():
            found[f"{f.__qualname__}: {name}"] = value
            waiting += _functions(value)
    return found


class Guards:
    """The values outside of a function, and the modes and numbers of the modules that it calls, when it was captured."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._kept = outside(function)  # keeps the objects alive, so that their identities stay unique
        self._values = {name: state_of(v) for name, v in self._kept.items()}
        self._modules: Dict[int, Tuple[Any, Any]] = {}

    @staticmethod
    def _numbers(module: Any) -> Any:
        return tuple((key, state_of(v, 1)) for key, v in vars(module).items() if key == "training" or (key[0] != "_" and isinstance(v, (*SIMPLE, tuple))))

    def note_module(self, module: Any) -> None:
        """Records a module that the function calls, and those in it."""
        if id(module) not in self._modules:
            self._modules.update((id(m), (m, self._numbers(m))) for m in module.modules() if id(m) not in self._modules)

    def settle(self) -> None:
        """Ends the capture: values that the function itself has changed are not compared."""
        now = outside(self._function)
        self._values = {name: v for name, v in self._values.items() if name in now and state_of(now[name]) == v}
        self._modules = {key: (m, v) for key, (m, v) in self._modules.items() if self._numbers(m) == v}

    def change(self) -> Optional[str]:
        """Returns which value has changed since the capture, or ``None``."""
        for module, numbers in self._modules.values():
            now = self._numbers(module)
            if now != numbers:
                before = dict(numbers)
                name = next((key for key, v in now if before.get(key) != v), "an attribute")
                return f"{name} of {type(module).__name__} has changed"
        now_outside = outside(self._function)
        for name, value in self._values.items():
            if name not in now_outside or state_of(now_outside[name]) != value:
                return f"the variable {name.split(': ')[-1]} of {name.split(': ')[0]} has changed"
        return None


__all__ = ["Guards", "outside", "state_of"]
