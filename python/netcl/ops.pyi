"""Every operation of netcl as a function. Made by `python -m netcl._stubs` from the registry of operations."""

from typing import Any, Callable, Literal, Optional, Sequence, Tuple, Union

from ._netcl import _DTypeLike, _Ints, _Number, Op, Tensor

__all__ = ['neg', 'exp', 'log', 'sqrt', 'rsqrt', 'tanh', 'sigmoid', 'relu', 'silu', 'gelu', 'gelu_tanh', 'abs', 'square', 'sin', 'cos', 'add_scalar', 'mul_scalar', 'rsub_scalar', 'rdiv_scalar', 'pow_scalar', 'leaky_relu', 'elu', 'softplus', 'hard_swish', 'mish', 'clamp', 'sub_scalar', 'div_scalar', 'add', 'sub', 'mul', 'div', 'maximum', 'minimum', 'pow', 'reshape', 'contiguous', 'unsqueeze', 'squeeze', 'permute', 'transpose', 'slice', 'expand', 'cast', 'sum', 'sum_f32', 'mean', 'sum_to', 'max', 'layer_norm', 'rms_norm', 'residual_layer_norm', 'residual_rms_norm', 'embedding', 'cross_entropy', 'linear_cross_entropy', 'softmax', 'log_softmax', 'logsumexp', 'where_cond', 'eq', 'lt', 'le', 'gt', 'ge', 'tril', 'masked_fill', 'cat', 'stack', 'split', 'chunk', 'argmax', 'topk', 'sort', 'cumsum', 'gather', 'scatter', 'scatter_add', 'multinomial', 'choose', 'dropout', 'attention', 'attention_qkv', 'decode_attention', 'decode_embedding', 'cache_append', 'cache_gather', 'rope', 'gated', 'route', 'balance_loss', 'experts', 'matmul', 'linear', 'conv2d', 'conv1d', 'conv_transpose2d', 'max_pool2d', 'adaptive_max_pool2d', 'avg_pool2d', 'adaptive_avg_pool2d', 'batch_norm', 'batch_norm_inference', 'group_norm', 'instance_norm', 'batch_statistics', 'add_relu', 'linear_add', 'linear_residual', 'feed_forward', 'fused_linear', 'index_select', 'flip', 'roll', 'pad', 'one_hot', 'triu', 'interpolate', 'mse_loss', 'l1_loss', 'huber_loss', 'bce_with_logits', 'kl_div', 'nll_loss', 'einsum']

def function(op: Op) -> Callable[..., Any]: ...
def neg(x: Tensor) -> Tensor:
    """`-x`."""
def exp(x: Tensor) -> Tensor:
    """`e^x`."""
def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
def sqrt(x: Tensor) -> Tensor:
    """Square root."""
def rsqrt(x: Tensor) -> Tensor:
    """`1 / sqrt(x)`."""
def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + e^-x)`."""
def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`."""
def silu(x: Tensor) -> Tensor:
    """`x · sigmoid(x)`."""
def gelu(x: Tensor) -> Tensor:
    """`x · Φ(x)` with the error function (Hendrycks and Gimpel 2016)."""
def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as in GPT-2."""
def abs(x: Tensor) -> Tensor:
    """`|x|`."""
def square(x: Tensor) -> Tensor:
    """`x²`."""
def sin(x: Tensor) -> Tensor:
    """Sine."""
def cos(x: Tensor) -> Tensor:
    """Cosine."""
def add_scalar(x: Tensor, s: _Number) -> Tensor:
    """`x + s`."""
def mul_scalar(x: Tensor, s: _Number) -> Tensor:
    """`x · s`."""
def rsub_scalar(x: Tensor, s: _Number) -> Tensor:
    """`s - x`."""
def rdiv_scalar(x: Tensor, s: _Number) -> Tensor:
    """`s / x`."""
def pow_scalar(x: Tensor, s: _Number) -> Tensor:
    """`x^s`."""
