"""Programs written from seed 000's text alone: training by hand, contexts, checkpoints, accumulation, tokenizers, ids, and the switch for gradients."""

import copy
import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest

import netcl as nc
from netcl.compat.ocl_llm import (
    AdamOptimizer,
    Embedding,
    FunctionContext,
    Linear,
    MulBackwardContext,
    OclTensor,
    Parameter,
    SimpleModel,
    TinyTokenizer,
    causal_mask,
    cross_entropy_loss_and_backward,
    load_checkpoint,
    ocl_initialize,
    ocl_shutdown,
    save_checkpoint,
)

CONFIG = {"vocab_size": 20, "max_len": 8, "embed_dim": 16, "num_heads": 4, "d_ff": 32, "num_layers": 2}


@pytest.fixture(autouse=True)
def device():
    before = nc.default_device()
    ocl_initialize(before.name)
    nc.manual_seed(0)
    yield before
    nc.set_default_device(before)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# Program 1: linear regression with tensors only. Its memory does not grow, even without the garbage collector.
def test_a_regression_by_hand_finds_the_weights_in_constant_memory():
    inputs = numbers(64, 3)
    targets = inputs @ np.array([[1.0], [-2.0], [0.5]], dtype=np.float32) + 0.3
    weight, bias = Parameter(numbers(3, 1)), Parameter(np.zeros(1))
    optimizer = AdamOptimizer([weight, bias], lr=0.05)
    used = []
    gc.disable()
    try:
        for _ in range(150):
            optimizer.zero_grad()
            error = OclTensor(inputs).matmul(weight).add(bias).add(OclTensor(targets).mul_scalar(-1.0))
            loss = error.mul(error)
            loss.backward(OclTensor(np.full((64, 1), 1 / 64)))
            optimizer.step()
            used.append(nc.default_device().memory()[0])
    finally:
        gc.enable()
    assert loss.to_host().mean() < 1e-3 and np.allclose(weight.to_host().ravel(), [1, -2, 0.5], atol=0.05) and used[5] == used[-1]


class Relu(FunctionContext):
    """Passes the gradient to its parent itself."""

    def __init__(self, x):
        super().__init__(x)
        self.mask = (x.to_host() > 0).astype(np.float32)

    def backward(self, grad_output):
        self.parents[0]()._accumulate_grad(OclTensor(grad_output.to_host() * self.mask))


class Difference(FunctionContext):
    """Saves by position, and applies a list."""

    def __init__(self, a, b):
        super().__init__(a, b)
        self.save_for_backward(a.shape, -1.0)

    def backward(self, grad_output):
        shape, sign = self.unpack_saved_data()
        assert type(grad_output) is OclTensor and grad_output.shape == shape
        self.apply_gradients([grad_output, grad_output.mul_scalar(sign)])


class Cube(FunctionContext):
    """Saves by name, also the result."""

    def __init__(self, x, y):
        super().__init__(x)
        self.save_for_backward(x=x.detach(), y=y)

    def backward(self, grad_output):
        saved = self.unpack_saved_data()
        self.apply_gradients(grad_output.mul(saved["x"]).mul(saved["x"]).mul_scalar(3.0))


def relu(x):
    y = OclTensor(np.maximum(x.to_host(), 0), requires_grad=x.requires_grad)
    if y.requires_grad:
        y._ctx = Relu(x)
    return y


def difference(a, b):
    y = OclTensor.empty(a.shape, requires_grad=True)
    y.data.write(a.to_host() - b.to_host())
    y._ctx = Difference(a, b)
    return y


def cube(x):
    y = OclTensor(x.to_host() ** 3)
    y._ctx = Cube(x, y)
    return y


# Program 2: custom operations between the built-in ones. Their inputs may be results that no name refers to any more.
def test_custom_contexts_are_part_of_the_graph():
    x, w = OclTensor(numbers(3, 4), requires_grad=True), Parameter(numbers(3, 4, seed=1))
    y = difference(relu(x.mul(w)), cube(x).mul_scalar(2.0))
    gc.collect()
    y.backward(np.ones((3, 4)))
    on = (numbers(3, 4) * numbers(3, 4, seed=1) > 0).astype(np.float32)
    assert np.allclose(x.grad.to_host(), on * numbers(3, 4, seed=1) - 6 * numbers(3, 4) ** 2, atol=1e-4)
    assert np.allclose(w.grad.to_host(), on * numbers(3, 4), atol=1e-5)
    with OclTensor.no_grad():
        assert not relu(x).requires_grad and not cube(x).requires_grad
    h = x.mul_scalar(2.0)
    x.zero_grad()
    cube(h).add(relu(h)).sum().backward()
    doubled = 2 * numbers(3, 4)
    assert np.allclose(h.grad.to_host(), 3 * doubled**2 + (doubled > 0), atol=1e-4) and np.allclose(x.grad.to_host(), 2 * h.grad.to_host(), atol=1e-4)


