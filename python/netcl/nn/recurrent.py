"""Recurrent layers. Parameters, gates and their order are those of PyTorch."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Tuple

from .. import ops
from .._create import zeros
from .._netcl import Tensor
from ..errors import ShapeError, UnsupportedError
from .linear import redraw, uniform
from .module import Module

GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}


def _linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    return ops.linear(x, weight.T, bias)


def _step(mode: str, inner: Tensor, state: Tuple[Tensor, ...], weight: Tensor, bias: Optional[Tensor]) -> Tuple[Tensor, ...]:
    """Computes the next state (N, H) from the projected input (N, G H) and the state: h, and for the LSTM its cell."""
    outer = _linear(state[0], weight, bias)
    if mode == "LSTM":
        i, f, g, o = ops.chunk(inner + outer, 4, -1)
        cell = ops.sigmoid(f) * state[1] + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(cell), cell
    if mode == "GRU":
        (xr, xz, xn), (hr, hz, hn) = ops.chunk(inner, 3, -1), ops.chunk(outer, 3, -1)
        z, n = ops.sigmoid(xz + hz), ops.tanh(xn + ops.sigmoid(xr + hr) * hn)
        return (n + z * (state[0] - n),)
    return (ops.tanh(inner + outer) if mode == "RNN_TANH" else ops.relu(inner + outer),)


class RNNBase(Module):
    """A recurrent network of ``num_layers`` layers. ``RNN``, ``GRU`` and ``LSTM`` are its kinds."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if mode not in GATES or hidden_size < 1 or num_layers < 1 or not 0 <= dropout <= 1:
            raise ValueError(f"{mode}: hidden_size {hidden_size} and num_layers {num_layers} must be at least 1, dropout {dropout} from 0 to 1")
        if not 0 <= proj_size < hidden_size or proj_size and mode != "LSTM":
            raise ValueError(f"{mode}: proj_size is {proj_size}, expected 0, or for an LSTM less than hidden_size {hidden_size}")
        self.mode, self.input_size, self.hidden_size, self.num_layers, self.bias = mode, input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional, self.proj_size = batch_first, float(dropout), bidirectional, proj_size
        bound, gates, real = 1 / math.sqrt(hidden_size), GATES[mode] * hidden_size, proj_size or hidden_size
        self._names: List[List[str]] = []
        for layer in range(num_layers):
            width = input_size if layer == 0 else real * (2 if bidirectional else 1)
            for suffix in (f"_l{layer}", f"_l{layer}_reverse")[: 2 if bidirectional else 1]:
                shapes = {"weight_ih": (gates, width), "weight_hh": (gates, real)}
                if bias:
                    shapes.update(bias_ih=(gates,), bias_hh=(gates,))  # type: ignore[arg-type]
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    setattr(self, name + suffix, uniform(shape, bound, device, dtype))
                self._names.append([name + suffix for name in shapes])

    @property
    def all_weights(self) -> List[List[Tensor]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._names]

    def reset_parameters(self) -> None:
        """Draws the initial values again."""
        for parameter in self.parameters():
            redraw(parameter, 1 / math.sqrt(self.hidden_size))

    def flatten_parameters(self) -> None:
        """Does nothing: netcl does not need parameters in one block."""

    def _initial(self, hx: Any, n: int, like: Tensor, alone: bool) -> List[Tensor]:
        """Returns the states (layers · directions, N, H): h, and for the LSTM its cell."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        widths = [self.proj_size or self.hidden_size] + [self.hidden_size] * (self.mode == "LSTM")
        if hx is None:
            return [zeros(count, n, width, dtype=like.dtype, device=like.device) for width in widths]
        given = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        if len(given) != len(widths):
            raise ValueError(f"{self.mode}: got {len(given)} initial states, expected {len(widths)}")
        for i, (state, width) in enumerate(zip(given, widths)):
            expected = (count, width) if alone else (count, n, width)
            if tuple(state.shape) != expected:
                raise ShapeError(f"{self.mode}: an initial state has shape {tuple(state.shape)}, expected {expected}")
            given[i] = state.unsqueeze(1) if alone else state
        return given

    def _direction(self, x: Tensor, place: int, state: Tuple[Tensor, ...]) -> Tuple[List[Tensor], Tuple[Tensor, ...]]:
        """Runs one direction of a layer. Returns its outputs in the order of the input, and its last state."""
        weights = {name.split("_l")[0]: getattr(self, name) for name in self._names[place]}
        inner = _linear(x, weights["weight_ih"], weights.get("bias_ih"))
        steps, outputs = range(x.shape[0]), []
        backwards = self.bidirectional and place % 2 == 1
        for t in reversed(steps) if backwards else steps:
            state = _step(self.mode, inner[t], state, weights["weight_hh"], weights.get("bias_hh"))
            if self.proj_size:
                state = (_linear(state[0], weights["weight_hr"], None), *state[1:])
            outputs.append(state[0])
        return (outputs[::-1] if backwards else outputs), state

    def forward(self, input: Any, hx: Any = None) -> Tuple[Tensor, Any]:
        """Computes all steps of input (T, N, in), (N, T, in) if ``batch_first``, or (T, in). Returns the outputs of the last layer, and the last states
        (layers · directions, N, H): h, or (h, c) for an LSTM.
        """
        if not isinstance(input, Tensor):
            raise UnsupportedError(f"{self.mode}: the input is {type(input).__name__}, expected a tensor; packed sequences are not supported, pad them")
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{self.mode}: the input has shape {tuple(input.shape)}, expected 2 or 3 axes of which the last has size {self.input_size}")
        alone = input.ndim == 2
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input
        if x.shape[0] == 0:
            raise ShapeError(f"{self.mode}: the sequence is empty")
        initial = self._initial(hx, x.shape[1], x, alone)
        directions, last = 2 if self.bidirectional else 1, []
        for layer in range(self.num_layers):
            sides = []
            for side in range(directions):
                place = layer * directions + side
                outputs, state = self._direction(x, place, tuple(s[place] for s in initial))
                sides.append(ops.stack(outputs, 0))
                last.append(state)
            x = sides[0] if directions == 1 else ops.cat(sides, -1)
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = x * 0.0 if self.dropout == 1 else ops.dropout(x, self.dropout)
        states = [ops.stack([state[k] for state in last], 0) for k in range(len(initial))]
        if alone:
            x, states = x.squeeze(1), [s.squeeze(1) for s in states]
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, (tuple(states) if self.mode == "LSTM" else states[0])

    def extra_repr(self) -> str:
        """Returns the arguments."""
        text = f"{self.input_size}, {self.hidden_size}"
        text += f", proj_size={self.proj_size}" if self.proj_size else ""
        text += f", num_layers={self.num_layers}" if self.num_layers != 1 else ""
        text += "" if self.bias else f", bias={self.bias}"
        text += f", batch_first={self.batch_first}" if self.batch_first else ""
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (f", bidirectional={self.bidirectional}" if self.bidirectional else "")


class RNN(RNNBase):
    """Elman network: ``h' = tanh(W x + b + U h + c)``, or with ``nonlinearity="relu"`` the ReLU."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity is {nonlinearity!r}, expected 'tanh' or 'relu'")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
        self.nonlinearity = nonlinearity


