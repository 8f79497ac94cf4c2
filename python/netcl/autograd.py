"""Gradient recording and functions with gradients."""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type, TypeVar

from ._class import as_instance, like_inputs
from ._netcl import Tensor, gradients, is_recording, record, set_recording
from .errors import FormatError, UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])


class _Recording:
    """A ``with`` statement or decorator that turns the recording of this thread's operations on or off."""

    _on = False

    def __init__(self) -> None:
        self._before: List[bool] = []

    def __enter__(self) -> None:
        self._before.append(set_recording(self._on))

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        set_recording(self._before.pop())

    def __new__(cls, function: Any = None) -> Any:
        # ``@no_grad`` without parentheses, too.
        made = super().__new__(cls)
        if function is None:
            return made
        made._before = []
        return made(function)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]


class no_grad(_Recording):
    """Turns recording off: operations are not added to the tape."""


class enable_grad(_Recording):
    """Turns recording on again within a ``no_grad``."""

    _on = True


class inference_mode:
    """Turns recording off, as ``no_grad``, or leaves it as it is with ``mode=False``. Tensors that were made in it may be used in training later,
    which PyTorch refuses.
    """

    def __init__(self, mode: bool = True) -> None:
        self._on = mode
        self._before: List[Tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((is_recording(), _inference.on))
        _inference.on = self._on
        set_recording(is_recording() and not self._on)

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        recording, _inference.on = self._before.pop()
        set_recording(recording)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with inference_mode(self._on):
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]


class _Inference(threading.local):
    on = False


_inference = _Inference()


def is_inference_mode_enabled() -> bool:
    """Returns whether this thread is within ``inference_mode``."""
    return _inference.on


class set_grad_enabled:
    """Turns recording on or off: at once, and until the end of a ``with`` block if it is used as one."""

    def __init__(self, mode: bool) -> None:
        self._before = set_recording(bool(mode))
        self._mode = bool(mode)

    def __enter__(self) -> None:
        set_recording(self._mode)

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        set_recording(self._before)

    def __call__(self, function: F) -> F:
        set_recording(self._before)

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(self._mode):
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]


def is_grad_enabled() -> bool:
    """Returns whether operations of this thread are recorded."""
    return is_recording()


