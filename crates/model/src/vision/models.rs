//! Networks by name. Parameters have the names and shapes of torchvision's where torchvision has the network.

use super::Sequential;
use netcl_device::{Error, Result, did_you_mean};
use netcl_tensor::ops::conv::Conv2dOptions;
use netcl_tensor::ops::pool::Windows;
use netcl_tensor::ops::rearrange::Resize;

/// Names of the networks that [`of`] describes.
pub const MODELS: [&str; 9] = [
    "mnist-cnn",
    "mlp",
    "lenet",
    "resnet18",
    "resnet50",
    "resnet18-small",
    "mobilenet-v2",
    "mobilenet-v2-small",
    "vit-small",
];

/// Maximum number of image channels.
const MAX_CHANNELS: usize = 1024;
/// Maximum number of image rows and columns.
const MAX_SIDE: usize = 16_384;
/// Classes at most.
const MAX_CLASSES: usize = 1 << 20;

/// Returns the network `name` for images `(C, H, W)` of `classes` classes.
///
/// # Errors
/// `Format` for an unknown name; `Shape` for images that are too small.
pub fn of(name: &str, image: [usize; 3], classes: usize) -> Result<Sequential> {
    let [channels, height, width] = image;
    let sides =
        [("channels", channels, MAX_CHANNELS), ("rows", height, MAX_SIDE), ("columns", width, MAX_SIDE)];
    for (what, found, most) in sides.into_iter().chain([("classes", classes, MAX_CLASSES)]) {
        if !(1..=most).contains(&found) {
            return Err(Error::shape(format!("{name}: {found} {what}, expected 1 to {most}")));
        }
    }
    let least = if name == "lenet" { 12 } else { 4 };
    if height.min(width) < least {
        return Err(Error::shape(format!(
            "{name}: images of {height} x {width} pixels, expected at least {least} x {least}"
        )));
    }
    match name {
        "mnist-cnn" => Ok(mnist_cnn(channels, classes)),
        "mlp" => Ok(mlp(image, classes)),
        "lenet" => Ok(lenet(image, classes)),
        "mobilenet-v2" => Ok(mobilenet(channels, classes, Stem::Large)),
        "mobilenet-v2-small" => Ok(mobilenet(channels, classes, Stem::Small)),
        "vit-small" => vit(image, classes),
        "resnet18" => Ok(resnet(channels, classes, Blocks::Basic([2, 2, 2, 2]), Stem::Large)),
        "resnet50" => Ok(resnet(channels, classes, Blocks::Bottleneck([3, 4, 6, 3]), Stem::Large)),
        "resnet18-small" => Ok(resnet(channels, classes, Blocks::Basic([2, 2, 2, 2]), Stem::Small)),
        _ => {
            let near = did_you_mean(name, MODELS);
            Err(Error::format(format!(
                "unknown network {name:?}; the networks are {}{near}",
                MODELS.join(", ")
            )))
        }
    }
}

/// Five convolutions of 3 x 3 with batch norm: 74 thousand parameters for one channel and ten classes.
fn mnist_cnn(channels: usize, classes: usize) -> Sequential {
    let conv = |net: Sequential, from: usize, to: usize| {
        net.conv2d_with([from, to], 3, Conv2dOptions::default().padding(1), false).batch_norm(to).relu()
    };
    let net = conv(conv(Sequential::new(), channels, 16), 16, 32).max_pool(2);
    let net = conv(conv(net, 32, 32), 32, 64).max_pool(2);
    conv(net, 64, 64).global_avg_pool().flatten().linear(64, classes)
}

/// Three linear maps over all pixels.
fn mlp(image: [usize; 3], classes: usize) -> Sequential {
    let net = Sequential::new().flatten().linear(image.iter().product(), 256).relu();
    net.linear(256, 256).relu().linear(256, classes)
}

