"""Base of the optimizers: parameter groups, hooks, and states in PyTorch's format."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from .._netcl import Tensor
from ..autograd import enable_grad, no_grad
from ..errors import FormatError, UnsupportedError
from ..nn.utils.clip import clip_grad_norm_

Params = Iterable[Union[Tensor, Tuple[str, Tensor], Mapping[str, Any]]]

HINTS = ("foreach", "fused", "capturable")
"""Arguments of PyTorch that select an implementation. They are accepted and do not change results."""


class Place:
    """A parameter of an optimizer, with its group and its name in states."""

    def __init__(self, name: str, tensor: Tensor, group: Dict[str, Any]) -> None:
        self.name, self.tensor, self.group = name, tensor, group
        self.memory = tensor._place


class Removable:
    """A registered hook. ``remove`` unregisters it."""

    def __init__(self, hooks: List[Any], hook: Any) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Removes the hook."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


def _listed(params: Any) -> List[Any]:
    if isinstance(params, Tensor):
        raise TypeError("optimizer: params is a tensor, expected a list of tensors: [tensor]")
    given = list(params)
    if not given:
        raise ValueError("optimizer: got no parameters")
    if not all(isinstance(g, Mapping) for g in given):
        given = [{"params": given}]
    return given


class Optimizer:
    """Optimizer over parameters, pairs of name and parameter (``model.named_parameters()``), or groups of them as dictionaries. ``param_groups``
    can be read and written: ``group["lr"] = x`` counts from the next step on. A group can also have ``lr_scale``, a factor of its rate.

    A step skips parameters without a gradient, as in PyTorch: frozen ones and those that the loss does not depend on. Each parameter counts its
    own steps. A parameter is updated as long as it has a gradient, so call ``zero_grad`` after freezing it.

    A derived class calls ``super().__init__(params, defaults)`` and defines ``step``, or ``update`` for one parameter.
    """

    def __init__(self, params: Params, defaults: Dict[str, Any]) -> None:
        if defaults.pop("differentiable", False):
            raise ValueError("optimizer: differentiable=True is not supported; a step is not recorded on the tape")
        self.defaults = {**defaults, "lr": float(defaults["lr"])} if "lr" in defaults else dict(defaults)
        self.param_groups: List[Dict[str, Any]] = []
        self._places: List[Place] = []
        self._before: List[Any] = []
        self._after: List[Any] = []
        self._state: Dict[Tensor, Dict[str, Any]] = defaultdict(dict)
        self._max_norm: Optional[float] = None
        self._norm = 0.0
        for group in _listed(params):
            self.add_param_group(group)
        rates = [g["lr"] for g in self.param_groups if "lr" in g]
        self._base = self.defaults.get("lr", 0.0) or max(rates, default=0.0)
        self._factors = [rate / self._base if self._base else 1.0 for rate in rates]

    @property
    def state(self) -> Dict[Tensor, Dict[str, Any]]:
        """State by parameter."""
        return self._state

    @property
    def params(self) -> List[Tensor]:
        """All parameters, group by group."""
        return [p.tensor for p in self._places]

    @property
    def lr(self) -> float:
        """Learning rate. Groups that were given other rates keep their ratio to it."""
        rate = self.param_groups[0]["lr"]
        return float(rate) if not self._factors[0] else rate / self._factors[0]

    @lr.setter
    def lr(self, value: float) -> None:
        for group, factor in zip(self.param_groups, self._factors):
            group["lr"] = value * factor

    def _check_group(self, group: Mapping[str, Any]) -> None:
        known = ("params", "param_names", "name", "lr_scale", "initial_lr", *self.defaults)
        unknown = [key for key in group if key not in known]
        if unknown and self.defaults:
            raise ValueError(f"optimizer {type(self).__name__}: a group has the unknown keys {', '.join(map(repr, unknown))}; the keys are {', '.join(known)}")

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds a group of parameters: a dictionary with ``params`` and the hyperparameters that differ from the defaults."""
        if not isinstance(group, Mapping):
            raise TypeError(f"add_param_group: got {type(group).__name__}, expected a dictionary")
        self._check_group(group)
        given: List[Any] = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        own = {**{k: v for k, v in self.defaults.items()}, **{k: v for k, v in group.items() if k not in ("params", "param_names")}}
        if "lr" in own:
            own["lr"] = float(own["lr"])
        named = [p for p in given if isinstance(p, tuple)]
        made: Dict[str, Any] = {"params": [p[1] if isinstance(p, tuple) else p for p in given]}
        if named:
            made["param_names"] = [str(p[0]) if isinstance(p, tuple) else "" for p in given]
        made.update(own)
        places = self._new_places(given, made)
        self._places += places
        self.param_groups.append(made)
        if hasattr(self, "_factors"):
            self._factors.append(made["lr"] / self.lr if self.lr else 1.0)

    def _new_places(self, given: List[Any], group: Dict[str, Any]) -> List[Place]:
        places: List[Place] = []
        for p in given:
            name, tensor = p if isinstance(p, tuple) else (str(len(self._places) + len(places)), p)
            if not isinstance(tensor, Tensor):
                raise TypeError(f"optimizer: a parameter is {type(tensor).__name__}, expected a tensor")
            if not tensor.is_leaf:
                raise ValueError(f"optimizer: an operation computed the parameter {name}; expected a leaf, for example x.detach()")
            if any(tensor is other.tensor for other in self._places + places):
                raise ValueError(f"optimizer: the parameter {name} is given twice")
            # A parameter shared with a decoder keeps its name.
            places.append(Place(str(getattr(tensor, "own_name", name)), tensor, group))
        return places

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, or fills them with zeros."""
        for p in self.params:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Runs one step for all parameters that have a gradient. ``closure`` computes the loss and its gradients first; its result is returned."""
        self._check_params()
        for hook in list(self._before):
            hook(self, (), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            self._run()
        for hook in list(self._after):
            hook(self, (), {})
        return loss

    def _check_params(self) -> None:
        """Refuses other parameters in the groups than those that the optimizer was given."""
        listed = [p for group in self.param_groups for p in group["params"]]
        if len(listed) != len(self._places) or any(p is not place.tensor for p, place in zip(listed, self._places)):
            raise UnsupportedError("optimizer: the parameters in param_groups were changed; write add_param_group, or create a new optimizer")

    def _run(self) -> None:
        """Updates the parameters."""
        active = [p for p in self._places if p.tensor.grad is not None]
        if self._max_norm is not None and not self._clip(active):
            return
        for place in active:
            self._update_one(place)

    def _clip(self, active: List[Place]) -> bool:
        """Scales the gradients and measures their norm. Returns whether the norm is finite."""
        self._norm = float(clip_grad_norm_([p.tensor for p in active], self._max_norm or math.inf))
        return math.isfinite(self._norm)

    def _update_one(self, place: Place) -> None:
        grad = place.tensor.grad
        assert grad is not None
        self.update(place.tensor, grad, self._state[place.tensor], place.group)

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        raise NotImplementedError(f"{type(self).__name__} defines neither step nor update")

    def clip_grad_norm(self, max_norm: float) -> None:
        """Enables clipping from the next step on: gradients are scaled down so that their total norm is at most ``max_norm``. 0 only measures the
        norm.
        """
        self._max_norm = max_norm

    def grad_norm(self) -> float:
        """Returns the norm of all gradients in the last step, if ``clip_grad_norm`` was called. Waits for the device."""
        return self._norm

    def weights_changed(self) -> None:
        """Copies parameters to the float32 weights of 16-bit parameters. Steps do this by themselves for parameters that were written."""

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Removable:
        """Registers ``hook(optimizer, args, kwargs)``, called before each step."""
        self._before.append(hook)
        return Removable(self._before, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Removable:
        """Registers ``hook(optimizer, args, kwargs)``, called after each step."""
        self._after.append(hook)
        return Removable(self._after, hook)

    def _states(self) -> Dict[int, Dict[str, Any]]:
        """Returns the state of each parameter that has one, by its number."""
        return {i: dict(self._state[p.tensor]) for i, p in enumerate(self._places) if p.tensor in self._state and self._state[p.tensor]}

    def state_dict(self) -> Dict[str, Any]:
        """Returns the groups, and the state by the number of the parameter, as PyTorch does. Together with the weights, they allow resuming with
        bitwise equal results.
        """
        groups, first = [], 0
        for group in self.param_groups:
            n = len(group["params"])
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": list(range(first, first + n))})
            first += n
        return {"state": self._states(), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned, here or in PyTorch."""
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise FormatError(f"optimizer state: it has {len(saved)} groups, expected {len(self.param_groups)}")
        numbers: List[Any] = []
        for group, own in zip(saved, self.param_groups):
            if len(group["params"]) != len(own["params"]):
                raise FormatError(f"optimizer state: a group has {len(group['params'])} parameters, expected {len(own['params'])}")
            numbers += group["params"]
        states = {i: state_dict["state"][n] for i, n in enumerate(numbers) if n in state_dict["state"]}
        for group, own in zip(saved, self.param_groups):
            for key in ("decoupled_weight_decay", "amsgrad", "maximize"):
                if key in own and bool(group.get(key, own[key])) != bool(own[key]):
                    raise FormatError(f"optimizer state: {key} is {group[key]}, but this optimizer has {own[key]}; create it with {key}={group[key]}")
        self._check_states(states)
        for group, own in zip(saved, self.param_groups):
            own.update({k: v for k, v in group.items() if k not in ("params", "differentiable", *HINTS)})
        self._load_states(states)

    def _check_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        for i, entries in states.items():
            place = self._places[i]
            for key, value in entries.items():
                shape = tuple(getattr(value, "shape", ()))
                if shape and shape != tuple(place.tensor.shape):
                    raise FormatError(f"optimizer state: {key} of the parameter {place.name} has shape {shape}, expected {tuple(place.tensor.shape)}")

    def _load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        from .._create import tensor

        self._state.clear()
        for i, entries in states.items():
            p = self._places[i].tensor
            self._state[p] = {k: tensor(v, device=p.device) if getattr(v, "shape", ()) else float(v) if hasattr(v, "item") else v for k, v in entries.items()}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key not in ("params", "param_names")]
        return "\n".join([*lines, ")"])


__all__ = ["HINTS", "Optimizer", "Params", "Place", "Removable"]
