"""The package within a process: threads, signals, forks and memory."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import netcl as nc


def python(code, *, timeout=120, environment=None):
    variables = {**os.environ, **(environment or {})}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout, env=variables)


def test_importing_loads_neither_opencl_nor_numpy():
    code = """
        import sys
        import netcl
        maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
        assert "libOpenCL" not in maps and "libpocl" not in maps
        assert "numpy" not in sys.modules
    """
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_another_python_builds_kernels():
    code = "import sys; from netcl._netcl import serve_builds; serve_builds(sys.argv[1])"
    order = {"kernel": "k", "source": "__kernel void k(__global float *x) { x[0] = 1; }", "options": ""}
    lines = json.dumps(order) + "\n" + json.dumps({**order, "source": "no kernel"}) + "\n"
    done = subprocess.run([sys.executable, "-c", code, "sim"], input=lines, capture_output=True, text=True, timeout=120)
    ready, built, failed = done.stdout.splitlines()
    assert (ready, built) == ("ready", "built") and failed != "built", done


def test_threads_share_a_device():
    failures = []

    def work(seed):
        try:
            generator = nc.Generator(seed)
            for _ in range(20):
                x = nc.rand(16, 16, generator=generator, requires_grad=True)
                y = (x @ x).sum()
                y.backward()
                expected = x.numpy() @ x.numpy()
                assert abs(y.item() - expected.sum()) < 1e-2 * abs(expected.sum())
                with nc.no_grad():
                    assert not (x + 1).requires_grad
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert failures == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_what_to_do():
    nc.zeros(1).item()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            nc.zeros(1)
            words = "nothing was raised"
        except nc.errors.UnsupportedError as e:
            words = str(e)
        os.write(writer, words.encode())
        os._exit(0)
    os.waitpid(child, 0)
    words = os.read(reader, 4096).decode()
    assert "forked" in words and "spawn" in words


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_waiting_and_leaves_a_usable_device():
    # A product on the simulated GPU takes seconds, and reading its result waits for it.
    code = """
        import os, signal, sys, threading, time
        import netcl as nc
        nc.set_default_device("sim")
        small = nc.ones(4)
        small.sum().item()
        x = nc.ones(1024, 1024)
        sent = []
        def interrupt():
            time.sleep(0.5)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            while True:
                (x @ x).sum().item()
        except KeyboardInterrupt:
            late = time.monotonic() - sent[0]
        assert small.sum().item() == 4
        print(late)
    """
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) >= 0


def test_many_steps_keep_memory_flat():
    # In a separate process, so that no memory of other tests is freed meanwhile.
    code = """
        import gc, os
        import netcl as nc
        nc.set_default_device(os.environ.get("NETCL_TEST_DEVICE", "sim"))
        device = nc.default_device()
        w = nc.randn(8, 8, requires_grad=True)
        x = nc.randn(4, 8)
        def memory(steps):
            for _ in range(steps):
                w.grad = None
                (x @ w).gelu().sum().backward()
            gc.collect()
            device.synchronize()
            return device.memory()
        before, after = memory(20), memory(300)
        assert after[0] == before[0] and after[3] == before[3] and after[1] <= before[1], (before, after)
    """
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variables", [{}, {"OCL_ICD_VENDORS": os.devnull}, {"NETCL_OPENCL_LIBRARY": os.devnull}], ids=str)
def test_without_opencl_the_simulated_gpu_works_and_a_doctor_says_what_to_install(variables):
    code = """
        import netcl as nc
        words = nc.doctor()
        assert words.startswith("devices: ")
        assert "devices: none" not in words or "apt install" in words, words
        x = nc.ones(2, device="sim")
        assert (x + x).tolist() == [2, 2]
        print(words)
    """
    done = python(code, environment=variables)
    assert done.returncode == 0, done.stderr
    if "NETCL_OPENCL_LIBRARY" in variables:
        assert "devices: none" in done.stdout


def test_signal_numbers_are_untouched():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
