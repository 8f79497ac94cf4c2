"""A progress bar for loops, with steps per second, remaining time, and other values."""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, TextIO, TypeVar

T = TypeVar("T")


def duration(seconds: float) -> str:
    """Formats a duration: ``4s``, ``3m 5s``, ``2h 7m``."""
    whole = int(max(seconds, 0) + 0.5)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole // 60 % 60}m"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class ProgressBar:
    """A progress bar: ``bar = ProgressBar(total, epoch=1)``, ``bar.update(step, info={"loss": 0.3})`` after each step, and ``bar.close()`` at the
    end, or ``with``.

    On a terminal, one line is redrawn at most eight times per second. Elsewhere, a line is printed every ten seconds and at the end. ``epoch`` is
    shown first, as ``2/10`` if ``epochs`` is the total. Values that ``info`` omits are unchanged. ``it/s`` in ``info`` replaces the measured rate.
    """

    def __init__(
        self,
        total: int,
        epoch: Optional[int] = None,
        epochs: Optional[int] = None,
        width: int = 24,
        file: Optional[TextIO] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if total < 0:
            raise ValueError(f"ProgressBar: total is {total}, expected 0 or more")
        self.total, self.epoch, self.epochs, self.width = total, epoch, epochs, width
        self.file = sys.stderr if file is None else file
        self.step = 0
        self._clock = clock
        self._began = self._drawn = clock()
        self._first = 0
        self._info: "dict[str, Any]" = {}
        self._live = bool(getattr(self.file, "isatty", lambda: False)())
        self._length = 0
        self._closed = False

    def update(self, step: Optional[int] = None, info: Optional[Mapping[str, Any]] = None) -> None:
        """Sets the number of completed steps [default: one more than before]."""
        self.step = self.step + 1 if step is None else step
        if info:
            self._info.update(info)
        now = self._clock()
        if self.step >= self.total or now - self._drawn >= (0.125 if self._live else 10.0):
            self._drawn = now
            self._write(self.line())

    def note(self, info: Mapping[str, Any]) -> None:
        """Sets values to show from the next step on."""
        self._info.update(info)

    def starts_at(self, step: int) -> None:
        """Sets the number of steps that were completed earlier; they do not count for the rate."""
        self.step = self._first = step
        self._began = self._clock()

    @property
    def rate(self) -> float:
        """Steps per second so far."""
        return (self.step - self._first) / max(self._clock() - self._began, 1e-9)

    def line(self) -> str:
        """Returns the current line."""
        share = 1.0 if self.total == 0 else min(max(self.step / self.total, 0.0), 1.0)
        filled = int(share * self.width)
        bar = "█" * filled + "·" * (self.width - filled)
        head = "" if self.epoch is None else f"epoch {self.epoch}{'' if self.epochs is None else f'/{self.epochs}'} "
        rate = self._info.get("it/s", self.rate)
        left = duration((self.total - self.step) / rate) if isinstance(rate, (int, float)) and rate > 0 else "?"
        parts = [f"{_shown(rate)} it/s", f"ETA {left}"] + [f"{name} {_shown(value)}" for name, value in self._info.items() if name != "it/s"]
        return f"{head}|{bar}| {self.step}/{self.total} {100 * share:.0f}% " + "  ".join(parts)

    def _write(self, line: str) -> None:
        if self._live:
            # Spaces overwrite the rest of a longer line.
            self.file.write("\r" + line + " " * (self._length - len(line)))
            self._length = len(line)
        else:
            self.file.write(line + "\n")
        self.file.flush()

    def close(self) -> None:
        """Ends the bar. The last line remains visible."""
        if self._closed:
            return
        self._closed = True
        if self._live:
            self._write(self.line())
            self.file.write("\n")
            self.file.flush()
        elif self.step < self.total:
            self._write(self.line())

    def wrap(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items and counts each as a step."""
        for item in items:
            yield item
            self.update()
        self.close()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


__all__ = ["ProgressBar", "duration"]
