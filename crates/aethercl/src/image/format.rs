//! Image formats: conversion of a texel's bytes to four numbers and back. Section 5.3.1 of the OpenCL specification lists the formats; section 8.3 of
//! OpenCL C defines the rounding.

use crate::builtins::convert::{f32_to_half, half_to_f32};

/// Channels of a texel, in the order of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "named for their channels")]
pub enum ChannelOrder {
    R,
    A,
    Rg,
    Ra,
    Rgba,
    Bgra,
    Argb,
    Intensity,
    Luminance,
}

/// Data type of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "a number and its bits")]
pub enum Channel {
    Snorm8,
    Snorm16,
    Unorm8,
    Unorm16,
    Signed8,
    Signed16,
    Signed32,
    Unsigned8,
    Unsigned16,
    Unsigned32,
    Half,
    Float,
}

/// Class of functions that read and write a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// `read_imagef`, `read_imageh`.
    Float,
    /// `read_imagei`.
    Signed,
    /// `read_imageui`.
    Unsigned,
}

impl Class {
    /// Returns the name of the function that reads it.
    pub const fn reader(self) -> &'static str {
        match self {
            Self::Float => "read_imagef",
            Self::Signed => "read_imagei",
            Self::Unsigned => "read_imageui",
        }
    }
}

impl ChannelOrder {
    /// All orders, with their OpenCL constants.
    pub const ALL: [(Self, u32); 9] = [
        (Self::R, 0x10b0),
        (Self::A, 0x10b1),
        (Self::Rg, 0x10b2),
        (Self::Ra, 0x10b3),
        (Self::Rgba, 0x10b5),
        (Self::Bgra, 0x10b6),
        (Self::Argb, 0x10b7),
        (Self::Intensity, 0x10b8),
        (Self::Luminance, 0x10b9),
    ];

    /// Returns its `CL_R`, `CL_A`, ….
    pub fn code(self) -> u32 {
        Self::ALL.iter().find(|(own, _)| *own == self).map_or(0, |(_, code)| *code)
    }

    /// Returns the number of channels of a texel.
    pub const fn channels(self) -> usize {
        match self {
            Self::R | Self::A | Self::Intensity | Self::Luminance => 1,
            Self::Rg | Self::Ra => 2,
            Self::Rgba | Self::Bgra | Self::Argb => 4,
        }
    }

    /// Returns the texel channels of red, green, blue and alpha; `None` for a missing one.
    const fn places(self) -> [Option<usize>; 4] {
        match self {
            Self::R => [Some(0), None, None, None],
            Self::A => [None, None, None, Some(0)],
            Self::Rg => [Some(0), Some(1), None, None],
            Self::Ra => [Some(0), None, None, Some(1)],
            Self::Rgba => [Some(0), Some(1), Some(2), Some(3)],
            Self::Bgra => [Some(2), Some(1), Some(0), Some(3)],
            Self::Argb => [Some(1), Some(2), Some(3), Some(0)],
            Self::Intensity => [Some(0), Some(0), Some(0), Some(0)],
            Self::Luminance => [Some(0), Some(0), Some(0), None],
        }
    }

    /// Returns true if the border color is opaque black, and false if it is transparent.
    const fn border_is_opaque(self) -> bool {
        matches!(self, Self::R | Self::Rg | Self::Luminance)
    }
}

impl Channel {
    /// All channel types, with their OpenCL constants.
    pub const ALL: [(Self, u32); 12] = [
        (Self::Snorm8, 0x10d0),
        (Self::Snorm16, 0x10d1),
        (Self::Unorm8, 0x10d2),
        (Self::Unorm16, 0x10d3),
        (Self::Signed8, 0x10d7),
        (Self::Signed16, 0x10d8),
        (Self::Signed32, 0x10d9),
        (Self::Unsigned8, 0x10da),
        (Self::Unsigned16, 0x10db),
        (Self::Unsigned32, 0x10dc),
        (Self::Half, 0x10dd),
        (Self::Float, 0x10de),
    ];

    /// Returns its `CL_UNORM_INT8`, ….
    pub fn code(self) -> u32 {
        Self::ALL.iter().find(|(own, _)| *own == self).map_or(0, |(_, code)| *code)
    }

