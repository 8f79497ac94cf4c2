"""Optimizers of PyTorch that netcl does not have, with what to write instead."""

from __future__ import annotations

from typing import Dict

REFUSED: Dict[str, str] = {
    "Adafactor": "write AdamW, or Lion, which keeps half of AdamW's state",
    "Muon": "write AdamW",
    "SparseAdam": "write Adam; gradients are dense",
    "swa_utils": "write ASGD, or average state dicts",
}


def __getattr__(name: str) -> object:
    if name in REFUSED:
        raise AttributeError(f"netcl.optim does not have {name}; {REFUSED[name]}")
    raise AttributeError(f"netcl.optim does not have {name!r}")


__all__ = ["REFUSED", "__getattr__"]
