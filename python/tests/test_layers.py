"""Layers with PyTorch's names, next to known values and NumPy. PyTorch is not needed."""

import copy
import math

import numpy as np
import pytest

import netcl as nc
import netcl.nn.functional as F
from netcl import nn


def x(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_convolution_of_a_ramp():
    conv = nn.Conv2d(1, 1, 2, padding=1, stride=2)
    conv.load_state_dict({"weight": np.ones((1, 1, 2, 2), np.float32), "bias": np.array([0.5], np.float32)})
    image = nc.arange(9, dtype="float32").reshape(1, 3, 3)
    assert conv(image).tolist() == [[[0.5, 3.5], [9.5, 24.5]]]
    assert nn.Conv2d(1, 1, 3, padding="same", bias=False)(image).shape == (1, 3, 3)
    back = nn.ConvTranspose2d(1, 1, 2, stride=2, bias=False)
    nn.init.ones_(back.weight)
    assert back(nc.tensor([[[1.0, 2.0]]])).tolist() == [[[1.0, 1.0, 2.0, 2.0]] * 2]
    deep = nn.Conv3d(1, 1, 2, bias=False)
    nn.init.constant_(deep.weight, 0.125)
    assert deep(nc.arange(8, dtype="float32").reshape(1, 1, 2, 2, 2)).item() == 3.5


def test_batch_norm_tracks_statistics():
    norm, given = nn.BatchNorm1d(2), np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)
    made = norm(nc.tensor(given))
    np.testing.assert_allclose(made.tolist(), [[-1, -1], [1, 1]], atol=1e-4)
    np.testing.assert_allclose(norm.running_mean.tolist(), [0.2, 0.4], atol=1e-6)
    np.testing.assert_allclose(norm.running_var.tolist(), [1.1, 1.7], atol=1e-6)
    assert norm.num_batches_tracked.item() == 1
    np.testing.assert_allclose(norm.eval()(nc.tensor(given)).numpy(), (given - [0.2, 0.4]) / np.sqrt([1.1, 1.7]), atol=1e-4)
    average = nn.BatchNorm1d(2, momentum=None)
    average(nc.tensor(given)), average(nc.tensor(given + 2))
    np.testing.assert_allclose(average.running_mean.tolist(), [3, 5], atol=1e-5)
    with pytest.raises(ValueError, match="more than 1 value"):
        norm.train()(nc.ones(1, 2))
    norm.load_state_dict({k: v for k, v in norm.state_dict().items() if k != "num_batches_tracked"})


def test_pooling():
    line = nc.tensor([[1.0, 5.0, 2.0, 4.0, 3.0]])
    assert nn.MaxPool1d(2)(line).tolist() == [[5.0, 4.0]] and nn.MaxPool1d(2, ceil_mode=True)(line).tolist() == [[5.0, 4.0, 3.0]]
    values, places = nn.MaxPool1d(2, return_indices=True)(line)
    assert places.tolist() == [[1, 3]] and nn.MaxUnpool1d(2)(values, places, output_size=(5,)).tolist() == [[0.0, 5.0, 0.0, 4.0, 0.0]]
    assert nn.AvgPool1d(2, padding=1)(line).tolist() == [[0.5, 3.5, 3.5]] and nn.AvgPool1d(2, padding=1, count_include_pad=False)(line).tolist() == [[1.0, 3.5, 3.5]]
    assert nn.AdaptiveAvgPool1d(2)(line).tolist() == [[pytest.approx(8 / 3), 3.0]] and nn.AdaptiveMaxPool1d(2)(line).tolist() == [[5.0, 4.0]]


def test_recurrent_layers_repeat_their_cells():
    for kind in ("RNN", "GRU", "LSTM"):
        layer, cell = getattr(nn, kind)(2, 3), getattr(nn, f"{kind}Cell")(2, 3)
        cell.load_state_dict({name[:-3]: t for name, t in layer.state_dict().items()})
        steps, state, seen = nc.tensor(x(3, 1, 2)), None, []
        for t in range(3):
            state = cell(steps[t], state)
            seen.append((state[0] if kind == "LSTM" else state).tolist())
        made, last = layer(steps)
        np.testing.assert_allclose(made.tolist(), seen, atol=1e-6)
        np.testing.assert_allclose((last[0] if kind == "LSTM" else last)[0].tolist(), seen[-1], atol=1e-6)
    with pytest.raises(NotImplementedError, match="packed"):
        layer("packed")