/// Returns two convolutions of 5 x 5 and three linear maps: LeNet-5 (LeCun et al. 1998) with ReLU and max pooling.
fn lenet([channels, height, width]: [usize; 3], classes: usize) -> Sequential {
    let left = |n: usize| (n / 2 - 4) / 2;
    let features = 16 * left(height) * left(width);
    let net = Sequential::new().conv2d(channels, 6, 5, 1, 2).relu().max_pool(2);
    let net = net.conv2d(6, 16, 5, 1, 0).relu().max_pool(2).flatten();
    net.linear(features, 120).relu().linear(120, 84).relu().linear(84, classes)
}

/// Residual blocks of the four stages.
enum Blocks {
    /// Two convolutions of 3 x 3.
    Basic([usize; 4]),
    /// 1 x 1, 3 x 3 and 1 x 1 to four times as many channels.
    Bottleneck([usize; 4]),
}

/// The layers before the blocks.
enum Stem {
    /// 7 x 7 with stride 2 and max pooling by 2, for images of some hundred pixels.
    Large,
    /// 3 x 3, for images of about 32 pixels.
    Small,
}

/// Returns a residual network (He et al. 2015) with the stride of a bottleneck in its 3 x 3 convolution, the same as torchvision.
fn resnet(channels: usize, classes: usize, blocks: Blocks, stem: Stem) -> Sequential {
    let plain = Conv2dOptions::default();
    let (size, options) = match stem {
        Stem::Large => (7, plain.stride(2).padding(3)),
        Stem::Small => (3, plain.padding(1)),
    };
    let mut net = Sequential::new().conv2d_with([channels, 64], size, options, false).named("conv1");
    net = net.batch_norm(64).named("bn1").relu();
    if let Stem::Large = stem {
        net = net.max_pool_with(Windows::sliding(3, 2, 1));
    }
    let (counts, wider) = match blocks {
        Blocks::Basic(counts) => (counts, 1),
        Blocks::Bottleneck(counts) => (counts, 4),
    };
    let mut from = 64;
    for (stage, count) in counts.into_iter().enumerate() {
        let width = 64 << stage;
        let mut layer = Sequential::new();
        for i in 0..count {
            let stride = if i == 0 && stage > 0 { 2 } else { 1 };
            let to = width * wider;
            let main = if wider == 1 { basic(from, to, stride) } else { bottleneck(from, width, stride) };
            let mut shortcut = Sequential::new();
            if stride > 1 || from != to {
                shortcut = shortcut.conv2d_with([from, to], 1, plain.stride(stride), false).batch_norm(to);
            }
            layer = layer.residual(main, shortcut);
            from = to;
        }
        net = net.group(&format!("layer{}", stage + 1), layer);
    }
    net.global_avg_pool().flatten().linear(from, classes).named("fc")
}

fn basic(from: usize, to: usize, stride: usize) -> Sequential {
    let plain = Conv2dOptions::default().padding(1);
    let net = Sequential::new().conv2d_with([from, to], 3, plain.stride(stride), false).named("conv1");
    let net = net.batch_norm(to).named("bn1").relu();
    net.conv2d_with([to, to], 3, plain, false).named("conv2").batch_norm(to).named("bn2")
}

fn bottleneck(from: usize, width: usize, stride: usize) -> Sequential {
    let plain = Conv2dOptions::default();
    let net = Sequential::new().conv2d_with([from, width], 1, plain, false).named("conv1");
    let net = net.batch_norm(width).named("bn1").relu();
    let net = net.conv2d_with([width, width], 3, plain.stride(stride).padding(1), false).named("conv2");
    let net = net.batch_norm(width).named("bn2").relu();
    net.conv2d_with([width, 4 * width], 1, plain, false).named("conv3").batch_norm(4 * width).named("bn3")
}

