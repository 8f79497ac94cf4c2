//! Embedding tables and sinusoidal positions.

use crate::params::{Init, Params};
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::{DType, Device, Result, Tensor};

/// A table `weight (V, C)`.
#[derive(Clone)]
pub struct Embedding {
    weight: Tensor,
}

impl Embedding {
    /// Returns a table initialized from a normal distribution with standard deviation `std`.
    pub fn new(params: &mut Params, name: &str, rows: usize, width: usize, std: f32) -> Result<Self> {
        Ok(Self { weight: params.make(&format!("{name}.weight"), [rows, width], Init::Normal(std))? })
    }
    /// Takes ids `(..)` → `(.., C)`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        embedding(&self.weight, ids).map_err(|e| super::in_layer(e, &self.weight))
    }
    /// Returns the table `(V, C)`; a tied output head multiplies by its transpose.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

/// Sines and cosines of Vaswani et al. (2017), section 3.5 → `(T, C)`: `sin(t / 10000^(2i/C))` at even columns, cosine at odd.
pub fn sinusoidal_positions(device: &Device, context: usize, width: usize, dtype: DType) -> Result<Tensor> {
    let value = |i: usize| {
        let (t, c) = (i / width, i % width);
        let angle = t as f64 / 10_000f64.powf((c / 2 * 2) as f64 / width as f64);
        (if c % 2 == 0 { angle.sin() } else { angle.cos() }) as f32
    };
    let data: Vec<f32> = (0..context * width).map(value).collect();
    Tensor::from_f32(device, [context, width], &data, dtype)
}
