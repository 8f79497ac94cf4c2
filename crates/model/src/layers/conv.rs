//! Convolutions of images.

use super::in_layer;
use crate::params::{Init, Params};
use netcl_tensor::ops::conv::{Conv2dOptions, conv2d};
use netcl_tensor::{Result, Tensor};

/// Cross-correlation with `weight (G O, C, I, J)` and optional bias, equivalent to PyTorch's `nn.Conv2d`.
#[derive(Clone)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    options: Conv2dOptions,
}

impl Conv2d {
    /// Creates it for `inputs` to `outputs` channels with square kernels of `size`. Weights use He's normal initialization by fan-out, the same as
    /// torchvision's residual networks. A bias is uniform in ±1/sqrt(terms of a sum), PyTorch's default.
    pub fn new(
        params: &mut Params,
        name: &str,
        [inputs, outputs]: [usize; 2],
        size: usize,
        options: Conv2dOptions,
        bias: bool,
    ) -> Result<Self> {
        let each = inputs / options.groups.max(1);
        let init = Init::kaiming_normal(outputs * size * size / options.groups.max(1));
        let weight = params.make(&format!("{name}.weight"), [outputs, each, size, size], init)?;
        let terms = Init::kaiming_uniform(each * size * size);
        let bias = if bias { Some(params.make(&format!("{name}.bias"), [outputs], terms)?) } else { None };
        Ok(Self { weight, bias, options })
    }
    /// Takes x `(N, C, H, W)` → `(N, O, H', W')`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        conv2d(x, &self.weight, self.bias.as_ref(), self.options).map_err(|e| in_layer(e, &self.weight))
    }
}
