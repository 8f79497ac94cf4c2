"""Text of tensors, with PyTorch's digits."""

from __future__ import annotations

import math
from html import escape
from typing import Any, Callable, Dict, List, Tuple

from ._host import host_values, nested
from ._netcl import Tensor

OPTIONS: Dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}
"""Settings of ``set_printoptions``."""


def set_printoptions(precision: Any = None, threshold: Any = None, edgeitems: Any = None, linewidth: Any = None, profile: Any = None, sci_mode: Any = None) -> None:
    """Sets digits after the decimal point, and the number of elements from which tensors are abbreviated. ``edgeitems`` are shown at each end of an
    axis, ``linewidth`` are the characters per line. ``sci_mode`` chooses exponents [default: by the range of the numbers].
    """
    profiles: Dict[Any, Tuple[int, float, int]] = {None: (4, 1000, 3), "default": (4, 1000, 3), "short": (2, 1000, 2), "full": (4, math.inf, 3)}
    if profile not in profiles:
        raise ValueError(f"set_printoptions: profile is {profile!r}, expected default, short or full")
    if profile is not None:
        OPTIONS.update(zip(("precision", "threshold", "edgeitems"), profiles[profile]), linewidth=80)
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    OPTIONS.update({key: value for key, value in given.items() if value is not None}, sci_mode=sci_mode)


def _chosen(x: Tensor, short: bool) -> Any:
    """Returns the elements that are shown as nested lists, with ``None`` for those left out."""
    edge = OPTIONS["edgeitems"]
    if x.ndim == 0:
        return x.item()
    n = x.shape[0]
    if short and n > 2 * edge:
        first, last = [_chosen(x[i], short) for i in range(edge)], [_chosen(x[i], short) for i in range(n - edge, n)]
        return [*first, None, *last]
    if x.ndim == 1 or not short:
        return nested(host_values(x), x.shape)
    return [_chosen(x[i], short) for i in range(n)]


def _flat(parts: Any, out: List[Any]) -> List[Any]:
    if isinstance(parts, list):
        for p in parts:
            _flat(p, out)
    elif parts is not None:
        out.append(parts)
    return out


def _format(values: List[Any], floating: bool) -> Tuple[Callable[[Any], str], int]:
    """Returns the function that formats an element, and its width."""
    if not floating:
        return str, max((len(str(v)) for v in values), default=0)
    digits, exponents = OPTIONS["precision"], OPTIONS["sci_mode"]
    sizes = [abs(v) for v in values if math.isfinite(v) and v]
    whole = all(v == math.ceil(v) for v in sizes)
    if exponents is None:
        wide = bool(sizes) and (max(sizes) / min(sizes) > 1000.0 or max(sizes) > 1.0e8)
        exponents = wide or bool(sizes) and not whole and min(sizes) < 1.0e-4

    def one(v: float) -> str:
        if exponents:
            return f"{v:.{digits}e}"
        if whole:
            return f"{v:.0f}" + ("." if math.isfinite(v) else "")
        return f"{v:.{digits}f}"

    # Other numbers do not widen the columns, as in PyTorch.
    return one, max((len(one(v)) for v in values if math.isfinite(v) and v), default=1)


def _shown(parts: Any, indent: int, one: Callable[[Any], str], width: int) -> str:
    if not isinstance(parts, list):
        return one(parts).rjust(width)
    if not any(isinstance(p, list) for p in parts):
        per_line = max(1, (OPTIONS["linewidth"] - indent) // (width + 2))
        words = [" ..." if p is None else one(p).rjust(width) for p in parts]
        lines = [words[i : i + per_line] for i in range(0, len(words), per_line)] or [[]]
        return "[" + (",\n" + " " * (indent + 1)).join(", ".join(line) for line in lines) + "]"
    depth, deepest = 0, next(p for p in parts if p is not None)
    while isinstance(deepest, list):
        depth, deepest = depth + 1, next((p for p in deepest if p is not None), None)
    between = "," + "\n" * depth + " " * (indent + 1)
    return "[" + between.join("..." if p is None else _shown(p, indent + 1, one, width) for p in parts) + "]"


def represent(self: Tensor) -> str:
    """Formats values, shape, dtype and device."""
    floating = self.dtype.is_floating_point
    parts = _chosen(self.detach(), self.numel() > OPTIONS["threshold"])
    one, width = _format(_flat(parts, []), floating)
    text = _shown(parts, len("tensor("), one, width if self.ndim else 0)
    grad = ", requires_grad=True" if self.requires_grad else ""
    return f"tensor({text}, shape={tuple(self.shape)}, dtype={self.dtype.name}, device='{self.device.name}'{grad})"


def html(self: Tensor) -> str:
    """Formats a matrix as an HTML table, and other tensors as text. Notebooks show it."""
    head = f"<p>tensor {escape(str(tuple(self.shape)))}, {self.dtype.name}, {escape(self.device.name)}</p>"
    if self.ndim not in (1, 2) or not self.numel():
        return f"<pre>{escape(represent(self))}</pre>"
    x = self.detach()
    parts = _chosen(x if x.ndim == 2 else x.reshape(1, -1), self.numel() > OPTIONS["threshold"])
    one, _ = _format(_flat(parts, []), x.dtype.is_floating_point)
    rows = []
    for row in parts:
        cells = ["…"] if row is None else ["…" if v is None else escape(one(v)) for v in row]
        rows.append("<tr>" + "".join(f'<td style="text-align:right">{c}</td>' for c in cells) + "</tr>")
    return f"{head}<table>{''.join(rows)}</table>"


__all__ = ["html", "represent", "set_printoptions"]
