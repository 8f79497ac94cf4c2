"""Optimizers with the plan's interface: ``step``, ``zero_grad`` and ``clip_grad``."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Iterable, List, Tuple

from ... import no_grad
from ... import optim as _optim
from ..._netcl import Tensor


def _without_recording(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def run(*arguments: Any, **named: Any) -> Any:
        with no_grad():
            return step(*arguments, **named)

    return run


class Optimizer:
    """Base of optimizers over tensors with ``requires_grad``: ``params`` and ``lr``. A derived class defines ``step``, which reads ``p.grad`` and
    overwrites parameters, for example with ``p.copy_(values)``. It runs without recording, because a leaf cannot be overwritten on the tape.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "step" in cls.__dict__:
            cls.step = _without_recording(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params: List[Tensor] = list(params)
        self.lr = lr
        if not self.params:
            raise ValueError(f"{type(self).__name__}: got no parameters")
        wrong = [i for i, p in enumerate(self.params) if not (isinstance(p, Tensor) and p.requires_grad)]
        if wrong:
            raise ValueError(f"{type(self).__name__}: parameter {wrong[0]} does not need a gradient; expected tensors with requires_grad=True")

    def step(self) -> None:
        """Updates the parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not define step; use SGD or Adam, or derive a class")

    def zero_grad(self) -> None:
        """Drops the gradients."""
        for p in self.params:
            p.grad = None

    def clip_grad(self, norm: float) -> float:
        """Scales the gradients down, so that their total norm is at most ``norm``. Returns the norm before. Call it between backward and step."""
        if not norm > 0:
            raise ValueError(f"clip_grad: norm is {norm}, expected a positive number")
        return float(_optim.clip_grad_norm_(self.params, norm).item())


class _Fused(Optimizer):
    """An optimizer of netcl, which updates all parameters in a few launches."""

    _rule: Any

    def step(self) -> None:
        """Runs one step. Parameters without a gradient keep their values."""
        self._rule.lr = self.lr
        self._rule.step()

    def state_dict(self) -> Any:
        """Returns the state by name."""
        return self._rule.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Loads a state from ``state_dict``."""
        self._rule.load_state_dict(state)


class SGD(_Fused):
    """Gradient descent with momentum: ``g += weight_decay p``, ``m = momentum m + g``, ``p -= lr m``."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-2, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr)
        self._rule = _optim.SGD(self.params, lr=lr, momentum=momentum, weight_decay=weight_decay)


class Adam(_Fused):
    """Adam (Kingma and Ba 2015). ``weight_decay`` is added to the gradient."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr)
        self._rule = _optim.Adam(self.params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


__all__ = ["Adam", "Optimizer", "SGD"]
