#!/usr/bin/env python3
"""Compares image kernels on AetherCL and on another device through one OpenCL loader: formats x kinds x samplers.

    OCL_ICD_FILENAMES=target/debug/libaethercl_icd.so:/usr/lib/…/libpocl.so python3 tools/image_differential.py [NAME OF THE OTHER PLATFORM]

Needs pyopencl and numpy. Coordinates avoid places where the last bit of a product decides which texel is read. Filtered values may differ by
2^-7 of the largest texel, because the standard does not define the precision of weights (devices have eight bits). Prints the differences and
a count. Ends with 1 if AetherCL differs from both the other device and the standard's formula in f64.
"""
import itertools
import sys

import numpy as np
import pyopencl as cl

FLOATS = ["SNORM_INT8", "SNORM_INT16", "UNORM_INT8", "UNORM_INT16", "HALF_FLOAT", "FLOAT"]
SIGNED = ["SIGNED_INT8", "SIGNED_INT16", "SIGNED_INT32"]
UNSIGNED = ["UNSIGNED_INT8", "UNSIGNED_INT16", "UNSIGNED_INT32"]
TYPES = {
    "SNORM_INT8": np.int8, "SNORM_INT16": np.int16, "UNORM_INT8": np.uint8, "UNORM_INT16": np.uint16,
    "HALF_FLOAT": np.float16, "FLOAT": np.float32, "SIGNED_INT8": np.int8, "SIGNED_INT16": np.int16,
    "SIGNED_INT32": np.int32, "UNSIGNED_INT8": np.uint8, "UNSIGNED_INT16": np.uint16, "UNSIGNED_INT32": np.uint32,
}
ORDERS = {"R": 1, "A": 1, "RG": 2, "RA": 2, "RGBA": 4, "BGRA": 4, "ARGB": 4, "INTENSITY": 1, "LUMINANCE": 1}
KINDS = {
    "image1d_t": ("IMAGE1D", (13,), ".x"), "image2d_t": ("IMAGE2D", (13, 9), ".xy"), "image3d_t": ("IMAGE3D", (6, 5, 4), ""),
    "image1d_array_t": ("IMAGE1D_ARRAY", (13, 3), ".xy"), "image2d_array_t": ("IMAGE2D_ARRAY", (6, 5, 3), ""),
}
CODES = {"R": 0x10B0, "A": 0x10B1, "RG": 0x10B2, "RA": 0x10B3, "RGBA": 0x10B5, "BGRA": 0x10B6, "ARGB": 0x10B7, "INTENSITY": 0x10B8, "LUMINANCE": 0x10B9}
MODES = {"CLAMP_TO_EDGE": 2, "CLAMP": 4, "REPEAT": 6, "MIRRORED_REPEAT": 8}
N = 256

TEXT = """
kernel void sample(read_only %(kind)s image, sampler_t how, global const float4 *at, global %(vec)s *out) {
  int i = get_global_id(0);
  out[i] = read_image%(s)s(image, how, at[i]%(swizzle)s);
}
"""
COPY = """
kernel void copy(read_only image2d_t from, write_only image2d_t to, float scale) {
  const sampler_t how = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  int2 at = (int2)(get_global_id(0), get_global_id(1));
  %(vec)s x = read_image%(s)s(from, how, at);
  write_image%(s)s(to, at, %(change)s);
}
"""


def values(channel):
    if channel in FLOATS:
        return "f", "float4", np.float32
    return ("i", "int4", np.int32) if channel in SIGNED else ("ui", "uint4", np.uint32)


def numbers(channel, raw):
    """Returns the texels' channels as numbers, by section 8.3 of OpenCL C."""
    top = {"SNORM_INT8": 127, "SNORM_INT16": 32767, "UNORM_INT8": 255, "UNORM_INT16": 65535}.get(channel, 1)
    return np.maximum(raw.astype(np.float64) / top, -1.0 if "NORM" in channel else -np.inf)


def colours(order, c):
    zero, one = np.zeros_like(c[..., 0]), np.ones_like(c[..., 0])
    pick = {
        "R": lambda: (c[..., 0], zero, zero, one), "A": lambda: (zero, zero, zero, c[..., 0]),
        "RG": lambda: (c[..., 0], c[..., 1], zero, one), "RA": lambda: (c[..., 0], zero, zero, c[..., 1]),
        "RGBA": lambda: tuple(c[..., i] for i in range(4)), "BGRA": lambda: (c[..., 2], c[..., 1], c[..., 0], c[..., 3]),
        "ARGB": lambda: (c[..., 1], c[..., 2], c[..., 3], c[..., 0]), "INTENSITY": lambda: (c[..., 0],) * 4,
        "LUMINANCE": lambda: (c[..., 0], c[..., 0], c[..., 0], one),
    }
    return np.stack(pick[order](), -1)