    /// Bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Snorm8 | Self::Unorm8 | Self::Signed8 | Self::Unsigned8 => 1,
            Self::Snorm16 | Self::Unorm16 | Self::Signed16 | Self::Unsigned16 | Self::Half => 2,
            Self::Signed32 | Self::Unsigned32 | Self::Float => 4,
        }
    }

    /// Returns the class of functions that read and write it.
    pub const fn class(self) -> Class {
        match self {
            Self::Signed8 | Self::Signed16 | Self::Signed32 => Class::Signed,
            Self::Unsigned8 | Self::Unsigned16 | Self::Unsigned32 => Class::Unsigned,
            _ => Class::Float,
        }
    }

    /// Converts a channel value to register bits of an `f32`, an `int` or a `uint`.
    fn decode(self, bits: u32) -> u32 {
        let small = |x: f32| x.to_bits();
        match self {
            Self::Snorm8 => small((f32::from(bits as i8) / 127.0).max(-1.0)),
            Self::Snorm16 => small((f32::from(bits as i16) / 32767.0).max(-1.0)),
            Self::Unorm8 => small(f32::from(bits as u8) / 255.0),
            Self::Unorm16 => small(f32::from(bits as u16) / 65535.0),
            Self::Signed8 => i32::from(bits as i8) as u32,
            Self::Signed16 => i32::from(bits as i16) as u32,
            Self::Half => half_to_f32(bits & 0xffff),
            Self::Unsigned8 => bits & 0xff,
            Self::Unsigned16 => bits & 0xffff,
            Self::Signed32 | Self::Unsigned32 | Self::Float => bits,
        }
    }

    /// Converts register bits to a channel value: rounded to nearest, ties to even, and saturated.
    fn encode(self, bits: u32) -> u32 {
        let x = f32::from_bits(bits);
        let scaled = |low: f32, high: f32| (x * high).round_ties_even().clamp(low, high);
        let signed = |low: i32, high: i32| (bits as i32).clamp(low, high) as u32;
        match self {
            // A NaN becomes 0.
            Self::Snorm8 => i32::from(scaled(-128.0, 127.0) as i8) as u32 & 0xff,
            Self::Snorm16 => i32::from(scaled(-32768.0, 32767.0) as i16) as u32 & 0xffff,
            Self::Unorm8 => u32::from(scaled(0.0, 255.0) as u8),
            Self::Unorm16 => u32::from(scaled(0.0, 65535.0) as u16),
            Self::Signed8 => signed(i8::MIN.into(), i8::MAX.into()) & 0xff,
            Self::Signed16 => signed(i16::MIN.into(), i16::MAX.into()) & 0xffff,
            Self::Unsigned8 => bits.min(u8::MAX.into()),
            Self::Unsigned16 => bits.min(u16::MAX.into()),
            Self::Half => f32_to_half(x),
            Self::Signed32 | Self::Unsigned32 | Self::Float => bits,
        }
    }
}

/// A texel format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Format {
    /// The channels.
    pub order: ChannelOrder,
    /// Data type of each channel.
    pub channel: Channel,
}

impl Format {
    /// Returns the format of two OpenCL constants, if it is supported.
    pub fn of(order: u32, channel: u32) -> Option<Self> {
        let order = ChannelOrder::ALL.iter().find(|(_, code)| *code == order)?.0;
        let channel = Channel::ALL.iter().find(|(_, code)| *code == channel)?.0;
        Some(Self { order, channel }).filter(Self::exists)
    }

    /// Returns every supported format.
    pub fn all() -> impl Iterator<Item = Self> {
        let channels = |order| Channel::ALL.into_iter().map(move |(channel, _)| Self { order, channel });
        ChannelOrder::ALL.into_iter().flat_map(move |(order, _)| channels(order)).filter(Self::exists)
    }

    /// Returns true if the standard permits the combination of order and channel type.
    fn exists(&self) -> bool {
        use Channel::{Float, Half, Signed8, Snorm8, Snorm16, Unorm8, Unorm16, Unsigned8};
        match self.order {
            ChannelOrder::R | ChannelOrder::A | ChannelOrder::Rg | ChannelOrder::Ra | ChannelOrder::Rgba => {
                true
            }
            ChannelOrder::Bgra | ChannelOrder::Argb => {
                matches!(self.channel, Unorm8 | Snorm8 | Signed8 | Unsigned8)
            }
            ChannelOrder::Intensity | ChannelOrder::Luminance => {
                matches!(self.channel, Unorm8 | Unorm16 | Snorm8 | Snorm16 | Half | Float)
            }
        }
    }

