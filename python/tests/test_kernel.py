"""Custom functions and kernels, with their gradients."""

import gc
import weakref

import numpy as np
import pytest

import netcl as nc
from netcl.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x * factor

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * x * x * (3 * ctx.factor), None


def test_a_function_in_python_has_its_gradient():
    x = nc.tensor([1.0, -2.0], requires_grad=True)
    y = Cube.apply(x, 2.0)
    assert y.requires_grad
    (y * y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [24 * 1, 24 * (-2.0) ** 5])
    with nc.no_grad():
        assert not Cube.apply(x, 2.0).requires_grad
    assert not Cube.apply(x.detach(), 2.0).requires_grad


def test_several_arguments_and_results():
    class SumAndDifference(Function):
        @staticmethod
        def forward(ctx, a, b):
            assert ctx.needs_input_grad == (True, False)
            return a + b, a - b

        @staticmethod
        def backward(ctx, ds, dd):
            assert ds is None
            return dd, -dd

    a, b = nc.tensor([1.0], requires_grad=True), nc.tensor([2.0])
    s, d = SumAndDifference.apply(a, b)
    assert s.item() == 3
    (d * 5).backward()
    assert a.grad.item() == 5 and b.grad is None


def test_an_exception_in_a_backward_arrives_as_itself():
    class Broken(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            raise KeyError("gone")

    class Short(Broken):
        @staticmethod
        def backward(ctx, dy):
            return ()

    class Nothing(Broken):
        @staticmethod
        def forward(ctx, x):
            return 3

    x = nc.tensor([1.0], requires_grad=True)
    with pytest.raises(KeyError, match="gone"):
        Broken.apply(x).backward()
    with pytest.raises(ValueError, match="backward returns 0 gradients, expected 1"):
        Short.apply(x).backward()
    with pytest.raises(ValueError, match="forward returns int"):
        Nothing.apply(x)
    Cube.apply(x, 1.0).backward()
    assert x.grad.item() == 3, "later passes work"


def test_what_a_function_kept_is_freed():
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            ctx.save_for_backward(x, y)
            ctx.mark = Mark()
            marks.append(weakref.ref(ctx.mark))
            return y

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

    class Mark:
        pass

    marks = []
    x = nc.tensor([1.0], requires_grad=True)
    Keeps.apply(x).backward()
    Keeps.apply(x)
    gc.collect()
    nc.ones(1).item()
    assert [mark() for mark in marks] == [None, None]


SOFTMAX = """
// One work-group per row: maximum, sum of exponentials, and quotients.
__kernel void softmax(__global const T *x, __global T *y, __local float *part, const uint n) {
  const uint row = get_group_id(0), i = get_local_id(0), size = get_local_size(0);
  float top = -INFINITY;
  for (uint k = i; k < n; k += size) top = fmax(top, LD(x, row * n + k));
  part[i] = top;
  for (uint half_size = size / 2; half_size > 0; half_size /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < half_size) part[i] = fmax(part[i], part[i + half_size]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  top = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0.0f;
  for (uint k = i; k < n; k += size) sum += exp(LD(x, row * n + k) - top);
  part[i] = sum;
  for (uint half_size = size / 2; half_size > 0; half_size /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < half_size) part[i] += part[i + half_size];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint k = i; k < n; k += size) ST(y, row * n + k, exp(LD(x, row * n + k) - top) / part[0]);
}
"""

GRADIENT = """
__kernel void softmax_grad(__global const T *y, __global const T *dy, __global T *dx, const uint n) {
  const uint row = get_global_id(0);
  float sum = 0.0f;
  for (uint k = 0; k < n; k++) sum += LD(y, row * n + k) * LD(dy, row * n + k);
  for (uint k = 0; k < n; k++) ST(dx, row * n + k, LD(y, row * n + k) * (LD(dy, row * n + k) - sum));
}
"""


def softmax_kernel(source=SOFTMAX):
    gradient = nc.kernel(GRADIENT, items=lambda y: y.shape[0], local=1)
    return nc.kernel(source, groups=lambda x: x.shape[0], local=16, grad=gradient)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_softmax_by_a_kernel_with_a_gradient_by_another(dtype):
    softmax = softmax_kernel()
    a = np.random.default_rng(1).standard_normal((5, 37)).astype(np.float32)
    x = nc.tensor(a, dtype=dtype, requires_grad=True)
    w = nc.tensor(np.random.default_rng(2).standard_normal((5, 37)).astype(np.float32), dtype=dtype)
    y = softmax(x, n=37, part=64)
    (y * w).sum().backward()
    grad, x.grad = x.grad, None
    expected = x.softmax(-1)
    (expected * w).sum().backward()
    tolerance = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(y.numpy(), expected.numpy(), atol=tolerance)
    np.testing.assert_allclose(grad.numpy(), x.grad.numpy(), atol=tolerance)
    checked = softmax.check(x.detach(), n=37, part=64)
    np.testing.assert_allclose(checked.numpy(), expected.numpy(), atol=tolerance)


def test_the_simulated_gpu_finds_a_race_and_an_overrun():
    racing = SOFTMAX.replace("barrier(CLK_LOCAL_MEM_FENCE);\n    if (i < half_size) part[i] += ", "if (i < half_size) part[i] += ")
    assert racing != SOFTMAX
    x = nc.ones(2, 37)
    with pytest.raises(nc.errors.LaunchError, match="race"):
        softmax_kernel(racing).check(x, n=37, part=64)
    over = nc.kernel("__kernel void over(__global const float *x, __global float *y) { y[get_global_id(0)] = x[get_global_id(0) + 1]; }", local=1)
    with pytest.raises(nc.errors.LaunchError, match="x\\[get_global_id"):
        over.check(nc.ones(4))
    with pytest.raises(nc.errors.UnsupportedError, match="sim"):
        nc.Device("pocl:0", check="all")


def test_results_shapes_and_numbers():
    pair = nc.kernel(
        """
        __kernel void pair(__global const float *x, __global const uint *ids, __global float *sum, __global uint *count,
                           const float factor, const int shift, const uint n) {
          float total = 0.0f;
          for (uint i = 0; i < n; i++) total += x[ids[i]] * factor + shift;
          sum[0] = total; count[0] = n;
        }""",
        items=1,
        local=1,
        out={"sum": (), "count": (1,)},
    )
    total, count = pair(nc.tensor([1.0, 2.0, 4.0]), nc.tensor([2, 0], dtype="uint32"), factor=0.5, shift=-1, n=2)
    assert total.shape == () and total.item() == 0.5 and count.tolist() == [2] and count.dtype is nc.uint32
    x = nc.tensor([[1.0, 2.0], [3.0, 4.0]])
    twice = nc.kernel("__kernel void twice(__global const float *x, __global float *y) { const int i = get_global_id(0); y[i] = x[i] * BY; }", local=1, defines={"BY": 2})
    assert twice(x.T).tolist() == [[2, 6], [4, 8]]
    assert twice.time(x, repeat=2) >= 0
    scaled = nc.kernel("__kernel void scaled(__global const float *x, __global float *y) { if (get_global_id(0) < 4) y[get_global_id(0)] = x[get_global_id(0)]; }")
    assert scaled.tune({"WG": [1, 4, 2]}, x, repeat=1)["WG"] in (1, 2, 4)
    assert scaled(x).tolist() == x.tolist()


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: nc.kernel("void f() {}"), ValueError, "no function `__kernel void"),
        (lambda: nc.kernel("__kernel void f(__global const float *x) {}"), ValueError, "does not have a result"),
        (lambda: nc.kernel("__kernel void f(__global double *y) {}"), ValueError, "points at double"),
        (lambda: nc.kernel("__kernel void f(__global float *y, float4 v) {}"), ValueError, "parameter v is float4"),
        (lambda: nc.kernel("__kernel void f(__global float *y) {}", items=1, groups=1), ValueError, "one of them"),
        (lambda: copy()(), ValueError, "0 tensors, expected 1: x"),
        (lambda: copy()(3), TypeError, "x is int"),
        (lambda: copy()(nc.tensor([1])), TypeError, "x is int32, expected float32 for float"),
        (lambda: copy()(nc.ones(1)), ValueError, "n is missing"),
        (lambda: copy()(nc.ones(1), n=1, m=2), ValueError, "no parameter m"),
        (lambda: copy()(nc.ones(1), n=1.5), ValueError, "1.5 is not a valid uint"),
        (lambda: copy()(nc.ones(1, requires_grad=True), n=1), NotImplementedError, "the kernel has none"),
        (lambda: copy("y[0] = nothing;")(nc.ones(1), n=1), nc.errors.BuildError, "nothing"),
    ],
)
def test_what_is_wrong_is_said(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def copy(body="if (get_global_id(0) < n) y[get_global_id(0)] = x[get_global_id(0)];"):
    return nc.kernel("__kernel void copy(__global const float *x, __global float *y, const uint n) { %s }" % body)


def test_the_profiler_names_kernels():
    x = nc.ones(64, 64)
    with nc.profiler.profile() as p:
        (x @ x).sum().item()
    assert p.kernels and p.seconds >= 0 and all(t.launches > 0 for t in p.kernels)
    assert p.kernels[0].name in str(p) and "share" in str(p)


COUNTED = """
__kernel void marked(__global const float *x, /* not } a { brace */ __global float *y) { // a comment (with) words
  y[get_global_id(0) + 100 * get_global_id(1)] = 1.0f + x[0];
}"""


@pytest.mark.parametrize("device", [None, "sim"])
@pytest.mark.parametrize("items", [33, 1, 63, 64, 65, 128, (33, 1), (5, 3)])
def test_a_kernel_runs_as_many_items_as_it_says(items, device):
    sizes = (items, 1) if isinstance(items, int) else items
    run = nc.kernel(COUNTED, items=items, local=(16, 2) if sizes[1] > 1 else 64, out=(1000,))
    y = nc.zeros(1000, device=device)
    run.launch({"x": nc.zeros(1, device=device), "y": y}, {})
    marked = np.zeros((10, 100)) if sizes[0] <= 100 else np.zeros((1, 1000))
    marked[: sizes[1], : sizes[0]] = 1
    np.testing.assert_array_equal(y.numpy(), marked.reshape(-1))


def test_a_kernel_that_shares_its_group_refuses_a_part_of_a_group():
    source = "__kernel void f(__global const float *x, __global float *y) { barrier(CLK_GLOBAL_MEM_FENCE); y[get_global_id(0)] = x[0]; }"
    x = nc.zeros(64)
    with pytest.raises(ValueError, match="multiple"):
        nc.kernel(source, items=33, local=64)(x)
    assert nc.kernel(source, items=64, local=32)(x).shape == (64,)


def test_a_guarded_kernel_keeps_its_lines_and_its_own_check():
    source = """__kernel void f(__global const float *x, __global float *y, const uint n) {
      if (get_global_id(0) >= n) return;
      y[get_global_id(0)] = x[get_global_id(0)] + undefined_name;
    }"""
    with pytest.raises(nc.errors.BuildError, match="3"):
        nc.kernel(source, items=3, local=2)(nc.zeros(3), n=3)
    made = nc.kernel(source.replace("undefined_name", "1"), items=lambda x: x.size, local=2)
    assert made(nc.tensor([1.0, 2.0, 3.0]), n=3).tolist() == [2.0, 3.0, 4.0]
