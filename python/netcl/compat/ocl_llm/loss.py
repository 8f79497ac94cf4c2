"""The loss of a language model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ..._create import tensor as _tensor
from ..._create import zeros_like as _zeros_like
from ...errors import ShapeError
from .ids import valid_ids
from .tensor import OclTensor

IGNORED = -1
"""Id of a target that does not contribute."""


def cross_entropy_loss_and_backward(logits: OclTensor, target_ids: Any, padding_id: int = 0) -> float:
    """Computes the mean cross entropy of logits (.., V) and target ids (..), and runs the backward from the logits if they need a gradient. Padding and
    ids outside of [0, V) contribute nothing to loss and gradient. If no target is left, the loss is 0 and the gradient is zero.
    """
    if not isinstance(logits, OclTensor):
        raise TypeError(f"cross_entropy_loss_and_backward: logits are {type(logits).__name__}, expected OclTensor")
    targets = valid_ids(target_ids, logits.shape[-1])
    if targets.shape != tuple(logits.shape[:-1]):
        raise ShapeError(f"cross_entropy_loss_and_backward: targets have shape {targets.shape}, logits {tuple(logits.shape)}")
    targets[targets == padding_id] = IGNORED
    if not (targets != IGNORED).any():
        if logits.requires_grad:
            logits.backward(_zeros_like(logits.detach()))
        return 0.0
    loss = ops.cross_entropy(logits, _tensor(targets, device=logits.device), ignore_index=IGNORED)
    if loss.requires_grad:
        loss.backward()
    return float(loss.item())


__all__ = ["cross_entropy_loss_and_backward"]
