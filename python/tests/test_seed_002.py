"""Checks seed 002, a simulated GPU with Python on top, row by row of the table of the seeds' promises.

The tests read the seed's own text from the shared folder next to the repository, if it exists. Its listing runs unchanged. The messages of its
test run are compared with those of ``netcl.compat.simulated_driver``.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import netcl as nc
from netcl import errors
from netcl.aethercl import (
    DISPATCH_SCHEDULERS,
    GPU,
    MEMORY_SCHEDULERS,
    GPUManager,
    MemoryScheduler,
    Register,
    local,
    read,
    write,
)
from netcl.compat import simulated_driver

ROOT = Path(__file__).parents[2]
SHARED = Path(__file__).parents[3] / "shared"
needs_seed = pytest.mark.skipif(not (SHARED / "seeds").is_dir(), reason="the seeds are not in ../shared")
# Rows that other tests check.
ELSEWHERE = {202: "crates/aethercl-icd/tests/calls", 207: "docs/aethercl.md"}


def seed():
    """The seed's text. Its letters beyond ASCII were stored in the wrong encoding; those that matter are restored."""
    (path,) = (SHARED / "seeds").glob("002_*.txt")
    text = path.read_text(encoding="utf-8")
    return text.encode("cp1254", "replace").decode("utf-8", "replace")


@pytest.fixture
def gpu():
    with GPU() as gpu:
        yield gpu


def put(gpu, array):
    address = gpu.allocate(array.nbytes)
    gpu.write_data(address, array)
    return address


def product(gpu, a, b):
    at_c = gpu.simulated_matrix_multiply(put(gpu, a), put(gpu, b), a.nbytes, b.nbytes, a.shape, b.shape)
    return gpu.read_data(at_c, (a.shape[0], b.shape[1]), a.dtype)


@needs_seed
def test_every_row_has_a_test():
    rows = [int(n) for n in re.findall(r"^\| (\d+) \| 002 \|", (SHARED / "docs" / "SEEDS.md").read_text(encoding="utf-8"), re.M)]
    tested = {int(n) for name in globals() for n in re.findall(r"^test_row_(\d+)", name)}
    assert len(rows) == 22 and set(rows) == tested | set(ELSEWHERE)
    assert all((ROOT / place).exists() for place in ELSEWHERE.values())


def test_row_192_allocation(gpu):
    addresses = [gpu.allocate(160), gpu.allocate(192)]
    assert len(set(addresses)) == 2 and gpu.memory().used == 2 * 65536
    for bytes in (0, -1):
        with pytest.raises(errors.FormatError, match=f"allocate: {bytes} bytes"):
            gpu.allocate(bytes)
    with pytest.raises(errors.OutOfMemoryError):
        gpu.allocate(1 << 50)


def test_row_193_write(gpu):
    for array in (np.arange(24.0).reshape(4, 6).T, np.array(3, np.int16), np.ones((2, 0, 3)), [1, 2, 3]):
        array = np.asarray(array)
        address = gpu.allocate(max(array.nbytes, 1))
        gpu.write_data(address, array)
        assert np.array_equal(gpu.read_data(address, array.shape, array.dtype), array)


@pytest.mark.parametrize("m, k, n", [(5, 4, 6), (1, 1, 1), (8, 8, 8), (130, 77, 65), (1, 300, 2)])
def test_row_194_product_of_doubles(gpu, m, k, n):
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    assert np.allclose(product(gpu, a, b), a @ b, rtol=1e-12, atol=1e-12)
    assert gpu.findings() == []


def test_row_195_floats_and_mixed_operands(gpu):
    a, b = np.random.rand(5, 4).astype(np.float32), np.random.rand(4, 6).astype(np.float32)
    assert np.allclose(product(gpu, a, b), a @ b, rtol=1e-5)
    with pytest.raises(errors.ShapeError, match="sizes 80 and 192 do not match shapes"):
        product(gpu, a, b.astype(np.float64))


def test_row_196_read_into_numpy(gpu):
    a, b = np.random.rand(5, 4), np.random.rand(4, 6)
    at_c = gpu.simulated_matrix_multiply(put(gpu, a), put(gpu, b), 160, 192, (5, 4), (4, 6))
    first, second = (gpu.read_data(at_c, shape=(5, 6), dtype=np.float64) for _ in range(2))
    assert first.flags.writeable and np.array_equal(first, second) and np.allclose(first, a @ b)
    assert np.array_equal(gpu.read_data(at_c + 8, 29, "f8"), first.ravel()[1:])


