"""Optimizers and schedules. A step updates all parameters in a few launches. Clipping runs on the device."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ._netcl import Tensor, Update
from ._state import state
from .autograd import no_grad
from .errors import FormatError, UnsupportedError

Params = Iterable[Union[Tensor, Tuple[str, Tensor], Mapping[str, Any]]]

HYPER: Dict[str, Tuple[str, ...]] = {
    "adamw": ("betas", "eps"), "adam": ("betas", "eps"), "lion": ("betas",), "sgd": ("momentum", "dampening", "nesterov"),
}  # fmt: skip
"""Hyperparameters of each optimizer that a group can set, besides ``lr``, ``lr_scale`` and ``weight_decay``."""

COMMON_STATE = ("step", "good_steps", "loss_scale")
"""Entries of a state that belong to no parameter."""


def _listed(params: Any) -> List[Any]:
    if isinstance(params, Tensor):
        raise TypeError("optimizer: params is a tensor, expected a list of tensors: [tensor]")
    given = list(params)
    if not given:
        raise ValueError("optimizer: got no parameters")
    if not all(isinstance(g, Mapping) for g in given):
        given = [{"params": given}]
    return given


def _hyper(rule: str, defaults: Mapping[str, float], group: Mapping[str, Any]) -> Dict[str, float]:
    """Returns the hyperparameters of a group."""
    known = ("params", "lr", "lr_scale", "weight_decay", *HYPER.get(rule, tuple(defaults)))
    unknown = [key for key in group if key not in known]
    if unknown:
        raise ValueError(f"optimizer {rule}: a group has the unknown keys {', '.join(map(repr, unknown))}; the keys are {', '.join(known)}")
    hyper = dict(defaults)
    for key in known[4:]:
        if key not in group:
            continue
        if key == "betas":
            hyper["beta1"], hyper["beta2"] = map(float, group[key])
        else:
            hyper[key] = float(group[key])
    return hyper


class _Place:
    """A parameter of an optimizer with the settings of its group."""

    def __init__(self, name: str, tensor: Tensor, weight_decay: float, lr_scale: float, hyper: Dict[str, float]) -> None:
        self.name, self.tensor, self.weight_decay, self.lr_scale, self.hyper = name, tensor, weight_decay, lr_scale, hyper
        self.memory = tensor._place

    def kind(self) -> Tuple[Any, ...]:
        """Parameters of one kind can share an update."""
        return (self.tensor.device.name, *sorted(self.hyper.items()))


class _Part:
    """Parameters that had a gradient in the same steps, so that they share a step number, and the update over them."""

    def __init__(self, rule: str, places: List[_Place], max_norm: Optional[float]) -> None:
        self.places, self.started, self.captured = places, False, False
        groups: List[Any] = []
        for p in places:
            settings = (p.weight_decay, p.lr_scale)
            if not groups or groups[-1][1:] != settings:
                groups.append(([], *settings))
            groups[-1][0].append((p.name, p.tensor))
        self.update = Update(rule, groups, places[0].hyper)
        if max_norm is not None:
            self.update.clip_grad_norm(max_norm)

    def state_of(self, names: "Iterable[str]") -> List[Any]:
        """Returns the state of these parameters."""
        wanted = set(names)
        return [t for t in self.update.state() if t[0] in COMMON_STATE or t[0].rpartition(".")[0] in wanted]


def _places(rule: str, params: Params, lr: float, weight_decay: float, defaults: Mapping[str, float]) -> Tuple[List[_Place], float]:
    """Returns the parameters with the settings of their groups, and the learning rate that the groups' factors refer to."""
    groups = _listed(params)
    rates = [float(g["lr"]) for g in groups if "lr" in g]
    base = lr if lr or not rates else max(rates)
    places: List[_Place] = []
    for group in groups:
        hyper = _hyper(rule, defaults, group)
        scale = (float(group.get("lr", lr)) / base if base else 1.0) * float(group.get("lr_scale", 1.0))
        own = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        for p in own:
            name, tensor = p if isinstance(p, tuple) else (f"{len(places)}", p)
            if not isinstance(tensor, Tensor):
                raise TypeError(f"optimizer: a parameter is {type(tensor).__name__}, expected a tensor")
            if not tensor.is_leaf:
                raise ValueError(f"optimizer: an operation computed the parameter {name}; expected a leaf, for example x.detach()")
            if any(tensor is other.tensor for other in places):
                raise ValueError(f"optimizer: the parameter {name} is given twice")
            # A parameter shared with a decoder keeps its name.
            name = getattr(tensor, "own_name", name)
            places.append(_Place(name, tensor, float(group.get("weight_decay", weight_decay)), scale, hyper))
    return places, base


