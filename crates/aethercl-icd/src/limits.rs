//! Limits of images; each is at least the minimum that OpenCL 2.0 requires.

/// Maximum width and height of a 2D image, and width of a 1D image that is not created from a buffer.
pub const MAX_PLANE: usize = 16384;
/// Maximum width, height and depth of a 3D image.
pub const MAX_VOLUME: usize = 2048;
/// Maximum number of layers of an image array.
pub const MAX_LAYERS: usize = 2048;
/// Maximum width of a 1D image created from a buffer.
pub const MAX_BUFFER: usize = 1 << 27;
/// Alignment, in texels, of row pitch and base address of a 2D image created from a buffer.
pub const PITCH_ALIGNMENT: usize = 64;
