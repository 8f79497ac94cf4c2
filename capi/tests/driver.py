"""Compares every function of the driver and of the simulated GPU with NumPy, through ctypes. Needs Python's standard library and NumPy, but not the
netcl package.

    python3 driver.py path/to/libnetcl.so [device]
"""

import ctypes as c
import math
import sys
import threading

import numpy as np

lib = c.CDLL(sys.argv[1])
device = sys.argv[2] if len(sys.argv) > 2 else "auto"
lib.netcl_last_error.restype = c.c_char_p
lib.allocate_gpu_memory.restype = c.c_void_p
lib.allocate_gpu_memory.argtypes = [c.c_int, c.c_size_t]
lib.free_gpu_memory.argtypes = [c.c_int, c.c_void_p]
lib.free_gpu_memory.restype = None
for name in ("write_host_to_gpu_blocking", "read_gpu_to_host_blocking"):
    getattr(lib, name).argtypes = [c.c_int, c.c_void_p, c.c_size_t, c.c_size_t, c.c_void_p]
lib.simulated_kernel_allocate.restype = c.c_ulonglong
lib.simulated_kernel_allocate.argtypes = [c.c_int, c.c_size_t]
lib.simulated_kernel_free.argtypes = [c.c_int, c.c_ulonglong, c.c_size_t]
for name in ("simulated_kernel_write", "simulated_kernel_read"):
    getattr(lib, name).argtypes = [c.c_int, c.c_ulonglong, c.c_size_t, c.c_void_p]
lib.simulated_matrix_multiply.restype = c.c_ulonglong
lib.simulated_matrix_multiply.argtypes = [c.c_int, c.c_ulonglong, c.c_ulonglong, c.c_size_t, c.c_size_t, c.c_void_p, c.c_void_p]

rng = np.random.default_rng(3)
tested = []


class Gpu:
    """An array on the device."""

    def __init__(self, array):
        self.array = np.ascontiguousarray(array)
        self.handle = lib.allocate_gpu_memory(0, self.array.nbytes)
        assert self.handle, lib.netcl_last_error()
        assert lib.write_host_to_gpu_blocking(0, self.handle, 0, self.array.nbytes, self.array.ctypes.data) == 1

    def read(self):
        out = np.empty_like(self.array)
        assert lib.read_gpu_to_host_blocking(0, self.handle, 0, out.nbytes, out.ctypes.data) == 1, lib.netcl_last_error()
        return out

    def __del__(self):
        lib.free_gpu_memory(0, self.handle)


def random(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def call(name, *arguments, gives=1):
    """Calls a function: arrays are passed as handles, floats as C floats."""
    changed = []
    for argument in arguments:
        if isinstance(argument, Gpu):
            changed.append(c.c_void_p(argument.handle))
        elif argument is None:
            changed.append(c.c_void_p(None))
        elif isinstance(argument, float):
            changed.append(c.c_float(argument))
        elif isinstance(argument, np.integer):
            changed.append(c.c_size_t(int(argument)))
        else:
            changed.append(c.c_int(argument))
    got = getattr(lib, name)(0, *changed)
    assert got == gives, (name, lib.netcl_last_error())
    tested.append(name)


def close(what, got, expected, tolerance=2e-5):
    expected = np.asarray(expected, np.float64).reshape(got.shape)
    worst = np.max(np.abs(got - expected) / (1 + np.abs(expected)), initial=0)
    assert worst <= tolerance, (what, worst)


def empty(*shape):
    return Gpu(np.full(shape, np.nan, np.float32))


erf = np.vectorize(math.erf)


def products(b, m, n, k):
    x, w, ws, dc = random(b, m, k), random(k, n), random(b, k, n), random(b, m, n)
    f = lambda a: a.astype(np.float64)
    for name, weights, shared in (("matmul", w, True), ("matmul_batched", ws, False)):
        out, da, db = empty(b, m, n), empty(b, m, k), empty(*weights.shape)
        a, g, d = Gpu(x), Gpu(weights), Gpu(dc)
        call(f"execute_{name}_on_gpu", a, g, out, b, m, n, k)
        close(name, out.read(), f(x) @ f(weights))
        back = f"execute_{name}_backward_on_gpu"
        call(back, a, g, d, da, db, b, m, n, k)
        dw = np.swapaxes(f(x), 1, 2) @ f(dc)
        close("da", da.read(), f(dc) @ np.swapaxes(f(weights), -1, -2))
        close("db", db.read(), dw.sum(0) if shared else dw)
        alone = empty(b, m, k)
        call(back, a, g, d, alone, None, b, m, n, k)
        assert np.array_equal(alone.read(), da.read())


def elements(n):
    a, b, dy = 4 * random(n), random(n), random(n)
    ga, gb, gdy, out, other = Gpu(a), Gpu(b), Gpu(dy), empty(n), empty(n)
    x = a.astype(np.float64)
    cdf = (1 + erf(x / math.sqrt(2))) / 2
    call("execute_add_on_gpu", ga, gb, out, n)
    close("add", out.read(), x + b)
    call("execute_mul_on_gpu", ga, gb, out, n)
    close("mul", out.read(), x * b)
    call("execute_gelu_on_gpu", ga, out, n)
    close("gelu", out.read(), x * cdf)
    call("execute_gelu_backward_on_gpu", ga, gdy, out, n)
    close("gelu backward", out.read(), dy * (cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)))
    call("execute_mul_backward_on_gpu", gdy, ga, gb, out, other, n)
    close("mul backward", out.read(), dy.astype(np.float64) * b)
    close("mul backward", other.read(), dy * x)
    call("execute_clone_on_gpu", ga, out, np.uint64(4 * n))
    assert np.array_equal(out.read(), a)


