"""Attributes, conversions and gradients of tensors with PyTorch's names."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

from .._dtype import DType, bfloat16, bool_, float16, float32, int32
from .._host import to_dtype
from .._netcl import Tensor, add_hook, default_device, devices, remove_hook
from .._state import state
from ..autograd import no_grad
from ..errors import UnsupportedError


class Count(int):
    """Number of elements, as ``x.size``. Called, it returns the shape or a size of it, as PyTorch's ``x.size()`` and ``x.size(0)``."""

    _shape: Tuple[int, ...]

    def __call__(self, dim: Optional[int] = None) -> Any:
        return self._shape if dim is None else self._shape[dim]


def size(self: Tensor) -> Count:
    """Number of elements. ``x.size()`` is the shape, and ``x.size(0)`` the size of axis 0."""
    made = Count(_count(self))
    made._shape = tuple(self.shape)
    return made


_count: Callable[[Tensor], int] = Tensor.size.__get__
_native_backward: Callable[..., None] = Tensor.backward


def stride(self: Tensor, dim: Optional[int] = None) -> Any:
    """Strides in elements, of all axes or of one."""
    return tuple(self.strides) if dim is None else self.strides[dim]


def data(self: Tensor) -> Tensor:
    """The same memory off the tape. Assigning to it is only possible with the tensor itself, as in ``x.data *= 2``."""
    return self.detach()


def set_data(self: Tensor, value: Any) -> None:
    """Refuses tensors of other memory."""
    if isinstance(value, Tensor) and value._place == self._place and tuple(value.shape) == tuple(self.shape) and value.dtype is self.dtype:
        return
    raise UnsupportedError("data: the memory of a tensor is not replaced; write x.copy_(values) within netcl.no_grad()")


def is_floating_point(self: Tensor) -> bool:
    """Returns whether the elements are floats."""
    return self.dtype.is_floating_point


def is_signed(self: Tensor) -> bool:
    """Returns whether the dtype has negative numbers."""
    return self.dtype.name not in ("bool", "uint32")


def is_same_size(self: Tensor, other: Tensor) -> bool:
    """Returns whether both have one shape."""
    return tuple(self.shape) == tuple(other.shape)


def _converted(dtype: DType, doc: str) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return self._to(None, dtype)

    method.__doc__ = doc
    return method


int_: Callable[[Tensor], Tensor] = _converted(int32, "Converts to int32.")
bool_of: Callable[[Tensor], Tensor] = _converted(bool_, "Converts to a mask of the elements that are not 0.")
bfloat16_of: Callable[[Tensor], Tensor] = _converted(bfloat16, "Converts to bfloat16.")
half_of: Callable[[Tensor], Tensor] = _converted(float16, "Converts to float16.")
float_of: Callable[[Tensor], Tensor] = _converted(float32, "Converts to float32.")


def long_of(self: Tensor) -> Tensor:
    """Converts to int32, netcl's only signed integers. A number that int32 cannot hold is an error; looking for one waits for the device."""
    if not state.capturing and self.size and (self.dtype.is_floating_point or self.dtype.name == "uint32"):
        wide = self.detach()._to(None, float32)
        if bool(((wide < -(2.0**31)) | (wide >= 2.0**31)).any().item()):
            raise OverflowError("long: the tensor has a number that int32 cannot hold; netcl does not have int64")
    return self._to(None, int32)


