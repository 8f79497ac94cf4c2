"""Tensors with OCL-LLM's methods."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Type

import numpy as np

from ... import ops
from ..._create import ones_like as _ones_like
from ..._create import tensor as _tensor
from ..._create import zeros as _zeros
from ..._create import zeros_like as _zeros_like
from ..._host import rebuild
from ..._netcl import Tensor, default_device, evaluate_into, free_memory, is_recording
from ...autograd import no_grad as _no_grad
from ...errors import FormatError, LaunchError, ShapeError
from . import contexts
from .buffer import FP_TYPE, GPUBuffer, registered
from .context import FunctionContext, TapeBackwardContext, add_gradient, attach
from .switch import NoGradContext, Switch

_placeholders: Dict[str, Tensor] = {}
"""By device: the tensor without elements that an object is before its ``__init__``."""


def _unpickled(kind: Type["OclTensor"], parts: Tuple[Any, ...]) -> "OclTensor":
    """Restores a tensor from a pickle."""
    made = rebuild(*parts)
    out: OclTensor = Tensor.__new__(kind, made)  # type: ignore[assignment, unused-ignore]
    registered.add(out)
    return out


def free_placeholders() -> None:
    """Frees the memory of the placeholders. New objects get new ones."""
    while _placeholders:
        free_memory(_placeholders.popitem()[1])


def recorded(compute: Callable[[], Any], context: Callable[..., FunctionContext], *parents: Any, **more: Any) -> Any:
    """Computes a result off the tape, and records it with the context of its operation if a parent needs a gradient. With ``of_result``, the context
    gets the result after its first parent.
    """
    if not is_recording() or not any(p.requires_grad for p in parents if isinstance(p, Tensor)):
        return compute()
    with _no_grad():
        made = compute()
    if made is NotImplemented:
        return made
    given = (parents[0], made, *parents[1:]) if more.pop("of_result", False) else parents
    made._attach(context(*given, **more), False)
    return made


def _operand(other: Any) -> Any:
    """Returns an operand; an array becomes a tensor, or a number if its shape is ()."""
    if isinstance(other, np.ndarray):
        return OclTensor(other) if other.ndim else other.item()
    return other


class OclTensor(Tensor, metaclass=Switch):
    """A float32 tensor on the device. ``data``: an array, or a tensor, which is shared with its place on the tape. ``_gpu_buffer`` and ``_shape``
    make a tensor over the memory of a buffer.

    Results of operations have the class of their inputs, also for classes derived from this one; they are made without calling ``__init__``.
    """

    _ocl_initialized = False
    NoGradContext = NoGradContext
    __array_priority__ = 1000.0
    """NumPy leaves operators with its numbers and arrays on the left to the tensor."""

    def __new__(cls, *_: Any, **__: Any) -> "OclTensor":
        device = default_device()
        if device.name not in _placeholders:
            _placeholders[device.name] = _zeros(0, device=device)
        out: OclTensor = Tensor.__new__(cls, _placeholders[device.name])  # type: ignore[assignment, unused-ignore]
        return out

    def __init__(
        self, data: Any = None, requires_grad: bool = False, _gpu_buffer: Optional[GPUBuffer] = None, _shape: Optional[Sequence[int]] = None
    ) -> None:
        if data is None and _gpu_buffer is None:
            raise FormatError(f"{type(self).__name__}: expected data or _gpu_buffer")
        if _gpu_buffer is not None:
            made = _gpu_buffer._floats(np.shape(data) if _shape is None and np.size(data) and data is not None else _shape)
            if data is not None and np.size(data):
                _gpu_buffer.write(np.asarray(data, dtype=FP_TYPE))
            self.__dict__["_data"] = _gpu_buffer
        elif isinstance(data, Tensor):
            made = data if _shape is None else data.reshape(tuple(_shape))
        else:
            made = _tensor(np.asarray(data, dtype=FP_TYPE).reshape(np.shape(data) if _shape is None else tuple(_shape)))
        self._become(made)
        registered.add(self)
        if requires_grad and is_recording():
            self.requires_grad = True

    # Classes of results.

    @classmethod
    def _kept_class(cls) -> Type["OclTensor"]:
        return cls

    @classmethod
    def _result(cls, made: Tensor, given: Sequence[Any] = ()) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Returns the result of an operation on ``given`` with the most derived of their classes."""
        kind = cls._kept_class()
        for each in given[1:]:
            other = type(each)._kept_class() if isinstance(each, OclTensor) else kind
            kind = other if issubclass(other, kind) else kind
        out: OclTensor = Tensor.__new__(kind, made)  # type: ignore[assignment, unused-ignore]
        registered.add(out)
        if made.requires_grad:
            out.retain_grad()
            out.__dict__["_context"] = TapeBackwardContext(out, given)
        return out

    # Creation and memory.

    @staticmethod
    def empty(shape: Any, requires_grad: bool = False) -> "OclTensor":
        """Creates a tensor whose elements will be written later. They are zeros, so that runs are reproducible."""
        return OclTensor.zeros(shape, requires_grad)

    @staticmethod
    def zeros(shape: Any, requires_grad: bool = False) -> "OclTensor":
        """Creates a tensor of zeros."""
        return OclTensor(_zeros(*([shape] if isinstance(shape, int) else shape)), requires_grad)

    @staticmethod
    def no_grad() -> Any:
        """Turns recording off: ``with OclTensor.no_grad():``."""
        return NoGradContext()

    @property
    def _enable_grad(self) -> bool:
        return is_recording()

    @property  # type: ignore[override, unused-ignore]
    def data(self) -> GPUBuffer:
        """The tensor's memory as a buffer."""
        buffer: Optional[GPUBuffer] = self.__dict__.get("_data")
        if buffer is None:
            buffer = self.__dict__["_data"] = GPUBuffer(self.nbytes, "tensor", _tensor=Tensor(Tensor.detach(self)))
        return buffer

    @data.setter
    def data(self, buffer: GPUBuffer) -> None:
        needs = self.requires_grad
        self._become(buffer._floats(self.shape))
        self.__dict__.update(_data=buffer, _context=None)
        self.requires_grad = needs

    @property
    def numel(self) -> int:  # type: ignore[override, unused-ignore]
        """Number of elements."""
        return self.size

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return self.size * self.itemsize

    def to_host(self) -> Any:
        """Returns a NumPy array. Waits for the device."""
        return Tensor.detach(self).numpy()

    def _sharing(self, made: "OclTensor") -> "OclTensor":
        """Gives a tensor over the same memory the same buffer."""
        if made._place == self._place and made.is_contiguous() and made.size == self.size:
            made.__dict__["_data"] = self.data
        return made

    def detach(self) -> "OclTensor":
        """Returns a tensor that shares the memory, off the tape."""
        made: OclTensor = Tensor.detach(self)  # type: ignore[assignment]
        return self._sharing(made)

    def clone(self) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Returns an independent tensor with a copy of the elements and of the gradient. No gradient flows from it to this tensor."""
        with _no_grad():
            out: OclTensor = Tensor.clone(self)  # type: ignore[assignment]
            grad = None if self.grad is None else Tensor.clone(self.grad)
        if self.requires_grad:
            out.requires_grad = True
            out.grad = grad
        return out

    def _own_attributes(self) -> Dict[str, Any]:
        """Returns the attributes that a program has set."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_data", "_context", "_buffer")}

    def __reduce__(self) -> Tuple[Any, ...]:
        return _unpickled, (type(self), Tensor.__reduce__(self)[1]), self._own_attributes()

    def __deepcopy__(self, memo: Any) -> "OclTensor":
        with _no_grad():
            out: OclTensor = Tensor.__new__(type(self), Tensor.clone(Tensor.detach(self)))  # type: ignore[assignment, unused-ignore]
        registered.add(out)
        memo[id(self)] = out
        out.requires_grad = self.requires_grad
        out.__dict__.update({n: copy.deepcopy(v, memo) for n, v in self._own_attributes().items()})
        return out

    def free_memory(self) -> None:
        """Frees the memory of elements and gradient. Later uses raise an error."""
        if self.grad is not None:
            free_memory(self.grad)
            self.grad = None
        self.__dict__["_context"] = None
        self.data.free()

    # Gradients.

    @property
    def _ctx(self) -> Optional[FunctionContext]:
        """The context of the operation that made the tensor. Assigning one makes the tensor the result of the context's operation;
        ``None`` makes it a leaf.
        """
        context: Optional[FunctionContext] = self.__dict__.get("_context")
        return context

    @_ctx.setter
    def _ctx(self, context: Optional[FunctionContext]) -> None:
        if context is not None:
            self._attach(context, True)
        elif self._ctx is not None:
            needs = self.requires_grad
            self._become(Tensor(Tensor.detach(self)))
            self.__dict__["_context"] = None
            self.requires_grad = needs

    def _attach(self, context: FunctionContext, keep: bool) -> None:
        attach(self, context, keep)
        self.__dict__["_context"] = context

    @property
    def _grad_buffer(self) -> Optional[GPUBuffer]:
        """The gradient's memory as a buffer, or ``None``."""
        grad = self.grad
        if grad is None:
            return None
        buffer: Optional[GPUBuffer] = self.__dict__.get("_buffer")
        if buffer is None or not buffer._allocated or buffer._tensor._place != grad._place:
            buffer = self.__dict__["_buffer"] = GPUBuffer(grad.size * grad.itemsize, "gradient", _tensor=Tensor(grad))
        return buffer

    @_grad_buffer.setter
    def _grad_buffer(self, buffer: Optional[GPUBuffer]) -> None:
        self.grad = None if buffer is None else buffer._floats(self.shape)

    def _ensure_grad_buffer(self) -> None:
        """Creates a gradient of zeros if the tensor needs a gradient and has none."""
        if self.requires_grad and self.grad is None:
            self.grad = _zeros_like(self.detach())

    def _accumulate_grad(self, incoming_grad: Any) -> None:
        """Adds to the gradient, in its memory. A tensor that does not need a gradient stays unchanged."""
        if self.requires_grad and self.size:
            add_gradient(self, incoming_grad)

    def _add_in_place(self, gradient: Tensor) -> None:
        self._ensure_grad_buffer()
        grad = self.grad
        if grad is not None and grad.is_contiguous():
            evaluate_into("x0 + x1", [grad, gradient.detach()], [], grad)
        elif grad is not None:
            self.grad = grad + gradient.detach()

    def get_grad_tensor(self) -> "Optional[OclTensor]":
        """Returns the gradient, zeros before the first backward, or ``None`` if the tensor does not need a gradient."""
        self._ensure_grad_buffer()
        return self.grad if self.requires_grad else None  # type: ignore[return-value]

    def zero_grad(self) -> None:
        """Sets the gradient to zero and keeps its buffer."""
        grad = self.grad
        if grad is None or not grad.size:
            return
        try:
            grad._set_all(0.0)
        except LaunchError:
            # A program may have freed the gradient's memory.
            self.grad = _zeros_like(self.detach())

    def backward(self, gradient: Any = None, *, grad: Any = None) -> None:  # type: ignore[override, unused-ignore]
        """Adds the gradients of this tensor to all leaves that it depends on, and to the results between them that still exist. ``gradient``, or
        ``grad``: the gradient of this tensor, a tensor or an array [default: 1, for a tensor with one element].
        """
        if gradient is not None and grad is not None:
            raise TypeError("backward: gradient and grad are both given, expected one of them")
        gradient = grad if gradient is None else gradient
        if gradient is None:
            if self.size != 1:
                raise ShapeError(f"backward: the tensor has shape {tuple(self.shape)}, expected one element; pass its gradient")
            gradient = _ones_like(self.detach())
        elif not isinstance(gradient, Tensor):
            gradient = _tensor(np.asarray(gradient, dtype=FP_TYPE), device=self.device)
        if gradient.size == 1 and self.size == 1:
            gradient = gradient.reshape(tuple(self.shape))
        self._backward_in_place(gradient.detach())

    # Operations with contexts.

    def matmul(self, other: Any) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Multiplies (M, K) (K, N), (B, M, K) (K, N) or (B, M, K) (B, K, N)."""
        other = _operand(other)
        product: Callable[[], Any] = lambda: Tensor.__matmul__(self, other)
        if not isinstance(other, Tensor):
            raise TypeError(f"matmul: got {type(other).__name__}, expected a tensor")
        forms = (self.ndim, other.ndim)
        if forms in ((2, 2), (3, 2)):
            return recorded(product, contexts.MatMulBackwardContext, self, other)  # type: ignore[no-any-return]
        if forms == (3, 3) and self.shape[0] == other.shape[0]:
            return recorded(product, contexts.MatMulBatchedBackwardContext, self, other)  # type: ignore[no-any-return]
        return product()  # type: ignore[no-any-return]

    def add(self, other: Any) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Adds a tensor, which may be broadcast, or a number."""
        other = _operand(other)
        total: Callable[[], Any] = lambda: Tensor.__add__(self, other)
        if not isinstance(other, Tensor) and not isinstance(other, (int, float, np.number)):
            raise TypeError(f"add: got {type(other).__name__}, expected a tensor or a number")
        if not isinstance(other, Tensor):
            return recorded(total, contexts.AddBackwardContext, self)  # type: ignore[no-any-return]
        if not other.requires_grad and self.ndim == 3 and tuple(other.shape) == tuple(self.shape[1:]):
            return recorded(total, contexts.AddBroadcastPEBackwardContext, self, other)  # type: ignore[no-any-return]
        return recorded(total, contexts.AddBackwardContext, self, other)  # type: ignore[no-any-return]

    def mul(self, other: Any) -> "OclTensor":
        """Multiplies elementwise by a tensor, which may be broadcast, or by a number."""
        other = _operand(other)
        if not isinstance(other, Tensor):
            return self.mul_scalar(other)
        return recorded(lambda: Tensor.__mul__(self, other), contexts.MulBackwardContext, self, other)  # type: ignore[no-any-return]

    def mul_scalar(self, scalar: float) -> "OclTensor":
        """Multiplies by a number."""
        return recorded(lambda: Tensor.__mul__(self, float(scalar)), contexts.ScalarMulBackwardContext, self, scalar=float(scalar))  # type: ignore[no-any-return]

    def div_scalar(self, scalar: float) -> "OclTensor":
        """Divides by a number, as a product with its reciprocal."""
        return self.mul_scalar(1.0 / float(scalar))

    def gelu(self) -> "OclTensor":
        """Computes ``x · Φ(x)``."""
        return recorded(lambda: ops.gelu(self), contexts.GeluBackwardContext, self)  # type: ignore[no-any-return]

    def softmax(self, dim: int = -1) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Computes the softmax over an axis."""
        return recorded(lambda: ops.softmax(self, dim), contexts.SoftmaxBackwardContext, self, dim=dim, of_result=True)  # type: ignore[no-any-return]

    def layer_norm(self, eps: float = 1e-5) -> "OclTensor":  # type: ignore[override]
        """Normalizes rows to mean 0 and variance 1."""

        def normed() -> Any:
            n = self.shape[-1]
            return ops.layer_norm(self, _zeros(n, device=self.device) + 1.0, _zeros(n, device=self.device), float(eps))

        return recorded(normed, contexts.LayerNormBackwardContextRevised, self, eps=float(eps))  # type: ignore[no-any-return]

    def transpose(self, dim0: int = -2, dim1: int = -1) -> "OclTensor":
        """Swaps two axes. The result has its own memory."""
        n = self.ndim
        swapped: Callable[[], Any] = lambda: Tensor.clone(ops.transpose(self, dim0, dim1))
        axes = {dim0 % n, dim1 % n} if n and all(-n <= d < n for d in (dim0, dim1)) else set()
        if n == 2 and axes == {0, 1}:
            return recorded(swapped, contexts.TransposeBackwardContext, self)  # type: ignore[no-any-return]
        if n == 4 and axes == {1, 2}:
            return recorded(swapped, contexts.Transpose12BatchedBackwardContext, self)  # type: ignore[no-any-return]
        if axes == {n - 2, n - 1}:
            return recorded(swapped, contexts.BatchedTransposeLastTwoBackwardContext, self)  # type: ignore[no-any-return]
        return recorded(swapped, contexts.TransposeCPUFallbackBackwardContext, self, dim0=dim0, dim1=dim1)  # type: ignore[no-any-return]

    @property
    def T(self) -> "OclTensor":
        """The last two axes swapped; a tensor with fewer axes is returned unchanged."""
        return self.transpose(-2, -1) if self.ndim > 1 else self

    def reshape(self, *shape: Any) -> "OclTensor":
        """Returns the same elements in another shape. They share the buffer."""
        return self._sharing(recorded(lambda: Tensor.reshape(self, *shape), contexts.ReshapeBackwardContext, self))

    def __add__(self, other: Any) -> "OclTensor":
        return self.add(other)

    def __radd__(self, other: Any) -> "OclTensor":
        return self.add(other)

    def __mul__(self, other: Any) -> "OclTensor":
        return self.mul(other)

    def __rmul__(self, other: Any) -> "OclTensor":
        return self.mul(other)

    def __sub__(self, other: Any) -> "OclTensor":
        return Tensor.__sub__(self, _operand(other))  # type: ignore[return-value]

    def __rsub__(self, other: Any) -> "OclTensor":
        return Tensor.__rsub__(self, _operand(other))  # type: ignore[return-value]

    def __truediv__(self, other: Any) -> "OclTensor":
        return Tensor.__truediv__(self, _operand(other))  # type: ignore[return-value]

    def __rtruediv__(self, other: Any) -> "OclTensor":
        return Tensor.__rtruediv__(self, _operand(other))  # type: ignore[return-value]

    def __matmul__(self, other: Any) -> "OclTensor":
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> "OclTensor":
        return OclTensor(other).matmul(self)


class Parameter(OclTensor):
    """A tensor that is trained. Results of operations on it are ``OclTensor``."""

    def __init__(self, data: Any = None, requires_grad: bool = True, **more: Any) -> None:
        super().__init__(data, requires_grad, **more)

    @classmethod
    def _kept_class(cls) -> Type[OclTensor]:
        return OclTensor


__all__ = ["OclTensor", "Parameter", "free_placeholders", "recorded"]
