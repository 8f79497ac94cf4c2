"""Settings of the training script: the config, the flags and the checkpoint."""

from __future__ import annotations

import argparse
import math
from typing import Any, Dict, List, Mapping, NoReturn, Optional

from ...errors import FormatError

CONFIG: Dict[str, Any] = {
    "data_file": "input.txt",
    "max_len": 64,
    "batch_size": 16,
    "embed_dim": 64,
    "num_heads": 4,
    "d_ff": 256,
    "num_layers": 2,
    "lr": 1e-3,
    "wd": 0.01,
    "num_epochs": 5,
    "val_split": 0.1,
    "checkpoint_filename": "test_model.npz",
    "seed": 1,
}
SHAPES = ("max_len", "embed_dim", "num_heads", "d_ff", "num_layers")
"""Settings that the weights of a checkpoint depend on."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors have one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def arguments(given: Optional[List[str]], config: Mapping[str, Any]) -> argparse.Namespace:
    """Parses the flags. Settings without a flag are ``None``."""
    parser = Parser(prog="ocl_framework.py", description="Train a small transformer on the characters of a text.", allow_abbrev=False)
    parser.add_argument("--gpu_id", default="0", help="number or name of a device from netcl.devices() [default: 0]")
    parser.add_argument("--load_checkpoint", metavar="FILE.npz", help="resume from this checkpoint with its settings; flags override them")
    parser.add_argument("--save_dir", default="checkpoints", help="folder for checkpoints [default: checkpoints]")
    for name, value in config.items():
        kind = type(value) if name not in CONFIG else type(CONFIG[name])
        parser.add_argument(f"--{name}", type=kind, help=f"[default: {value}]".replace("%", "%%"))
    return parser.parse_args(given)


def merged(args: argparse.Namespace, config: Mapping[str, Any], stored: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Combines the settings: flags override the checkpoint's settings, which override the config. The shapes of a checkpoint cannot be overridden.

    Raises ``FormatError`` for a flag that contradicts the checkpoint's shapes, and for settings that are out of range.
    """
    flags = {name: getattr(args, name) for name in config if getattr(args, name) is not None}
    if stored is not None:
        for name in SHAPES:
            if name in flags and name in stored and flags[name] != stored[name]:
                raise FormatError(f"--{name} is {flags[name]}, but the checkpoint {args.load_checkpoint} has {name} {stored[name]}; leave the flag out")
    known = {} if stored is None else {name: value for name, value in stored.items() if name in config}
    found = {**CONFIG, **config, **known, **flags}
    check(found)
    return found


def check(found: Mapping[str, Any]) -> None:
    """Raises ``FormatError`` if a setting is out of range."""
    for name in ("max_len", "batch_size", "embed_dim", "num_heads", "d_ff", "num_layers", "num_epochs"):
        if not isinstance(found[name], int) or found[name] < 1:
            raise FormatError(f"{name} is {found[name]}, expected a whole number of at least 1")
    for name in ("lr", "wd"):
        if not math.isfinite(found[name]) or found[name] < 0:
            raise FormatError(f"{name} is {found[name]}, expected a number of at least 0")
    if not 0 < found["val_split"] < 1:
        raise FormatError(f"val_split is {found['val_split']}, expected a share between 0 and 1")
    if found["embed_dim"] % found["num_heads"]:
        raise FormatError(f"embed_dim {found['embed_dim']} is not divisible by num_heads {found['num_heads']}")


__all__ = ["CONFIG", "SHAPES", "arguments", "check", "merged"]
