"""Modules: named parameters, states, and training mode."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Set, Tuple, Type, TypeVar

from .._dtype import DType, bfloat16, float16, float32
from .._host import to_dtype
from .._netcl import Tensor
from .._state import state as _global_state
from ..errors import UnsupportedError
from . import state as _states
from .hooks import BackwardCall, Handle
from .parameter import Buffer, Parameter
from .state import IncompatibleKeys

M = TypeVar("M", bound="Module")
_HOOKS = ("_before", "_after", "_backward_before", "_backward_after")


class Module:
    """A part of a model, with parameters, buffers and other modules as attributes, and a ``forward`` method."""

    training: bool

    def __init__(self) -> None:
        self.__dict__["_parameters"] = OrderedDict()
        self.__dict__["_buffers"] = OrderedDict()
        self.__dict__["_modules"] = OrderedDict()
        self.__dict__["_non_persistent"] = set()
        for name in _HOOKS:
            self.__dict__[name] = OrderedDict()
        self.__dict__["training"] = True

    def _tables(self) -> "Tuple[Dict[str, Parameter], Dict[str, Tensor], Dict[str, Module]]":
        try:
            return self.__dict__["_parameters"], self.__dict__["_buffers"], self.__dict__["_modules"]
        except KeyError:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before setting attributes") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__ and not isinstance(value, (Parameter, Module, Buffer)):
            object.__setattr__(self, name, value)
            return
        parameters, buffers, modules = self._tables()
        if isinstance(value, Parameter):
            table: Dict[str, Any] = parameters
        elif isinstance(value, Module):
            table = modules
        elif isinstance(value, Buffer) or name in buffers and isinstance(value, Tensor):
            table = buffers
        else:
            self._assign_other(name, value)
            return
        self.__dict__.pop(name, None)
        for other in (parameters, buffers, modules):
            if other is not table:
                other.pop(name, None)
        if isinstance(value, Buffer):
            (self.__dict__["_non_persistent"].discard if value.persistent else self.__dict__["_non_persistent"].add)(name)
        table[name] = value

    def _assign_other(self, name: str, value: Any) -> None:
        """Assigns a value of another kind than parameters, buffers and modules. ``None`` keeps a registered name."""
        parameters, buffers, modules = self._tables()
        tables: Tuple[Tuple[Dict[str, Any], str, str], ...] = (
            (parameters, "parameter", "an nn.Parameter"), (buffers, "buffer", "a tensor"), (modules, "module", "an nn.Module"),
        )  # fmt: skip
        for table, kind, expected in tables:
            if name in table:
                if value is not None:
                    raise TypeError(
                        f"{type(self).__name__}: {name} is a {kind}, but the new value is {type(value).__name__}; assign {expected} or None, or write to it with copy_ within no_grad"
                    )
                table[name] = None
                return
        object.__setattr__(self, name, value)

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
                self.__dict__["_non_persistent"].discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> "list[str]":
        names = {*object.__dir__(self), *(name for table in self._tables() for name in table)}
        return sorted(name for name in names if not name[:1].isdigit())

    def _register(self, kind: str, table: int, name: str, value: Any, expected: Tuple[Type[Any], ...]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{kind}: the name is {type(name).__name__}, expected str")
        if "." in name or not name:
            raise KeyError(f"{kind}: the name is {name!r}, expected a name without a dot")
        if hasattr(self, name) and name not in self._tables()[table]:
            raise KeyError(f"{kind}: the attribute {name!r} exists")
        if value is not None and not isinstance(value, expected):
            raise TypeError(f"{kind}: {name} is {type(value).__name__}, expected {expected[0].__name__} or None")
        tables: Tuple[Dict[str, Any], ...] = self._tables()
        tables[table][name] = value

    def register_buffer(self, name: str, tensor: Optional[Tensor], persistent: bool = True) -> None:
        """Registers a tensor that is not trained. It belongs to the state if it is ``persistent``."""
        self._register("register_buffer", 1, name, tensor, (Tensor,))
        (self.__dict__["_non_persistent"].discard if persistent else self.__dict__["_non_persistent"].add)(name)

    def register_parameter(self, name: str, param: Optional[Parameter]) -> None:
        """Registers a parameter, or a name without one."""
        self._register("register_parameter", 0, name, param, (Parameter,))

    def add_module(self, name: str, module: "Optional[Module]") -> None:
        """Registers a module, or a name without one."""
        self._register("add_module", 2, name, module, (Module,))

    def register_module(self, name: str, module: "Optional[Module]") -> None:
        """Registers a module, or a name without one."""
        self.add_module(name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's result. A custom class defines it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _global_state.capturing:
            _global_state.capturing[-1].note_module(self)
        own = self.__dict__
        if not (own["_before"] or own["_after"] or own["_backward_before"] or own["_backward_after"]):
            return self.forward(*args, **kwargs)
        return self._hooked(args, kwargs)

    def _hooked(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        own = self.__dict__
        for hook, with_kwargs in list(own["_before"].values()):
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is not None and with_kwargs:
                args, kwargs = changed
            elif changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        backward = None
        if own["_backward_before"] or own["_backward_after"]:
            backward = BackwardCall(self, list(own["_backward_before"].values()), list(own["_backward_after"].values()))
            args = backward.inputs(args)
        made = self.forward(*args, **kwargs)
        for hook, with_kwargs in list(own["_after"].values()):
            changed = hook(self, args, kwargs, made) if with_kwargs else hook(self, args, made)
            if changed is not None:
                made = changed
        return made if backward is None else backward.outputs(made)

    def is_hooked(self) -> bool:
        """Returns whether this module or a nested one has a hook."""
        return any(m.__dict__[name] for m in self.modules() for name in _HOOKS)

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False) -> Handle:
        """Registers ``hook(module, args)``, called before each forward. Its result, if not ``None``, replaces the arguments. With ``with_kwargs`` it
        also gets and returns the keyword arguments.
        """
        return Handle(self.__dict__["_before"], (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Handle:
        """Registers ``hook(module, args, result)``, called after each forward. Its result, if not ``None``, replaces the result. With ``with_kwargs``
        it gets the keyword arguments before the result.
        """
        if always_call:
            raise UnsupportedError("register_forward_hook: always_call=True is not supported; catch the error around the call of the module")
        return Handle(self.__dict__["_after"], (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Registers ``hook(module, grad_input, grad_output)``, called in the backward. Its result, if not ``None``, replaces the gradients of the
        arguments.
        """
        return Handle(self.__dict__["_backward_after"], hook, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Registers ``hook(module, grad_output)``, called before the module's backward. Its result, if not ``None``, replaces the gradients of the
        results.
        """
        return Handle(self.__dict__["_backward_before"], hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Always raises an error: PyTorch's older hook receives wrong gradients for modules of several operations."""
        raise UnsupportedError("register_backward_hook is not supported; write register_full_backward_hook")

    def _late_hook(self, table: str, hook: Callable[..., Any]) -> Handle:
        return Handle(self.__dict__.setdefault(table, OrderedDict()), hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Registers ``hook(module, prefix, keep_vars)``, called before ``state_dict`` reads the module."""
        return self._late_hook("_state_pre_hooks", hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> Handle:
        """Registers ``hook(module, state_dict, prefix, metadata)``, called after ``state_dict`` has read the module."""
        return self._late_hook("_state_hooks", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Registers ``hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)``, called before ``load_state_dict``."""
        return self._late_hook("_load_pre_hooks", hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> Handle:
        """Registers ``hook(module, incompatible_keys)``, called after ``load_state_dict``."""
        return self._late_hook("_load_hooks", hook)

    def named_modules(
        self, memo: "Optional[Set[Module]]" = None, prefix: str = "", remove_duplicate: bool = True
    ) -> "Iterator[Tuple[str, Module]]":
        """Yields this module and nested modules by name. A module with several names appears once, unless ``remove_duplicate`` is false."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._tables()[2].items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> "Iterator[Module]":
        """Yields this module and nested modules."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> "Iterator[Tuple[str, Module]]":
        """Yields the direct child modules by name."""
        seen: Set[Module] = set()
        for name, module in self._tables()[2].items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> "Iterator[Module]":
        """Yields the direct child modules."""
        return (module for _, module in self.named_children())

    def _named(self, table: int, prefix: str, recurse: bool, remove_duplicate: bool) -> "Iterator[Tuple[str, Tensor]]":
        seen = set()
        parts = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in parts:
            for name, tensor in module._tables()[table].items():
                if tensor is None or id(tensor) in seen or not isinstance(tensor, Tensor):
                    continue
                if remove_duplicate:
                    # A tensor with two names is trained once.
                    seen.add(id(tensor))
                yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Tuple[str, Parameter]]:
        """Yields parameters by name, including those of nested modules. A parameter with several names appears once."""
        return ((name, p) for name, p in self._named(0, prefix, recurse, remove_duplicate) if isinstance(p, Parameter))

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yields parameters, including those of nested modules."""
        return (p for _, p in self.named_parameters("", recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Tuple[str, Tensor]]:
        """Yields buffers by name."""
        return self._named(1, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yields buffers, including those of nested modules."""
        return (b for _, b in self.named_buffers("", recurse))

    def get_submodule(self, target: str) -> "Module":
        """Returns a nested module by its name, such as ``"blocks.0.norm"``."""
        found: Any = self
        for part in target.split(".") if target else ():
            found = getattr(found, part, None)
            if not isinstance(found, Module):
                raise AttributeError(f"{type(self).__name__} does not have the module {target!r}: {part!r} is something else")
        return found  # type: ignore[no-any-return]

    def set_submodule(self, target: str, module: "Module", strict: bool = False) -> None:
        """Replaces a nested module by its name. With ``strict``, a module of that name must exist."""
        if not target:
            raise ValueError("set_submodule: the name is empty")
        outer, _, name = target.rpartition(".")
        owner = self.get_submodule(outer)
        if strict and not hasattr(owner, name):
            raise AttributeError(f"{type(owner).__name__} does not have the attribute {name!r}")
        if not isinstance(module, Module) or hasattr(owner, name) and not isinstance(getattr(owner, name), Module):
            raise AttributeError(f"set_submodule: {target!r} or the new value is not a module")
        setattr(owner, name, module)

    def _get(self, table: int, kind: str, target: str) -> Any:
        outer, _, name = target.rpartition(".")
        found: Any = self.get_submodule(outer)._tables()[table].get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} does not have the {kind} {target!r}")
        return found

    def get_parameter(self, target: str) -> Parameter:
        """Returns a parameter by its name."""
        found: Parameter = self._get(0, "parameter", target)
        return found

    def get_buffer(self, target: str) -> Tensor:
        """Returns a buffer by its name."""
        found: Tensor = self._get(1, "buffer", target)
        return found

    def _has_extra(self) -> bool:
        return type(self).get_extra_state is not Module.get_extra_state

    def get_extra_state(self) -> Any:
        """Returns further contents of the state. A class defines it together with ``set_extra_state``."""
        raise UnsupportedError(f"{type(self).__name__} does not define get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Receives what ``get_extra_state`` returned."""
        raise UnsupportedError(f"{type(self).__name__} does not define set_extra_state")

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> "OrderedDict[str, Any]":
        """Returns parameters and buffers by name, off the tape. They share memory with the module. ``keep_vars`` returns the objects themselves."""
        if args:
            raise TypeError("state_dict: pass destination=…, prefix=… and keep_vars=… by name")
        found: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
        _states.collect(self, found, prefix, keep_vars)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Overwrites parameters and buffers. Returns the missing and the unexpected names, which are an error if ``strict``. ``assign`` replaces the
        tensors instead of overwriting them. Wrong shapes are an error, and nothing is changed then.
        """
        return _states.load(self, state_dict, strict, assign)

    def train(self: M, mode: bool = True) -> M:
        """Selects training or evaluation mode. Dropout is active only in training mode."""
        if not isinstance(mode, bool):
            raise ValueError(f"train: mode is {mode!r}, expected a bool")
        self.__dict__["training"] = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: M) -> M:
        """Selects evaluation mode."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Sets whether the parameters are trained."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, or fills them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.detach() * 0.0

    def apply(self: M, fn: "Callable[[Module], Any]") -> M:
        """Calls ``fn`` with each module, nested modules first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self: M, *args: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False) -> M:
        """Moves parameters and buffers to another device, or converts those of floats to another dtype. The parameters stay the same objects, so
        shared ones stay shared. Create an optimizer after that.
        """

        args = tuple(arg for arg in args if not isinstance(arg, bool))
        if any(not to_dtype(d).is_floating_point for d in (dtype, *args) if isinstance(d, DType)):
            raise TypeError("Module.to: parameters have floats, expected float32, float16 or bfloat16; write module.type(dtype) to convert integers too")

        def moved(tensor: Tensor) -> Tensor:
            made = tensor.detach().to(*args, device=device, dtype=dtype)
            return made if tensor.dtype.is_floating_point else tensor.detach().to(made.device)

        return self._converted(moved)

    def _converted(self: M, moved: Callable[[Tensor], Tensor]) -> M:
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

    def float(self: M) -> M:
        """Converts parameters and buffers of floats to float32."""
        return self.to(dtype=float32)

    def half(self: M) -> M:
        """Converts parameters and buffers of floats to float16."""
        return self.to(dtype=float16)

    def bfloat16(self: M) -> M:
        """Converts parameters and buffers of floats to bfloat16."""
        return self.to(dtype=bfloat16)

    def double(self: M) -> M:
        """Always raises an error: netcl computes in at most 32 bits."""
        raise UnsupportedError("double: float64 is not supported; write module.float()")

    def type(self: M, dst_type: Any) -> M:
        """Converts all parameters and buffers to another dtype."""
        return self._converted(lambda tensor: tensor.detach()._to(None, dst_type))

    def cpu(self: M) -> M:
        """Returns the module unchanged, as ``Tensor.cpu`` does. Write ``module.to(device)`` to move it."""
        return self

    def cuda(self: M, device: Any = None) -> M:
        """Always raises an error: devices have names of OpenCL."""
        raise UnsupportedError("cuda: write module.to(device), where netcl.devices() lists the devices, such as 'nvidia:0'")

    def to_empty(self: M, *, device: Any, recurse: bool = True) -> M:
        """Moves parameters and buffers to another device. Their values are kept."""
        return self.to(device=device)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Always raises an error: ``netcl.compile`` captures a function."""
        raise UnsupportedError("Module.compile: write step = netcl.compile(function), where the function calls the module")

    def share_memory(self: M) -> M:
        """Always raises an error: memory of devices is not shared between processes."""
        raise UnsupportedError("share_memory: processes cannot share tensors; write netcl.distributed")

    def extra_repr(self) -> str:
        """Returns the text between the parentheses of the representation."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        inner = [f"({name}): " + repr(m).replace("\n", "\n  ") for name, m in self._tables()[2].items()]
        if not inner and len(lines) < 2:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join([*lines, *inner]) + "\n)"


__all__ = ["Module"]
