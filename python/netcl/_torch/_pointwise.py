"""Functions of one or two elements with PyTorch's names: logarithms, trigonometry, rounding, tests, comparisons and arithmetic."""

from __future__ import annotations

import operator
from typing import Any, Callable, Optional

from .. import ops
from .._dtype import bool_
from .._netcl import Tensor, evaluate
from ..errors import UnsupportedError
from ._apply import Number, Operand, binary, expression, flat, floating, number, numeric, operation, promoted, unary

Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Operand, Operand], Tensor]

exp: Unary = operation("exp")
log: Unary = operation("log")
sqrt: Unary = operation("sqrt")
rsqrt: Unary = operation("rsqrt")
tanh: Unary = operation("tanh")
sigmoid: Unary = operation("sigmoid")
sin: Unary = operation("sin")
cos: Unary = operation("cos")
acos: Unary = unary("acos", "Inverse cosine.", "acos(x0)", "-x1 / sqrt(1.0f - x0 * x0)")
acosh: Unary = unary("acosh", "Inverse hyperbolic cosine.", "acosh(x0)", "x1 / sqrt(x0 * x0 - 1.0f)")
asin: Unary = unary("asin", "Inverse sine.", "asin(x0)", "x1 / sqrt(1.0f - x0 * x0)")
asinh: Unary = unary("asinh", "Inverse hyperbolic sine.", "asinh(x0)", "x1 / sqrt(x0 * x0 + 1.0f)")
atan: Unary = unary("atan", "Inverse tangent.", "atan(x0)", "x1 / (x0 * x0 + 1.0f)")
atanh: Unary = unary("atanh", "Inverse hyperbolic tangent.", "atanh(x0)", "x1 / (1.0f - x0 * x0)")
cosh: Unary = unary("cosh", "Hyperbolic cosine.", "cosh(x0)", "x1 * sinh(x0)")
sinh: Unary = unary("sinh", "Hyperbolic sine.", "sinh(x0)", "x1 * cosh(x0)")
tan: Unary = unary("tan", "Tangent.", "tan(x0)", "x1 * (1.0f + tan(x0) * tan(x0))")
expm1: Unary = unary("expm1", "``e^x - 1``, accurate for small x.", "expm1(x0)", "x1 * exp(x0)")
exp2: Unary = unary("exp2", "``2^x``.", "exp2(x0)", "x1 * exp2(x0) * 0.693147181f")
log1p: Unary = unary("log1p", "``log(1 + x)``, accurate for small x.", "log1p(x0)", "x1 / (1.0f + x0)")
log2: Unary = unary("log2", "Logarithm to base 2.", "log2(x0)", "x1 / (x0 * 0.693147181f)")
log10: Unary = unary("log10", "Logarithm to base 10.", "log10(x0)", "x1 / (x0 * 2.30258509f)")
reciprocal: Unary = unary("reciprocal", "``1 / x``.", "1.0f / x0", "-x1 / (x0 * x0)")
erf: Unary = unary("erf", "Error function.", "erf(x0)", "x1 * 1.12837917f * exp(-x0 * x0)")
erfc: Unary = unary("erfc", "``1 - erf(x)``.", "erfc(x0)", "x1 * -1.12837917f * exp(-x0 * x0)")
lgamma: Unary = unary("lgamma", "Logarithm of the absolute value of the gamma function, without a gradient.", "lgamma(x0)")
sinc: Unary = unary(
    "sinc",
    "``sin(πx) / (πx)``, and 1 at 0.",
    "x0 == 0.0f ? 1.0f : sin(3.14159265f * x0) / (3.14159265f * x0)",
    "x0 == 0.0f ? 0.0f : x1 * (cos(3.14159265f * x0) * 3.14159265f * x0 - sin(3.14159265f * x0)) / (3.14159265f * x0 * x0)",
)
deg2rad: Unary = unary("deg2rad", "Degrees to radians.", "x0 * 0.0174532925f", "x1 * 0.0174532925f")
rad2deg: Unary = unary("rad2deg", "Radians to degrees.", "x0 * 57.2957795f", "x1 * 57.2957795f")


