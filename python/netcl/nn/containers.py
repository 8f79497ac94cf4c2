"""Modules and parameters in sequences and by name."""

from __future__ import annotations

import operator
from collections import OrderedDict
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from .._netcl import Tensor
from .module import Module
from .parameter import Parameter

C = TypeVar("C", bound="_Modules")


def _place(name: str, index: Any, count: int) -> int:
    """Returns a position counted from the front."""
    i = operator.index(index)
    if not -count <= i < count:
        raise IndexError(f"{name}: index {i} is out of range for {count} entries")
    return i % count


class _Modules(Module):
    """Modules whose names are their positions."""

    def _fill(self, modules: Iterable[Tuple[str, Module]]) -> None:
        table = self._tables()[2]
        table.clear()
        for name, module in modules:
            self.add_module(name, module)

    def _number(self, modules: Iterable[Module]) -> None:
        self._fill([(str(i), m) for i, m in enumerate(modules)])

    def __len__(self) -> int:
        return len(self._tables()[2])

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._tables()[2].values()))

    def __getitem__(self, i: Any) -> Any:
        items = list(self._tables()[2].items())
        if isinstance(i, slice):
            return self._sliced(items[i])
        return items[_place(type(self).__name__, i, len(items))][1]

    def _sliced(self, items: List[Tuple[str, Module]]) -> Any:
        made = self.__class__()
        made._number(m for _, m in items)
        return made

    def __setitem__(self, i: Any, module: Module) -> None:
        names = list(self._tables()[2])
        setattr(self, names[_place(type(self).__name__, i, len(names))], module)

    def __delitem__(self, i: Any) -> None:
        names = list(self._tables()[2])
        for name in names[i] if isinstance(i, slice) else [names[_place(type(self).__name__, i, len(names))]]:
            delattr(self, name)
        self._number(list(self._tables()[2].values()))

    def append(self: C, module: Module) -> C:
        """Appends a module."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: C, modules: Iterable[Module]) -> C:
        """Appends modules."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Inserts a module before a position."""
        modules = list(self._tables()[2].values())
        if not isinstance(module, Module):
            raise TypeError(f"insert: got {type(module).__name__}, expected a module")
        if not -len(modules) <= index <= len(modules):
            raise IndexError(f"insert: position {index} is out of range for {len(modules)} modules")
        modules.insert(index, module)
        self._number(modules)
        return self

    def pop(self, key: Any = -1) -> Any:
        """Removes and returns a module."""
        found = self[key]
        del self[key]
        return found

    def __add__(self: C, other: Iterable[Module]) -> C:
        made = self.__class__()
        made._number([*self, *other])
        return made

    def __iadd__(self: C, other: Iterable[Module]) -> C:
        return self.extend(other)


class Sequential(_Modules):
    """Modules in sequence: ``Sequential(first, second)``, or an ``OrderedDict`` of modules by name."""

    def __init__(self, *args: Union[Module, "OrderedDict[str, Module]"]) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            self._fill(args[0].items())
        else:
            self._number(args)  # type: ignore[arg-type]

    def _sliced(self, items: List[Tuple[str, Module]]) -> Any:
        return self.__class__(OrderedDict(items))

    def forward(self, input: Any) -> Any:
        """Passes each module's result to the next module."""
        for module in self:
            input = module(input)
        return input

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Sequential):
            raise ValueError(f"Sequential: cannot add {type(other).__name__}, expected a Sequential")
        return super().__add__(other)

    def __mul__(self, count: int) -> "Sequential":
        if not isinstance(count, int) or count <= 0:
            raise ValueError(f"Sequential: the factor is {count!r}, expected a positive integer")
        return Sequential(*(m for _ in range(count) for m in self))

    def __rmul__(self, count: int) -> "Sequential":
        return self * count

    def __imul__(self, count: int) -> "Sequential":
        self._number((self * count)._tables()[2].values())
        return self


