"""Per-thread state."""

from __future__ import annotations

import threading
from typing import Any, List


class State(threading.local):
    """Graphs that are being captured, and those whose function runs before its capture, the innermost last. Also the number of open scopes."""

    def __init__(self) -> None:
        self.capturing: List[Any] = []
        self.preparing: List[Any] = []
        self.scopes = 0


state = State()

__all__ = ["State", "state"]