def test_row_197_free(gpu):
    address = gpu.allocate(64)
    gpu.free(address, 64)
    assert gpu.memory().used == 0
    with pytest.raises(errors.FormatError):
        gpu.free(address)
    with pytest.raises(errors.FormatError, match="not within an allocation"):
        gpu.read_data(address, 1, np.uint8)


def test_row_198_asynchronous_read_back(gpu):
    a = np.random.rand(100, 30)
    address, main, seen = put(gpu, a), threading.get_ident(), []

    def arrived(array):
        # The callback runs on another thread and may call the GPU.
        seen.append((threading.get_ident(), array, gpu.read_data(address, 1, np.float64)[0]))

    futures = [gpu.read_data_async(address, a.shape, a.dtype, arrived) for _ in range(5)]
    assert all(np.array_equal(future.result(60), a) for future in futures)
    assert len(seen) == 5 and all(thread != main and np.array_equal(array, a) and x == a[0, 0] for thread, array, x in seen)
    failed = gpu.read_data_async(address, a.shape, a.dtype, lambda array: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(60)
    with pytest.raises(errors.FormatError):
        gpu.read_data_async(address, 10**9, np.float64)
    with GPU() as other:
        at = put(other, a)
        closed = other.read_data_async(at, a.shape, a.dtype, lambda array: other.close())
        assert np.array_equal(closed.result(60), a)


def test_row_199_commands(gpu):
    x, y = put(gpu, np.arange(16, dtype=np.int32)), gpu.allocate(64)
    first, second = gpu.queue, gpu.open_queue()
    upload = first.write(x, np.arange(16, dtype=np.int32) * 2)
    second.wait_for(upload)
    second.fill(y, 64, np.int32(7).tobytes())
    copied = second.copy(y + 32, x, 32)
    read_back = second.read(y, (16,), np.int32)
    first.doorbell()
    second.doorbell()
    assert upload.wait().end_ns <= copied.wait().start_ns
    assert read_back.result().tolist() == [7] * 8 + list(range(0, 16, 2))
    with pytest.raises(errors.FormatError, match="pattern of 3 bytes"):
        first.fill(x, 6, b"abc")
    while True:
        try:
            gpu.open_queue()
        except errors.FormatError as error:
            assert "8 queues" in str(error)
            break


def test_row_199_kernels(gpu):
    program = gpu.build(
        """
        __kernel void scale(__global const float *x, __global float *y, float by, uint n, __local float *part) {
          part[get_local_id(0)] = x[get_global_id(0)];
          if (get_global_id(0) < n) y[get_global_id(0)] = by * part[get_local_id(0)];
          if (get_global_id(0) == 0) printf("n %u\\n", n);
        }"""
    )
    x = np.arange(32, dtype=np.float32)
    at_x, at_y = put(gpu, x), put(gpu, np.zeros(32, np.float32))
    arguments = read(at_x, 128), write(at_y, 128), 1.5, 20, local(32)
    gpu.launch(program, "scale", *arguments, global_size=32, local_size=8)
    assert gpu.read_data(at_y, 32, np.float32).tolist() == [*(x[:20] * 1.5), *[0] * 12]
    assert gpu.printed() == "n 20\n" and gpu.counters().counts["items"] == 32 and gpu.counters().ns > 0
    for wrong, message in [
        ((read(at_x, 128), write(at_y, 128), 1.5, 20), "5 parameters"),
        ((3, write(at_y, 128), 1.5, 20, local(32)), "argument x is a buffer"),
        ((read(at_x, 128), write(at_y, 128), 1.5, -1, local(32)), "argument n: -1 is not a valid uint"),
        ((read(at_x, 128), write(at_y, 128), 1.5, 2.5, local(32)), "not a valid uint"),
        ((read(at_x, 128), write(at_y, 128), 1.5, 20, 32), "pass local"),
    ]:
        with pytest.raises(errors.FormatError, match=message):
            gpu.launch(program, "scale", *wrong, global_size=32, local_size=8)
    with pytest.raises(errors.FormatError, match="kernel 'none'"):
        gpu.launch(program, "none", global_size=1, local_size=1)
    with pytest.raises(errors.BuildError, match="undeclared"):
        gpu.build("__kernel void f() { g = 1; }")


def test_row_200_trace():
    counts = []
    for level in ("off", "commands", "steps", "all"):
        lines = []
        with GPU(trace=level, on_trace=lines.append) as gpu:
            product(gpu, np.ones((5, 4)), np.ones((4, 6)))
        counts.append(len(lines))
        assert level == "off" or any("kernel matrix_multiply" in line for line in lines)
    assert counts[0] == 0 and counts == sorted(counts) and len(set(counts)) == 4
    with GPU() as gpu:
        gpu.trace("commands", lambda line: gpu.memory())
        with pytest.raises(errors.UnsupportedError, match="must not call a machine"):
            put(gpu, np.ones(3))
        with pytest.raises(errors.FormatError, match="unknown trace level"):
            gpu.trace("loud")


def test_row_201_wrong_calls(gpu):
    a = put(gpu, np.ones((5, 4)))
    with pytest.raises(errors.ShapeError, match="4 columns, but 5 rows"):
        gpu.simulated_matrix_multiply(a, a, 160, 160, (5, 4), (5, 4))
    with pytest.raises(errors.ShapeError, match="rows and columns"):
        gpu.simulated_matrix_multiply(a, a, 160, 160, (20,), (4, 5))
    with pytest.raises(errors.FormatError, match="not within an allocation"):
        gpu.simulated_matrix_multiply(12345, a, 160, 160, (5, 4), (4, 5))
    assert gpu.memory().used == 65536, "a failed product frees its result"
    with pytest.raises(errors.FormatError, match="not within an allocation"):
        gpu.write_data(a, np.ones(21))
    with pytest.raises(errors.ShapeError, match="negative"):
        gpu.read_data(a, (-1, 2), np.float64)
    for options, error in [({"profile": "none"}, "profile none"), ({"checks": "x"}, "x"), ({"compute_units": 0}, "0 compute units")]:
        with pytest.raises(errors.FormatError, match=error):
            GPU(**options)


@needs_seed
@pytest.mark.parametrize("kind", [GPU, lambda: simulated_driver.GPU(verbose=False)])
def test_row_203_the_listing_runs_unchanged(kind):
    (listing,) = [block for block in re.findall(r"```python\n(.*?)```", seed(), re.S)]
    assert "simulated_matrix_multiply" in listing and "read_data" in listing
    # The listing draws the matrices and multiplies what is in memory, so the same numbers are drawn before.
    np.random.seed(3)
    a, b = np.random.rand(5, 4), np.random.rand(4, 6)
    with kind() as gpu:
        names = {"np": np, "gpu": gpu, "mmap_ptr_a": put(gpu, a), "mmap_ptr_b": put(gpu, b)}
        names.update(size_a=a.nbytes, size_b=b.nbytes, shape_a=a.shape, shape_b=b.shape)
        np.random.seed(3)
        exec(compile(listing, "seed 002", "exec"), names)
    assert np.array_equal(names["A"], a) and np.array_equal(names["B"], b)
    assert np.allclose(names["C"], a @ b) and names["C"].dtype == np.float64


def run(*arguments, code=0, **options):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, encoding="utf-8", timeout=300, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_row_204_manager_harness_and_shutdown():
    with GPUManager(2) as manager:
        assert len(manager) == 2 and [gpu.index for gpu in manager] == [0, 1] and manager[1] is manager.get_gpu(1)
        first = manager[0]
        with pytest.raises(errors.IndexOutOfBounds, match="GPU 2 does not exist"):
            manager.get_gpu(2)
    with pytest.raises(errors.DeviceError, match="GPU 0 is closed"):
        first.allocate(8)
    first.close()
    # At exit, open GPUs are closed: the pending read-back and its callback finish.
    script = "\n".join(
        [
            "import numpy as np",
            "from netcl.aethercl import GPU",
            "gpu = GPU()",
            "address = gpu.allocate(80)",
            "gpu.write_data(address, np.arange(10.0))",
            "window = gpu.mmio()",
            'gpu.read_data_async(address, 10, np.float64, callback=lambda array: print("arrived", array.sum()))',
        ]
    )
    assert run("-c", script) == "arrived 45.0\n"
    app = run(str(ROOT / "examples" / "aethercl" / "app.py"))
    assert "VERIFIKATION ERFOLGREICH" in app and "[AetherCL]" in app


def test_row_204_messages_can_be_turned_off(capsys):
    manager = simulated_driver.GPUManager(2, verbose=False)
    gpu = manager.get_gpu(1)
    assert gpu.initialize() and gpu.initialized and gpu.compute_units == simulated_driver.COMPUTE_UNITS == 2560
    assert np.allclose(product(gpu, np.ones((2, 3)), np.ones((3, 4))), 3)
    manager.shutdown()
    assert capsys.readouterr().out == ""


# Numbers that differ from run to run: addresses, and the elements of the product.
def normalized(text):
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(("[C Driver]", "[AetherCL]", "initialize_gpu:"))]
    lines = [re.sub(r"laden von: .*", "laden von: …", line) for line in lines if not re.match(r" ?\[+[\d. ]+\]+$", line)]
    lines = [re.sub(r"(Adresse[:n]?|Ergebnisadresse:|GPU-Adresse:|A=|B=)( erhalten:)? ?\d+", r"\1\2 …", line) for line in lines]
    return [line for line in lines if line]


