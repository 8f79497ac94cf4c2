"""Elementwise functions from expressions in OpenCL C. Their gradients are the derivatives of the expressions."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..._kernel import Kernel, kernel
from ..._netcl import Tensor, is_recording
from ...autograd import Function
from ...errors import DTypeError, NetclError, ShapeError
from .expressions import derivative, parse, source


def _kernel(expr: str, names: Sequence[str], extra: Sequence[str] = ()) -> Kernel:
    """Builds a kernel that computes an expression of float32 tensors. It multiplies by the tensor ``extra``, if there is one."""
    every = [*names, *extra]
    places = ", ".join(f"__global const float *in_{name}" for name in every)
    values = ", ".join(f"{name} = in_{name}[i]" for name in every)
    factor = "".join(f"{name} * " for name in extra)
    text = f"__kernel void elementwise({places}, __global float *out, const uint n) {{\n  const uint i = get_global_id(0);\n"
    return kernel(f"{text}  if (i >= n) return;\n  const float {values};\n  out[i] = {factor}({expr});\n}}\n", items=lambda n: max(int(n), 1))


class Expression:
    """A function of float32 tensors with one shape."""

    def __init__(self, expr: str, names: Sequence[str]) -> None:
        self.expr, self.names = expr, tuple(names)
        self.tree: Any = None
        self._why: Optional[NetclError] = None
        try:
            self.tree = parse(expr, self.names)
        except NetclError as e:
            # The device's compiler may accept more than the parser, but a gradient needs the tree.
            self._why = e
        self._forward = _kernel(expr, self.names)
        self._backward: Dict[int, Kernel] = {}

    def derivative(self, i: int) -> str:
        """Returns the derivative by operand ``i`` in OpenCL C."""
        if self._why is not None:
            raise self._why
        return source(derivative(self.tree, self.names[i]))

    def gradient(self, i: int, dy: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """Returns the gradient of operand ``i``."""
        if i not in self._backward:
            self._backward[i] = _kernel(self.derivative(i), self.names, ["dy_"])
        made: Tensor = self._backward[i](*inputs, dy.contiguous(), n=dy.size)
        return made

    def _check(self, inputs: Sequence[Tensor]) -> None:
        if len(inputs) != len(self.names):
            raise ShapeError(f"elementwise {self.expr!r}: got {len(inputs)} tensors, expected {len(self.names)}: {', '.join(self.names)}")
        shapes = [tuple(x.shape) for x in inputs]
        if len(set(shapes)) > 1:
            raise ShapeError(f"elementwise {self.expr!r}: got shapes {', '.join(map(str, shapes))}, expected one shape")
        wrong = [x.dtype.name for x in inputs if x.dtype.name != "float32"]
        if wrong:
            raise DTypeError(f"elementwise {self.expr!r}: got {wrong[0]}, expected float32")

    def __call__(self, *inputs: Tensor, tape: Any = None, pool: Any = None) -> Tensor:
        self._check(inputs)
        if is_recording():
            # An expression without a derivative is refused here, not in the backward.
            for i, x in enumerate(inputs):
                if x.requires_grad:
                    self.derivative(i)
        made: Tensor = _Elementwise.apply(self, *inputs)
        return made


class _Elementwise(Function):
    @staticmethod
    def forward(ctx: Any, expression: Expression, *inputs: Tensor) -> Tensor:
        dense = [x.contiguous() for x in inputs]
        ctx.expression = expression
        ctx.save_for_backward(*dense)
        made: Tensor = expression._forward(*[x.detach() for x in dense], n=dense[0].size)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tuple[Optional[Tensor], ...]:
        inputs, out = ctx.saved_tensors, [None]  # type: Sequence[Tensor], List[Optional[Tensor]]
        for i, needed in enumerate(ctx.needs_input_grad[1:]):
            out.append(ctx.expression.gradient(i, grads[0], inputs) if needed else None)
        return tuple(out)


_made: Dict[Tuple[str, Tuple[str, ...]], Expression] = {}


def elementwise(expr: str, operands: Sequence[str] = ("a",)) -> Expression:
    """Builds a function of float32 tensors with one shape from an OpenCL C expression in ``operands``: ``elementwise("exp(-x * x)", ["x"])(t)``."""
    key = (expr, tuple(operands))
    if key not in _made:
        _made[key] = Expression(expr, key[1])
    return _made[key]


def elementwise_binary(expr: str) -> Callable[..., Tensor]:
    """Builds a function of two float32 tensors with one shape from an OpenCL C expression in ``a`` and ``b``: ``elementwise_binary("a * b + 1.0f")(x,
    y)``. Its gradient is the derivative of the expression.
    """
    return elementwise(expr, ("a", "b"))


__all__ = ["Expression", "elementwise", "elementwise_binary"]
