"""Data sets, samplers, batches and worker processes, next to PyTorch's where it is installed."""

import collections
import time

import numpy as np
import pytest

import netcl as nc
from netcl import data

Point = collections.namedtuple("Point", "x label")


class Squares(data.Dataset):
    def __init__(self, n=10, kind="tuple"):
        self.n, self.kind = n, kind

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        x = np.full(2, i * i, np.float32)
        return {"tuple": (x, i), "dict": {"x": x, "name": str(i), "nested": [float(i), i % 2 == 0]}, "named": Point(x, i), "number": i / 2, "bad": self._bad(i)}[self.kind]

    def _bad(self, i):
        if self.kind == "bad" and i == 5:
            raise ValueError("sample five is bad")
        return i


class Stream(data.IterableDataset):
    def __init__(self, n=10):
        self.n = n

    def __iter__(self):
        info = data.get_worker_info()
        return iter(range(self.n) if info is None else range(info.id, self.n, info.num_workers))


class Slow(data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        time.sleep(30)
        return i


def doubled(samples):
    return [s[1] * 2 for s in samples]


def started(worker):
    assert data.get_worker_info().id == worker


def plain(batch):
    if isinstance(batch, nc.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {k: plain(v) for k, v in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*map(plain, batch))
    return [plain(b) for b in batch] if isinstance(batch, (list, tuple)) else batch


def test_batches_keep_the_structure_of_samples():
    first = next(iter(data.DataLoader(Squares(), 3)))
    assert isinstance(first, list) and first[0].shape == (3, 2) and first[1].dtype is nc.int32
    batch = next(iter(data.DataLoader(Squares(kind="dict"), 2)))
    assert batch["name"] == ["0", "1"] and batch["nested"][0].dtype is nc.float32 and batch["nested"][1].dtype is nc.bool_
    assert isinstance(next(iter(data.DataLoader(Squares(kind="named"), 2))), Point)
    assert [len(b[1]) for b in data.DataLoader(Squares(), 4)] == [4, 4, 2] and len(data.DataLoader(Squares(), 4, drop_last=True)) == 2
    single = next(iter(data.DataLoader(Squares(), batch_size=None)))
    assert single[0].shape == (2,) and single[1] == 0
    assert [plain(b) for b in data.DataLoader(Stream(5), 2)] == [[0, 1], [2, 3], [4]]
    assert plain(next(iter(data.DataLoader(Squares(), batch_sampler=[[3, 1], [0]])))[1]) == [3, 1]
    assert list(data.DataLoader(Squares(), 2, collate_fn=doubled))[1] == [4, 6]
    with pytest.raises(TypeError, match="collate_fn"):
        data.default_collate([object()])
    with pytest.raises(RuntimeError, match="lengths"):
        data.default_collate([[1, 2], [1]])


def test_the_order_comes_from_the_seed_or_the_generator():
    def order(loader):
        return [i for b in loader for i in b[1].tolist()]

    def loaders():
        return data.DataLoader(Squares(), 3, shuffle=True, seed=4), data.DataLoader(Squares(), 3, shuffle=True, generator=nc.Generator(4))

    for one, other in zip(loaders(), loaders()):
        passes = order(one), order(one)
        assert passes == (order(other), order(other)) and passes[0] != passes[1] and sorted(passes[0]) == list(range(10))
    generator = nc.Generator().manual_seed(4)
    assert isinstance(generator, nc.Generator) and generator.initial_seed() == 4
    assert order(data.DataLoader(Squares(), 3, shuffle=True, generator=generator)) == order(loaders()[1])
    nc.manual_seed(1)
    first = order(data.DataLoader(Squares(), 3, shuffle=True))
    nc.manual_seed(1)
    assert order(data.DataLoader(Squares(), 3, shuffle=True)) == first


def test_samplers_and_parts():
    assert sorted(data.RandomSampler(range(9))) == list(range(9)) and len(list(data.RandomSampler(range(3), True, 20))) == 20
    assert len(list(data.RandomSampler(range(3), num_samples=7))) == 7 and sorted(data.SubsetRandomSampler([5, 2, 9])) == [2, 5, 9]
    nc.manual_seed(0)
    drawn = collections.Counter(data.WeightedRandomSampler([1, 0, 3], 4000))
    assert drawn[1] == 0 and 0.2 < drawn[0] / 4000 < 0.3
    assert sorted(data.WeightedRandomSampler([1, 5, 2], 3, replacement=False)) == [0, 1, 2]
    assert list(data.BatchSampler(range(7), 3, False)) == [[0, 1, 2], [3, 4, 5], [6]] and len(data.BatchSampler(range(7), 3, True)) == 2
    parts = data.random_split(Squares(10), [0.5, 0.25, 0.25], nc.Generator(1))
    assert [len(p) for p in parts] == [6, 2, 2] and sorted(i for p in parts for i in p.indices) == list(range(10))
    both = Squares(3) + Squares(4)
    assert len(both) == 7 and both[5][1] == 2 and both[-1][1] == 3 and data.Subset(both, [6, 0])[0][1] == 3
    assert list(data.ChainDataset([Stream(2), Stream(3)])) == [0, 1, 0, 1, 2]
    assert data.StackDataset(a=Squares(3), b=Squares(3))[1]["b"][1] == 1
    shares = [list(data.DistributedSampler(range(10), 4, r, shuffle=False)) for r in range(4)]
    assert shares == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


def test_arguments_that_contradict_are_refused():
    for options in ({"batch_size": 0}, {"shuffle": True, "sampler": [0]}, {"batch_sampler": [[0]], "batch_size": 2}, {"num_workers": -1}, {"prefetch_factor": 2}, {"persistent_workers": True}, {"batch_size": None, "drop_last": True}):
        with pytest.raises(ValueError):
            data.DataLoader(Squares(), **options)
    with pytest.raises(ValueError):
        data.DataLoader(Stream(), shuffle=True)
    with pytest.raises(TypeError, match="drop_last"):
        data.DataLoader(Squares(), 2, True, True)


@pytest.mark.parametrize("kind", ["dict", "named"])
def test_workers_give_the_same_batches(kind):
    own = [plain(b) for b in data.DataLoader(Squares(7, kind), 3)]
    loader = data.DataLoader(Squares(7, kind), 3, num_workers=2, multiprocessing_context="fork", persistent_workers=True, worker_init_fn=started)
    for _ in range(2):
        assert [plain(b) for b in loader] == own


def test_spawned_workers_and_streams():
    assert [plain(b) for b in data.DataLoader(Squares(5), 2, num_workers=1)] == [plain(b) for b in data.DataLoader(Squares(5), 2)]
    found = [i for b in data.DataLoader(Stream(9), 2, num_workers=2, multiprocessing_context="fork") for i in b.tolist()]
    assert sorted(found) == list(range(9))
    assert list(data.DataLoader(Squares(4), 2, collate_fn=doubled, num_workers=1, multiprocessing_context="fork")) == [[0, 2], [4, 6]]


def test_errors_of_workers_arrive():
    with pytest.raises(ValueError, match="sample five is bad"):
        list(data.DataLoader(Squares(8, "bad"), 2, num_workers=2, multiprocessing_context="fork"))
    with pytest.raises(RuntimeError, match="timed out"):
        list(data.DataLoader(Slow(), num_workers=1, timeout=0.3, multiprocessing_context="fork"))


def test_parts_next_to_pytorch():
    torch = pytest.importorskip("torch")
    other = torch.utils.data

    class Same(other.Dataset):
        __init__, __len__, __getitem__, _bad = Squares.__init__, Squares.__len__, Squares.__getitem__, Squares._bad

    def lists(batch):
        if torch.is_tensor(batch):
            return batch.tolist()
        if isinstance(batch, dict):
            return {k: lists(v) for k, v in batch.items()}
        return type(batch)(*map(lists, batch)) if hasattr(batch, "_fields") else [lists(b) for b in batch] if isinstance(batch, (list, tuple)) else batch

    for kind in ("tuple", "dict", "named", "number"):
        for options in ({"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}, {"batch_sampler": [[1, 2], [5]]}, {"batch_size": 2, "sampler": [3, 3, 1]}):
            ours, theirs = data.DataLoader(Squares(10, kind), **options), other.DataLoader(Same(10, kind), **options)
            assert len(ours) == len(theirs) and [plain(b) for b in ours] == [lists(b) for b in theirs], (kind, options)
    for n, k, drop in ((10, 4, False), (10, 4, True), (3, 4, False), (8, 4, True)):
        for r in range(k):
            ours, theirs = (list(d.DistributedSampler(range(n), k, r, shuffle=False, drop_last=drop)) for d in (data, other))
            assert ours == theirs
    for lengths in ([3, 7], [0.3, 0.7], [0.33, 0.33, 0.34], [1.0], [5, 6], [0.5, 0.6]):
        sizes = []
        for d, set_of in ((data, Squares), (other, Same)):
            try:
                sizes.append([len(p) for p in d.random_split(set_of(10), lengths)])
            except ValueError:
                sizes.append("refused")
        assert sizes[0] == sizes[1], lengths