def refused(name: str, instead: str) -> Callable[..., Any]:
    """Returns a method that says what to write instead."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"{name} is not supported; {instead}")

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Refuses: {instead}."
    return method


REFUSED: Dict[str, str] = {
    "double": "netcl does not have float64; write x.float()",
    "short": "netcl does not have int16; write x.int()",
    "char": "netcl does not have int8; write x.int()",
    "byte": "netcl does not have uint8; write x.int() or x.bool()",
    "cuda": "write x.to(device) with a device of netcl.devices()",
    "data_ptr": "memory is on the device; write x._buffer() for the number of the buffer",
    "apply_": "write it with tensor operations, or with netcl.kernel",
    "map_": "write it with tensor operations, or with netcl.kernel",
    "resize_": "write x.reshape(…), or create a tensor",
    "set_": "write x.copy_(values)",
    "share_memory_": "write x.numpy() and share the array",
    "storage": "write x._bytes() for the elements",
    "untyped_storage": "write x._bytes() for the elements",
    "as_strided": "write it with slices, x[a:b:step], and transpose",
    "register_post_accumulate_grad_hook": "write x.register_hook(f), which runs before the gradient is collected",
    "to_sparse": "tensors are dense",
    "stft": "netcl does not have complex numbers; write numpy.fft",
    "istft": "netcl does not have complex numbers; write numpy.fft",
    "inverse": "write netcl.tensor(numpy.linalg.inv(x.numpy()))",
    "det": "write numpy.linalg.det(x.numpy())",
    "logdet": "write numpy.linalg.slogdet(x.numpy())",
    "slogdet": "write numpy.linalg.slogdet(x.numpy())",
    "svd": "write numpy.linalg.svd(x.numpy())",
    "qr": "write numpy.linalg.qr(x.numpy())",
    "cholesky": "write numpy.linalg.cholesky(x.numpy())",
    "pinverse": "write numpy.linalg.pinv(x.numpy())",
    "digamma": "write scipy.special.digamma(x.numpy())",
    "erfinv": "write scipy.special.erfinv(x.numpy())",
    "masked_scatter": "write torch.where, or x[mask] = values",
    "masked_scatter_": "write x[mask] = values",
    "put": "write y = x.clone(), and y.view(-1)[index] = values",
    "put_": "write x.view(-1)[index] = values",
    "index": "write x[indices]",
    "diagonal_scatter": "write y = x.clone(), and y.diagonal().copy_(values)",
    "select_scatter": "write y = x.clone(), and y.select(dim, index).copy_(values)",
    "slice_scatter": "write y = x.clone(), and y[start:end:step] = values",
    "as_strided_": "write it with slices, x[a:b:step], and transpose",
    "as_strided_scatter": "write y = x.clone(), and y[a:b:step] = values",
    "index_reduce": "write x.scatter_reduce(dim, index, source, reduce)",
    "index_reduce_": "write x.scatter_reduce_(dim, index, source, reduce)",
    "hardshrink": "write nn.functional.hardshrink(x, lambd)",
    "prelu": "write nn.functional.prelu(x, weight)",
    "nanmedian": "write x[~x.isnan()].median()",
    "nanquantile": "write x[~x.isnan()].quantile(q)",
    "renorm": "divide by x.norm(p, dim, True)",
    "renorm_": "divide by x.norm(p, dim, True)",
    "resize": "write x.reshape(…), or create a tensor",
    "resize_as": "write x.reshape_as(other), or create a tensor",
    "resize_as_": "write x.reshape_as(other), or create a tensor",
    "new_empty_strided": "write x.new_empty(shape)",
    "is_coalesced": "tensors are dense",
    "float_power_": "write x.pow_(exponent); float64 is not available",
    **dict.fromkeys(("cauchy_", "geometric_"), "draw with numpy.random, and write x.copy_(values)"),
    **dict.fromkeys(("angle", "imag"), "netcl does not have complex numbers; write numpy.angle or numpy.imag"),
    **dict.fromkeys(("gcd", "lcm"), "write numpy.gcd or numpy.lcm of x.numpy()"),
    **dict.fromkeys(("gcd_", "lcm_", "nextafter_", "digamma_", "erfinv_", "i0_", "igamma_", "igammac_", "mvlgamma_", "polygamma_"), "compute it with scipy.special or NumPy, and write x.copy_(values)"),
    **dict.fromkeys(("i0", "igamma", "igammac", "mvlgamma", "polygamma"), "compute it with scipy.special on x.numpy()"),
    **dict.fromkeys(("cholesky_inverse", "cholesky_solve", "corrcoef", "cov", "frexp", "histogram", "lstsq", "lu", "lu_solve", "matrix_exp", "nextafter", "triangular_solve"), "compute it with NumPy or SciPy on x.numpy()"),
}
"""Methods that say what to write instead."""


class GradientNode:
    """The operation that computed a tensor, for programs that ask whether there is one."""

    def __init__(self, shape: Any) -> None:
        self.shape = tuple(shape)

    def name(self) -> str:
        """Returns a name."""
        return "Backward"

    def __repr__(self) -> str:
        return f"<Backward of shape {self.shape}>"


def grad_fn(self: Tensor) -> Any:
    """The operation that computed the tensor, or ``None`` for a leaf."""
    return GradientNode(self.shape) if self.requires_grad and not self.is_leaf else None


def type_(self: Tensor, dtype: Any = None) -> Any:
    """Converts to a dtype. Without one, returns the name of PyTorch's class of tensors, such as ``torch.FloatTensor``."""
    if dtype is not None:
        return self._to(None, to_dtype(getattr(dtype, "dtype", dtype)))
    names = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int32": "Int", "uint32": "UInt32", "bool": "Bool"}
    return f"torch.{names[self.dtype.name]}Tensor"


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Converts to the dtype and device of ``other``."""
    return self._to(other.device, other.dtype)


def to(self: Tensor, *args: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False, copy: bool = False) -> Tensor:
    """Moves the tensor to another device, off the tape, or converts it to another dtype. With ``copy``, always returns a new tensor. ``"cpu"`` is
    the default device of netcl.
    """
    from .._methods import to as convert

    given = [known_device(a) if isinstance(a, str) else a for a in args if not isinstance(a, bool)]
    device = known_device(device)
    flags = [a for a in args if isinstance(a, bool)]
    made = convert(self, *given, device=device, dtype=dtype)
    return made.clone() if (copy or (len(flags) > 1 and flags[1])) and made._place == self._place else made


def known_device(device: Any) -> Any:
    """Returns netcl's default device for PyTorch's name ``"cpu"``, unless a device has that name."""
    return default_device() if device == "cpu" and "cpu" not in devices() else device


def clone(self: Tensor, *, memory_format: Any = None) -> Tensor:
    """Returns a copy with separate memory. Gradients flow through it."""
    if memory_format not in (None, "preserve_format", "contiguous_format"):
        raise UnsupportedError(f"clone: memory_format={memory_format!r} is not supported; tensors are stored with the last axis contiguous")
    return _native_clone(self)


def detach(input: Tensor) -> Tensor:
    """Returns the same elements, off the tape. Does not copy."""
    return input.detach()


_native_clone: Callable[[Tensor], Tensor] = Tensor.clone


def backward(
    self: Tensor,
    gradient: Optional[Tensor] = None,
    retain_graph: Optional[bool] = None,
    create_graph: bool = False,
    inputs: Any = None,
    *,
    grad: Optional[Tensor] = None,
) -> None:
    """Computes the gradients of this tensor for all leaves that it depends on, or for ``inputs`` only, and adds them to their gradients.
    ``gradient`` is the gradient of this tensor, also under the name ``grad``. It is required for more than one element.

    The backward frees what it saved. ``retain_graph=True`` is accepted, but a second backward through the same operations raises an error.
    """
    if create_graph:
        raise UnsupportedError("backward: create_graph=True is not supported; a backward is not recorded. Write the gradient as a formula of tensors")
    if inputs is None:
        _native_backward(self, gradient, grad=grad)
        return
    from ..autograd import grad as gradient_of

    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    found = gradient_of(self, wanted, gradient if grad is None else grad, allow_unused=True)
    with no_grad():
        for x, g in zip(wanted, found):
            if g is not None:
                x.grad = g if x.grad is None else x.grad + g


class Hook:
    """A registered hook of a tensor. ``remove`` unregisters it."""

    def __init__(self, tensor: Tensor, number: int) -> None:
        self._tensor, self._number = tensor, number

    def remove(self) -> None:
        """Removes the hook."""
        remove_hook(self._tensor, self._number)

    def __enter__(self) -> "Hook":
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


def register_hook(self: Tensor, hook: Callable[[Tensor], Optional[Tensor]]) -> Hook:
    """Registers a function that a backward calls with the gradient of this tensor. A tensor that it returns replaces the gradient."""
    if not self.requires_grad:
        raise RuntimeError("register_hook: the tensor does not require a gradient")
    number = add_hook(self, hook)
    assert number is not None
    return Hook(self, number)


def get_device(self: Tensor) -> int:
    """Returns -1, as PyTorch does for tensors that are not on CUDA devices."""
    return -1


def pin_memory(self: Tensor) -> Tensor:
    """Returns the tensor. Copies to a device use pinned memory by themselves."""
    return self


def sum_to_size(self: Tensor, *shape: Any) -> Tensor:
    """Sums over the axes that broadcasting from ``shape`` added or repeated."""
    from .. import ops
    from ._shape import ints

    return ops.sum_to(self, ints(shape))


def format_(self: Tensor, spec: str) -> str:
    """Formats the number of a tensor without axes; other tensors only without a format."""
    if self.ndim == 0:
        return format(self.item(), spec)
    if spec:
        raise TypeError(f"a tensor of shape {tuple(self.shape)} cannot be formatted with {spec!r}; write x.tolist(), or x.item() for one number")
    return str(self)