@needs_seed
def test_row_204_the_messages_of_the_harness():
    text = seed()
    theirs = text[text.index("Versuche, simulierten Treiber") :]
    theirs = normalized(theirs[: theirs.index("```")])
    ours = normalized(run("-m", "netcl.compat.simulated_driver.app", env={**os.environ, "PYTHONIOENCODING": "utf-8"}))
    assert len(theirs) > 40
    # The seed's run ends in the middle of the last step.
    assert ours[: len(theirs)] == theirs


def test_row_205_numpy_verifies_the_result():
    # A wrong product must be reported: the harness compares, and does not only print.
    script = "\n".join(
        [
            "import sys",
            "import numpy as np",
            "from netcl.compat import simulated_driver",
            "from netcl.compat.simulated_driver import app",
            "right = simulated_driver.GPU.read_data",
            "def wrong(self, address, shape, dtype):",
            "    array = right(self, address, shape, dtype)",
            "    array[2, 3] += 1e-3",
            "    return array",
            "simulated_driver.GPU.read_data = wrong",
            "sys.exit(app.main())",
        ]
    )
    assert "VERIFIKATION FEHLGESCHLAGEN" in run("-c", script, code=1)
    assert "stimmt mit NumPy überein" in run("-m", "netcl.compat.simulated_driver.app")


