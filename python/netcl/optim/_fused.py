"""Optimizers that netcl runs in a few launches for all parameters."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .._netcl import Tensor, Update, from_bytes
from .._state import state
from ..errors import FormatError, UnsupportedError
from ._base import Optimizer, Params, Place

COMMON_STATE = ("step", "good_steps", "loss_scale")
"""Entries of a state that belong to no parameter."""

Stored = Tuple[str, str, List[int], bytes]


def hyper_of(rule: str, group: Mapping[str, Any]) -> Dict[str, float]:
    """Returns the rule's hyperparameters in a group."""
    if rule == "sgd":
        return {key: float(group[key]) for key in ("momentum", "dampening", "nesterov")}
    hyper = {"beta1": float(group["betas"][0]), "beta2": float(group["betas"][1])}
    return hyper if rule == "lion" else {**hyper, "eps": float(group["eps"])}


def rate_of(group: Mapping[str, Any]) -> float:
    """Returns the learning rate of a group."""
    return float(group["lr"]) * float(group.get("lr_scale", 1.0))


class Part:
    """Parameters of equal hyperparameters that had a gradient in the same steps, and the update over them."""

    def __init__(self, rule: str, places: List[Place], max_norm: Optional[float]) -> None:
        self.rule, self.places, self.started, self.captured = rule, places, False, False
        self.hyper = hyper_of(rule, places[0].group)
        self.base, self.factors = self._wanted()
        groups: List[Any] = []
        for place, factors in zip(places, self.factors):
            if not groups or groups[-1][1:] != factors:
                groups.append(([], *factors))
            groups[-1][0].append((place.name, place.tensor))
        self.update = Update(rule, groups, self.hyper)
        if max_norm is not None:
            self.update.clip_grad_norm(max_norm)

    def _wanted(self) -> Tuple[float, List[Tuple[float, float]]]:
        """Returns the largest rate, and for each parameter its weight decay and its share of that rate."""
        rates = [rate_of(p.group) for p in self.places]
        base = max(rates)
        return base, [(float(p.group["weight_decay"]), rate / base if base else 1.0) for p, rate in zip(self.places, rates)]

    def follow_groups(self) -> None:
        """Uses what was written to the groups since the last step."""
        hyper = hyper_of(self.rule, self.places[0].group)
        base, factors = self._wanted()
        alike = all(a == c and abs(b - d) <= 1e-12 * max(b, d) for (a, b), (c, d) in zip(self.factors, factors))
        self.base = base
        if hyper == self.hyper and alike:
            return
        if self.captured:
            raise UnsupportedError("optimizer: a captured step follows changes of one learning rate only; capture the step again")
        self.update.reconfigure(hyper, factors)
        self.hyper, self.factors = hyper, factors

    def keeps_momentum(self) -> bool:
        """Returns whether the rule has state."""
        return self.rule != "sgd" or self.hyper["momentum"] != 0

    def state_of(self, names: "Iterable[str]") -> List[Stored]:
        """Returns the state of these parameters."""
        wanted = set(names)
        return [t for t in self.update.state() if t[0] in COMMON_STATE or t[0].rpartition(".")[0] in wanted]


class CapturedStep:
    """The host's part of a step in a captured graph."""

    def __init__(self, parts: List[Part]) -> None:
        self.parts = parts

    def _set_rate(self) -> None:
        for part in self.parts:
            part.follow_groups()
            part.update.set_rate(part.base)

    def _count(self) -> None:
        for part in self.parts:
            part.update.count()


