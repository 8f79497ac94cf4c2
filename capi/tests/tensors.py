"""Compares tensors, operations, gradients, models and AetherCL with NumPy, through ctypes. Needs Python's standard library and NumPy, but not the
netcl package.

    python3 tensors.py path/to/libnetcl.so [device]
"""

import ctypes as c
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model as maker

lib = c.CDLL(sys.argv[1])
name = (sys.argv[2] if len(sys.argv) > 2 else "auto").encode()
lib.netcl_last_error.restype = c.c_char_p
lib.netcl_op_name.restype = c.c_char_p
lib.netcl_op_name.argtypes = [c.c_size_t]
lib.netcl_op_count.restype = c.c_size_t
DTYPES = {0: np.float32, 1: np.float16, 3: np.int32, 4: np.uint32, 5: np.bool_}


def ok(status):
    assert status == 0, (status, lib.netcl_last_error())


device = c.c_void_p()
ok(lib.netcl_device_open(name, c.byref(device)))


class Attribute(c.Structure):
    _fields_ = [("name", c.c_char_p), ("kind", c.c_int), ("integer", c.c_int64), ("number", c.c_double), ("text", c.c_char_p), ("integers", c.POINTER(c.c_int64)), ("count", c.c_size_t)]


class Tensor:
    """A handle and its view as a NumPy array."""

    def __init__(self, handle):
        self.handle = handle

    @classmethod
    def of(cls, array, parameter=None):
        array = np.ascontiguousarray(array)
        number = {np.dtype(t): n for n, t in DTYPES.items()}[array.dtype]
        handle, shape = c.c_void_p(), (c.c_size_t * array.ndim)(*array.shape)
        ok(lib.netcl_tensor_create(device, number, shape, c.c_size_t(array.ndim), c.c_void_p(array.ctypes.data), c.c_size_t(array.nbytes), c.byref(handle)))
        if parameter is None:
            return cls(handle)
        named = c.c_void_p()
        ok(lib.netcl_tensor_parameter(handle, parameter.encode(), c.byref(named)))
        ok(lib.netcl_tensor_free(handle))
        return cls(named)

    def numpy(self):
        rank, dtype = c.c_size_t(), c.c_int()
        ok(lib.netcl_tensor_shape(self.handle, None, c.c_size_t(0), c.byref(rank)))
        sizes = (c.c_size_t * max(rank.value, 1))()
        ok(lib.netcl_tensor_shape(self.handle, sizes, rank, c.byref(rank)))
        ok(lib.netcl_tensor_dtype(self.handle, c.byref(dtype)))
        out = np.empty(tuple(sizes)[: rank.value], DTYPES[dtype.value])
        ok(lib.netcl_tensor_read(self.handle, c.c_void_p(out.ctypes.data), c.c_size_t(out.nbytes)))
        return out

    def grad(self):
        handle = c.c_void_p()
        ok(lib.netcl_tensor_grad(self.handle, c.byref(handle)))
        return Tensor(handle).numpy() if handle.value else None

    def __del__(self):
        ok(lib.netcl_tensor_free(self.handle))


def op(name, *inputs, **attributes):
    """Calls an operation by its name. Numbers, integers, tuples and strings become attributes of that kind."""
    kept, given = [], (Attribute * max(len(attributes), 1))()
    for slot, (key, value) in zip(given, attributes.items()):
        slot.name = key.encode()
        if isinstance(value, bool):
            slot.kind, slot.integer = 3, value
        elif isinstance(value, int):
            slot.kind, slot.integer = 2, value
        elif isinstance(value, float):
            slot.kind, slot.number = 1, value
        elif isinstance(value, str):
            slot.kind, slot.text = 5, value.encode()
        else:
            kept.append((c.c_int64 * len(value))(*value))
            slot.kind, slot.integers, slot.count = 4, kept[-1], len(value)
    handles = (c.c_void_p * max(len(inputs), 1))(*[None if t is None else t.handle for t in inputs])
    outputs, count = (c.c_void_p * 8)(), c.c_size_t()
    ok(lib.netcl_op(name.encode(), handles, c.c_size_t(len(inputs)), given, c.c_size_t(len(attributes)), outputs, c.c_size_t(8), c.byref(count)))
    made = [Tensor(c.c_void_p(outputs[i])) for i in range(count.value)]
    return made[0] if len(made) == 1 else made