def formula(texels, order, layered, at, normalized, mode, linear):
    """Computes the standard's formulas in f64. Texels are [z, y, x, channel], as the kind requires."""
    axes = texels.ndim - 1 - layered
    sizes = texels.shape[:-1][::-1]
    out = np.zeros((len(at), 4))
    border = np.array([0, 0, 0, 1.0 if order in ("R", "RG", "LUMINANCE") else 0.0])
    for i, p in enumerate(at.astype(np.float64)):
        choices = []
        for d in range(axes):
            n = sizes[d]
            s = p[d]
            u = {"REPEAT": (s - np.floor(s)) * n, "MIRRORED_REPEAT": abs(s - 2 * np.rint(0.5 * s)) * n}.get(mode, s * n if normalized else s)

            def place(k, n=n):
                if mode == "CLAMP":
                    return k if 0 <= k < n else None
                return k % n if mode == "REPEAT" else min(max(k, 0), n - 1)

            low = int(np.floor(u - 0.5))
            a = u - 0.5 - low
            choices.append([(place(low), 1 - a), (place(low + 1), a)] if linear else [(place(int(np.floor(u))), 1.0)])
        layer = (int(min(max(np.rint(p[axes]), 0), sizes[axes] - 1)),) if layered else ()
        for chosen in itertools.product(*choices):
            where = tuple(k for k, _ in chosen)
            weight = np.prod([w for _, w in chosen])
            out[i] += weight * (border if None in where else texels[(where + layer)[::-1]])
    return out


def stored(channel, raw, scale):
    """Returns what the copying kernel writes to each channel."""
    if channel not in FLOATS:
        info = np.iinfo(TYPES[channel])
        # The sum of 32-bit integers wraps; smaller channels saturate.
        return np.clip(raw.astype(np.int64) + int(scale), info.min, info.max) if info.bits < 32 else raw + TYPES[channel](int(scale))
    top = {"SNORM_INT8": 127, "SNORM_INT16": 32767, "UNORM_INT8": 255, "UNORM_INT16": 65535}.get(channel)
    x = numbers(channel, raw).astype(np.float32) * np.float32(scale)
    if top is None:
        return x.astype(TYPES[channel])
    return np.clip(np.rint(x * np.float32(top)), -top - 1 if channel[0] == "S" else 0, top)


class Run:
    def __init__(self, device):
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.built = {}

    def program(self, text):
        if text not in self.built:
            self.built[text] = cl.Program(self.context, text).build()
        return self.built[text]

    def image(self, kind, order, channel, shape, host, flags=cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR):
        form = cl.ImageFormat(CODES[order], getattr(cl.channel_type, channel))
        d = cl.ImageDescriptor()
        d.image_type = getattr(cl.mem_object_type, kind)
        layered = kind.endswith("ARRAY")
        d.shape = (tuple(shape[:-1]) if layered else tuple(shape)) + (0,) * (3 - len(shape) + layered)
        # After the shape, which sets it too.
        d.array_size = shape[-1] if layered else 0
        d.pitches = (0, 0)
        d.buffer = None
        return cl.Image(self.context, flags, form, desc=d, hostbuf=host)

    def has(self, order, channel, kind):
        form = cl.ImageFormat(CODES[order], getattr(cl.channel_type, channel))
        kind = getattr(cl.mem_object_type, kind)
        return any(
            f.channel_order == form.channel_order and f.channel_data_type == form.channel_data_type
            for f in cl.get_supported_image_formats(self.context, cl.mem_flags.READ_WRITE, kind)
        )

    def sample(self, kind, order, channel, host, at, how):
        s, vec, scalar = values(channel)
        name, shape, swizzle = KINDS[kind]
        program = self.program(TEXT % {"kind": kind, "vec": vec, "s": s, "swizzle": swizzle})
        image = self.image(name, order, channel, shape, host)
        normalized, mode, linear = how
        sampler = cl.Sampler(
            self.context, normalized, getattr(cl.addressing_mode, mode), cl.filter_mode.LINEAR if linear else cl.filter_mode.NEAREST
        )
        a = cl.Buffer(self.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=at)
        out = np.zeros((N, 4), scalar)
        b = cl.Buffer(self.context, cl.mem_flags.WRITE_ONLY, out.nbytes)
        cl.Kernel(program, "sample")(self.queue, (N,), None, image, sampler, a, b)
        cl.enqueue_copy(self.queue, out, b)
        return out.astype(np.float64)

    def copy(self, order, channel, host, scale):
        s, vec, _ = values(channel)
        change = "x * scale" if s == "f" else f"x + ({vec})((int)scale)" if s == "i" else f"x + ({vec})((uint)scale)"
        program = self.program(COPY % {"s": s, "vec": vec, "change": change})
        shape = KINDS["image2d_t"][1]
        a = self.image("IMAGE2D", order, channel, shape, host)
        b = self.image("IMAGE2D", order, channel, shape, None, cl.mem_flags.WRITE_ONLY)
        cl.Kernel(program, "copy")(self.queue, shape, None, a, b, np.float32(scale))
        out = np.empty_like(host)
        cl.enqueue_copy(self.queue, out, b, origin=(0, 0), region=shape)
        return out


