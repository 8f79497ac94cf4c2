"""Expressions in OpenCL C over float32 operands, as trees: parsing, derivatives, and source code.

Grammar: numbers, the operands, ``+ - * /``, comparisons, ``&& || !``, ``c ? x : y``, casts to ``float``, and OpenCL's functions of floats.
``derivative`` knows the functions in ``FUNCTIONS``. An expression may call others too; ``derivative`` refuses them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ...errors import FormatError, UnsupportedError

TOKEN = re.compile(r"\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)|([A-Za-z_]\w*)|(\|\||&&|[<>=!]=|[-+*/%<>!?:(),]))")
LEVELS: Tuple[Tuple[str, ...], ...] = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/"))
CONSTANTS = {"M_PI_F": 3.141592653589793, "M_E_F": 2.718281828459045, "M_LN2_F": 0.6931471805599453, "M_SQRT2_F": 1.4142135623730951, "M_SQRT1_2_F": 0.7071067811865476}


@dataclass(frozen=True)
class Node:
    """A node: ``number``, ``operand``, ``call``, ``choose`` (condition, then, else) or an operator, with its operands."""

    kind: str
    text: str = ""
    parts: Tuple["Node", ...] = ()


def number(value: float) -> Node:
    """Returns a constant."""
    return Node("number", f"{float(value)!r}f")


ZERO, ONE = number(0), number(1)


def _is(node: Node, value: float) -> bool:
    return node.kind == "number" and float(node.text.rstrip("fF")) == value


class _Parser:
    def __init__(self, text: str, operands: Sequence[str]) -> None:
        self.text, self.operands = text, operands
        self.tokens: List[Tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                raise FormatError(f"expression {text!r}: unexpected {text[at:].strip()[:12]!r}")
            self.tokens.append(("number", found[1]) if found[1] else ("name", found[2]) if found[2] else ("sign", found[3]))
            at = found.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: Optional[str] = None) -> Tuple[str, str]:
        if self.at >= len(self.tokens) or (expected is not None and self.peek() != expected):
            raise FormatError(f"expression {self.text!r}: found {self.peek() or 'the end'!r}, expected {expected or 'an operand'!r}")
        self.at += 1
        return self.tokens[self.at - 1]

    def whole(self) -> Node:
        made = self.choice()
        if self.peek():
            raise FormatError(f"expression {self.text!r}: unexpected {self.peek()!r}")
        return made

    def choice(self) -> Node:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take("?")
        yes = self.choice()
        self.take(":")
        return Node("choose", "?", (condition, yes, self.choice()))

    def binary(self, level: int) -> Node:
        if level == len(LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in LEVELS[level]:
            sign = self.take()[1]
            left = Node("operator", sign, (left, self.binary(level + 1)))
        return left

    def unary(self) -> Node:
        if self.peek() in ("-", "+", "!"):
            sign = self.take()[1]
            inner = self.unary()
            return inner if sign == "+" else Node("operator", sign, (inner,))
        if self.peek() == "(" and [t[1] for t in self.tokens[self.at + 1 : self.at + 3]] == ["float", ")"]:
            self.at += 3
            return self.unary()
        return self.atom()

    def atom(self) -> Node:
        if self.peek() == "(":
            self.take()
            inner = self.choice()
            self.take(")")
            return inner
        kind, text = self.take()
        if kind == "number":
            return Node("number", text)
        if kind == "sign":
            raise FormatError(f"expression {self.text!r}: unexpected {text!r}")
        if self.peek() == "(":
            return self.call(text)
        if text in self.operands:
            return Node("operand", text)
        if text in CONSTANTS:
            return number(CONSTANTS[text])
        raise FormatError(f"expression {self.text!r}: unknown name {text!r}; operands are {', '.join(self.operands)}")

    def call(self, name: str) -> Node:
        self.take("(")
        parts = [self.choice()]
        while self.peek() == ",":
            self.take()
            parts.append(self.choice())
        self.take(")")
        return Node("call", name, tuple(parts))


def parse(text: str, operands: Sequence[str] = ("a", "b")) -> Node:
    """Parses an expression. Raises ``FormatError`` that names the unexpected part."""
    return _Parser(text, operands).whole()


def source(node: Node) -> str:
    """Returns the expression as OpenCL C, with parentheses around every operator."""
    if node.kind in ("number", "operand"):
        return node.text
    parts = [source(p) for p in node.parts]
    if node.kind == "call":
        return f"{node.text}({', '.join(parts)})"
    if node.kind == "choose":
        return f"({parts[0]} ? {parts[1]} : {parts[2]})"
    return f"({node.text}{parts[0]})" if len(parts) == 1 else f"({parts[0]} {node.text} {parts[1]})"


def _add(x: Node, y: Node) -> Node:
    return y if _is(x, 0) else x if _is(y, 0) else Node("operator", "+", (x, y))


def _mul(x: Node, y: Node) -> Node:
    if _is(x, 0) or _is(y, 0):
        return ZERO
    return y if _is(x, 1) else x if _is(y, 1) else Node("operator", "*", (x, y))


def _div(x: Node, y: Node) -> Node:
    return ZERO if _is(x, 0) else Node("operator", "/", (x, y))


def _neg(x: Node) -> Node:
    return ZERO if _is(x, 0) else Node("operator", "-", (x,))


def _slope(text: str) -> Callable[[Tuple[Node, ...]], Tuple[Node, ...]]:
    """Returns the partial derivatives of a function of ``a``, ``b`` and ``c``, given as text separated by semicolons."""
    trees = [parse(part, ("a", "b", "c")) for part in text.split(";")]
    return lambda parts: tuple(_replaced(tree, dict(zip("abc", parts))) for tree in trees)


def _replaced(node: Node, given: Dict[str, Node]) -> Node:
    if node.kind == "operand":
        return given[node.text]
    return Node(node.kind, node.text, tuple(_replaced(p, given) for p in node.parts))


_LARGER = "a > b ? 1 : (a == b ? 0.5f : 0); b > a ? 1 : (a == b ? 0.5f : 0)"
_SMALLER = "a < b ? 1 : (a == b ? 0.5f : 0); b < a ? 1 : (a == b ? 0.5f : 0)"
_EXACT: Dict[str, str] = {
    "exp": "exp(a)", "exp2": "exp2(a) * 0.6931471805599453f", "expm1": "exp(a)", "log": "1 / a", "log2": "1.4426950408889634f / a",
    "log10": "0.4342944819032518f / a", "log1p": "1 / (1 + a)", "sqrt": "0.5f / sqrt(a)", "rsqrt": "-0.5f * rsqrt(a) / a", "cbrt": "1 / (3 * cbrt(a) * cbrt(a))",
    "sin": "cos(a)", "cos": "-sin(a)", "tan": "1 + tan(a) * tan(a)", "asin": "rsqrt(1 - a * a)", "acos": "-rsqrt(1 - a * a)", "atan": "1 / (1 + a * a)",
    "sinh": "cosh(a)", "cosh": "sinh(a)", "tanh": "1 - tanh(a) * tanh(a)", "asinh": "rsqrt(a * a + 1)", "acosh": "rsqrt(a * a - 1)", "atanh": "1 / (1 - a * a)",
    "erf": "1.1283791670955126f * exp(-a * a)", "fabs": "a > 0 ? 1 : (a < 0 ? -1 : 0)", "sign": "0", "floor": "0", "ceil": "0", "round": "0", "trunc": "0", "rint": "0",
    "step": "0; 0", "fmax": _LARGER, "fmin": _SMALLER, "max": _LARGER, "min": _SMALLER, "fmod": "1; -trunc(a / b)",
    "pow": "b == 0 ? 0 : b * pow(a, b - 1); a > 0 ? pow(a, b) * log(a) : 0", "powr": "b * powr(a, b - 1); powr(a, b) * log(a)",
    "hypot": "a / hypot(a, b); b / hypot(a, b)", "atan2": "b / (a * a + b * b); -a / (a * a + b * b)",
    "fma": "b; a; 1", "mad": "b; a; 1", "clamp": "a > b && a < c ? 1 : 0; a < b ? 1 : 0; a > c ? 1 : 0", "mix": "1 - c; c; b - a",
}  # fmt: skip
FUNCTIONS = {name: _slope(text) for name, text in _EXACT.items()}
"""Partial derivatives of functions by name."""
FUNCTIONS.update({f"native_{name}": FUNCTIONS[name] for name in ("exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan", "powr")})


def derivative(node: Node, operand: str) -> Node:
    """Returns the derivative of an expression. At a kink, equal operands share the gradient, and ``fabs`` has 0."""
    if node.kind == "number":
        return ZERO
    if node.kind == "operand":
        return ONE if node.text == operand else ZERO
    if node.kind == "choose":
        return Node("choose", "?", (node.parts[0], derivative(node.parts[1], operand), derivative(node.parts[2], operand)))
    parts = [derivative(p, operand) for p in node.parts]
    if all(_is(p, 0) for p in parts):
        return ZERO
    if node.kind == "call":
        if node.text not in FUNCTIONS:
            raise UnsupportedError(f"elementwise expression: the derivative of {node.text} is not known; known are those of {', '.join(sorted(FUNCTIONS))}")
        slopes = FUNCTIONS[node.text](node.parts)
        if len(slopes) != len(parts):
            raise FormatError(f"elementwise expression: {node.text} has {len(parts)} arguments, expected {len(slopes)}")
        total = ZERO
        for slope, part in zip(slopes, parts):
            total = _add(total, _mul(slope, part))
        return total
    x, y = (*node.parts, ZERO)[:2]
    if len(parts) == 1:
        return _neg(parts[0]) if node.text == "-" else ZERO
    dx, dy = parts
    rules: Dict[str, Callable[[], Node]] = {
        "+": lambda: _add(dx, dy),
        "-": lambda: dx if _is(dy, 0) else _neg(dy) if _is(dx, 0) else Node("operator", "-", (dx, dy)),
        "*": lambda: _add(_mul(dx, y), _mul(x, dy)),
        "/": lambda: _add(_div(dx, y), _neg(_div(_mul(x, dy), _mul(y, y)))),
    }
    return rules.get(node.text, lambda: ZERO)()


__all__ = ["FUNCTIONS", "Node", "derivative", "number", "parse", "source"]
