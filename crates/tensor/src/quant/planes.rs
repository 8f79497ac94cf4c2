//! Planes: within a row, all codes first, then the upper bits of the codes, then scales, so that 32 lanes read adjacent words.
//!
//! A row has K elements, K a multiple of 256, in groups u of 32:
//!
//! | plane | formats | bytes per group | content |
//! |---|---|---:|---|
//! | codes | all but Q8_0 | 16 | byte i: the low four bits of elements i (low) and 16 + i (high) |
//! | | Q8_0 | 16, 16 | elements 0 to 15 of all groups, then elements 16 to 31 of all |
//! | fifth bits | Q5_0, Q5_1, Q5_K | 4 | bit w of byte j: element 4w + j; bit 4 + w: element 16 + 4w + j |
//! | fifth and sixth bits | Q6_K | 8 | bits 2w of byte j: element 4w + j; of byte 4 + j: element 16 + 4w + j |
//! | scales | Q4_0, Q5_0, Q8_0 | 2 | f16 |
//! | | Q4_1, Q5_1 | 4 | f16 scale and minimum |
//! | | Q6_K | 2, then 2 per 8 groups | bytes of both halves; the f16s follow those of all groups |
//! | | Q4_K, Q5_K | 16 per 8 groups | as in the file: two f16 and twelve bytes of six bits |
//!
//! Nothing is lost: the file's bytes can be restored ([`rows`]). Rows start at multiples of 16 bytes.

use super::format::Format;
use super::pieces::{Piece, Pieces};
use super::threads::shared_out;

impl Format {
    fn pieces(&self) -> Option<Pieces> {
        self.kernels.as_ref()?.planes
    }

    /// Returns whether kernels read rows with this number of elements in planes.
    pub(crate) fn has_planes(&self, columns: usize) -> bool {
        self.pieces().is_some() && columns > 0 && columns.is_multiple_of(256)
    }

    /// Returns the distance of rows in planes, in bytes.
    pub(crate) fn plane_row(&self, columns: usize) -> usize {
        (columns / self.block * self.bytes).next_multiple_of(16)
    }
}

/// Converts one row to planes, or back.
fn row(format: &Format, pieces: Pieces, k: usize, file: &mut [u8], planes: &mut [u8], forth: bool) {
    pieces(format.bytes, k, &mut |piece| match piece {
        Piece::Same(a, b, n) if forth => planes[b..b + n].copy_from_slice(&file[a..a + n]),
        Piece::Same(a, b, n) => file[a..a + n].copy_from_slice(&planes[b..b + n]),
        Piece::Nibbles(a, [low, high]) => {
            // Exchanges nibbles of two byte pairs; it is its own inverse.
            let both = |x: u8, y: u8| [x & 15 | y << 4, x >> 4 | y & 0xf0];
            for i in 0..16 {
                match forth {
                    true => [planes[low + i], planes[high + i]] = both(file[a + i], file[a + 16 + i]),
                    false => [file[a + i], file[a + 16 + i]] = both(planes[low + i], planes[high + i]),
                }
            }
        }
        Piece::Word(a, b) => {
            let [mut from, mut to] = [[0; 4]; 2];
            from.copy_from_slice(if forth { &file[a..a + 4] } else { &planes[b..b + 4] });
            let from = u32::from_le_bytes(from);
            let word = (0..32).fold(0, |word, i| {
                let (element, place) = (i, 8 * (i % 4) + i % 16 / 4 + 4 * (i / 16));
                let [this, that] = if forth { [element, place] } else { [place, element] };
                word | (from >> this & 1) << that
            });
            to.copy_from_slice(&word.to_le_bytes());
            if forth { &mut planes[b..b + 4] } else { &mut file[a..a + 4] }.copy_from_slice(&to);
        }
        // Transposes bit matrices; it is its own inverse.
        Piece::Fifth(a, b) => {
            for j in 0..4 {
                let places: [[usize; 8]; 2] =
                    [std::array::from_fn(|i| a + 4 * i + j), std::array::from_fn(|g| b + 4 * g + j)];
                transposed(file, planes, places, 1, forth);
            }
        }
        Piece::Sixth(a, b) => {
            for j in 0..8 {
                let (half, j) = (j / 4, j % 4);
                let of = |w: usize| a + 16 * half + 4 * w + j;
                let places: [[usize; 4]; 2] =
                    [std::array::from_fn(of), std::array::from_fn(|r| b + 8 * r + 4 * half + j)];
                transposed(file, planes, places, 2, forth);
            }
        }
    });
}

/// Transposes numbers of `bits` bits in bytes at N positions of the file and the planes: the n-th of byte m becomes the m-th of byte n.
fn transposed<const N: usize>(
    file: &mut [u8],
    planes: &mut [u8],
    [a, b]: [[usize; N]; 2],
    bits: usize,
    forth: bool,
) {
    let (from, to) = if forth { (a.map(|i| file[i]), b) } else { (b.map(|i| planes[i]), a) };
    for (n, to) in to.into_iter().enumerate() {
        let part = |(m, byte): (usize, u8)| (byte >> (bits * n) & ((1 << bits) - 1)) << (bits * m);
        let byte = from.into_iter().enumerate().map(part).fold(0, |all, part| all | part);
        if forth { planes[to] = byte } else { file[to] = byte }
    }
}

/// Converts rows of blocks to planes, on all cores. The format must have planes for this number of columns.
pub(super) fn packed(format: &Format, columns: usize, bytes: &[u8]) -> Vec<u8> {
    turned(format, columns, bytes, true)
}

/// Restores the rows of blocks of these planes.
pub(super) fn unpacked(format: &Format, columns: usize, planes: &[u8]) -> Vec<u8> {
    turned(format, columns, planes, false)
}

fn turned(format: &Format, columns: usize, bytes: &[u8], forth: bool) -> Vec<u8> {
    let sizes = [columns / format.block * format.bytes, format.plane_row(columns)];
    let [from, to] = if forth { sizes } else { [sizes[1], sizes[0]] };
    let Some(pieces) = format.pieces().filter(|_| from > 0) else { return bytes.to_vec() };
    let mut out = vec![0; bytes.len() / from * to];
    let parts = bytes.chunks_exact(from).zip(out.chunks_exact_mut(to));
    shared_out(bytes.len() / from, bytes.len(), parts, &|(given, made): (&[u8], &mut [u8])| {
        let mut given = given.to_vec();
        match forth {
            true => row(format, pieces, columns, &mut given, made, true),
            false => row(format, pieces, columns, made, &mut given, false),
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::FORMATS;

    #[test]
    fn bytes_come_back_from_planes() {
        let mut formats = 0;
        for format in FORMATS.into_iter().filter(|f| f.has_planes(256)) {
            for (rows, columns) in [(1, 256), (3, 512), (130, 2816)] {
                let bytes: Vec<u8> = (0..rows * columns / format.block * format.bytes)
                    .map(|i| (i * 131 + i / 251) as u8)
                    .collect();
                let planes = packed(format, columns, &bytes);
                assert_eq!(planes.len(), rows * format.plane_row(columns), "{format}");
                assert!(planes != bytes, "{format}");
                assert!(unpacked(format, columns, &planes) == bytes, "{format}, {rows} rows of {columns}");
            }
            formats += 1;
        }
        assert_eq!(formats, 8);
    }
}
