"""Optimizer, tokenizer and loss."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ... import ops
from ... import optim as _optim
from ..._create import tensor as _tensor
from .tensor import OclTensor, Parameter

PAD, UNK = "<pad>", "<unk>"


class AdamOptimizer:
    """Adam with decoupled weight decay. Parameters without a gradient are unchanged."""

    def __init__(
        self, parameters: Sequence[Parameter], lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        self.parameters = list(parameters)
        self._adam = _optim.AdamW(self.parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self._adam.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._adam.lr = lr

    def zero_grad(self) -> None:
        """Drops the gradients."""
        self._adam.zero_grad()

    def step(self) -> None:
        """Runs one step."""
        self._adam.step()

    def free_memory(self) -> None:
        """Frees the moments. No further step is possible."""
        del self._adam

    def state_dict(self) -> Dict[str, Any]:
        """Returns step number and moments as arrays by name."""
        state = self._adam.state_dict()
        out: Dict[str, Any] = {"lr": np.float64(state["lr"])}
        for name, dtype, shape, data in state["state"]:
            out[f"{dtype}:{name}"] = np.frombuffer(data, dtype=np.uint8).copy()
            out[f"shape:{name}"] = np.asarray(shape, dtype=np.int64)
        return out

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state that ``state_dict`` returned."""
        state = []
        for key, value in state_dict.items():
            kind, _, name = key.partition(":")
            if name and kind != "shape":
                state.append((name, kind, [int(n) for n in state_dict[f"shape:{name}"]], np.asarray(value, dtype=np.uint8).tobytes()))
        self._adam.load_state_dict({"lr": float(state_dict["lr"]), "state": state})


class TinyTokenizer:
    """A tokenizer with one id per character. 0 is padding, 1 is any unknown character."""

    def __init__(self, vocab: Optional[Mapping[str, int]] = None, inv_vocab: Optional[Mapping[int, str]] = None) -> None:
        self._vocab = {PAD: 0, UNK: 1} if vocab is None else dict(vocab)
        self._inverse = {int(i): c for c, i in self._vocab.items()} if inv_vocab is None else {int(i): c for i, c in inv_vocab.items()}

    @classmethod
    def of_text(cls, text: str) -> "TinyTokenizer":
        """Creates a tokenizer for the characters of a text."""
        return cls({PAD: 0, UNK: 1, **{c: i + 2 for i, c in enumerate(sorted(set(text)))}})

    def encode(self, text: str, max_len: Optional[int] = None) -> List[int]:
        """Converts text to ids, truncated or padded to ``max_len``."""
        ids = [self._vocab.get(c, self._vocab[UNK]) for c in text]
        return ids if max_len is None else ids[:max_len] + [self._vocab[PAD]] * (max_len - len(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Converts ids to text without padding."""
        return "".join(self._inverse.get(int(i), "?") for i in ids if int(i) != self._vocab[PAD])

    def get_vocab(self) -> Dict[str, int]:
        """Returns a copy of the map from characters to ids."""
        return dict(self._vocab)

    def get_inv_vocab(self) -> Dict[int, str]:
        """Returns a copy of the map from ids to characters."""
        return dict(self._inverse)


def cross_entropy_loss_and_backward(logits: OclTensor, target_ids: Any, padding_id: int = 0) -> float:
    """Computes the mean cross entropy of logits (.., V) and target ids, ignoring padding, and runs the backward. Returns 0 if all targets are
    padding.
    """
    targets = np.asarray(target_ids, dtype=np.int32)
    if not (targets != padding_id).any():
        return 0.0
    loss = ops.cross_entropy(logits, _tensor(targets, device=logits.device), ignore_index=padding_id)
    if loss.requires_grad:
        loss.backward()
    return float(loss.item())


__all__ = ["AdamOptimizer", "TinyTokenizer", "cross_entropy_loss_and_backward"]
