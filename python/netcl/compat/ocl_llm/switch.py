"""The switch for gradients, as an attribute of the class."""

from __future__ import annotations

from ..._netcl import is_recording, set_recording
from ...autograd import no_grad


class Switch(type):
    """Class of ``OclTensor``. ``OclTensor._enable_grad`` reads and sets whether operations of this thread are recorded."""

    @property
    def _enable_grad(cls) -> bool:
        return is_recording()

    @_enable_grad.setter
    def _enable_grad(cls, on: bool) -> None:
        set_recording(bool(on))


class NoGradContext(no_grad):
    """Turns recording off within ``with OclTensor.no_grad():``. At the end of the block, the switch has its former value."""


__all__ = ["NoGradContext", "Switch"]
