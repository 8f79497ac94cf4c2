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

                if state.capturing:
                    raise UnsupportedError(f"{op.__name__}: a seed drawn in a captured step or a graph of operations would be the same in every replay; pass seed=…")
                kwargs["seed"] = default_generator.draw_seed()
            return op(*args, **kwargs)

    call.__name__ = call.__qualname__ = op.__name__
    call.__doc__ = op.doc
    return call


__all__ = list(ops())
globals().update({name: function(Op(name)) for name in __all__})
