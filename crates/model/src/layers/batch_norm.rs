//! Batch normalization with running statistics.

use super::{in_layer, over_ranks};
use crate::params::{Init, Params};
use netcl_tensor::ops::batch_norm::{Activation, Running, batch_norm_activated, batch_norm_inference};
use netcl_tensor::{DType, Result, Tensor};

/// Batch normalization over the channels of `(N, C, ..)`, equivalent to PyTorch's `nn.BatchNorm2d`.
#[derive(Clone)]
pub struct BatchNorm2d {
    name: String,
    weight: Tensor,
    bias: Tensor,
    running: Running,
    eps: f32,
    momentum: f32,
}

impl BatchNorm2d {
    /// Creates it for `channels` channels with PyTorch's defaults: an epsilon of 1e-5 and a momentum of 0.1.
    pub fn new(params: &mut Params, name: &str, channels: usize) -> Result<Self> {
        let weight = params.make(&format!("{name}.weight"), [channels], Init::Ones)?;
        let bias = params.make(&format!("{name}.bias"), [channels], Init::Zeros)?;
        let device = params.device();
        let running = Running {
            mean: Tensor::zeros(device, [channels], DType::F32)?,
            variance: Tensor::ones(device, [channels], DType::F32)?,
        };
        Ok(Self { name: name.into(), weight, bias, running, eps: 1e-5, momentum: 0.1 })
    }
    /// Takes x `(N, C, ..)` → the same shape. Training uses the batch's own statistics and updates the running ones; otherwise the running statistics
    /// are used.
    pub fn forward(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        self.activated(x, training, Activation::None)
    }
    /// Computes [`forward`](Self::forward) followed by an activation, which costs nothing while training.
    pub fn activated(&self, x: &Tensor, training: bool, activation: Activation) -> Result<Tensor> {
        let named = |e| in_layer(e, &self.weight);
        if !training {
            let y =
                batch_norm_inference(x, &self.weight, &self.bias, &self.running, self.eps).map_err(named)?;
            return behind(y, activation);
        }
        if let Some(ranks) = over_ranks::ranks() {
            let of_all =
                over_ranks::normed(&ranks, x, [&self.weight, &self.bias], self.eps).map_err(named)?;
            self.running.update(&of_all.mean, &of_all.variance, of_all.count, self.momentum)?;
            return behind(of_all.y, activation);
        }
        let [y, mean, variance] =
            batch_norm_activated(x, &self.weight, &self.bias, self.eps, activation).map_err(named)?;
        let count = x.count() / x.dims()[1].max(1);
        self.running.update(&mean.detach(), &variance.detach(), count, self.momentum)?;
        Ok(y)
    }
    /// Returns the running mean and variance with their names in a state dict, f32 `(C)`.
    pub fn buffers(&self) -> [(String, Tensor); 2] {
        [
            (format!("{}.running_mean", self.name), self.running.mean.clone()),
            (format!("{}.running_var", self.name), self.running.variance.clone()),
        ]
    }
}

fn behind(y: Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::None => Ok(y),
        Activation::Relu => y.relu(),
        Activation::Relu6 => y.clamp(0.0, 6.0),
    }
}
