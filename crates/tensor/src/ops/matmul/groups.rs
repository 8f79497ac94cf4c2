//! Rows sorted by the matrix (expert) that multiplies them. Only the device knows the assignment.

use crate::Tensor;

/// Assignment of rows to experts.
pub(in crate::ops) struct Groups {
    /// First row of each expert, then the first row without an expert: u32 (E + 1).
    pub offsets: Tensor,
    /// Expert and first row of each tile: u32 (tiles, 2). Unused entries are `u32::MAX`.
    pub tiles: Tensor,
    /// Number of experts E.
    pub experts: usize,
    /// Number of rows R, including rows without an expert.
    pub rows: usize,
}

impl Groups {
    /// Maximum number of rows in a tile.
    pub const TILE_ROWS: usize = 64;

    /// Returns the maximum number of tiles for `rows` rows, `experts` experts and the rows without an expert.
    pub fn tiles_of(rows: usize, experts: usize) -> usize {
        rows / Self::TILE_ROWS + (experts + 1).min(rows)
    }
}