def leaky_relu(x: Tensor, slope: _Number) -> Tensor:
    """x if it is positive, otherwise `x · slope`."""
def elu(x: Tensor, alpha: _Number) -> Tensor:
    """x if it is positive, otherwise `alpha · (e^x - 1)`."""
def softplus(x: Tensor) -> Tensor:
    """`log(1 + e^x)`."""
def hard_swish(x: Tensor) -> Tensor:
    """`x · min(max(x + 3, 0), 6) / 6`."""
def mish(x: Tensor) -> Tensor:
    """`x · tanh(log(1 + e^x))` (Misra 2019)."""
def clamp(x: Tensor, low: _Number, high: _Number) -> Tensor:
    """x clamped to `low` and `high`; `high` if they cross, and NaN if one of the three is NaN. The gradient is 0 outside and at the bounds."""
def sub_scalar(x: Tensor, s: _Number) -> Tensor:
    """`x - s`."""
def div_scalar(x: Tensor, s: _Number) -> Tensor:
    """`x / s`."""
def add(a: Tensor, b: Tensor) -> Tensor:
    """`a + b`; the shapes broadcast."""
def sub(a: Tensor, b: Tensor) -> Tensor:
    """`a - b`; the shapes broadcast."""
def mul(a: Tensor, b: Tensor) -> Tensor:
    """`a · b`, element by element; the shapes broadcast."""
def div(a: Tensor, b: Tensor) -> Tensor:
    """`a / b`; the shapes broadcast."""
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger of both, or NaN if one is NaN; the shapes broadcast. Equal elements share the gradient."""
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of both, or NaN if one is NaN; the shapes broadcast. Equal elements share the gradient."""
def pow(a: Tensor, b: Tensor) -> Tensor:
    """`a^b`, element by element; the shapes broadcast."""
def reshape(x: Tensor, shape: _Ints) -> Tensor:
    """The same elements in order in another shape; one size may be -1, which is inferred. Copies only if x is not contiguous."""
def contiguous(x: Tensor) -> Tensor:
    """The same elements, contiguous and at an offset that every kernel can bind. Copies only if necessary."""
def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """Inserts an axis of size 1 before `axis`; a negative one counts from after the last."""
def squeeze(x: Tensor, axis: int) -> Tensor:
    """Removes an axis of size 1; a negative one counts from the end."""
def permute(x: Tensor, axes: _Ints) -> Tensor:
    """Reorders the axes: axis i of the result is `axes[i]` of x. No copy."""
def transpose(x: Tensor, a: int = -2, b: int = -1) -> Tensor:
    """Exchanges two axes; negative ones count from the end. No copy."""
def slice(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    """Elements `start..end` of an axis; a negative axis counts from the end. No copy."""
def expand(x: Tensor, shape: _Ints) -> Tensor:
    """Repeats x along axes of size 1 and along new leading axes, like broadcasting. No copy."""
def cast(x: Tensor, dtype: _DTypeLike) -> Tensor:
    """The same values in another storage type, rounded to nearest even; floats become integers by truncation, and a mask is set where a value is not 0."""
def sum(x: Tensor, axes: _Ints = (), keep: bool = False) -> Tensor:
    """Sum over `axes`, by default all, which stay as size 1 with `keep`. Accumulated in f32."""
def sum_f32(x: Tensor, axes: _Ints = (), keep: bool = False) -> Tensor:
    """The sum, stored as f32 for every type of x."""
def mean(x: Tensor, axes: _Ints = (), keep: bool = False) -> Tensor:
    """Mean over `axes`, by default all, which stay as size 1 with `keep`."""
def sum_to(x: Tensor, shape: _Ints) -> Tensor:
    """Sums over the axes that broadcasting from `shape` added or repeated."""
def max(x: Tensor, axes: _Ints = (), keep: bool = False) -> Tensor:
    """Maximum over `axes`, by default all; NaN if an element is NaN. Ties share the gradient."""
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: _Number = 1e-05) -> Tensor:
    """Layer normalization over the last axis (Ba, Kiros and Hinton 2016). Takes x `(.., N)`, gamma `(N)` and beta `(N)`. Returns `(x - mean) / sqrt(variance + eps) * gamma + beta`. Sums are f32 for every type."""
