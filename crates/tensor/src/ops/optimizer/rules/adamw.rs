//! Adam with weight decay decoupled from the gradient.

use super::{Hyper, OptimizerKind, Rule, UpdateStep};
use netcl_kernel::cl_file;
use std::sync::Arc;

pub(super) static KIND: OptimizerKind = OptimizerKind {
    name: "adamw",
    title: "AdamW",
    hyper: &[Hyper::share("beta1", 0.9), Hyper::share("beta2", 0.999), Hyper::from_zero("eps", 1e-8)],
    make: |values| Arc::new(AdamW { betas: [values[0], values[1]], eps: values[2] }),
    text: cl_file!("adamw.cl"),
    cases: || vec![Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 })],
};

/// Kingma and Ba (2015) with weight decay decoupled from the gradient (Loshchilov and Hutter 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay rates of the averages of the gradient and of its square.
    pub betas: [f64; 2],
    /// Added to the square root in the denominator.
    pub eps: f64,
}

impl Rule for AdamW {
    fn kind(&self) -> &'static OptimizerKind {
        &KIND
    }
    fn values(&self) -> Vec<f64> {
        vec![self.betas[0], self.betas[1], self.eps]
    }
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }
    fn averages(&self) -> [f64; 2] {
        self.betas
    }
    fn scalars(&self) -> [f64; 4] {
        let [b1, b2] = self.betas;
        [1.0 - b1, b2, 1.0 - b2, self.eps]
    }
    fn reference(&self, p: &mut f64, state: &mut [f64], step: &UpdateStep) {
        let ([b1, b2], [m, v]) = (self.betas, state) else { return };
        let g = step.gradient;
        *p *= 1.0 - step.lr * step.decay;
        *m = b1 * *m + (1.0 - b1) * g;
        *v = b2 * *v + (1.0 - b2) * g * g;
        let (m, v) = (*m / (1.0 - b1.powi(step.number)), *v / (1.0 - b2.powi(step.number)));
        *p -= step.lr * m / (v.sqrt() + self.eps);
    }
}