def test_row_206_architecture_picture():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from animate_drawing import animated
    finally:
        sys.path.pop(0)
    drawing = (ROOT / "docs/drawings/aethercl_architecture.svg").read_text(encoding="utf-8")
    moving = (ROOT / "docs/aethercl_architecture_animated.svg").read_text(encoding="utf-8")
    assert moving == animated(drawing), "run make drawings"
    assert moving.count("@keyframes") > 20 and "animation:" not in drawing
    assert (ROOT / "docs/aethercl_architecture.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = (ROOT / "docs/aethercl.md").read_text(encoding="utf-8")
    assert all(name in page for name in ("drawings/aethercl_architecture.svg", "aethercl_architecture.png", "aethercl_architecture_animated.svg"))


def test_row_208_one_command_builds_the_library(tmp_path):
    library, compiler = Path(os.environ.get("LIBNETCL", "")), shutil.which("gcc") or shutil.which("cc")
    if not library.is_file() or compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs gcc, Linux, and LIBNETCL, the path of libnetcl")
    (tmp_path / "libnetcl.so.0").symlink_to(library)
    (tmp_path / "libnetcl.so").symlink_to("libnetcl.so.0")
    source = ROOT / "capi/simulated_driver/simulated_driver.c"
    (command,) = re.findall(r"gcc -shared -fPIC .*\$ORIGIN'", source.read_text(encoding="utf-8"))
    command = command.replace("PREFIX/include", str(ROOT / "capi/include")).replace("PREFIX/lib", ".")
    command = command.replace(" simulated_driver.c", f" {source}").replace("gcc", compiler, 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    script = "\n".join(
        [
            "import ctypes as c, sys",
            "import numpy as np",
            "lib = c.CDLL(sys.argv[1])",
            "lib.simulated_kernel_allocate.restype = lib.simulated_matrix_multiply.restype = c.c_ulonglong",
            "a, b = np.random.rand(5, 4), np.random.rand(4, 6)",
            "at = [lib.simulated_kernel_allocate(0, c.c_size_t(x.nbytes)) for x in (a, b)]",
            "for address, x in zip(at, (a, b)):",
            "    lib.simulated_kernel_write(0, c.c_ulonglong(address), c.c_size_t(x.nbytes), c.c_void_p(x.ctypes.data))",
            "shapes = [(c.c_int * 2)(*x.shape) for x in (a, b)]",
            "at_c = lib.simulated_matrix_multiply(0, *map(c.c_ulonglong, at), c.c_size_t(160), c.c_size_t(192), *shapes)",
            "out = np.empty((5, 6))",
            "assert lib.simulated_kernel_read(0, c.c_ulonglong(at_c), c.c_size_t(240), c.c_void_p(out.ctypes.data)) == 1",
            "assert np.allclose(out, a @ b)",
            'print("ok")',
        ]
    )
    assert run("-c", script, str(tmp_path / "simulated_driver.so")) == "ok\n"


def test_row_209_kernels_are_opencl_c(gpu):
    product(gpu, np.ones((16, 16)), np.ones((16, 16)))
    counters = gpu.counters()
    assert counters.counts["groups"] == 4 and counters.counts["items"] == 256 and counters.ns > 0
    with GPU(checks="all") as checked:
        product(checked, np.random.rand(17, 9), np.random.rand(9, 20))
        assert checked.findings() == []
        race = checked.build("__kernel void add(__global int *x) { x[0] += 1; }")
        checked.launch(race, "add", write(put(checked, np.zeros(1, np.int32)), 4), global_size=16, local_size=16)
        assert any("race" in finding.kind and finding.line == 1 for finding in checked.findings())


def test_row_210_register_window():
    with GPU(ring_words=64) as gpu:
        window, ring = gpu.mmio(), gpu.ring(gpu.queue)
        assert gpu.mmio() is window
        assert type(window.words) is memoryview and window.words.format == "I" and not window.words.readonly
        assert window[Register.ID] == 0x4145434C and window[Register.UNITS] == gpu.compute_units
        x = np.arange(64, dtype=np.float32)
        at, source, target = gpu.allocate(256), gpu.pin(x), gpu.pin(256)
        # Many more packets than the ring holds.
        for _ in range(100):
            ring.copy_in(at, source, 256)
            ring.copy_out(target, at, 256)
        program = gpu.build("__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2; }")
        ring.launch(gpu.describe_launch(program, "twice", write(at, 256), global_size=64, local_size=8))
        ring.copy_out(target, at, 256)
        before = ring.fence
        ring.finish()
        assert ring.fence == before + 1 and window[Register.IRQ_STATUS] & 1
        window[Register.IRQ_CLEAR] = 1
        end = threading.Event()
        for _ in range(1000):
            if not window[Register.IRQ_STATUS] & 1:
                break
            end.wait(0.005)
        assert not window[Register.IRQ_STATUS] & 1
        assert np.array_equal(gpu.unpin(target, 64, np.float32), 2 * x)
        with pytest.raises(errors.FormatError, match="nothing is pinned"):
            gpu.unpin(target)
        ring.copy_in(12, source, 256)
        with pytest.raises(errors.LaunchError, match="bad address"):
            ring.finish()
        for offset in (2, -4, 1 << 40):
            with pytest.raises(errors.IndexOutOfBounds):
                window[offset]
        words = window.words
        window.close()
        again = gpu.mmio()
        assert again is not window and again[Register.ID] == 0x4145434C
    # The memory stays valid after the GPU is closed.
    assert words[0] == 0x4145434C


def test_row_213_dispatch_schedulers():
    def order(scheduler):
        done = []
        with GPU(dispatch_scheduler=scheduler) as gpu:
            at, queues = gpu.allocate(64), [gpu.queue, gpu.open_queue(), gpu.open_queue()]
            fences = [queue.fill(at, 64) for queue in queues for _ in range(2)]
            for queue in queues:
                queue.doorbell()
            done = sorted(fences, key=lambda fence: fence.wait().start_ns)
        return [fence.queue for fence in done]

    asked = []

    def last(ready):
        asked.append(ready)
        return ready[-1].queue

    assert order("priority") == [0, 0, 1, 1, 2, 2] and order("round-robin") == [0, 1, 2, 0, 1, 2]
    assert order(last) == [2, 2, 1, 1, 0, 0]
    assert [queue.queue for queue in asked[0]] == [0, 1, 2] and "fill 64 bytes" in asked[0][0].command
    assert all(order(name) for name in DISPATCH_SCHEDULERS)
    with GPU() as gpu:
        for wrong in ("fair", 3):
            with pytest.raises(errors.FormatError, match="dispatch_scheduler"):
                gpu.dispatch_scheduler = wrong
        at = gpu.allocate(64)
        for scheduler, error in [(lambda ready: 9, ValueError), (lambda ready: 1 / 0, ZeroDivisionError), (lambda ready: gpu.memory(), errors.UnsupportedError)]:
            gpu.dispatch_scheduler = scheduler
            with pytest.raises(error):
                gpu.write_data(at, np.ones(8))
        gpu.dispatch_scheduler = "earliest"
        gpu.write_data(at, np.ones(8))


def test_row_212_layers_on_the_simulated_gpu():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 2, 5, 5)).astype(np.float32), rng.standard_normal((3, 2, 3, 3)).astype(np.float32)
    on_sim = [nc.tensor(array, device="sim") for array in (x, w)]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    assert np.allclose(nc.ops.conv2d(*on_sim).numpy()[0], np.einsum("cijkl,ockl->oij", windows, w), rtol=1e-4, atol=1e-5)
    assert np.array_equal(on_sim[0].relu().numpy(), np.maximum(x, 0))
    e = np.exp(x - x.max(-1, keepdims=True))
    assert np.allclose(on_sim[0].softmax(-1).numpy(), e / e.sum(-1, keepdims=True), rtol=1e-5)


