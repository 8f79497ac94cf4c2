"""Sequences of different lengths in one tensor."""

from __future__ import annotations

from typing import Any, List, Sequence, Union

from ... import functional as F
from ... import ops
from ..._netcl import Tensor
from ...errors import UnsupportedError


def pad_sequence(sequences: Union[Tensor, Sequence[Tensor]], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right") -> Tensor:
    """Stacks sequences (T, ..) padded to the longest: (T, N, ..), or (N, T, ..) if ``batch_first``."""
    if padding_side not in ("left", "right"):
        raise ValueError(f"pad_sequence: padding_side is {padding_side!r}, expected 'left' or 'right'")
    listed = list(sequences)
    longest = max(s.shape[0] for s in listed)
    rows = []
    for s in listed:
        gap = longest - s.shape[0]
        amounts = [0, 0] * (s.ndim - 1) + ([gap, 0] if padding_side == "left" else [0, gap])
        rows.append(F.pad(s, amounts, "constant", padding_value))
    return ops.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> List[Tensor]:
    """Returns the sequences (T, ..) of a padded tensor."""
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [rows[i][: int(n)] for i, n in enumerate(sizes)]


def _refused(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name}: packed sequences are not supported; pass the padded tensor to the layer, take outputs at lengths - 1, and mask the others"
    )


def pack_padded_sequence(*args: Any, **kwargs: Any) -> Any:
    """Always raises an error: recurrent layers take padded tensors."""
    raise _refused("pack_padded_sequence")


def pad_packed_sequence(*args: Any, **kwargs: Any) -> Any:
    """Always raises an error: recurrent layers return padded tensors."""
    raise _refused("pad_packed_sequence")


def pack_sequence(*args: Any, **kwargs: Any) -> Any:
    """Always raises an error: recurrent layers take padded tensors."""
    raise _refused("pack_sequence")


def unpack_sequence(*args: Any, **kwargs: Any) -> Any:
    """Always raises an error: recurrent layers return padded tensors."""
    raise _refused("unpack_sequence")


__all__ = ["pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence", "unpack_sequence", "unpad_sequence"]
