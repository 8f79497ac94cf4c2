"""Functions with PyTorch's names that arrange, choose, multiply and create tensors, next to PyTorch's."""

import io
import math
import operator

import numpy as np
import pytest
from test_torch_names import drawn, every
from torch_pairs import agree, same

import netcl as nc

torch = pytest.importorskip("torch")
PLAIN = {"plain": lambda x: x, "part": lambda x: x[..., :] if x.ndim else x, "transposed": lambda x: x.mT if x.ndim > 1 else x}
X = drawn((3, 4, 6))
ARRANGED = {
    "reshape": [((6, 12),), ((-1,),), ((7, 2),)], "flatten": [(), (1,), (0, 1), (1, 0), (5,)], "ravel": [()], "unflatten": [(1, (2, 2)), (-1, (3, -1)), (0, (2, 2))],
    "squeeze": [(), (0,), (9,)], "unsqueeze": [(0,), (-1,), (9,)], "permute": [((2, 0, 1),), ((0, 1),)], "transpose": [(0, 2), (-1, 0), (0, 5)], "swapaxes": [(0, 1)], "swapdims": [(1, 2)],
    "adjoint": [()], "movedim": [(0, 2), ((0, 1), (1, 2)), (-1, 0), (0, 7)], "moveaxis": [((2, 0), (0, 1))], "split": [(2,), (2, 1), ([1, 3], 1), ([1, 1], 1), (0,)], "chunk": [(2,), (3, 1), (5, 2), (0,)],
    "split_with_sizes": [([1, 2],), ([2, 2], 1)], "tensor_split": [(2,), (4, 1), ([1, 3], 2), ([2, 9], 1), (0,)], "hsplit": [(2,), (3,), ([1, 2],)], "vsplit": [(3,), (2,)], "dsplit": [(2,), (5,)],
    "unbind": [(), (1,), (-1,)], "select": [(0, 1), (-1, -2), (1, 9)], "narrow": [(0, 1, 2), (1, -3, 2), (2, 4, 4)], "tile": [((2,),), ((2, 1, 2),), ((2, 1, 1, 1),)],
    "repeat_interleave": [(2,), (3, 1), (0, 0), (2, 9)], "flip": [((0,),), ((0, -1),), ((0, 0),)], "fliplr": [()], "flipud": [()], "rot90": [(), (2,), (3, (1, 2)), (-1, (0, 2))],
    "roll": [(1,), ((1, 2), (0, 1)), (2, 1)], "broadcast_to": [((2, 3, 4, 6),), ((3, 4, 7),)], "diagonal": [(), (1,), (-2, 0, 2), (0, -1, 1), (9,), (0, 1, 1)], "tril": [(), (1,), (-2,)], "triu": [(), (2,), (-1,)],
    "diag_embed": [(), (1,), (-2, 0, 1)], "diagflat": [(), (1,)], "atleast_1d": [()], "atleast_2d": [()], "atleast_3d": [()], "msort": [()], "clone": [()], "t": [()],
}  # fmt: skip
OF_TENSORS = {
    "view": [(6, 12), ((12, -1),), (5, 5)], "view_as": [], "expand": [(2, 3, 4, 6), (-1, -1, 6), (3, 4, 7)], "repeat": [(2, 1, 3), ((1, 2, 1, 1),), (2,)], "sum_to_size": [((4, 6),), ((1, 4, 1),)],
    "size": [(), (0,), (-1,), (5,)], "dim": [()], "ndimension": [()], "numel": [()], "nelement": [()], "element_size": [()], "is_contiguous": [()], "is_floating_point": [()], "is_complex": [()],
    "is_signed": [()], "get_device": [()], "stride": [(), (1,)], "type": [()], "contiguous": [()], "detach": [()], "int": [()], "bool": [()], "half": [()], "bfloat16": [()], "float": [()], "long": [()],
    "double": [()], "new_zeros": [((2, 3),), (2, 3)], "new_ones": [((2,),)], "new_full": [((2, 2), 3.5)], "new_tensor": [([1.0, 2.0],)], "tolist": [()], "item": [()], "is_same_size": [],
}  # fmt: skip


