"""Worker processes that load samples. They return arrays of the host, and the process that trains makes tensors of them."""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import random
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .._netcl import Tensor


class WorkerInfo:
    """A worker's number ``id``, the number of workers, its ``seed`` and its copy of the data set."""

    def __init__(self, id: int, num_workers: int, seed: int, dataset: Any) -> None:
        self.id, self.num_workers, self.seed, self.dataset = id, num_workers, seed, dataset


_here: Dict[str, WorkerInfo] = {}


def get_worker_info() -> Optional[WorkerInfo]:
    """Returns the information about this worker process, or ``None`` in the main process."""
    return _here.get("info")


class Host:
    """An array that becomes a tensor in the main process."""

    def __init__(self, array: Any, dtype: Optional[str] = None) -> None:
        self.array, self.dtype = array, dtype


def host_batch(samples: List[Any]) -> Any:
    """Combines samples as ``default_collate``, but makes no tensors."""
    import numpy as np

    first = samples[0]
    if isinstance(first, Tensor):
        return Host(np.stack([s.detach().numpy() for s in samples]), first.dtype.name)
    if isinstance(first, (str, bytes)):
        return samples
    if isinstance(first, Mapping):
        return {key: host_batch([s[key] for s in samples]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(host_batch(list(part)) for part in zip(*samples)))
    if hasattr(first, "__array__"):
        return Host(np.stack([np.asarray(s) for s in samples]))
    if isinstance(first, Sequence):
        if any(len(s) != len(first) for s in samples):
            raise RuntimeError("collate: the samples are sequences of different lengths; pass collate_fn")
        return [host_batch(list(part)) for part in zip(*samples)]
    if isinstance(first, (bool, int, float)):
        kind = "bool" if all(isinstance(s, bool) for s in samples) else "int64" if all(isinstance(s, int) for s in samples) else "float32"
        return Host(np.array(samples, dtype=kind))
    raise TypeError(f"collate: a sample has {type(first).__name__}, expected tensors, arrays, numbers, text, dictionaries, tuples or lists; pass collate_fn")


def host_sample(sample: Any) -> Any:
    """Prepares a sample without a batch, as ``default_convert``."""
    import numpy as np

    if isinstance(sample, Tensor):
        return Host(sample.detach().numpy(), sample.dtype.name)
    if isinstance(sample, Mapping):
        return {key: host_sample(value) for key, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(host_sample(s) for s in sample))
    if hasattr(sample, "__array__"):
        return Host(np.asarray(sample))
    if isinstance(sample, (list, tuple)):
        return [host_sample(s) for s in sample]
    return sample


def from_host(made: Any) -> Any:
    """Makes tensors of a worker's arrays."""
    from .._create import tensor

    if isinstance(made, Host):
        return tensor(made.array, dtype=made.dtype)
    if isinstance(made, dict):
        return {key: from_host(value) for key, value in made.items()}
    if isinstance(made, tuple) and hasattr(made, "_fields"):
        return type(made)(*(from_host(m) for m in made))
    return [from_host(m) for m in made] if isinstance(made, list) else made


def _serve(orders: Any, results: Any, dataset: Any, collate: Any, init: Any, id: int, workers: int, device: Optional[str], iterable: bool, fork: bool) -> None:
    """Runs in a worker: answers orders until it gets ``None``."""
    try:
        if not fork and device is not None:
            from .._netcl import set_default_device

            set_default_device(device)
        source: Iterator[Any] = iter(())
        while True:
            order = orders.get()
            if order is None:
                return
            kind, run, number, what = order
            try:
                if kind == "start":
                    _start(dataset, init if number == 0 else None, id, workers, what)
                    source = iter(dataset) if iterable else source
                    continue
                results.put((run, number, "made", pickle.dumps(_make(dataset, source, collate, what, iterable))))
            except StopIteration:
                results.put((run, number, "end", b""))
            except Exception as error:  # Every error of a data set goes to the main process.
                text = f"DataLoader: worker {id} failed:\n{traceback.format_exc()}"
                results.put((run, number, "failed", pickle.dumps((type(error).__name__, str(error), text))))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return


def _start(dataset: Any, init: Any, id: int, workers: int, seed: int) -> None:
    import numpy as np

    random.seed(seed + id)
    np.random.seed((seed + id) % 2**32)
    _here["info"] = WorkerInfo(id, workers, seed + id, dataset)
    from .._create import manual_seed

    manual_seed(seed + id)
    if init is not None:
        init(id)


def _make(dataset: Any, source: Iterator[Any], collate: Any, what: Any, iterable: bool) -> Any:
    if iterable:
        count, drop = what
        if count is None:
            return (collate or host_sample)(next(source))
        samples = [s for _, s in zip(range(count), source)]
        if not samples or (drop and len(samples) < count):
            raise StopIteration
    elif isinstance(what, list):
        samples = dataset.__getitems__(what) if hasattr(dataset, "__getitems__") else [dataset[i] for i in what]
    else:
        return (collate or host_sample)(dataset[what])
    return (collate or host_batch)(samples)


class Pool:
    """The worker processes of a loader."""

    def __init__(self, dataset: Any, workers: int, collate: Any, init: Any, context: Any, timeout: float, iterable: bool) -> None:
        chosen: Any = multiprocessing.get_context(context or "spawn") if context is None or isinstance(context, str) else context
        fork = chosen.get_start_method() == "fork"
        self._timeout, self._run = timeout, 0
        self._results: Any = chosen.Queue()
        self._orders: List[Any] = [chosen.Queue() for _ in range(workers)]
        device = None
        if not fork:
            from .._netcl import default_device

            device = default_device().name
        self._workers: List[Any] = []
        for i in range(workers):
            arguments = (self._orders[i], self._results, dataset, collate, init, i, workers, device, iterable, fork)
            worker = chosen.Process(target=_serve, args=arguments, daemon=True)
            worker.start()
            self._workers.append(worker)

    def run(self, tasks: Iterator[Any], seed: int, ahead: int, in_order: bool) -> Iterator[Any]:
        """Yields the results of all tasks. ``ahead`` is the number of tasks that each worker has at a time."""
        self._run += 1
        run, n = self._run, len(self._workers)
        for orders in self._orders:
            orders.put(("start", run, run - 1, seed))
        sent, wanted, ended = 0, 0, set()  # type: int, int, set[int]
        open_tasks: Dict[int, int] = {}
        done: Dict[int, Tuple[str, bytes]] = {}
        turn, more = 0, True

        def send() -> bool:
            nonlocal sent, turn
            free = [w for w in range(n) if w not in ended]
            if not free:
                return False
            task = next(tasks, None)
            if task is None:
                return False
            while turn % n in ended:
                turn += 1
            self._orders[turn % n].put(("make", run, sent, task[0]))
            open_tasks[sent] = turn % n
            sent, turn = sent + 1, turn + 1
            return True

        while more and len(open_tasks) < ahead * n:
            more = send()
        while open_tasks or done:
            number = wanted if in_order else next(iter(done), -1)
            if number not in done:
                got, kind, data = self._next(run)
                done[got] = (kind, data)
                worker = open_tasks.pop(got)
                if kind == "end":
                    ended.add(worker)
                continue
            kind, data = done.pop(number)
            wanted += 1
            if more:
                more = send()
            if kind == "failed":
                name, message, text = pickle.loads(data)
                raise _error(name, message, text)
            if kind == "made":
                yield from_host(pickle.loads(data))

    def _next(self, run: int) -> Tuple[int, str, bytes]:
        waited = 0.0
        while True:
            try:
                of, number, kind, data = self._results.get(timeout=min(self._timeout or 2.0, 2.0))
            except queue.Empty:
                waited += min(self._timeout or 2.0, 2.0)
                dead = [i for i, w in enumerate(self._workers) if not w.is_alive()]
                if dead:
                    raise RuntimeError(
                        f"DataLoader: worker {dead[0]} ended with code {self._workers[dead[0]].exitcode}. Workers start with the method spawn, which needs "
                        "`if __name__ == '__main__':` around the program's start"
                    ) from None
                if self._timeout and waited >= self._timeout:
                    raise RuntimeError(f"DataLoader: timed out after {self._timeout} seconds; raise timeout, or load less per sample") from None
                continue
            if of == run:
                return number, kind, data

    def close(self) -> None:
        """Ends the workers."""
        for orders in self._orders:
            try:
                orders.put(None)
            except (OSError, ValueError):
                pass
        for worker in self._workers:
            worker.join(timeout=1.0)
            if worker.is_alive():
                worker.terminate()
                worker.join(timeout=1.0)
        for each in [*self._orders, self._results]:
            each.cancel_join_thread()
            each.close()
        self._workers = []


def _error(name: str, message: str, text: str) -> BaseException:
    """Returns the error of a worker as its built-in class, if it has one."""
    import builtins

    kind = getattr(builtins, name, RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind is KeyError:
        kind = KeyError if kind is KeyError else RuntimeError
    return kind(text)


__all__ = ["Host", "Pool", "WorkerInfo", "from_host", "get_worker_info", "host_batch"]
