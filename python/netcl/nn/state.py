"""States of modules: tensors by name."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

from .._create import asarray
from .._netcl import Tensor
from ..autograd import no_grad
from ..errors import FormatError
from .parameter import Parameter

EXTRA = "_extra_state"


class StateError(FormatError, RuntimeError):
    """Names or shapes of a state do not match the module."""


class IncompatibleKeys(NamedTuple):
    """Names that a state does not have, and names that the module does not have."""

    missing_keys: List[str]
    unexpected_keys: List[str]


def collect(module: Any, found: "OrderedDict[str, Any]", prefix: str, keep_vars: bool) -> None:
    """Adds the tensors of a module and of nested modules in PyTorch's order. A tensor with several names appears under each."""
    for hook in list(module.__dict__.get("_state_pre_hooks", {}).values()):
        hook(module, prefix, keep_vars)
    parameters, buffers, modules = module._tables()
    for name, tensor in parameters.items():
        if tensor is not None:
            found[prefix + name] = tensor if keep_vars else tensor.detach()
    for name, tensor in buffers.items():
        if tensor is not None and name not in module.__dict__["_non_persistent"]:
            found[prefix + name] = tensor if keep_vars else tensor.detach()
    if module._has_extra():
        found[prefix + EXTRA] = module.get_extra_state()
    for name, child in modules.items():
        if child is not None:
            collect(child, found, f"{prefix}{name}.", keep_vars)
    for hook in list(module.__dict__.get("_state_hooks", {}).values()):
        if hook(module, found, prefix, {}) is not None:
            raise RuntimeError("state_dict: a hook returned a value, expected None; change the dict in place")


def places(module: Any, prefix: str = "") -> "Dict[str, Tuple[Any, Dict[str, Any], str]]":
    """Returns module, table and own name of each tensor by its full name."""
    found: Dict[str, Tuple[Any, Dict[str, Any], str]] = {}
    for path, part in module.named_modules(prefix=prefix, remove_duplicate=False):
        parameters, buffers, _ = part._tables()
        for table in (parameters, buffers):
            for name, tensor in table.items():
                if tensor is not None and not (table is buffers and name in part.__dict__["_non_persistent"]):
                    found[f"{path}.{name}" if path else name] = (part, table, name)
    return found


def _tensor(value: Any) -> Any:
    """Returns a value as a tensor or an array. PyTorch's bfloat16, which NumPy does not have, becomes float32."""
    if not isinstance(value, Tensor) and str(getattr(value, "dtype", "")) == "torch.bfloat16":
        return value.detach().float()
    return value


def _fitting(name: str, value: Any, tensor: Tensor, wrong: List[str]) -> Any:
    shape = tuple(getattr(value, "shape", ()))
    if tensor.ndim == 0 and shape == (1,):
        return value[0]
    if not hasattr(value, "shape"):
        wrong.append(f"{name} is {type(value).__name__}, expected a tensor")
    elif shape != tuple(tensor.shape):
        wrong.append(f"{name} has shape {shape}, expected {tuple(tensor.shape)}")
    return value


def load(module: Any, state: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Writes a state to a module. If names or shapes do not match, nothing is changed."""
    state = OrderedDict(state)
    for path, part in module.named_modules():
        for hook in list(part.__dict__.get("_load_pre_hooks", {}).values()):
            hook(part, state, f"{path}." if path else "", {}, strict, [], [], [])
    own = places(module)
    extra = {(f"{path}." if path else "") + EXTRA: part for path, part in module.named_modules() if part._has_extra()}
    optional = {f"{path}.{name}" if path else name for path, part in module.named_modules() for name in getattr(part, "_optional_names", ())}
    missing = [name for name in [*own, *extra] if name not in state and name not in optional]
    unknown = [name for name in state if name not in own and name not in extra]
    wrong: List[str] = []
    values = {name: _fitting(name, _tensor(state[name]), table[key], wrong) for name, (_, table, key) in own.items() if name in state}
    if strict and (missing or unknown):
        wrong.insert(0, f"missing names {missing}, unknown names {unknown}")
    if wrong:
        raise StateError(f"load_state_dict of {type(module).__name__}: " + "; ".join(wrong))
    with no_grad():
        for name, value in values.items():
            part, table, key = own[name]
            if assign:
                _assign(part, table, key, value)
            else:
                table[key].copy_(value)
    for name, part in extra.items():
        if name in state:
            part.set_extra_state(state[name])
    found = IncompatibleKeys(missing, unknown)
    for part in module.modules():
        for hook in list(part.__dict__.get("_load_hooks", {}).values()):
            if hook(part, found) is not None:
                raise RuntimeError("load_state_dict: a hook returned a value, expected None; change the lists in place")
    return found


def _assign(part: Any, table: Dict[str, Any], key: str, value: Any) -> None:
    old, given = table[key], asarray(value, device=table[key].device) if not isinstance(value, Tensor) else value
    if isinstance(old, Parameter):
        given = given if isinstance(given, Parameter) else Parameter(given, old.requires_grad)
    table[key] = given


Hook = Callable[..., Any]

__all__ = ["IncompatibleKeys", "StateError"]