class _CapturedStep:
    """The host's part of a step in a captured graph."""

    def __init__(self, optimizer: "Optimizer", parts: List[_Part]) -> None:
        self.optimizer, self.parts = optimizer, parts

    def _set_rate(self) -> None:
        for part in self.parts:
            part.update.set_rate(self.optimizer.lr)

    def _count(self) -> None:
        for part in self.parts:
            part.update.count()


class Optimizer:
    """Optimizer over parameters, pairs of name and parameter (``model.named_parameters()``, which makes states readable), or groups of them as
    dictionaries. A group can set ``lr``, ``lr_scale`` (a factor), ``weight_decay`` and the hyperparameters of the optimizer.

    A step skips parameters without a gradient, as in PyTorch: frozen ones and those that the loss does not depend on. Each parameter counts its
    own steps. A parameter is updated as long as it has a gradient, so call ``zero_grad`` after freezing it.
    """

    def __init__(self, rule: str, params: Params, lr: float, weight_decay: float, hyper: Dict[str, float]) -> None:
        self._rule, self._max_norm, self._norm = rule, None, 0.0  # type: Tuple[str, Optional[float], float]
        self._all, self.lr = _places(rule, params, lr, weight_decay, hyper)
        self.params = [p.tensor for p in self._all]
        kinds: Dict[Any, List[_Place]] = {}
        for place in self._all:
            kinds.setdefault(place.kind(), []).append(place)
        self._parts = [_Part(rule, places, None) for places in kinds.values()]
        self._last: List[_Part] = []

    def _active(self) -> List[_Part]:
        """Returns the parts whose parameters have gradients. A part of which only some have one is split."""
        active: List[_Part] = []
        parts: List[_Part] = []
        for part in self._parts:
            moved = [p.name for p in part.places if p.tensor._place != p.memory]
            if moved:
                raise FormatError(f"optimizer: {', '.join(moved)} moved to other memory after the optimizer was created; create it after Module.to")
            having = [p for p in part.places if p.tensor.grad is not None]
            if having and len(having) < len(part.places):
                part, rest = self._split(part, having)
                parts.append(rest)
            if having:
                part.started = True
                active.append(part)
            parts.append(part)
        self._parts = parts
        return active

    def _split(self, part: _Part, having: List[_Place]) -> Tuple[_Part, _Part]:
        if part.captured:
            names = ", ".join(p.name for p in part.places if p not in having)
            raise UnsupportedError(f"optimizer: {names} had a gradient in a captured step, but not in this one; give each kind of step its own optimizer")
        made = [_Part(self._rule, places, self._max_norm) for places in (having, [p for p in part.places if p not in having])]
        for new in made if part.started else ():
            new.update.load_state(part.state_of(p.name for p in new.places))
            new.started = True
        return made[0], made[1]

    def step(self) -> None:
        """Runs one step with the learning rate ``lr`` for all parameters that have a gradient."""
        active = self._active()
        several = len(active) > 1 and self._max_norm is not None
        if state.capturing:
            if several:
                raise UnsupportedError("optimizer: clipping in a captured step needs parameters of equal hyperparameters that all have gradients")
            state.capturing[-1].optimizers.append(_CapturedStep(self, active))
            for part in active:
                part.captured = True
                part.update.apply()
            self._last = active
            return
        if several:
            self._norm = clip_grad_norm_([p.tensor for part in active for p in part.places], self._max_norm or math.inf)
            if not math.isfinite(self._norm):
                return
        for part in active:
            part.update.step(self.lr)
        self._last = active

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, or fills them with zeros."""
        if set_to_none:
            for part in self._parts:
                part.update.zero_grad()
            return
        for p in self.params:
            if p.grad is not None:
                p.grad.zero_()

    def clip_grad_norm(self, max_norm: float) -> None:
        """Enables clipping from the next step on: gradients are scaled down so that their total norm is at most ``max_norm``. 0 only measures the
        norm. If parameters have different hyperparameters, or had gradients in different steps, a step waits for the norm.
        """
        self._max_norm = max_norm
        for part in self._parts:
            part.update.clip_grad_norm(max_norm)

    def grad_norm(self) -> float:
        """Returns the norm of all gradients in the last step, if ``clip_grad_norm`` was called. Waits for the device."""
        return self._last[0].update.report()[0] if len(self._last) == 1 else self._norm

    def weights_changed(self) -> None:
        """Copies parameters to the float32 weights of 16-bit parameters. Steps do this by themselves for parameters that were written."""
        for part in self._parts:
            part.update.weights_changed()

    def state_dict(self) -> Dict[str, Any]:
        """Returns learning rate, step numbers and moments. Together with the weights, they allow resuming with bitwise equal results."""
        if len(self._parts) == 1:
            return {"lr": self.lr, "state": self._parts[0].update.state()}
        parts = [{"names": [p.name for p in part.places], "started": part.started, "state": part.update.state()} for part in self._parts]
        return {"lr": self.lr, "parts": parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        if "parts" not in state and len(self._parts) == 1:
            self._parts[0].update.load_state(state["state"])
            self._parts[0].started = True
        else:
            self._parts = self._loaded(state)
        self.lr = state["lr"]

    def _loaded(self, state: Mapping[str, Any]) -> List[_Part]:
        """Returns new parts with a state."""
        every = [p.name for p in self._all]
        saved = state["parts"] if "parts" in state else [{"names": every, "started": True, "state": state["state"]}]
        if sorted(name for part in saved for name in part["names"]) != sorted(every):
            raise FormatError(f"optimizer state: it belongs to other parameters, expected {', '.join(every)}")
        if any(part.captured for part in self._parts):
            raise UnsupportedError("optimizer: a captured step uses the present state; load the state before the capture")
        made = []
        for part in saved:
            places = [p for p in self._all if p.name in part["names"]]
            if len({p.kind() for p in places}) != 1:
                raise FormatError("optimizer state: parameters that shared hyperparameters have different ones here; use equal groups")
            new = _Part(self._rule, places, self._max_norm)
            new.update.load_state(part["state"])
            new.started = part["started"]
            made.append(new)
        return made


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def __init__(self, params: Params, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2) -> None:
        super().__init__("adamw", params, lr, weight_decay, {"beta1": betas[0], "beta2": betas[1], "eps": eps})


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

    def __init__(self, params: Params, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__("adam", params, lr, weight_decay, {"beta1": betas[0], "beta2": betas[1], "eps": eps})


class Lion(Optimizer):
    """Steps of constant size in the direction of an average's sign (Chen et al. 2023, arXiv:2302.06675), with decoupled weight decay."""

    def __init__(self, params: Params, lr: float = 1e-4, betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__("lion", params, lr, weight_decay, {"beta1": betas[0], "beta2": betas[1]})


class SGD(Optimizer):
    """Gradient descent; weight decay is added to the gradient."""

    def __init__(self, params: Params, lr: float = 1e-2, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__("sgd", params, lr, weight_decay, {"momentum": momentum, "dampening": dampening, "nesterov": float(nesterov)})


class Schedule:
    """Learning rate as a function of the step number. Call ``step()`` after each optimizer step."""

    def __init__(self, optimizer: Optimizer, rate: Callable[[int], float]) -> None:
        self.optimizer, self.rate, self.number = optimizer, rate, 0
        optimizer.lr = rate(0)

    def step(self) -> None:
        """Sets the learning rate of the next step."""
        self.number += 1
        self.optimizer.lr = self.rate(self.number)

    def state_dict(self) -> Dict[str, int]:
        """Returns the step number."""
        return {"number": self.number}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a saved step number."""
        self.number = state["number"]
        self.optimizer.lr = self.rate(self.number)


def cosine(lr: float, warmup: int, decay: int, min_lr: float = 0.0) -> Callable[[int], float]:
    """Linear warm-up from ``lr / (warmup + 1)``, then a cosine down to ``min_lr`` at step ``decay``, then constant."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / (warmup + 1)
        if step >= decay:
            return min_lr
        return min_lr + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (decay - warmup))) * (lr - min_lr)

    return rate


def linear(lr: float, warmup: int, decay: int, min_lr: float = 0.0) -> Callable[[int], float]:
    """Linear warm-up as in ``cosine``, then linear decay to ``min_lr`` at step ``decay``, then constant."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / (warmup + 1)
        if step >= decay:
            return min_lr
        return min_lr + (1 - (step - warmup) / (decay - warmup)) * (lr - min_lr)

    return rate


def clip_grad_norm_(params: Union[Tensor, Iterable[Tensor]], max_norm: float) -> float:
    """Scales all gradients down in place so that their total norm is at most ``max_norm``. Returns the norm before. Waits for the device, unlike
    ``Optimizer.clip_grad_norm``.
    """
    grads = [p.grad for p in ([params] if isinstance(params, Tensor) else params)]
    found = [g for g in grads if g is not None]
    with no_grad():
        norm = math.sqrt(sum(float(g.float().square().sum().item()) for g in found))
        factor = max_norm / (norm + 1e-6)
        for g in () if factor >= 1 else found:
            g *= factor
    return norm


__all__ = ["Adam", "AdamW", "Lion", "Optimizer", "SGD", "Schedule", "clip_grad_norm_", "cosine", "linear"]