class ModuleList(_Modules):
    """A list of modules whose parameters are registered."""

    def __init__(self, modules: Optional[Iterable[Module]] = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def insert(self, index: int, module: Module) -> None:
        """Inserts a module before a position. After the end, the position is its name, as in PyTorch."""
        if index < 0:
            raise IndexError(f"insert: position {index} is out of range, expected at least 0")
        if index > len(self):
            self.add_module(str(index), module)
        else:
            super().insert(index, module)

    def __repr__(self) -> str:
        groups: List[Tuple[int, int, str]] = []
        for i, module in enumerate(self):
            text = repr(module)
            if groups and groups[-1][2] == text:
                groups[-1] = (groups[-1][0], i, text)
            else:
                groups.append((i, i, text))
        lines = [(f"({a}): " if a == b else f"({a}-{b}): {b - a + 1} x ") + text.replace("\n", "\n  ") for a, b, text in groups]
        return f"{type(self).__name__}(" + "".join(f"\n  {line}" for line in lines) + ("\n)" if lines else ")")


class ModuleDict(Module):
    """Modules by name, in the order in which they were added."""

    def __init__(self, modules: Optional[Any] = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._tables()[2][key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._tables()[2][key]

    def __len__(self) -> int:
        return len(self._tables()[2])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables()[2])

    def __contains__(self, key: str) -> bool:
        return key in self._tables()[2]

    def clear(self) -> None:
        """Removes all modules."""
        self._tables()[2].clear()

    def pop(self, key: str) -> Any:
        """Removes and returns a module."""
        found = self[key]
        del self[key]
        return found

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._tables()[2].keys()

    def items(self) -> Iterable[Tuple[str, Any]]:
        """Returns names and modules."""
        return self._tables()[2].items()

    def values(self) -> Iterable[Any]:
        """Returns the modules."""
        return self._tables()[2].values()

    def update(self, modules: Any) -> None:
        """Adds modules from a dict, or from pairs of names and modules."""
        pairs = modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules
        for name, module in pairs:
            self[name] = module


def _described(value: Any) -> str:
    """Describes an entry of a list or dict of parameters."""
    if isinstance(value, Tensor):
        kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
        return f"{kind} containing: [{value.dtype.name} of size {'x'.join(str(n) for n in value.shape)}]"
    return f"Object of type: {type(value).__name__}"


def _entry(value: Any) -> Any:
    """Returns a tensor as a parameter."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters. A tensor becomes a parameter; other values are kept."""

    def __init__(self, values: Optional[Iterable[Any]] = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return ParameterList([self[k] for k in range(*i.indices(len(self)))])
        return getattr(self, str(_place("ParameterList", i, len(self))))

    def __setitem__(self, i: Any, value: Any) -> None:
        setattr(self, str(_place("ParameterList", i, len(self))), _entry(value))

    def append(self, value: Any) -> "ParameterList":
        """Appends a value."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> "ParameterList":
        """Appends values."""
        if isinstance(values, Tensor):
            raise TypeError("ParameterList: got a tensor, expected a list of parameters")
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> "ParameterList":
        return self.extend(values)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterList cannot be called")

    def __repr__(self) -> str:
        lines = [f"({i}): {_described(value)}" for i, value in enumerate(self)]
        return f"{type(self).__name__}(" + "".join(f"\n  {line}" for line in lines) + ("\n)" if lines else ")")


class ParameterDict(Module):
    """Parameters by name. A tensor becomes a parameter; other values are kept."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self.__dict__["_names"] = {}
        if parameters is not None:
            self.update(parameters)

    def _own(self) -> Dict[str, None]:
        found: Dict[str, None] = self.__dict__["_names"]
        return found

    def __getitem__(self, key: str) -> Any:
        if key not in self._own():
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"ParameterDict: the name is {type(key).__name__}, expected str")
        self._own()[key] = None
        setattr(self, key, _entry(value))

    def __delitem__(self, key: str) -> None:
        del self._own()[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._own())

    def __iter__(self) -> Iterator[str]:
        return iter(self._own())

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._own()))

    def __contains__(self, key: str) -> bool:
        return key in self._own()

    def copy(self) -> "ParameterDict":
        """Returns a dict with the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Returns a parameter, which is set to ``default`` before if it does not exist."""
        if key not in self:
            self[key] = default
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a parameter, or ``default`` if it does not exist."""
        return self[key] if key in self else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> "ParameterDict":
        """Returns a dict with these names and the same value."""
        return ParameterDict((key, default) for key in keys)

    def clear(self) -> None:
        """Removes all parameters."""
        for key in list(self):
            del self[key]

    def pop(self, key: str) -> Any:
        """Removes and returns a parameter."""
        found = self[key]
        del self[key]
        return found

    def popitem(self) -> Tuple[str, Any]:
        """Removes and returns the last name and parameter."""
        key = list(self)[-1]
        return key, self.pop(key)

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._own().keys()

    def items(self) -> Iterable[Tuple[str, Any]]:
        """Returns names and parameters."""
        return [(key, self[key]) for key in self]

    def values(self) -> Iterable[Any]:
        """Returns the parameters."""
        return [self[key] for key in self]

    def update(self, parameters: Any) -> None:
        """Adds parameters from a dict, or from pairs of names and parameters."""
        if isinstance(parameters, Tensor):
            raise TypeError("ParameterDict: got a tensor, expected a dict of parameters")
        is_plain = isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict)
        pairs = parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else parameters
        for name, value in sorted(pairs) if is_plain else pairs:
            self[name] = value

    def __or__(self, other: Any) -> "ParameterDict":
        made = self.copy()
        made.update(other)
        return made

    def __ior__(self, other: Any) -> "ParameterDict":
        self.update(other)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterDict cannot be called")

    def __repr__(self) -> str:
        lines = [f"({key}): {_described(value)}" for key, value in self.items()]
        return f"{type(self).__name__}(" + "".join(f"\n  {line}" for line in lines) + ("\n)" if lines else ")")


__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]
