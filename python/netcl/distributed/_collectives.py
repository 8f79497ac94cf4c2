"""Sums, copies and divisions of tensors between ranks. They are not recorded on the tape."""

from __future__ import annotations

import json
from typing import Any, List, Optional, Sequence, Union

from .._dtype import DTYPES
from .._netcl import Device, Tensor, all_reduce_tensors, from_bytes
from ..autograd import no_grad
from ..errors import FormatError, ShapeError
from ..functions import cat
from ._ranks import Ranks, current

Tensors = Union[Tensor, Sequence[Tensor]]


def _listed(name: str, ranks: Ranks, given: Any) -> List[Tensor]:
    """Returns one tensor per device of a program that drives all devices."""
    tensors = [given] if isinstance(given, Tensor) else list(given)
    if len(tensors) != ranks.size:
        raise FormatError(
            f"{name}: got {len(tensors)} tensors for {ranks.size} devices; pass a list with one tensor per device, such as scatter or broadcast return, "
            "or make each device a rank with distributed.run"
        )
    return tensors


def _one(name: str, given: Any) -> Tensor:
    if not isinstance(given, Tensor):
        raise FormatError(f"{name}: got {type(given).__name__}, expected this rank's tensor")
    return given


def all_reduce(tensor: Any, op: str = "sum") -> Any:
    """Replaces the elements with their ``sum``, ``mean`` or ``max`` over all ranks, and returns the argument. Sums are computed in f32 in the order of
    ranks, so all ranks get the same bits.
    """
    ranks = current()
    tensors = [_one("all_reduce", tensor)] if ranks.single else _listed("all_reduce", ranks, tensor)
    if len({(tuple(t.shape), t.dtype.name) for t in tensors}) > 1:
        raise ShapeError(f"all_reduce: tensors differ: {', '.join(f'{t.dtype.name} {tuple(t.shape)}' for t in tensors)}")
    with no_grad():
        dense = [t.detach() if t.is_contiguous() else t.detach().contiguous() for t in tensors]
        if ranks.single:
            ranks.groups[0].all_reduce(dense[0], op)
        else:
            all_reduce_tensors(ranks.groups, dense, op)
        for t, d in zip(tensors, dense):
            if not t.is_contiguous():
                t.copy_(d)
    return tensor


def _root(name: str, ranks: Ranks, root: int) -> int:
    if not 0 <= root < ranks.size:
        raise FormatError(f"{name}: root is {root}, expected 0 to {ranks.size - 1}")
    return root


def broadcast(tensor: Tensors, root: int = 0) -> Any:
    """Copies the elements of the rank ``root`` to all ranks, in place, and returns the argument.

    A program that drives all devices passes a list. It may also pass one tensor, and gets a list of copies, one per device.
    """
    ranks = current()
    _root("broadcast", ranks, root)
    with no_grad():
        if ranks.single:
            own = _one("broadcast", tensor)
            dense = own.detach() if own.is_contiguous() else own.detach().contiguous()
            ranks.groups[0].broadcast(dense, root)
            if not own.is_contiguous():
                own.copy_(dense)
            return tensor
        if isinstance(tensor, Tensor):
            return [tensor.detach()._to(device).clone() for device in ranks.devices]
        tensors = _listed("broadcast", ranks, tensor)
        for i, other in enumerate(tensors):
            if i != root:
                if tuple(other.shape) != tuple(tensors[root].shape):
                    raise ShapeError(f"broadcast: tensor {i} has shape {tuple(other.shape)}, expected {tuple(tensors[root].shape)}")
                other.copy_(tensors[root])
        return tensor


def _packed(x: Tensor) -> bytes:
    return json.dumps([x.dtype.name, list(x.shape)]).encode() + b"\n" + x.detach()._bytes()


def _unpacked(data: bytes, device: Device) -> Tensor:
    head, _, body = data.partition(b"\n")
    dtype, shape = json.loads(head)
    return from_bytes(body, shape, DTYPES[dtype], device)


def split(x: Tensor, sizes: Sequence[int], axis: int = 0) -> List[Tensor]:
    """Returns consecutive parts of an axis, as views."""
    if sum(sizes) != x.shape[axis]:
        raise ShapeError(f"scatter: parts {list(sizes)} of an axis of size {x.shape[axis]}")
    parts, start, axis = [], 0, axis % x.ndim
    for n in sizes:
        parts.append(x[(slice(None),) * axis + (slice(start, start + n),)])
        start += n
    return parts


def scatter(tensor: Optional[Tensors], root: int = 0, axis: int = 0) -> Any:
    """Divides a tensor along an axis by the ranks' shares. Each rank gets its part on its device; a program that drives all devices gets a list.

    The rank ``root`` passes the tensor, or a list with the parts; the others pass ``None``.
    """
    ranks = current()
    _root("scatter", ranks, root)
    with no_grad():
        if not ranks.single:
            if tensor is None:
                raise FormatError("scatter: got None, expected a tensor or a list with one tensor per device")
            parts = split(tensor.detach(), ranks.divide(tensor.shape[axis]), axis) if isinstance(tensor, Tensor) else _listed("scatter", ranks, tensor)
            return [part.detach()._to(device).clone() for part, device in zip(parts, ranks.devices)]
        group, leads = ranks.groups[0], ranks.rank == root
        # Every rank knows the size of the axis, because a division by profiles is an operation of all ranks.
        whole = tensor if leads else None
        size = int(group.all_gather(str(whole.shape[axis] if isinstance(whole, Tensor) else -1).encode())[root])
        sizes = ranks.divide(size) if size >= 0 else []
        if not leads:
            return _unpacked(group.scatter(None, root), ranks.device)
        if whole is None:
            raise FormatError("scatter: the root got None, expected a tensor or a list with one tensor per rank")
        parts = split(whole.detach(), sizes, axis) if isinstance(whole, Tensor) else _listed("scatter", ranks, whole)
        return _unpacked(group.scatter([_packed(part) for part in parts], root), ranks.device)


def gather(tensor: Tensors, root: int = 0, axis: int = 0) -> Optional[Tensor]:
    """Concatenates the ranks' tensors along an axis, on the device of the rank ``root``. The other ranks get ``None``."""
    ranks = current()
    _root("gather", ranks, root)
    with no_grad():
        if not ranks.single:
            return cat([part.detach()._to(ranks.devices[root]) for part in _listed("gather", ranks, tensor)], axis)
        parts = ranks.groups[0].gather(_packed(_one("gather", tensor)), root)
        return None if parts is None else cat([_unpacked(part, ranks.device) for part in parts], axis)


def all_gather(tensor: Tensors, axis: int = 0) -> Any:
    """Concatenates the ranks' tensors along an axis, on every rank's device."""
    ranks = current()
    with no_grad():
        if not ranks.single:
            parts = _listed("all_gather", ranks, tensor)
            return [cat([part.detach()._to(device) for part in parts], axis) for device in ranks.devices]
        return cat([_unpacked(part, ranks.device) for part in ranks.groups[0].all_gather(_packed(_one("all_gather", tensor)))], axis)


def barrier() -> None:
    """Waits until all ranks have called it, and their devices are idle."""
    ranks = current()
    for device in ranks.devices:
        device.synchronize()
    if ranks.single:
        ranks.groups[0].barrier()


__all__ = ["all_gather", "all_reduce", "barrier", "broadcast", "gather", "scatter", "split"]
