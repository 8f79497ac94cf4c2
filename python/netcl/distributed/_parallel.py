"""Data parallel models: every rank has the model and computes its rows of each batch."""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from .._create import zeros_like
from .._netcl import Tensor, all_reduce_tensors, is_recording, local_ranks, set_recording
from ..autograd import Function
from ..errors import FormatError
from ..functions import cat
from ..nn.module import Module
from ._collectives import broadcast, split
from ._ranks import Ranks, current


def _places(module: Module) -> List[Tuple[Dict[str, Any], str, Tensor]]:
    """Returns where the module keeps its parameters: a table, the name in it, and the parameter."""
    return [(part._tables()[0], name, x) for part in module.modules() for name, x in part._tables()[0].items() if isinstance(x, Tensor)]


@contextlib.contextmanager
def _with_parameters(module: Module, values: Dict[int, Tensor]) -> Iterator[None]:
    """Within the block, the module has other tensors for its parameters, given by the parameters' ``id``."""
    places = _places(module)
    try:
        for table, name, x in places:
            table[name] = values.get(id(x), x)
        yield
    finally:
        for table, name, x in places:
            table[name] = x


def _in_threads(works: Sequence[Callable[[], Any]]) -> List[Any]:
    """Calls functions in threads, the first one in this thread, with this thread's recording. Raises the first error."""
    results: List[Any] = [None] * len(works)
    errors: List[BaseException] = []
    recording = is_recording()

    def call(i: int) -> None:
        before = set_recording(recording)
        try:
            results[i] = works[i]()
        except BaseException as e:
            errors.append(e)
        finally:
            set_recording(before)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(1, len(works))]
    for thread in threads:
        thread.start()
    call(0)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class _Replica:
    """A copy of the module on one device. Its parameters are leaves that are set before each forward."""

    def __init__(self, module: Module, device: Any) -> None:
        self.module, self.device = copy.deepcopy(module).to(device=device), device
        self.leaves: List[Tensor] = []

    def forward(self, parallel: "DataParallel", parameters: Sequence[Tensor], xs: Sequence[Any], recorded: bool) -> Tensor:
        for own, other in zip(self.module.modules(), parallel.module.modules()):
            own.__dict__["training"] = other.training
        for (_, own_buffer), (_, buffer) in zip(self.module.named_buffers(), parallel.module.named_buffers()):
            own_buffer.copy_(buffer)
        self.leaves = []
        for p in parameters:
            leaf = Tensor(p.detach()._to(self.device).detach())
            leaf.requires_grad = recorded and p.requires_grad
            self.leaves.append(leaf)
        values = {id(own): leaf for own, leaf in zip(self.module.parameters(), self.leaves)}
        with _with_parameters(self.module, values):
            set_recording(recorded)
            made = self.module(*xs)
        if not isinstance(made, Tensor):
            raise FormatError(f"DataParallel: the module returns {type(made).__name__}, expected one tensor")
        return made