def texels(rng, order, channel, shape):
    kind = TYPES[channel]
    full = tuple(shape[::-1]) + (ORDERS[order],)
    if kind in (np.float16, np.float32):
        return rng.uniform(-10, 10, full).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, full, endpoint=True, dtype=np.int64).astype(kind)


def coordinates(rng, shape, axes, normalized):
    """Returns coordinates from one image width before the image to one after it, in steps whose products are not close to a texel's border."""
    at = np.zeros((N, 4), np.float32)
    for d, n in enumerate(shape):
        cells = rng.integers(-n, 2 * n, N) + rng.choice([0.13, 0.31, 0.69, 0.87], N)
        at[:, d] = cells / n if normalized and d < axes else cells
    return at


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else "Portable"
    named = {p.name: p.get_devices()[0] for p in cl.get_platforms()}
    own = Run(named["AetherCL"])
    other = next((Run(d) for n, d in named.items() if wanted.lower() in n.lower()), None)
    if other is None:
        print(f"no platform named {wanted}; platforms are {', '.join(named)}")
        return 2
    rng = np.random.default_rng(22)
    compared = differ = wrong = others = 0
    channels = FLOATS + SIGNED + UNSIGNED
    for kind, (name, shape, _) in KINDS.items():
        for order, channel in itertools.product(ORDERS, channels):
            if not own.has(order, channel, name):
                continue
            host = texels(rng, order, channel, shape)
            peer = other.has(order, channel, name)
            for normalized, mode, linear in itertools.product([False, True], MODES, [False, True]):
                if (mode in ("REPEAT", "MIRRORED_REPEAT") and not normalized) or (linear and channel not in FLOATS):
                    continue
                how = (normalized, mode, linear)
                layered = name.endswith("ARRAY")
                at = coordinates(rng, shape, len(shape) - layered, normalized)
                a = own.sample(kind, order, channel, host, at, how)
                c = formula(colours(order, numbers(channel, host)), order, layered, at, normalized, mode, linear)
                scale = max(1.0, np.abs(c).max())
                exact = np.abs(a - c).max() <= 2e-5 * scale
                wrong += not exact
                if not exact:
                    i = np.abs(a - c).max(-1).argmax()
                    print(f"formula: {kind} {order} {channel} {how} at {at[i]}: {a[i]}, expected {c[i]}")
                if peer:
                    b = other.sample(kind, order, channel, host, at, how)
                    compared += 1
                    bound = (2.0**-7 if linear else 2e-5) * scale
                    if np.abs(a - b).max() > bound:
                        differ += 1
                        i = np.abs(a - b).max(-1).argmax()
                        theirs = np.abs(b - c).max() > bound
                        others += theirs
                        print(f"peer{' (it misses the formula)' if theirs else ''}: {kind} {order} {channel} {how} at {at[i]}: {a[i]}, there {b[i]}")
    for order, channel in itertools.product(ORDERS, channels):
        if not own.has(order, channel, "IMAGE2D") or not other.has(order, channel, "IMAGE2D"):
            continue
        host = texels(rng, order, channel, KINDS["image2d_t"][1])
        a, b = own.copy(order, channel, host, 1.37), other.copy(order, channel, host, 1.37)
        c = stored(channel, host, 1.37)
        compared += 1
        # One step of a normalized channel, because the standard allows different rounding.
        bound = 1 if "NORM" in channel else np.abs(c).max() * 2e-3 if channel == "HALF_FLOAT" else 0
        far = lambda x, y: np.abs(x.astype(np.float64) - y.astype(np.float64)).max() > bound
        if far(a, c):
            wrong += 1
            print(f"formula: writes of {order} {channel}")
        if far(a, b):
            differ += 1
            others += far(b, c)
            print(f"peer{' (it misses the formula)' if far(b, c) else ''}: writes of {order} {channel}")
    print(f"{compared} comparisons with the other device, {differ} differ ({others} where the other misses the formula); {wrong} miss the formula")
    return 1 if wrong or differ > others else 0


if __name__ == "__main__":
    sys.exit(main())