def test_built_in_contexts_can_be_derived_and_mistakes_are_errors():
    class Halved(MulBackwardContext):
        def backward(self, grad_output):
            super().backward(grad_output.mul_scalar(0.5))

    class Raises(FunctionContext):
        def backward(self, grad_output):
            raise KeyError("mine")

    class WrongShape(FunctionContext):
        def backward(self, grad_output):
            self.apply_gradients(OclTensor(np.ones(3)))

    class WrongCount(FunctionContext):
        def backward(self, grad_output):
            self.apply_gradients(grad_output, grad_output)

    x, w = OclTensor(numbers(2, 2), requires_grad=True), OclTensor(numbers(2, 2, seed=1))
    y = x.mul(w)
    y._ctx = Halved(x, w)
    y.sum().backward()
    assert np.allclose(x.grad.to_host(), numbers(2, 2, seed=1) / 2, atol=1e-6) and w.grad is None
    for context, error, words in ((Raises, KeyError, "mine"), (WrongShape, ValueError, "WrongShape"), (WrongCount, ValueError, "2 gradients"), (FunctionContext, NotImplementedError, "backward")):
        z = OclTensor(x.to_host())
        z._ctx = context(x)
        with pytest.raises(error, match=words):
            z.sum().backward()
    z = OclTensor(x.to_host())
    z._ctx = Halved(x, w)
    z._ctx = None
    assert z.requires_grad and z._ctx is None
    x.zero_grad()
    z.sum().backward()
    assert not x.grad.to_host().any() and z.grad.to_host().all()


def test_a_context_that_keeps_its_result_does_not_leak():
    x, used = OclTensor(numbers(16), requires_grad=True), []
    for _ in range(20):
        cube(x)
        gc.collect()
        used.append(nc.default_device().memory()[0])
    assert used[1] == used[-1]


# Program 3: training continues in another process, with the same losses.
def test_a_checkpoint_continues_in_another_process(tmp_path):
    code = f"""
import sys
import numpy as np
sys.path[:0] = {sys.path!r}
from netcl.compat.ocl_llm import *
ocl_initialize({nc.default_device().name!r})
made = load_checkpoint({str(tmp_path / "run.npz")!r})
ids = np.load({str(tmp_path / "ids.npy")!r})
for _ in range(3):
    made["optimizer"].zero_grad()
    print("loss", cross_entropy_loss_and_backward(made["model"](ids), ids))
    made["optimizer"].step()
"""
    ids = np.random.default_rng(0).integers(1, 20, (4, 8))
    np.save(tmp_path / "ids.npy", ids)
    model = SimpleModel(CONFIG)
    optimizer = AdamOptimizer(model.parameters(), lr=0.01, weight_decay=0.01)
    expected = []
    for i in range(5):
        if i == 2:
            save_checkpoint(str(tmp_path / "run.npz"), model, optimizer, None, 0, None)
        optimizer.zero_grad()
        expected.append(cross_entropy_loss_and_backward(model(ids), ids))
        optimizer.step()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    found = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss")]
    assert found == expected[2:], done.stderr
    assert load_checkpoint(str(tmp_path / "run.npz"))["best_val_loss"] is None


# Program 4: gradients of micro-batches add up to those of the batch.
def test_micro_batches_add_up():
    model, ids = SimpleModel(CONFIG), np.random.default_rng(1).integers(1, 20, (8, 8))
    cross_entropy_loss_and_backward(model(ids), ids)
    whole = [p.grad.to_host() for p in model.parameters()]
    for p in model.parameters():
        p.zero_grad()
    for i in range(0, 8, 2):
        cross_entropy_loss_and_backward(model(ids[i : i + 2]), ids[i : i + 2])
    for p, grad in zip(model.parameters(), whole):
        assert np.allclose(p.get_grad_tensor().to_host() / 4, grad, atol=1e-6)


# Program 5: a vocabulary of the program, sentences of different lengths, the loop of the seed with its calls, and greedy answers.
def test_a_program_with_its_own_tokenizer_learns_sentences():
    sentences = ["abc abc", "cab", "bca bca b"]
    tokenizer = TinyTokenizer({"<pad>": 0, "<unk>": 1, " ": 2, "a": 3, "b": 4, "c": 5})
    rows = np.array([tokenizer.encode(sentence, 9) for sentence in sentences])
    model = SimpleModel({**CONFIG, "vocab_size": len(tokenizer.get_vocab())})
    optimizer = AdamOptimizer(model.parameters(), lr=1e-2, weight_decay=0.0)
    losses, used = [], []
    for _ in range(60):
        model.train()
        optimizer.zero_grad()
        logits = model(rows[:, :-1], causal_mask(8))
        losses.append(cross_entropy_loss_and_backward(logits, rows[:, 1:]))
        optimizer.step()
        logits.free_memory()
        used.append(nc.default_device().memory()[0])
    assert losses[-1] < 0.4 < 1 < losses[0] and used[5] == used[-1]
    model.eval()
    with OclTensor.no_grad():
        found = model(rows[:1, :-1], causal_mask(8)).to_host()[0].argmax(-1)
    assert tokenizer.decode(found)[1:6] == "c abc"
    copied = copy.deepcopy(model)
    assert len(copied.parameters()) == len(model.parameters()) and copied.embedding.weight_param._associated_layer is copied.embedding
    copied.output.b.data.write(np.ones(6, dtype=np.float32))
    assert not np.array_equal(copied.output.b.to_host(), model.output.b.to_host())


