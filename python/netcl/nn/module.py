"""Modules: named parameters, states, and training mode."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from .._netcl import Tensor
from .._state import state
from ..autograd import no_grad
from ..errors import FormatError

M = TypeVar("M", bound="Module")


class Parameter(Tensor):
    """A tensor that a module trains."""

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "Parameter":
        made: Parameter = super().__new__(cls, data.detach())  # type: ignore[assignment, unused-ignore]
        made.requires_grad = requires_grad
        return made

    def __deepcopy__(self, memo: Any) -> "Parameter":
        return Parameter(self.detach().clone(), self.requires_grad)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _parameter, (Tensor(self.detach()), self.requires_grad)


def _parameter(data: Tensor, requires_grad: bool) -> Parameter:
    return Parameter(data, requires_grad)


class Handle:
    """A registered hook. ``remove`` unregisters it."""

    def __init__(self, hooks: List[Any], hook: Any) -> None:
        self._hooks = hooks
        self._hook = hook

    def remove(self) -> None:
        """Removes the hook."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


class Module:
    """A part of a model, with parameters, buffers and other modules as attributes, and a ``forward`` method."""

    training: bool

    def __init__(self) -> None:
        self.__dict__["_parameters"] = OrderedDict()
        self.__dict__["_buffers"] = OrderedDict()
        self.__dict__["_modules"] = OrderedDict()
        self.__dict__["_before"] = []
        self.__dict__["_after"] = []
        self.__dict__["training"] = True

    def _tables(self) -> "Tuple[Dict[str, Parameter], Dict[str, Tensor], Dict[str, Module]]":
        try:
            return self.__dict__["_parameters"], self.__dict__["_buffers"], self.__dict__["_modules"]
        except KeyError:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before setting attributes") from None

    def __setattr__(self, name: str, value: Any) -> None:
        parameters, buffers, modules = self._tables()
        if isinstance(value, Parameter):
            table: Dict[str, Any] = parameters
        elif isinstance(value, Module):
            table = modules
        elif name in buffers and isinstance(value, Tensor):
            table = buffers
        else:
            for other, kind, expected in ((parameters, "parameter", "an nn.Parameter"), (buffers, "buffer", "a tensor"), (modules, "module", "an nn.Module")):
                if name in other and value is not None:
                    raise TypeError(
                        f"{type(self).__name__}: {name} is a {kind}, but the new value is {type(value).__name__}; assign {expected} or None, or write to it with copy_ within no_grad"
                    )
                other.pop(name, None)
            self.__dict__[name] = value
            return
        self.__dict__.pop(name, None)
        for other in (parameters, buffers, modules):
            if other is not table:
                other.pop(name, None)
        table[name] = value

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in self._tables():
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Registers a tensor that belongs to the state but is not trained."""
        self._tables()[1][name] = tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's result. A custom class defines it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.capturing:
            state.capturing[-1].note_module(self)
        for hook in list(self.__dict__["_before"]):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        made = self.forward(*args, **kwargs)
        for hook in list(self.__dict__["_after"]):
            changed = hook(self, args, made)
            if changed is not None:
                made = changed
        return made

    def is_hooked(self) -> bool:
        """Returns whether this module or a nested one has a hook."""
        return any(m.__dict__["_before"] or m.__dict__["_after"] for m in self.modules())

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Registers ``hook(module, args)``, called before each forward. Its result, if not ``None``, replaces the arguments."""
        self.__dict__["_before"].append(hook)
        return Handle(self.__dict__["_before"], hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Registers ``hook(module, args, result)``, called after each forward. Its result, if not ``None``, replaces the result."""
        self.__dict__["_after"].append(hook)
        return Handle(self.__dict__["_after"], hook)

    def named_modules(self, prefix: str = "") -> "Iterator[Tuple[str, Module]]":
        """Yields this module and nested modules by name."""
        yield prefix, self
        for name, module in self._tables()[2].items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> "Iterator[Module]":
        """Yields this module and nested modules."""
        return (module for _, module in self.named_modules())

    def children(self) -> "Iterator[Module]":
        """Yields the direct child modules."""
        return iter(self._tables()[2].values())

    def _named(self, table: int) -> "Iterator[Tuple[str, Tensor]]":
        seen = set()
        for prefix, module in self.named_modules():
            for name, tensor in module._tables()[table].items():
                # A tensor with two names is trained once.
                if id(tensor) not in seen and isinstance(tensor, Tensor):
                    seen.add(id(tensor))
                    yield (f"{prefix}.{name}" if prefix else name), tensor

    def named_parameters(self) -> Iterator[Tuple[str, Parameter]]:
        """Yields parameters by name, including those of nested modules. A parameter with several names appears once."""
        return ((name, p) for name, p in self._named(0) if isinstance(p, Parameter))

    def parameters(self) -> Iterator[Parameter]:
        """Yields parameters, including those of nested modules."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[Tuple[str, Tensor]]:
        """Yields buffers by name."""
        return self._named(1)

    def state_dict(self) -> "OrderedDict[str, Tensor]":
        """Returns parameters and buffers by name, off the tape. They share memory with the module."""
        state = OrderedDict((name, tensor.detach()) for name, tensor in self.named_parameters())
        state.update((name, tensor.detach()) for name, tensor in self.named_buffers())
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Tuple[List[str], List[str]]:
        """Overwrites parameters and buffers. Missing and unknown names raise an error, or are returned if ``strict`` is false."""
        own: Dict[str, Tensor] = dict(self.named_parameters())
        own.update(self.named_buffers())
        missing = [name for name in own if name not in state]
        unknown = [name for name in state if name not in own]
        if strict and (missing or unknown):
            raise FormatError(f"load_state_dict: missing names {missing}, unknown names {unknown}")
        for name, tensor in own.items():
            if name in state and tuple(getattr(state[name], "shape", ())) != tuple(tensor.shape):
                given = tuple(getattr(state[name], "shape", ()))
                raise FormatError(f"load_state_dict: {name} has shape {given}, expected {tuple(tensor.shape)}")
        with no_grad():
            for name, tensor in own.items():
                if name in state:
                    tensor.copy_(state[name])
        return missing, unknown

    def train(self: M, mode: bool = True) -> M:
        """Selects training or evaluation mode. Dropout is active only in training mode."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self: M) -> M:
        """Selects evaluation mode."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Sets whether the parameters are trained."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self) -> None:
        """Drops the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def apply(self: M, function: "Callable[[Module], Any]") -> M:
        """Calls ``function`` with each module, nested modules first."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(self: M, *args: Any, device: Any = None, dtype: Any = None) -> M:
        """Moves parameters and buffers to another device, or converts those of floats to another dtype. The parameters stay the same objects, so
        shared ones stay shared. Create an optimizer after that.
        """

        def moved(tensor: Tensor) -> Tensor:
            made = tensor.detach().to(*args, device=device, dtype=dtype)
            return made if tensor.dtype.is_floating_point else tensor.detach().to(made.device)

        changed: Dict[int, Tensor] = {}
        for module in self.modules():
            parameters, buffers, _ = module._tables()
            for parameter in parameters.values():
                if id(parameter) in changed or parameter is None:
                    continue
                changed[id(parameter)] = parameter
                made = moved(parameter)
                if made.dtype is parameter.dtype and made.device == parameter.device:
                    continue
                gradient = parameter.grad
                parameter._become(Parameter(made, parameter.requires_grad))
                parameter.grad = None if gradient is None else moved(gradient)
            for name, buffer in list(buffers.items()):
                if isinstance(buffer, Tensor):
                    buffers[name] = changed.setdefault(id(buffer), moved(buffer))
        return self

    def extra_repr(self) -> str:
        """Returns the text between the parentheses of the representation."""
        return ""

    def __repr__(self) -> str:
        inner = [f"  ({name}): " + repr(m).replace("\n", "\n  ") for name, m in self._tables()[2].items()]
        body = "\n" + "\n".join(inner) + "\n" if inner else self.extra_repr()
        return f"{type(self).__name__}({body})"


class Sequential(Module):
    """Modules in sequence."""

    def __init__(self, *modules: Union[Module, "OrderedDict[str, Module]"]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            for name, module in modules[0].items():
                setattr(self, name, module)
        else:
            for i, each in enumerate(modules):
                setattr(self, str(i), each)

    def forward(self, x: Any) -> Any:
        """Passes each module's result to the next module."""
        for module in self.children():
            x = module(x)
        return x

    def append(self, module: Module) -> "Sequential":
        """Appends a module."""
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._tables()[2])

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, i: int) -> Module:
        return list(self.children())[i]


class ModuleList(Module):
    """A list of modules whose parameters are registered."""

    def __init__(self, modules: Optional[Iterable[Module]] = None) -> None:
        super().__init__()
        for module in modules or ():
            self.append(module)

    def append(self, module: Module) -> "ModuleList":
        """Appends a module."""
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._tables()[2])

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, i: int) -> Module:
        return list(self.children())[i]


__all__ = ["Handle", "Module", "ModuleList", "Parameter", "Sequential"]