def test_attention_with_masks():
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    query = nc.tensor(x(2, 3, 4))
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    made, weights = layer(query, query, query, attn_mask=mask)
    assert weights.shape == (2, 3, 3) and weights[0, 0].tolist() == [1.0, 0.0, 0.0]
    alone, none = layer(query, query, query, attn_mask=mask, need_weights=False, is_causal=True)
    assert none is None
    np.testing.assert_allclose(made.tolist(), alone.tolist(), atol=1e-5)
    hidden = F.scaled_dot_product_attention(query, query, query, attn_mask=nc.tensor([[False] * 3, [True] * 3, [True] * 3]))
    assert hidden[0, 0].tolist() == [0.0] * 4
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval()
    changed = x(2, 3, 4)
    changed[:, 2] = 9
    first, second = encoder(query, mask), encoder(nc.tensor(changed), mask)
    np.testing.assert_allclose(first[:, :2].tolist(), second[:, :2].tolist(), atol=1e-4)


def test_losses():
    logits, target = nc.tensor([[2.0, 0.0], [0.0, 1.0]]), nc.tensor([0, 0])
    rows = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(1))]
    assert nn.CrossEntropyLoss()(logits, target).item() == pytest.approx(sum(rows) / 2, abs=1e-5)
    weighted = nn.CrossEntropyLoss(nc.tensor([3.0, 1.0]), reduction="sum")
    assert weighted(logits, target).item() == pytest.approx(3 * sum(rows), abs=1e-4)
    assert nn.BCELoss()(nc.tensor([0.0, 0.5]), nc.tensor([1.0, 0.0])).item() == pytest.approx((100 + math.log(2)) / 2, abs=1e-3)
    with pytest.raises(ValueError, match="probabilities"):
        nn.BCELoss()(nc.tensor([1.5]), nc.tensor([1.0]))
    assert nn.SmoothL1Loss()(nc.tensor([0.5, 3.0]), nc.tensor([0.0, 0.0])).item() == pytest.approx((0.125 + 2.5) / 2)
    assert nn.HuberLoss(delta=2.0)(nc.tensor([1.0, 3.0]), nc.tensor([0.0, 0.0])).item() == pytest.approx((0.5 + 4) / 2)
    assert nn.TripletMarginLoss()(nc.zeros(1, 2), nc.tensor([[3.0, 4.0]]), nc.tensor([[0.0, 2.0]])).item() == pytest.approx(4, abs=1e-4)
    assert nn.KLDivLoss(reduction="batchmean")(nc.tensor([[0.5, 0.5]]).log(), nc.tensor([[1.0, 0.0]])).item() == pytest.approx(math.log(2), abs=1e-5)


def test_activations():
    line = nc.tensor([-4.0, -1.0, 0.0, 1.0, 8.0])
    expected = {
        "ReLU6": [0, 0, 0, 1, 6], "Hardtanh": [-1, -1, 0, 1, 1], "Hardsigmoid": [0, 1 / 3, 0.5, 2 / 3, 1], "Hardswish": [0, -1 / 3, 0, 2 / 3, 8], "Softsign": [-0.8, -0.5, 0, 0.5, 8 / 9],
        "LeakyReLU": [-0.04, -0.01, 0, 1, 8], "Hardshrink": [-4, -1, 0, 1, 8], "Softshrink": [-3.5, -0.5, 0, 0.5, 7.5], "PReLU": [-1, -0.25, 0, 1, 8], "CELU": [math.exp(-4) - 1, math.exp(-1) - 1, 0, 1, 8],
    }  # fmt: skip
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(nn, name)()(line).tolist(), values, atol=1e-5, err_msg=name)
    given = nc.tensor([-1.0, 2.0])
    assert nn.ReLU(inplace=True)(given) is given and given.tolist() == [0.0, 2.0]