@pytest.mark.parametrize("name", ARRANGED)
def test_arrangements(name):
    count = 0
    for args in ARRANGED[name]:
        for array in (X, X[0], X[0, 0], np.asarray(X[0, 0, 0]), drawn((3, 4, 6), "int"), drawn((4, 4), "bool")):
            if name in ("split", "hsplit", "vsplit", "dsplit", "unbind", "select", "narrow", "chunk", "tensor_split", "split_with_sizes", "diagonal", "permute", "flip", "rot90", "roll") and array.ndim == 0:
                continue
            if (name == "diag_embed" and array.ndim == 0) or (name == "msort" and array.dtype == bool):
                continue
            count += every(name, array, args=args, layouts=PLAIN)
    assert count >= 6


@pytest.mark.parametrize("name", OF_TENSORS)
def test_methods_of_tensors(name):
    for args in OF_TENSORS[name]:
        for array in (X, X[0], drawn((2, 3), "int"), drawn((), "float"), drawn((2, 3), "bool")):
            if name == "is_floating_point" and array is X:
                every("is_floating_point", array, layouts={"plain": lambda x: x})
            if (name, array.dtype) in {("type", np.dtype(np.int32))}:
                continue
            same(torch, lambda lib, x: getattr(x, name)(*args), array, where=f"{name}{args} {array.shape} {array.dtype}")


def test_one_tensor_as_another():
    for name in ("view_as", "reshape_as", "expand_as", "type_as", "is_same_size"):
        for a, b in ((X, X.reshape(6, 12)), (X[:1], X), (X, drawn((3, 4, 6), "int")), (X, X[0])):
            same(torch, lambda lib, x, y: getattr(x, name)(y), a, b, where=name)


JOINS = {"cat": [(), (1,), (-1,), (9,)], "concat": [(), (1,)], "concatenate": [(0,)], "stack": [(), (1,), (-1,), (9,)], "hstack": [()], "vstack": [()], "row_stack": [()], "dstack": [()], "column_stack": [()]}


@pytest.mark.parametrize("name", JOINS)
def test_joins(name):
    for args in JOINS[name]:
        for pair in ((X, X * 2), (X[0], X[1]), (X[0, 0], X[1, 0]), (X[0], X[0, :1]), (X[0], drawn((4, 6), "int")), (drawn((2, 2), "int"), drawn((2, 2), "bool"))):
            same(torch, lambda lib, x, y: getattr(lib, name)([x, y], *args), *pair, where=f"{name}{args}")
    same(torch, lambda lib, x, y: lib.cat((x, y), dim=0), X, X), same(torch, lambda lib, x, y: lib.cat([x, y]), X[0], np.zeros(0, np.float32))


def test_several_tensors_at_once():
    for a, b in ((X[0, 0], X[0, 1, :3]), (X[0, 0, :1], X[1, 1])):
        for indexing in ("ij", "xy"):
            same(torch, lambda lib, x, y: lib.meshgrid(x, y, indexing=indexing), a, b)
        same(torch, lambda lib, x, y: lib.cartesian_prod(x, y), a, b), same(torch, lambda lib, x, y: lib.block_diag(x, y), a, b)
        same(torch, lambda lib, x, y: lib.broadcast_tensors(x[:, None], y), a, b), same(torch, lambda lib, x: lib.combinations(x, 2), a)
        same(torch, lambda lib, x: lib.combinations(x, 2, True), a), same(torch, lambda lib, x, y: lib.block_diag(x[None], y[:, None]), a, b)
    for shapes in (((3, 1), (4,)), ((2,), (3,)), (5, (1, 1))):
        same(torch, lambda lib: tuple(lib.broadcast_shapes(*shapes)))
    for name in ("tril_indices", "triu_indices"):
        for args in ((3, 4), (4, 3, 1), (2, 2, -2)):
            same(torch, lambda lib: getattr(lib, name)(*args))
    for x in (X[0, 0], X[0], X):
        for k in (0, 1, -1):
            same(torch, lambda lib, x: lib.diag(x, k), x)
    same(torch, lambda lib, x, r: x.repeat_interleave(r, 0), X, np.array([1, 0, 2], np.int32)), same(torch, lambda lib, x, r: lib.repeat_interleave(x, r, dim=1), X, np.array([1, 0, 2, 2], np.int32))


IDS = np.array([[0, 2, 1, 1], [2, 2, 0, 1]], np.int32)


def both_kinds(array):
    return (array, (array * 1000).astype(np.int32), array > 0)


