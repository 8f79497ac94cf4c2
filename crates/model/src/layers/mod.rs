//! Layers: parameters with a forward function. Each follows the PyTorch layer of the same name, with the same parameter names.

mod batch_norm;
mod conv;
mod embedding;
mod linear;
mod norm;
mod over_ranks;
mod recompute;

pub use batch_norm::BatchNorm2d;
pub use conv::Conv2d;
pub use embedding::{Embedding, sinusoidal_positions};
pub use linear::Linear;
pub use norm::{LayerNorm, RmsNorm};
pub use over_ranks::{RankGroup, together};
pub use recompute::Recompute;

use netcl_tensor::random::DropMask;
use netcl_tensor::{Error, Result, Tensor};

/// Settings of a forward pass: dropout, random numbers, recomputation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode<'a> {
    /// Dropout probability; 0 when evaluating.
    pub dropout: f32,
    /// Seed of this run's random numbers.
    pub seed: u64,
    /// Number of this forward pass. Dropout masks are a function of seed and pass.
    pub pass: u64,
    /// A [`counter`](netcl_tensor::random::counter) in device memory with the number of draws before this pass, for captured steps. The host
    /// changes it between replays, so that each has its own masks. [`Mode::draws`] is its value for a pass.
    pub counter: Option<&'a Tensor>,
    /// Activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// Number of rows of the batch before those of this pass, if other ranks compute them: masks are those of the whole batch.
    pub rows_before: usize,
    /// Factor (1) f32 in device memory: the loss is the sum over the targets that are not ignored, times this factor, instead of their mean. Without
    /// targets it is then 0.
    pub loss_weight: Option<&'a Tensor>,
    /// Position of each token in its document, u32 (B, T), if a row has several documents: a token attends only to its own document.
    pub positions: Option<&'a Tensor>,
}

impl<'a> Mode<'a> {
    /// Evaluation: no dropout.
    pub fn eval() -> Self {
        Self::default()
    }
    /// Returns the number of draws before pass `pass`. Dropout sites are 2³² draws apart, passes 2⁴⁴.
    pub fn draws(pass: u64) -> u64 {
        pass.wrapping_shl(44)
    }
    /// Returns the mask of dropout number `site` in this pass for a tensor that takes `draws` draws per row of the batch.
    pub fn mask(&self, site: u64, draws: usize) -> DropMask {
        let before = (self.rows_before as u64).wrapping_mul(draws as u64);
        let offset = Self::draws(self.pass).wrapping_add(site << 32).wrapping_add(before);
        DropMask { probability: self.dropout, seed: self.seed, offset, counter: self.counter.cloned() }
    }
}

/// Returns the name of the layer that a weight belongs to: the weight's name without its last component.
pub fn layer_of(weight: &Tensor) -> &str {
    let name = weight.name().unwrap_or("layer");
    name.rsplit_once('.').map_or(name, |(layer, _)| layer)
}

/// Adds the layer's name to an error of its operation.
pub fn in_layer(error: Error, weight: &Tensor) -> Error {
    error.context(layer_of(weight))
}

