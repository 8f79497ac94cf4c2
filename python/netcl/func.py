"""Transformations of functions with PyTorch's names, as far as one backward gives them."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Tuple, Union

from . import autograd
from ._netcl import Tensor
from .errors import UnsupportedError

Argnums = Union[int, Tuple[int, ...]]


def _leaves(given: Any, kept: List[Tensor]) -> Any:
    """Replaces float tensors in containers with leaves, which are appended to ``kept``."""
    if isinstance(given, Tensor):
        leaf = given.detach().requires_grad_()
        kept.append(leaf)
        return leaf
    if isinstance(given, dict):
        return {key: _leaves(value, kept) for key, value in given.items()}
    return type(given)(_leaves(g, kept) for g in given) if isinstance(given, (tuple, list)) else given


def _filled(given: Any, values: Any) -> Any:
    """Returns the containers of ``given`` with other tensors in them."""
    if isinstance(given, Tensor):
        return next(values)
    if isinstance(given, dict):
        return {key: _filled(value, values) for key, value in given.items()}
    return type(given)(_filled(g, values) for g in given) if isinstance(given, (tuple, list)) else given


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns the function that computes the gradient for the arguments at ``argnums``, and the value, of a function with one number as its result."""

    def call(*args: Any, **kwargs: Any) -> Any:
        places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        kept: List[Tensor] = []
        chosen = {p % len(args): _leaves(args[p], kept) for p in places}
        with autograd.enable_grad():
            made = func(*(chosen.get(i, a) for i, a in enumerate(args)), **kwargs)
        value, aux = made if has_aux else (made, None)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise RuntimeError("grad: the function must return a tensor of one element")
        found = autograd.grad(value, kept, allow_unused=True, materialize_grads=True) if value.requires_grad else [x.detach() * 0.0 for x in kept]
        grads = [_filled(args[p], iter_) for iter_ in [iter(found)] for p in places]
        first = grads[0] if isinstance(argnums, int) else tuple(grads)
        return (first, (value.detach(), aux)) if has_aux else (first, value.detach())

    return call


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns the function that computes the gradient for the arguments at ``argnums`` of a function with one number as its result. The gradient is
    off the tape: it cannot be derived again.
    """
    both = grad_and_value(func, argnums, has_aux)

    def call(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return call


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Returns the function's result, and the function that computes gradients from those of the result. It can be called once."""
    kept: List[Tensor] = []
    leaves = [_leaves(p, kept) for p in primals]
    with autograd.enable_grad():
        made = func(*leaves)
    value, aux = made if has_aux else (made, None)

    def back(*cotangents: Any) -> Tuple[Any, ...]:
        ys = [value] if isinstance(value, Tensor) else list(value)
        dys = [cotangents[0]] if isinstance(value, Tensor) else list(cotangents[0] if len(cotangents) == 1 else cotangents)
        found = iter(autograd.grad(ys, kept, dys, allow_unused=True, materialize_grads=True))
        return tuple(_filled(p, found) for p in primals)

    out = value.detach() if isinstance(value, Tensor) else type(value)(y.detach() for y in value)
    return (out, back, aux) if has_aux else (out, back)


def jacrev(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """Returns the function that computes all derivatives of the result, a tensor, for one argument. Each element of the result needs a backward."""

    def call(*args: Any) -> Tensor:
        from ._create import zeros
        from ._torch import stack

        with autograd.no_grad():
            shape = tuple(func(*args).shape)
        rows = []
        count = 1
        for n in shape:
            count *= n
        for i in range(count):
            one = zeros(count, device=args[argnums].device)
            one[i] = 1.0
            _, back = vjp(lambda x: func(*args[:argnums], x, *args[argnums + 1 :]), args[argnums])
            rows.append(back(one.reshape(shape))[0])
        return stack(rows).reshape(*shape, *args[argnums].shape)

    return call


def vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: Any = None) -> Callable[..., Any]:
    """Returns the function that is applied to each slice along ``in_dims`` and stacks the results along ``out_dims``. It calls ``func`` once per slice."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from ._torch import stack

        dims = [in_dims] * len(args) if isinstance(in_dims, int) else list(in_dims)
        if len(dims) != len(args):
            raise ValueError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        sizes = {int(a.shape[d]) for a, d in zip(args, dims) if d is not None}
        if len(sizes) != 1:
            raise ValueError(f"vmap: the arguments have the sizes {sorted(sizes)} along in_dims, expected one")
        made = [func(*(a if d is None else a.select(d, i) for a, d in zip(args, dims)), **kwargs) for i in range(sizes.pop())]
        if isinstance(made[0], Tensor):
            return stack(made, out_dims)
        outs = [out_dims] * len(made[0]) if isinstance(out_dims, int) else list(out_dims)
        return tuple(stack(list(parts), d) for parts, d in zip(zip(*made), outs))

    return call


def functional_call(module: Any, parameter_and_buffer_dicts: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Calls a module with other tensors in place of its parameters and buffers, by name."""
    given: Mapping[str, Any] = parameter_and_buffer_dicts
    if isinstance(parameter_and_buffer_dicts, (tuple, list)):
        given = {name: value for each in parameter_and_buffer_dicts for name, value in each.items()}
    places = {f"{prefix}.{name}" if prefix else name: (table, name) for prefix, m in module.named_modules() for table in m._tables()[:2] for name in table}
    unknown = [name for name in given if name not in places]
    if unknown:
        raise KeyError(f"functional_call: the module does not have {', '.join(unknown)}")
    before = {name: places[name][0][places[name][1]] for name in given}
    try:
        for name, value in given.items():
            places[name][0][places[name][1]] = value
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for name, value in before.items():
            places[name][0][places[name][1]] = value


def _refused(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"func.{name} is not supported; a backward is not recorded. Write the derivative as a formula of tensors, or use func.vjp")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = "Refuses: derivatives are of the first order, and backward only."
    return call


jvp, jacfwd, hessian, linearize = _refused("jvp"), _refused("jacfwd"), _refused("hessian"), _refused("linearize")

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap"]