def _named(name: str, doc: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        return function

    return change


def _whole(name: str, doc: str, text: str) -> Callable[[Tensor], Tensor]:
    """Defines a rounding function, which returns integers unchanged."""

    @_named(name, doc)
    def function(input: Tensor) -> Tensor:
        if input.dtype is bool_:
            raise UnsupportedError(f"{name}: a mask is not rounded; convert it with x.int()")
        if not input.dtype.is_floating_point:
            return input.clone()
        return expression(name, text, [input], input.dtype, [""])

    return function


ceil: Unary = _whole("ceil", "Rounds up.", "ceil(x0)")
floor: Unary = _whole("floor", "Rounds down.", "floor(x0)")
trunc: Unary = _whole("trunc", "Rounds toward zero.", "trunc(x0)")


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounds to the nearest number with ``decimals`` decimals, ties to even."""
    if input.dtype is bool_:
        raise UnsupportedError("round: a mask is not rounded; convert it with x.int()")
    if not input.dtype.is_floating_point:
        return input.clone()
    if decimals == 0:
        return expression("round", "rint(x0)", [input], input.dtype, [""])
    text = "rint(x0 * x1) / x1" if decimals > 0 else "rint(x0 / x1) * x1"
    return expression("round", text, [input, number(10.0 ** (decimals if decimals > 0 else -decimals), input)], input.dtype, [""])


def frac(input: Tensor) -> Tensor:
    """Returns the part after the decimal point, with the sign of x."""
    if not input.dtype.is_floating_point:
        raise UnsupportedError(f"frac: got a tensor of {input.dtype}, expected floats; write x.float()")
    return expression("frac", "x0 - trunc(x0)", [input], input.dtype, ["x1"])


def sign(input: Tensor) -> Tensor:
    """Returns -1, 0 or 1."""
    if input.dtype.is_floating_point:
        return expression("sign", "(float)((x0 > 0.0f) - (x0 < 0.0f))", [input], input.dtype, [""])
    return input.clone() if input.dtype is bool_ else evaluate("(x0 > 0) - (x0 < 0)", [input], input.dtype)


def abs(input: Tensor) -> Tensor:
    """Computes ``|x|``."""
    if input.dtype is bool_:
        raise UnsupportedError("abs: a tensor of bool does not have an absolute value; convert it with x.int()")
    made: Tensor = operator.abs(input)
    return made


def neg(input: Tensor) -> Tensor:
    """Computes ``-x``."""
    if input.dtype is bool_:
        raise UnsupportedError("neg: a mask does not have a negative; write ~x")
    return -input


def positive(input: Tensor) -> Tensor:
    """Returns x itself."""
    if input.dtype is bool_:
        raise UnsupportedError("positive: a mask does not have a sign; convert it with x.int()")
    return input


def square(input: Tensor) -> Tensor:
    """Computes ``x²``."""
    return ops.square(input) if input.dtype.is_floating_point else numeric(input) * numeric(input)


def relu(input: Tensor) -> Tensor:
    """Computes ``max(x, 0)``."""
    if input.dtype is bool_:
        raise UnsupportedError("relu: got a mask; convert it with x.int()")
    return ops.relu(input) if input.dtype.is_floating_point else clamp(input, 0)


def logit(input: Tensor, eps: Optional[float] = None) -> Tensor:
    """Computes ``log(x / (1 - x))``, of x limited to between ``eps`` and ``1 - eps`` if that is given."""
    x = floating(input)
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return expression("logit", "log(x0 / (1.0f - x0))", [x], x.dtype, ["x1 / (x0 * (1.0f - x0))"])


def nan_to_num(input: Tensor, nan: float = 0.0, posinf: Optional[float] = None, neginf: Optional[float] = None) -> Tensor:
    """Replaces NaN, infinity and -infinity, by default with 0 and the largest and smallest numbers of the dtype."""
    if not input.dtype.is_floating_point:
        return input.clone()
    most = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}[input.dtype.name]
    numbers = [number(v, input) for v in (nan, most if posinf is None else posinf, -most if neginf is None else neginf)]
    text = "x0 != x0 ? x1 : x0 == INFINITY ? x2 : x0 == -INFINITY ? x3 : x0"
    return expression("nan_to_num", text, [input, *numbers], input.dtype, ["fabs(x0) <= FLT_MAX ? x4 : 0.0f"])


def _test(name: str, doc: str, text: str, of_integers: str) -> Callable[[Tensor], Tensor]:
    @_named(name, doc)
    def function(input: Tensor) -> Tensor:
        return evaluate(text if input.dtype.is_floating_point else of_integers, [input.detach()], bool_)

    return function


isfinite: Unary = _test("isfinite", "Whether elements are neither infinite nor NaN.", "fabs(x0) <= FLT_MAX", "1")
isinf: Unary = _test("isinf", "Whether elements are infinite.", "fabs(x0) > FLT_MAX", "0")
isnan: Unary = _test("isnan", "Whether elements are NaN.", "x0 != x0", "0")
isposinf: Unary = _test("isposinf", "Whether elements are infinity.", "x0 == INFINITY", "0")
isneginf: Unary = _test("isneginf", "Whether elements are -infinity.", "x0 == -INFINITY", "0")
isreal: Unary = _test("isreal", "Whether elements are real numbers, as all are.", "1", "1")
signbit: Unary = _test("signbit", "Whether the sign bit is set, also for zeros.", "as_int(x0) < 0", "x0 < 0")


def _logical(name: str, doc: str, text: str) -> Callable[[Operand, Operand], Tensor]:
    @_named(name, doc)
    def function(input: Tensor, other: Tensor) -> Tensor:
        return evaluate(text, [input.detach(), other.detach()], bool_)

    return function


logical_and: Binary = _logical("logical_and", "Mask of elements that are nonzero in both.", "x0 != 0 && x1 != 0")
logical_or: Binary = _logical("logical_or", "Mask of elements that are nonzero in one of both.", "x0 != 0 || x1 != 0")
logical_xor: Binary = _logical("logical_xor", "Mask of elements that are nonzero in exactly one of both.", "(x0 != 0) != (x1 != 0)")


def logical_not(input: Tensor) -> Tensor:
    """Mask of elements that are zero."""
    return evaluate("x0 == 0", [input.detach()], bool_)


def _operator(name: str, doc: str, op: Callable[[Any, Any], Any]) -> Callable[[Operand, Operand], Tensor]:
    @_named(name, doc)
    def function(input: Operand, other: Operand) -> Tensor:
        made: Tensor = op(input, other)
        return made

    return function


mul: Binary = _operator("mul", "Product.", operator.mul)


def pow(input: Operand, exponent: Operand) -> Tensor:
    """Power."""
    made: Tensor = operator.pow(input, exponent)
    return made


floor_divide: Binary = _operator("floor_divide", "Quotient rounded down.", operator.floordiv)
remainder: Binary = _operator("remainder", "Remainder of floored division, with the sign of the divisor.", operator.mod)
eq: Binary = _operator("eq", "Mask of equal elements.", operator.eq)
ne: Binary = _operator("ne", "Mask of unequal elements.", operator.ne)
lt: Binary = _operator("lt", "Mask of ``input < other``.", operator.lt)
le: Binary = _operator("le", "Mask of ``input <= other``.", operator.le)
gt: Binary = _operator("gt", "Mask of ``input > other``.", operator.gt)
ge: Binary = _operator("ge", "Mask of ``input >= other``.", operator.ge)
bitwise_and: Binary = _operator("bitwise_and", "Bitwise and.", operator.and_)
bitwise_or: Binary = _operator("bitwise_or", "Bitwise or.", operator.or_)
bitwise_xor: Binary = _operator("bitwise_xor", "Bitwise exclusive or.", operator.xor)
bitwise_left_shift: Binary = _operator("bitwise_left_shift", "Left shift.", operator.lshift)
bitwise_right_shift: Binary = _operator("bitwise_right_shift", "Right shift.", operator.rshift)


def bitwise_not(input: Tensor) -> Tensor:
    """Bitwise not."""
    return ~input


def add(input: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """Computes ``input + alpha * other``."""
    made: Any = input + (other if alpha == 1 else other * alpha)
    return made  # type: ignore[no-any-return]


def sub(input: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """Computes ``input - alpha * other``."""
    if any(isinstance(x, Tensor) and x.dtype is bool_ for x in (input, other)):
        raise UnsupportedError("sub: masks do not have a difference; write a ^ b, or convert them with x.int()")
    made: Any = input - (other if alpha == 1 else other * alpha)
    return made  # type: ignore[no-any-return]


def rsub(input: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """Computes ``other - alpha * input``."""
    return sub(other, input, alpha=alpha)


def div(input: Operand, other: Operand, *, rounding_mode: Optional[str] = None) -> Tensor:
    """Computes ``input / other``. ``rounding_mode`` is ``None``, ``"floor"`` or ``"trunc"``."""
    if rounding_mode is None:
        made: Any = input / other
        return made  # type: ignore[no-any-return]
    if rounding_mode == "floor":
        a, b = promoted(input, other)
        return flat("div", [a, b], floor_divide(a.detach(), b.detach()))
    if rounding_mode != "trunc":
        raise RuntimeError(f"div: rounding_mode is {rounding_mode!r}, expected None, 'floor' or 'trunc'")
    a, b = promoted(input, other)
    if a.dtype.is_floating_point:
        return expression("div", "trunc(x0 / x1)", [a, b], a.dtype, ["", ""])
    return evaluate("x1 == 0 ? 0 : x0 / x1", [a, b], a.dtype)


def fmod(input: Operand, other: Operand) -> Tensor:
    """Remainder of truncated division, with the sign of the dividend."""
    a, b = promoted(input, other)
    if a.dtype.is_floating_point:
        return expression("fmod", "fmod(x0, x1)", [a, b], a.dtype, ["x2", "-x2 * trunc(x0 / x1)"])
    return evaluate("x1 == 0 ? 0 : x0 % x1", [a, b], a.dtype)


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of both, or NaN if one is NaN. Equal elements share the gradient."""
    return _extreme("maximum", ">", input, other)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of both, or NaN if one is NaN. Equal elements share the gradient."""
    return _extreme("minimum", "<", input, other)


def _extreme(name: str, sign: str, input: Tensor, other: Tensor) -> Tensor:
    a, b = promoted(input, other)
    if a.dtype.is_floating_point:
        made: Tensor = getattr(ops, name)(a, b)
        return made
    return evaluate(f"x0 {sign} x1 ? x0 : x1", [a, b], a.dtype)


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger of both, ignoring NaN."""
    return _ignoring_nan("fmax", ">", input, other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of both, ignoring NaN."""
    return _ignoring_nan("fmin", "<", input, other)


def _ignoring_nan(name: str, sign: str, input: Tensor, other: Tensor) -> Tensor:
    a, b = promoted(input, other)
    if not a.dtype.is_floating_point:
        return _extreme(name, sign, a, b)
    first = f"(x0 {sign}= x1 || x1 != x1)"
    return expression(name, f"{name}(x0, x1)", [a, b], a.dtype, [f"{first} ? x2 : 0.0f", f"{first} ? 0.0f : x2"])


atan2: Binary = binary("atan2", "Angle of the point (other, input).", "atan2(x0, x1)", ["x2 * x1 / (x0 * x0 + x1 * x1)", "-x2 * x0 / (x0 * x0 + x1 * x1)"])
hypot: Binary = binary("hypot", "``sqrt(input² + other²)``.", "hypot(x0, x1)", ["x2 * x0 / hypot(x0, x1)", "x2 * x1 / hypot(x0, x1)"])
copysign: Binary = binary(
    "copysign",
    "Absolute value of input with the sign of other.",
    "copysign(x0, x1)",
    ["x0 == 0.0f ? 0.0f : x2 * ((as_int(x0) < 0) == (as_int(x1) < 0) ? 1.0f : -1.0f)", ""],
)
logaddexp: Binary = binary(
    "logaddexp",
    "``log(e^input + e^other)``.",
    "x0 == x1 ? x0 + 0.693147181f : fmax(x0, x1) + log1p(exp(-fabs(x0 - x1)))",
    ["x2 / (1.0f + exp(x1 - x0))", "x2 / (1.0f + exp(x0 - x1))"],
)
logaddexp2: Binary = binary(
    "logaddexp2",
    "``log2(2^input + 2^other)``.",
    "x0 == x1 ? x0 + 1.0f : fmax(x0, x1) + log2(1.0f + exp2(-fabs(x0 - x1)))",
    ["x2 / (1.0f + exp2(x1 - x0))", "x2 / (1.0f + exp2(x0 - x1))"],
)
xlogy: Binary = binary(
    "xlogy",
    "``input * log(other)``, and 0 where input is 0.",
    "x1 != x1 ? NAN : x0 == 0.0f ? 0.0f : x0 * log(x1)",
    ["x0 == 0.0f && x1 <= 0.0f ? 0.0f : x2 * log(x1)", "x2 * x0 / x1"],
)
ldexp: Binary = binary("ldexp", "``input * 2^other``.", "x0 * exp2(x1)", ["x2 * exp2(x1)", "x2 * x0 * exp2(x1) * 0.693147181f"])


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """Returns 0 below 0, 1 above 0, and ``values`` at 0."""
    if input.dtype is not values.dtype:
        raise RuntimeError(f"heaviside: got {input.dtype} and {values.dtype}, expected one dtype")
    if not input.dtype.is_floating_point:
        return evaluate("x0 == 0 ? x1 : x0 > 0", [input, values], input.dtype)
    return expression("heaviside", "x0 != x0 ? NAN : x0 == 0.0f ? x1 : (float)(x0 > 0.0f)", [input, values], input.dtype)


def lerp(input: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Computes ``input + weight * (end - input)``."""
    return input + (end - input) * weight


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """Computes ``input + value * tensor1 * tensor2``."""
    product = tensor1 * tensor2
    return input + (product if value == 1 else product * value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """Computes ``input + value * tensor1 / tensor2``."""
    if not any(t.dtype.is_floating_point for t in (tensor1, tensor2)):
        raise RuntimeError("addcdiv: integers are not divided; convert them with x.float()")
    quotient = tensor1 / tensor2
    return input + (quotient if value == 1 else quotient * value)


def clamp(input: Tensor, min: Optional[Operand] = None, max: Optional[Operand] = None) -> Tensor:
    """Limits elements to between ``min`` and ``max``; ``max`` if they cross. The gradient is 0 outside and at the bounds."""
    if min is None and max is None:
        raise RuntimeError("clamp: expected min or max")
    bounds = [b for b in (min, max) if b is not None]
    x, *limits = promoted(input, *bounds)
    if not x.dtype.is_floating_point:
        low = "max(x0, x1)" if min is not None else "x0"
        return evaluate(low if max is None else f"min({low}, x{len(limits)})", [x, *limits], x.dtype)
    dy = f"x{len(limits) + 1}"
    low, high = "x1", f"x{len(limits)}"
    if max is None:
        return expression("clamp", f"x0 < {low} || {low} != {low} ? {low} : x0", [x, *limits], x.dtype, [f"x0 > {low} ? {dy} : 0.0f", f"x0 < {low} ? {dy} : 0.0f"])
    if min is None:
        return expression("clamp", f"x0 > {high} || {high} != {high} ? {high} : x0", [x, *limits], x.dtype, [f"x0 < {high} ? {dy} : 0.0f", f"x0 > {high} ? {dy} : 0.0f"])
    grads = ["x0 > x1 && x0 < x2 ? x3 : 0.0f", "x0 < x1 && x1 < x2 ? x3 : 0.0f", "x0 > x2 || x2 < x1 ? x3 : 0.0f"]
    text = "x0 != x0 ? x0 : x1 != x1 ? x1 : x2 != x2 ? x2 : fmin(fmax(x0, x1), x2)"
    return expression("clamp", text, [x, *limits], x.dtype, grads)


def clamp_min(input: Tensor, min: Operand) -> Tensor:
    """Limits elements to at least ``min``."""
    return clamp(input, min)


def clamp_max(input: Tensor, max: Operand) -> Tensor:
    """Limits elements to at most ``max``."""
    return clamp(input, None, max)


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Mask of elements with ``|input - other| <= atol + rtol * |other|``."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"isclose: got {input.dtype} and {other.dtype}, expected one dtype")
    numbers = [number(v, input) for v in (rtol, atol)]
    same = " || (x0 != x0 && x1 != x1)" if equal_nan else ""
    if not input.dtype.is_floating_point:
        return evaluate("x0 == x1 || fabs((float)x0 - (float)x1) <= x3 + x2 * fabs((float)x1)", [input, other, *numbers], bool_)
    return evaluate(f"x0 == x1 || (fabs(x0 - x1) <= x3 + fabs(x2 * x1) && fabs(x1) <= FLT_MAX){same}", [input.detach(), other.detach(), *numbers], bool_)


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Returns whether all elements are close: see ``isclose``."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


def equal(input: Tensor, other: Tensor) -> bool:
    """Returns whether both have one shape and equal elements."""
    return tuple(input.shape) == tuple(other.shape) and bool((input.detach() == other.detach()).all().item())


def is_nonzero(input: Tensor) -> bool:
    """Returns whether the only element is nonzero."""
    if input.numel() != 1:
        raise RuntimeError(f"is_nonzero: the tensor has {input.numel()} elements, expected 1")
    return bool(input.item())


def float_power(input: Operand, exponent: Operand) -> Tensor:
    """Refuses: write torch.pow(input.float(), exponent); float64 is not available."""
    raise UnsupportedError("float_power: netcl does not have float64; write torch.pow(input.float(), exponent)")