/// Returns inverted residual blocks (Sandler et al. 2018), the same as torchvision. With the small stem, the first convolution and the first
/// downsampling stage keep the size of images of about 32 pixels.
fn mobilenet(channels: usize, classes: usize, stem: Stem) -> Sequential {
    // Expansion, channels, blocks, stride of the first one.
    const STAGES: [[usize; 4]; 7] = [
        [1, 16, 1, 1],
        [6, 24, 2, 2],
        [6, 32, 3, 2],
        [6, 64, 4, 2],
        [6, 96, 3, 1],
        [6, 160, 3, 2],
        [6, 320, 1, 1],
    ];
    let small = matches!(stem, Stem::Small);
    let first = convolved([channels, 32], 3, if small { 1 } else { 2 }, 1).relu6();
    let mut net = Sequential::new().group("features.0", first);
    let (mut from, mut place) = (32, 1);
    for [expansion, to, blocks, stride] in STAGES {
        for i in 0..blocks {
            let stride = if i > 0 || (small && to == 24) { 1 } else { stride };
            let (wide, name) = (from * expansion, format!("features.{place}"));
            let mut block = Sequential::new();
            if expansion > 1 {
                block = block.group("conv.0", convolved([from, wide], 1, 1, 1).relu6());
            }
            let next = usize::from(expansion > 1);
            block = block.group(&format!("conv.{next}"), convolved([wide, wide], 3, stride, wide).relu6());
            let plain = Conv2dOptions::default();
            block = block.conv2d_with([wide, to], 1, plain, false).named(&format!("conv.{}", next + 1));
            block = block.batch_norm(to).named(&format!("conv.{}", next + 2));
            net = match stride == 1 && from == to {
                true => net.plus(block).named(&name),
                false => net.group(&name, block),
            };
            (from, place) = (to, place + 1);
        }
    }
    net = net.group(&format!("features.{place}"), convolved([from, 1280], 1, 1, 1).relu6());
    net.global_avg_pool().flatten().linear(1280, classes).named("classifier.1")
}

/// Returns a convolution that keeps the size except for its stride, and batch norm: `0` and `1`.
fn convolved(channels: [usize; 2], size: usize, stride: usize, groups: usize) -> Sequential {
    let options = Conv2dOptions::default().stride(stride).padding(size / 2).groups(groups);
    Sequential::new().conv2d_with(channels, size, options, false).batch_norm(channels[1])
}

/// Returns a vision transformer of 12 blocks with width 384 and 6 heads (ViT-S, Touvron et al. 2020), with torchvision's names. Patches have 16
/// pixels per side, or 4 if a side of the image has fewer than 128.
fn vit([channels, height, width]: [usize; 3], classes: usize) -> Result<Sequential> {
    const WIDTH: usize = 384;
    let size = if height.min(width) < 128 { 4 } else { 16 };
    if !height.is_multiple_of(size) || !width.is_multiple_of(size) {
        return Err(Error::shape(format!(
            "vit-small: images of {height} x {width} pixels, expected multiples of {size}"
        )));
    }
    let mut net = Sequential::new().patches(channels, WIDTH, size, height / size * (width / size));
    for i in 0..12 {
        net = net.encoder(WIDTH, 6, 4 * WIDTH).named(&format!("encoder.layers.encoder_layer_{i}"));
    }
    Ok(net.layer_norm(WIDTH).named("encoder.ln").first().linear(WIDTH, classes).named("heads.head"))
}

/// Returns a small U-Net (Ronneberger, Fischer and Brox 2015) with batch norm: images `(N, channels, H, W)` to a number per class and pixel `(N,
/// classes, H, W)`. Sides are multiples of 2^`depth`; the first level has `width` channels, each lower one twice as many.
pub fn unet(channels: usize, classes: usize, width: usize, depth: usize) -> Sequential {
    let level = unet_level(channels, width, depth);
    level.conv2d(width, classes, 1, 1, 0).named("head")
}

fn unet_level(from: usize, width: usize, depth: usize) -> Sequential {
    let pair = |from: usize, to: usize| {
        let net = convolved([from, to], 3, 1, 1).relu();
        net.conv2d_with([to, to], 3, Conv2dOptions::default().padding(1), false).batch_norm(to).relu()
    };
    let net = Sequential::new().group("down", pair(from, width));
    if depth == 0 {
        return net;
    }
    let lower = Sequential::new().max_pool(2).group("level", unet_level(width, 2 * width, depth - 1));
    let inner = lower.upsample(2, Resize::Bilinear);
    net.beside(inner).named("inner").group("up", pair(3 * width, width))
}
