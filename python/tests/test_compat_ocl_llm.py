"""OCL-LLM's names and its listings: a training loop, checkpoints, and the script."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import netcl as nc
from netcl.compat import ocl_llm as ocl

CONFIG = {"vocab_size": 12, "max_len": 8, "embed_dim": 16, "num_heads": 2, "d_ff": 32, "num_layers": 2}


@pytest.fixture(autouse=True)
def device():
    before = nc.default_device()
    assert ocl.ocl_initialize(before.name) == before.name and ocl.OclTensor._ocl_initialized
    nc.manual_seed(0)
    yield before
    nc.set_default_device(before)


def test_buffers_are_written_read_copied_and_freed():
    buffer = ocl.GPUBuffer(24, tag="six", _init_zeros=True)
    assert buffer.read((6,)).tolist() == [0] * 6 and buffer.ptr is not None
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer.write(values)
    copy = buffer.clone()
    buffer.write(values * 2)
    assert np.array_equal(buffer.read((3, 2)), (values * 2).reshape(3, 2)) and np.array_equal(copy.read((2, 3)), values)
    x = ocl.OclTensor(None, _gpu_buffer=buffer, _shape=(2, 3))
    assert np.array_equal(x.to_host(), values * 2) and np.array_equal(x.data.read((6,)), np.arange(6) * 2)
    assert ocl.GPUBuffer(7, dtype=np.int32).read((1,), np.int32).shape == (1,)
    with pytest.raises(nc.errors.FormatError, match="bytes"):
        buffer.write(values[:1])
    with pytest.raises(nc.errors.FormatError, match="bytes"):
        buffer.read((7,))
    buffer.free()
    assert buffer.ptr is None
    with pytest.raises(nc.errors.FormatError, match="free"):
        buffer.read((1,))


def test_tensors_have_their_methods_and_gradients():
    a, b = np.random.default_rng(1).standard_normal((2, 2, 3, 3)).astype(np.float32)
    x, w = ocl.OclTensor(a, requires_grad=True), ocl.Parameter(b[0])
    y = x.matmul(w).add(1.0).mul(x).mul_scalar(2.0).div_scalar(4.0)
    assert isinstance(y, ocl.OclTensor) and np.allclose(y.to_host(), (a @ b[0] + 1) * a / 2, atol=1e-5)
    for made, expected in [
        (x.softmax(), np.exp(a) / np.exp(a).sum(-1, keepdims=True)),
        (x.layer_norm(), (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)),
        (x.transpose(0, 1), a.transpose(1, 0, 2)),
        (x.T, a.transpose(0, 2, 1)),
        (x.reshape(6, 3), a.reshape(6, 3)),
        (x.matmul(ocl.OclTensor(b)), a @ b),
    ]:
        assert np.allclose(made.numpy(), expected, atol=1e-5)
    y.reshape(18).gelu().sum().backward()
    assert x.get_grad_tensor().shape == (2, 3, 3) and w.get_grad_tensor().shape == (3, 3)
    x.zero_grad()
    assert not x.grad.to_host().any() and not x.get_grad_tensor().to_host().any()
    with ocl.OclTensor.no_grad():
        assert not x.mul(x).requires_grad
    assert not x.detach().requires_grad and x.numel == 18
    z = ocl.OclTensor.zeros((2, 2))
    assert z.clone().to_host().tolist() == [[0, 0], [0, 0]] == ocl.OclTensor.empty((2, 2)).to_host().tolist()
    z.free_memory()
    with pytest.raises(nc.errors.LaunchError, match="freed"):
        z.to_host()


# The training loop of seed 000, rewritten: a whole step (forward, loss and backward in one call, optimizer step) on text that a model of this
# size memorizes. Seed 000 computes the gradient on the host and calls logits.backward(gradient); cross_entropy_loss_and_backward does this on
# the device.
def test_the_training_loop_learns():
    tokenizer = ocl.TinyTokenizer.of_text("hello world")
    text = np.asarray(tokenizer.encode("hello world " * 8), dtype=np.int32)
    model = ocl.SimpleModel({**CONFIG, "vocab_size": len(tokenizer.get_vocab())})
    optimizer = ocl.AdamOptimizer(model.parameters(), lr=1e-2, weight_decay=0.01)
    rows = np.stack([text[s : s + 9] for s in range(0, 48, 3)])
    losses = []
    model.train()
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(ocl.cross_entropy_loss_and_backward(model(rows[:, :-1]), rows[:, 1:]))
        optimizer.step()
    assert losses[0] > 2 and losses[-1] < 0.7 * losses[0]
    model.eval()
    with ocl.OclTensor.no_grad():
        assert model(rows[:, :-1]).shape == (16, 8, len(tokenizer.get_vocab()))


def test_the_loss_leaves_padding_out_and_is_that_of_pytorch():
    logits = ocl.OclTensor(np.random.default_rng(0).standard_normal((2, 3, 5)), requires_grad=True)
    targets = np.array([[1, 4, 0], [0, 2, 0]])
    loss = ocl.cross_entropy_loss_and_backward(logits, targets)
    x = logits.to_host().reshape(-1, 5)
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    real = np.flatnonzero(targets)
    assert np.isclose(loss, -np.log(p[real, targets.reshape(-1)[real]]).mean(), atol=1e-5)
    expected = np.zeros_like(p)
    expected[real] = p[real]
    expected[real, targets.reshape(-1)[real]] -= 1
    assert np.allclose(logits.grad.numpy().reshape(-1, 5), expected / len(real), atol=1e-6)
    assert ocl.cross_entropy_loss_and_backward(logits, np.zeros((2, 3), int)) == 0.0


def test_checkpoints_go_on_to_the_bit_and_are_no_pickles(tmp_path):
    ids = np.random.default_rng(2).integers(2, 12, (4, 9))
    path = str(tmp_path / "a" / "model.npz")

    def steps(model, optimizer, n):
        for _ in range(n):
            optimizer.zero_grad()
            loss = ocl.cross_entropy_loss_and_backward(model(ids[:, :-1]), ids[:, 1:])
            optimizer.step()
        return loss

    model = ocl.SimpleModel(CONFIG)
    optimizer = ocl.AdamOptimizer(model.parameters(), lr=3e-3)
    steps(model, optimizer, 3)
    ocl.save_checkpoint(path, model, optimizer, ocl.TinyTokenizer.of_text("abc"), epoch=7, best_val_loss=1.5)
    whole = steps(model, optimizer, 3)
    other = ocl.SimpleModel(CONFIG)
    adam = ocl.AdamOptimizer(other.parameters(), lr=1.0)
    words = ocl.load_checkpoint(path, other, adam)
    assert (words["epoch"], words["best_val_loss"], words["config"]) == (7, 1.5, CONFIG) and words["tokenizer"].decode([2, 3, 0]) == "ab"
    assert adam.lr == 3e-3 and steps(other, adam, 3) == whole
    with np.load(path, allow_pickle=False) as arrays:
        assert "model/output.W" in arrays.files and "words" in arrays.files
    evil = tmp_path / "evil.npz"
    evil.write_bytes(pickle.dumps({"epoch": 1}))
    with pytest.raises(nc.errors.FormatError, match="pickles"):
        ocl.load_checkpoint(str(evil), other)
    np.savez(tmp_path / "objects.npz", words=np.array([{"a": 1}], dtype=object))
    with pytest.raises(nc.errors.FormatError, match="pickles"):
        ocl.load_checkpoint(str(tmp_path / "objects.npz"), other)
    with pytest.raises(nc.errors.IoError):
        ocl.load_checkpoint(str(tmp_path / "nothing.npz"), other)
    smaller = ocl.SimpleModel({**CONFIG, "num_layers": 1})
    with pytest.raises(nc.errors.FormatError, match="unknown"):
        ocl.load_checkpoint(path, smaller)
    model.free_memory()
    optimizer.free_memory()


def test_a_tokenizer_of_characters():
    tokenizer = ocl.TinyTokenizer.of_text("ab")
    assert tokenizer.encode("abc", 5) == [2, 3, 1, 0, 0] and tokenizer.encode("abab", 2) == [2, 3]
    assert tokenizer.decode([2, 3, 0]) == "ab" and tokenizer.get_inv_vocab()[3] == "b"
    assert ocl.TinyTokenizer(tokenizer.get_vocab(), tokenizer.get_inv_vocab()).get_vocab() == {"<pad>": 0, "<unk>": 1, "a": 2, "b": 3}


def test_a_shutdown_frees_what_is_left():
    code = """
        import numpy as np, netcl as nc
        from netcl.compat import ocl_llm as ocl
        ocl.ocl_initialize(DEVICE)
        x, b = ocl.OclTensor(np.ones(1000)), ocl.GPUBuffer(4000)
        assert nc.default_device().memory()[0] >= 8000
        ocl.ocl_shutdown()
        assert nc.default_device().memory()[0] == 0, nc.default_device().memory()
        try:
            x.to_host()
        except nc.errors.LaunchError:
            print("freed")
    """
    import textwrap

    code = textwrap.dedent(code).replace("DEVICE", repr(nc.default_device().name))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "freed", done.stderr


def test_the_script_trains_saves_and_goes_on(tmp_path):
    (tmp_path / "input.txt").write_text("the quick brown fox jumps over the lazy dog. " * 30)
    small = ["--max_len", "8", "--embed_dim", "16", "--num_heads", "2", "--d_ff", "32", "--num_layers", "1", "--batch_size", "32"]
    command = [sys.executable, "-m", "netcl.compat.ocl_llm", "--gpu_id", nc.default_device().name, "--save_dir", "kept", *small]

    def run(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=600, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    first = run("--num_epochs", "2")
    assert first.returncode == 0 and "epoch 2: validation loss" in first.stdout, first.stderr
    assert (tmp_path / "kept" / "test_model.npz").exists()
    more = run("--num_epochs", "3", "--load_checkpoint", "kept/test_model.npz")
    assert more.returncode == 0 and "resuming after epoch 2" in more.stdout and "epoch 3: validation loss" in more.stdout, more.stderr
    whole = run("--num_epochs", "3", "--save_dir", "whole")
    assert whole.stdout.splitlines()[-1] == more.stdout.splitlines()[-1]
    wrong = run("--gpu_id", "nothing:7")
    assert wrong.returncode == 1 and "nothing:7" in wrong.stderr
