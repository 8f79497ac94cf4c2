//! Lion: steps of a fixed size, by the sign of an average of the gradients.

use super::{Hyper, OptimizerKind, Rule, UpdateStep};
use netcl_kernel::cl_file;
use std::sync::Arc;

pub(super) static KIND: OptimizerKind = OptimizerKind {
    name: "lion",
    title: "Lion",
    hyper: &[Hyper::share("beta1", 0.9), Hyper::share("beta2", 0.99)],
    make: |values| Arc::new(Lion { betas: [values[0], values[1]] }),
    text: cl_file!("lion.cl"),
    cases: || vec![Arc::new(Lion { betas: [0.9, 0.99] })],
};

/// Chen et al. (2023), arXiv:2302.06675; weight decay is decoupled from the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Decay rates of the average in the direction, and in the next average.
    pub betas: [f64; 2],
}

impl Rule for Lion {
    fn kind(&self) -> &'static OptimizerKind {
        &KIND
    }
    fn values(&self) -> Vec<f64> {
        self.betas.to_vec()
    }
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }
    fn scalars(&self) -> [f64; 4] {
        let [b1, b2] = self.betas;
        [1.0 - b1, 1.0 - b2, 0.0, 0.0]
    }
    fn reference(&self, p: &mut f64, state: &mut [f64], step: &UpdateStep) {
        let ([b1, b2], [m]) = (self.betas, state) else { return };
        let c = b1 * *m + (1.0 - b1) * step.gradient;
        // `signum` of 0 is 1.
        let sign = if c == 0.0 { 0.0 } else { c.signum() };
        *p -= step.lr * (sign + step.decay * *p);
        *m = b2 * *m + (1.0 - b2) * step.gradient;
    }
}
