"""Draws calls of layers that exist in netcl and PyTorch: arguments of the constructor, and inputs. Some are wrong, so that both must refuse."""

import random

import numpy as np


class Draw:
    """Random choices of one case."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.arrays = np.random.default_rng(seed)

    def one(self, *values):
        return self.random.choice(values)

    def chance(self, p):
        return self.random.random() < p

    def size(self, low, high):
        return self.random.randint(low, high)

    def normal(self, *shape):
        return np.asarray(self.arrays.normal(size=shape), dtype=np.float32)

    def uniform(self, *shape):
        return np.asarray(self.arrays.uniform(0.05, 0.95, size=shape), dtype=np.float32)

    def ids(self, high, *shape):
        return np.asarray(self.arrays.integers(0, high, shape), dtype=np.int32)

    def signs(self, *shape):
        return np.asarray(self.arrays.choice([-1.0, 1.0], size=shape), dtype=np.float32)

    def some(self, **options):
        """Returns each option with probability 1/2."""
        return {name: value for name, value in options.items() if self.chance(0.5)}

    def shape(self, *, least=1, most=3):
        return [self.size(1, 5) for _ in range(self.size(least, most))]

    def lead(self):
        """Returns the batch axis, or none."""
        return self.one([], [self.size(1, 3)], [2])

    def per_axis(self, n, low, high):
        return self.one(self.size(low, high), tuple(self.size(low, high) for _ in range(n)))


def elementwise(**options):
    def draw(d):
        return [], {name: d.one(*values) for name, values in options.items() if d.chance(0.6)}, [d.normal(*d.shape()) * 3]

    return draw


def along_axis(d):
    shape = d.shape(least=2)
    dim = d.one(0, 1, -1, 5) if d.chance(0.9) else -2
    return d.one(([dim], {}), ([], {"dim": dim})) + ([d.normal(*shape)],)


def halves(d):
    shape = [2 * n for n in d.shape(least=2)]
    dim = d.one(0, 1, -1, 5)
    shape[dim % len(shape)] += d.one(0, 0, 0, 1)
    return [], {} if d.chance(0.3) else {"dim": dim}, [d.normal(*shape)]


def conv(n, transposed=False):
    def draw(d):
        groups = d.one(1, 1, 2, 3)
        inner, outer = groups * d.size(1, 3), groups * d.size(1, 3)
        kernel = d.per_axis(n, 1, 3)
        options = d.some(stride=d.per_axis(n, 1, 3), padding=d.per_axis(n, 0, 2), bias=False, dilation=d.per_axis(n, 1, 2))
        options["groups"] = groups
        if transposed:
            options.update(d.some(output_padding=d.per_axis(n, 0, 1)))
        elif d.chance(0.4):
            options["padding_mode"] = d.one("zeros", "reflect", "replicate", "circular")
        if not transposed and d.chance(0.25):
            options["padding"] = d.one("same", "valid", "most")
        width = inner + (1 if d.chance(0.06) else 0)
        return [inner, outer, kernel], options, [d.normal(*d.lead(), width, *(d.size(5 if transposed else 4, 7) for _ in range(n)))]

    return draw


def pool(n, kind):
    def draw(d):
        kernel = d.per_axis(n, 1, 3)
        options = d.some(stride=d.per_axis(n, 1, 3), padding=d.per_axis(n, 0, 1), ceil_mode=True)
        if kind == "max":
            options.update(d.some(dilation=d.per_axis(n, 1, 2), return_indices=True))
        elif kind == "avg":
            options.update(d.some(count_include_pad=False))
            if n > 1:
                options.update(d.some(divisor_override=d.size(1, 5)))
        else:
            options.pop("padding", None)
        # PyTorch's lp_pool1d refuses a tuple.
        kernel = kernel[0] if kind == "lp" and n == 1 and isinstance(kernel, tuple) else kernel
        args = [d.one(1.0, 2.0, 3.0, 2), kernel] if kind == "lp" else [kernel]
        x = d.normal(*d.lead(), d.size(1, 3), *(d.size(4, 8) for _ in range(n)))
        return args, options, [np.abs(x) + 0.1 if kind == "lp" else x]

    return draw


def adaptive(n):
    def draw(d):
        size = d.one(d.size(1, 5), tuple(d.one(None, d.size(1, 4)) for _ in range(n)))
        size = (d.size(1, 4) if n == 1 else size) if n == 1 else size
        return [size], {}, [d.normal(*d.lead(), d.size(1, 3), *(d.size(3, 7) for _ in range(n)))]

    return draw


def batch_norm(n):
    def draw(d):
        c = d.size(1, 4)
        options = d.some(eps=d.one(1e-5, 1e-2), momentum=d.one(None, 0.3, 0.1), affine=False, track_running_stats=False, bias=False)
        spatial = [d.size(2, 4) for _ in range(n)]
        lead = [d.size(2, 4)] if n == 1 or d.chance(0.9) else []
        spatial = d.one(spatial, []) if n == 1 else spatial
        return [c], options, [d.normal(*lead, c, *spatial) * 2 + 1]

    return draw


def instance_norm(n):
    def draw(d):
        c = d.size(1, 4)
        options = d.some(eps=1e-3, affine=True, track_running_stats=True, momentum=0.3)
        return [c], options, [d.normal(*d.lead(), c, *(d.size(2, 5) for _ in range(n)))]

    return draw


def group_norm(d):
    groups = d.size(1, 3)
    c = groups * d.size(1, 3) + (1 if d.chance(0.05) else 0)
    return [groups, c], d.some(eps=1e-3, affine=False), [d.normal(d.size(1, 3), c, *d.shape(least=0, most=2))]


def shape_norm(bias):
    def draw(d):
        shape = d.shape(least=2)
        last = shape[-d.size(1, len(shape)) :]
        options = d.some(eps=1e-3, elementwise_affine=False, **({"bias": False} if bias else {}))
        given = last[0] if len(last) == 1 and d.chance(0.5) else tuple(last) if d.chance(0.9) else (7,)
        return [given], options, [d.normal(*shape)]

    return draw


def linear(d):
    a, b = d.size(1, 6), d.size(1, 6)
    return d.one([a, b], [a, b, False]), {}, [d.normal(*d.shape(least=0, most=3), a + (1 if d.chance(0.1) else 0))]


def bilinear(d):
    a, b, c = (d.size(1, 5) for _ in range(3))
    lead = d.shape(least=0, most=2)
    return [a, b, c], d.some(bias=False), [d.normal(*lead, a), d.normal(*lead, b)]


def embedding(d):
    rows, width = d.size(2, 6), d.size(1, 5)
    options = d.some(padding_idx=d.one(0, rows - 1, -1, rows + 3))
    return [rows, width], options, [d.ids(rows, *d.shape(least=0))]


def embedding_bag(d):
    rows, width = d.size(2, 6), d.size(1, 5)
    options = d.some(mode=d.one("sum", "mean", "max"), padding_idx=d.one(0, rows - 1))
    if d.chance(0.5):
        return [rows, width], options, [d.ids(rows, d.size(1, 4), d.size(1, 5))]
    return [rows, width], options, [d.ids(rows, 6), np.array(d.one([0, 2, 4], [0, 3], [0, 0, 5]), dtype=np.int32)]


def pad(n, value=False, circular=False):
    def draw(d):
        low = 0 if circular else -1
        amounts = d.one(d.size(0, 2), tuple(d.size(low, 2) for _ in range(2 * n)))
        args = [amounts, d.one(0.0, 3.5)] if value else [amounts]
        return args, {}, [d.normal(*d.lead(), d.size(1, 2), *(d.size(3, 5) for _ in range(n)))]

    return draw


def upsample(d):
    n = d.size(1, 3)
    mode = d.one("nearest", "nearest-exact", "area", *{1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}[n])
    # PyTorch's gradient of "nearest" belongs to other elements than its result if the factor is not an integer.
    options = d.one({"size": d.per_axis(n, 1, 8)}, {"scale_factor": d.one(2, 3) if "nearest" in mode else d.one(2, 1.5, 0.7, 2.3)})
    if mode in ("linear", "bilinear", "bicubic", "trilinear"):
        options.update(d.some(align_corners=d.one(True, False)))
    if "scale_factor" in options:
        options.update(d.some(recompute_scale_factor=True))
    return [], {"mode": mode, **options}, [d.normal(d.size(1, 2), d.size(1, 2), *(d.size(2, 5) for _ in range(n)))]


def upsample2d(d):
    return [], d.one({"size": d.size(2, 7)}, {"scale_factor": d.one(2, 3)}), [d.normal(1, 2, d.size(2, 4), d.size(2, 4))]


def pixel_shuffle(d):
    r = d.size(1, 3)
    return [r], {}, [d.normal(*d.shape(least=0, most=2), r * r * d.size(1, 2) + (1 if d.chance(0.1) else 0), d.size(1, 4), d.size(1, 4))]


def pixel_unshuffle(d):
    r = d.size(1, 3)
    return [r], {}, [d.normal(*d.shape(least=0, most=2), d.size(1, 2), r * d.size(1, 3), r * d.size(1, 3))]


def channel_shuffle(d):
    g = d.size(1, 3)
    return [g], {}, [d.normal(2, g * d.size(1, 3), *d.shape(least=1, most=2))]


def unfold(d):
    return [d.per_axis(2, 1, 3)], d.some(dilation=d.per_axis(2, 1, 2), padding=d.per_axis(2, 0, 2), stride=d.per_axis(2, 1, 3)), [d.normal(*d.lead(), d.size(1, 3), d.size(4, 7), d.size(4, 7))]


def fold(d):
    kernel, size = (d.size(1, 3), d.size(1, 3)), (d.size(5, 7), d.size(5, 7))
    options = d.some(dilation=d.size(1, 2), padding=d.size(0, 1), stride=d.size(1, 2))
    dilation, padding, stride = options.get("dilation", 1), options.get("padding", 0), options.get("stride", 1)
    count = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(size, kernel)]
    return [size, kernel], options, [d.normal(*d.lead(), d.size(1, 2) * kernel[0] * kernel[1], count[0] * count[1] + (1 if d.chance(0.08) else 0))]


def flatten(d):
    return [], d.some(start_dim=d.one(0, 1, -2), end_dim=d.one(-1, 2, 1)), [d.normal(*d.shape(least=2, most=4))]


def unflatten(d):
    return [d.one(1, -1), d.one((2, 3), (-1, 2), (3, -1), (2, 2))], {}, [d.normal(2, 6)]


def two(draw_options):
    def draw(d):
        lead = d.shape(least=1, most=2)
        return [], draw_options(d), [d.normal(*lead, 4), d.normal(*lead, 4)]

    return draw


def loss(**options):
    """A loss of two tensors of one shape."""

    def draw(d):
        shape = d.shape(least=0)
        given = {name: d.one(*values) for name, values in options.items() if d.chance(0.6)}
        return [], {**reduction(d), **given}, [d.normal(*shape) * 2, d.normal(*shape)]

    return draw


def reduction(d):
    return d.one({}, {"reduction": "sum"}, {"reduction": "none"}, {"reduction": "mean"}, {"size_average": False}, {"reduce": False})


def of_classes(log=False, smoothing=False):
    def draw(d):
        c = d.size(2, 5)
        lead, rest = d.one(([], []), ([d.size(1, 4)], []), ([2], d.shape(least=1, most=2)))
        options = {**reduction(d), **d.some(ignore_index=d.one(-100, 1))}
        if smoothing:
            options.update(d.some(label_smoothing=0.2))
        args = [d.uniform(c)] if d.chance(0.5) else []
        return args, options, [d.normal(*lead, c, *rest), d.ids(c, *lead, *rest)]

    return draw


def of_probabilities(d):
    c = d.size(2, 5)
    lead, rest = d.one(([], []), ([d.size(1, 4)], []), ([2], d.shape(least=1, most=2)))
    args = [d.uniform(c)] if d.chance(0.5) else []
    return args, {**reduction(d), **d.some(label_smoothing=0.2)}, [d.normal(*lead, c, *rest), d.uniform(*lead, c, *rest)]


def bce(d):
    shape = d.shape()
    x = d.uniform(*shape)
    x.flat[0] = d.one(0.0, 1.0, 0.5)
    return ([d.uniform(*shape)] if d.chance(0.4) else []), reduction(d), [x if d.chance(0.9) else x + 1, d.one(np.round(d.uniform(*shape)), d.uniform(*shape))]


def bce_with_logits(d):
    shape = d.shape()
    options = {**reduction(d), **d.some(weight=d.uniform(shape[-1]), pos_weight=d.uniform(shape[-1]) * 3)}
    return [], options, [d.normal(*shape) * 4, d.uniform(*shape) if d.chance(0.9) else d.uniform(2)]


def kl(d):
    shape = d.shape()
    log = d.chance(0.5)
    target = d.uniform(*shape)
    options = {**d.one(reduction(d), {"reduction": "batchmean"}), "log_target": log}
    return [], options, [np.log(d.uniform(*shape)), np.log(target) if log else target]


def poisson(d):
    shape = d.shape()
    options = {**reduction(d), **d.some(log_input=False, full=True, eps=1e-3)}
    return [], options, [d.uniform(*shape) * 2, d.ids(6, *shape).astype(np.float32)]


def gaussian(d):
    shape = d.shape()
    options = {**d.one({}, {"reduction": "sum"}, {"reduction": "none"}), **d.some(full=True, eps=0.3)}
    var = d.one(d.uniform(*shape), d.uniform(*shape[:-1], 1), d.uniform(*shape[:-1]), -d.uniform(*shape))
    return [], options, [d.normal(*shape), d.normal(*shape), var]


def signed(**options):
    def draw(d):
        shape = d.shape()
        return [], {**reduction(d), **{n: d.one(*v) for n, v in options.items() if d.chance(0.5)}}, [d.normal(*shape), d.signs(*shape)]

    return draw


def ranking(d):
    shape = d.shape()
    return [], {**reduction(d), **d.some(margin=0.4)}, [d.normal(*shape), d.normal(*shape), d.signs(*shape)]


def cosine(d):
    n = d.one([], [d.size(1, 4)])
    return [], {**reduction(d), **d.some(margin=0.2)}, [d.normal(*n, 5), d.normal(*n, 5), d.signs(*n)]


def triplet(d):
    shape = d.shape(least=1, most=2)
    return [], {**reduction(d), **d.some(margin=0.5, p=d.one(1, 2, 3.0), swap=True)}, [d.normal(*shape) for _ in range(3)]


def triplet_distance(d):
    shape = d.shape(least=2, most=2)
    return [], {**d.one({}, {"reduction": "sum"}, {"reduction": "none"}), **d.some(margin=0.5, swap=True)}, [d.normal(*shape) for _ in range(3)]


def multi_margin(d):
    c, n = d.size(2, 5), d.one([], [d.size(1, 4)])
    options = {**reduction(d), **d.some(p=2, margin=0.5, weight=d.uniform(c))}
    return [], options, [d.normal(*n, c), d.ids(c, *n)]


def multilabel_margin(d):
    n = d.one([], [3])
    target = np.stack([np.array(d.one([1, -1, 2, 0], [0, 3, -1, 1], [-1, 0, 1, 2], [2, 1, 0, 3])) for _ in range(3)]).astype(np.int32)
    return [], reduction(d), [d.normal(*n, 4), target if n else target[0]]


def multilabel_soft(d):
    shape = d.shape(least=1, most=2)
    return ([d.uniform(shape[-1])] if d.chance(0.4) else []), reduction(d), [d.normal(*shape), np.round(d.uniform(*shape))]


def recurrent(kind):
    def draw(d):
        a, h = d.size(1, 4), d.size(2, 4)
        options = d.some(num_layers=d.size(1, 2), bias=False, batch_first=True, bidirectional=True)
        if kind == "LSTM":
            options.update(d.some(proj_size=1))
        if kind == "RNN":
            options.update(d.some(nonlinearity=d.one("relu", "tanh")))
        n = d.one([], [d.size(1, 3)])
        t = d.size(1, 4)
        x = d.normal(*([*n, t] if options.get("batch_first") and n else [t, *n]), a + (1 if d.chance(0.05) else 0))
        if d.chance(0.5):
            return [a, h], options, [x]
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        out = options.get("proj_size") or h
        states = [d.normal(count, *n, out)] + ([d.normal(count, *n, h)] if kind == "LSTM" else [])
        return [a, h], options, [x, tuple(states) if kind == "LSTM" else states[0]]

    return draw


def cell(kind):
    def draw(d):
        a, h, n = d.size(1, 4), d.size(1, 4), d.one([], [d.size(1, 3)])
        options = {**d.some(bias=False), **(d.some(nonlinearity="relu") if kind == "RNN" else {})}
        state = (d.normal(*n, h), d.normal(*n, h)) if kind == "LSTM" else d.normal(*n, h)
        return [a, h], options, [d.normal(*n, a), state] if d.chance(0.6) else [d.normal(*n, a)]

    return draw


def prelu(d):
    shape = d.shape(least=2)
    return [], d.some(num_parameters=d.one(1, shape[1]), init=0.1), [d.normal(*shape)]


def unpool(n):
    def draw(d):
        size = [2 * d.size(1, 3) for _ in range(n)]
        lead = [*d.lead(), d.size(1, 2)]
        rows = int(np.prod(size)) * 2**n
        count = int(np.prod(size))
        ids = np.stack([d.arrays.permutation(rows)[:count] for _ in range(int(np.prod(lead)))]).reshape(*lead, *size).astype(np.int32)
        return [2], {}, [d.normal(*lead, *size), ids]

    return draw


# PyTorch does not compute the gradients of these losses' last argument, or computes NaN.
UNGRADED = ("NLLLoss", "PoissonNLLLoss", "SoftMarginLoss", "HingeEmbeddingLoss", "MarginRankingLoss", "CosineEmbeddingLoss", "MultiLabelSoftMarginLoss")
LAYERS = {
    "ReLU": elementwise(), "ReLU6": elementwise(), "SiLU": elementwise(), "Mish": elementwise(), "SELU": elementwise(), "Hardswish": elementwise(),
    "Hardsigmoid": elementwise(), "Tanh": elementwise(), "Sigmoid": elementwise(), "Softsign": elementwise(), "Tanhshrink": elementwise(), "LogSigmoid": elementwise(),
    "LeakyReLU": elementwise(negative_slope=(0.2, 0.5)), "ELU": elementwise(alpha=(0.5, 2.0)), "CELU": elementwise(alpha=(0.5, 2.0, -0.5)), "Hardshrink": elementwise(lambd=(1.0, 0.2)),
    "Softshrink": elementwise(lambd=(1.0, 0.2)), "Softplus": elementwise(beta=(2.0, 0.5), threshold=(1.0, 5.0)), "GLU": halves, "Hardtanh": elementwise(min_val=(-2.0,), max_val=(0.5, 3.0)),
    "GELU": elementwise(approximate=("tanh", "none")), "Threshold": lambda d: ([d.one(0.5, -1.0), 2.0], {}, [d.normal(*d.shape())]), "PReLU": prelu,
    "Softmax": along_axis, "Softmin": along_axis, "LogSoftmax": along_axis, "Softmax2d": lambda d: ([], {}, [d.normal(*d.shape(least=3, most=3))]), "RReLU": elementwise(),
    "Identity": elementwise(), "Linear": linear, "Bilinear": bilinear, "Embedding": embedding, "EmbeddingBag": embedding_bag, "Flatten": flatten, "Unflatten": unflatten,
    "Conv1d": conv(1), "Conv2d": conv(2), "Conv3d": conv(3), "ConvTranspose1d": conv(1, True), "ConvTranspose2d": conv(2, True), "ConvTranspose3d": conv(3, True),
    "MaxPool1d": pool(1, "max"), "MaxPool2d": pool(2, "max"), "MaxPool3d": pool(3, "max"), "AvgPool1d": pool(1, "avg"), "AvgPool2d": pool(2, "avg"), "AvgPool3d": pool(3, "avg"),
    "LPPool1d": pool(1, "lp"), "LPPool2d": pool(2, "lp"), "LPPool3d": pool(3, "lp"), "MaxUnpool1d": unpool(1), "MaxUnpool2d": unpool(2), "MaxUnpool3d": unpool(3),
    "AdaptiveAvgPool1d": adaptive(1), "AdaptiveAvgPool2d": adaptive(2), "AdaptiveAvgPool3d": adaptive(3), "AdaptiveMaxPool1d": adaptive(1), "AdaptiveMaxPool2d": adaptive(2),
    "AdaptiveMaxPool3d": adaptive(3), "BatchNorm1d": batch_norm(1), "BatchNorm2d": batch_norm(2), "BatchNorm3d": batch_norm(3), "InstanceNorm1d": instance_norm(1),
    "InstanceNorm2d": instance_norm(2), "InstanceNorm3d": instance_norm(3), "GroupNorm": group_norm, "LayerNorm": shape_norm(True), "RMSNorm": shape_norm(False),
    "LocalResponseNorm": lambda d: ([d.size(1, 4)], d.some(alpha=0.1, beta=0.5, k=2.0), [d.normal(2, d.size(1, 5), *d.shape(least=1, most=2))]),
    "ZeroPad1d": pad(1), "ZeroPad2d": pad(2), "ZeroPad3d": pad(3), "ConstantPad1d": pad(1, True), "ConstantPad2d": pad(2, True), "ConstantPad3d": pad(3, True),
    "ReflectionPad1d": pad(1), "ReflectionPad2d": pad(2), "ReflectionPad3d": pad(3), "ReplicationPad1d": pad(1), "ReplicationPad2d": pad(2), "ReplicationPad3d": pad(3),
    "CircularPad1d": pad(1, circular=True), "CircularPad2d": pad(2, circular=True), "CircularPad3d": pad(3, circular=True), "Upsample": upsample,
    "UpsamplingNearest2d": upsample2d, "UpsamplingBilinear2d": upsample2d, "PixelShuffle": pixel_shuffle, "PixelUnshuffle": pixel_unshuffle, "ChannelShuffle": channel_shuffle,
    "Unfold": unfold, "Fold": fold, "CosineSimilarity": two(lambda d: d.some(dim=d.one(0, -1), eps=1e-3)),
    "PairwiseDistance": two(lambda d: d.some(p=d.one(1.0, 3.0, float("inf")), eps=1e-3, keepdim=True)),
    "RNN": recurrent("RNN"), "GRU": recurrent("GRU"), "LSTM": recurrent("LSTM"), "RNNCell": cell("RNN"), "GRUCell": cell("GRU"), "LSTMCell": cell("LSTM"),
}  # fmt: skip
LOSSES = {
    "MSELoss": loss(), "L1Loss": loss(), "SmoothL1Loss": loss(beta=(0.5, 0.0, 2.0)), "CrossEntropyLoss": of_classes(smoothing=True), "NLLLoss": of_classes(),
    "CrossEntropyLoss of probabilities": of_probabilities, "BCELoss": bce, "BCEWithLogitsLoss": bce_with_logits, "KLDivLoss": kl, "PoissonNLLLoss": poisson, "GaussianNLLLoss": gaussian,
    "HuberLoss": lambda d: ([], {**d.one({}, {"reduction": "sum"}, {"reduction": "none"}), **d.some(delta=0.5)}, [d.normal(3, 4) * 2, d.normal(3, 4)]),
    "HingeEmbeddingLoss": signed(margin=(0.5, 2.0)), "SoftMarginLoss": signed(), "MarginRankingLoss": ranking, "CosineEmbeddingLoss": cosine, "TripletMarginLoss": triplet,
    "TripletMarginWithDistanceLoss": triplet_distance, "MultiMarginLoss": multi_margin, "MultiLabelMarginLoss": multilabel_margin, "MultiLabelSoftMarginLoss": multilabel_soft,
}  # fmt: skip
