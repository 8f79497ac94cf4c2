"""Elementwise functions. A table row has a name, the expression in OpenCL C, and for smooth functions the gradient. In the gradient, x0 is the input
and x1 the gradient of the result.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any, Callable, Dict, Optional, Union

from .. import ops
from .._dtype import DType, bool_, float32
from .._netcl import Tensor, evaluate, full, is_recording, record
from ..errors import UnsupportedError

Operand = Union[Tensor, int, float, bool]

KINDS: Dict[str, Callable[[DType], builtins.bool]] = {
    "float": lambda d: d.is_floating_point,
    "numeric": lambda d: d is not bool_,
    "integer": lambda d: d is not bool_ and not d.is_floating_point,
    "bits": lambda d: not d.is_floating_point,
    "bool": lambda d: d is bool_,
    "any": lambda d: True,
}


def check(name: str, kind: str, *arrays: Operand) -> None:
    """Rejects arrays of types that the function does not support."""
    for x in arrays:
        if isinstance(x, Tensor) and not KINDS[kind](x.dtype):
            raise TypeError(f"{name}: got an array of {x.dtype}, expected {kind} types")


def both(a: Operand, b: Operand) -> "tuple[Tensor, Tensor]":
    """Converts numbers to arrays of the other operand's type."""
    if isinstance(a, Tensor) and not isinstance(b, Tensor):
        b = full((), b, a.dtype, a.device)
    elif isinstance(b, Tensor) and not isinstance(a, Tensor):
        a = full((), a, b.dtype, b.device)
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    if a.dtype is not b.dtype:
        if not (a.dtype.is_floating_point and b.dtype.is_floating_point):
            raise TypeError(f"arrays of {a.dtype} and {b.dtype} do not have a common type; convert one by astype")
        a, b = a._to(None, float32), b._to(None, float32)
    return a, b


def apply(name: str, text: str, x: Tensor, dtype: Optional[DType] = None, grad: Optional[str] = None) -> Tensor:
    """Evaluates an expression of one array. It is recorded on the tape if it has a gradient."""
    y = evaluate(text, [x], x.dtype if dtype is None else dtype)
    if not (x.requires_grad and is_recording()) or dtype is bool_:
        return y
    if grad is None:
        raise UnsupportedError(f"{name} does not have a gradient; call it on x.detach()")
    kept = x.detach()
    return record(name, [x], [y], lambda dy: [evaluate(grad, [kept, dy], kept.dtype)])[0]


