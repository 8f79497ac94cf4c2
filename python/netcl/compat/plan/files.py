"""Models in files: layers as JSON, and weights as ``.npz`` with a hash of each. Nothing is pickled."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import zipfile
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple, Type, Union

import numpy as np

from ... import nn
from ..._files import save as _save
from ..._host import from_numpy
from ..._netcl import Tensor
from ...errors import FormatError, IoError
from . import layers as _layers

Path = Union[str, "os.PathLike[str]"]

VERSION = 2
# The plan's layers replace those of netcl.nn with the same name.
KINDS: Dict[str, Type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        nn.Embedding, nn.GELU, nn.GPT, nn.Identity, nn.LayerNorm, nn.LearnedPositions, nn.MultiHeadAttention, nn.RMSNorm, nn.SiLU, nn.Softmax, nn.TransformerBlock,
        _layers.AvgPool2d, _layers.BatchNorm, _layers.Conv2d, _layers.Dropout, _layers.Flatten, _layers.LeakyReLU, _layers.Linear, _layers.MaxPool2d, _layers.ReLU,
        _layers.Sigmoid, _layers.Tanh,
    )
}  # fmt: skip

# Constructor arguments that are not attributes of the same name.
_ARGUMENTS: Dict[str, Callable[[Any], Dict[str, Any]]] = {
    "Linear": lambda m: {"in_features": m.weight.shape[1], "out_features": m.weight.shape[0], "bias": m.bias is not None},
    "Conv2d": lambda m: {"bias": m.bias is not None},
    "LayerNorm": lambda m: {"normalized_shape": m.normalized_shape, "bias": m.bias is not None},
    "LearnedPositions": lambda m: {"length": m.weight.shape[0], "width": m.weight.shape[1]},
    "MultiHeadAttention": lambda m: {
        "width": m.out.weight.shape[0], "bias": m.out.bias is not None, "rotary": None if m.rotary is None else m.rotary.cosines.shape[0],
    },
    "TransformerBlock": lambda m: {
        "width": m.norm1.weight.shape[0], "heads": m.attention.heads, "hidden": m.up.weight.shape[0], "causal": m.attention.causal, "dropout": m.drop.p,
    },
    "GPT": lambda m: {
        "vocab": m.tokens.weight.shape[0], "layers": len(m.blocks), "heads": m.blocks[0].attention.heads, "width": m.tokens.weight.shape[1], "dropout": m.blocks[0].drop.p,
    },
}  # fmt: skip
# Arguments of initial values, which the file's weights replace.
_UNUSED = ("dtype", "device", "std", "_weight", "_freeze")
# Arguments of earlier files: the layers have PyTorch's names now.
_RENAMED = {
    "Flatten": {"start": "start_dim", "end": "end_dim"}, "Softmax": {"axis": "dim"}, "LayerNorm": {"n": "normalized_shape"}, "RMSNorm": {"n": "normalized_shape"},
}  # fmt: skip


def described(layer: Any) -> Dict[str, Any]:
    """Returns the kind and constructor arguments of a layer. Raises ``FormatError`` for a layer whose arguments are not its attributes."""
    kind = type(layer).__name__
    if isinstance(layer, nn.Sequential):
        return {"kind": "Sequential", "layers": [{"name": name, **described(m)} for name, m in layer._tables()[2].items()]}
    if not isinstance(layer, nn.Module):
        raise FormatError(f"save: {kind} is not a layer")
    is_own = KINDS.get(kind) not in (type(layer), None) and getattr(nn, kind, None) is not type(layer)
    given = {} if is_own else _ARGUMENTS.get(kind, lambda m: {})(layer)
    for name, p in inspect.signature(type(layer).__init__).parameters.items():
        if name == "self" or name in given or name in _UNUSED or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if not hasattr(layer, name):
            raise FormatError(f"save: a layer of type {kind} does not keep its argument {name!r} as an attribute")
        given[name] = getattr(layer, name)
    try:
        json.dumps(given)
    except TypeError as e:
        raise FormatError(f"save: a layer of type {kind} has an argument that JSON cannot represent: {e}") from e
    return {"kind": kind, **given}


def rebuilt(words: Mapping[str, Any], own: Iterable[Type[nn.Module]] = ()) -> Any:
    """Creates the layer of a description. ``own`` has the classes of layers that are not netcl's."""
    given = {name: tuple(value) if isinstance(value, list) and name != "layers" else value for name, value in words.items() if name != "name"}
    kind = given.pop("kind")
    given = {_RENAMED.get(str(kind), {}).get(name, name): value for name, value in given.items()}
    if kind == "Sequential":
        model = _layers.Sequential()
        for i, layer in enumerate(words["layers"]):
            setattr(model, layer.get("name", str(i)), rebuilt(layer, own))
        return model
    found = {**KINDS, **{c.__name__: c for c in own}}.get(str(kind))
    if found is None:
        raise FormatError(f"load: unknown layer {kind}; pass its class as layers=[{kind}]")
    return found(**given)


