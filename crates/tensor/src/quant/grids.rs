//! The points of the IQ formats. llama.cpp's authors found them from the weights of models; they follow no rule. `grids.bin` has the index of each
//! coordinate among its table's values, the first in the lowest bits. An index has two bits for IQ1 and IQ2, and four bits for IQ3.
//! `tools/golden_quant.py` writes the file.

static FILE: &[u8; 9216] = include_bytes!("grids.bin");

/// Reads `N` points of `D` coordinates from byte `at` on; `bits` each, which index `values`.
const fn points<const N: usize, const D: usize>(at: usize, bits: usize, values: &[u8]) -> [[u8; D]; N] {
    let mut out = [[0; D]; N];
    let mut i = 0;
    while i < N * D {
        let byte = FILE[at + i * bits / 8];
        let index = byte >> (i * bits % 8) & ((1 << bits) - 1);
        out[i / D][i % D] = values[index as usize];
        i += 1;
    }
    out
}

/// 0, 1, 2 for -1, 0, 1: shared by IQ1_S and IQ1_M.
pub static IQ1_POINTS: [[u8; 8]; 2048] = points(0, 2, &[0, 1, 2]);
/// Points of IQ2_XXS.
pub static IQ2_XXS_POINTS: [[u8; 8]; 256] = points(4096, 2, &[8, 25, 43]);
/// Points of IQ2_XS.
pub static IQ2_XS_POINTS: [[u8; 8]; 512] = points(4608, 2, &[8, 25, 43]);
/// Points of IQ2_S.
pub static IQ2_S_POINTS: [[u8; 8]; 1024] = points(5632, 2, &[8, 25, 43]);
/// Points of IQ3_XXS.
pub static IQ3_XXS_POINTS: [[u8; 4]; 256] = points(7680, 4, &[4, 12, 20, 28, 36, 44, 52, 62]);
/// Points of IQ3_S.
pub static IQ3_S_POINTS: [[u8; 4]; 512] = points(8192, 4, &[1, 3, 5, 7, 9, 11, 13, 15]);