@pytest.mark.parametrize("dim", [0, 1, -1, 5])
def test_choices_by_index(dim):
    for x in both_kinds(drawn((3, 4))):
        ids = np.minimum(IDS, 2)
        for form in ("function", "method"):
            def call(name, lib, x, *args):
                return getattr(lib, name)(x, *args) if form == "function" else getattr(x, name)(*args)

            long = lambda lib, i: i if lib is nc else i.long()  # noqa: E731
            same(torch, lambda lib, x, i: call("gather", lib, x, dim, long(lib, i)), x, ids, where=f"gather {dim} {x.dtype}")
            same(torch, lambda lib, x, i: call("index_select", lib, x, dim, i), x, ids[0], where="index_select")
            same(torch, lambda lib, x, i: call("take", lib, x, long(lib, i)), x, ids * 3 - 1, where="take")
            same(torch, lambda lib, x, i: call("take_along_dim", lib, x, long(lib, i), 0), x, ids, where="take_along_dim")
            for source in (x[:2], x[0, 0].item() if x.dtype == np.float32 else None):
                if source is not None:
                    same(torch, lambda lib, x, i: call("scatter", lib, x, dim, long(lib, i), lib.tensor(source) if isinstance(source, np.ndarray) else source), x, np.array([[0, 1, 2, 0]], np.int32), where="scatter")
            same(torch, lambda lib, x, i, s: call("scatter_add", lib, x, dim, long(lib, i), s), x if x.dtype != bool else x.astype(np.float32), ids, (x if x.dtype != bool else x.astype(np.float32))[:2], where="scatter_add")
            row = np.array([2, 0], np.int32)
            if x.dtype == np.float32:
                for reduce in ("sum", "mean", "amax"):
                    for own in (True, False):
                        done = same(torch, lambda lib, x, i, s: x.scatter_reduce(dim, long(lib, i), s, reduce, include_self=own), x, ids, x[:2], where=f"scatter_reduce {reduce}")
                        assert (done == "refused") == (reduce == "amax" and dim != 5)
            if dim != 5 and x.dtype != bool:
                part = x[:2] if dim == 0 else x[:, :2]
                for name in ("index_add", "index_copy"):
                    same(torch, lambda lib, x, i, s: call(name, lib, x, dim, long(lib, i), s), x, row, part, where=name)
                    same(torch, lambda lib, x, i, s: getattr(x.clone(), name + "_")(dim, long(lib, i), s), x, row, part, where=name)
                same(torch, lambda lib, x, i: call("index_fill", lib, x, dim, long(lib, i), 2), x, row, where="index_fill")


def test_masks_and_conditions():
    for x in both_kinds(drawn((3, 4))):
        mask = drawn((3, 4), "bool")
        for name in ("masked_fill", "masked_select"):
            args = (1,) if name == "masked_fill" else ()
            every(name, x, mask, args=args, layouts={"plain": lambda t: t}, in_place=name == "masked_fill")
            every(name, x, mask[0], args=args, layouts={"plain": lambda t: t})
            every(name, x, mask.astype(np.int32), args=args, layouts={"plain": lambda t: t})
        same(torch, lambda lib, m, x, y: lib.where(m, x, y), mask, x, x[0]), same(torch, lambda lib, m, x: lib.where(m, x, 2), mask, x), same(torch, lambda lib, m, x: x.where(m, x * 1), mask, x.astype(np.float32))
        same(torch, lambda lib, m: lib.where(m), mask), same(torch, lambda lib, m, x: lib.where(m.int(), x, x), mask, x)
        same(torch, lambda lib, x: (lib.nonzero(x), x.nonzero(as_tuple=True), lib.argwhere(x), lib.count_nonzero(x, 1)), x)
    for other in (drawn((3, 4), "int"), 1.5, 2):
        same(torch, lambda lib, m, x: lib.where(m, x, lib.tensor(other) if isinstance(other, np.ndarray) else other), drawn((3, 4), "bool"), drawn((3, 4)), where="where of two dtypes")


