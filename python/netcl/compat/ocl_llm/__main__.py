"""The training script: ``python -m netcl.compat.ocl_llm --gpu_id 0 --save_dir checkpoints``."""

import sys

from .script import main

if __name__ == "__main__":
    sys.exit(main())