/// Zeroes elements with the mode's probability and scales the rest, drawn from the stream of `site`.
pub fn dropout(x: &Tensor, mode: Mode<'_>, site: u64) -> Result<Tensor> {
    if mode.dropout <= 0.0 {
        return Ok(x.clone());
    }
    // 64 elements take 16 draws. Rows that are not a multiple of 64 elements share a draw if one rank has them all, and have separate ones otherwise.
    let row = x.count() / x.dims().first().copied().unwrap_or(1).max(1);
    netcl_tensor::ops::dropout::masked(x, mode.mask(site, row.div_ceil(64) * 16))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // helpers of tests
mod tests {
    use super::*;
    use crate::params::Params;
    use netcl_tensor::{DType, Device, ErrorKind, Settings};

    fn params() -> Params {
        let device = Device::open("sim", &Settings::default()).unwrap();
        Params::new(&device, DType::F32, Some(1))
    }

    #[test]
    fn a_layer_says_its_name_and_the_shape_of_its_weight() {
        let mut params = params();
        let linear = Linear::new(&mut params, "head.fc", 2, 8, true).unwrap();
        let norm = LayerNorm::new(&mut params, "h.0.ln_1", 2, true, 1e-5).unwrap();
        let x = Tensor::from_f32(params.device(), [3, 7], &[0.0; 21], DType::F32).unwrap();
        let said = |e: Error| {
            assert_eq!(e.kind(), ErrorKind::Shape);
            e.to_string()
        };
        let linear = said(linear.forward(&x).unwrap_err());
        let expected = "head.fc: the last axis of x [3, 7] is 7, expected 2, the inputs of the layer, whose weight is [8, 2]";
        assert_eq!(linear, expected);
        let norm = said(norm.forward(&x).unwrap_err());
        assert!(norm.starts_with("h.0.ln_1: "), "{norm}");
    }

    /// Layers compute their formulas, and all their parameters get gradients.
    #[test]
    fn layers_compute_their_formulas() {
        let mut params = params();
        let table = Embedding::new(&mut params, "table", 5, 4, 1.0).unwrap();
        let layer_norm = LayerNorm::new(&mut params, "ln", 4, true, 1e-5).unwrap();
        let rms_norm = RmsNorm::new(&mut params, "rms", 4, 1e-5).unwrap();
        let linear = Linear::new(&mut params, "fc", 4, 3, true).unwrap();
        let ids = Tensor::from_u32(params.device(), [2], &[3, 1]).unwrap();
        let x = table.forward(&ids).unwrap();
        let host = |t: &Tensor| t.to_vec().unwrap().into_iter().map(f64::from).collect::<Vec<_>>();
        let near = |got: &Tensor, expected: Vec<f64>| {
            let got = host(got);
            assert_eq!(got.len(), expected.len());
            let far = got.iter().zip(&expected).find(|(g, e)| (*g - *e).abs() > 1e-5 * (1.0 + e.abs()));
            assert!(far.is_none(), "{far:?} of {got:?}, {expected:?}");
        };
        let rows = host(table.weight());
        near(&x, [&rows[12..16], &rows[4..8]].concat());
        let x_host = host(&x);
        let normed = |centred: bool| {
            let row = |row: &[f64]| {
                let mean = if centred { row.iter().sum::<f64>() / 4.0 } else { 0.0 };
                let square = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4.0;
                row.iter().map(|v| (v - mean) / (square + 1e-5).sqrt()).collect::<Vec<_>>()
            };
            x_host.chunks(4).flat_map(row).collect::<Vec<_>>()
        };
        let (centred, scaled) = (layer_norm.forward(&x).unwrap(), rms_norm.forward(&x).unwrap());
        near(&centred, normed(true));
        near(&scaled, normed(false));
        let y = linear.forward(&centred.add(&scaled).unwrap()).unwrap();
        let named = |name: &str| params.get(name).unwrap().clone();
        let (w, b) = (host(&named("fc.weight")), host(&named("fc.bias")));
        let sum: Vec<f64> = normed(true).iter().zip(normed(false)).map(|(a, b)| a + b).collect();
        let out = |row: &[f64]| {
            let one = |o: usize| b[o] + (0..4).map(|i| row[i] * w[o * 4 + i]).sum::<f64>();
            [0, 1, 2].map(one)
        };
        near(&y, sum.chunks(4).flat_map(out).collect());
        y.mul(&y).unwrap().sum(&[], false).unwrap().backward().unwrap();
        for name in ["table.weight", "ln.weight", "ln.bias", "rms.weight", "fc.weight", "fc.bias"] {
            let gradient = named(name).grad().unwrap_or_else(|| panic!("{name} does not have a gradient"));
            assert!(host(&gradient).iter().any(|g| g.abs() > 1e-6), "{name}");
        }
    }

    #[test]
    fn two_parameters_of_one_name_are_the_callers_fault_and_not_netcls() {
        let mut params = params();
        Linear::new(&mut params, "fc", 2, 8, true).unwrap();
        let error = Linear::new(&mut params, "fc", 3, 4, true).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format);
        let message = error.message();
        assert!(
            message.contains("fc.weight") && message.contains("[8, 2]") && message.contains("a unique name"),
            "{message}"
        );
    }
}
