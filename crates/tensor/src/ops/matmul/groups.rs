//! Rows that are sorted by the matrix each is multiplied by. Which are whose is known to the device alone.

use crate::Tensor;

/// Which rows are whose.
pub(in crate::ops) struct Groups {
    /// First row of each expert, and of those that are nobody's: u32 (E + 1).
    pub offsets: Tensor,
    /// Expert and first row of each tile: u32 (tiles, 2), `u32::MAX` where there are no more.
    pub tiles: Tensor,
    /// Number of experts E.
    pub experts: usize,
    /// All rows R, nobody's as well.
    pub rows: usize,
}

impl Groups {
    /// Rows that a tile has at most.
    pub const TILE_ROWS: usize = 64;

    /// Tiles that `rows` rows of `experts` experts and of nobody can make.
    pub fn tiles_of(rows: usize, experts: usize) -> usize {
        rows / Self::TILE_ROWS + (experts + 1).min(rows)
    }
}
