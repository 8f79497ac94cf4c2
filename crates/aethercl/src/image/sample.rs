//! Samplers: convert a coordinate to the texels that are read and their weights. The formulas, in `f32`, are those of section 8.2 of the OpenCL C
//! specification.

use super::Image;

/// Sampling mode of an image read: the bits of `CLK_NORMALIZED_COORDS_…`, `CLK_ADDRESS_…` and `CLK_FILTER_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Sampler(pub u32);

/// Handling of coordinates outside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressing {
    None,
    Edge,
    Border,
    Repeat,
    Mirror,
}

impl Sampler {
    /// `CLK_NORMALIZED_COORDS_TRUE`.
    pub const NORMALIZED: u32 = 1;
    /// `CLK_ADDRESS_CLAMP_TO_EDGE`.
    pub const EDGE: u32 = 2;
    /// `CLK_ADDRESS_CLAMP`.
    pub const BORDER: u32 = 4;
    /// `CLK_ADDRESS_REPEAT`.
    pub const REPEAT: u32 = 6;
    /// `CLK_ADDRESS_MIRRORED_REPEAT`.
    pub const MIRROR: u32 = 8;
    /// `CLK_FILTER_NEAREST`.
    pub const NEAREST: u32 = 0x10;
    /// `CLK_FILTER_LINEAR`.
    pub const LINEAR: u32 = 0x20;

    fn is_normalized(self) -> bool {
        self.0 & Self::NORMALIZED != 0
    }

    fn is_linear(self) -> bool {
        self.0 & 0x30 == Self::LINEAR
    }

    fn addressing(self) -> Addressing {
        match self.0 & 0xe {
            Self::EDGE => Addressing::Edge,
            Self::BORDER => Addressing::Border,
            // With unnormalized coordinates, these two modes do not repeat.
            Self::REPEAT if self.is_normalized() => Addressing::Repeat,
            Self::MIRROR if self.is_normalized() => Addressing::Mirror,
            _ => Addressing::None,
        }
    }
}

/// A coordinate from a kernel; components that the kind of image lacks are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coordinates {
    /// Texels.
    Int([i32; 3]),
    /// Texels, or fractions of the image.
    Float([f32; 3]),
}

/// Maximum number of texels of a filtered read.
pub const MAX_TAPS: usize = 8;

/// One texel of a read.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Tap {
    /// Its coordinate; outside the image for a border read.
    pub at: [i64; 3],
    /// Its weight; 1 for an unfiltered read.
    pub weight: f32,
}

/// The texels of a read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taps {
    list: [Tap; MAX_TAPS],
    count: usize,
    /// Whether the standard leaves reads outside the image undefined. If false, they return the border color.
    pub undefined_outside: bool,
}

impl Taps {
    /// Returns the taps.
    pub fn list(&self) -> &[Tap] {
        &self.list[..self.count]
    }
}

/// Two texels of an axis and the weight of the second one.
#[derive(Clone, Copy)]
struct Pair {
    at: [i64; 2],
    share: f32,
}

fn whole(x: f32) -> i64 {
    // Limited to values beyond the size of any image; a NaN becomes 0.
    (x.floor() as i64).clamp(-(1 << 40), 1 << 40)
}

/// Maps a coordinate outside the image.
fn placed(i: i64, size: i64, how: Addressing) -> i64 {
    match how {
        Addressing::Edge => i.clamp(0, size - 1),
        Addressing::Border => i.clamp(-1, size),
        _ => i,
    }
}

/// Returns the coordinate in a mirrored image, in texels.
fn mirrored(s: f32, size: f32) -> f32 {
    let even = 2.0 * (0.5 * s).round_ties_even();
    (s - even).abs() * size
}

fn nearest(sampler: Sampler, s: f32, size: u64) -> i64 {
    let (how, n, w) = (sampler.addressing(), size as i64, size as f32);
    match how {
        Addressing::Repeat => {
            let i = whole((s - s.floor()) * w);
            if i > n - 1 { i - n } else { i }
        }
        Addressing::Mirror => whole(mirrored(s, w)).min(n - 1),
        _ => placed(whole(if sampler.is_normalized() { s * w } else { s }), n, how),
    }
}

fn linear(sampler: Sampler, s: f32, size: u64) -> Pair {
    let (how, n, w) = (sampler.addressing(), size as i64, size as f32);
    let u = match how {
        Addressing::Repeat => (s - s.floor()) * w,
        Addressing::Mirror => mirrored(s, w),
        _ if sampler.is_normalized() => s * w,
        _ => s,
    };
    let first = whole(u - 0.5);
    let share = (u - 0.5) - (u - 0.5).floor();
    let at = match how {
        Addressing::Repeat => [
            if first < 0 { n + first } else { first },
            if first + 1 > n - 1 { first + 1 - n } else { first + 1 },
        ],
        Addressing::Mirror => [first.max(0), (first + 1).min(n - 1)],
        _ => [placed(first, n, how), placed(first + 1, n, how)],
    };
    Pair { at, share }
}