@pytest.mark.parametrize("kind", ["float", "int"])
def test_orders(kind):
    x = drawn((3, 5), kind) if kind == "float" else RANDOM_INTS
    for options in ({}, {"dim": 0}, {"dim": -1, "descending": True}, {"stable": True}):
        if kind == "int" and "stable" not in options:
            same(torch, lambda lib, x: lib.sort(x, **options)[0], x)
        same(torch, lambda lib, x: (lib.sort(x, stable=True, **{k: v for k, v in options.items() if k != "stable"}), x.argsort(stable=True, **{k: v for k, v in options.items() if k != "stable"})), x)
    for options in ({"k": 2}, {"k": 1, "dim": 0}, {"k": 3, "largest": False}, {"k": 2, "dim": 0, "largest": False}, {"k": 9}, {"k": 0}):
        same(torch, lambda lib, x: (lib.topk(x, **options), x.topk(**options)), x, where=f"topk {options}")
    assert nc.tensor([3.0, 1.0]).sort().indices.tolist() == [1, 0] and nc.topk(nc.tensor([3.0, 1.0]), 1).values.tolist() == [3.0]


RANDOM_INTS = np.array([[40000, -3, 70001, 65536, -100000], [5, 4, 2**30, -(2**31), 1], [0, 9, 8, 7, -6]], np.int32)


def test_searches_and_counts():
    edges = np.array([1.0, 3.0, 5.0, 5.0, 9.0], np.float32)
    values = np.array([[0.0, 1.0, 4.0], [5.0, 9.5, 3.0]], np.float32)
    for options in ({}, {"right": True}, {"side": "right"}, {"side": "left", "right": True}):
        same(torch, lambda lib, e, v: lib.searchsorted(e, v, **options), edges, values, graded=False)
        if "side" not in options:
            same(torch, lambda lib, e, v: lib.bucketize(v, e, **options), edges, values, graded=False)
    same(torch, lambda lib, e: lib.searchsorted(e, 4.0), edges, graded=False), same(torch, lambda lib, e, v: lib.searchsorted(e, v), np.sort(drawn((2, 5))), drawn((2, 3)), graded=False)
    for x in (np.array([3, 0, 3, 1], np.int32), np.zeros(0, np.int32), np.array([-1], np.int32), drawn((3,)), IDS):
        for options in ({}, {"minlength": 6}):
            same(torch, lambda lib, x: (lib.bincount(x, **options), x.bincount(**options)), x, graded=False)
    same(torch, lambda lib, x, w: lib.bincount(x, weights=w), np.array([3, 0, 3, 1], np.int32), drawn((4,)), graded=False)
    for options in ({"bins": 4}, {"bins": 5, "min": -1, "max": 1}, {"bins": 3, "min": 2, "max": 1}):
        same(torch, lambda lib, x: (lib.histc(x, **options), x.histc(**options)), drawn((40,)), graded=False)
    x = np.array([[2, 1, 2], [3, 1, 1]], np.int32)
    for options in ({}, {"return_inverse": True}, {"return_counts": True, "return_inverse": True}, {"dim": 0}, {"dim": 1, "return_counts": True}):
        same(torch, lambda lib, x: lib.unique(x, **options), x), same(torch, lambda lib, x: x.float().unique(**options), x)
        if "dim" not in options:
            same(torch, lambda lib, x: lib.unique_consecutive(x, **options), x)
    for invert in (False, True):
        same(torch, lambda lib, x, t: lib.isin(x, t, invert=invert), x, np.array([1, 3], np.int32)), same(torch, lambda lib, x: lib.isin(x, 2, invert=invert), x)


PRODUCTS = {
    "matmul": [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (5, 4)), ((4,), (2, 4, 3))], "mm": [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (2, 4, 3))],
    "bmm": [((2, 3, 4), (2, 4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5))], "mv": [((3, 4), (4,)), ((3, 4), (4, 1))], "dot": [((4,), (4,)), ((4,), (5,)), ((2, 2), (2, 2))], "vdot": [((4,), (4,))],
    "inner": [((3, 4), (5, 4)), ((4,), (4,)), ((2, 3, 4), (4,)), ((3, 4), ())], "outer": [((3,), (4,)), ((3, 1), (4,))], "ger": [((3,), (4,))], "kron": [((2, 3), (4, 2)), ((2,), (3, 2)), ((2, 1, 2), (3,))],
    "dist": [((3, 4), (3, 4))],
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    for a, b in PRODUCTS[name]:
        every(name, drawn(a), drawn(b), layouts={"plain": lambda x: x}, rtol=1e-4)


