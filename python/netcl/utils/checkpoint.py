"""Activation checkpointing: the backward computes a part of the model again instead of keeping its intermediate results."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

from .._create import default_generator, zeros
from .._netcl import Tensor, is_recording, record, with_recording
from ..autograd import backward as backward_of
from ..autograd import no_grad
from ..errors import UnsupportedError


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = False, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """Calls ``function`` without keeping its intermediate results; the backward calls it again. Parameters that it uses collect their gradients.
    Random numbers are the same in both calls. ``autograd.grad`` does not pass through it.
    """
    if not is_recording():
        return function(*args, **kwargs)
    state = default_generator.seed, default_generator.offset
    with no_grad():
        made = function(*args, **kwargs)
    results: List[Tensor] = [made] if isinstance(made, Tensor) else list(made)
    tensors = [a for a in args if isinstance(a, Tensor)]
    # Parameters within the function need gradients even if no argument does.
    own = zeros((), device=results[0].device, requires_grad=True)

    def backward(*grads: Optional[Tensor]) -> List[Optional[Tensor]]:
        leaves = [a.detach().requires_grad_() if isinstance(a, Tensor) and a.requires_grad else a.detach() if isinstance(a, Tensor) else a for a in args]
        _again(function, leaves, kwargs, grads, state if preserve_rng_state else None)
        found = [a for a in leaves if isinstance(a, Tensor)]
        if any(a.requires_grad and a.grad is None for a in found):
            raise UnsupportedError("checkpoint: autograd.grad does not pass through it; write backward(), and read the leaves' grad")
        return [*(a.grad if a.requires_grad else None for a in found), None]

    recorded = record("checkpoint", [*tensors, own], [y.detach() for y in results], backward)
    return recorded[0] if isinstance(made, Tensor) else type(made)(recorded)


def _again(function: Callable[..., Any], args: List[Any], kwargs: Any, grads: Tuple[Optional[Tensor], ...], state: Optional[Tuple[int, int]]) -> None:
    """Runs the function and its backward."""
    now = default_generator.seed, default_generator.offset
    if state is not None:
        default_generator.manual_seed(state[0])
        default_generator.offset = state[1]
    try:

        def run() -> None:
            made = function(*args, **kwargs)
            results = [made] if isinstance(made, Tensor) else list(made)
            pairs = [(y, dy) for y, dy in zip(results, grads) if dy is not None and y.requires_grad]
            if pairs:
                backward_of([y for y, _ in pairs], [dy for _, dy in pairs])

        with_recording(run)
    finally:
        default_generator.manual_seed(now[0])
        default_generator.offset = now[1]


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool = False, preserve_rng_state: bool = True) -> Any:
    """Runs a sequence of modules in segments, of which all but the last are checkpointed."""
    given = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = max(len(given) // segments, 1)
    last = size * (segments - 1)

    def run(start: int, end: int) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            for each in given[start:end]:
                x = each(x)
            return x

        return part

    for start in range(0, last, size):
        input = checkpoint(run(start, start + size), input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return run(last, len(given))(input)


__all__ = ["checkpoint", "checkpoint_sequential"]
