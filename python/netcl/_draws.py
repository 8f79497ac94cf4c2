"""Random numbers of captured steps. A step that a ``Graph`` captures reads its random numbers from memory that is drawn anew before each replay, so
that it has the numbers of a step that is not captured.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from ._netcl import Generator, Tensor, uninitialised
from ._state import state
from .autograd import no_grad
from .errors import FormatError, UnsupportedError


class Draw:
    """Random numbers of a captured step: their memory, and the call that draws them."""

    def __init__(self, form: Any, made: Tensor, draw: Callable[[], Tensor]) -> None:
        self.form, self.draw = form, draw
        self.memory = uninitialised(made.shape, made.dtype, made.device)


class Draws:
    """All random numbers of a captured step, in order."""

    def __init__(self) -> None:
        self._noted: "list[Draw]" = []
        self._next = 0

    def note(self, form: Any, made: Tensor, draw: Callable[[], Tensor]) -> None:
        """Records a draw of the run before the capture."""
        self._noted.append(Draw(form, made, draw))

    def take(self, form: Any, draw: Callable[[], Tensor]) -> Tensor:
        """Returns the memory of the next draw, during the capture."""
        if self._next >= len(self._noted) or self._noted[self._next].form != form:
            raise FormatError(f"Graph: the function draws other random numbers in its second run, at draw {self._next + 1}; expected the same calls in every run")
        found = self._noted[self._next]
        found.draw, self._next = draw, self._next + 1
        return found.memory.detach()

    def memories(self) -> "list[Tensor]":
        """Returns the memory of all random numbers."""
        return [each.memory for each in self._noted]

    def refill(self) -> None:
        """Draws all numbers anew, before a replay."""
        with no_grad():
            for each in self._noted:
                each.memory.copy_(each.draw())


def drawn(form: Any, draw: Callable[[], Tensor]) -> Tensor:
    """Returns random numbers: those of ``draw``, or in a captured step the memory that has them. ``form`` is the call with its arguments."""
    if state.capturing:
        found: Tensor = state.capturing[-1].take_draw(form, draw)
        return found
    made = draw()
    if state.preparing:
        state.preparing[-1].draws.note(form, made, draw)
    return made


def _method(name: str) -> Any:
    plain = getattr(Generator, name)

    @functools.wraps(plain)
    def method(self: Generator, *args: Any, **kwargs: Any) -> Tensor:
        if not state.capturing and not state.preparing:
            made: Tensor = plain(self, *args, **kwargs)
            return made
        return drawn((name, id(self), repr(args), repr(kwargs)), lambda: plain(self, *args, **kwargs))

    return method


def _seed() -> Any:
    plain = Generator.draw_seed

    @functools.wraps(plain)
    def draw_seed(self: Generator) -> int:
        if state.capturing:
            raise UnsupportedError("draw_seed: a seed drawn in a captured step or a graph of operations would be the same in every replay; draw it before, or use tensors of random numbers")
        return plain(self)

    return draw_seed


def attach() -> None:
    """Makes the generators' methods follow captured steps."""
    setattr(Generator, "draw_seed", _seed())
    for name in ("uniform", "normal", "integers"):
        setattr(Generator, name, _method(name))


__all__ = ["Draws", "attach", "drawn"]