class _Replicated(Function):
    """The forward of all replicas as one function of the inputs and the module's parameters."""

    @staticmethod
    def forward(ctx: Any, parallel: "DataParallel", count: int, *given: Any) -> Tensor:
        args, parameters = given[:count], given[count:]
        recorded = any(ctx.needs_input_grad)
        tensors = [a for a in args if isinstance(a, Tensor)]
        sizes = parallel.ranks.divide(tensors[0].shape[0])
        active = [i for i, n in enumerate(sizes) if n]
        ctx.parallel, ctx.sizes, ctx.active = parallel, [sizes[i] for i in active], active
        ctx.inputs = [[] for _ in active]
        divided = [split(a.detach(), sizes) if isinstance(a, Tensor) else None for a in args]

        def work(slot: int, i: int) -> Tensor:
            replica, xs = parallel.replicas[i], []  # type: _Replica, List[Any]
            for a, parts, needed in zip(args, divided, ctx.needs_input_grad[2:]):
                if parts is None:
                    xs.append(a)
                    continue
                x = Tensor(parts[i]._to(replica.device).detach())
                x.requires_grad = recorded and needed
                xs.append(x)
            ctx.inputs[slot] = xs
            return replica.forward(parallel, parameters, xs, recorded)

        ctx.results = _in_threads([lambda slot=slot, i=i: work(slot, i) for slot, i in enumerate(active)])  # type: ignore[misc]
        first = parallel.replicas[active[0]].module
        for (_, buffer), (_, changed) in zip(parallel.module.named_buffers(), first.named_buffers()):
            buffer.copy_(changed)
        wrong = [tuple(y.shape) for y, n in zip(ctx.results, ctx.sizes) if not y.ndim or y.shape[0] != n]
        if wrong:
            raise FormatError(f"DataParallel: a result has shape {wrong[0]}, expected one row for each row of the inputs; compute the loss outside of the module")
        return cat([y.detach()._to(parallel.ranks.device) for y in ctx.results], 0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        parallel, replicas = ctx.parallel, [ctx.parallel.replicas[i] for i in ctx.active]
        dys = split(grads[0], ctx.sizes)
        works = [lambda y=y, dy=dy, r=r: y.backward(dy._to(r.device).contiguous()) for y, dy, r in zip(ctx.results, dys, replicas)]
        before = set_recording(True)
        try:
            _in_threads(works)
        finally:
            set_recording(before)
        home = parallel.ranks.device
        found: List[Optional[Tensor]] = [None, None]
        for k, a in enumerate(ctx.inputs[0]):
            parts = [xs[k].grad if isinstance(a, Tensor) else None for xs in ctx.inputs]
            found.append(None if any(p is None for p in parts) else cat([p._to(home) for p in parts if p is not None], 0))
        leaves = list(zip(*[r.leaves for r in replicas]))
        groups = parallel.groups(len(replicas))
        for same in leaves:
            if all(leaf.grad is None for leaf in same):
                found.append(None)
                continue
            own = [zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous() for leaf in same]
            if len(own) > 1:
                all_reduce_tensors(groups, own, "sum")
            found.append(own[0]._to(home))
        return tuple(found)


class _Averaged(Function):
    """The parameters themselves. Their gradients are the averages over all ranks, weighted by the ranks' rows."""

    @staticmethod
    def forward(ctx: Any, parallel: "DataParallel", *parameters: Tensor) -> Any:
        ctx.parallel, ctx.rows = parallel, parallel.rows
        ctx.save_for_backward(*parameters)
        return tuple(p.detach() for p in parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        group = ctx.parallel.ranks.groups[0]
        own = bytes(g is not None for g in grads) + ctx.rows.to_bytes(8, "little")
        all_ranks = group.all_gather(own)
        total = sum(int.from_bytes(text[len(grads) :], "little") for text in all_ranks)
        found: List[Optional[Tensor]] = [None]
        for i, (g, p) in enumerate(zip(grads, ctx.saved_tensors)):
            if not any(text[i] for text in all_ranks):
                found.append(None)
                continue
            weighted = zeros_like(p) if g is None else (g * (ctx.rows / max(total, 1))).contiguous()
            group.all_reduce(weighted, "sum")
            found.append(weighted)
        return tuple(found)


class DataParallel(Module):
    """A model whose batches are divided between ranks by their shares. ``parameters()`` are the module's, and an optimizer updates them as usual.

    If this program drives all devices, ``model(x)`` divides the first axis of the tensors. Each part is computed in a thread on its device. The whole
    result is on the first device. The gradients of the replicas are summed, so a loss of the whole batch has the same gradients as on one
    device. ``BatchNorm`` uses the statistics of each part; the running statistics are those of the first device.

    If this thread or process is a rank, ``model(x)`` computes this rank's rows. Parameters start with the values of rank 0, and the backward averages
    gradients over all ranks, weighted by their rows. All ranks must call forward and backward equally often.
    """

    def __init__(self, module: Module, ranks: Optional[Ranks] = None) -> None:
        super().__init__()
        self.__dict__["ranks"] = ranks = current() if ranks is None else ranks
        self.rows = 0
        module.to(device=ranks.device)
        if ranks.single:
            for x in [*module.parameters(), *(b for _, b in module.named_buffers())]:
                broadcast(x)
        self.module = module
        self.__dict__["replicas"] = [] if ranks.single else [_Replica(module, device) for device in ranks.devices]

    def groups(self, count: int) -> Any:
        """Returns groups for sums over ``count`` devices."""
        return self.ranks.groups if count == self.ranks.size else local_ranks(count)

    def forward(self, *args: Any) -> Tensor:
        """Computes the module for a batch: the first axis of each tensor is divided."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors or any(not a.ndim for a in tensors) or len({a.shape[0] for a in tensors}) > 1:
            raise FormatError(f"DataParallel: tensors of shapes {[tuple(a.shape) for a in tensors]}, expected a common first axis")
        parameters = list(self.module.parameters())
        if not self.ranks.single:
            made: Tensor = _Replicated.apply(self, len(args), *args, *parameters)
            return made
        self.rows = tensors[0].shape[0]
        trained = [p for p in parameters if p.requires_grad]
        if not is_recording() or not trained:
            own: Tensor = self.module(*args)
            return own
        averaged = _Averaged.apply(self, *trained)
        with _with_parameters(self.module, {id(p): a for p, a in zip(trained, averaged)}):
            result: Tensor = self.module(*args)
        return result


__all__ = ["DataParallel"]
