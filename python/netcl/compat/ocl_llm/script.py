"""The training script: data, training, checkpoints and samples."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from ... import manual_seed
from ..._device import doctor
from ...errors import DeviceError, FormatError, IoError, NetclError
from ...utils.progress import ProgressBar
from .checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from .device import ocl_initialize, ocl_shutdown
from .layers import SimpleModel, causal_mask
from .loss import cross_entropy_loss_and_backward
from .optimizer import AdamOptimizer
from .settings import CONFIG, SHAPES, arguments, merged
from .tensor import OclTensor
from .tokenizer import TinyTokenizer

SAMPLE_TOKENS = 24
"""Characters of a sample."""


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[List[int]]:
    """Within the block, the first Ctrl-C is added to the yielded list, so that a step can end. The second one raises ``KeyboardInterrupt`` at once."""
    asked: List[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may set handlers. A process that ignores Ctrl-C continues to do so.
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN or before is None:
        yield asked
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class Run:
    """A training run: settings, data, model and optimizer, and the number of epochs that are complete. ``asked`` has a Ctrl-C that it must follow."""

    def __init__(self, config: Mapping[str, Any], save_dir: str, checkpoint: Optional[str], asked: List[int]) -> None:
        self.config, self.asked = dict(config), asked
        self.path = os.path.join(save_dir, config["checkpoint_filename"])
        words = read_checkpoint(checkpoint)[0] if checkpoint else None
        self.text = _text(config["data_file"])
        if words is not None and words["vocab"] is not None:
            self.tokenizer = TinyTokenizer(words["vocab"])
        else:
            self.tokenizer = TinyTokenizer.of_text(self.text)
        self.ids = np.asarray(self.tokenizer.encode(self.text), dtype=np.int32)
        self.split = len(self.ids) - max(int(len(self.ids) * config["val_split"]), config["max_len"] + 1)
        if self.split <= config["max_len"]:
            raise FormatError(f"{config['data_file']} has {len(self.ids)} characters; training and validation need more for windows of {config['max_len']}")
        _writable(save_dir)
        manual_seed(config["seed"])
        shape = {"vocab_size": self.tokenizer.vocab_size, **{name: config[name] for name in SHAPES}}
        self.model = SimpleModel({**shape, **({} if words is None else {n: v for n, v in words["config"].items() if n in shape})})
        self.optimizer = AdamOptimizer(self.model.parameters(), lr=config["lr"], weight_decay=config["wd"])
        self.done, self.best, self.steps = 0, float("inf"), 0
        if checkpoint:
            words = load_checkpoint(checkpoint, self.model, self.optimizer)
            self.done = words["epoch"] + 1
            self.best = self.best if words["best_val_loss"] is None else words["best_val_loss"]
            # A flag overrides the checkpoint.
            self.optimizer.lr, self.optimizer.weight_decay = config["lr"], config["wd"]
            print(f"resuming after epoch {self.done} of {checkpoint}, validation loss {self.best:.4f}, learning rate {config['lr']:g}")

    def epoch(self, number: int) -> float:
        """Trains one epoch and returns the validation loss."""
        order = np.random.default_rng([self.config["seed"], number])
        steps = list(batches(self.ids[: self.split], self.config["max_len"], self.config["batch_size"], order))
        self.model.train()
        with ProgressBar(len(steps), epoch=number + 1, epochs=self.config["num_epochs"]) as bar:
            for x, y in steps:
                self.optimizer.zero_grad()
                loss = cross_entropy_loss_and_backward(self.model(x, causal_mask(x.shape[1])), y)
                self.optimizer.step()
                self.steps += 1
                bar.update(info={"loss": loss})
                self.follow()
        self.model.eval()
        with OclTensor.no_grad():
            parts = [(self.loss(x, y), len(x)) for x, y in batches(self.ids[self.split :], self.config["max_len"], self.config["batch_size"])]
        return sum(loss * n for loss, n in parts) / max(sum(n for _, n in parts), 1)

    def follow(self) -> None:
        """Ends the run if Ctrl-C was pressed."""
        if self.asked:
            raise KeyboardInterrupt

    def loss(self, x: Any, y: Any) -> float:
        """Computes the mean loss of windows."""
        self.follow()
        return cross_entropy_loss_and_backward(self.model(x, causal_mask(x.shape[1])), y)

    def sample(self) -> str:
        """Returns the most likely continuation of the first characters of the text."""
        ids = self.tokenizer.encode(self.text[:8])
        with OclTensor.no_grad():
            for _ in range(SAMPLE_TOKENS):
                window = np.asarray([ids[-self.config["max_len"] :]])
                logits = self.model(window, causal_mask(window.shape[1])).to_host()[0, -1]
                logits[[self.tokenizer.pad_id]] = -np.inf
                ids.append(int(logits.argmax()))
        return self.tokenizer.decode(ids)

    def save(self, path: str, epoch: int, best: Optional[float]) -> None:
        """Writes a checkpoint with all settings."""
        save_checkpoint(path, self.model, self.optimizer, self.tokenizer, epoch, best, self.config)

    def train(self) -> None:
        """Trains the remaining epochs. A checkpoint is written at each improvement of the validation loss."""
        if self.done >= self.config["num_epochs"]:
            print(f"nothing to train: {self.done} of {self.config['num_epochs']} epochs are complete; give more with --num_epochs")
        for epoch in range(self.done, self.config["num_epochs"]):
            val = self.epoch(epoch)
            self.done, self.steps = epoch + 1, 0
            print(f"epoch {epoch + 1}: validation loss {val:.4f}; {self.sample()!r}", flush=True)
            if val < self.best:
                try:
                    self.save(self.path, epoch, val)
                    self.best = val
                except IoError as e:
                    print(f"warning: {e}; training continues", file=sys.stderr)
        print(f"inference: {self.sample()!r}")

    def interrupted(self) -> str:
        """Saves the state of an interrupted run in the folder of its checkpoint, and returns a message."""
        if not self.steps and not self.done:
            return "interrupted before the first step"
        stem, extension = os.path.splitext(self.path)
        path = f"{stem}.interrupted{extension}"
        self.save(path, self.done - 1, self.best if np.isfinite(self.best) else None)
        return f"interrupted in epoch {self.done + 1} after {self.steps} steps of it; the state is saved, resume with --load_checkpoint {path}"


def batches(ids: Any, length: int, size: int, order: Optional[Any] = None) -> Iterator[Tuple[Any, Any]]:
    """Yields windows and the same windows shifted by one, in batches of ``size``. The last batch may be smaller."""
    starts = np.arange(0, len(ids) - length, length)
    if order is not None:
        order.shuffle(starts)
    for i in range(0, len(starts), size):
        both = np.stack([ids[s : s + length + 1] for s in starts[i : i + size]])
        yield both[:, :-1], both[:, 1:]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except UnicodeDecodeError as e:
        raise FormatError(f"{path} is not text in UTF-8: {e.reason} at byte {e.start}") from e
    except OSError as e:
        raise IoError(f"cannot read the training text {path}: {e.strerror or e}; name a text file with --data_file") from e


def _writable(folder: str) -> None:
    """Checks the folder of the checkpoints before the training."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise IoError(f"cannot write checkpoints to {folder}: {e.strerror or e}") from e
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IoError(f"cannot write checkpoints to {folder}: permission denied")