def test_sums_of_products():
    shapes = {"addmm": ((3, 5), (3, 4), (4, 5)), "addmv": ((3,), (3, 4), (4,)), "addr": ((3, 4), (3,), (4,)), "baddbmm": ((2, 3, 5), (2, 3, 4), (2, 4, 5)), "addbmm": ((3, 5), (2, 3, 4), (2, 4, 5))}
    for name, (a, b, c) in shapes.items():
        for options in ({}, {"beta": 0.5, "alpha": 2}, {"beta": 0}):
            every(name, drawn(a), drawn(b), drawn(c), kwargs=options, layouts={"plain": lambda x: x}, rtol=1e-4, in_place=True)
        every(name, drawn(a[-1:]), drawn(b), drawn(c), layouts={"plain": lambda x: x}, rtol=1e-4)
        every(name, drawn((7,)), drawn(b), drawn(c), layouts={"plain": lambda x: x})
    for dims in (1, 2, 0, ([1], [0]), ([2, 1], [1, 0])):
        same(torch, lambda lib, x, y: lib.tensordot(x, y, dims=dims), drawn((2, 3, 4)), drawn((3, 4, 2)) if dims != 1 else drawn((4, 2)), rtol=1e-4, where=f"tensordot {dims}")
    for formula, *shapes in (("ij,jk->ik", (2, 3), (3, 4)), ("bhtd,bhsd->bhts", (2, 2, 3, 4), (2, 2, 5, 4)), ("ii->i", (3, 3)), ("ij->", (2, 3)), ("i,j", (2,), (3,)), ("ij,jk,kl->il", (2, 3), (3, 2), (2, 4)), ("...ij->...ji", (2, 3, 4)), ("ij,jk->iq", (2, 3), (3, 4))):
        same(torch, lambda lib, *x: lib.einsum(formula, *x), *(drawn(s) for s in shapes), rtol=1e-4, where=formula)
        same(torch, lambda lib, *x: lib.einsum(formula, list(x)), *(drawn(s) for s in shapes), rtol=1e-4, where=formula)
    for n in (0, 1, 2, 5):
        same(torch, lambda lib, x: lib.linalg.matrix_power(x, n), drawn((3, 3)), rtol=1e-3)
    same(torch, lambda lib, x, y: lib.cross(x, y, dim=1), drawn((4, 3)), drawn((4, 3))), same(torch, lambda lib, x, y: lib.linalg.cross(x, y), drawn((2, 3)), drawn((2, 3)))
    for p in (1.0, 2.0, 3.0, math.inf):
        same(torch, lambda lib, x, y: lib.cdist(x, y, p), drawn((2, 3, 4)), drawn((2, 5, 4)), rtol=1e-3, where=f"cdist {p}")
    same(torch, lambda lib, x, y: lib.chain_matmul(x, y) if lib is nc else x @ y, drawn((2, 3)), drawn((3, 4))), same(torch, lambda lib, x, y: lib.linalg.multi_dot([x, y]), drawn((2, 3)), drawn((3, 4)))
    for ord in (None, "fro", 1, -1, math.inf, -math.inf, 2, 3, 0):
        for shape, options in (((4,), {}), ((3, 4), {}), ((2, 3, 4), {"dim": 1}), ((2, 3, 4), {"dim": (1, 2), "keepdim": True})):
            same(torch, lambda lib, x: lib.linalg.norm(x, ord, **options), drawn(shape), rtol=1e-3, where=f"linalg.norm {ord} {shape} {options}")
    same(torch, lambda lib, x, y: lib.cosine_similarity(x, y), drawn((3, 4)), drawn((3, 4))), same(torch, lambda lib, x, y: lib.cosine_similarity(x, y, dim=-1), drawn((2, 3, 4)), drawn((2, 3, 4)))
    for name in ("inv", "svd", "eigh", "solve", "det"):
        with pytest.raises(AttributeError, match="numpy.linalg"):
            getattr(nc.linalg, name)