def rows(r, n):
    eps = 1e-5
    x, dy = 5 * random(r, n), random(r, n)
    f = x.astype(np.float64)
    e = np.exp(f - f.max(1, keepdims=True))
    soft = e / e.sum(1, keepdims=True)
    gx, gdy, y, out = Gpu(x), Gpu(dy), empty(r, n), empty(r, n)
    call("execute_softmax_on_gpu", gx, y, r, n)
    close("softmax", y.read(), soft)
    call("execute_softmax_backward_on_gpu", gdy, y, out, r, n)
    close("softmax backward", out.read(), (dy - (dy * soft).sum(1, keepdims=True)) * soft)
    call("execute_log_softmax_stable_gpu", gx, out, 1, r, n)
    close("log softmax", out.read(), np.log(soft))
    rstd = 1 / np.sqrt(f.var(1, keepdims=True) + eps)
    norm = (f - f.mean(1, keepdims=True)) * rstd
    call("execute_layernorm_on_gpu", gx, out, r, n, eps)
    close("layer norm", out.read(), norm)
    call("execute_layernorm_backward_on_gpu", gdy, gx, out, r, n, eps)
    close("layer norm backward", out.read(), rstd * (dy - dy.mean(1, keepdims=True) - norm * (dy * norm).mean(1, keepdims=True)))


def axes(b, x, y, z):
    a, bias, pe = random(b, x, y, z), random(z), random(y, z)
    ga = Gpu(a)
    flat = empty(y * z, b * x)
    call("execute_transpose_on_gpu", ga, flat, b * x, y * z)
    assert np.array_equal(flat.read(), a.reshape(b * x, y * z).T)
    back = empty(b * x, y * z)
    call("execute_transpose_backward_on_gpu", flat, back, b * x, y * z)
    assert np.array_equal(back.read(), a.reshape(b * x, y * z))
    last = empty(b * x, z, y)
    call("execute_transpose_batched_gpu", ga, last, b * x, y, z)
    assert np.array_equal(last.read(), a.reshape(b * x, y, z).transpose(0, 2, 1))
    middle = empty(b, y, x, z)
    call("execute_transpose_12_batched_gpu", ga, middle, b, x, y, z)
    assert np.array_equal(middle.read(), a.transpose(0, 2, 1, 3))
    out = empty(b, x * y, z)
    call("execute_broadcast_add_gpu", ga, Gpu(bias), out, b, x * y, z)
    close("bias", out.read(), (a + bias).reshape(out.array.shape))
    call("execute_add_broadcast_pe_gpu", ga, Gpu(pe), out, b * x, y, z)
    close("positions", out.read(), (a + pe).reshape(out.array.shape))
    sums = empty(z)
    call("execute_reduce_sum_gpu", ga, sums, b, x * y, z)
    close("sum", sums.read(), a.astype(np.float64).sum((0, 1, 2)))


