"""Maps the samples of PyTorch's OpInfo to netcl's operations: netcl's name, the OpInfo, and a function of the sample's arguments."""

import netcl as nc
from netcl import ops
from netcl.array_api._manipulation import broadcast_shapes


class Other(Exception):
    """A sample that netcl does not support. The message is the reason."""


def need(holds, what):
    if not holds:
        raise Other(what)


def is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def unary(op):
    return lambda x: op(x)


def numbers(*values):
    """Replaces the samples' arguments, which are only tensors."""
    return [((value,), {}) for value in values]


def binary(op):
    def call(x, y, **options):
        need(not options, "alpha or rounding_mode")
        need(isinstance(y, nc.Tensor), "a number instead of a tensor")
        return op(x, y)

    return call


def ones(n, like):
    return nc.ones(n, device=like.device)


def zeros(n, like):
    return nc.zeros(n, device=like.device)


def axes_of(x, dim):
    if dim is None:
        return ()
    dims = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    need(x.ndim > 0, "an axis of a 0-d tensor")
    return dims


def reduction(op):
    def call(x, dim=None, keepdim=False, dtype=None):
        need(dtype is None, "a dtype")
        return op(x, axes_of(x, dim), keepdim)

    return call


def along(op):
    def call(x, dim=None, dtype=None, keepdim=False):
        need(dtype is None, "a dtype")
        need(isinstance(dim, int) and x.ndim > 0, "not one axis")
        y = op(x, dim)
        return y.unsqueeze(dim % x.ndim) if keepdim else y

    return call


def gelu(x, approximate="none"):
    need(approximate == "none", "another approximation")
    return ops.gelu(x)


def gelu_tanh(x, approximate="none"):
    need(approximate == "tanh", "another approximation")
    return ops.gelu_tanh(x)


def sizes(args):
    return tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int) else tuple(args)


def squeeze(x, dim=None):
    need(isinstance(dim, int) and x.ndim > 0 and x.shape[dim] == 1, "axes that are not of size 1, or not one axis")
    return ops.squeeze(x, dim)


def expand(x, *shape):
    wanted = sizes(shape)
    new = len(wanted) - x.ndim
    return ops.expand(x, tuple(x.shape[i - new] if n == -1 else n for i, n in enumerate(wanted)))


def narrow(x, dim, start, length):
    need(is_number(start), "a tensor as a start")
    start = start % x.shape[dim] if start < 0 else start
    return ops.slice(x, dim, start, start + length)


def affine(x, shape, weight, bias, op):
    n = 1
    for size in shape:
        n *= size
    flat = x.reshape(*x.shape[: x.ndim - len(shape)], n)
    gamma = ones(n, x) if weight is None else weight.reshape(n)
    beta = zeros(n, x) if bias is None else bias.reshape(n)
    return op(flat, gamma, beta).reshape(*x.shape)


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    return affine(x, normalized_shape, weight, bias, lambda x, g, b: ops.layer_norm(x, g, b, eps))


def rms_norm(x, normalized_shape, weight=None, eps=None):
    eps = 2.0**-23 if eps is None else eps
    return affine(x, normalized_shape, weight, None, lambda x, g, _: ops.rms_norm(x, g, eps))


def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    need(x.ndim > 1, "no channels")
    c = x.shape[1]
    return ops.group_norm(x, ones(c, x) if weight is None else weight, zeros(c, x) if bias is None else bias, num_groups, eps)


