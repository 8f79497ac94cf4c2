//! An exponential moving average of each channel with a learned decay: the smallest mixer with a recurrent state. It represents recurrent mixers in
//! tests and examples; no family's files name it. A model may have it in some layers and attention in others.
//!
//! The input is u = W x, the decay of a channel a = sigmoid(d). The state h starts at 0: h_t = a h_(t-1) + (1 - a) u_t. The result is y = W' h.

use super::{Mixer, MixerCosts, MixerKind, MixerName};
use crate::decoder::config::{DecoderConfig, LayerKind};
use crate::decoder::lister::{Lister, Map, STD, parameter};
use crate::decoder::norm::Norm;
use crate::decoder::pass::{Pass, StepAt};
use crate::decoder::projection::Projection;
use crate::decoder::state::{At, LayerState, StateSpec};
use crate::params::{Init, Params};
use netcl_tensor::ops::fused_linear::FusedOps;
use netcl_tensor::ops::join::cat;
use netcl_tensor::{Error, Result, Tensor};

/// Name of the moving average mixer.
pub const MOVING_AVERAGE: MixerName = MixerName::new("moving_average");

/// Names of its parameters.
const INPUT: &str = "average.in_proj";
const DECAY: &str = "average.decay";
const OUTPUT: &str = "average.out_proj";

/// The moving average as a [mixer kind](MixerKind).
pub struct MovingAverageKind;

/// See [`MovingAverageKind`].
pub static KIND: MovingAverageKind = MovingAverageKind;

impl MixerKind for MovingAverageKind {
    fn name(&self) -> MixerName {
        MOVING_AVERAGE
    }
    fn sizes(&self, _: &DecoderConfig) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
    fn check(&self, _: &DecoderConfig) -> Result<()> {
        Ok(())
    }
    fn check_layer(&self, _: &DecoderConfig, _: usize, _: LayerKind) -> Result<()> {
        Ok(())
    }
    fn parameters(&self, lister: &mut Lister<'_>, i: usize) {
        let c = lister.config;
        let place = c.family.names.place(i);
        let (parts, outputs) = ([INPUT], [c.width]);
        let map =
            Map { parts: &parts, packed: "", outputs: &outputs, inputs: c.width, bias: false, std: STD };
        lister.linear(&place, &map);
        lister.push(format!("{place}{DECAY}"), &[c.width], Init::Zeros);
        lister.residual_map(&place, (OUTPUT, c.width, false));
    }
    fn make(&self, params: &Params, config: &DecoderConfig, i: usize, _: u64) -> Result<Box<dyn Mixer>> {
        let names = config.family.names;
        let place = names.place(i);
        let map = |name: &str| Projection::new(params, &format!("{place}{name}"), false, names.transposed);
        let decay = parameter(params, &format!("{place}{DECAY}"))?;
        Ok(Box::new(MovingAverage { input: map(INPUT)?, decay, out: map(OUTPUT)?, index: i }))
    }
    fn state(&self, config: &DecoderConfig, _: LayerKind) -> StateSpec {
        StateSpec::Recurrent { size: config.width }
    }
    fn costs(&self, config: &DecoderConfig) -> MixerCosts {
        // Each doubling of the scan keeps its factor and its sum.
        let doublings = config.context.max(1).ilog2() as usize + 1;
        MixerCosts {
            projected: config.width,
            kept: config.width.saturating_mul(2 + 2 * doublings),
            statistics: 0,
        }
    }
    fn weights(&self, config: &DecoderConfig) -> f64 {
        2.0 * (config.width as f64).powi(2)
    }
    fn flops(&self, config: &DecoderConfig, _: LayerKind, _: usize) -> f64 {
        3.0 * 4.0 * config.width as f64
    }
}

/// The mixer of a layer.
#[derive(Clone)]
struct MovingAverage {
    input: Projection,
    /// d (C).
    decay: Tensor,
    out: Projection,
    /// Layer number, from 0.
    index: usize,
}

impl MovingAverage {
    /// Takes u (B, T, C), and h (B, C) before the first token → h after each token (B, T, C). Each pass doubles the number of tokens in a sum (Hillis
    /// and Steele 1986).
    fn averages(&self, u: &Tensor, before: Option<&Tensor>) -> Result<Tensor> {
        let ([b, _, c], mut factor) = (u.dims3()?, self.decay.sigmoid()?);
        let mut h = u.mul(&factor.rsub_scalar(1.0)?)?;
        if let Some(before) = before {
            h = cat(&[&before.reshape([b, 1, c])?, &h], 1)?;
        }
        let (tokens, mut away) = (h.dims()[1], 1);
        while away < tokens {
            let earlier = h.slice(1, 0..tokens - away)?.mul(&factor)?;
            h = cat(&[&h.slice(1, 0..away)?, &h.slice(1, away..tokens)?.add(&earlier)?], 1)?;
            (factor, away) = (factor.mul(&factor)?, 2 * away);
        }
        if before.is_some() { h.slice(1, 1..tokens)?.contiguous() } else { Ok(h) }
    }

    /// Does the same after the tokens of a state, which these tokens extend.
    fn go_on(&self, u: &Tensor, state: &LayerState, at: At<'_>) -> Result<Tensor> {
        let h = self.averages(u, Some(&state.recall(at)?))?;
        state.keep(&h, at)?;
        Ok(h)
    }
}

impl Mixer for MovingAverage {
    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        if pass.mode.positions.is_some() {
            return Err(Error::unsupported(
                "moving average: rows of several documents are not supported; train without --pack",
            ));
        }
        let u = self.input.forward(x)?;
        let Some(past) = pass.past else { return self.averages(&u, None) };
        let position = Tensor::from_u32(u.device(), [1], &[past.start as u32])?;
        self.go_on(&u, past.state(self.index)?, At { position: &position, pages: past.pages })
    }
    fn step(&self, x: &Tensor, norm: Option<&Norm>, at: &StepAt<'_>) -> Result<Tensor> {
        let u = self.input.around(x, FusedOps { norm: norm.map(Norm::before), ..FusedOps::default() })?;
        self.go_on(&u, at.state(self.index)?, At { position: at.position, pages: at.pages })
    }
    fn out(&self) -> &Projection {
        &self.out
    }
    fn maps(&mut self) -> Vec<&mut Projection> {
        vec![&mut self.input, &mut self.out]
    }
    fn boxed(&self) -> Box<dyn Mixer> {
        Box::new(self.clone())
    }
}