def lookups(b, s, d, v):
    ids = rng.integers(-2, v + 2, (b, s), dtype=np.int32)
    w, dy, before, logits = random(v, d), random(b, s, d), random(v, d), random(b, s, v)
    known = (ids >= 0) & (ids < v)
    gids, out, dw = Gpu(ids), empty(b, s, d), Gpu(before)
    call("execute_embedding_lookup_gpu", gids, Gpu(w), out, b, s, d, v)
    assert np.array_equal(out.read(), np.where(known[..., None], w[np.clip(ids, 0, v - 1)], 0))
    call("execute_embedding_backward_gpu", Gpu(dy), gids, dw, b, s, d, v)
    expected = before.astype(np.float64)
    np.add.at(expected, ids[known], dy[known])
    close("embedding backward", dw.read(), expected)
    logs, loss, dlogits = empty(b, s, v), empty(b, s), empty(b, s, v)
    call("execute_log_softmax_stable_gpu", Gpu(logits), logs, b, s, v)
    call("execute_cross_entropy_loss_grad_gpu", logs, gids, dlogits, loss, b, s, v)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    hot = np.arange(v) == ids[..., None]
    close("loss", loss.read(), np.where(known, -(hot * np.log(p)).sum(-1), 0))
    close("gradient of the loss", dlogits.read(), np.where(known[..., None], p - hot, 0))


def adam(n):
    p, g = random(n), random(n)
    gp, gg, gm, gv = Gpu(p), Gpu(g), Gpu(np.zeros(n, np.float32)), Gpu(np.zeros(n, np.float32))
    q, m, v = p.astype(np.float64), np.zeros(n), np.zeros(n)
    for t in range(1, 8):
        call("execute_adam_update_on_gpu", gp, gg, gm, gv, n, t, 0.01, 0.9, 0.999, 1e-8, 0.1)
        d = g + 0.1 * q
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d * d
        q = q - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    close("parameter", gp.read(), q)
    close("m", gm.read(), m)
    close("v", gv.read(), v)


def simulated(dtype, m, k, n):
    a, b = rng.random((m, k)).astype(dtype), rng.random((k, n)).astype(dtype)
    at = []
    for x in (a, b):
        at.append(lib.simulated_kernel_allocate(0, x.nbytes))
        assert at[-1], lib.netcl_last_error()
        lib.simulated_kernel_write(0, at[-1], x.nbytes, x.ctypes.data)
    shapes = [(c.c_int * 2)(*x.shape) for x in (a, b)]
    result = lib.simulated_matrix_multiply(0, *at, a.nbytes, b.nbytes, *shapes)
    assert result, lib.netcl_last_error()
    out = np.empty((m, n), dtype)
    assert lib.simulated_kernel_read(0, result, out.nbytes, out.ctypes.data) == 1
    assert np.allclose(out, a @ b, rtol=1e-5 if dtype == np.float32 else 1e-12)
    # Read again, with a callback.
    there, later = threading.Event(), np.empty((m, n), dtype)
    callback = c.CFUNCTYPE(None, c.c_int, c.c_void_p)(lambda status, user: there.set() if status == 0 and user == 7 else None)
    read = lib.netcl_simulated_read_async
    assert read(0, c.c_ulonglong(result), c.c_size_t(later.nbytes), c.c_void_p(later.ctypes.data), callback, c.c_void_p(7)) == 1
    assert there.wait(60) and np.array_equal(later, out)
    lib.netcl_simulated_finish(0)
    for address, x in ((result, out), (at[0], a), (at[1], b)):
        lib.simulated_kernel_free(0, address, x.nbytes)
    assert lib.simulated_kernel_read(0, result, 8, out.ctypes.data) == 0


assert lib.simulated_get_compute_unit_count(0) == 16
assert lib.netcl_driver_device(0, device.encode()) == 0
assert lib.initialize_gpu(0) == 1, lib.netcl_last_error()
assert lib.simulated_get_compute_unit_count(0) >= 1
for sizes in ((2, 5, 7, 3), (1, 1, 1, 1), (3, 64, 33, 100)):
    products(*sizes)
for n in (1, 1003):
    elements(n)
for r, n in ((6, 37), (1, 1), (3, 2000)):
    rows(r, n)
for sizes in ((2, 3, 4, 5), (1, 1, 1, 1), (2, 8, 16, 32)):
    axes(*sizes)
for sizes in ((2, 6, 5, 9), (4, 50, 64, 30)):
    lookups(*sizes)
adam(1000)
for dtype in (np.float64, np.float32):
    simulated(dtype, 5, 4, 6)
    simulated(dtype, 17, 9, 1)
lib.shutdown_driver()
lib.netcl_simulated_shutdown()
print(f"driver.py on {device}: {len(set(tested))} functions, {len(tested)} calls agree with NumPy {np.__version__}")
