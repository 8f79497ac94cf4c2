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


def _package(f: FunctionType) -> str:
    return (f.__module__ or "").split(".")[0]


def _functions(value: Any) -> List[FunctionType]:
    if isinstance(value, functools.partial):
        return [f for part in (value.func, *value.args) for f in _functions(part)]
    found = [value.__func__] if isinstance(value, MethodType) else [value]
    return [f for f in found if isinstance(f, FunctionType) and _package(f) != "netcl"]


class Variable:
    """A variable outside of a function: a name of a dictionary, or a closure cell."""

    __slots__ = ("name", "state", "value", "_cell", "_key", "_names")

    def __init__(self, name: str, names: Optional[Dict[str, Any]], key: str = "", cell: Any = None) -> None:
        self.name, self._names, self._key, self._cell = name, names, key, cell
        self.value = self.read()
        self.state = state_of(self.value)

    def read(self) -> Any:
        """Returns the value, or ``None`` if the variable is not set."""
        if self._names is not None:
            return self._names.get(self._key)
        try:
            return self._cell.cell_contents
        except ValueError:
            return None

    def has_changed(self) -> bool:
        """Returns whether the variable has another value than when it was recorded. The elements of containers and the numbers of objects count."""
        now = self.read()
        if now is self.value and (isinstance(now, (*SIMPLE, Tensor, FunctionType, ModuleType, type)) or hasattr(now, "_tables")):
            return False
        return bool(state_of(now) != self.state)


def outside(function: Callable[..., Any]) -> List[Variable]:
    """Returns the global and closure variables that a function uses. Functions of the same package in these variables count too."""
    found: List[Variable] = []
    waiting, seen = _functions(function), set()
    packages = {_package(f) for f in waiting}
    while waiting:
        f = waiting.pop()
        if id(f) in seen:
            continue
        seen.add(id(f))
        used = [Variable(f"{name} of {f.__qualname__}", None, cell=cell) for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ())]
        used += [Variable(f"{name} of {f.__qualname__}", f.__globals__, name) for name in sorted(set(_names(f.__code__))) if name in f.__globals__]
        found += used
        waiting += [g for variable in used for g in _functions(variable.value) if _package(g) in packages]
    return found


class Guards:
    """The values outside of a function, and the modes and numbers of the modules that it calls, when it was captured."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._functions = [function]
        self._variables = outside(function)
        self._modules: Dict[int, Tuple[Any, List[Tuple[str, Any]]]] = {}

    def note_module(self, module: Any) -> None:
        """Records a module that the function calls, and those in it."""
        if id(module) in self._modules:
            return
        for m in module.modules():
            if id(m) not in self._modules:
                numbers = [(key, v) for key, v in vars(m).items() if key == "training" or (key[0] != "_" and isinstance(v, (*SIMPLE, tuple)))]
                self._modules[id(m)] = (m, numbers)
                forward = type(m).forward
                if forward not in self._functions and _functions(forward):
                    self._functions.append(forward)
                    self._variables += outside(forward)

    def settle(self) -> None:
        """Ends the capture: values that the function itself has changed are not compared."""
        self._variables = [v for v in self._variables if not v.has_changed()]
        self._modules = {key: (m, [(name, v) for name, v in numbers if _is_same(vars(m).get(name), v)]) for key, (m, numbers) in self._modules.items()}

    def change(self) -> Optional[str]:
        """Returns which value has changed since the capture, or ``None``."""
        for module, numbers in self._modules.values():
            now = module.__dict__
            for name, value in numbers:
                if now.get(name) is not value and not _is_same(now.get(name), value):
                    return f"{name} of {type(module).__name__} has changed"
        for variable in self._variables:
            if variable.has_changed():
                return f"the variable {variable.name} has changed"
        return None


def _is_same(a: Any, b: Any) -> bool:
    return a is b or bool(state_of(a, 1) == state_of(b, 1))


__all__ = ["Guards", "Variable", "outside", "state_of"]