CREATED = {
    "zeros": lambda lib: (lib.zeros(2, 3), lib.zeros((2, 3)), lib.zeros(size=(2,)), lib.zeros(2, dtype=lib.int32), lib.zeros(())), "ones": lambda lib: (lib.ones(2, 3), lib.ones([2]), lib.ones(2, dtype=lib.bool)),
    "full": lambda lib: (lib.full((2, 3), 1.5), lib.full((2,), 2.0), lib.full((2,), True), lib.full(size=(2,), fill_value=0.5), lib.full((2,), 3, dtype=lib.float32)),
    "arange": lambda lib: (lib.arange(5), lib.arange(1, 7, 2), lib.arange(0.0, 1.0, 0.3), lib.arange(5, 0, -2), lib.arange(3, dtype=lib.float32), lib.arange(0), lib.arange(start=1, end=4), lib.arange(2.5)),
    "arange bad": lambda lib: lib.arange(0, 5, 0), "arange away": lambda lib: lib.arange(5, 0), "linspace": lambda lib: (lib.linspace(0, 1, 5), lib.linspace(-2, 3, steps=4), lib.linspace(start=1, end=2, steps=1), lib.linspace(3, 1, 3)),
    "logspace": lambda lib: (lib.logspace(0, 2, 3), lib.logspace(-1, 1, 4, base=2.0)), "eye": lambda lib: (lib.eye(3), lib.eye(2, 4), lib.eye(4, 2, dtype=lib.int32)),
    "like": lambda lib: [getattr(lib, n + "_like")(lib.ones(2, 3)) for n in ("zeros", "ones", "empty")][:2] + [lib.full_like(lib.ones(2), 2.5), lib.zeros_like(lib.ones(2), dtype=lib.int32), lib.ones_like(lib.zeros(2), requires_grad=True)],
    "tensor": lambda lib: (lib.tensor([1.0, 2.0]), lib.tensor([[1, 2]]), lib.tensor(True), lib.tensor([1.5], dtype=lib.float16), lib.as_tensor([1.0]), lib.scalar_tensor(3.0), lib.tensor([])),
    "shapes": lambda lib: (lib.empty(2, 3).shape, lib.rand(2, 3).shape, lib.randn((2, 3)).shape, lib.randint(5, (2, 3)).shape, lib.randint(1, 5, (2,)).shape, lib.randint(low=0, high=5, size=(2,)).shape, lib.rand(size=(4,)).shape, lib.randperm(5).shape,
                           lib.rand_like(lib.ones(2, 3)).shape, lib.randn_like(lib.ones(2)).shape, lib.randint_like(lib.ones(2, 3), 5).shape, lib.normal(0.0, 1.0, (2, 3)).shape, lib.normal(lib.zeros(4), lib.ones(4)).shape, lib.bernoulli(lib.ones(3)).shape),
    "randint dtype": lambda lib: (lib.randint(0, 1, (3,)), lib.randint(1, (2,)), lib.bernoulli(lib.ones(3)), lib.bernoulli(lib.zeros(3)), lib.randint_like(lib.ones(2), 1)), "randint empty": lambda lib: lib.randint(5, 5, (2,)),
    "from_numpy": lambda lib: (lib.from_numpy(np.arange(3, dtype=np.float32)), lib.asarray([1, 2])), "finfo": lambda lib: [[float(getattr(lib.finfo(getattr(lib, d)), k)) for k in ("eps", "max", "min", "tiny", "bits")] for d in ("float32", "float16", "bfloat16")],
    "iinfo": lambda lib: [lib.iinfo(lib.int32).max, lib.iinfo(lib.int32).min, lib.iinfo(lib.int32).bits], "finfo bad": lambda lib: lib.finfo(lib.int32), "iinfo bad": lambda lib: lib.iinfo(lib.float32),
    "is": lambda lib: [lib.is_tensor(lib.ones(1)), lib.is_tensor([1]), lib.is_floating_point(lib.ones(1)), lib.numel(lib.ones(2, 3)), lib.is_grad_enabled()],
}  # fmt: skip


@pytest.mark.parametrize("name", CREATED)
def test_creation(name):
    same(torch, CREATED[name], where=name, rtol=1e-5)


