//! Sequential networks and residual blocks.

use super::transformer::{Encoder, Patches};
use crate::layers::{BatchNorm2d, Conv2d, LayerNorm, Linear};
use crate::params::Params;
use netcl_tensor::opgraph::OpGraph;
use netcl_tensor::ops::add_relu::add_relu;
use netcl_tensor::ops::batch_norm::Activation;
use netcl_tensor::ops::conv::Conv2dOptions;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::pool::{Windows, avg_pool2d, max_pool2d};
use netcl_tensor::ops::rearrange::{Resize, interpolate};
use netcl_tensor::{DType, Device, Error, Result, Tensor};

/// Description of a layer.
#[derive(Clone, Debug)]
enum Spec {
    Conv2d { channels: [usize; 2], size: usize, options: Conv2dOptions, bias: bool },
    BatchNorm(usize),
    Linear { inputs: usize, outputs: usize },
    Relu,
    Relu6,
    Gelu,
    MaxPool(Windows),
    AvgPool(Windows),
    Flatten,
    Residual { main: Sequential, shortcut: Sequential, relu: bool },
    Beside(Sequential),
    Upsample { factor: usize, how: Resize },
    Patches { channels: usize, width: usize, size: usize, count: usize },
    Encoder { width: usize, heads: usize, hidden: usize },
    LayerNorm(usize),
    First,
}

/// The description of a network: layers in a row, which [`build`](Self::build) makes.
///
/// ```no_run
/// # use netcl_model::{params::Params, vision::Sequential};
/// # use netcl_tensor::{DType, Device, Result, Settings};
/// # fn main() -> Result<()> {
/// # let device = Device::open("auto", &Settings::default())?;
/// let mut params = Params::new(&device, DType::F32, Some(1));
/// let network = Sequential::new()
///     .conv2d(1, 16, 3, 1, 1)
///     .batch_norm(16)
///     .relu()
///     .max_pool(2)
///     .flatten()
///     .linear(16 * 14 * 14, 10)
///     .build(&mut params, "")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sequential {
    /// Names and layers; a number if a layer does not have a name.
    specs: Vec<(String, Spec)>,
}

