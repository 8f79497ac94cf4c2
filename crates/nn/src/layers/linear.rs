//! Affine maps over the last axis.

use crate::params::{Init, Params};
use netcl_tensor::ops::feed_forward::linear_add;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::{Error, Result, Tensor};

/// `y = x Wᵀ + b` with `weight (out, in)`, as PyTorch's `nn.Linear`.
#[derive(Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Weights uniform in ±1/sqrt(in), PyTorch's default.
    pub fn new(params: &mut Params, name: &str, inputs: usize, outputs: usize, bias: bool) -> Result<Self> {
        let init = Init::kaiming_uniform(inputs);
        let weight = params.make(&format!("{name}.weight"), [outputs, inputs], init)?;
        let bias = if bias { Some(params.make(&format!("{name}.bias"), [outputs], init)?) } else { None };
        Ok(Self { weight, bias })
    }
    /// x `(.., in)` → `(.., out)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_input(x, &self.weight, 1)?;
        linear(x, &self.weight.transpose(0, 1)?, self.bias.as_ref())
    }
}

/// x has as many columns as the weight has inputs, which are its axis `inputs`. Said in the layer's own terms: the product below
/// knows neither its name nor that the weight lies the other way round.
fn check_input(x: &Tensor, weight: &Tensor, inputs: usize) -> Result<()> {
    let (found, expected) = (x.dims().last().copied(), weight.dims()[inputs]);
    if found == Some(expected) {
        return Ok(());
    }
    let (name, found) = (super::layer_of(weight), found.map_or("missing".into(), |n| n.to_string()));
    Err(Error::shape(format!(
        "{name}: the last axis of x {} is {found}, expected {expected}, the inputs of the layer, whose weight is {}",
        x.shape(),
        weight.shape()
    )))
}

/// `y = x W + b` with `weight (in, out)`, as GPT-2's checkpoints store it.
#[derive(Clone)]
pub struct Conv1D {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Conv1D {
    /// Weights normal with standard deviation `std`, bias 0.
    pub fn new(
        params: &mut Params,
        name: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
        std: f32,
    ) -> Result<Self> {
        let weight = params.make(&format!("{name}.weight"), [inputs, outputs], Init::Normal(std))?;
        let bias =
            if bias { Some(params.make(&format!("{name}.bias"), [outputs], Init::Zeros)?) } else { None };
        Ok(Self { weight, bias })
    }
    /// x `(.., in)` → `(.., out)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_input(x, &self.weight, 0)?;
        linear(x, &self.weight, self.bias.as_ref())
    }
    /// `residual + forward(x)`, in one launch where the device's matrix kernel can.
    pub fn forward_add(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        check_input(x, &self.weight, 0)?;
        match &self.bias {
            Some(bias) => linear_add(residual, x, &self.weight, bias),
            None => residual.add(&self.forward(x)?),
        }
    }
    /// Weight, and bias where there is one.
    pub fn parts(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }
}