def test_random_writes_have_their_distribution():
    nc.manual_seed(3)
    x = nc.zeros(4000)
    checks = {
        "uniform_": ((-1.0, 3.0), 1.0, 4 / 12**0.5), "normal_": ((2.0, 0.5), 2.0, 0.5), "exponential_": ((2.0,), 0.5, 0.5), "bernoulli_": ((0.25,), 0.25, (0.25 * 0.75) ** 0.5),
        "log_normal_": ((0.0, 0.25), math.exp(0.03125), 0.2560), "random_": ((0, 11), 5.0, 10**0.5),
    }  # fmt: skip
    for name, (args, mean, std) in checks.items():
        assert getattr(x, name)(*args) is x
        assert abs(x.mean().item() - mean) < 0.15 * max(std, 0.3) and abs(x.std().item() - std) < 0.12 * std, name
    state = nc.get_rng_state()
    first = nc.rand(3).tolist()
    nc.set_rng_state(state)
    assert nc.rand(3).tolist() == first and sorted(nc.randperm(9).tolist()) == list(range(9))


@pytest.mark.parametrize("values", [[1.0, 2.5], [1e-5, 1.0], [1e9, 1.0], [1.0, 2.0, 3.0], [0.0], [float("nan"), 1.5], [float("inf"), 2.0], [1.0, 2000.0], [1, -20, 300], [True, False], [[1.5, -2.0], [3.0, 4.0]], [0.1] * 30,
                                    [[[1.0, 2.0]], [[3.0, 4.5]]], [1e-10, 2e-10], [-0.0, 0.5], list(range(1200)), [[0.25 * i for i in range(100)]] * 20, []], ids=lambda v: str(v)[:20])  # fmt: skip
def test_digits(values):
    ours, theirs = repr(nc.tensor(values)), repr(torch.tensor(values))
    theirs = theirs[: theirs.rindex("]") + 1] if "]" in theirs else theirs
    assert ours.startswith(theirs), f"{ours}\n{theirs}"


def test_digits_of_numbers_options_and_formats():
    for value in (1.0, 2.5, 1e-7, 3, True, float("nan")):
        assert repr(nc.tensor(value)).split(", shape")[0] == repr(torch.tensor(value)).rstrip(")")
    for options in ({"precision": 2}, {"sci_mode": True}, {"threshold": 5, "edgeitems": 1}, {"linewidth": 40}, {"profile": "short"}, {"profile": "default"}):
        for lib in (nc, torch):
            lib.set_printoptions(**options)
        theirs = repr(torch.arange(12.0) / 7)
        assert repr(nc.arange(12.0) / 7).startswith(theirs[: theirs.rindex("]") + 1]), options
    assert f"{nc.tensor(2.5):.2f} {nc.tensor(7):>4d}" == f"{torch.tensor(2.5):.2f} {torch.tensor(7):>4d}"
    for lib in (nc, torch):
        with pytest.raises(TypeError):
            format(lib.ones(2), ".2f")
    assert "<td" in nc.tensor([[1.0, 2.0]])._repr_html_() and "&lt;" not in nc.ones(3)._repr_html_()


def test_data_writes_to_the_tensor_and_is_not_replaced():
    for lib in (nc, torch):
        p = lib.ones(3, requires_grad=True)
        p.data *= 2
        p.data.add_(1.0)
        p.data[0] = 7.0
        assert p.tolist() == [7.0, 3.0, 3.0] and p.requires_grad and not p.data.requires_grad
    with pytest.raises(NotImplementedError, match="copy_"):
        p = nc.ones(3)
        p.data = nc.zeros(3)


def test_shapes_in_place():
    for lib in (nc, torch):
        x = lib.ones(1, 2, 3)
        y = x.squeeze_(0).unsqueeze_(-1).transpose_(0, 1)
        assert y is x and tuple(x.shape) == (3, 2, 1) and tuple(lib.ones(2, 3).t_().shape) == (3, 2)
        w = lib.ones(1, 2, requires_grad=True)
        with pytest.raises(RuntimeError):
            w.squeeze_()
    for fill in (0, 2.5):
        same(torch, lambda lib, x: x.clone().fill_diagonal_(fill), drawn((3, 4)))
    same(torch, lambda lib, x, i: x.clone().index_put_((i if lib is nc else i.long(),), lib.tensor([5.0, 6.0])), drawn((4,)), np.array([2, 0], np.int32), graded=False)
    same(torch, lambda lib, x, i: lib.index_put(x, (i if lib is nc else i.long(),), lib.tensor([5.0, 6.0, 1.0]), True), drawn((4,)), np.array([2, 0, 2], np.int32), graded=False)