def rms_norm(x: Tensor, gamma: Tensor, eps: _Number = 1e-05) -> Tensor:
    """Root-mean-square normalization over the last axis (Zhang and Sennrich 2019): x `(.., N)`, gamma `(N)` → `x / sqrt(mean(x²) + eps) * gamma` `(.., N)`."""
def residual_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: _Number = 1e-05) -> Tuple[Tensor, Tensor]:
    """x itself and its layer_norm, for the start of a residual branch: both gradients of x are added in one pass."""
def residual_rms_norm(x: Tensor, gamma: Tensor, eps: _Number = 1e-05) -> Tuple[Tensor, Tensor]:
    """x itself and its rms_norm, for the start of a residual branch: both gradients of x are added in one pass."""
def embedding(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table by index: table `(V, C)`, ids u32 or i32 → the shape of ids followed by an axis of C. An id outside of the table gives a row of NaN, and no gradient."""
def cross_entropy(logits: Tensor, targets: Tensor, ignore_index: Optional[int] = -100, label_smoothing: _Number = 0.0, reduction: Literal["mean", "sum", "none"] = "mean", overwrite_logits: bool = False) -> Tensor:
    """Cross entropy of logits `(.., V)` and class numbers `(..)`, u32 or i32: the mean over rows, their sum, or each row's with `reduction` "none". Rows with target `ignore_index` are ignored; `label_smoothing` is the share of the target's probability spread over all classes. The result is f32 for every type. With `overwrite_logits` the gradient may overwrite the logits."""
def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, ignore_index: Optional[int] = -100, label_smoothing: _Number = 0.0, chunk: Optional[int] = None, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
    """Mean cross entropy of `x weightᵀ` with x `(.., C)`, weight `(V, C)` and class numbers `(..)`, or the sum. The logits are never in memory all at once: they are computed `chunk` rows at a time, a power of two of at least 256, by default chosen automatically."""
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`exp(x) / sum(exp(x))` over an axis; a negative one counts from the end. A row of only -infinity gives NaN."""
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`x - log(sum(exp(x)))` over an axis, which keeps digits that softmax and log would lose."""
def logsumexp(x: Tensor, axis: int = -1) -> Tensor:
    """`log(sum(exp(x)))` over an axis, which is removed. An empty axis, or only -infinity, gives -infinity."""
def where_cond(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where the mask is not 0, otherwise `b`. All broadcast; a and b have one type."""
def eq(a: Tensor, b: Tensor) -> Tensor:
    """Returns a bool mask that is true where `a == b`. Two integers are compared exactly, an integer with a float as f32."""
def lt(a: Tensor, b: Tensor) -> Tensor:
    """Returns a bool mask that is true where `a < b`."""
def le(a: Tensor, b: Tensor) -> Tensor:
    """Returns a bool mask that is true where `a <= b`."""
def gt(a: Tensor, b: Tensor) -> Tensor:
    """Returns a bool mask that is true where `a > b`."""
def ge(a: Tensor, b: Tensor) -> Tensor:
    """Returns a bool mask that is true where `a >= b`."""
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two axes: 0 where `column > row + diagonal`."""
def masked_fill(x: Tensor, mask: Tensor, value: _Number) -> Tensor:
    """`value` where the mask is not 0, otherwise x; the mask broadcasts to its shape."""
def cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenates tensors along an axis; their other axes must agree. A negative axis counts from the end."""
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Stacks tensors of one shape along a new axis, inserted before `axis`; a negative one counts from after the last."""
def split(x: Tensor, lengths: _Ints, axis: int = 0) -> Tuple[Tensor, ...]:
    """Views of these lengths along an axis, in order; they must add up to its size."""
def chunk(x: Tensor, count: int, axis: int = 0) -> Tuple[Tensor, ...]:
    """`count` views of equal length along an axis."""
def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """Indices, i32, of the largest elements along an axis, which is removed. Equal elements give the lowest index; a NaN is larger than any number. No gradient."""
def topk(x: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    """The k largest elements of the last axis and their indices, i32, both `(.., k)`. The largest is first. Equal elements are in the order of their indices. A NaN is larger than any number. The gradient of a value flows to its element."""
def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tuple[Tensor, Tensor]:
    """Sorts the elements of an axis; also returns their indices, i32. Equal elements keep their order, also with `descending`; a NaN is larger than any number."""
def cumsum(x: Tensor, axis: int = -1) -> Tensor:
    """Cumulative sums: of all elements of an axis up to and including each. Rounding errors are compensated, so the error does not grow with the length."""
def gather(x: Tensor, ids: Tensor, axis: int = -1) -> Tensor:
    """Elements of an axis by index: `y[.., m, ..] = x[.., ids[.., m, ..], ..]`. ids have the axes of x, none but `axis` longer; an invalid index gives NaN."""
def scatter(x: Tensor, ids: Tensor, source: Tensor, axis: int = -1) -> Tensor:
    """x with elements replaced by index along an axis: `y[.., ids[.., m, ..], ..] = source[.., m, ..]`, from the last position that names the element. An invalid index changes nothing."""
def scatter_add(x: Tensor, ids: Tensor, source: Tensor, axis: int = -1) -> Tensor:
    """x with `source` added by index along an axis: `y[.., ids[.., m, ..], ..] += source[.., m, ..]`. Sums are f32, in the order of positions, so the bits are always the same. An invalid index adds nothing."""
def multinomial(weights: Tensor, samples: int, seed: Optional[int] = None, offset: int = 0) -> Tensor:
    """Draws `samples` indices per row of the last axis with replacement, i32 `(.., samples)`. The probability of an index is proportional to its weight. A row whose sum is 0, infinite or NaN gives -1. No gradient."""
def choose(logits: Tensor, rules: Tensor, words: Tensor, state: Tensor, *, bias: Optional[Tensor] = None, candidates: int, advance: bool = True) -> Tensor:
    """Samples the next token of each of B texts from logits `(B, V)`. Returns u32 `(B)`. The inputs are the engine's sampling rules, random words `(R, B)` and decoding state, which `advance` updates. `bias` `(V)` f32 is added to the logits. No gradient."""
def dropout(x: Tensor, probability: _Number = 0.5, seed: Optional[int] = None, offset: int = 0) -> Tensor:
    """Sets elements to 0 with a given probability, and scales the others to keep the mean (Srivastava et al. 2014). The backward draws the same mask again."""
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: Optional[_Number] = None, window: Optional[int] = None, softcap: Optional[_Number] = None, dropout: _Number = 0.0, seed: Optional[int] = None, offset: int = 0) -> Tensor:
    """Scaled dot-product attention in one pass: q `(B, H, T, D)`, k and v `(B, KH, S, D)` → `softmax(scale * q kᵀ) v` `(B, H, T, D)`. Query head h reads key head `h / (H / KH)`. `causal`: query t sees keys up to `t + S - T`, with `window` only the last ones. `scale` is 1/√D by default; with `softcap` a score s becomes `softcap * tanh(s / softcap)`; `dropout` drops probabilities."""
