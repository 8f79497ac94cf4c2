"""OCL-LLM's training script and names: `python ocl_framework.py --help`.

It trains a small transformer on the characters of a text, `input.txt`. Change the settings here, or with flags. Other programs can import the names
from this file: `from ocl_framework import OclTensor, ocl_initialize`.
"""

import sys

from netcl.compat import ocl_llm
from netcl.compat.ocl_llm import *  # noqa: F403
from netcl.compat.ocl_llm.script import main

config = {
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
}


def __getattr__(name):
    """Returns the flags `HAS_…` and `has_atomics_support`, which are known when a device is open."""
    return getattr(ocl_llm, name)


if __name__ == "__main__":
    sys.exit(main(config=config))
