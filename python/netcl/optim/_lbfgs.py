"""L-BFGS with a fixed step."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

from .._create import tensor
from .._netcl import Tensor
from .._torch import cat, dot
from ..autograd import enable_grad, no_grad
from ..errors import UnsupportedError
from ._base import Optimizer, Params


class LBFGS(Optimizer):
    """Limited-memory BFGS (Liu and Nocedal 1989). A step calls the closure up to ``max_eval`` times, and ends early below the tolerances. It takes one
    group of parameters. Each iteration waits for the device.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: Optional[int] = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: Optional[str] = None,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"LBFGS: lr is {lr}, expected at least 0")
        if line_search_fn is not None:
            raise UnsupportedError(f"LBFGS: line_search_fn={line_search_fn!r} is not supported; write line_search_fn=None with a smaller lr")
        defaults = {"lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval, "tolerance_grad": tolerance_grad,
                    "tolerance_change": tolerance_change, "history_size": history_size, "line_search_fn": None}  # fmt: skip
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS: got several groups of parameters, expected one")

    def _gradient(self) -> Tensor:
        """Returns the gradients of all parameters, one after another. A missing one counts as 0."""
        return cat([(p.detach() * 0.0 if p.grad is None else p.grad.detach()).float().reshape(-1) for p in self.params])

    def _move(self, step: float, direction: Tensor) -> None:
        first = 0
        for p in self.params:
            n = p.numel()
            p.add_((direction[first : first + n] * step).reshape(tuple(p.shape)))
            first += n

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Runs up to ``max_iter`` iterations. ``closure`` clears the gradients, computes the loss and its gradients, and returns the loss."""
        if closure is None:
            raise TypeError("LBFGS: step expects a closure that computes the loss and its gradients")
        self._check_params()
        for hook in list(self._before):
            hook(self, (closure,), {})
        with enable_grad():
            first_loss = closure()
        with no_grad():
            self._iterate(float(first_loss), closure)
        for hook in list(self._after):
            hook(self, (closure,), {})
        return first_loss

    def _iterate(self, loss: float, closure: Callable[[], Any]) -> None:
        group, state = self.param_groups[0], self._state[self.params[0]]
        state["func_evals"] = state.get("func_evals", 0) + 1
        state.setdefault("n_iter", 0)
        grad, calls = self._gradient(), 1
        if float(grad.abs().max()) <= group["tolerance_grad"]:
            return
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            self._turn(state, grad, group["history_size"])
            state["prev_flat_grad"], state["prev_loss"] = grad, loss
            state["t"] = (min(1.0, 1.0 / float(grad.abs().sum())) if state["n_iter"] == 1 else 1.0) * group["lr"]
            if float(dot(grad, state["d"])) > -group["tolerance_change"]:
                return
            self._move(state["t"], state["d"])
            if iteration == group["max_iter"]:
                return
            with enable_grad():
                loss = float(closure())
            grad, calls = self._gradient(), calls + 1
            state["func_evals"] += 1
            if calls >= group["max_eval"] or float(grad.abs().max()) <= group["tolerance_grad"]:
                return
            if float(state["d"].abs().max()) * state["t"] <= group["tolerance_change"] or abs(loss - state["prev_loss"]) < group["tolerance_change"]:
                return

    @staticmethod
    def _turn(state: Dict[str, Any], grad: Tensor, history: int) -> None:
        """Computes the next direction ``d`` from the gradient and the changes of the last iterations."""
        if state["n_iter"] == 1:
            state.update(d=-grad, old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return
        changes, moves, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        y, s = grad - state["prev_flat_grad"], state["d"] * state["t"]
        product = float(dot(y, s))
        if product > 1e-10:
            if len(changes) == history:
                changes.pop(0), moves.pop(0), inverses.pop(0)
            changes.append(y), moves.append(s), inverses.append(1.0 / product)
            state["H_diag"] = product / float(dot(y, y))
        d, weights = -grad, []
        for y, s, inverse in reversed(list(zip(changes, moves, inverses))):
            weights.append(float(dot(s, d)) * inverse)
            d = d - y * weights[-1]
        d = d * state["H_diag"]
        for y, s, inverse, weight in zip(changes, moves, inverses, reversed(weights)):
            d = d + s * (weight - float(dot(y, d)) * inverse)
        state["d"] = d

    def _check_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Accepts states whose vectors cover all parameters."""

    def _load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        first = self.params[0]

        def own(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [own(v) for v in value]
            if not hasattr(value, "shape"):
                return value
            return tensor(value, device=first.device) if tuple(value.shape) else float(value)

        self._state.clear()
        for entries in states.values():
            self._state[first] = {key: own(value) for key, value in entries.items() if key != "al"}


__all__: List[str] = ["LBFGS"]
