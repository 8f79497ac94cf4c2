#!/usr/bin/env python3
"""Writes crates/tensor/src/ops/include/normal.cl: the normal distribution's inverse in pieces. Needs mpmath.

k is an odd 32-bit number, and p = k / 2^33 is the probability of a value beyond z. A piece is an eighth of an octave of k, given by
the number of leading zeros and the three bits after the first one. Within a piece, z is a cubic in t, the next 24 bits as a fraction.
The cubic passes through the four Chebyshev nodes of the piece.
"""
import pathlib
import struct
import mpmath as mp

mp.mp.dps = 40
OUT = pathlib.Path(__file__).parent.parent / "crates/tensor/src/ops/include/normal.cl"


def z(p):
    """Returns the value that a normal variable exceeds with probability p."""
    guess = mp.mpf(0) if p > 0.4 else mp.sqrt(-2 * mp.log(p))
    return mp.findroot(lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) - mp.log(p), guess)


def cubic(octave, eighth):
    """Returns the coefficients of t^0 to t^3."""
    low = mp.mpf(8 + eighth) * mp.mpf(2) ** (28 - octave - 33)
    width = mp.mpf(2) ** (28 - octave - 33)
    nodes = [(1 - mp.cos((2 * i + 1) * mp.pi / 8)) / 2 for i in range(4)]
    rows = mp.matrix([[t**j for j in range(4)] for t in nodes])
    return list(mp.lu_solve(rows, mp.matrix([z(low + width * t) for t in nodes])))


def bits(x):
    return struct.unpack("<I", struct.pack("<f", float(x)))[0]


def main():
    text = OUT.read_text()
    begin, end = text.index("{\n") + 2, text.index("};\n")
    lines = []
    for octave in range(32):
        for eighth in range(8):
            lines.append("  " + ", ".join(f"0x{bits(c):08x}" for c in cubic(octave, eighth)) + ",\n")
    OUT.write_text(text[:begin] + "".join(lines) + text[end:])


main()
