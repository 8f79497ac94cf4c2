//! Conversion of a row of blocks to planes: the destination of each byte. A format's file lists the pieces of a row.

/// A piece of a row that moves between the file's bytes and the planes, with its start in both.
pub enum Piece {
    /// Unchanged bytes, and their number.
    Same(usize, usize, usize),
    /// 32 bytes, whose low nibbles are a group of 32 and whose high nibbles are another, and the destination of the codes of both.
    Nibbles(usize, [usize; 2]),
    /// A word with the fifth bit of element i at bit i.
    Word(usize, usize),
    /// 32 bytes with the fifth bits of 8 groups: byte i has those of the groups' elements i.
    Fifth(usize, usize),
    /// 32 bytes with the fifth and sixth bits of 4 groups.
    Sixth(usize, usize),
}

/// Bytes of a block, elements of a row → every piece of the row.
pub type Pieces = fn(usize, usize, &mut dyn FnMut(Piece));

/// Lists the pieces of blocks of 32 in `bytes`, which start with `scales` bytes of scales, with or without fifth bits.
pub fn blocks_of_32(bytes: usize, scales: usize, fifth: bool, k: usize, each: &mut dyn FnMut(Piece)) {
    let further = k / 2 + if fifth { k / 8 } else { 0 };
    for u in 0..k / 32 {
        let block = u * bytes;
        each(Piece::Same(block, further + scales * u, scales));
        each(Piece::Same(block + bytes - 16, 16 * u, 16));
        if fifth {
            each(Piece::Word(block + scales, k / 2 + 4 * u));
        }
    }
}

/// Lists the pieces of blocks of 256 in `bytes` with a head of 16 bytes, nibbles from `codes` on, and optional fifth bits from `fifth` on.
pub fn super_blocks(bytes: usize, codes: usize, fifth: Option<usize>, k: usize, each: &mut dyn FnMut(Piece)) {
    let heads = if fifth.is_some() { k / 2 + k / 8 } else { k / 2 };
    for b in 0..k / 256 {
        let block = b * bytes;
        each(Piece::Same(block, heads + 16 * b, 16));
        for j in 0..4 {
            let to = 128 * b + 32 * j;
            each(Piece::Nibbles(block + codes + 32 * j, [to, to + 16]));
        }
        if let Some(fifth) = fifth {
            each(Piece::Fifth(block + fifth, k / 2 + 32 * b));
        }
    }
}