def _open_device(gpu_id: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ocl_initialize(gpu_id)
    for warning in found:
        print(f"warning: {warning.message}", file=sys.stderr)


def main(given: Optional[List[str]] = None, config: Optional[Mapping[str, Any]] = None) -> int:
    """Runs the script with the flags ``given`` [default: the program's arguments], and with ``config`` [default: ``CONFIG``]. Returns the exit status:
    0, 1 after an error, 2 for an invalid setting, 130 after Ctrl-C. An error is one line on standard error.
    """
    base: Dict[str, Any] = {**CONFIG, **({} if config is None else config)}
    args = arguments(given, base)
    try:
        return _run(args, base)
    except KeyboardInterrupt:
        print("\ninterrupted before the first step", file=sys.stderr)
        return 130
    except DeviceError as e:
        return _failed(e, 1, doctor())
    except MemoryError as e:
        return _failed(e, 1, "reduce --batch_size or --max_len")
    except NetclError as e:
        return _failed(e, 1)
    finally:
        if OclTensor._ocl_initialized:
            ocl_shutdown()


def _run(args: Any, base: Mapping[str, Any]) -> int:
    try:
        words = read_checkpoint(args.load_checkpoint)[0] if args.load_checkpoint else None
        settings = merged(args, base, None if words is None else words["config"])
    except FormatError as e:
        return _failed(e, 2)
    _open_device(args.gpu_id)
    with deferred_interrupts() as asked:
        run = Run(settings, args.save_dir, args.load_checkpoint, asked)
        try:
            run.train()
        except KeyboardInterrupt:
            print(f"\n{_saved(run)}", file=sys.stderr)
            return 130
    return 0


def _saved(run: Run) -> str:
    try:
        return run.interrupted()
    except KeyboardInterrupt:
        return "interrupted again; the state was not saved"
    except NetclError as e:
        return f"interrupted; the state could not be saved: {e}"


def _failed(error: BaseException, status: int, hint: str = "") -> int:
    words = " ".join(f"{error}".split())
    print(f"error: {words}" + (f"\n{hint}" if hint else ""), file=sys.stderr)
    return status


__all__ = ["main"]
