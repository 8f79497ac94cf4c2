"""The training script: ``python -m netcl.compat.ocl_llm --gpu_id 0 --save_dir checkpoints``. ``CONFIG`` has the settings; flags with the same names
override them.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from ... import manual_seed
from ..._device import doctor
from ...autograd import no_grad
from ...utils.progress import ProgressBar
from . import AdamOptimizer, OclTensor, SimpleModel, TinyTokenizer, cross_entropy_loss_and_backward, load_checkpoint, ocl_initialize, ocl_shutdown, save_checkpoint
from .checkpoint import read_checkpoint

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
    "checkpoint_filename": "model.npz",
    "seed": 1,
}


def arguments(given: Optional[List[str]] = None) -> argparse.Namespace:
    """Parses the flags and settings."""
    parser = argparse.ArgumentParser(prog="python -m netcl.compat.ocl_llm", description="Train a small transformer on the characters of a text.")
    parser.add_argument("--gpu_id", default="auto", help="number or name of a device from netcl.devices()")
    parser.add_argument("--load_checkpoint", metavar="FILE.npz", help="resume from this checkpoint")
    parser.add_argument("--save_dir", default="checkpoints", help="folder for checkpoints")
    for name, value in CONFIG.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args(given)


def batches(ids: Any, length: int, size: int, order: Optional[Any] = None) -> Iterator[Tuple[Any, Any]]:
    """Yields windows and the same windows shifted by one, in batches of ``size``. The last batch may be smaller."""
    starts = np.arange(0, len(ids) - length, length)
    if order is not None:
        order.shuffle(starts)
    for i in range(0, len(starts), size):
        rows = [ids[s : s + length + 1] for s in starts[i : i + size]]
        both = np.stack(rows)
        yield both[:, :-1], both[:, 1:]


def evaluate(model: SimpleModel, ids: Any, args: argparse.Namespace) -> float:
    """Computes the mean loss over all windows."""
    with no_grad():
        losses = [(cross_entropy_loss_and_backward(model(x), y), len(x)) for x, y in batches(ids, args.max_len, args.batch_size)]
    return sum(loss * n for loss, n in losses) / max(sum(n for _, n in losses), 1)


def sample(model: SimpleModel, tokenizer: TinyTokenizer, prompt: str, tokens: int) -> str:
    """Generates the most likely continuation."""
    ids = tokenizer.encode(prompt)
    with no_grad():
        for _ in range(tokens):
            window = np.asarray([ids[-model.config["max_len"] :]])
            ids.append(int(model(window).to_host()[0, -1, 2:].argmax()) + 2)
    return tokenizer.decode(ids)


def train(args: argparse.Namespace) -> float:
    """Trains and returns the best validation loss. A checkpoint is written at each improvement."""
    with open(args.data_file, encoding="utf-8") as f:
        text = f.read()
    words = read_checkpoint(args.load_checkpoint)[0] if args.load_checkpoint else None
    tokenizer = TinyTokenizer.of_text(text) if words is None or words["vocab"] is None else TinyTokenizer(words["vocab"])
    ids = np.asarray(tokenizer.encode(text), dtype=np.int32)
    split = len(ids) - max(int(len(ids) * args.val_split), args.max_len + 1)
    if split <= args.max_len:
        raise SystemExit(f"{args.data_file} has {len(ids)} characters; windows of {args.max_len} need more")
    shape = {name: getattr(args, name) for name in ("max_len", "embed_dim", "num_heads", "d_ff", "num_layers")}
    manual_seed(args.seed)
    model = SimpleModel(words["config"] if words else {"vocab_size": len(tokenizer.get_vocab()), **shape})
    optimizer = AdamOptimizer(model.parameters(), lr=args.lr, weight_decay=args.wd)
    first, best = 0, float("inf")
    if args.load_checkpoint:
        words = load_checkpoint(args.load_checkpoint, model, optimizer)
        first, best = words["epoch"] + 1, words["best_val_loss"] or best
        print(f"resuming after epoch {first} of {args.load_checkpoint}, validation loss {best:.4f}")
    path = os.path.join(args.save_dir, args.checkpoint_filename)
    for epoch in range(first, args.num_epochs):
        order = np.random.default_rng([args.seed, epoch])
        steps = list(batches(ids[:split], args.max_len, args.batch_size, order))
        with ProgressBar(len(steps), epoch=epoch + 1, epochs=args.num_epochs) as bar:
            for x, y in steps:
                optimizer.zero_grad()
                loss = cross_entropy_loss_and_backward(model(x), y)
                optimizer.step()
                bar.update(info={"loss": loss})
        val = evaluate(model, ids[split:], args)
        print(f"epoch {epoch + 1}: validation loss {val:.4f}; {sample(model, tokenizer, text[:8], 24)!r}")
        if val < best:
            best = val
            save_checkpoint(path, model, optimizer, tokenizer, epoch, best)
    return best


def main(given: Optional[List[str]] = None) -> int:
    """Runs the script."""
    args = arguments(given)
    try:
        print(f"device {ocl_initialize(args.gpu_id)}")
    except Exception as e:
        print(f"{e}\n{doctor()}", file=sys.stderr)
        return 1
    try:
        train(args)
    finally:
        ocl_shutdown()
    assert not OclTensor._ocl_initialized
    return 0


if __name__ == "__main__":
    sys.exit(main())