/// Returns the texels that an image read touches. Without a sampler, coordinates are texels and must be inside.
pub fn taps(image: &Image, sampler: Option<Sampler>, coordinates: Coordinates) -> Taps {
    let how = sampler.unwrap_or_default();
    let undefined_outside = how.addressing() == Addressing::None;
    let mut taps = Taps { list: [Tap::default(); MAX_TAPS], count: 1, undefined_outside };
    let axes = image.kind.axes();
    let filtered = how.is_linear() && image.format.channel.class() == super::Class::Float;
    let coordinates = match coordinates {
        // Exact, even for values that `f32` cannot represent.
        Coordinates::Int(at) if !(how.is_normalized() || filtered) => {
            let placed = |d: usize| match sampler {
                _ if d >= image.kind.numbers() => 0,
                Some(_) if d == axes => i64::from(at[d]).clamp(0, image.extent[d] as i64 - 1),
                _ => placed(at[d].into(), image.extent[d] as i64, how.addressing()),
            };
            taps.list[0] = Tap { at: [0, 1, 2].map(placed), weight: 1.0 };
            return taps;
        }
        Coordinates::Int(at) => at.map(|x| x as f32),
        Coordinates::Float(at) => at,
    };
    let mut layer = 0;
    if image.kind.has_layers() {
        layer = (coordinates[axes].round_ties_even() as i64).clamp(0, image.extent[axes] as i64 - 1);
    }
    let place = |pick: &dyn Fn(usize) -> i64| {
        [0, 1, 2].map(|d| match d {
            d if d < axes => pick(d),
            d if d == axes => layer,
            _ => 0,
        })
    };
    if !filtered {
        taps.list[0] = Tap { at: place(&|d| nearest(how, coordinates[d], image.extent[d])), weight: 1.0 };
        return taps;
    }
    let pairs = [0, 1, 2].map(|d| linear(how, coordinates[d], image.extent[d]));
    taps.count = 1 << axes;
    for (i, tap) in taps.list[..1 << axes].iter_mut().enumerate() {
        let second = |d: usize| i >> d & 1;
        let share = |d: usize| if second(d) == 1 { pairs[d].share } else { 1.0 - pairs[d].share };
        *tap = Tap { at: place(&|d| pairs[d].at[second(d)]), weight: (0..axes).map(share).product() };
    }
    taps
}

#[cfg(test)]
mod tests {
    use super::super::{Channel, ChannelOrder, Format};
    use super::*;
    use crate::types::ImageKind;

    fn line(width: u64) -> Image {
        let format = Format { order: ChannelOrder::R, channel: Channel::Float };
        Image::packed(0, ImageKind::Line, format, [width, 1, 1])
    }

    fn places(bits: u32, x: f32) -> Vec<i64> {
        let taps = taps(&line(4), Some(Sampler(bits)), Coordinates::Float([x, 0.0, 0.0]));
        taps.list().iter().map(|t| t.at[0]).collect()
    }

    #[test]
    fn addressing_modes_place_what_is_outside() {
        use super::Sampler as S;
        assert_eq!(places(S::EDGE | S::NEAREST, -7.5), [0]);
        assert_eq!(places(S::BORDER | S::NEAREST, 9.0), [4]);
        assert_eq!(places(S::BORDER | S::NEAREST, -0.25), [-1]);
        assert_eq!(places(S::REPEAT | S::NEAREST | S::NORMALIZED, 1.3), [1]);
        assert_eq!(places(S::REPEAT | S::NEAREST | S::NORMALIZED, -0.1), [3]);
        assert_eq!(places(S::MIRROR | S::NEAREST | S::NORMALIZED, 1.1), [3]);
        assert_eq!(places(S::MIRROR | S::NEAREST | S::NORMALIZED, -0.1), [0]);
        assert_eq!(places(S::EDGE | S::LINEAR, 0.25), [0, 0]);
        assert_eq!(places(S::BORDER | S::LINEAR, 0.25), [-1, 0]);
        assert_eq!(places(S::REPEAT | S::LINEAR | S::NORMALIZED, 0.01), [3, 0]);
        assert_eq!(places(S::MIRROR | S::LINEAR | S::NORMALIZED, 0.99), [3, 3]);
        assert_eq!(places(S::EDGE | S::NEAREST, f32::NAN), [0]);
        assert_eq!(places(S::EDGE | S::NEAREST, f32::INFINITY), [3]);
    }

    #[test]
    fn shares_of_a_filtered_read_add_up() {
        let format = Format { order: ChannelOrder::R, channel: Channel::Float };
        let volume = Image::packed(0, ImageKind::Volume, format, [4, 5, 6]);
        let how = Sampler(Sampler::EDGE | Sampler::LINEAR);
        let taps = taps(&volume, Some(how), Coordinates::Float([1.25, 2.0, 3.875]));
        assert_eq!(taps.list().len(), 8);
        assert!((taps.list().iter().map(|t| t.weight).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(taps.list()[7].at, [1, 2, 4]);
        assert!((taps.list()[7].weight - 0.75 * 0.5 * 0.375).abs() < 1e-6);
    }

    #[test]
    fn layers_are_rounded_and_clamped() {
        let format = Format { order: ChannelOrder::R, channel: Channel::Float };
        let array = Image::packed(0, ImageKind::PlaneArray, format, [4, 4, 3]);
        let how = Some(Sampler(Sampler::EDGE | Sampler::NEAREST));
        let layer = |z: f32| taps(&array, how, Coordinates::Float([0.0, 0.0, z])).list()[0].at[2];
        assert_eq!([-4.0, 0.5, 1.5, 1.6, 9.0].map(layer), [0, 0, 2, 2, 2]);
    }
}