def attention_qkv(qkv: Tensor, heads: int, kv_heads: Optional[int] = None, causal: bool = False, scale: Optional[_Number] = None, window: Optional[int] = None, softcap: Optional[_Number] = None, dropout: _Number = 0.0, seed: Optional[int] = None, offset: int = 0) -> Tensor:
    """attention of a packed projection: qkv `(B, T, (H + 2 KH) D)` with H query heads, KH key heads and KH value heads → `(B, T, H D)`. KH is H by default. Nothing is copied."""
def decode_attention(qkv: Tensor, cache: Tensor, position: Tensor, *, cosines: Optional[Tensor] = None, sines: Optional[Tensor] = None, query: Optional[Tensor] = None, key: Optional[Tensor] = None, pages: Optional[Tensor] = None, heads: int, kv_heads: Optional[int] = None, scale: Optional[_Number] = None, window: Optional[int] = None, softcap: Optional[_Number] = None, eps: _Number = 1e-06, unit_offset: bool = False) -> Tensor:
    """A decoding step. Takes qkv `(B, T, (H + 2 KH) D)`, the projection of T new tokens, 1 to 8, and a cache of keys and values `(B, S, 2 KH, D)`. Returns `(B, T, H D)`. The new rows are written to the cache from `position` on, u32 `(1)` or `(B)`. With `cosines` and `sines` queries and keys are rotated. With `query` and `key` `(D)` their heads are normalized before that. With `pages`, u32 `(B, M)`, the cache is `(P, page, 2 KH, D)`. No gradient."""
