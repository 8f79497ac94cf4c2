"""Every operation of netcl as a function. Tensors come first, then attributes. All operations are recorded on the tape.

The list comes from the Rust library, so operations added there appear here. ``help(netcl.ops.softmax)`` describes one.
"""

from __future__ import annotations

from typing import Any, Callable

from ._netcl import Op, ops
from ._state import state
from .errors import UnsupportedError


def function(op: Op) -> Callable[..., Any]:
    """Wraps an operation as a function. If no seed is given, it is drawn from the default generator."""
    names = [a[0] for a in op.attributes]
    if "seed" not in names:

        def call(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

    else:
        place = len(op.inputs) + names.index("seed")

        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) <= place and kwargs.get("seed") is None:
                from ._create import default_generator

                if op.__name__ == "dropout" and (state.capturing or state.preparing):
                    return _repeated_dropout(op, *args, **kwargs)
                if state.capturing:
                    raise UnsupportedError(f"{op.__name__}: a seed drawn in a captured step or a graph of operations would be the same in every replay; pass seed=…")
                kwargs["seed"] = default_generator.draw_seed()
            return op(*args, **kwargs)

    call.__name__ = call.__qualname__ = op.__name__
    call.__doc__ = op.doc
    return call


def _repeated_dropout(op: Op, x: Any, probability: float = 0.5, seed: None = None, offset: int = 0) -> Any:
    """Computes dropout with a mask that each replay of a captured step draws anew. The bits are those of dropout."""
    from ._create import default_generator, ones
    from ._draws import drawn

    shape, device = tuple(x.shape), x.device
    mask = drawn(("dropout", shape, probability, offset), lambda: op(ones(*shape, device=device), probability, default_generator.draw_seed(), offset))
    return (x * mask)._to(None, x.dtype)


__all__ = list(ops())
globals().update({name: function(Op(name)) for name in __all__})