impl Sequential {
    /// No layer yet.
    pub fn new() -> Self {
        Self::default()
    }
    fn push(mut self, spec: Spec) -> Self {
        self.specs.push((self.specs.len().to_string(), spec));
        self
    }
    /// Gives the last layer a name instead of its number.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        if let Some((last, _)) = self.specs.last_mut() {
            *last = name.into();
        }
        self
    }
    /// A convolution with bias.
    #[must_use]
    pub fn conv2d(self, inputs: usize, outputs: usize, size: usize, stride: usize, padding: usize) -> Self {
        let options = Conv2dOptions::default().stride(stride).padding(padding);
        self.conv2d_with([inputs, outputs], size, options, true)
    }
    /// A convolution with any options.
    #[must_use]
    pub fn conv2d_with(self, channels: [usize; 2], size: usize, options: Conv2dOptions, bias: bool) -> Self {
        self.push(Spec::Conv2d { channels, size, options, bias })
    }
    /// Batch normalization.
    #[must_use]
    pub fn batch_norm(self, channels: usize) -> Self {
        self.push(Spec::BatchNorm(channels))
    }
    /// `max(x, 0)`.
    #[must_use]
    pub fn relu(self) -> Self {
        self.push(Spec::Relu)
    }
    /// `min(max(x, 0), 6)`.
    #[must_use]
    pub fn relu6(self) -> Self {
        self.push(Spec::Relu6)
    }
    /// `x · Φ(x)`.
    #[must_use]
    pub fn gelu(self) -> Self {
        self.push(Spec::Gelu)
    }
    /// Adds max pooling with square windows that do not overlap.
    #[must_use]
    pub fn max_pool(self, size: usize) -> Self {
        self.max_pool_with(Windows::of(size))
    }
    /// Adds max pooling with any windows.
    #[must_use]
    pub fn max_pool_with(self, windows: Windows) -> Self {
        self.push(Spec::MaxPool(windows))
    }
    /// Adds average pooling with square windows that do not overlap.
    #[must_use]
    pub fn avg_pool(self, size: usize) -> Self {
        self.push(Spec::AvgPool(Windows::of(size)))
    }
    /// Adds the mean of each channel: `(N, C, H, W)` → `(N, C, 1, 1)`.
    #[must_use]
    pub fn global_avg_pool(self) -> Self {
        self.push(Spec::AvgPool(Windows::Adaptive { output: [1, 1] }))
    }
    /// Flattens all axes except the first.
    #[must_use]
    pub fn flatten(self) -> Self {
        self.push(Spec::Flatten)
    }
    /// A linear map with bias.
    #[must_use]
    pub fn linear(self, inputs: usize, outputs: usize) -> Self {
        self.push(Spec::Linear { inputs, outputs })
    }
    /// Adds `relu(main(x) + shortcut(x))` (He et al. 2015); an empty shortcut is x itself. The layers of `main` are named within the block, those of
    /// the shortcut `downsample.<i>`.
    #[must_use]
    pub fn residual(self, main: Self, shortcut: Self) -> Self {
        self.push(Spec::Residual { main, shortcut, relu: true })
    }
    /// Adds `main(x) + x`; its layers are named within the block.
    #[must_use]
    pub fn plus(self, main: Self) -> Self {
        self.push(Spec::Residual { main, shortcut: Self::new(), relu: false })
    }
    /// Concatenates x and `inner(x)` along the channels: a U-Net's skip connection (Ronneberger, Fischer and Brox 2015).
    #[must_use]
    pub fn beside(self, inner: Self) -> Self {
        self.push(Spec::Beside(inner))
    }
    /// Multiplies height and width by `factor`.
    #[must_use]
    pub fn upsample(self, factor: usize, how: Resize) -> Self {
        self.push(Spec::Upsample { factor, how })
    }
    /// Converts images `(N, C, H, W)` to rows `(N, 1 + count, width)`: a class token, then patches of `size` pixels, with learned positions
    /// (Dosovitskiy et al. 2020).
    #[must_use]
    pub fn patches(self, channels: usize, width: usize, size: usize, count: usize) -> Self {
        self.push(Spec::Patches { channels, width, size, count })
    }
    /// Adds a transformer encoder block over rows `(N, T, width)`: attention and two linear maps, each after a norm and added to the residual stream.
    #[must_use]
    pub fn encoder(self, width: usize, heads: usize, hidden: usize) -> Self {
        self.push(Spec::Encoder { width, heads, hidden })
    }
    /// Adds layer normalization of the last axis.
    #[must_use]
    pub fn layer_norm(self, width: usize) -> Self {
        self.push(Spec::LayerNorm(width))
    }
    /// Selects the first row of each image: `(N, T, C)` → `(N, C)`.
    #[must_use]
    pub fn first(self) -> Self {
        self.push(Spec::First)
    }
    /// Appends the layers of `other`, with names below `name`.
    #[must_use]
    pub fn group(mut self, name: &str, other: Self) -> Self {
        self.specs.extend(other.specs.into_iter().map(|(inner, spec)| (format!("{name}.{inner}"), spec)));
        self
    }

    /// Creates the layers, with parameters named below `prefix`: `<prefix>.<name>.weight`.
    ///
    /// # Errors
    /// Errors of creating parameters: duplicate names, no memory.
    pub fn build(&self, params: &mut Params, prefix: &str) -> Result<Network> {
        let below = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let layers = self.specs.iter().map(|(name, spec)| spec.build(params, &below(name)));
        Ok(Network { layers: layers.collect::<Result<_>>()? })
    }
}

impl Spec {
    fn build(&self, params: &mut Params, name: &str) -> Result<Layer> {
        Ok(match self {
            Self::Conv2d { channels, size, options, bias } => {
                Layer::Conv2d(Conv2d::new(params, name, *channels, *size, *options, *bias)?)
            }
            Self::BatchNorm(channels) => Layer::BatchNorm(BatchNorm2d::new(params, name, *channels)?),
            Self::Linear { inputs, outputs } => {
                Layer::Linear(Linear::new(params, name, *inputs, *outputs, true)?)
            }
            Self::Relu => Layer::Relu,
            Self::Relu6 => Layer::Relu6,
            Self::Gelu => Layer::Gelu,
            Self::MaxPool(windows) => Layer::MaxPool(*windows),
            Self::AvgPool(windows) => Layer::AvgPool(*windows),
            Self::Flatten => Layer::Flatten,
            Self::Residual { main, shortcut, relu } => Layer::Residual {
                main: main.build(params, name)?,
                shortcut: shortcut.build(params, &format!("{name}.downsample"))?,
                relu: *relu,
            },
            Self::Beside(inner) => Layer::Beside(inner.build(params, name)?),
            Self::Upsample { factor, how } => Layer::Upsample { factor: *factor, how: *how },
            Self::Patches { channels, width, size, count } => {
                Layer::Patches(Patches::new(params, name, [*channels, *width], *size, *count)?)
            }
            Self::Encoder { width, heads, hidden } => {
                Layer::Encoder(Box::new(Encoder::new(params, name, *width, *heads, *hidden)?))
            }
            Self::LayerNorm(width) => Layer::LayerNorm(LayerNorm::new(params, name, *width, true, 1e-6)?),
            Self::First => Layer::First,
        })
    }
}

