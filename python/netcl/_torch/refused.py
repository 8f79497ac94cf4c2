"""Functions of PyTorch that netcl does not have, with what to write instead."""

from __future__ import annotations

from typing import Dict

_INT, _FLOAT = "write int32; integers have 32 bits", "write float32; it is the widest float"
_NUMPY = "compute it with NumPy on x.numpy(); netcl does not have a kernel for it"
_COMPLEX = "netcl does not have complex numbers; use numpy"
_SPARSE = "tensors are dense; write netcl.tensor"

REFUSED: Dict[str, str] = {
    **dict.fromkeys(("int64", "long", "int16", "short", "int8", "uint8", "uint16", "uint64", "LongTensor", "IntTensor", "ShortTensor", "ByteTensor", "CharTensor"), _INT),
    **dict.fromkeys(("float64", "double", "DoubleTensor"), _FLOAT),
    **dict.fromkeys(("complex64", "complex128", "cfloat", "cdouble", "complex", "polar", "view_as_complex", "view_as_real", "angle", "imag", "stft", "istft", "fft"), _COMPLEX),
    **dict.fromkeys(("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor", "sparse"), _SPARSE),
    **dict.fromkeys(
        "cholesky cholesky_inverse cholesky_solve det logdet slogdet inverse pinverse lu lu_solve lu_unpack lstsq qr geqrf orgqr ormqr svd svd_lowrank pca_lowrank eig lobpcg "
        "matrix_exp triangular_solve digamma polygamma igamma igammac mvlgamma i0 erfinv nextafter gcd lcm frexp cov corrcoef vander trapezoid trapz cumulative_trapezoid "
        "gradient histogram histogramdd renorm poisson binomial nanmedian nanquantile".split(),
        _NUMPY,
    ),
    "FloatTensor": "write netcl.tensor(data)",
    "HalfTensor": "write netcl.tensor(data, dtype='float16')",
    "BoolTensor": "write netcl.tensor(data, dtype='bool')",
    "range": "write arange(start, end + step, step)",
    "mode": "write unique(x, return_counts=True)",
    "float_power": "write pow(x.float(), exponent); float64 is not available",
    "as_strided": "write slices, x[a:b:step], and transpose",
    "set_default_dtype": "the default is float32; pass dtype= where tensors are created",
    "set_default_tensor_type": "write set_default_device; the default dtype is float32",
    "set_num_threads": "drivers choose the number of threads",
    "use_deterministic_algorithms": "results have the same bits in every run already",
    "masked_scatter": "write x[mask] = values",
    "put": "write x.reshape(-1)[index] = values",
    "resize_as_": "write x.reshape(...)",
    "quantize_per_tensor": "netcl.LLM loads quantized weights",
    "quantize_per_channel": "netcl.LLM loads quantized weights",
    "jit": "write netcl.compile(function), or netcl.OpGraph",
    "onnx": "write netcl.OpGraph to save a model",
    "from_file": "write netcl.load",
    "cond": "write a Python if on x.item(), or where",
    "while_loop": "write a Python loop",
    "hub": "write netcl.LLM(model)",
    "multiprocessing": "write multiprocessing of Python with the start method spawn",
}
"""Names and instructions."""

__all__ = ["REFUSED"]
