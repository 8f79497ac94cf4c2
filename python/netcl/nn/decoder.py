"""Decoders of every family, with the trainer's kernels and files, for custom training loops."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .._create import asarray
from .._files import CODES, tensor_of
from .._netcl import DecoderModel, Tensor, families
from ..errors import FormatError
from .module import Module
from .parameter import Parameter
from .state import IncompatibleKeys

Path = Union[str, "os.PathLike[str]"]


class OwnedParameter(Parameter):
    """A parameter shared with a decoder in Rust. Both are the same leaf of the tape, so it keeps its name. ``freeze`` decides whether it is trained.
    """

    own_name: str

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "OwnedParameter":
        # Unlike other parameters, it is not detached, because this leaf receives the gradients.
        made: OwnedParameter = Tensor.__new__(cls, data)  # type: ignore[assignment, unused-ignore]
        return made


class Decoder(Module):
    """A decoder of a family, which is a ``model_type``: ``Decoder("llama", width=256, layers=4, heads=4, vocab=512, context=256)``. Computes logits
    (B, T, V) from ids (B, T).

    ``loss(ids, targets)`` never stores all logits at once. Further sizes are ``kv_heads``, ``head_size``, ``mlp``, ``rope_theta``, ``tied`` and,
    for gpt2, ``bias`` [default: the family's]. Initial values depend only on ``seed``, and are those of ``netcl train``. Parameters that match a
    pattern of ``freeze`` are not trained. ``dropout`` applies in training. ``recompute`` selects what the backward recomputes instead of storing
    it: none, gelu, norm or block.

    ``state_dict`` has the names and layouts of the family's files in the Hugging Face layout. ``named_parameters`` has the trained parameters,
    some of which pack several of those.
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
        """Opens a model from a folder in the Hugging Face layout, or from a run folder."""
        decoder = cls.__new__(cls)
        decoder._begin(DecoderModel.open(os.fspath(folder), dtype, device, list(freeze)), seed, dropout, recompute)
        return decoder

    @staticmethod
    def families() -> List[str]:
        """Returns the names of the families."""
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
                raise FormatError("Decoder: dropout draws random numbers, which would be the same in every replay of a captured step; use dropout=0 or no capture")
            self.passes += 1
        return dropout, self.seed, self.passes, self.recompute

    def forward(self, ids: Any, targets: Any = None) -> Tensor:
        """Computes logits (B, T, V), or with ``targets`` the loss."""
        ids = self._ids(ids)
        return self._model.forward(ids, *self._mode()) if targets is None else self.loss(ids, targets)

    def loss(self, ids: Any, targets: Any) -> Tensor:
        """Computes the mean cross entropy of ``targets`` (B, T) for ``ids`` (B, T), in nats per token."""
        return self._model.loss(self._ids(ids), self._ids(targets), *self._mode())

    def features(self, ids: Any) -> Tensor:
        """Computes hidden states after the last norm (B, T, C)."""
        return self._model.features(self._ids(ids), *self._mode())

    def _ids(self, ids: Any) -> Tensor:
        return ids if isinstance(ids, Tensor) else asarray(ids, dtype="int32", device=self.device)

    @property
    def device(self) -> Any:
        """The device of its parameters."""
        return next(iter(self._tables()[0].values())).device

    @property
    def family(self) -> str:
        """The decoder's family, a ``model_type``."""
        return self._model.family

    @property
    def context(self) -> int:
        """Context length in tokens."""
        return self._model.sizes()[0]

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._model.sizes()[1]

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self._model.sizes()[2]

    @property
    def config(self) -> Dict[str, Any]:
        """Contents of its ``config.json``."""
        made: Dict[str, Any] = json.loads(self._model.config_json())
        return made

    def flops(self, tokens: int, length: int) -> float:
        """Returns the floating-point operations of a training step on ``tokens`` tokens in sequences of ``length`` tokens."""
        return self._model.flops(tokens, length)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> "OrderedDict[str, Tensor]":
        """Returns a copy of the weights under the names that the family's files use."""
        if args or keep_vars:
            raise FormatError("Decoder.state_dict: keep_vars=True is not supported, since the state is a copy")
        found: OrderedDict[str, Tensor] = OrderedDict() if destination is None else destination
        found.update((prefix + name, tensor_of(name, dtype, shape, data, self.device)) for name, dtype, shape, data in self._model.tensors())
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Replaces the weights, given under those names. All names are required. If one does not match, nothing is changed."""
        if not strict or assign:
            raise FormatError("Decoder.load_state_dict: strict=False and assign=True are not supported; start from state_dict() and replace entries")
        tensors = [(name, asarray(value)) for name, value in state_dict.items()]
        self._model.load_tensors([(name, CODES[t.dtype.name], list(t.shape), t._bytes()) for name, t in tensors])
        return IncompatibleKeys([], [])

    def save_pretrained(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors`` in the Hugging Face layout."""
        from .._files import save

        os.makedirs(folder, exist_ok=True)
        save(self.state_dict(), os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(self.config, f, indent=2)

    def to(self, *args: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False) -> "Decoder":
        """Always raises an error: a decoder stays on its device."""
        raise FormatError("Decoder.to: a decoder stays on its device; create or open it there with device=… and dtype=…")

    def requires_grad_(self, requires_grad: bool = True) -> "Decoder":
        """Always raises an error, except for no change: ``freeze`` sets what is trained."""
        if all(p.requires_grad == requires_grad for p in self.parameters()):
            return self
        raise FormatError("Decoder.requires_grad_: create the decoder with freeze=[patterns of names] to select what is trained")

    def extra_repr(self) -> str:
        """Returns family and sizes."""
        return f"{self.family!r}, width={self.width}, vocab={self.vocab}, context={self.context}"


__all__ = ["Decoder", "OwnedParameter"]
