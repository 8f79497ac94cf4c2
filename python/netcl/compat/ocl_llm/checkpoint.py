"""Checkpoints: an ``.npz`` file with the arrays of model and optimizer, and metadata as JSON. Nothing is pickled."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from ...errors import FormatError, IoError
from .layers import SimpleModel
from .optimizer import AdamOptimizer
from .tokenizer import TinyTokenizer

HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")


def _optimizer_arrays(optimizer: AdamOptimizer) -> Dict[str, Any]:
    state = optimizer.state_dict()
    arrays = {f"optimizer/{name}/{i}": array for name in "mv" for i, array in enumerate(state[name])}
    return {"optimizer/t": np.int64(state["t"]), **arrays}


def _optimizer_state(arrays: Mapping[str, Any]) -> Dict[str, Any]:
    state: Dict[str, Any] = {name: [] for name in "mv"}
    for name in "mv":
        while f"optimizer/{name}/{len(state[name])}" in arrays:
            state[name].append(arrays[f"optimizer/{name}/{len(state[name])}"])
    return {"t": int(arrays["optimizer/t"]), **state}


def save_checkpoint(
    path: str,
    model: SimpleModel,
    optimizer: Optional[AdamOptimizer] = None,
    tokenizer: Optional[TinyTokenizer] = None,
    epoch: int = 0,
    best_val_loss: Optional[float] = None,
    config: Optional[Mapping[str, Any]] = None,
) -> None:
    """Writes a checkpoint atomically: if writing fails, an older file is kept."""
    arrays: Dict[str, Any] = {f"model/{name}": value for name, value in model.state_dict().items()}
    words: Dict[str, Any] = {
        "epoch": epoch,
        "best_val_loss": best_val_loss,
        "config": {**model.config, **({} if config is None else config)},
        "vocab": None if tokenizer is None else tokenizer.get_vocab(),
        "optimizer": None,
    }
    if optimizer is not None:
        arrays.update(_optimizer_arrays(optimizer))
        words["optimizer"] = {name: getattr(optimizer, name) for name in HYPERPARAMETERS}
    arrays["words"] = np.frombuffer(json.dumps(words).encode(), dtype=np.uint8)
    beside = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(beside, "wb") as f:
            np.savez_compressed(f, **arrays)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except BaseException as e:
        if os.path.exists(beside):
            os.unlink(beside)
        if isinstance(e, OSError):
            raise IoError(f"cannot write {path}: {e}") from e
        raise


def read_checkpoint(path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Reads the metadata and arrays of a checkpoint."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        words: Dict[str, Any] = json.loads(arrays.pop("words").tobytes().decode())
        wanted = {name: words[name] for name in ("epoch", "best_val_loss", "config", "vocab")}
        if not isinstance(wanted["config"], dict) or not isinstance(wanted["epoch"], int):
            raise ValueError("its metadata is damaged")
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError, TypeError, AttributeError, NotImplementedError, zlib.error) as e:
        raise FormatError(f"{path} was not written by save_checkpoint (pickles are not read): {e}") from e
    except OSError as e:
        raise IoError(f"cannot read {path}: {e}") from e
    return words, arrays


def load_checkpoint(path: str, model: Optional[SimpleModel] = None, optimizer: Optional[AdamOptimizer] = None) -> Dict[str, Any]:
    """Loads weights, the optimizer's state and its hyperparameters. Without ``model``, a model and an optimizer are made from the checkpoint's
    ``config``. Returns ``epoch``, ``best_val_loss``, ``config``, ``tokenizer``, ``model`` and ``optimizer``.
    """
    words, arrays = read_checkpoint(path)
    weights = {name[len("model/") :]: value for name, value in arrays.items() if name.startswith("model/")}
    if model is None:
        try:
            model = SimpleModel(words["config"])
        except (FormatError, TypeError) as e:
            raise FormatError(f"{path}: the config does not describe a model: {e}") from e
        optimizer = AdamOptimizer(model.parameters()) if optimizer is None and "optimizer/t" in arrays else optimizer
    if optimizer is not None and any(name.startswith("optimizer/") for name in arrays) and "optimizer/t" not in arrays:
        raise FormatError(f"{path}: an older netcl wrote the optimizer's state; load the weights only: load_checkpoint(path, model)")
    model.load_state_dict(weights)
    if optimizer is not None and "optimizer/t" in arrays:
        optimizer.load_state_dict(_optimizer_state(arrays))
        for name, value in (words.get("optimizer") or {}).items():
            setattr(optimizer, name, tuple(value) if isinstance(value, list) else value)
    words["tokenizer"] = None if words["vocab"] is None else TinyTokenizer(words["vocab"])
    return {**words, "model": model, "optimizer": optimizer}


__all__ = ["load_checkpoint", "read_checkpoint", "save_checkpoint"]