def digest(array: Any) -> str:
    """Returns the SHA-256 of an array: of its dtype, shape and bytes in C order."""
    dense = np.ascontiguousarray(array)
    hashed = hashlib.sha256(f"{dense.dtype.str} {array.shape} ".encode())
    hashed.update(dense.tobytes())
    return hashed.hexdigest()


def write_json(path: Path, words: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically."""
    beside = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(beside, "w", encoding="utf-8") as f:
            json.dump(words, f, indent=2)
        os.replace(beside, path)
    except OSError as e:
        raise IoError(f"cannot write {path}: {e}") from e


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> Dict[str, Any]:
    """Writes weights to the ``.npz`` file next to ``path``. Returns its name and the hash of each weight."""
    stem, ending = os.path.splitext(os.fspath(path))
    if ending == ".npz":
        raise FormatError(f"save: {path} is the name of the weights; pass the name of the JSON file, such as {stem}.json")
    if not tensors:
        return {"weights": None, "hashes": {}}
    _save(tensors, stem + ".npz")
    return {"weights": os.path.basename(stem) + ".npz", "hashes": {name: digest(tensor.detach().numpy()) for name, tensor in tensors.items()}}


def read_weights(path: Path, words: Mapping[str, Any], device: Any = None) -> Dict[str, Tensor]:
    """Reads weights, one after the other, and compares each with its hash. Raises ``FormatError`` that names the weight which differs."""
    if words.get("weights") is None:
        return {}
    place = os.path.join(os.path.dirname(os.fspath(path)), words["weights"])
    hashes, tensors = words.get("hashes"), {}  # type: Optional[Mapping[str, str]], Dict[str, Tensor]
    try:
        with np.load(place, allow_pickle=False) as arrays:
            for name in arrays.files if hashes is None else hashes:
                tensors[name] = from_numpy(_read_weight(place, arrays, name, hashes), None, device)
            unknown = [] if hashes is None else sorted(set(arrays.files) - set(hashes))
    except (ValueError, zipfile.BadZipFile, EOFError) as e:
        raise FormatError(f"load: {place} is not an .npz file of arrays: {e}") from e
    except OSError as e:
        raise IoError(f"cannot read {place}: {e}") from e
    if unknown:
        raise FormatError(f"load: {place} has weights that {path} does not list: {', '.join(unknown)}")
    return tensors


def _read_weight(place: str, arrays: Any, name: str, hashes: Optional[Mapping[str, str]]) -> Any:
    try:
        array = arrays[name]
    except KeyError as e:
        raise FormatError(f"load: {place} lacks the weight {name}") from e
    except (ValueError, zipfile.BadZipFile, EOFError) as e:
        raise FormatError(f"load: the weight {name} in {place} is damaged: {e}") from e
    if hashes is not None and digest(array) != hashes[name]:
        raise FormatError(f"load: the weight {name} in {place} was altered: its hash differs from the one that was saved")
    return array


def read_json(path: Path, what: str) -> Dict[str, Any]:
    """Reads a JSON file that ``what`` wrote."""
    try:
        with open(path, encoding="utf-8") as f:
            words = json.load(f)
    except OSError as e:
        raise IoError(f"cannot read {path}: {e}") from e
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise FormatError(f"{path} was not written by {what}: {e}") from e
    if not isinstance(words, dict) or "version" not in words:
        raise FormatError(f"{path} was not written by {what}: its version is missing")
    if words["version"] not in (1, VERSION):
        raise FormatError(f"{path} has version {words['version']}, expected 1 to {VERSION}")
    return words


def save(model: nn.Module, path: Path) -> None:
    """Writes layers as JSON to ``path``, and the weights next to it as ``.npz``, with a hash of each in the JSON."""
    words = described(model)
    write_json(path, {"version": VERSION, "model": words, **write_weights(path, model.state_dict())})


def load(path: Path, device: Any = None, layers: Iterable[Type[nn.Module]] = ()) -> Any:
    """Reads a model that ``save`` wrote. ``layers`` has the classes of layers that are not netcl's. Raises ``FormatError`` if a weight was altered."""
    words = read_json(path, "save")
    try:
        described = words["model"] if words["version"] > 1 else {"kind": "Sequential", "layers": words["layers"]}
        model = rebuilt(described, layers)
        given = read_weights(path, words)
    except (AttributeError, KeyError, TypeError) as e:
        raise FormatError(f"{path} was not written by save: {e}") from e
    model.load_state_dict(given)
    return model if device is None else model.to(device=device)


__all__ = ["described", "load", "read_json", "read_weights", "rebuilt", "save", "write_json", "write_weights"]
