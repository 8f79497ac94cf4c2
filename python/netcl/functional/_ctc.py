"""Connectionist temporal classification (Graves et al. 2006)."""

from __future__ import annotations

from typing import Any, List, Tuple

from .. import ops
from .._host import from_lists
from .._netcl import Tensor
from ..errors import ShapeError
from ..functions import where
from ._common import can_read, reduced, refuse

# A logarithm of a probability that counts as 0. Unlike -infinity, its gradient is not NaN.
NEVER = -1e30


def _numbers(given: Any) -> List[int]:
    return [int(v) for v in (given.reshape(-1).tolist() if isinstance(given, Tensor) else given)]


def _rows(targets: Tensor, lengths: List[int]) -> List[List[int]]:
    """Returns the labels of each text: targets (N, S), or all labels in one axis."""
    values = targets.tolist()
    if targets.ndim == 2:
        if targets.shape[0] != len(lengths) or max(lengths, default=0) > targets.shape[1]:
            raise ShapeError(f"ctc_loss: targets have shape {tuple(targets.shape)}, but the lengths are {lengths}")
        return [row[:n] for row, n in zip(values, lengths)]
    if targets.ndim != 1 or sum(lengths) != len(values):
        raise ShapeError(f"ctc_loss: targets have shape {tuple(targets.shape)}, but the lengths are {lengths}")
    rows, at = [], 0
    for n in lengths:
        rows.append(values[at : at + n])
        at += n
    return rows


def _paths(rows: List[List[int]], blank: int) -> Tuple[List[List[int]], List[List[float]]]:
    """Returns the labels with blanks between them, and 0 where a path may skip the blank before a label. Other places have ``NEVER``."""
    longest = 2 * max((len(row) for row in rows), default=0) + 1
    labels, skips = [], []
    for row in rows:
        path = [blank] + [v for label in row for v in (label, blank)]
        path += [blank] * (longest - len(path))
        labels.append(path)
        skips.append([0.0 if i > 1 and path[i] != path[i - 2] else NEVER for i in range(longest)])
    return labels, skips


def _shifted(x: Tensor, by: int) -> Tensor:
    """Moves the columns to the right."""
    size = x.shape[1]
    return ops.pad(x, (by, 0), NEVER)[:, :size]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Computes the negative log likelihood of texts with log probabilities (T, N, C) or (T, C), summed over all alignments. Targets are (N, S), or all
    labels in one axis. Targets and lengths are read on the host. The mean is that of the losses divided by the texts' lengths.
    """
    if not can_read():
        raise refuse("ctc_loss in a captured step", "it reads targets and lengths on the host; call it outside of nc.compile")
    alone = log_probs.ndim == 2
    logs = log_probs.unsqueeze(1) if alone else log_probs
    steps, counts = _numbers(input_lengths), _numbers(target_lengths)
    if logs.ndim != 3 or len(steps) != logs.shape[1] or len(counts) != logs.shape[1] or not 0 <= blank < logs.shape[2]:
        raise ShapeError(f"ctc_loss: log_probs {tuple(log_probs.shape)}, {len(steps)} and {len(counts)} lengths and blank {blank} do not match; expected (T, N, C)")
    if max(steps) > logs.shape[0] or min(steps) < 0 or min(counts) < 0:
        raise ValueError(f"ctc_loss: input lengths {steps} and target lengths {counts}, expected at most {logs.shape[0]} steps")
    rows = _rows(targets, counts)
    losses = _negative_logs(logs.float(), rows, steps, blank)._to(None, log_probs.dtype)
    impossible = losses > 1e29 if losses.dtype.name == "float32" else losses > 6e4
    losses = where(impossible, 0.0 if zero_infinity else float("inf"), losses)
    if reduction == "mean":
        return (losses / from_lists([float(max(n, 1)) for n in counts], "float32", losses.device)._to(None, losses.dtype)).mean()
    return reduced("ctc_loss", losses.reshape(()) if alone and reduction == "none" else losses, reduction)


def _negative_logs(logs: Tensor, rows: List[List[int]], steps: List[int], blank: int) -> Tensor:
    """Adds up the probabilities of all paths, step by step. Returns the negative logarithm of each text's sum."""
    labels, skips = _paths(rows, blank)
    n, longest = len(rows), len(labels[0])
    ids, may_skip = from_lists(labels, "int32", logs.device), from_lists(skips, "float32", logs.device)
    first = from_lists([[0.0 if i < min(2, 2 * len(row) + 1) else NEVER for i in range(longest)] for row in rows], "float32", logs.device)
    state = first + ops.gather(logs[0], ids, 1)
    start = from_lists([[0.0 if i == 0 else NEVER for i in range(longest)]] * n, "float32", logs.device)
    if min(steps) == 0:
        state = where(from_lists([[s == 0] for s in steps], "bool", logs.device), start, state)
    for t in range(1, max(steps)):
        ways = ops.stack([state, _shifted(state, 1), _shifted(state, 2) + may_skip], 0)
        following = ops.clamp(ops.logsumexp(ways, 0), NEVER, 1e30) + ops.gather(logs[t], ids, 1)
        active = [[t < s] for s in steps]
        state = following if all(a for (a,) in active) else where(from_lists(active, "bool", logs.device), following, state)
    ends = from_lists([[0.0 if i in (2 * len(row), 2 * len(row) - 1) else NEVER for i in range(longest)] for row in rows], "float32", logs.device)
    return -ops.logsumexp(state + ends, 1)


__all__ = ["ctc_loss"]
