"""Checkpoints: an ``.npz`` file with the arrays of model and optimizer, and metadata as JSON. Nothing is pickled."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from ...errors import FormatError, IoError
from .layers import SimpleModel
from .training import AdamOptimizer, TinyTokenizer


def save_checkpoint(
    path: str,
    model: SimpleModel,
    optimizer: Optional[AdamOptimizer] = None,
    tokenizer: Optional[TinyTokenizer] = None,
    epoch: int = 0,
    best_val_loss: Optional[float] = None,
    config: Optional[Mapping[str, Any]] = None,
) -> None:
    """Writes a checkpoint atomically."""
    arrays: Dict[str, Any] = {f"model/{name}": value for name, value in model.state_dict().items()}
    if optimizer is not None:
        arrays.update({f"optimizer/{name}": value for name, value in optimizer.state_dict().items()})
    words = {
        "epoch": epoch,
        "best_val_loss": best_val_loss,
        "config": dict(model.config if config is None else config),
        "vocab": None if tokenizer is None else tokenizer.get_vocab(),
    }
    arrays["words"] = np.frombuffer(json.dumps(words).encode(), dtype=np.uint8)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as f:
            np.savez_compressed(f, **arrays)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError as e:
        if os.path.exists(beside):
            os.unlink(beside)
        raise IoError(f"cannot write {path}: {e}") from e


def read_checkpoint(path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Reads the metadata and arrays of a checkpoint."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        words: Dict[str, Any] = json.loads(arrays.pop("words").tobytes().decode())
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as e:
        raise FormatError(f"{path} was not written by save_checkpoint (pickles are not read): {e}") from e
    except OSError as e:
        raise IoError(f"cannot read {path}: {e}") from e
    return words, arrays


def load_checkpoint(path: str, model: SimpleModel, optimizer: Optional[AdamOptimizer] = None) -> Dict[str, Any]:
    """Loads weights and optimizer state. Returns the checkpoint's ``epoch``, ``best_val_loss``, ``config`` and ``tokenizer``."""
    words, arrays = read_checkpoint(path)
    of = {kind: {name[len(kind) + 1 :]: value for name, value in arrays.items() if name.startswith(kind + "/")} for kind in ("model", "optimizer")}
    model.load_state_dict(of["model"])
    if optimizer is not None and of["optimizer"]:
        optimizer.load_state_dict(of["optimizer"])
    words["tokenizer"] = None if words["vocab"] is None else TinyTokenizer(words["vocab"])
    return words


__all__ = ["load_checkpoint", "read_checkpoint", "save_checkpoint"]