class GRU(RNNBase):
    """Gated recurrent units (Cho et al. 2014), with the gates r, z and n."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with the gates i, f, g and o. ``proj_size`` projects h to a smaller size."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)


class RNNCellBase(Module):
    """One step of a recurrent layer."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        bound, gates = (1 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0), num_chunks * hidden_size
        self.weight_ih, self.weight_hh = uniform((gates, input_size), bound, device, dtype), uniform((gates, hidden_size), bound, device, dtype)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, uniform((gates,), bound, device, dtype) if bias else None)

    def reset_parameters(self) -> None:
        """Draws the initial values again."""
        for parameter in self.parameters():
            redraw(parameter, 1 / math.sqrt(self.hidden_size))

    def _next(self, mode: str, input: Tensor, hx: Any) -> Tuple[Tensor, ...]:
        name = type(self).__name__
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: the input has shape {tuple(input.shape)}, expected 1 or 2 axes of which the last has size {self.input_size}")
        x = input.unsqueeze(0) if input.ndim == 1 else input
        count = 2 if mode == "LSTM" else 1
        if hx is None:
            states = [zeros(x.shape[0], self.hidden_size, dtype=x.dtype, device=x.device)] * count
        else:
            states = list(hx) if count == 2 else [hx]
            for state in states:
                if tuple(state.shape) != (*input.shape[:-1], self.hidden_size):
                    raise ShapeError(f"{name}: the state has shape {tuple(state.shape)}, expected {(*input.shape[:-1], self.hidden_size)}")
            states = [s.unsqueeze(0) if input.ndim == 1 else s for s in states]
        made = _step(mode, _linear(x, self.weight_ih, self.bias_ih), tuple(states), self.weight_hh, self.bias_hh)
        return tuple(s.squeeze(0) for s in made) if input.ndim == 1 else made

    def extra_repr(self) -> str:
        """Returns the arguments."""
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else f", bias={self.bias}")
        kind = getattr(self, "nonlinearity", "tanh")
        return text + ("" if kind == "tanh" else f", nonlinearity={kind}")


class RNNCell(RNNCellBase):
    """One step of an Elman network: input (N, in) or (in), state (N, H) or (H)."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Optional[Tensor] = None) -> Tensor:
        """Returns the next state."""
        if self.nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNNCell: nonlinearity is {self.nonlinearity!r}, expected 'tanh' or 'relu'")
        return self._next(f"RNN_{self.nonlinearity.upper()}", input, hx)[0]


class GRUCell(RNNCellBase):
    """One step of gated recurrent units: input (N, in) or (in), state (N, H) or (H)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Optional[Tensor] = None) -> Tensor:
        """Returns the next state."""
        return self._next("GRU", input, hx)[0]


class LSTMCell(RNNCellBase):
    """One step of long short-term memory: input (N, in) or (in), states (h, c) of (N, H) or (H)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: Optional[Tuple[Tensor, Tensor]] = None) -> Tuple[Tensor, Tensor]:
        """Returns the next h and c."""
        h, c = self._next("LSTM", input, hx)
        return h, c


__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase"]