class FusedOptimizer(Optimizer):
    """Optimizer whose step updates all parameters in a few launches. Settings that the launches do not have, such as ``amsgrad``, are computed with
    tensor operations.
    """

    _rule = ""
    _composed: Tuple[str, ...] = ("amsgrad", "maximize")

    def __init__(self, params: Params, defaults: Dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._parts = [self._part(places) for places in self._alike(p for p in self._places if not self._is_composed(p))]
        self._last: List[Part] = []

    def _is_composed(self, place: Place) -> bool:
        return any(place.group.get(key) for key in self._composed)

    def _part(self, places: List[Place]) -> Part:
        return Part(self._rule, places, self._max_norm)

    def _alike(self, places: Iterable[Place]) -> List[List[Place]]:
        """Divides parameters by device and hyperparameters."""
        kinds: Dict[Any, List[Place]] = {}
        for p in places:
            kinds.setdefault((p.tensor.device.name, *hyper_of(self._rule, p.group).items()), []).append(p)
        return list(kinds.values())

    @property
    def state(self) -> Any:
        """State by parameter, for settings that use tensor operations only."""
        if self._parts:
            raise UnsupportedError(f'{type(self).__name__}.state: all parameters share their state here; write optimizer.state_dict()["state"]')
        return self._state

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds a group of parameters: a dictionary with ``params`` and the hyperparameters that differ from the defaults."""
        before = len(self._places)
        super().add_param_group(group)
        if hasattr(self, "_parts"):
            self._parts += [self._part(places) for places in self._alike(p for p in self._places[before:] if not self._is_composed(p))]

    def _regrouped(self) -> List[Part]:
        """Returns the parts after changes of hyperparameters in groups."""
        parts: List[Part] = []
        for part in self._parts:
            wrong = [p.name for p in part.places if self._is_composed(p)]
            if wrong:
                raise UnsupportedError(f"optimizer: {' or '.join(self._composed)} was set for {', '.join(wrong)} after the optimizer was created; create a new one")
            kinds = self._alike(part.places)
            parts += [part] if len(kinds) == 1 else self._divided(part, kinds)
        made = []
        for part in parts:
            momentum = part.rule == "sgd" and float(part.places[0].group["momentum"]) != 0
            if part.rule == "sgd" and part.keeps_momentum() != momentum:
                if part.started and not momentum:
                    raise UnsupportedError("optimizer: momentum was set to 0 after steps with momentum; create a new optimizer")
                part = self._part(part.places)
            part.follow_groups()
            made.append(part)
        return made

    def _active(self) -> List[Part]:
        """Returns the parts whose parameters have gradients. A part of which only some have one is divided."""
        active: List[Part] = []
        parts: List[Part] = []
        for part in self._regrouped():
            moved = [p.name for p in part.places if p.tensor._place != p.memory]
            if moved:
                raise FormatError(f"optimizer: {', '.join(moved)} moved to other memory after the optimizer was created; create it after Module.to")
            having = [p for p in part.places if p.tensor.grad is not None]
            if having and len(having) < len(part.places):
                part, rest = self._divided(part, [having, [p for p in part.places if p.tensor.grad is None]])
                parts.append(rest)
            if having:
                part.started = True
                active.append(part)
            parts.append(part)
        self._parts = parts
        return active

    def _divided(self, part: Part, kinds: List[List[Place]]) -> List[Part]:
        if part.captured:
            names = ", ".join(p.name for p in kinds[-1])
            raise UnsupportedError(f"optimizer: {names} had a gradient in a captured step, but not in this one; give each kind of step its own optimizer")
        made = [self._part(places) for places in kinds]
        for new in made if part.started else ():
            new.update.load_state(part.state_of(p.name for p in new.places))
            new.started = True
        return made

    def _run(self) -> None:
        composed = [p for p in self._places if self._is_composed(p) and p.tensor.grad is not None]
        active = self._active()
        several = (len(active) > 1 or bool(composed)) and self._max_norm is not None
        if state.capturing:
            if several or composed:
                what = f"{' or '.join(self._composed)}, or clipping of parameters with different hyperparameters or without gradients,"
                raise UnsupportedError(f"optimizer: {what} is not supported in a captured step")
            state.capturing[-1].optimizers.append(CapturedStep(active))
            for part in active:
                part.captured = True
                part.update.apply()
            self._last = active
            return
        if several and not self._clip([p for part in active for p in part.places] + composed):
            return
        for part in active:
            part.update.step(part.base)
        for place in composed:
            self._update_one(place)
        self._last = active

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, or fills them with zeros."""
        if not set_to_none or len(self._parts) == 0:
            super().zero_grad(set_to_none)
            return
        for part in self._parts:
            part.update.zero_grad()
        for place in self._places:
            if self._is_composed(place):
                place.tensor.grad = None

    def clip_grad_norm(self, max_norm: float) -> None:
        """Enables clipping from the next step on: gradients are scaled down so that their total norm is at most ``max_norm``. 0 only measures the
        norm. If parameters have different hyperparameters, or had gradients in different steps, a step waits for the norm.
        """
        super().clip_grad_norm(max_norm)
        for part in self._parts:
            part.update.clip_grad_norm(max_norm)

    def grad_norm(self) -> float:
        """Returns the norm of all gradients in the last step, if ``clip_grad_norm`` was called. Waits for the device."""
        return self._last[0].update.report()[0] if len(self._last) == 1 else self._norm

    def weights_changed(self) -> None:
        """Copies parameters to the float32 weights of 16-bit parameters. Steps do this by themselves for parameters that were written."""
        for part in self._parts:
            part.update.weights_changed()

    def _states(self) -> Dict[int, Dict[str, Any]]:
        made = super()._states()
        numbers = {p.name: i for i, p in enumerate(self._places)}
        for part in self._parts:
            if not part.started:
                continue
            stored = part.update.state()
            step = next((int.from_bytes(t[3], "little") for t in stored if t[0] == "step"), 0)
            for place in part.places:
                made[numbers[place.name]] = {"step": float(step)}
            for name, dtype, shape, data in stored:
                of, _, kind = name.rpartition(".")
                if of in numbers:
                    made[numbers[of]][kind] = _tensor(dtype, shape, data, self._places[numbers[of]].tensor)
        return dict(sorted(made.items()))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned, here, in PyTorch, or in an older netcl."""
        super().load_state_dict(state_dict if "param_groups" in state_dict else self._converted(state_dict))

    def _converted(self, old: Mapping[str, Any]) -> Dict[str, Any]:
        """Converts a state of an older netcl, which had parts instead of parameters."""
        every = [p.name for p in self._places]
        parts = old["parts"] if "parts" in old else [{"names": every, "started": True, "state": old["state"]}]
        if sorted(name for part in parts for name in part["names"]) != sorted(every):
            raise FormatError(f"optimizer state: it belongs to other parameters, expected {', '.join(every)}")
        states: Dict[int, Dict[str, Any]] = {}
        for part in parts if not all(not p["started"] for p in parts) else ():
            step = next((int.from_bytes(t[3], "little") for t in part["state"] if t[0] == "step"), 0)
            for name in part["names"] if part["started"] else ():
                i = every.index(name)
                own = [t for t in part["state"] if t[0].rpartition(".")[0] == name]
                states[i] = {"step": float(step), **{t[0].rpartition(".")[2]: _tensor(t[1], t[2], t[3], self._places[i].tensor) for t in own}}
        groups = self.state_dict()["param_groups"]
        for group, factor in zip(groups, self._factors):
            group["lr"] = old["lr"] * factor
        return {"state": states, "param_groups": groups}

    def _load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        if any(part.captured for part in self._parts):
            raise UnsupportedError("optimizer: a captured step uses the present state; load the state before the capture")
        super()._load_states({i: s for i, s in states.items() if self._is_composed(self._places[i])})
        numbers = {id(p): i for i, p in enumerate(self._places)}
        kinds: Dict[Any, List[Place]] = {}
        for places in self._alike(p for p in self._places if not self._is_composed(p)):
            for place in places:
                kinds.setdefault((id(places), _step(states.get(numbers[id(place)]))), []).append(place)
        self._parts = []
        for (_, step), places in kinds.items():
            part = self._part(places)
            if step is not None:
                stored: List[Stored] = [("step", "I64", [], int(step).to_bytes(8, "little"))]
                for place in places:
                    stored += self._stored(part, place, states[numbers[id(place)]])
                part.update.load_state(stored)
                part.started = True
            self._parts.append(part)

    def _stored(self, part: Part, place: Place, entries: Mapping[str, Any]) -> List[Stored]:
        from .._create import tensor

        made: List[Stored] = []
        for kind in ("exp_avg", "exp_avg_sq", "momentum_buffer", "master"):
            value = entries.get(kind)
            if value is None and kind == "momentum_buffer" and part.keeps_momentum() and part.rule == "sgd":
                raise FormatError(f"optimizer state: momentum_buffer of the parameter {place.name} is missing")
            if value is None or (kind == "momentum_buffer" and not part.keeps_momentum()):
                continue
            moved = value if isinstance(value, Tensor) else tensor(value)
            made.append((f"{place.name}.{kind}", "F32", list(place.tensor.shape), moved.detach().float()._bytes()))
        return made


def _tensor(dtype: str, shape: List[int], data: bytes, like: Tensor) -> Tensor:
    return from_bytes(data, shape, {"F32": "float32"}[dtype], like.device)


def _step(entries: Optional[Mapping[str, Any]]) -> Optional[float]:
    """Returns the step number of a state. SGD of PyTorch has none: a buffer says that there was a step."""
    if not entries:
        return None
    if "step" in entries:
        return float(entries["step"])
    return 1.0 if entries.get("momentum_buffer") is not None else None


__all__ = ["CapturedStep", "FusedOptimizer", "Part"]