# Program 6: ids from a damaged file. Nothing becomes NaN, and the other tokens learn.
def test_bad_ids_do_not_spread():
    model = SimpleModel(CONFIG)
    optimizer = AdamOptimizer(model.parameters(), lr=1e-2)
    ids = np.random.default_rng(2).integers(1, 20, (4, 8)).astype(np.int64)
    ids[0, 3], ids[1, 0], ids[2, 7], ids[3, 3] = -1, 20, 10**12, -100
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        losses.append(cross_entropy_loss_and_backward(model(ids), ids))
        optimizer.step()
    assert np.isfinite(losses).all() and losses[-1] < losses[0] and all(np.isfinite(p.to_host()).all() for p in model.parameters())
    layer = Embedding(3, 2)
    assert not layer(np.array([[-1, 3, 2**31]])).to_host().any()


# Program 7: the switch inside of loops, functions and exceptions.
def test_the_switch_survives_nesting_and_exceptions():
    layer, x = Linear(3, 2), OclTensor(numbers(4, 3))

    @OclTensor.no_grad()
    def predict():
        assert not OclTensor._enable_grad
        with OclTensor.no_grad():
            return layer(x)

    for _ in range(2):
        assert not predict().requires_grad and layer(x).requires_grad
    with pytest.raises(ValueError):
        with OclTensor.NoGradContext():
            OclTensor._enable_grad = True
            assert layer(x).requires_grad
            raise ValueError
    assert OclTensor._enable_grad and layer(x)._ctx is not None


# Program 8: a session ends and another one begins; tensors go through pickle.
def test_another_session_begins_after_a_shutdown():
    x = Parameter(numbers(3))
    stored = pickle.dumps(x)
    name = nc.default_device().name
    ocl_shutdown()
    assert not OclTensor._ocl_initialized and ocl_initialize(name) == name
    y = pickle.loads(stored)
    assert type(y) is Parameter and y.requires_grad and np.array_equal(y.to_host(), numbers(3)) and y.add(1.0).to_host().shape == (3,)


# The whole model and a step of Adam agree with PyTorch, with some invalid targets.
def test_a_step_of_the_model_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    model, random = SimpleModel({**CONFIG, "num_layers": 1}), np.random.default_rng(4)
    ids, targets = random.integers(0, 20, (3, 6)), random.integers(-3, 24, (3, 6))
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in model.state_dict().items()}

    def linear(x, name):
        return x @ weights[f"{name}.W"] + weights[f"{name}.b"]

    def heads(x, name):
        return linear(x, f"blocks.0.attn.{name}").reshape(3, 6, 4, 4).transpose(1, 2)

    def norm(x):
        return torch.nn.functional.layer_norm(x, (16,))

    x = weights["embedding.weight_param"][torch.tensor(ids)] + torch.tensor(model.positional.pe_gpu_full.to_host())[:6]
    h = norm(x)
    scores = torch.softmax(heads(h, "wq") @ heads(h, "wk").transpose(-1, -2) / 2, -1)
    x = x + linear((scores @ heads(h, "wv")).transpose(1, 2).reshape(3, 6, 16), "blocks.0.attn.wo")
    x = x + linear(torch.nn.functional.gelu(linear(norm(x), "blocks.0.ff1")), "blocks.0.ff2")
    valid = torch.tensor(np.where((targets > 0) & (targets < 20), targets, -100))
    loss = torch.nn.functional.cross_entropy(linear(norm(x), "output").reshape(-1, 20), valid.reshape(-1))
    loss.backward()
    assert abs(cross_entropy_loss_and_backward(model(ids), targets) - loss.item()) < 1e-5
    for name, p in model.named_parameters():
        assert np.allclose(p.grad.to_host(), weights[name].grad.numpy(), atol=1e-5), name
    # Adam's first step has the gradient's sign, which rounding decides near zero.
    clear = {name: np.abs(w.grad.numpy() + 0.1 * w.detach().numpy()) > 1e-4 for name, w in weights.items()}
    torch.optim.Adam(weights.values(), lr=0.01, weight_decay=0.1).step()
    AdamOptimizer(model.parameters(), lr=0.01, weight_decay=0.1).step()
    for name, p in model.named_parameters():
        assert np.allclose(p.to_host()[clear[name]], weights[name].detach().numpy()[clear[name]], atol=2e-5), name
    assert sum(chosen.sum() for chosen in clear.values()) > 0.9 * sum(chosen.size for chosen in clear.values())
