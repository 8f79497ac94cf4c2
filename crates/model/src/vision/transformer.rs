//! The layers of vision transformers (Dosovitskiy et al. 2020), with torchvision's parameters.

use crate::layers::{Conv2d, LayerNorm, Linear};
use crate::params::{Init, Params};
use netcl_tensor::ops::attention::{AttentionOptions, attention_qkv};
use netcl_tensor::ops::conv::Conv2dOptions;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::{Error, Result, Tensor};

/// Patches of an image as rows, after a class token, with positions.
#[derive(Clone)]
pub(super) struct Patches {
    projection: Conv2d,
    token: Tensor,
    positions: Tensor,
}

impl Patches {
    /// Creates rows of `width` from patches of `size` pixels, with `count` patches per image. Names are below those of the network itself:
    /// `class_token`, `conv_proj`, `encoder.pos_embedding`.
    pub(super) fn new(
        params: &mut Params,
        prefix: &str,
        channels: [usize; 2],
        size: usize,
        count: usize,
    ) -> Result<Self> {
        // The layer's own name is omitted: its parameters are at the level of the other layers.
        let below = prefix.rsplit_once('.').map_or(String::new(), |(outer, _)| format!("{outer}."));
        let width = channels[1];
        let token = params.make(&format!("{below}class_token"), [1, 1, width], Init::Zeros)?;
        let options = Conv2dOptions::default().stride(size);
        let projection = Conv2d::new(params, &format!("{below}conv_proj"), channels, size, options, true)?;
        let name = format!("{below}encoder.pos_embedding");
        let positions = params.make(&name, [1, 1 + count, width], Init::Normal(0.02))?;
        Ok(Self { projection, token, positions })
    }
    /// Takes x `(N, C, H, W)` → `(N, T, width)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.projection.forward(x)?;
        let [n, width, height, across] = y.dims4()?;
        let [_, rows, _] = self.positions.dims3()?;
        if 1 + height * across != rows {
            return Err(Error::shape(format!(
                "images {} are {} squares, expected {}, for which the network has positions",
                x.shape(),
                height * across,
                rows - 1
            )));
        }
        let y = y.reshape([n, width, height * across])?.transpose(1, 2)?; // (N, T - 1, width)
        cat(&[&self.token.expand([n, 1, width])?, &y], 1)?.add(&self.positions)
    }
}

/// A block: `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Clone)]
pub(super) struct Encoder {
    norms: [LayerNorm; 2],
    weight: Tensor,
    bias: Tensor,
    out: Linear,
    mlp: [Linear; 2],
    heads: usize,
}

impl Encoder {
    pub(super) fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        heads: usize,
        hidden: usize,
    ) -> Result<Self> {
        let first = LayerNorm::new(params, &format!("{name}.ln_1"), width, true, 1e-6)?;
        let init = Init::xavier_uniform(width, 3 * width);
        let weight =
            params.make(&format!("{name}.self_attention.in_proj_weight"), [3 * width, width], init)?;
        let bias = params.make(&format!("{name}.self_attention.in_proj_bias"), [3 * width], Init::Zeros)?;
        let out = Linear::new(params, &format!("{name}.self_attention.out_proj"), width, width, true)?;
        let second = LayerNorm::new(params, &format!("{name}.ln_2"), width, true, 1e-6)?;
        let mlp = [
            Linear::new(params, &format!("{name}.mlp.0"), width, hidden, true)?,
            Linear::new(params, &format!("{name}.mlp.3"), hidden, width, true)?,
        ];
        Ok(Self { norms: [first, second], weight, bias, out, mlp, heads })
    }
    /// Takes x `(N, T, width)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = linear(&self.norms[0].forward(x)?, &self.weight.transpose(0, 1)?, Some(&self.bias))?;
        let mixed = attention_qkv(&qkv, self.heads, self.heads, AttentionOptions::default())?;
        let x = x.add(&self.out.forward(&mixed)?)?;
        let hidden = self.mlp[0].forward(&self.norms[1].forward(&x)?)?.gelu()?;
        x.add(&self.mlp[1].forward(&hidden)?)
    }
}
