"""Seed 000 (OCL-LLM), rows 43 to 70 of the table of promises: device, buffers, tensors and gradients. A test is named by its row."""

import gc
import re

import numpy as np
import pytest
import seeds

import netcl as nc
from netcl.compat import ocl_llm as ocl
from netcl.compat.ocl_llm import FP_TYPE, GPUBuffer, OclTensor, Parameter


@pytest.fixture(autouse=True)
def device():
    before = nc.default_device()
    ocl.ocl_initialize(before.name)
    yield before
    nc.set_default_device(before)


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def tensor(*shape, seed=0):
    return OclTensor(drawn(*shape, seed=seed), requires_grad=True)


def test_row_043_initialize_takes_a_number_and_has_a_default(capsys):
    ocl.ocl_shutdown()
    assert not OclTensor._ocl_initialized
    assert ocl.ocl_initialize() and OclTensor._ocl_initialized
    assert nc.default_device().name == nc.devices()[0]
    assert ocl.ocl_initialize(device_index=0) == nc.devices()[0]


@pytest.mark.parametrize("index", [99, -1, "99", 10**6])
def test_row_044_an_invalid_index_is_device_0_with_a_warning(index):
    with pytest.warns(RuntimeWarning, match="using device 0"):
        assert ocl.ocl_initialize(index) == nc.devices()[0]
    with pytest.raises(nc.errors.DeviceError, match="nothing:7"):
        ocl.ocl_initialize("nothing:7")


def test_row_045_the_availability_of_kernels_is_printed(capsys):
    capsys.readouterr()
    ocl.ocl_initialize(nc.default_device().name)
    shown = capsys.readouterr().out
    named = set(re.findall(r"`(HAS_\w+)`", seeds.text("000"))) | {"has_atomics_support"}
    assert len(named) >= 9
    for flag in named:
        assert getattr(ocl, flag) is True and re.search(rf"{flag}\s+yes", shown), flag
    assert ocl.FP_TYPE is np.float32 and ocl.ADAM_STATE_TYPE is np.float32
    with pytest.raises(AttributeError):
        ocl.HAS_NOTHING


def test_row_046_a_shutdown_frees_tensors_optimizer_and_model():
    x, model = tensor(3), ocl.SimpleModel({"vocab_size": 5, "max_len": 4, "embed_dim": 4, "num_heads": 2, "d_ff": 8, "num_layers": 1})
    optimizer = ocl.AdamOptimizer(model.parameters())
    ocl.ocl_shutdown()
    for freed in (x, model.parameters()[0]):
        with pytest.raises(nc.errors.LaunchError, match="freed"):
            freed.to_host()
    with pytest.raises(nc.errors.FormatError, match="freed"):
        optimizer.step()