class Oldest(MemoryScheduler):
    def evict(self, pages, resident):
        return min(resident, key=lambda allocation: allocation.last_use).address if resident else None


@pytest.mark.parametrize("scheduler", ["lru", Oldest()])
def test_row_211_memory_scheduler_moves_allocations(scheduler):
    # Eight layers in the memory of three: each product finds its operands, and the result equals NumPy's.
    rng = np.random.default_rng(1)
    weights = [(rng.standard_normal((128, 128)) / 128**0.5).astype(np.float32) for _ in range(8)]
    x = rng.standard_normal((128, 128)).astype(np.float32)
    with GPU(memory=3 * 65536, memory_scheduler=scheduler) as gpu:
        layers = [put(gpu, w) for w in weights]
        at, expected = put(gpu, x), x
        for layer, w in zip(layers, weights):
            after = gpu.simulated_matrix_multiply(at, layer, x.nbytes, w.nbytes, x.shape, w.shape)
            gpu.free(at)
            at, expected = after, expected @ w
        assert np.allclose(gpu.read_data(at, x.shape, x.dtype), expected, rtol=1e-4, atol=1e-4)
        use = gpu.memory()
        assert use.used <= use.capacity == 3 * 65536 and use.moved_out > 0 and use.moved_in > 0
        with pytest.raises(errors.OutOfMemoryError):
            gpu.allocate(4 * 65536)
        assert all(np.array_equal(gpu.read_data(layer, w.shape, w.dtype), w) for layer, w in zip(layers, weights))
    with GPU(memory=3 * 65536) as gpu:
        addresses = [gpu.allocate(65536) for _ in range(3)]
        with pytest.raises(errors.OutOfMemoryError):
            gpu.allocate(1)
        assert gpu.memory().moved_out == 0 and len(gpu.resident()) == len(addresses)


def test_row_211_memory_scheduler_places_allocations():
    def free_after(scheduler):
        with GPU(memory=8 * 65536, memory_scheduler=scheduler) as gpu:
            addresses = [gpu.allocate(65536) for _ in range(8)]
            for n in (1, 2, 3, 5):
                gpu.free(addresses[n])
            gpu.allocate(65536)
            return [tuple(run) for run in gpu.free_pages()]

    assert free_after("first-fit") == [(2, 2), (5, 1)] and free_after("best-fit") == [(1, 3)]
    assert free_after(lambda pages, free: free[-1].start if free else None) == [(1, 3)]
    assert all(free_after(name) for name in MEMORY_SCHEDULERS)
    with GPU() as gpu:
        for wrong in ("slab", 3):
            with pytest.raises(errors.FormatError, match="memory_scheduler"):
                gpu.memory_scheduler = wrong
        gpu.memory_scheduler = lambda pages, free: 1 << 40
        with pytest.raises(ValueError, match="are not free"):
            gpu.allocate(8)
        gpu.memory_scheduler = "worst-fit"
        assert gpu.allocate(8)
