//! Images and samplers on the command line: `image:rgba:unorm8:64x32:random:read`, `sampler:linear,repeat,normalized`.

use super::content::{Init, init, whole};
use super::number::Number;
use aethercl::image::{Channel, ChannelOrder, Format, Image, Sampler};
use aethercl::types::ImageKind;
use netcl::device::did_you_mean;

/// An image without its memory address.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageArg {
    /// Storage format of texels.
    pub format: Format,
    /// Texels along each axis; layers are the last axis.
    pub sizes: Vec<u64>,
    /// Content before the launch; channels are numbers as in memory.
    pub init: Init,
    /// Whether the kernel only reads it.
    pub read: bool,
}

const ORDERS: [(&str, ChannelOrder); 9] = [
    ("r", ChannelOrder::R),
    ("a", ChannelOrder::A),
    ("rg", ChannelOrder::Rg),
    ("ra", ChannelOrder::Ra),
    ("rgba", ChannelOrder::Rgba),
    ("bgra", ChannelOrder::Bgra),
    ("argb", ChannelOrder::Argb),
    ("intensity", ChannelOrder::Intensity),
    ("luminance", ChannelOrder::Luminance),
];

/// Names of channels, and the numbers that store them in memory.
const CHANNELS: [(&str, Channel, Number); 12] = [
    ("unorm8", Channel::Unorm8, Number::U8),
    ("unorm16", Channel::Unorm16, Number::U16),
    ("snorm8", Channel::Snorm8, Number::I8),
    ("snorm16", Channel::Snorm16, Number::I16),
    ("i8", Channel::Signed8, Number::I8),
    ("i16", Channel::Signed16, Number::I16),
    ("i32", Channel::Signed32, Number::I32),
    ("u8", Channel::Unsigned8, Number::U8),
    ("u16", Channel::Unsigned16, Number::U16),
    ("u32", Channel::Unsigned32, Number::U32),
    ("f16", Channel::Half, Number::F16),
    ("f32", Channel::Float, Number::F32),
];

const MODES: [(&str, u32); 8] = [
    ("nearest", Sampler::NEAREST),
    ("linear", Sampler::LINEAR),
    ("none", 0),
    ("edge", Sampler::EDGE),
    ("border", Sampler::BORDER),
    ("repeat", Sampler::REPEAT),
    ("mirror", Sampler::MIRROR),
    ("normalized", Sampler::NORMALIZED),
];

fn named<T: Copy>(
    what: &str,
    name: &str,
    list: impl Iterator<Item = (&'static str, T)> + Clone,
) -> Result<T, String> {
    list.clone().find(|(own, _)| *own == name).map(|(_, value)| value).ok_or_else(|| {
        let names: Vec<&str> = list.map(|(own, _)| own).collect();
        format!(
            "unknown {what} {name:?}; possible values are {}{}",
            names.join(", "),
            did_you_mean(name, names.iter().copied())
        )
    })
}

/// Parses the text after `image:`.
///
/// # Errors
/// The expected form.
pub fn image(text: &str) -> Result<ImageArg, String> {
    let form = "expected image:<channels>:<type>:<width>[x<height>[x<depth>]][:<content>][:read]";
    let parts: Vec<&str> = text.splitn(5, ':').collect();
    let [order, channel, sizes, rest @ ..] = &parts[..] else { return Err(form.into()) };
    let order = named("channels", order, ORDERS.into_iter())?;
    let channel = named("type of channels", channel, CHANNELS.into_iter().map(|(name, c, _)| (name, c)))?;
    let format = Format::of(order.code(), channel.code())
        .ok_or("OpenCL does not have a format with these channels and this type")?;
    let one = |n: &str| {
        whole(n).and_then(|n| if n == 0 { Err("an image without texels".into()) } else { Ok(n as u64) })
    };
    let sizes = sizes.split('x').map(one).collect::<Result<Vec<u64>, String>>()?;
    if sizes.len() > 3 {
        return Err(form.into());
    }
    let mut arg = ImageArg { format, sizes, init: Init::Unwritten, read: false };
    (arg.init, arg.read) = init(arg.number(), rest)?;
    Ok(arg)
}

/// Parses the text after `sampler:`.
///
/// # Errors
/// The expected form.
pub fn sampler(text: &str) -> Result<Sampler, String> {
    let bits = text.split(',').map(|mode| named("mode of a sampler", mode.trim(), MODES.into_iter()));
    let bits = bits.collect::<Result<Vec<u32>, String>>()?.into_iter().fold(0, |a, b| a | b);
    // Without a filter, the nearest texel is used.
    let filter = if bits & Sampler::LINEAR == 0 { Sampler::NEAREST } else { 0 };
    Ok(Sampler(bits | filter))
}

impl ImageArg {
    /// Returns the number that stores a channel in memory.
    pub fn number(&self) -> Number {
        CHANNELS.iter().find(|(_, c, _)| *c == self.format.channel).map_or(Number::U8, |(.., number)| *number)
    }

    /// Returns the count of numbers in memory.
    pub fn count(&self) -> usize {
        let texels: u64 = self.sizes.iter().product();
        texels as usize * self.format.order.channels()
    }

    /// Returns the image as a parameter of this kind.
    pub fn at(&self, address: u64, kind: ImageKind) -> Image {
        let mut extent = [1; 3];
        self.sizes.iter().zip(&mut extent).for_each(|(n, to)| *to = *n);
        Image::packed(address, kind, self.format, extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_samplers_are_read() {
        let arg = image("rgba:unorm8:64x32:7:read").unwrap();
        assert_eq!(
            (arg.sizes.as_slice(), arg.count(), arg.number()),
            ([64, 32].as_slice(), 8192, Number::U8)
        );
        assert_eq!((arg.init.clone(), arg.read), (Init::Value(vec![7]), true));
        assert_eq!(arg.at(256, ImageKind::Plane).bytes(), 8192);
        assert_eq!(sampler("linear,repeat,normalized"), Ok(Sampler(0x27)));
        assert_eq!(sampler("edge"), Ok(Sampler(0x12)));
    }

    #[test]
    fn mistakes_name_what_there_is() {
        for (text, part) in [
            ("rgb:unorm8:4x4", "rgba"),
            ("rgba:unorm9:4x4", "unorm8"),
            ("rgba:f32", "expected image:"),
            ("rgba:f32:4x0", "without texels"),
            ("rgba:f32:4x4x4x4", "expected image:"),
            ("bgra:f32:4x4", "does not have a format"),
            ("r:f32:4x4:loud", "iota"),
        ] {
            let e = image(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
        assert!(sampler("blurry").unwrap_err().contains("linear"));
    }
}
