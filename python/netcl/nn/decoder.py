"""Decoders of every family, as the trainer has them: their kernels, their files, one's own loop."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .._create import asarray
from .._files import CODES, tensor_of
from .._netcl import DecoderModel, Tensor, families
from ..errors import FormatError
from .module import Module, Parameter

Path = Union[str, "os.PathLike[str]"]


class OwnedParameter(Parameter):
    """A parameter that a decoder in Rust has as well: both are one leaf of the tape, so it keeps its name, and whether it is trained was said by ``freeze``."""

    own_name: str

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "OwnedParameter":
        # Not detached, as other parameters are: gradients arrive at this very leaf.
        made: OwnedParameter = Tensor.__new__(cls, data)  # type: ignore[assignment, unused-ignore]
        return made


class Decoder(Module):
    """A decoder of a family by its ``model_type``, such as ``Decoder("llama", width=256, layers=4, heads=4, vocab=512, context=256)``: ids (B, T) → logits (B, T, V).

    ``loss(ids, targets)`` never has all logits in memory. Further sizes are ``kv_heads``, ``head_size``, ``mlp``, ``rope_theta``, ``tied`` and, for gpt2, ``bias``; what is not given is as
    the family has it. First values depend on ``seed`` alone, and are those of ``netcl train``. Parameters that match a pattern of ``freeze`` are not trained.
    ``dropout`` is for training; ``recompute`` is what the backward pass computes again instead of keeping it: none, gelu, norm or block.

    ``state_dict`` has the names and layouts of the family's files in the Hugging Face layout; ``named_parameters`` has what is trained, of which some are several of those
    packed together.
    """

    def __init__(
        self,
        family: str = "gpt2",
        *,
        width: int,
        layers: int,
        heads: int,
        vocab: int,
        context: int,
        dtype: Any = None,
        device: Any = None,
        seed: int = 0,
        freeze: Sequence[str] = (),
        dropout: float = 0.0,
        recompute: str = "none",
        **sizes: Any,
    ) -> None:
        given = {"width": width, "layers": layers, "heads": heads, "vocab": vocab, "context": context, **sizes}
        self._begin(DecoderModel(family, json.dumps(given), dtype, device, seed, list(freeze)), seed, dropout, recompute)

    @classmethod
    def from_pretrained(
        cls, folder: Path, *, dtype: Any = None, device: Any = None, freeze: Sequence[str] = (), dropout: float = 0.0, recompute: str = "none", seed: int = 0
    ) -> "Decoder":
        """A model from a folder in the Hugging Face layout, or of a run."""
        decoder = cls.__new__(cls)
        decoder._begin(DecoderModel.open(os.fspath(folder), dtype, device, list(freeze)), seed, dropout, recompute)
        return decoder

    @staticmethod
    def families() -> List[str]:
        """Names of the families."""
        return families()

    def _begin(self, model: DecoderModel, seed: int, dropout: float, recompute: str) -> None:
        super().__init__()
        self._model = model
        self.dropout, self.recompute, self.seed, self.passes = dropout, recompute, seed, 0
        for name, tensor in model.parameters():
            parameter = OwnedParameter(tensor)
            parameter.own_name = name
            self._tables()[0][name] = parameter

    def _mode(self) -> Tuple[float, int, int, str]:
        dropout = self.dropout if self.training else 0.0
        if dropout:
            from .._state import state

            if state.capturing:
                raise FormatError("Decoder: dropout draws random numbers, which would be the same in every replay of a captured step; dropout=0 or no capture")
            self.passes += 1
        return dropout, self.seed, self.passes, self.recompute

    def forward(self, ids: Any, targets: Any = None) -> Tensor:
        """Logits (B, T, V), or with ``targets`` the loss."""
        ids = self._ids(ids)
        return self._model.forward(ids, *self._mode()) if targets is None else self.loss(ids, targets)

    def loss(self, ids: Any, targets: Any) -> Tensor:
        """Mean cross entropy of ``targets`` (B, T) behind ``ids`` (B, T), in nats a token."""
        return self._model.loss(self._ids(ids), self._ids(targets), *self._mode())

    def features(self, ids: Any) -> Tensor:
        """Hidden states behind the last norm (B, T, C)."""
        return self._model.features(self._ids(ids), *self._mode())

    def _ids(self, ids: Any) -> Tensor:
        return ids if isinstance(ids, Tensor) else asarray(ids, dtype="int32", device=self.device)

    @property
    def device(self) -> Any:
        """The device of its parameters."""
        return next(iter(self._tables()[0].values())).device

    @property
    def family(self) -> str:
        """The family, by its ``model_type``."""
        return self._model.family

    @property
    def context(self) -> int:
        """Tokens that it can look at."""
        return self._model.sizes()[0]

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.sizes()[1]

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self._model.sizes()[2]

    @property
    def config(self) -> Dict[str, Any]:
        """The content of its ``config.json``."""
        made: Dict[str, Any] = json.loads(self._model.config_json())
        return made

    def flops(self, tokens: int, length: int) -> float:
        """Floating-point operations of a training step on ``tokens`` tokens in texts of ``length`` tokens."""
        return self._model.flops(tokens, length)

    def state_dict(self) -> "OrderedDict[str, Tensor]":
        """A copy of the weights under the names of the family's files."""
        return OrderedDict((name, tensor_of(name, dtype, shape, data, self.device)) for name, dtype, shape, data in self._model.tensors())

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Tuple[List[str], List[str]]:
        """Takes weights over by those names; all of them have to be there, and nothing is changed where one does not fit."""
        if not strict:
            raise FormatError("Decoder.load_state_dict: strict=False is not there: take state_dict() and change what is to be another")
        tensors = [(name, asarray(value)) for name, value in state.items()]
        self._model.load_tensors([(name, CODES[t.dtype.name], list(t.shape), t._bytes()) for name, t in tensors])
        return [], []

    def save_pretrained(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, a folder in the Hugging Face layout."""
        from .._files import save

        os.makedirs(folder, exist_ok=True)
        save(self.state_dict(), os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(self.config, f, indent=2)

    def to(self, *args: Any, device: Any = None, dtype: Any = None) -> "Decoder":
        """A decoder stays where it was made."""
        raise FormatError("Decoder.to: a decoder stays where it was made: make or open it there, with device=… and dtype=…")

    def requires_grad_(self, requires_grad: bool = True) -> "Decoder":
        """What is trained is said when a decoder is made."""
        if all(p.requires_grad == requires_grad for p in self.parameters()):
            return self
        raise FormatError("Decoder.requires_grad_: what is trained is said when a decoder is made, by freeze=[patterns of names]")

    def extra_repr(self) -> str:
        """Family and sizes."""
        return f"{self.family!r}, width={self.width}, vocab={self.vocab}, context={self.context}"


__all__ = ["Decoder", "OwnedParameter"]