def batch_norm(x, mean=None, variance=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    need(training, "running statistics")
    need(x.ndim > 1, "no channels")
    c = x.shape[1]
    return ops.batch_norm(x, ones(c, x) if weight is None else weight, zeros(c, x) if bias is None else bias, eps)[0]


def batch_norm_inference(x, mean=None, variance=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    need(not training and mean is not None, "statistics of the batch")
    need(x.ndim > 1, "no channels")
    c = x.shape[1]
    return ops.batch_norm_inference(x, ones(c, x) if weight is None else weight, zeros(c, x) if bias is None else bias, mean, variance, eps)


def embedding(table, ids, padding_idx=None, max_norm=None, scale_grad_by_freq=False, **options):
    need(padding_idx is None and max_norm is None and not scale_grad_by_freq and not options.get("sparse"), "padding, a norm or scaled gradients")
    return ops.embedding(table, ids)


def classes_last(x):
    return x.permute(0, *range(2, x.ndim), 1) if x.ndim > 2 else x


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    need(weight is None, "weights of the classes")
    need(not target.dtype.is_floating_point, "probabilities as targets")
    need(x.ndim > 1, "no batch")
    return ops.cross_entropy(classes_last(x), target, ignore_index, label_smoothing, reduction)


def nll_loss(x, target, weight=None, ignore_index=-100, reduction="mean"):
    need(weight is None, "weights of the classes")
    need(x.ndim > 1, "no batch")
    return ops.nll_loss(classes_last(x), target, reduction, ignore_index)


def linear_cross_entropy(x, matrix, target, bias=None, **options):
    options.pop("chunk_size", None)
    smoothing, ignored = options.pop("label_smoothing", 0.0), options.pop("ignore_index", -100)
    need(bias is None and options.pop("reduction", "mean") == "mean", "a bias or another reduction")
    need(not target.dtype.is_floating_point and target.ndim == 1 and x.ndim == 2, "probabilities as targets, or not one axis of them")
    need(not [name for name, value in options.items() if value is not None], "further options")
    return ops.linear_cross_entropy(x, matrix, target, ignored, smoothing)


def where(x, mask, other):
    need(isinstance(other, nc.Tensor) and isinstance(mask, nc.Tensor), "a number instead of a tensor")
    return ops.where_cond(mask, x, other)


def masked_fill(x, mask, value):
    need(is_number(value), "a tensor as the value")
    need(broadcast_shapes(x.shape, mask.shape) == tuple(x.shape), "a mask larger than x")
    return ops.masked_fill(x, mask, value)


def topk(x, k, dim=-1, largest=True, sorted=True):
    need(x.ndim > 0 and dim % x.ndim == x.ndim - 1 and largest, "another axis than the last, or the smallest")
    return ops.topk(x, k)[0]


def sort(x, dim=-1, descending=False, stable=None):
    need(x.ndim > 0, "an axis of a 0-d tensor")
    return ops.sort(x, dim, descending)[0]


def cumsum(x, dim, dtype=None):
    need(x.ndim > 0 and dtype is None, "an axis of a 0-d tensor, or a dtype")
    return ops.cumsum(x, dim)


def by_number(op):
    """Wraps operations along an axis by indices. PyTorch also accepts a single value or a reduction."""

    def call(x, dim, ids, source=None, reduce=None, sparse_grad=False):
        need(x.ndim > 0 and ids.ndim == x.ndim, "a tensor without axes")
        need(reduce is None and (source is None or isinstance(source, nc.Tensor)), "a reduction, or a value instead of a tensor")
        if source is None:
            return op(x, ids, dim)
        need(source.shape == ids.shape, "a source that is larger than the indices")
        return op(x, ids, source, dim)

    return call


def einsum(tensors, equation):
    return ops.einsum(list(tensors), equation)


def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    need(use_input_stats, "statistics of other images")
    c = x.shape[1]
    return ops.instance_norm(x, ones(c, x) if weight is None else weight, zeros(c, x) if bias is None else bias, eps)


def argmax(x, dim=None, keepdim=False):
    need(x.ndim > 0 or dim is None, "an axis of a 0-d tensor")
    return x.argmax(dim, keepdim)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    need(attn_mask is None and dropout_p == 0.0, "a mask or dropout")
    need(q.ndim == 4, "not four axes")
    need(not is_causal or q.shape[-2] == k.shape[-2], "causal with different numbers of keys and queries, which PyTorch aligns at the start")
    need(q.shape[-1] == v.shape[-1], "values of another size than keys")
    return ops.attention(q, k, v, is_causal, scale)


def linear(x, w, bias=None):
    need(w.ndim == 2, "a vector as the matrix")
    one = x.ndim == 1
    y = ops.linear(x.unsqueeze(0) if one else x, w.T, bias)
    return y.squeeze(0) if one else y


def tuple_of(value, n):
    return (value,) * n if isinstance(value, int) else tuple(value) * (n if len(value) == 1 else 1)


def convolution(op, n):
    def call(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
        stride, dilation = tuple_of(stride, n), tuple_of(dilation, n)
        one = x.ndim == n + 1
        x = x.unsqueeze(0) if one else x
        if padding == "valid":
            padding = 0
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
            need(all(t % 2 == 0 for t in total), "padding of two sizes")
            padding = [t // 2 for t in total]
        padding = tuple_of(padding, n)
        if n == 1:
            stride, padding, dilation = stride[0], padding[0], dilation[0]
        y = op(x, w, bias, stride, padding, dilation, groups)
        return y.squeeze(0) if one else y

    return call


def conv_transpose2d(x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    one = x.ndim == 3
    x = x.unsqueeze(0) if one else x
    pair = [tuple_of(v, 2) for v in (stride, padding, dilation, output_padding)]
    y = ops.conv_transpose2d(x, w, bias, pair[0], pair[1], pair[2], groups, pair[3])
    return y.squeeze(0) if one else y


def images(x, f):
    y = f(x.unsqueeze(0) if x.ndim == 3 else x)
    return y.squeeze(0) if x.ndim == 3 else y


def max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    need(not ceil_mode and not return_indices, "rounding up, or indices")
    size = tuple_of(kernel_size, 2)
    return images(x, lambda x: ops.max_pool2d(x, size, size if stride in (None, ()) else tuple_of(stride, 2), tuple_of(padding, 2), tuple_of(dilation, 2)))


def avg_pool2d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    need(not ceil_mode and divisor_override is None, "rounding up, or another divisor")
    size = tuple_of(kernel_size, 2)
    return images(x, lambda x: ops.avg_pool2d(x, size, size if stride in (None, ()) else tuple_of(stride, 2), tuple_of(padding, 2), count_include_pad))


def adaptive(op):
    def call(x, output_size, return_indices=False):
        need(not return_indices, "indices")
        wanted = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
        wanted = tuple(x.shape[x.ndim - 2 + i] if n is None else n for i, n in enumerate(wanted))
        return images(x, lambda x: op(x, wanted))

    return call


def roll(x, shifts, dims=None):
    if dims is None or dims == ():
        return ops.roll(x.reshape(-1), shifts if isinstance(shifts, int) else shifts[0], 0).reshape(*x.shape)
    for shift, dim in zip(tuple_of(shifts, 1), tuple_of(dims, 1)):
        x = ops.roll(x, shift, dim)
    return x


def pad(x, pad, mode="constant", value=None):
    need(mode == "constant" and all(n >= 0 for n in pad), "negative amounts")
    return ops.pad(x, tuple(pad), 0.0 if value is None else value)


def one_hot(ids, num_classes=-1):
    need(num_classes > 0, "a number of classes that must be computed")
    return ops.one_hot(ids, num_classes)


def interpolate(mode):
    def call(x, size=None, scale_factor=None, mode=None, align_corners=None, recompute_scale_factor=None, antialias=False):
        need(x.ndim == 4 and size is not None and not antialias, "not images, or a factor instead of a size")
        return ops.interpolate(x, tuple_of(size, 2), how, bool(align_corners))

    how = mode
    return call


def loss(op):
    def call(x, target, reduction="mean", **options):
        options = {k: v for k, v in options.items() if v is not None and v is not False}
        need(set(options) <= {"delta"}, "weights, a logarithm as target, or size_average")
        need(reduction != "batchmean", "the mean over the batch")
        need(tuple(x.shape) == tuple(target.shape), "a target that broadcasts")
        return op(x, target, reduction, **options)

    return call


def cat(xs, dim=0):
    need(len({x.ndim for x in xs}) == 1, "an empty tensor of one axis, which PyTorch ignores")
    return ops.cat(xs, dim)


def index_select(x, dim, ids):
    need(x.ndim > 0, "an axis of a 0-d tensor")
    return ops.index_select(x, ids, dim)


def logsumexp(x, dim, keepdim=False):
    dims = axes_of(x, dim)
    need(len(dims) == 1, "not one axis")
    y = ops.logsumexp(x, dims[0])
    return y.unsqueeze(dims[0] % x.ndim) if keepdim else y


def split(x, lengths, dim=0):
    return ops.split(x, tuple(lengths), dim)


def chunk(x, count, dim=0):
    need(x.ndim > 0 and x.shape[dim] % count == 0, "parts of different lengths")
    return ops.chunk(x, count, dim)


def compared(op):
    def call(x, y):
        need(isinstance(y, nc.Tensor), "a number instead of a tensor")
        return op(x, y)

    return call


def clamp(x, min_val=-1.0, max_val=1.0, inplace=False):
    return ops.clamp(x, min_val, max_val)


def as_dtype(name):
    return lambda x, **options: ops.cast(x, name)


def permute(x, *dims):
    return ops.permute(x, tuple(d % x.ndim for d in sizes(dims)))


# netcl's operation → OpInfo's name, variant, call, and arguments that replace those of the samples.
MAPPED = {
    **{name: [(name, "", unary(getattr(ops, name)))] for name in ("neg", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "abs", "square", "sin", "cos")},
    **{name: [(f"nn.functional.{name}", "", unary(getattr(ops, name)))] for name in ("relu", "silu", "mish")},
    "gelu": [("nn.functional.gelu", "", gelu)],
    "gelu_tanh": [("nn.functional.gelu", "", gelu_tanh)],
    "add_scalar": [("add", "", ops.add_scalar, numbers(1.5, -2))],
    "sub_scalar": [("sub", "", ops.sub_scalar, numbers(1.5, -2))],
    "mul_scalar": [("mul", "", ops.mul_scalar, numbers(1.5, -2))],
    "div_scalar": [("div", "no_rounding_mode", ops.div_scalar, numbers(1.5, -2))],
    "rsub_scalar": [("__rsub__", "", ops.rsub_scalar, numbers(1.5, -2))],
    "rdiv_scalar": [("__rdiv__", "", ops.rdiv_scalar, numbers(1.5, -2))],
    "pow_scalar": [("pow", "", ops.pow_scalar, numbers(2, 3, 0.5, -1, 0))],
    "leaky_relu": [("nn.functional.leaky_relu", "", lambda x, negative_slope=0.01: ops.leaky_relu(x, negative_slope))],
    "elu": [("nn.functional.elu", "", lambda x, alpha=1.0: ops.elu(x, alpha))],
    "softplus": [("nn.functional.softplus", "", ops.softplus, [((), {})])],
    "hard_swish": [("nn.functional.hardswish", "", unary(ops.hard_swish))],
    "clamp": [("nn.functional.hardtanh", "", clamp)],
    **{name: [(name, "", binary(getattr(ops, name)))] for name in ("add", "sub", "mul", "maximum", "minimum", "pow")},
    "div": [("div", "no_rounding_mode", binary(ops.div)), ("true_divide", "", binary(ops.div))],
    "reshape": [("reshape", "", lambda x, *s: ops.reshape(x, sizes(s))), ("view", "", lambda x, *s: ops.reshape(x, sizes(s)))],
    "contiguous": [("contiguous", "", unary(ops.contiguous))],
    "unsqueeze": [("unsqueeze", "", lambda x, dim: ops.unsqueeze(x, dim % (x.ndim + 1)))],
    "squeeze": [("squeeze", "", squeeze)],
    "permute": [("permute", "", permute)],
    "transpose": [("transpose", "", lambda x, a, b: ops.transpose(x, a, b) if x.ndim else x)],
    "slice": [("narrow", "", narrow)],
    "expand": [("expand", "", expand), ("broadcast_to", "", expand)],
    "cast": [("half", "", as_dtype("float16")), ("bfloat16", "", as_dtype("bfloat16"))],
    "sum": [("sum", "", reduction(ops.sum))],
    "sum_f32": [("sum", "", reduction(ops.sum_f32))],
    "mean": [("mean", "", reduction(ops.mean))],
    "sum_to": [("sum_to_size", "", lambda x, *s: ops.sum_to(x, sizes(s)))],
    "max": [("amax", "", reduction(ops.max))],
    "layer_norm": [("nn.functional.layer_norm", "", layer_norm)],
    "rms_norm": [("nn.functional.rms_norm", "", rms_norm)],
    "group_norm": [("nn.functional.group_norm", "", group_norm)],
    "batch_norm": [("nn.functional.batch_norm", "", batch_norm)],
    "batch_norm_inference": [("nn.functional.batch_norm", "", batch_norm_inference)],
    "embedding": [("nn.functional.embedding", "", embedding)],
    "cross_entropy": [("nn.functional.cross_entropy", "", cross_entropy)],
    "linear_cross_entropy": [("nn.functional.linear_cross_entropy", "", linear_cross_entropy)],
    "nll_loss": [("nn.functional.nll_loss", "", nll_loss)],
    "softmax": [("softmax", "", along(ops.softmax))],
    "log_softmax": [("log_softmax", "", along(ops.log_softmax))],
    "logsumexp": [("logsumexp", "", logsumexp)],
    "where_cond": [("where", "", where)],
    **{name: [(name, "", compared(getattr(ops, name)))] for name in ("eq", "lt", "le", "gt", "ge")},
    "tril": [("tril", "", lambda x, k=0: ops.tril(x, k))],
    "triu": [("triu", "", lambda x, k=0: ops.triu(x, k))],
    "masked_fill": [("masked_fill", "", masked_fill)],
    "cat": [("cat", "", cat)],
    "stack": [("stack", "", lambda xs, dim=0: ops.stack(xs, dim % (xs[0].ndim + 1)))],
    "split": [("split_with_sizes", "", split)],
    "chunk": [("chunk", "", chunk)],
    "argmax": [("argmax", "", argmax)],
    "topk": [("topk", "", topk)],
    "sort": [("sort", "", sort)],
    "cumsum": [("cumsum", "", cumsum)],
    "gather": [("gather", "", by_number(ops.gather))],
    "scatter": [("scatter", "", by_number(ops.scatter))],
    "scatter_add": [("scatter_add", "", by_number(ops.scatter_add))],
    "einsum": [("einsum", "", einsum)],
    "instance_norm": [("nn.functional.instance_norm", "", instance_norm)],
    "attention": [("nn.functional.scaled_dot_product_attention", "", attention)],
    "matmul": [("matmul", "", lambda a, b: a @ b), ("mm", "", ops.matmul), ("bmm", "", ops.matmul)],
    "linear": [("nn.functional.linear", "", linear)],
    "conv1d": [("nn.functional.conv1d", "", convolution(ops.conv1d, 1))],
    "conv2d": [("nn.functional.conv2d", "", convolution(ops.conv2d, 2))],
    "conv_transpose2d": [("nn.functional.conv_transpose2d", "", conv_transpose2d)],
    "max_pool2d": [("nn.functional.max_pool2d", "", max_pool2d)],
    "avg_pool2d": [("nn.functional.avg_pool2d", "", avg_pool2d)],
    "adaptive_max_pool2d": [("nn.functional.adaptive_max_pool2d", "", adaptive(ops.adaptive_max_pool2d))],
    "adaptive_avg_pool2d": [("nn.functional.adaptive_avg_pool2d", "", adaptive(ops.adaptive_avg_pool2d))],
    "index_select": [("index_select", "", index_select)],
    "flip": [("flip", "", lambda x, dims: ops.flip(x, dims))],
    "roll": [("roll", "", roll)],
    "pad": [("nn.functional.pad", "constant", pad), ("constant_pad_nd", "", lambda x, p, value=0.0: pad_of(x, p, value))],
    "one_hot": [("nn.functional.one_hot", "", one_hot)],
    "interpolate": [("nn.functional.interpolate", "nearest", interpolate("nearest")), ("nn.functional.interpolate", "bilinear", interpolate("bilinear"))],
    "mse_loss": [("nn.functional.mse_loss", "", loss(ops.mse_loss))],
    "l1_loss": [("nn.functional.l1_loss", "", loss(ops.l1_loss))],
    "huber_loss": [("nn.functional.huber_loss", "", loss(ops.huber_loss))],
    "bce_with_logits": [("nn.functional.binary_cross_entropy_with_logits", "", loss(ops.bce_with_logits))],
    "kl_div": [("nn.functional.kl_div", "", loss(ops.kl_div))],
}


def pad_of(x, amounts, value):
    return pad(x, amounts, value=value)


RANDOM = "draws random numbers; its own tests compare them between devices"
DECODING = "a decoding step with a cache, which PyTorch does not have"
BLOCK = "combines several operations, which are tested separately"
NONE = "PyTorch has no such function"
# These operations do not have a gradient, for the given reason.
NO_GRADIENT = {
    "topk": "netcl's topk does not have a gradient; use embedding or index_select with its indices",
}
# These operations do not have an OpInfo, for the given reason.
UNMAPPED = {
    "residual_layer_norm": BLOCK,
    "residual_rms_norm": BLOCK,
    "linear_add": BLOCK,
    "linear_residual": BLOCK,
    "add_relu": BLOCK,
    "feed_forward": BLOCK,
    "fused_linear": BLOCK,
    "batch_statistics": BLOCK,
    "attention_qkv": BLOCK,
    "multinomial": RANDOM,
    "dropout": RANDOM,
    "choose": DECODING,
    "decode_attention": DECODING,
    "decode_embedding": DECODING,
    "cache_append": DECODING,
    "cache_gather": DECODING,
    "rope": NONE,
    "gated": NONE,
    "route": NONE,
    "balance_loss": NONE,
    "experts": NONE,
}