/// A layer with its parameters.
#[derive(Clone)]
enum Layer {
    Conv2d(Conv2d),
    BatchNorm(BatchNorm2d),
    Linear(Linear),
    Relu,
    MaxPool(Windows),
    AvgPool(Windows),
    Flatten,
    Residual { main: Network, shortcut: Network, relu: bool },
    Relu6,
    Gelu,
    Beside(Network),
    Upsample { factor: usize, how: Resize },
    Patches(Patches),
    Encoder(Box<Encoder>),
    LayerNorm(LayerNorm),
    First,
}

/// Sequential layers with their parameters.
#[derive(Clone)]
pub struct Network {
    layers: Vec<Layer>,
}

impl Network {
    /// Passes images `(N, C, H, W)` through all layers. While training, batch norms use the statistics of the batch and update the running ones.
    ///
    /// # Errors
    /// Error of the first layer that does not accept x, with its name.
    pub fn forward(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        let mut rest = &self.layers[..];
        let mut x = x.clone();
        while let [layer, behind @ ..] = rest {
            rest = behind;
            let Layer::BatchNorm(norm) = layer else {
                x = layer.forward(&x, training)?;
                continue;
            };
            // An activation after a norm is computed together with it.
            let activation = match behind {
                [Layer::Relu, ..] => Activation::Relu,
                [Layer::Relu6, ..] => Activation::Relu6,
                _ => Activation::None,
            };
            rest = &behind[usize::from(activation != Activation::None)..];
            x = norm.activated(&x, training, activation)?;
        }
        Ok(x)
    }
    /// Returns the inference computation for images with these channels, height and width, and any number of images: a graph that can be shown, saved
    /// and run elsewhere.
    ///
    /// # Errors
    /// Errors of [`forward`](Self::forward); `Unsupported` with an operation that a graph cannot hold.
    pub fn graph(&self, device: &Device, [channels, height, width]: [usize; 3]) -> Result<OpGraph> {
        let gray = Tensor::full(device, [1, channels, height, width], 0.5, DType::F32)?;
        OpGraph::for_any_rows(&[("image", &gray)], |x| Ok(vec![self.forward(&x[0], false)?]))
    }
    /// Returns the entries of a state dict in addition to the parameters: running statistics by name.
    pub fn buffers(&self) -> Vec<(String, Tensor)> {
        let of = |layer: &Layer| match layer {
            Layer::BatchNorm(norm) => norm.buffers().to_vec(),
            Layer::Beside(inner) => inner.buffers(),
            Layer::Residual { main, shortcut, .. } => [main.buffers(), shortcut.buffers()].concat(),
            _ => Vec::new(),
        };
        self.layers.iter().flat_map(of).collect()
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        match self {
            Self::Conv2d(conv) => conv.forward(x),
            Self::BatchNorm(norm) => norm.forward(x, training),
            Self::Linear(linear) => linear.forward(x),
            Self::Relu => x.relu(),
            Self::MaxPool(windows) => max_pool2d(x, *windows),
            Self::AvgPool(windows) => avg_pool2d(x, *windows, true),
            Self::Flatten => {
                let n = x.dims().first().copied().unwrap_or(1);
                x.reshape([n, x.count() / n.max(1)])
            }
            Self::Residual { main, shortcut, relu } => {
                let (y, across) = (main.forward(x, training)?, shortcut.forward(x, training)?);
                if *relu { add_relu(&y, &across) } else { y.add(&across) }
            }
            Self::Relu6 => x.clamp(0.0, 6.0),
            Self::Gelu => x.gelu(),
            Self::Beside(inner) => cat(&[x, &inner.forward(x, training)?], 1),
            Self::Upsample { factor, how } => match *x.dims() {
                [.., height, width] => interpolate(x, [factor * height, factor * width], *how),
                _ => Err(Error::shape(format!("upsample: x has shape {}, expected (N, C, H, W)", x.shape()))),
            },
            Self::Patches(patches) => patches.forward(x),
            Self::Encoder(encoder) => encoder.forward(x),
            Self::LayerNorm(norm) => norm.forward(x),
            Self::First => x.slice(1, 0..1)?.squeeze(1),
        }
    }
}
