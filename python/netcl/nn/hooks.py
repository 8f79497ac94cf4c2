"""Hooks: functions that a module calls before or after its forward and its backward."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

from .._netcl import Tensor
from ..autograd import Function

_numbers = itertools.count()


class Handle:
    """A registered hook. ``remove`` unregisters it, and so does the end of a ``with`` block."""

    def __init__(self, hooks: "Dict[int, Any]", hook: Any, prepend: bool = False) -> None:
        self._hooks = hooks
        self.id = next(_numbers)
        later = dict(hooks) if prepend else {}
        if prepend:
            hooks.clear()
        hooks[self.id] = hook
        hooks.update(later)

    def remove(self) -> None:
        """Removes the hook."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.remove()


class _Passing(Function):
    """Returns its tensors, and in the backward passes their gradients through a function."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Returns the tensors after the function."""
        ctx.change = args[0]
        return tuple(t.detach() for t in args[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the changed gradients."""
        return (None, *ctx.change(grads))


def _listed(given: Any) -> Tuple[Any, ...]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


class BackwardCall:
    """Calls a module's backward hooks for one forward: ``inputs`` wraps its arguments, ``outputs`` its results."""

    def __init__(self, module: Any, before: Sequence[Callable[..., Any]], after: Sequence[Callable[..., Any]]) -> None:
        self.module, self.before, self.after = module, list(before), list(after)
        self.grad_output: Tuple[Any, ...] = ()
        self.places: List[int] = []
        self.count = 0

    def inputs(self, args: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """Returns the arguments, with tensors that need a gradient replaced."""
        self.places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
        self.count = len(args)
        if not self.places or not self.after:
            return args
        wrapped = _Passing.apply(self._arrived, *(args[i] for i in self.places))
        found = list(args)
        for i, t in zip(self.places, wrapped):
            found[i] = t
        return tuple(found)

    def outputs(self, made: Any) -> Any:
        """Returns the results, with tensors that need a gradient replaced."""
        parts = list(_listed(made))
        places = [i for i, t in enumerate(parts) if isinstance(t, Tensor) and t.requires_grad]
        if not places:
            return made

        def change(grads: Sequence[Any]) -> Sequence[Any]:
            full: List[Any] = [None] * len(parts)
            for i, g in zip(places, grads):
                full[i] = g
            return self._left(tuple(full), places)

        for i, t in zip(places, _Passing.apply(change, *(parts[i] for i in places))):
            parts[i] = t
        if not isinstance(made, (tuple, list)):
            return parts[0]
        return type(made)(*parts) if hasattr(made, "_fields") else type(made)(parts)

    def _left(self, grads: Tuple[Any, ...], places: Sequence[int]) -> Sequence[Any]:
        """Receives the gradients of the results."""
        for hook in self.before:
            changed = hook(self.module, grads)
            grads = grads if changed is None else _listed(changed)
        self.grad_output = grads
        if not self.places:
            self._call((None,) * self.count)
        return [grads[i] for i in places]

    def _arrived(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Receives the gradients of the arguments."""
        full: List[Any] = [None] * self.count
        for i, g in zip(self.places, grads):
            full[i] = g
        found = self._call(tuple(full))
        return [found[i] for i in self.places]

    def _call(self, grad_input: Tuple[Any, ...]) -> Tuple[Any, ...]:
        for hook in self.after:
            changed = hook(self.module, grad_input, self.grad_output)
            grad_input = grad_input if changed is None else _listed(changed)
        return grad_input


__all__ = ["BackwardCall", "Handle"]
