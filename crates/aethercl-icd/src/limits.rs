//! Sizes of images, the least that OpenCL 2.0 asks for or more.

/// Texels along an axis of a plane, or of a line that is no buffer's.
pub const MAX_PLANE: usize = 16384;
/// Texels along an axis of a volume.
pub const MAX_VOLUME: usize = 2048;
/// Layers of an array.
pub const MAX_LAYERS: usize = 2048;
/// Texels of a buffer's image.
pub const MAX_BUFFER: usize = 1 << 27;
/// Texels that the rows of a buffer's plane, and its first byte, are multiples of.
pub const PITCH_ALIGNMENT: usize = 64;