def test_row_047_buffers_have_size_tag_zeros_and_dtype():
    buffer = GPUBuffer(24, tag="six", _init_zeros=True, dtype=FP_TYPE)
    assert buffer.tag == "six" and buffer._allocated and buffer.ptr and buffer.read((2, 3)).tolist() == [[0] * 3] * 2
    for dtype in (np.int32, np.float64, np.uint8, np.float16):
        zeros = GPUBuffer(16, _init_zeros=True, dtype=dtype).read((16 // np.dtype(dtype).itemsize,), dtype)
        assert zeros.dtype == dtype and not zeros.any()
    assert GPUBuffer(0).read((0,)).shape == (0,)


def test_row_048_too_much_memory_is_a_memory_error():
    with pytest.raises(MemoryError):
        GPUBuffer(1 << 46, "huge")
    with pytest.raises(ValueError):
        GPUBuffer(-4)


def test_row_049_write_checks_the_size():
    buffer = GPUBuffer(24)
    buffer.write(drawn(2, 3))
    assert np.array_equal(buffer.read((6,)), drawn(2, 3).reshape(6))
    buffer.write(np.arange(6, dtype=np.int32).reshape(3, 2).T.copy().T)
    assert buffer.read((3, 2), np.int32).tolist() == [[0, 1], [2, 3], [4, 5]]
    for wrong in (drawn(5), drawn(7), drawn(3).astype(np.float64)[:2]):
        with pytest.raises(ValueError, match="bytes"):
            buffer.write(wrong)


def test_row_050_read_checks_the_size():
    buffer = GPUBuffer(24)
    buffer.write(drawn(6))
    assert buffer.read(3).shape == (3,) and np.array_equal(buffer.read((2, 2)), drawn(6)[:4].reshape(2, 2))
    with pytest.raises(ValueError, match="bytes"):
        buffer.read((7,))
    with pytest.raises(ValueError, match="bytes"):
        buffer.read((6,), np.float64)


def test_row_051_clones_are_independent():
    buffer = GPUBuffer(12)
    buffer.write(drawn(3))
    copy = buffer.clone()
    buffer.write(drawn(3) * 2)
    assert copy.size_in_bytes == 12 and copy.ptr != buffer.ptr and np.array_equal(copy.read((3,)), drawn(3))


def test_row_052_free_sets_ptr_and_allocated():
    buffer = GPUBuffer(12)
    buffer.free()
    assert buffer.ptr is None and buffer._allocated is False
    buffer.free()
    with pytest.raises(ValueError, match="freed"):
        buffer.read((1,))
    before = nc.default_device().memory()[0]
    dropped = GPUBuffer(1 << 16)
    assert nc.default_device().memory()[0] >= before + (1 << 16)
    del dropped
    gc.collect()
    assert nc.default_device().memory()[0] <= before


def test_row_053_tensors_take_data_requires_grad_buffer_and_shape():
    x = OclTensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    assert x.requires_grad and x.grad is None and x._ctx is None and x._grad_buffer is None
    assert OclTensor([[1, 2]]).to_host().dtype == np.float32 and not OclTensor([1.0]).requires_grad
    buffer = GPUBuffer(24)
    buffer.write(drawn(6))
    for data in (None, np.empty(0, dtype=np.float32)):
        y = OclTensor(data, _gpu_buffer=buffer, _shape=(3, 2))
        assert y.data is buffer and np.array_equal(y.to_host(), drawn(6).reshape(3, 2))
    assert OclTensor(np.ones((2, 3)), _gpu_buffer=buffer).to_host().tolist() == [[1] * 3] * 2 == buffer.read((2, 3)).tolist()
    with pytest.raises(ValueError, match="bytes"):
        OclTensor(None, _gpu_buffer=buffer, _shape=(4,))
    with pytest.raises(ValueError):
        OclTensor()


def test_row_054_shape_numel_and_nbytes():
    x = tensor(3, 5)
    assert (tuple(x.shape), x.numel, x.nbytes) == ((3, 5), 15, 60) and OclTensor(1.0).nbytes == 4


def test_row_055_data_is_a_buffer():
    x = tensor(2, 3)
    assert type(x.data) is GPUBuffer and x.data is x.data and np.array_equal(x.data.read((2, 3)), drawn(2, 3))
    x.data.write(drawn(2, 3) * 2)
    assert np.array_equal(x.to_host(), drawn(2, 3) * 2)
    x.data = buffer = GPUBuffer(24, _init_zeros=True)
    assert x.data is buffer and not x.to_host().any() and x.requires_grad
    turned = x.detach().permute(1, 0)
    turned.data.write(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert turned.to_host().tolist() == [[0, 1], [2, 3], [4, 5]] == turned.data.read((3, 2)).tolist()


def test_row_056_initialized_is_a_class_variable():
    assert OclTensor._ocl_initialized is True and Parameter._ocl_initialized is True


def test_row_057_the_switch_turns_gradients_off_and_on():
    x = tensor(3)
    assert OclTensor._enable_grad is True and x._enable_grad is True
    try:
        OclTensor._enable_grad = False
        assert not nc.is_grad_enabled() and not x._enable_grad
        y = x.mul(x)
        assert not y.requires_grad and y._ctx is None and not OclTensor([1.0], requires_grad=True).requires_grad
        with nc.enable_grad():
            assert OclTensor._enable_grad and x.mul(x).requires_grad
    finally:
        OclTensor._enable_grad = True
    assert x.mul(x).requires_grad and nc.is_grad_enabled()


def test_row_058_no_grad_nests():
    x = tensor(3)
    with OclTensor.no_grad() as nothing:
        assert nothing is None and not OclTensor._enable_grad
        with OclTensor.NoGradContext():
            assert not x.add(x).requires_grad
        assert not OclTensor._enable_grad and not x.add(x).requires_grad
    assert OclTensor._enable_grad
    with pytest.raises(KeyError):
        with OclTensor.no_grad():
            raise KeyError
    assert OclTensor._enable_grad and isinstance(OclTensor.no_grad(), OclTensor.NoGradContext)


def test_row_059_empty_and_zeros():
    assert OclTensor.zeros((2, 3)).to_host().tolist() == [[0] * 3] * 2 and OclTensor.empty((4,)).shape == (4,)
    assert OclTensor.zeros((2,), requires_grad=True).requires_grad and OclTensor.empty((2,), True).requires_grad
    assert type(OclTensor.zeros(3)) is OclTensor


def test_row_060_gradients_have_a_buffer_that_is_made_when_it_is_needed():
    x = tensor(2, 2)
    assert x._grad_buffer is None
    x._ensure_grad_buffer()
    buffer = x._grad_buffer
    assert type(buffer) is GPUBuffer and not buffer.read((4,)).any()
    x._accumulate_grad(OclTensor(np.ones((2, 2))))
    x._accumulate_grad(OclTensor(np.full((2, 2), 2.0)))
    assert x._grad_buffer is buffer and buffer.read((4,)).tolist() == [3] * 4
    with pytest.raises(ValueError, match="shape"):
        x._accumulate_grad(OclTensor(np.ones(4)))
    y = OclTensor(np.ones(2))
    y._ensure_grad_buffer()
    y._accumulate_grad(OclTensor(np.ones(2)))
    assert y._grad_buffer is None and y.grad is None


def test_row_061_get_grad_tensor_creates_the_gradient():
    x = tensor(2)
    made = x.get_grad_tensor()
    assert type(made) is OclTensor and made.to_host().tolist() == [0, 0] and x._grad_buffer is not None
    assert OclTensor([1.0]).get_grad_tensor() is None


def test_row_062_grad_is_a_view_of_the_buffer():
    x = tensor(3)
    x.mul_scalar(2.0).sum().backward()
    grad, buffer = x.grad, x._grad_buffer
    assert type(grad) is OclTensor and grad.to_host().tolist() == [2] * 3 == buffer.read((3,)).tolist()
    x.mul_scalar(2.0).sum().backward()
    assert grad.to_host().tolist() == [4] * 3 == buffer.read((3,)).tolist() and x._grad_buffer is buffer
    buffer.write(np.ones(3, dtype=np.float32))
    assert x.grad.to_host().tolist() == [1] * 3


def test_row_063_zero_grad_writes_zeros_into_the_buffer():
    x = tensor(3)
    x.zero_grad()
    x.mul(x).sum().backward()
    buffer, grad = x._grad_buffer, x.grad
    x.zero_grad()
    assert x._grad_buffer is buffer and not buffer.read((3,)).any() and not grad.to_host().any() and not x.get_grad_tensor().to_host().any()
    x.grad.free_memory()
    x.zero_grad()
    assert x.grad.to_host().tolist() == [0] * 3


def test_row_064_gradients_accumulate_over_passes_and_paths():
    x = tensor(4)
    for _ in range(3):
        x.mul(x).add(x).sum().backward()
    assert np.allclose(x.grad.to_host(), 3 * (2 * drawn(4) + 1), atol=1e-5)
    h = x.mul_scalar(2.0)
    x.zero_grad()
    h.mul(h).add(h.mul_scalar(3.0)).sum().backward()
    assert np.allclose(x.grad.to_host(), 2 * (2 * 2 * drawn(4) + 3), atol=1e-5)
    assert np.allclose(h.grad.to_host(), 4 * drawn(4) + 3, atol=1e-5)


# Every operator, method and function that gets an OclTensor returns one, also a subclass; a Parameter's results are OclTensors.
def test_row_065_results_keep_their_class_and_have_to_host():
    class Mine(OclTensor):
        def __init__(self, data, name):
            super().__init__(data, requires_grad=True)
            self.name = name

    plain = nc.tensor(drawn(2, 3))
    made = [
        lambda x: x.T, lambda x: x + x, lambda x: x * 2, lambda x: 2 * x, lambda x: 1 - x, lambda x: x - x, lambda x: x / 2, lambda x: 2 / (x * x + 1),
        lambda x: -x, lambda x: abs(x), lambda x: x**2, lambda x: x @ x.T, lambda x: plain @ x.T, lambda x: plain + x, lambda x: x + plain,
        lambda x: x[0], lambda x: x[:, ::2], lambda x: x[[1, 0]], lambda x: x.sum(), lambda x: x.mean(0), lambda x: x.max(-1).values, lambda x: x.amax(-1), lambda x: x.std(),
        lambda x: x.argmax(-1), lambda x: x > 0, lambda x: x == x, lambda x: x.reshape(3, 2), lambda x: x.view(6), lambda x: x.flatten(),
        lambda x: x.softmax(-1), lambda x: x.gelu(), lambda x: x.layer_norm(), lambda x: x.exp(), lambda x: x.to(nc.float16), lambda x: x.float(),
        lambda x: x.detach(), lambda x: x.clone(), lambda x: x.unsqueeze(0), lambda x: x.expand(4, 2, 3), lambda x: x.permute(1, 0),
        lambda x: nc.ops.relu(x), lambda x: nc.ops.cat([plain, x]), lambda x: nc.cat([x, x]), lambda x: nc.stack([x, plain]), lambda x: nc.ops.topk(x, 2)[0],
        lambda x: nc.where(plain > 0, x, 0.0), lambda x: nc.matmul(x, x.T), lambda x: x.masked_fill(plain > 0, 0.0), lambda x: x.prod() if not x.requires_grad else x.sum(),
        lambda x: ~(x > 0), lambda x: (x > 0) & (x > 1), lambda x: x // 1, lambda x: x % 2, lambda x: next(iter(x)), lambda x: x.where(plain > 0, 1.0),
        lambda x: np.float32(2) * x, lambda x: np.float64(2) - x, lambda x: x + np.float32(2), lambda x: np.float64(1) / (x * x + 1),
        lambda x: drawn(2, 3) * x, lambda x: x + drawn(2, 3), lambda x: drawn(2, 3) - x, lambda x: x / np.ones((2, 3)), lambda x: drawn(4, 2) @ x,
    ]  # fmt: skip
    for i, function in enumerate(made):
        for x in (OclTensor(drawn(2, 3)), tensor(2, 3), Parameter(drawn(2, 3)), Mine(drawn(2, 3), "mine")):
            y = function(x)
            assert type(y) is (Mine if isinstance(x, Mine) else OclTensor), (i, type(x), type(y))
            assert y.to_host().shape == tuple(y.shape)
    mine, x = Mine(drawn(2, 3), "mine"), Parameter(drawn(2, 3))
    assert mine.name == "mine" and type(x + mine) is Mine is type(mine + x) and type(nc.cat([x, mine])) is Mine
    (x * mine).sum().backward()
    assert type(x.grad) is OclTensor and type(mine.grad) is Mine and type(mine.grad.T.to_host()) is np.ndarray
    x = tensor(2, 3)
    (np.float64(3) * x + drawn(2, 3)).sum().backward()
    assert x.grad.to_host().tolist() == [[3] * 3] * 2
    assert type(plain + plain) is nc.Tensor and type(nc.nn.Linear(3, 2)(x)) is OclTensor


def test_row_066_detach_shares_the_buffer():
    x = tensor(2, 2)
    y = x.mul_scalar(2.0)
    for of in (x, y):
        apart = of.detach()
        assert apart.data is of.data and not apart.requires_grad and apart._ctx is None
        of.data.write(np.zeros((2, 2), dtype=np.float32))
        assert not apart.to_host().any()


def test_row_067_clone_copies_data_and_gradient():
    x = tensor(3)
    x.mul(x).sum().backward()
    copy = x.clone()
    assert type(copy) is OclTensor and copy.requires_grad and copy._ctx is None and copy.data.ptr != x.data.ptr
    assert np.array_equal(copy.grad.to_host(), x.grad.to_host()) and copy._grad_buffer.ptr != x._grad_buffer.ptr
    copy.zero_grad()
    copy.data.write(np.zeros(3, dtype=np.float32))
    assert x.grad.to_host().any() and x.to_host().any()
    copy.mul_scalar(2.0).sum().backward()
    assert copy.grad.to_host().tolist() == [2] * 3 and np.allclose(x.grad.to_host(), 2 * drawn(3), atol=1e-6)
    assert OclTensor([1.0]).clone().grad is None and not x.detach().clone().requires_grad


def test_row_068_backward_takes_a_gradient_or_starts_at_1():
    x = tensor(2, 2)
    x.mul(x).sum().backward()
    assert np.allclose(x.grad.to_host(), 2 * drawn(2, 2), atol=1e-6)
    for gradient in (OclTensor(np.full((2, 2), 3.0)), np.full((2, 2), 3.0), nc.tensor(np.full((2, 2), 3.0, dtype=np.float32))):
        x.zero_grad()
        x.mul_scalar(2.0).backward(gradient)
        assert x.grad.to_host().tolist() == [[6, 6], [6, 6]]
    x.zero_grad()
    x.sum().backward(gradient=2.0)
    assert x.grad.to_host().tolist() == [[2, 2], [2, 2]]
    with pytest.raises(ValueError, match="one element"):
        x.mul(x).backward()
    with pytest.raises(ValueError, match="shape"):
        x.mul(x).backward(np.ones(4))
    with pytest.raises(NotImplementedError):
        OclTensor([1.0]).backward()


def test_row_069_free_memory():
    x = tensor(1 << 12)
    x.mul_scalar(2.0).sum().backward()
    buffers = x.data, x._grad_buffer
    x.free_memory()
    assert not buffers[0]._allocated and x.data.ptr is None and x.grad is None
    for use in (x.to_host, lambda: x.add(1.0).to_host(), lambda: x.data.read((1,))):
        with pytest.raises((nc.errors.LaunchError, nc.errors.FormatError), match="freed"):
            use()


def test_row_070_T_swaps_the_last_two_axes():
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        x = tensor(*shape)
        assert np.array_equal(x.T.to_host(), np.swapaxes(drawn(*shape), -2, -1)) and x.T.requires_grad
    assert tensor(3).T.shape == (3,)