def close(got, expected, tolerance=3e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


rng = np.random.default_rng(5)


def operations():
    x, y = rng.standard_normal((3, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    a, b = Tensor.of(x), Tensor.of(y)
    close(op("add", a, b).numpy(), x + y)
    close(op("softmax", a, axis=0).numpy(), np.exp(x) / np.exp(x).sum(0))
    close(op("mul_scalar", a, s=2.5).numpy(), 2.5 * x)
    close(op("sum", a, axes=(1,), keep=True).numpy(), x.sum(1, keepdims=True))
    close(op("reshape", a, shape=(5, -1)).numpy(), x.reshape(5, 3))
    values, places = op("topk", a, k=2)
    order = np.argsort(-x, axis=1)[:, :2]
    close(values.numpy(), np.take_along_axis(x, order, 1))
    assert (places.numpy() == order).all()
    mask = op("lt", a, b)
    assert (mask.numpy() == (x < y)).all()
    close(op("where_cond", mask, a, b).numpy(), np.minimum(x, y))
    for n in (1, 3, 5, 33):
        bits = rng.random(n) > 0.5
        chosen = op("where_cond", Tensor.of(bits), Tensor.of(np.ones(n, np.float32)), Tensor.of(np.zeros(n, np.float32)))
        assert (Tensor.of(bits).numpy() == bits).all() and (chosen.numpy() == bits).all()
    i = rng.integers(-(2**31), 2**31, (4, 3)).astype(np.int32)
    j = rng.integers(-(2**31), 2**31, 3).astype(np.int32)
    with np.errstate(over="ignore"):
        assert (op("mul", Tensor.of(i), Tensor.of(j)).numpy() == i * j).all()
        assert (op("sum", Tensor.of(i), axes=(0,)).numpy() == i.sum(0, dtype=np.int32)).all()
    assert (op("eq", Tensor.of(i), Tensor.of(i + 1)).numpy() == 0).all()


def gradients():
    x, w = rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    a, b = Tensor.of(x), Tensor.of(w, "w")
    y = op("matmul", a, b)
    for _ in range(2):
        loss = op("mean", op("square", op("matmul", a, b)))
        ok(lib.netcl_backward(loss.handle, None))
    close(b.grad(), 2 * x.T @ (2 * (x @ w) / 8))  # twice, because gradients add up
    ok(lib.netcl_tensor_zero_grad(b.handle))
    assert b.grad() is None
    given = Tensor.of(np.ones((4, 2), np.float32))
    ok(lib.netcl_backward(y.handle, given.handle))
    close(b.grad(), x.T @ np.ones((4, 2)))
    ok(lib.netcl_no_grad_begin())
    off = op("matmul", a, b)
    ok(lib.netcl_no_grad_end())
    assert lib.netcl_backward(off.handle, given.handle) != 0 and lib.netcl_last_error()


class Info(c.Structure):
    _fields_ = [(n, c.c_size_t) for n in ("vocab", "context", "trained_context", "layers", "width")] + [("parameters", c.c_uint64), ("dtype", c.c_int)]


class Wishes(c.Structure):
    _fields_ = [("max_tokens", c.c_size_t), ("temperature", c.c_float), ("top_k", c.c_size_t), ("top_p", c.c_float), ("seed", c.c_uint64), ("stop", c.c_char_p), ("special", c.c_int)]


class Generated(c.Structure):
    _fields_ = [("prompt_tokens", c.c_size_t), ("tokens", c.c_size_t), ("prompt_speed", c.c_double), ("speed", c.c_double), ("finish", c.c_int)]


def models():
    with tempfile.TemporaryDirectory() as folder:
        maker.make(folder)
        model, info, end = c.c_void_p(), Info(), Generated()
        ok(lib.netcl_model_load(device, folder.encode(), c.c_size_t(0), c.byref(model)))
        ok(lib.netcl_model_describe(model, c.byref(info)))
        assert (info.vocab, info.layers, info.width, info.trained_context, info.dtype) == (maker.VOCAB, maker.LAYERS, maker.WIDTH, 128, 0)
        said = []
        callback = c.CFUNCTYPE(c.c_int, c.c_char_p, c.c_void_p)
        keep = callback(lambda text, _: said.append(text.decode()) or 0)

        def text(prompt, wishes, hear=keep, status=0):
            said.clear()
            got = lib.netcl_generate(model, prompt.encode(), c.byref(wishes), hear, None, c.byref(end))
            assert got == status, (got, lib.netcl_last_error())
            return "".join(said)

        assert text("01", Wishes(max_tokens=8)) == "23456789" and (end.prompt_tokens, end.tokens, end.finish) == (2, 8, 2)
        assert text("abc", Wishes(max_tokens=50, stop=b"no")) == "defghijklm" and end.finish == 1
        drawn = Wishes(max_tokens=12, temperature=1, seed=7)
        assert text("A", drawn) == text("A", drawn) != ""
        hear = callback(lambda t, _: said.append(t.decode()) or len(said) == 3)
        assert text("A", Wishes(max_tokens=12), hear, 13) == "BCD" and end.finish == 4
        # The last token is computed from a full context, and follows it.
        assert text("A" * 120, Wishes()) == "BCDEFGHIJ" and (end.finish, end.tokens) == (3, 9)
        assert lib.netcl_generate(model, ("A" * 200).encode(), None, None, None, None) != 0
        ok(lib.netcl_model_free(model))


class Argument(c.Structure):
    _fields_ = [("kind", c.c_int), ("address", c.c_uint64), ("bytes", c.c_uint64), ("data", c.c_void_p)]


class Fence(c.Structure):
    _fields_ = [("queue", c.c_uint32), ("value", c.c_uint64)]


class Finding(c.Structure):
    _fields_ = [("kind", c.c_char_p), ("kernel", c.c_char_p), ("line", c.c_uint32), ("column", c.c_uint32), ("count", c.c_uint64), ("text", c.c_char_p)]


class Window(c.Structure):
    _fields_ = [("registers", c.POINTER(c.c_uint32)), ("bytes", c.c_size_t), ("rings", c.c_size_t), ("ring_stride", c.c_size_t)]


class Options(c.Structure):
    _fields_ = [("memory", c.c_uint64), ("checks", c.c_char_p), ("trace_level", c.c_int), ("trace", c.c_void_p), ("trace_user", c.c_void_p), ("timeline", c.c_int)]


COUNTERS = ["groups", "items", "issued", "lanes_idle", "global_load_requests", "global_load_bytes", "global_load_sectors", "global_store_requests"]
COUNTERS += ["global_store_bytes", "global_store_sectors", "local_requests", "local_passes", "local_bytes"]


class Counters(c.Structure):
    _fields_ = [(n, c.c_uint64) for n in COUNTERS] + [("registers", c.c_uint32), ("ns", c.c_uint64), ("bound", c.c_char_p)]


TEXT = b"""__kernel void scaled(__global const float *x, __global float *y, float s) { size_t i = get_global_id(0); y[i] = s * x[i]; }
__kernel void race(__global int *y) { y[0] = get_global_id(0); }
"""


def machines():
    gpu, program, queue, fence = c.c_void_p(), c.c_void_p(), c.c_uint32(), Fence()
    ok(lib.aethercl_open(b"teaching", c.byref(Options(checks=b"all", timeline=1)), c.byref(gpu)))
    ok(lib.aethercl_build(TEXT, None, c.byref(program)))
    ok(lib.aethercl_queue_open(gpu, c.byref(queue)))
    x = rng.standard_normal(512).astype(np.float32)
    y = np.empty_like(x)
    at = [c.c_uint64(), c.c_uint64()]
    for place, tag in zip(at, (b"x", b"y")):
        ok(lib.aethercl_allocate(gpu, c.c_uint64(x.nbytes), tag, c.byref(place)))
    three = lambda *sizes: (c.c_uint64 * 3)(*sizes)
    s = c.c_float(-1.5)
    arguments = (Argument * 3)(
        Argument(1, at[0].value, x.nbytes, None), Argument(0, at[1].value, x.nbytes, None), Argument(2, 0, 4, c.cast(c.byref(s), c.c_void_p))
    )
    arrived = []
    come = c.CFUNCTYPE(None, c.c_int, c.c_void_p)(lambda status, _: arrived.append(status))
    ok(lib.aethercl_write(gpu, queue, at[0], c.c_void_p(x.ctypes.data), c.c_size_t(x.nbytes), None))
    ok(lib.aethercl_launch(gpu, queue, program, b"scaled", arguments, c.c_size_t(3), three(512, 1, 1), three(64, 1, 1), None))
    ok(lib.aethercl_read(gpu, queue, at[1], c.c_void_p(y.ctypes.data), c.c_size_t(y.nbytes), come, None, c.byref(fence)))
    assert not arrived
    ok(lib.aethercl_doorbell(gpu, queue))
    ok(lib.aethercl_wait(gpu, fence, None))
    assert arrived == [0] and (y == np.float32(-1.5) * x).all()
    counters = Counters()
    ok(lib.aethercl_counters_last(gpu, c.byref(counters)))
    assert (counters.items, counters.groups, counters.global_load_bytes, counters.global_store_bytes) == (512, 8, x.nbytes, x.nbytes)
    count, finding = c.c_size_t(9), Finding()
    ok(lib.aethercl_finding_count(gpu, c.byref(count)))
    assert count.value == 0
    ok(lib.aethercl_launch(gpu, queue, program, b"race", (Argument * 1)(arguments[1]), c.c_size_t(1), three(64, 1, 1), three(64, 1, 1), c.byref(fence)))
    ok(lib.aethercl_wait(gpu, fence, None))
    ok(lib.aethercl_finding_count(gpu, c.byref(count)))
    ok(lib.aethercl_finding_at(gpu, c.c_size_t(0), c.byref(finding)))
    assert count.value > 0 and b"race" in finding.kind and finding.line == 2
    # Access registers through functions and through memory.
    value, window = c.c_uint32(), Window()
    ok(lib.aethercl_register_read(gpu, 0, c.byref(value)))
    ok(lib.aethercl_mmio_map(gpu, c.byref(window)))
    assert window.registers[0] == value.value == 0x4145434C and window.bytes > window.rings
    ok(lib.aethercl_mmio_unmap(gpu))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "timeline.json")
        ok(lib.aethercl_timeline(gpu, path.encode()))
        assert os.path.getsize(path) > 100
    assert lib.aethercl_write(gpu, 9, at[0], None, c.c_size_t(4), None) != 0
    ok(lib.aethercl_program_free(program))
    ok(lib.aethercl_close(gpu))
    assert lib.aethercl_close(gpu) == 11


names = {lib.netcl_op_name(c.c_size_t(i)).decode() for i in range(lib.netcl_op_count())}
assert {"add", "softmax", "pow"} <= names
for part in (operations, gradients, models, machines):
    part()
ok(lib.netcl_device_finish(device))
ok(lib.netcl_device_close(device))
print(f"tensors.py: ok on {name.decode()}")
