#!/usr/bin/env python3
"""Writes the points of ggml's IQ formats, and ggml's results for blocks:
crates/tensor/src/quant/grids.bin and crates/tensor/tests/goldens/quant.safetensors.

    python3 tools/golden_quant.py LIBGGML.so    # needs numpy, safetensors, gguf (pip) and ggml as a shared library

    <format>.raw   uint8 (blocks, bytes): random blocks; the first have scales of 0, -0, subnormal and largest values
    <format>.y     float32 (blocks, elements): their values dequantized by gguf, compared with ggml's own here
    x              float32 (6, 512): rows to quantize, of several distributions
    importance     float32 (512): column weights
    <format>.error float32 (2, 6): the mean squared error of ggml's quantizer for each row of x: unweighted, and weighted by importance
"""
import ctypes
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants
from safetensors.numpy import save_file

TENSOR = pathlib.Path(__file__).resolve().parent.parent / "crates/tensor"
GRIDS = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
READ = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "IQ2_XXS", "IQ2_XS",
        "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "BF16"]
# Formats that gguf does not support: number, elements and bytes per block.
OWN = {"Q8_K": (15, 256, 292), "Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}
WRITTEN = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "IQ4_NL", "IQ4_XS",
           "Q1_0", "Q2_0"]
# Bytes of a block that hold an f16.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64], "IQ4_NL": [0], "IQ4_XS": [0], "IQ1_M": [], "MXFP4": [], "NVFP4": [], "Q1_0": [0], "Q2_0": [0]}


def sizes(name):
    return OWN[name] if name in OWN else (int(T[name]), *GGML_QUANT_SIZES[T[name]])


def write_grids():
    packed = b""
    for name in GRIDS:
        kind = getattr(quants, name)
        kind.init_grid()
        index = np.searchsorted(kind.grid_map, kind.grid.reshape(-1)).astype(np.uint8)
        each = 4 if name.startswith("IQ1") or name.startswith("IQ2") else 2
        parts = index.reshape(-1, each)
        packed += sum(parts[:, i].astype(np.uint16) << (8 // each * i) for i in range(each)).astype(np.uint8).tobytes()
    (TENSOR / "src/quant/grids.bin").write_bytes(packed)


def blocks(name, rng, count):
    """Returns random bytes with scales that are finite numbers."""
    _, elements, size = sizes(name)
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    special = np.array([0.0, -0.0, 6e-8, -6.1e-5, 65504.0], np.float16)
    for at in HALVES.get(name, [0]):
        d = (rng.standard_normal(count) * 0.05).astype(np.float16)
        d[: min(count, len(special))] = rng.permutation(special)[:count]
        raw[:, at : at + 2] = d.view(np.uint8).reshape(count, 2)
    if name == "Q8_K":
        raw[:, :4] = rng.standard_normal(count).astype(np.float32).view(np.uint8).reshape(count, 4)
    if name == "IQ1_M":
        # The upper nibbles of four words form an f16, which must be finite.
        raw[:, 55] &= 0xBF
    if name == "MXFP4":
        raw[:3, 0] = [0, 1, 254][:count]
        raw[:, 0] = np.where(raw[:, 0] == 255, 127, raw[:, 0])
    if name == "BF16":
        raw[:, 1] &= 0xBF
    return raw


class Ggml:
    """Calls ggml's own functions."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | 1)
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]

    def dequantise(self, name, raw):
        _, elements, _ = sizes(name)
        out = np.empty((len(raw), elements), np.float32)
        raw = np.ascontiguousarray(raw)
        function = getattr(self.lib, "dequantize_row_" + name.lower().replace("_k", "_K"))
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function(raw.ctypes.data, out.ctypes.data, out.size)
        return out

    def quantise(self, name, x, importance):
        number, elements, size = sizes(name)
        x = np.ascontiguousarray(x, np.float32)
        raw = np.empty((x.size // elements, size), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        self.lib.ggml_quantize_chunk(number, x.ctypes.data, raw.ctypes.data, 0, x.shape[0], x.shape[1], weights)
        return raw


def rows(rng, n=512):
    heavy = rng.standard_t(3, n)
    return np.stack([rng.standard_normal(n), rng.laplace(size=n) * 0.02, heavy, rng.uniform(0.5, 1.5, n), np.sign(rng.standard_normal(n)) * 0.1,
                     rng.standard_normal(n) * np.exp(rng.standard_normal(n))]).astype(np.float32)


def main(library, seed=8, count=None, out=TENSOR / "tests/goldens/quant.safetensors"):
    rng, ggml = np.random.default_rng(seed), Ggml(library)
    tensors = {}
    for name in READ + list(OWN):
        _, elements, _ = sizes(name)
        raw = blocks(name, rng, count or max(2, 256 // elements if elements > 1 else 64))
        y = quants.dequantize(raw, T[name]) if name in READ else ggml.dequantise(name, raw)
        if name != "BF16":
            theirs = ggml.dequantise(name, raw)
            assert (theirs.view(np.uint32) == y.astype(np.float32).view(np.uint32)).all(), name
        tensors[f"{name}.raw"], tensors[f"{name}.y"] = raw, y.astype(np.float32)
    x = rows(rng) if count is None else np.concatenate([rows(rng, 2048) for _ in range(16)])
    importance = np.exp(rng.standard_normal(x.shape[1])).astype(np.float32)
    tensors["x"], tensors["importance"] = x, importance
    for name in WRITTEN:
        both = []
        for weights in (None, importance):
            y = ggml.dequantise(name, ggml.quantise(name, x, weights)).reshape(x.shape).astype(np.float64)
            both.append(((x - y) ** 2 * (1 if weights is None else weights)).mean(axis=1))
        tensors[f"{name}.error"] = np.array(both, np.float32)
    save_file(tensors, out)
    pathlib.Path(out).chmod(0o644)


if __name__ == "__main__":
    write_grids()
    main(sys.argv[1], *[kind(v) for kind, v in zip([int, int, str], sys.argv[2:])])