def decode_embedding(table: Tensor, ids: Tensor, positions: Optional[Tensor] = None, position: Optional[Tensor] = None, scale: _Number = 1.0) -> Tensor:
    """Embeddings of new tokens. Takes table `(V, C)` and ids `(B, T)`. Returns `scale * table[ids] + positions[position + t]` `(B, T, C)`. `positions` `(P, C)` are position embeddings, and `position`, u32 `(1)` or `(B)`, is the number of earlier tokens. No gradient."""
def cache_append(x: Tensor, cache: Tensor, pages: Tensor, first: int) -> Tensor:
    """Writes rows x `(N, 2 KH, D)` to positions `first..first + N` of a text and returns the cache. The text's pages, u32 `(M)`, are in a cache `(P, page, 2 KH, D)`. No gradient."""
def cache_gather(cache: Tensor, pages: Tensor, first: int, count: int, size: int, dtype: _DTypeLike) -> Tensor:
    """Rows `first..first + count` of a text `(count, 2 KH, D)` from its pages in a cache, in `dtype`; heads have `size` elements. No gradient."""
def rope(x: Tensor, cosines: Tensor, sines: Tensor, heads: int, size: int) -> Tensor:
    """Rotary position embedding (Su et al. 2021): x `(B, T, N)`, cosines and sines `(T, R/2)` f32 → `(B, T, N)`. A row consists of heads of `size` elements. In each of the first `heads` heads, the first R elements are rotated, element i with element `i + R/2`. The rest is copied."""
def gated(x: Tensor, gate: Literal["silu", "gelu_tanh", "gelu", "relu"] = "silu") -> Tensor:
    """Gated activation (Shazeer 2020): x `(.., 2N)`, a gate g of N elements followed by a value u of N → `act(g) * u` `(.., N)`."""
def route(logits: Tensor, k: int, renormalise: bool = False) -> Tuple[Tensor, Tensor]:
    """Routing of a sparse mixture of experts: logits `(.., E)` → weights `(.., k)` and expert ids `(.., k)`, u32, the largest logit first. A weight is the logit's share of the softmax over all E, with `renormalise` over the k chosen ones."""
def balance_loss(logits: Tensor, k: int) -> Tensor:
    """The loss that balances the load of experts (Fedus et al. 2021): router logits `(.., E)` of all layers, of which the k largest choose → an f32 scalar, which is k if all experts are equally busy."""
def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate: Literal["silu", "gelu_tanh", "gelu", "relu"] = "silu") -> Tensor:
    """The experts of a sparse mixture. Takes x `(.., C)`, ids and weights `(.., K)` of a token's experts, stacked gate and value maps (E, 2H, C), and down maps (E, C, H). Returns `Σ weight * down(act(gate x) * up x)` `(.., C)`."""
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product: a `(.., M, K)`, b `(.., K, N)` → `(.., M, N)`; the axes before the last two broadcast."""
def linear(x: Tensor, w: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Linear map: x `(.., K)`, w `(K, N)`, bias `(N)` → `x w + bias` `(.., N)`."""
def conv2d(x: Tensor, w: Tensor, bias: Optional[Tensor] = None, stride: _Ints = (1,), padding: _Ints = (0,), dilation: _Ints = (1,), groups: int = 1) -> Tensor:
    """Cross-correlation of images: x `(N, G C, H, W)`, w `(G O, C, I, J)`, bias `(G O)` → `(N, G O, H', W')`. Stride, padding and dilation are one number or one per axis; images may have any strides, and the result is stored with channels last."""
def conv1d(x: Tensor, w: Tensor, bias: Optional[Tensor] = None, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Tensor:
    """Cross-correlation of sequences: x `(N, G C, T)`, w `(G O, C, K)`, bias `(G O)` → `(N, G O, T')`."""
def conv_transpose2d(x: Tensor, w: Tensor, bias: Optional[Tensor] = None, stride: _Ints = (1,), padding: _Ints = (0,), dilation: _Ints = (1,), groups: int = 1, output_padding: _Ints = (0,)) -> Tensor:
    """Transposed convolution of images: x `(N, G C, H, W)`, w `(G C, O, I, J)`, bias `(G O)` → `(N, G O, H', W')`, the gradient of conv2d's image. Stride, padding, dilation and output_padding are one number or one per axis."""
def max_pool2d(x: Tensor, size: _Ints, stride: _Ints = (), padding: _Ints = (0,), dilation: _Ints = (1,)) -> Tensor:
    """Maxima of windows: x `(N, C, H, W)` → `(N, C, H', W')`. Size, stride (by default the size), padding and dilation are one number or one per axis. A window with a NaN gives NaN; the first of equal pixels gets the gradient."""
def adaptive_max_pool2d(x: Tensor, output: _Ints) -> Tensor:
    """Maxima of `output` windows, one number or one per axis, as equal in size as possible: x `(N, C, H, W)` → `(N, C, H', W')`."""
def avg_pool2d(x: Tensor, size: _Ints, stride: _Ints = (), padding: _Ints = (0,), include_pad: bool = True) -> Tensor:
    """Means of windows: x `(N, C, H, W)` → `(N, C, H', W')`. Size, stride (by default the size) and padding are one number or one per axis; pixels of the padding count as zeros unless `include_pad` is false."""
def adaptive_avg_pool2d(x: Tensor, output: _Ints) -> Tensor:
    """Means of `output` windows, one number or one per axis, as equal in size as possible: x `(N, C, H, W)` → `(N, C, H', W')`."""
def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: _Number = 1e-05, activation: Literal["none", "relu", "relu6"] = "none") -> Tuple[Tensor, Tensor, Tensor]:
    """Batch normalization: x `(N, C, ..)` by mean and variance of each channel, times gamma `(C)` plus beta `(C)`. Also returns the mean and the variance (divided by the number of elements), f32 `(C)`. An activation of y costs nothing here."""
def batch_norm_inference(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: _Number = 1e-05) -> Tensor:
    """Batch normalization with given means and variances `(C)` of the channels, f32, for inference."""
def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: _Number = 1e-05) -> Tensor:
    """Group normalization: x `(N, C, ..)` by mean and variance of each image over `groups` equal runs of channels, times gamma `(C)` plus beta `(C)`. One channel per group is instance normalization."""
def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: _Number = 1e-05) -> Tensor:
    """Instance normalization: each channel of each image of x `(N, C, ..)` by its mean and variance, times gamma `(C)` plus beta `(C)`."""
def batch_statistics(x: Tensor) -> Tensor:
    """Mean and variance (divided by the number of elements) of each channel of x `(N, C, ..)`, f32 `(2, C)`."""
def add_relu(a: Tensor, b: Tensor) -> Tensor:
    """`max(a + b, 0)` of two tensors of one shape, in one pass."""
def linear_add(residual: Tensor, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Linear map into a residual stream: residual `(.., N)`, x `(.., K)`, w `(K, N)`, bias `(N)` → `residual + x w + bias`."""
def linear_residual(residual: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Linear map into a residual stream: residual `(.., N)`, x `(.., K)`, w `(K, N)` → `residual + x w`."""
def feed_forward(residual: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, recompute: bool = False) -> Tensor:
    """Feed-forward layer into a residual stream: residual `(.., N)`, x `(.., K)` → `residual + gelu(x w1 + b1) w2 + b2`, GELU by its tanh approximation. With `recompute` the backward recomputes the GELU's result instead of saving it."""
def fused_linear(x: Tensor, w: Tensor, gamma: Optional[Tensor] = None, beta: Optional[Tensor] = None, bias: Optional[Tensor] = None, residual: Optional[Tensor] = None, eps: _Number = 1e-05, unit_offset: bool = False, activation: Literal["none", "silu", "gelu_tanh", "gelu", "relu"] = "none", by_gate: bool = False) -> Tensor:
    """A linear map fused with its neighbors in a decoder's block: x `(.., K)`, w `(K, N)` → `act(norm(x) w + bias) + residual` `(.., N)`. `gamma` `(K)` selects a root-mean-square norm, with `beta` a layer norm; with `unit_offset` the factor is 1 + gamma. With `by_gate` w is `(K, 2N)`, and the activation of the first half multiplies the second half."""
def index_select(x: Tensor, ids: Tensor, axis: int = 0) -> Tensor:
    """Selects elements `ids` `(M)` of an axis, in their order; an invalid index gives NaN."""
def flip(x: Tensor, axes: _Ints) -> Tensor:
    """Reverses the elements of axes."""
def roll(x: Tensor, shift: int, axis: int = -1) -> Tensor:
    """Moves the elements of an axis by `shift`; elements that leave it reappear at the other end."""
def pad(x: Tensor, amounts: _Ints, value: _Number = 0.0, mode: Literal["constant", "reflect", "replicate"] = "constant") -> Tensor:
    """Pads the last axes: two amounts per axis, before and after, starting with the last axis. The padding is `value`, or the elements of x mirrored at its ends (`reflect`), or its first and last element (`replicate`)."""
def one_hot(ids: Tensor, classes: int) -> Tensor:
    """One-hot rows: numbers below `classes`, of any shape → f32 with a further axis of `classes`: 1 at the number, otherwise 0."""
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two axes: 0 where `column < row + diagonal`."""
def interpolate(x: Tensor, size: _Ints, mode: Literal["nearest", "bilinear"] = "nearest", align_corners: bool = False) -> Tensor:
    """Resizes the last two axes `(.., H, W)` to `size`, by the nearest pixel or between the nearest two pixels per axis. With `align_corners`, pixels are the corners of a grid."""
def mse_loss(x: Tensor, target: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
    """`(x - target)²`: the mean, the sum, or each element's."""
def l1_loss(x: Tensor, target: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
    """`|x - target|`: the mean, the sum, or each element's."""
def huber_loss(x: Tensor, target: Tensor, reduction: Literal["mean", "sum", "none"] = "mean", delta: _Number = 1.0) -> Tensor:
    """Half the square of `x - target` up to `delta`, and a line beyond (Huber 1964)."""
def bce_with_logits(x: Tensor, target: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
    """Binary cross entropy of `sigmoid(x)` and targets from 0 to 1, by a formula that keeps its digits."""
def kl_div(x: Tensor, target: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
    """Kullback-Leibler divergence of log-probabilities x from probabilities `target`; the mean is over all elements."""
def nll_loss(x: Tensor, target: Tensor, reduction: Literal["mean", "sum", "none"] = "mean", ignore_index: Optional[int] = -100) -> Tensor:
    """Negative log-likelihood of log-probabilities `(.., V)` at class numbers `(..)`. Rows with class `ignore_index` are ignored."""
def einsum(tensors: Sequence[Tensor], formula: str) -> Tensor:
    """Multiplies tensors along axes with the same letter, and sums over letters that are not in the result: `bij,bjk->bik` is a matrix product. `...` stands for any axes, which broadcast; a letter twice in one tensor selects its diagonal."""