def test_views_are_views():
    for call in (lambda x: x.t(), lambda x: x.movedim(0, 1), lambda x: x.swapaxes(0, 1), lambda x: x.unbind(0)[1], lambda x: x.select(1, 2), lambda x: x.narrow(0, 1, 2), lambda x: x.chunk(2, 1)[1], lambda x: x.split(2)[1],
                 lambda x: x.tensor_split(3, 1)[2], lambda x: x.diagonal(), lambda x: x.diagonal(1), lambda x: x.unflatten(1, (2, 2)), lambda x: x.view_as(x), lambda x: x.hsplit(2)[0], lambda x: x.ravel(), lambda x: x.adjoint()):  # fmt: skip
        def program(lib, x):
            y = call(x)
            y += 10
            return x

        same(torch, program, drawn((3, 4)), graded=False)


@pytest.mark.parametrize("contents", [
    {"w": [1.0, 2.0], "n": 3, "name": "täxt", "nested": {"list": [1, 2.5, None, True], "tuple": ("a", [3.0])}}, {"optimizer": {"state": {0: {"step": 5.0}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}, "big": 2**40, "neg": -3}, [],
])  # fmt: skip
def test_files_of_torch_save_in_both_directions(tmp_path, contents):
    def made(lib, value):
        if isinstance(value, dict):
            return {k: made(lib, v) for k, v in value.items()}
        return lib.tensor(value) if value in ([1.0, 2.0], [3.0]) else tuple(made(lib, v) for v in value) if isinstance(value, tuple) else value

    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    nc.save(made(nc, contents), ours), torch.save(made(torch, contents), theirs)
    agree(nc.load(theirs), torch.load(ours)), agree(nc.load(ours), torch.load(theirs))
    with open(theirs, "rb") as f:
        agree(nc.load(f), torch.load(theirs))
    held = io.BytesIO()
    nc.save(made(nc, contents), held)
    held.seek(0)
    agree(nc.load(held), torch.load(theirs))


def test_weights_of_a_module_and_every_dtype(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    module[1].weight = torch.nn.Parameter(module[1].weight.t().contiguous().t())
    module.register_buffer("count", torch.tensor([3, 4]))
    torch.save(module.state_dict(), tmp_path / "weights.pth")
    found = nc.load(tmp_path / "weights.pth", map_location="cpu")
    agree(dict(found), dict(module.state_dict()))
    own = nc.nn.Sequential(nc.nn.Linear(3, 2), nc.nn.Linear(2, 2))
    own.register_buffer("count", nc.tensor([0, 0]))
    own.load_state_dict(found)
    x = drawn((4, 3))
    agree(own(nc.tensor(x)), module(torch.tensor(x)))
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool, torch.int32):
        t = torch.tensor([[0, 1], [1, 2]]).to(dtype)
        torch.save([t, t.t(), t[1:], torch.empty(0, 2, dtype=dtype), t[0, 0]], tmp_path / "t.pt")
        for a, b in zip(nc.load(tmp_path / "t.pt"), torch.load(tmp_path / "t.pt")):
            np.testing.assert_array_equal(a.float().numpy(), b.float().numpy())
    torch.save(torch.tensor([2**40]), tmp_path / "t.pt")
    with pytest.raises(OverflowError, match="int32"):
        nc.load(tmp_path / "t.pt")


def test_other_objects_in_files_are_refused_by_name(tmp_path):
    for bad, name in ((torch.nn.Linear(2, 2), "Linear"), ({"f": operator.add}, "add"), ({"z": 1j}, "complex"), (np.ones(2), "numpy"), (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), "SGD")):
        torch.save(bad, tmp_path / "bad.pt")
        with pytest.raises(ValueError, match=name):
            nc.load(tmp_path / "bad.pt")
        with pytest.raises(ValueError, match="save"):
            nc.save({"x": object()}, tmp_path / "own.pt")
    with pytest.raises(NotImplementedError, match="weights_only"):
        nc.load(tmp_path / "bad.pt", weights_only=False)
    torch.save({"w": torch.ones(3)}, tmp_path / "good.pt")
    data = (tmp_path / "good.pt").read_bytes()
    for n in (10, 100, len(data) // 2, len(data) - 30):
        (tmp_path / "cut.pt").write_bytes(data[:n])
        with pytest.raises(ValueError):
            nc.load(tmp_path / "cut.pt")
