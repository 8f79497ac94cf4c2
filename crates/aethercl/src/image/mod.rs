//! Images: texels of a format in device memory, and addressing by coordinates.

mod format;
mod sample;

pub use format::{Channel, ChannelOrder, Class, Format};
pub use sample::{Coordinates, MAX_TAPS, Sampler, Tap, Taps, taps};

use crate::types::ImageKind;

/// An image in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Address of its first texel.
    pub address: u64,
    /// Kind of image.
    pub kind: ImageKind,
    /// Storage format of texels.
    pub format: Format,
    /// Texels along x; then rows, or layers of an array of lines; then slices, or layers of an array of planes. 1 for a missing axis.
    pub extent: [u64; 3],
    /// Bytes from one texel to the next along each axis.
    pub strides: [u64; 3],
}

impl Image {
    /// Returns an image without gaps between rows and slices.
    pub fn packed(address: u64, kind: ImageKind, format: Format, extent: [u64; 3]) -> Self {
        let texel = format.bytes();
        let row = texel.saturating_mul(extent[0]);
        Self { address, kind, format, extent, strides: [texel, row, row.saturating_mul(extent[1])] }
    }

    /// Returns the bytes from the first texel to after the last one.
    pub fn bytes(&self) -> u64 {
        let last = |d: usize| (self.extent[d].max(1) - 1).saturating_mul(self.strides[d]);
        last(0).saturating_add(last(1)).saturating_add(last(2)).saturating_add(self.format.bytes())
    }

    /// Returns the bytes from the first texel to this one, which must be inside.
    pub fn offset(&self, at: [i64; 3]) -> u64 {
        (0..3).map(|d| (at[d].max(0) as u64).saturating_mul(self.strides[d])).fold(0, u64::saturating_add)
    }

    /// Returns true if this texel exists.
    pub fn holds(&self, at: [i64; 3]) -> bool {
        (0..3).all(|d| (0..self.extent[d] as i64).contains(&at[d]))
    }

    /// Returns the kernel argument in the bytes of a parameter: address, width, height, depth, layers, channel order and type.
    pub fn parameter(&self, address: u64) -> Vec<u8> {
        let [width, y, z] = self.extent.map(|n| n as u32);
        let (height, depth, layers) = match self.kind {
            ImageKind::LineArray => (1, 1, y),
            ImageKind::PlaneArray => (y, 1, z),
            _ => (y, z, 1),
        };
        let words = [width, height, depth, layers, self.format.order.code(), self.format.channel.code()];
        address.to_le_bytes().into_iter().chain(words.iter().flat_map(|w| w.to_le_bytes())).collect()
    }

    /// Returns `(3, 4) of an image of 16 x 8 texels`, for messages.
    pub fn place(&self, at: [i64; 3]) -> String {
        let n = self.kind.numbers();
        let join = |list: Vec<String>, by: &str| list.join(by);
        let at = join(at[..n].iter().map(i64::to_string).collect(), ", ");
        let size = join(self.extent[..n].iter().map(u64::to_string).collect(), " x ");
        format!("({at}), which has {size} texels")
    }
}
