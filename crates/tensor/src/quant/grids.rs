//! The points from which IQ formats choose. llama.cpp's authors derived them from the weights of models; they do not follow a rule.
//! `grids.bin` has the index of each coordinate in its table of values. An index has two bits in IQ1 and IQ2, and four bits in IQ3. The first
//! coordinate is in the lowest bits. `tools/golden_quant.py` writes it.

static FILE: &[u8; 9216] = include_bytes!("grids.bin");

/// Decodes `N` points of `D` coordinates from byte `at` on. Each coordinate is an index of `bits` bits into `values`.
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

/// Points of IQ1_S and IQ1_M, with 0, 1, 2 for -1, 0, 1.
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
