//! A batch of token ids on the host.

/// A target that is ignored: the bits of the i32 −100.
pub const IGNORED_TARGET: u32 = (-100i32).cast_unsigned();

/// Inputs and targets of one forward pass, row-major `(rows, context)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Token ids.
    pub x: Vec<u32>,
    /// Targets: the id after each id of `x`, or [`IGNORED_TARGET`].
    pub y: Vec<u32>,
    /// Number of windows (rows).
    pub rows: usize,
    /// Length of a window in tokens.
    pub context: usize,
    /// Targets of the whole step that are not ignored, in the rows of all ranks; records, if a loss compares answers. `None` if no target of the run
    /// is ignored.
    pub step_targets: Option<u64>,
    /// Position of each token in its record, if a row has several records.
    pub positions: Option<Vec<u32>>,
    /// Numbers of each record that a loss which compares answers reads; otherwise empty.
    pub values: Vec<f32>,
}
