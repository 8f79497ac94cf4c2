"""Classes of results. A class derived from ``Tensor`` that defines the class method ``_result(made, given)`` gets the results of operations on its
instances. Operations in Rust follow it by themselves.
"""

from __future__ import annotations

from typing import Any, Sequence

from ._netcl import Tensor


def as_instance(kind: Any, made: Tensor) -> Any:
    """Returns ``made`` as an instance of the class ``kind``, if that class keeps its results."""
    return made if kind._result is None else kind._result(made, ())


def like_inputs(made: Tensor, given: Sequence[Tensor]) -> Any:
    """Returns a plain result with the class of its inputs. A result that has its own class is returned unchanged."""
    classes = [x for x in given if x._result is not None]
    if not classes or made._result is not None:
        return made
    return type(classes[0])._result(made, tuple(classes))


__all__ = ["as_instance", "like_inputs"]