def _unary(name: str, doc: str, text: str, kind: str = "float", grad: Optional[str] = None, result: Optional[DType] = None) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        check(name, kind, x)
        return apply(name, text, x, result, grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


acos = _unary("acos", "Inverse cosine.", "acos(x0)", grad="-x1 / sqrt(1.0f - x0 * x0)")
acosh = _unary("acosh", "Inverse hyperbolic cosine.", "acosh(x0)", grad="x1 / sqrt(x0 * x0 - 1.0f)")
asin = _unary("asin", "Inverse sine.", "asin(x0)", grad="x1 / sqrt(1.0f - x0 * x0)")
asinh = _unary("asinh", "Inverse hyperbolic sine.", "asinh(x0)", grad="x1 / sqrt(x0 * x0 + 1.0f)")
atan = _unary("atan", "Inverse tangent.", "atan(x0)", grad="x1 / (x0 * x0 + 1.0f)")
atanh = _unary("atanh", "Inverse hyperbolic tangent.", "atanh(x0)", grad="x1 / (1.0f - x0 * x0)")
cosh = _unary("cosh", "Hyperbolic cosine.", "cosh(x0)", grad="x1 * sinh(x0)")
expm1 = _unary("expm1", "``e^x - 1``, accurate for small x.", "expm1(x0)", grad="x1 * exp(x0)")
log1p = _unary("log1p", "``log(1 + x)``, accurate for small x.", "log1p(x0)", grad="x1 / (1.0f + x0)")
log2 = _unary("log2", "Logarithm to base 2.", "log2(x0)", grad="x1 / (x0 * 0.693147181f)")
log10 = _unary("log10", "Logarithm to base 10.", "log10(x0)", grad="x1 / (x0 * 2.30258509f)")
reciprocal = _unary("reciprocal", "``1 / x``.", "1.0f / x0", grad="-x1 / (x0 * x0)")
sinh = _unary("sinh", "Hyperbolic sine.", "sinh(x0)", grad="x1 * cosh(x0)")
tan = _unary("tan", "Tangent.", "tan(x0)", grad="x1 * (1.0f + tan(x0) * tan(x0))")
signbit = _unary("signbit", "Whether the sign bit is set, also for zeros.", "as_int(x0) < 0", result=bool_)


def _float_op(name: str, doc: str, op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        check(name, "float", x)
        return op(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _float_op("exp", "``e^x``.", ops.exp)
log = _float_op("log", "Natural logarithm.", ops.log)
sqrt = _float_op("sqrt", "Square root.", ops.sqrt)
sin = _float_op("sin", "Sine.", ops.sin)
cos = _float_op("cos", "Cosine.", ops.cos)
tanh = _float_op("tanh", "Hyperbolic tangent.", ops.tanh)


def _whole(name: str, doc: str, text: str) -> Callable[[Tensor], Tensor]:
    """Defines a rounding function, which leaves integers unchanged."""

    def function(x: Tensor, /) -> Tensor:
        check(name, "numeric", x)
        return apply(name, text, x, grad="0.0f * x1") if x.dtype.is_floating_point else x

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


ceil = _whole("ceil", "Rounds up.", "ceil(x0)")
floor = _whole("floor", "Rounds down.", "floor(x0)")
round = _whole("round", "Rounds to the nearest integer, ties to even.", "rint(x0)")
trunc = _whole("trunc", "Rounds toward zero.", "trunc(x0)")


def abs(x: Tensor, /) -> Tensor:
    """``|x|``."""
    check("abs", "numeric", x)
    return builtins.abs(x)


def negative(x: Tensor, /) -> Tensor:
    """``-x``."""
    check("negative", "numeric", x)
    return -x


def positive(x: Tensor, /) -> Tensor:
    """Returns x itself."""
    check("positive", "numeric", x)
    return +x


def square(x: Tensor, /) -> Tensor:
    """``x²``."""
    check("square", "numeric", x)
    return ops.square(x) if x.dtype.is_floating_point else x * x


def sign(x: Tensor, /) -> Tensor:
    """Returns -1, 0 or 1, and NaN for NaN."""
    check("sign", "numeric", x)
    if x.dtype.is_floating_point:
        return apply("sign", "x0 != x0 ? x0 : (float)((x0 > 0.0f) - (x0 < 0.0f))", x, grad="0.0f * x1")
    return evaluate("(x0 > 0) - (x0 < 0)", [x], x.dtype)


def _test(name: str, doc: str, text: str, of_integers: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        check(name, "numeric", x)
        return evaluate(text if x.dtype.is_floating_point else of_integers, [x], bool_)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


isfinite = _test("isfinite", "Whether elements are neither infinite nor NaN.", "fabs(x0) <= FLT_MAX", "1")
isinf = _test("isinf", "Whether elements are infinite.", "fabs(x0) > FLT_MAX", "0")
isnan = _test("isnan", "Whether elements are NaN.", "x0 != x0", "0")


def _operator(name: str, doc: str, kind: str, op: Callable[[Any, Any], Any]) -> Callable[[Operand, Operand], Tensor]:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        check(name, kind, x1, x2)
        if isinstance(x1, Tensor) and isinstance(x2, Tensor):
            x1, x2 = both(x1, x2)
        made = op(x1, x2)
        assert isinstance(made, Tensor)
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


add = _operator("add", "Sum.", "numeric", operator.add)
subtract = _operator("subtract", "Difference.", "numeric", operator.sub)
multiply = _operator("multiply", "Product.", "numeric", operator.mul)
divide = _operator("divide", "Quotient; float32 for integers.", "numeric", operator.truediv)
floor_divide = _operator("floor_divide", "Quotient rounded down.", "numeric", operator.floordiv)
remainder = _operator("remainder", "Remainder of floored division, with the sign of ``x2``.", "numeric", operator.mod)
pow = _operator("pow", "Power.", "numeric", operator.pow)
equal = _operator("equal", "Mask of equal elements.", "any", operator.eq)
not_equal = _operator("not_equal", "Mask of unequal elements.", "any", operator.ne)
less = _operator("less", "Mask of ``x1 < x2``.", "numeric", operator.lt)
less_equal = _operator("less_equal", "Mask of ``x1 <= x2``.", "numeric", operator.le)
greater = _operator("greater", "Mask of ``x1 > x2``.", "numeric", operator.gt)
greater_equal = _operator("greater_equal", "Mask of ``x1 >= x2``.", "numeric", operator.ge)
bitwise_and = _operator("bitwise_and", "Bitwise and.", "bits", operator.and_)
bitwise_or = _operator("bitwise_or", "Bitwise or.", "bits", operator.or_)
bitwise_xor = _operator("bitwise_xor", "Bitwise exclusive or.", "bits", operator.xor)
bitwise_left_shift = _operator("bitwise_left_shift", "Left shift.", "integer", operator.lshift)
bitwise_right_shift = _operator("bitwise_right_shift", "Arithmetic right shift.", "integer", operator.rshift)
logical_and = _operator("logical_and", "Logical and.", "bool", operator.and_)
logical_or = _operator("logical_or", "Logical or.", "bool", operator.or_)
logical_xor = _operator("logical_xor", "Logical exclusive or.", "bool", operator.xor)


def bitwise_invert(x: Tensor, /) -> Tensor:
    """Inverts all bits. A mask is negated."""
    check("bitwise_invert", "bits", x)
    return ~x


def logical_not(x: Tensor, /) -> Tensor:
    """Negates a mask."""
    check("logical_not", "bool", x)
    return ~x


def conj(x: Tensor, /) -> Tensor:
    """Returns x itself, because arrays are real."""
    check("conj", "numeric", x)
    return x


def real(x: Tensor, /) -> Tensor:
    """Returns x itself, because arrays are real."""
    check("real", "numeric", x)
    return x


def imag(x: Tensor, /) -> Tensor:
    """Returns zeros, because arrays are real."""
    check("imag", "numeric", x)
    return evaluate("0", [x], x.dtype)


def _binary(name: str, doc: str, text: str) -> Callable[[Operand, Operand], Tensor]:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        check(name, "float", x1, x2)
        a, b = both(x1, x2)
        if (a.requires_grad or b.requires_grad) and is_recording():
            raise UnsupportedError(f"{name} does not have a gradient; call it on x.detach()")
        return evaluate(text, [a, b], a.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


atan2 = _binary("atan2", "Angle of the point (x2, x1), the y coordinate first.", "atan2(x0, x1)")
copysign = _binary("copysign", "Magnitude of ``x1`` with the sign of ``x2``.", "copysign(x0, x1)")
hypot = _binary("hypot", "Square root of the sum of squares, without intermediate overflow.", "hypot(x0, x1)")
logaddexp = _binary(
    "logaddexp",
    "``log(e^x1 + e^x2)``.",
    "x0 == x1 ? x0 + 0.693147181f : x0 != x0 || x1 != x1 ? x0 + x1 : fmax(x0, x1) + log1p(exp(-fabs(x0 - x1)))",
)


def _extreme(name: str, doc: str) -> Callable[[Operand, Operand], Tensor]:
    op = getattr(ops, name)

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        check(name, "numeric", x1, x2)
        made: Tensor = op(*both(x1, x2))
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


maximum = _extreme("maximum", "Maximum, NaN if either is NaN.")
minimum = _extreme("minimum", "Minimum, NaN if either is NaN.")


def clip(x: Tensor, /, min: Optional[Operand] = None, max: Optional[Operand] = None) -> Tensor:
    """Limits elements to bounds: numbers, or arrays that are broadcast."""
    check("clip", "numeric", x, *(b for b in (min, max) if b is not None))
    for bound, choose in ((min, maximum), (max, minimum)):
        if bound is None:
            continue
        if isinstance(bound, Tensor):
            if bound.dtype is not x.dtype and x.dtype.is_floating_point != bound.dtype.is_floating_point:
                raise TypeError(f"clip: the array is {x.dtype}, but a bound is {bound.dtype}")
            x = choose(x, bound)
        elif x.dtype.is_floating_point:
            x = choose(x, float(bound))
        else:
            low, high = (0, 2**32 - 1) if x.dtype.name == "uint32" else (-(2**31), 2**31 - 1)
            x = choose(x, builtins.min(builtins.max(int(bound), low), high))
    return x


__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide",
    "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "not_equal", "positive", "pow",
    "real", "reciprocal", "remainder", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip
