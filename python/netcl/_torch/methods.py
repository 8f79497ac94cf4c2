"""The methods of tensors with PyTorch's names. ``attach`` adds them to the class."""

from __future__ import annotations

from typing import Any, Callable, ClassVar

from .._netcl import Generator, Tensor
from . import _attributes, _index, _join, _linear, _mutate, _pointwise, _random, _reduce, _shape
from ._refused_methods import RefusedMethods


class TorchMethods(RefusedMethods):
    """Functions of this package as methods: their first argument is the tensor."""

    abs = _pointwise.abs
    absolute = _pointwise.abs
    acos = _pointwise.acos
    acosh = _pointwise.acosh
    add = _pointwise.add
    addbmm = _linear.addbmm
    addcdiv = _pointwise.addcdiv
    addcmul = _pointwise.addcmul
    addmm = _linear.addmm
    addmv = _linear.addmv
    addr = _linear.addr
    adjoint = _shape.adjoint
    all = _reduce.all
    allclose = _pointwise.allclose
    amax = _reduce.amax
    amin = _reduce.amin
    aminmax = _reduce.aminmax
    any = _reduce.any
    arccos = _pointwise.acos
    arccosh = _pointwise.acosh
    arcsin = _pointwise.asin
    arcsinh = _pointwise.asinh
    arctan = _pointwise.atan
    arctan2 = _pointwise.atan2
    arctanh = _pointwise.atanh
    argmax = _reduce.argmax
    argmin = _reduce.argmin
    argsort = _index.argsort
    argwhere = _index.argwhere
    asin = _pointwise.asin
    asinh = _pointwise.asinh
    atan = _pointwise.atan
    atan2 = _pointwise.atan2
    atanh = _pointwise.atanh
    baddbmm = _linear.baddbmm
    bernoulli = _random.bernoulli
    bernoulli_ = _random.bernoulli_
    bincount = _index.bincount
    bitwise_and = _pointwise.bitwise_and
    bitwise_left_shift = _pointwise.bitwise_left_shift
    bitwise_not = _pointwise.bitwise_not
    bitwise_or = _pointwise.bitwise_or
    bitwise_right_shift = _pointwise.bitwise_right_shift
    bitwise_xor = _pointwise.bitwise_xor
    bmm = _linear.bmm
    broadcast_to = _shape.broadcast_to
    ceil = _pointwise.ceil
    chunk = _join.chunk
    clamp = _pointwise.clamp
    clamp_max = _pointwise.clamp_max
    clamp_min = _pointwise.clamp_min
    clip = _pointwise.clamp
    copysign = _pointwise.copysign
    cos = _pointwise.cos
    cosh = _pointwise.cosh
    count_nonzero = _reduce.count_nonzero
    cross = _linear.cross
    cummax = _reduce.cummax
    cummin = _reduce.cummin
    cumprod = _reduce.cumprod
    cumsum = _reduce.cumsum
    deg2rad = _pointwise.deg2rad
    diag = _shape.diag
    diag_embed = _shape.diag_embed
    diagflat = _shape.diagflat
    diagonal = _shape.diagonal
    diff = _reduce.diff
    dist = _reduce.dist
    div = _pointwise.div
    divide = _pointwise.div
    dot = _linear.dot
    dsplit = _join.dsplit
    eq = _pointwise.eq
    equal = _pointwise.equal
    erf = _pointwise.erf
    erfc = _pointwise.erfc
    exp = _pointwise.exp
    exp2 = _pointwise.exp2
    expand_as = _shape.expand_as
    expm1 = _pointwise.expm1
    exponential_ = _random.exponential_
    fix = _pointwise.trunc
    flatten = _shape.flatten
    flip = _shape.flip
    fliplr = _shape.fliplr
    flipud = _shape.flipud
    float_power = _pointwise.float_power
    floor = _pointwise.floor
    floor_divide = _pointwise.floor_divide
    fmax = _pointwise.fmax
    fmin = _pointwise.fmin
    fmod = _pointwise.fmod
    frac = _pointwise.frac
    gather = _index.gather
    ge = _pointwise.ge
    ger = _linear.outer
    greater = _pointwise.gt
    greater_equal = _pointwise.ge
    gt = _pointwise.gt
    heaviside = _pointwise.heaviside
    histc = _index.histc
    hsplit = _join.hsplit
    hypot = _pointwise.hypot
    index_add = _index.index_add
    index_copy = _index.index_copy
    index_fill = _index.index_fill
    index_select = _index.index_select
    inner = _linear.inner
    is_nonzero = _pointwise.is_nonzero
    isclose = _pointwise.isclose
    isfinite = _pointwise.isfinite
    isinf = _pointwise.isinf
    isnan = _pointwise.isnan
    isneginf = _pointwise.isneginf
    isposinf = _pointwise.isposinf
    isreal = _pointwise.isreal
    kron = _linear.kron
    kthvalue = _reduce.kthvalue
    ldexp = _pointwise.ldexp
    le = _pointwise.le
    lerp = _pointwise.lerp
    less = _pointwise.lt
    less_equal = _pointwise.le
    lgamma = _pointwise.lgamma
    log = _pointwise.log
    log10 = _pointwise.log10
    log1p = _pointwise.log1p
    log2 = _pointwise.log2
    log_normal_ = _random.log_normal_
    log_softmax = _reduce.log_softmax
    logaddexp = _pointwise.logaddexp
    logaddexp2 = _pointwise.logaddexp2
    logcumsumexp = _reduce.logcumsumexp
    logical_and = _pointwise.logical_and
    logical_not = _pointwise.logical_not
    logical_or = _pointwise.logical_or
    logical_xor = _pointwise.logical_xor
    logit = _pointwise.logit
    logsumexp = _reduce.logsumexp
    lt = _pointwise.lt
    masked_fill = _index.masked_fill
    masked_select = _index.masked_select
    matmul = _linear.matmul
    matrix_power = _linear.matrix_power
    max = _reduce.max
    maximum = _pointwise.maximum
    mean = _reduce.mean
    median = _reduce.median
    min = _reduce.min
    minimum = _pointwise.minimum
    mm = _linear.mm
    mode = _reduce.mode
    moveaxis = _shape.movedim
    movedim = _shape.movedim
    msort = _index.msort
    mul = _pointwise.mul
    multinomial = _random.multinomial
    multiply = _pointwise.mul
    mv = _linear.mv
    nan_to_num = _pointwise.nan_to_num
    nanmean = _reduce.nanmean
    nansum = _reduce.nansum
    narrow = _shape.narrow
    ne = _pointwise.ne
    neg = _pointwise.neg
    negative = _pointwise.neg
    new_empty = _random.new_empty
    new_full = _random.new_full
    new_ones = _random.new_ones
    new_tensor = _random.new_tensor
    new_zeros = _random.new_zeros
    nonzero = _index.nonzero
    norm = _reduce.norm
    normal_ = _random.normal_
    not_equal = _pointwise.ne
    outer = _linear.outer
    permute = _shape.permute
    positive = _pointwise.positive
    pow = _pointwise.pow
    prod = _reduce.prod
    quantile = _reduce.quantile
    rad2deg = _pointwise.rad2deg
    random_ = _random.random_
    ravel = _shape.ravel
    reciprocal = _pointwise.reciprocal
    relu = _pointwise.relu
    remainder = _pointwise.remainder
    repeat = _shape.repeat
    repeat_interleave = _shape.repeat_interleave
    reshape = _shape.reshape
    reshape_as = _shape.reshape_as
    roll = _shape.roll
    rot90 = _shape.rot90
    round = _pointwise.round
    rsqrt = _pointwise.rsqrt
    scatter = _index.scatter
    scatter_add = _index.scatter_add
    scatter_reduce = _index.scatter_reduce
    select = _shape.select
    sgn = _pointwise.sign
    sigmoid = _pointwise.sigmoid
    sign = _pointwise.sign
    signbit = _pointwise.signbit
    sin = _pointwise.sin
    sinc = _pointwise.sinc
    sinh = _pointwise.sinh
    softmax = _reduce.softmax
    sort = _index.sort
    split = _join.split
    split_with_sizes = _join.split_with_sizes
    sqrt = _pointwise.sqrt
    square = _pointwise.square
    squeeze = _shape.squeeze
    std = _reduce.std
    sub = _pointwise.sub
    subtract = _pointwise.sub
    sum = _reduce.sum
    swapaxes = _shape.transpose
    swapdims = _shape.transpose
    t = _shape.t
    take = _index.take
    take_along_dim = _index.take_along_dim
    tan = _pointwise.tan
    tanh = _pointwise.tanh
    tensor_split = _join.tensor_split
    tile = _shape.tile
    topk = _index.topk
    trace = _reduce.trace
    transpose = _shape.transpose
    tril = _shape.tril
    triu = _shape.triu
    true_divide = _pointwise.div
    trunc = _pointwise.trunc
    unbind = _shape.unbind
    unflatten = _shape.unflatten
    unfold = _shape.unfold
    uniform_ = _random.uniform_
    unique = _index.unique
    unique_consecutive = _index.unique_consecutive
    unsqueeze = _shape.unsqueeze
    var = _reduce.var
    vdot = _linear.dot
    view_as = _shape.view_as
    vsplit = _join.vsplit
    xlogy = _pointwise.xlogy
    index_put = _mutate.index_put
    index_put_ = _mutate.index_put_
    fill_diagonal_ = _mutate.fill_diagonal_
    detach_ = _mutate.detach_
    int = _attributes.int_
    bool = _attributes.bool_of
    bfloat16 = _attributes.bfloat16_of
    half = _attributes.half_of
    float = _attributes.float_of
    long = _attributes.long_of
    type = _attributes.type_
    type_as = _attributes.type_as
    to = _attributes.to
    clone = _attributes.clone
    stride = _attributes.stride
    is_floating_point = _attributes.is_floating_point
    is_signed = _attributes.is_signed
    is_same_size = _attributes.is_same_size
    backward = _attributes.backward
    register_hook = _attributes.register_hook
    get_device = _attributes.get_device
    pin_memory = _attributes.pin_memory
    sum_to_size = _attributes.sum_to_size
    __format__ = _attributes.format_

    # These write to the tensor.
    abs_: ClassVar[Callable[..., Any]]
    absolute_: ClassVar[Callable[..., Any]]
    acos_: ClassVar[Callable[..., Any]]
    acosh_: ClassVar[Callable[..., Any]]
    add_: ClassVar[Callable[..., Any]]
    addbmm_: ClassVar[Callable[..., Any]]
    addcdiv_: ClassVar[Callable[..., Any]]
    addcmul_: ClassVar[Callable[..., Any]]
    addmm_: ClassVar[Callable[..., Any]]
    addmv_: ClassVar[Callable[..., Any]]
    addr_: ClassVar[Callable[..., Any]]
    arccos_: ClassVar[Callable[..., Any]]
    arccosh_: ClassVar[Callable[..., Any]]
    arcsin_: ClassVar[Callable[..., Any]]
    arcsinh_: ClassVar[Callable[..., Any]]
    arctan2_: ClassVar[Callable[..., Any]]
    arctan_: ClassVar[Callable[..., Any]]
    arctanh_: ClassVar[Callable[..., Any]]
    asin_: ClassVar[Callable[..., Any]]
    asinh_: ClassVar[Callable[..., Any]]
    atan2_: ClassVar[Callable[..., Any]]
    atan_: ClassVar[Callable[..., Any]]
    atanh_: ClassVar[Callable[..., Any]]
    baddbmm_: ClassVar[Callable[..., Any]]
    bitwise_and_: ClassVar[Callable[..., Any]]
    bitwise_left_shift_: ClassVar[Callable[..., Any]]
    bitwise_not_: ClassVar[Callable[..., Any]]
    bitwise_or_: ClassVar[Callable[..., Any]]
    bitwise_right_shift_: ClassVar[Callable[..., Any]]
    bitwise_xor_: ClassVar[Callable[..., Any]]
    ceil_: ClassVar[Callable[..., Any]]
    clamp_: ClassVar[Callable[..., Any]]
    clamp_max_: ClassVar[Callable[..., Any]]
    clamp_min_: ClassVar[Callable[..., Any]]
    clip_: ClassVar[Callable[..., Any]]
    copysign_: ClassVar[Callable[..., Any]]
    cos_: ClassVar[Callable[..., Any]]
    cosh_: ClassVar[Callable[..., Any]]
    cumprod_: ClassVar[Callable[..., Any]]
    cumsum_: ClassVar[Callable[..., Any]]
    deg2rad_: ClassVar[Callable[..., Any]]
    div_: ClassVar[Callable[..., Any]]
    divide_: ClassVar[Callable[..., Any]]
    eq_: ClassVar[Callable[..., Any]]
    erf_: ClassVar[Callable[..., Any]]
    erfc_: ClassVar[Callable[..., Any]]
    exp2_: ClassVar[Callable[..., Any]]
    exp_: ClassVar[Callable[..., Any]]
    expm1_: ClassVar[Callable[..., Any]]
    fix_: ClassVar[Callable[..., Any]]
    floor_: ClassVar[Callable[..., Any]]
    floor_divide_: ClassVar[Callable[..., Any]]
    fmod_: ClassVar[Callable[..., Any]]
    frac_: ClassVar[Callable[..., Any]]
    ge_: ClassVar[Callable[..., Any]]
    greater_: ClassVar[Callable[..., Any]]
    greater_equal_: ClassVar[Callable[..., Any]]
    gt_: ClassVar[Callable[..., Any]]
    heaviside_: ClassVar[Callable[..., Any]]
    hypot_: ClassVar[Callable[..., Any]]
    index_add_: ClassVar[Callable[..., Any]]
    index_copy_: ClassVar[Callable[..., Any]]
    index_fill_: ClassVar[Callable[..., Any]]
    ldexp_: ClassVar[Callable[..., Any]]
    le_: ClassVar[Callable[..., Any]]
    lerp_: ClassVar[Callable[..., Any]]
    less_: ClassVar[Callable[..., Any]]
    less_equal_: ClassVar[Callable[..., Any]]
    lgamma_: ClassVar[Callable[..., Any]]
    log10_: ClassVar[Callable[..., Any]]
    log1p_: ClassVar[Callable[..., Any]]
    log2_: ClassVar[Callable[..., Any]]
    log_: ClassVar[Callable[..., Any]]
    logical_and_: ClassVar[Callable[..., Any]]
    logical_not_: ClassVar[Callable[..., Any]]
    logical_or_: ClassVar[Callable[..., Any]]
    logical_xor_: ClassVar[Callable[..., Any]]
    logit_: ClassVar[Callable[..., Any]]
    lt_: ClassVar[Callable[..., Any]]
    masked_fill_: ClassVar[Callable[..., Any]]
    mul_: ClassVar[Callable[..., Any]]
    multiply_: ClassVar[Callable[..., Any]]
    nan_to_num_: ClassVar[Callable[..., Any]]
    ne_: ClassVar[Callable[..., Any]]
    neg_: ClassVar[Callable[..., Any]]
    negative_: ClassVar[Callable[..., Any]]
    not_equal_: ClassVar[Callable[..., Any]]
    pow_: ClassVar[Callable[..., Any]]
    rad2deg_: ClassVar[Callable[..., Any]]
    reciprocal_: ClassVar[Callable[..., Any]]
    relu_: ClassVar[Callable[..., Any]]
    remainder_: ClassVar[Callable[..., Any]]
    round_: ClassVar[Callable[..., Any]]
    rsqrt_: ClassVar[Callable[..., Any]]
    scatter_: ClassVar[Callable[..., Any]]
    scatter_add_: ClassVar[Callable[..., Any]]
    scatter_reduce_: ClassVar[Callable[..., Any]]
    sgn_: ClassVar[Callable[..., Any]]
    sigmoid_: ClassVar[Callable[..., Any]]
    sign_: ClassVar[Callable[..., Any]]
    sin_: ClassVar[Callable[..., Any]]
    sinc_: ClassVar[Callable[..., Any]]
    sinh_: ClassVar[Callable[..., Any]]
    sqrt_: ClassVar[Callable[..., Any]]
    square_: ClassVar[Callable[..., Any]]
    squeeze_: ClassVar[Callable[..., Any]]
    sub_: ClassVar[Callable[..., Any]]
    subtract_: ClassVar[Callable[..., Any]]
    swapaxes_: ClassVar[Callable[..., Any]]
    swapdims_: ClassVar[Callable[..., Any]]
    t_: ClassVar[Callable[..., Any]]
    tan_: ClassVar[Callable[..., Any]]
    tanh_: ClassVar[Callable[..., Any]]
    transpose_: ClassVar[Callable[..., Any]]
    tril_: ClassVar[Callable[..., Any]]
    triu_: ClassVar[Callable[..., Any]]
    true_divide_: ClassVar[Callable[..., Any]]
    trunc_: ClassVar[Callable[..., Any]]
    unsqueeze_: ClassVar[Callable[..., Any]]
    xlogy_: ClassVar[Callable[..., Any]]


_restart: Callable[..., Any] = Generator.manual_seed


def manual_seed(self: Generator, seed: int) -> Generator:
    """Restarts the stream with ``seed``, and returns it."""
    _restart(self, seed)
    return self


def attach() -> None:
    """Adds the methods and properties to the class of tensors."""
    Generator.manual_seed = manual_seed  # type: ignore[method-assign, unused-ignore]
    Generator.initial_seed = lambda self: self.seed  # type: ignore[method-assign]
    own = {name: value for name, value in vars(TorchMethods).items() if callable(value) and (not name.startswith("__") or name == "__format__")}
    for name, value in {**own, **_mutate.functions()}.items():
        setattr(Tensor, name, value)
    for name, instead in _attributes.REFUSED.items():
        setattr(Tensor, name, _attributes.refused(name, instead))
    properties = {
        "size": _attributes.size, "mH": lambda self: self.mT, "H": lambda self: _shape.t(self), "nbytes": lambda self: self.numel() * self.itemsize,
        "is_cuda": lambda self: False, "is_sparse": lambda self: False, "is_quantized": lambda self: False, "is_cpu": lambda self: True, "grad_fn": _attributes.grad_fn, "real": lambda self: self,
    }  # fmt: skip
    for name, value in properties.items():
        setattr(Tensor, name, property(value))
    Tensor.data = property(_attributes.data, _attributes.set_data)  # type: ignore[assignment, method-assign]
    plain = {
        "ndimension": lambda self: self.ndim, "nelement": lambda self: self.numel(), "element_size": lambda self: self.itemsize,
        "is_complex": lambda self: False, "is_pinned": lambda self: False, "is_shared": lambda self: False, "is_inference": lambda self: False,
        "resolve_conj": lambda self: self, "resolve_neg": lambda self: self, "conj": lambda self: self, "to_dense": lambda self: self, "numel": lambda self: int(self.size),
    }  # fmt: skip
    for name, value in plain.items():
        setattr(Tensor, name, value)


__all__ = ["TorchMethods", "attach"]
