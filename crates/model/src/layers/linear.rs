//! Linear (affine) layers over the last axis.

use crate::params::{Init, Params};
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::{Error, Result, Tensor};

/// `y = x Wᵀ + b` with `weight (out, in)`, equivalent to PyTorch's `nn.Linear`.
#[derive(Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Returns a layer with weights drawn uniformly from ±1/sqrt(in), PyTorch's default.
    pub fn new(params: &mut Params, name: &str, inputs: usize, outputs: usize, bias: bool) -> Result<Self> {
        let init = Init::kaiming_uniform(inputs);
        let weight = params.make(&format!("{name}.weight"), [outputs, inputs], init)?;
        let bias = if bias { Some(params.make(&format!("{name}.bias"), [outputs], init)?) } else { None };
        Ok(Self { weight, bias })
    }
    /// Takes x `(.., in)` → `(.., out)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_input(x, &self.weight)?;
        linear(x, &self.weight.transpose(0, 1)?, self.bias.as_ref())
    }
}

/// Checks that x has as many columns as the weight `(out, in)` has inputs. The error has the layer's name and weight shape, because the matrix
/// product called below only sees the transposed weight.
fn check_input(x: &Tensor, weight: &Tensor) -> Result<()> {
    let (found, expected) = (x.dims().last().copied(), weight.dims()[1]);
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