class Context:
    """Values that a function's forward passes to its backward: tensors through ``save_for_backward``, others as attributes."""

    def __init__(self, needs_input_grad: Tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: Optional[Tuple[Optional[Tensor], ...]] = ()

    def save_for_backward(self, *tensors: Optional[Tensor]) -> None:
        """Keeps tensors until the backward."""
        self._saved = tuple(None if t is None else t.detach() for t in tensors)

    @property
    def saved_tensors(self) -> Tuple[Any, ...]:
        """The saved tensors."""
        if self._saved is None:
            raise UnsupportedError("backward: the saved tensors were freed; run the forward again")
        return self._saved


class Function:
    """A custom operation. ``forward(ctx, …)`` computes the results. ``backward(ctx, …)`` receives the gradients of the results, ``None`` for an
    unused result. It returns the gradients of the arguments, ``None`` for an argument without a gradient.

    >>> class Cube(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, dy):
    ...         (x,) = ctx.saved_tensors
    ...         return dy * x * x * 3
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Returns the results: a tensor or a tuple of tensors. Its operations are not recorded."""
        raise NotImplementedError("a Function must define forward")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``forward``'s arguments, in their order."""
        raise NotImplementedError("a Function must define backward")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls the function. It is recorded on the tape if an argument needs a gradient."""
        ctx = Context(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        with no_grad():
            made = cls.forward(ctx, *args)
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        wrong = [type(y).__name__ for y in results if not isinstance(y, Tensor)]
        if wrong:
            raise FormatError(f"{cls.__name__}: forward returns {', '.join(wrong)}, expected tensors")
        tensors = [a for a in args if isinstance(a, Tensor)]
        results = [like_inputs(y, tensors) for y in results]
        kinds = [type(y) for y in results]

        def backward(*grads: Optional[Tensor]) -> List[Optional[Tensor]]:
            found = cls.backward(ctx, *(None if g is None else as_instance(kind, g) for g, kind in zip(grads, kinds)))
            found = found if isinstance(found, (tuple, list)) else (found,)
            ctx._saved = None
            if len(found) != len(args):
                raise FormatError(f"{cls.__name__}: backward returns {len(found)} gradients, expected {len(args)}, one for each argument")
            return [g for g, a in zip(found, args) if isinstance(a, Tensor)]

        recorded = record(cls.__name__, tensors, results, backward) if is_recording() and any(ctx.needs_input_grad) else results
        return tuple(recorded) if isinstance(made, (tuple, list)) else recorded[0]


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Optional[bool] = None,
    create_graph: bool = False,
    allow_unused: Optional[bool] = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Tuple[Optional[Tensor], ...]:
    """Returns the gradients of ``outputs`` for ``inputs``, which do not collect them. ``grad_outputs`` has the gradients of outputs with more than
    one element. An input that no output depends on is an error, gives ``None`` with ``allow_unused``, and zeros with ``materialize_grads``.

    The backward frees what it saved. ``retain_graph=True`` is accepted, but a second backward through the same operations raises an error.
    """
    from ._create import ones_like, zeros_like

    if create_graph or is_grads_batched:
        raise UnsupportedError("grad: create_graph and is_grads_batched are not supported; a backward is not recorded. Write the gradient as a formula of tensors")
    ys = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [None] * len(ys) if grad_outputs is None else [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    if len(given) != len(ys):
        raise RuntimeError(f"grad: got {len(given)} gradients for {len(ys)} outputs")
    for i, x in enumerate(xs):
        if not x.requires_grad:
            raise RuntimeError(f"grad: input {i} does not require a gradient")
    starts = []
    for y, dy in zip(ys, given):
        if not y.requires_grad:
            raise RuntimeError("grad: an output does not depend on anything that requires a gradient")
        if dy is None and y.numel() != 1:
            raise RuntimeError(f"grad: an output has shape {tuple(y.shape)}, expected one element, or its gradient in grad_outputs")
        starts.append(ones_like(y) if dy is None else dy)
    found = gradients(ys, starts, xs)
    if None in [None if g is None else 0 for g in found] and not (allow_unused or (allow_unused is None and materialize_grads)):
        raise RuntimeError("grad: no output depends on one of the inputs; pass allow_unused=True to get None for it")
    made = [zeros_like(x.detach()) if g is None and materialize_grads else g for g, x in zip(found, xs)]
    return tuple(None if g is None else as_instance(type(x), g) for g, x in zip(made, xs))


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: Optional[bool] = None, create_graph: bool = False) -> None:
    """Computes the gradients of several tensors together, and adds them to those of the leaves."""
    from ._create import ones_like

    if create_graph:
        raise UnsupportedError("backward: create_graph=True is not supported; a backward is not recorded. Write the gradient as a formula of tensors")
    ys = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = [None] * len(ys) if grad_tensors is None else [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
    total: Any = None
    for y, dy in zip(ys, given):
        if dy is None and y.numel() != 1:
            raise RuntimeError(f"backward: a tensor has shape {tuple(y.shape)}, expected one element, or its gradient in grad_tensors")
        part = (y * (ones_like(y) if dy is None else dy)).sum()
        total = part if total is None else total + part
    total.backward()


def gradcheck(func: Callable[..., Any], inputs: Any, *, eps: float = 1e-2, atol: float = 1e-2, rtol: float = 1e-2, raise_exception: bool = True) -> bool:
    """Compares the gradients of a function with central differences. PyTorch's defaults are for float64; these are for float32."""
    xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for at, x in enumerate(xs):
        if not (isinstance(x, Tensor) and x.requires_grad):
            continue
        message = _checked(func, xs, at, eps, atol, rtol)
        if message and raise_exception:
            raise RuntimeError(message)
        if message:
            return False
    return True


def _checked(func: Callable[..., Any], xs: List[Any], at: int, eps: float, atol: float, rtol: float) -> str:
    """Returns the difference between the gradients of one input, or an empty text."""
    import numpy as np

    from ._create import randn, tensor

    made = func(*xs)
    outputs = [made] if isinstance(made, Tensor) else [y for y in made if isinstance(y, Tensor)]
    weights = [randn(*y.shape, device=y.device) for y in outputs]
    found = grad(outputs, [xs[at]], weights, allow_unused=True)[0]
    values = xs[at].detach().numpy()
    ours = np.zeros_like(values) if found is None else found.numpy()
    for index in np.ndindex(values.shape):
        ends = []
        for step in (eps, -eps):
            moved = values.copy()
            moved[index] += step
            with no_grad():
                again = func(*(tensor(moved, dtype=x.dtype, device=x.device) if i == at else x for i, x in enumerate(xs)))
            again = [again] if isinstance(again, Tensor) else [y for y in again if isinstance(y, Tensor)]
            ends.append(sum(float((y.numpy().astype(np.float64) * w.numpy()).sum()) for y, w in zip(again, weights)))
        slope = (ends[0] - ends[1]) / (2 * eps)
        if abs(slope - float(ours[index])) > atol + rtol * abs(slope):
            return f"gradcheck: the gradient of input {at} at {index} is {float(ours[index])}, but differences give {slope}"
    return ""


__all__ = [
    "Context", "Function", "backward", "enable_grad", "grad", "gradcheck", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "no_grad",
    "set_grad_enabled",
]  # fmt: skip