    /// Returns the bytes per texel: 1, 2, 4, 8 or 16.
    pub const fn bytes(self) -> u64 {
        self.order.channels() as u64 * self.channel.bytes()
    }

    /// Converts a texel to register bits of red, green, blue and alpha. Missing channels are 0; a missing alpha is 1.
    pub fn decode(self, texel: u128) -> [u32; 4] {
        let bits = 8 * self.channel.bytes();
        let channel = |place: usize| self.channel.decode((texel >> (place as u64 * bits)) as u32);
        let places = self.order.places();
        [0, 1, 2, 3].map(|i| match places[i] {
            Some(place) => channel(place),
            None if i == 3 => self.one(),
            None => 0,
        })
    }

    /// Returns the texel for red, green, blue and alpha.
    pub fn encode(self, colour: [u32; 4]) -> u128 {
        let bits = 8 * self.channel.bytes();
        let mut texel = 0;
        // An intensity is taken from red, the first channel.
        for (value, place) in colour.iter().zip(self.order.places()).rev() {
            if let Some(place) = place {
                let mask = !(((1u128 << bits) - 1) << (place as u64 * bits));
                let own = u128::from(self.channel.encode(*value)) << (place as u64 * bits);
                texel = (texel & mask) | own;
            }
        }
        texel
    }

    /// Returns the border color.
    pub fn border(self) -> [u32; 4] {
        [0, 0, 0, if self.order.border_is_opaque() { self.one() } else { 0 }]
    }

    fn one(self) -> u32 {
        if self.channel.class() == Class::Float { 1f32.to_bits() } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_come_back_as_they_were_written() {
        for format in Format::all() {
            let one = |bits: u32| match format.channel.class() {
                Class::Float => (bits as f32).to_bits(),
                _ => bits,
            };
            let colour = [one(1), one(0), one(1), one(1)];
            let back = format.decode(format.encode(colour));
            let kept = format.order.places();
            for i in 0..4 {
                let intensity = matches!(format.order, ChannelOrder::Intensity | ChannelOrder::Luminance);
                if kept[i].is_some() && !intensity {
                    assert_eq!(back[i], colour[i], "{format:?}, channel {i}");
                }
            }
            assert_eq!(format.encode(back), format.encode(colour), "{format:?}");
        }
    }

    #[test]
    fn numbers_are_rounded_to_even_and_saturated() {
        let unorm = |x: f32| Channel::Unorm8.encode(x.to_bits());
        assert_eq!([unorm(2.0), unorm(-1.0), unorm(0.5 / 255.0), unorm(1.5 / 255.0)], [255, 0, 0, 2]);
        assert_eq!(unorm(f32::NAN), 0);
        let snorm = |x: f32| Channel::Snorm8.encode(x.to_bits());
        assert_eq!([snorm(-1.0), snorm(1.0), snorm(-5.0)], [0x81, 0x7f, 0x80]);
        assert_eq!(f32::from_bits(Channel::Snorm8.decode(0x80)), -1.0);
        assert_eq!(Channel::Signed16.encode(-40_000i32 as u32), 0x8000);
        assert_eq!(Channel::Unsigned8.encode(1000), 255);
    }

    #[test]
    fn what_a_format_lacks_is_black() {
        let one = 1f32.to_bits();
        let rg = Format { order: ChannelOrder::Rg, channel: Channel::Unorm8 };
        assert_eq!(rg.decode(0xffff), [one, one, 0, one]);
        assert_eq!(rg.border(), [0, 0, 0, one]);
        let bgra = Format { order: ChannelOrder::Bgra, channel: Channel::Unorm8 };
        assert_eq!(bgra.decode(0xff), [0, 0, one, 0]);
        assert_eq!(bgra.border(), [0; 4]);
        assert_eq!(Format { order: ChannelOrder::R, channel: Channel::Signed8 }.border(), [0, 0, 0, 1]);
    }
}
