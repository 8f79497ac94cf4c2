"""Adam, as the C function ``execute_adam_update_on_gpu`` computes it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from ..._netcl import Tensor, evaluate_into
from ..._state import state as thread
from ...errors import FormatError, UnsupportedError
from .buffer import ADAM_STATE_TYPE, GPUBuffer
from .tensor import OclTensor

# x0 is the value that changes. Moments: x1 is the gradient and x2 the parameter; s0 is beta, s1 is 1 - beta, s2 the weight decay.
FIRST = ("s0 * x0 + s1 * x1", "s0 * x0 + s1 * (x1 + s2 * x2)")
SECOND = ("s0 * x0 + s1 * x1 * x1", "s0 * x0 + s1 * (x1 + s2 * x2) * (x1 + s2 * x2)")
# Parameter: x1 and x2 are the moments; s0 is the learning rate, s1 and s2 are the bias corrections, s3 is eps.
STEP = "x0 - s0 * (x1 * s1) / (sqrt(x2 * s2) + s3)"


class AdamOptimizer:
    """Adam (Kingma and Ba 2015). Weight decay is added to the gradient: ``g += weight_decay * p``. A step changes each parameter that has a gradient.

    ``t``: number of steps. ``m``, ``v``: buffers with the moments of each parameter, in the order of ``parameters``, the parameters that need a
    gradient.
    """

    def __init__(
        self, parameters: Sequence[Any], lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        self.parameters: List[OclTensor] = list({id(p): p for p in parameters if p.requires_grad}.values())
        if not all(p.is_contiguous() for p in self.parameters):
            raise FormatError("AdamOptimizer: a parameter is a view with gaps; make it from a copy of its elements")
        self.lr, self.betas, self.eps, self.weight_decay = lr, tuple(betas), eps, weight_decay
        self.t = 0
        self.m, self.v = ([GPUBuffer(4 * p.size, f"adam {name}", _init_zeros=True, dtype=ADAM_STATE_TYPE) for p in self.parameters] for name in "mv")

    def zero_grad(self) -> None:
        """Sets the gradients to zero."""
        for p in self.parameters:
            p.zero_grad()

    def step(self) -> None:
        """Runs one step for all parameters with a gradient."""
        if thread.capturing:
            raise UnsupportedError("AdamOptimizer: the numbers of a step change from step to step, so it cannot be captured; use netcl.optim.Adam")
        moments = [(m._floats(p.shape), v._floats(p.shape)) for p, m, v in zip(self.parameters, self.m, self.v)]
        self.t += 1
        for p, (m, v) in zip(self.parameters, moments):
            if p.grad is not None and p.size:
                self._update(Tensor(p.detach()), Tensor(p.grad), m, v)

    def _update(self, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
        beta1, beta2 = self.betas
        decays = self.weight_decay != 0
        inputs = [g, p] if decays else [g]
        more = [self.weight_decay] if decays else []
        evaluate_into(FIRST[decays], [m, *inputs], [beta1, 1 - beta1, *more], m)
        evaluate_into(SECOND[decays], [v, *inputs], [beta2, 1 - beta2, *more], v)
        corrections = [1 / (1 - beta1**self.t), 1 / (1 - beta2**self.t)]
        evaluate_into(STEP, [p, m, v], [self.lr, *corrections, self.eps], p)

    def free_memory(self) -> None:
        """Frees the moments. No further step is possible."""
        for buffer in (*self.m, *self.v):
            buffer.free()

    def state_dict(self) -> Dict[str, Any]:
        """Returns the step number ``t``, and the moments ``m`` and ``v`` as one array for each parameter."""
        return {"t": self.t, "m": self._arrays(self.m), "v": self._arrays(self.v)}

    def _arrays(self, buffers: List[GPUBuffer]) -> List[Any]:
        return [b.read(p.shape, ADAM_STATE_TYPE) for p, b in zip(self.parameters, buffers)]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state that ``state_dict`` returned. If it does not fit, nothing is changed."""
        missing = [name for name in ("t", "m", "v") if name not in state_dict]
        if missing:
            raise FormatError(f"AdamOptimizer: the state lacks {', '.join(missing)}; expected t, m and v")
        t = state_dict["t"]
        if int(t) != t or t < 0:
            raise FormatError(f"AdamOptimizer: the state has t = {t}, expected a number of steps")
        found: Dict[str, List[Any]] = {}
        for name in "mv":
            values = state_dict[name]
            arrays = [np.asarray(a, dtype=ADAM_STATE_TYPE) for a in (values.values() if isinstance(values, Mapping) else values)]
            shapes, expected = [a.shape for a in arrays], [tuple(p.shape) for p in self.parameters]
            if shapes != expected:
                raise FormatError(f"AdamOptimizer: {name} has arrays of shapes {shapes}, the parameters have {expected}")
            found[name] = arrays
        for buffer, array in zip((*self.m, *self.v), (*found["m"], *found["v"])):
            buffer.write(array)
        self.t = int(t)


__all__ = ["AdamOptimizer"]
