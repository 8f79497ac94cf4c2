"""Mixed precision with PyTorch's names: loss scaling, and what to write instead of ``autocast``."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, List, Mapping, Optional

from ._netcl import Tensor
from .autograd import no_grad
from .errors import UnsupportedError


class autocast:
    """Does nothing with ``enabled=False``. Otherwise it is refused: convert the model with ``model.to("bfloat16")`` instead. Products of 16-bit
    tensors accumulate in float32, and optimizers keep float32 weights.
    """

    def __init__(self, device_type: Any = None, dtype: Any = None, enabled: bool = True, cache_enabled: Optional[bool] = None) -> None:
        if enabled:
            raise UnsupportedError(
                'autocast is not supported; write model.to("bfloat16"): products accumulate in float32, and optimizers keep float32 weights. '
                "autocast(…, enabled=False) does nothing"
            )

    def __enter__(self) -> "autocast":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


class GradScaler:
    """Scales losses, so that small gradients in float16 do not become 0. A step with an infinite or NaN gradient is skipped and halves the scale."""

    def __init__(
        self,
        device: str = "",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and (growth_factor <= 1.0 or backoff_factor >= 1.0):
            raise ValueError(f"GradScaler: growth_factor is {growth_factor} and backoff_factor {backoff_factor}, expected above and below 1")
        self._scale, self._growth, self._backoff, self._interval, self._enabled = init_scale, growth_factor, backoff_factor, growth_interval, enabled
        self._tracker = 0
        self._stages: Dict[int, str] = {}
        self._found: Dict[int, bool] = {}

    def is_enabled(self) -> bool:
        """Returns whether losses are scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """Returns the factor of losses."""
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """Multiplies a loss, or several, by the scale."""
        if not self._enabled:
            return outputs
        return outputs * self._scale if isinstance(outputs, Tensor) else type(outputs)(self.scale(y) for y in outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of an optimizer's parameters by the scale. ``step`` does it otherwise."""
        if not self._enabled:
            return
        if id(optimizer) in self._stages:
            raise RuntimeError(f"unscale_: called after {self._stages[id(optimizer)]} in this step; call update() first")
        grads: List[Tensor] = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not grads:
            raise RuntimeError("unscale_: no parameter of the optimizer has a gradient")
        with no_grad():
            for g in grads:
                g *= 1.0 / self._scale
            # One read for all gradients: the sum is NaN or infinite if an element is.
            total = sum((g.float() * 0.0).sum() for g in grads)
        self._found[id(optimizer)] = not math.isfinite(float(total))
        self._stages[id(optimizer)] = "unscale_"

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs ``optimizer.step()``, unless a gradient is infinite or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("GradScaler.step: closures are not supported; call the closure before")
        if self._stages.get(id(optimizer)) == "step":
            raise RuntimeError("step: called twice; call update() between steps")
        if id(optimizer) not in self._stages:
            self.unscale_(optimizer)
        self._stages[id(optimizer)] = "step"
        return None if self._found[id(optimizer)] else optimizer.step(*args, **kwargs)

    def update(self, new_scale: Optional[float] = None) -> None:
        """Adapts the scale after the steps of all optimizers, or sets it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._found:
            raise RuntimeError("update: no step was taken")
        elif any(self._found.values()):
            self._scale, self._tracker = self._scale * self._backoff, 0
        else:
            self._tracker += 1
            if self._tracker == self._interval:
                self._scale, self._tracker = self._scale * self._growth, 0
        self._stages.clear()
        self._found.clear()

    def state_dict(self) -> Dict[str, Any]:
        """Returns scale and counters."""
        if not self._enabled:
            return {}
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        return dict(zip(names, (self._scale, self._growth, self._backoff, self._interval, self._tracker)))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("GradScaler: the state is empty; it was saved by a disabled scaler")
        self._scale, self._growth, self._backoff = (float(state_dict[k]) for k in ("scale", "growth_factor", "backoff_factor"))
        self._interval, self._tracker = int(state_dict["growth_interval"]), int(state_dict["_growth_tracker"])


__all__ = ["GradScaler", "autocast"]