def test_images():
    image = nc.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    assert nn.Upsample(scale_factor=2)(image)[0, 0, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert F.interpolate(image, (1, 3), mode="bilinear", align_corners=True).tolist() == [[[[0.0, 0.5, 1.0]]]]
    assert nn.PixelShuffle(2)(nc.arange(4, dtype="float32").reshape(4, 1, 1)).tolist() == [[[0.0, 1.0], [2.0, 3.0]]]
    assert nn.ReflectionPad1d((1, 0))(image[0, 0]).tolist() == [[1.0, 0.0, 1.0], [3.0, 2.0, 3.0]]
    assert F.pad(image[0, 0], (1, -1), "constant", 7.0).tolist() == [[7.0, 0.0], [7.0, 2.0]]
    columns = nn.Unfold(2)(nc.arange(9, dtype="float32").reshape(1, 1, 3, 3))
    assert columns[0, 0].tolist() == [0.0, 1.0, 3.0, 4.0]
    assert nn.Fold((3, 3), 2)(nc.ones(1, 4, 4)).tolist() == [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]


def test_embeddings():
    table = nn.Embedding(3, 2, padding_idx=1)
    assert table.weight[1].tolist() == [0.0, 0.0]
    table(nc.tensor([0, 1, 1])).sum().backward()
    assert table.weight.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    rows = nc.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert nn.Embedding.from_pretrained(rows).weight.requires_grad is False
    assert F.embedding_bag(nc.tensor([0, 1, 1]), rows, nc.tensor([0, 1])).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(NotImplementedError, match="max_norm"):
        nn.Embedding(3, 2, max_norm=1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"in": nn.Linear(2, 2), "act": nn.Tanh()})
        self.lists = nn.ParameterList([nn.Parameter(nc.ones(2))])
        self.register_buffer("seen", nc.zeros(1))
        self.register_buffer("cache", nc.zeros(1), persistent=False)
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.parts["in"].weight

    def forward(self, given, scale=1.0):
        return self.tied(self.parts["act"](self.parts["in"](given))) * self.lists[0] * scale


def test_states_of_modules():
    net = Net()
    assert list(net.state_dict()) == ["seen", "parts.in.weight", "parts.in.bias", "lists.0", "tied.weight"]
    assert [name for name, _ in net.named_parameters()] == ["parts.in.weight", "parts.in.bias", "lists.0"]
    state = net.state_dict()
    with pytest.raises(RuntimeError, match="missing names.*unknown names"):
        net.load_state_dict({"other": nc.ones(1)})
    with pytest.raises(RuntimeError, match="shape"):
        net.load_state_dict({**state, "seen": nc.ones(3)})
    found = net.load_state_dict({"seen": np.array([4.0])}, strict=False)
    assert net.seen.item() == 4 and found.unexpected_keys == [] and len(found.missing_keys) == 4
    twin = copy.deepcopy(net)
    assert twin.tied.weight is twin.parts["in"].weight and twin.tied.weight is not net.tied.weight
    assert net.get_parameter("parts.in.bias") is net.parts["in"].bias and net.get_submodule("parts.act") is net.parts["act"]
    with pytest.raises(AttributeError):
        net.get_submodule("parts.out")


def test_hooks_of_modules():
    net, seen = Net(), []
    with net.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": 2.0}), with_kwargs=True):
        doubled = net(nc.ones(1, 2))
    np.testing.assert_allclose(doubled.tolist(), (net(nc.ones(1, 2)) * 2).tolist(), rtol=1e-5)
    net.parts["in"].register_full_backward_hook(lambda m, gi, go: seen.append((gi[0], tuple(go[0].shape))))
    net(nc.ones(1, 2)).sum().backward()
    assert seen == [(None, (1, 2))]
    net.zero_grad(set_to_none=False)
    assert net.lists[0].grad.tolist() == [0.0, 0.0]


def test_initial_values_and_gradients():
    weight = nn.init.orthogonal_(nc.empty(3, 5))
    np.testing.assert_allclose((weight @ weight.T).tolist(), np.eye(3), atol=1e-5)
    bound = math.sqrt(6 / (300 * 8 + 8))
    assert 0.98 * bound < np.abs(nn.init.xavier_uniform_(nc.empty(300, 1, 8)).numpy()).max() <= bound
    cut = nn.init.trunc_normal_(nc.empty(500), 0.0, 1.0, 1.0, 2.0).numpy()
    assert 1 <= cut.min() < 1.1 and 1.8 < cut.max() <= 2
    p = nn.Parameter(nc.zeros(2))
    p.grad = nc.tensor([3.0, 4.0])
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(5)
    np.testing.assert_allclose(p.grad.tolist(), [0.6, 0.8], atol=1e-5)
    nn.utils.clip_grad_value_(p, 0.7)
    np.testing.assert_allclose(p.grad.tolist(), [0.6, 0.7], atol=1e-5)
    assert nn.utils.parameters_to_vector([p, nn.Parameter(nc.ones(1))]).tolist() == [0.0, 0.0, 1.0]


def test_missing_names_say_what_to_write():
    for call, word in ((lambda: nn.LazyConv2d, "nn.Conv2d"), (lambda: nn.SyncBatchNorm, "BatchNorm2d"), (lambda: F.fractional_max_pool2d, "max_pool2d"), (lambda: nn.utils.weight_norm, "forward")):
        with pytest.raises(AttributeError, match=word):
            call()
    with pytest.raises(TypeError, match="dim"):
        nn.Softmax()(nc.ones(2))
    with pytest.raises(NotImplementedError, match="pad"):
        nn.utils.rnn.pack_sequence([nc.ones(2)])
