//! Gradient descent, with and without momentum.

use super::{Hyper, OptimizerKind, Rule, UpdateStep};
use netcl_kernel::cl_file;
use std::sync::Arc;

pub(super) static KIND: OptimizerKind = OptimizerKind {
    name: "sgd",
    title: "SGD",
    hyper: &[Hyper::from_zero("momentum", 0.0), Hyper::number("dampening", 0.0), Hyper::switch("nesterov")],
    make: |values| Arc::new(Sgd { momentum: values[0], dampening: values[1], nesterov: values[2] != 0.0 }),
    text: cl_file!("sgd.cl"),
    cases: || {
        let plain = |momentum| Sgd { momentum, dampening: 0.0, nesterov: false };
        let nesterov = Sgd { momentum: 0.9, dampening: 0.3, nesterov: true };
        vec![Arc::new(plain(0.0)), Arc::new(plain(0.9)), Arc::new(nesterov)]
    },
};

/// Gradient descent; weight decay is added to the gradient. The formulas are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Fraction of the last direction that is kept; 0 keeps no buffer.
    pub momentum: f64,
    /// Dampening: fraction of the gradient that is not added to the direction.
    pub dampening: f64,
    /// Nesterov momentum, which looks ahead along the direction (Sutskever et al. 2013).
    pub nesterov: bool,
}

impl Rule for Sgd {
    fn kind(&self) -> &'static OptimizerKind {
        &KIND
    }
    fn values(&self) -> Vec<f64> {
        vec![self.momentum, self.dampening, self.nesterov.into()]
    }
    fn state(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }
    fn scalars(&self) -> [f64; 4] {
        [self.momentum, 1.0 - self.dampening, 0.0, 0.0]
    }
    fn defines(&self) -> Vec<(&'static str, bool)> {
        vec![("NESTEROV", self.nesterov)]
    }
    fn reference(&self, p: &mut f64, state: &mut [f64], step: &UpdateStep) {
        let g = step.gradient + step.decay * *p;
        let [m] = state else {
            *p -= step.lr * g;
            return;
        };
        *m = if step.number == 1 { g } else { self.momentum * *m + (1.0 - self.dampening) * g };
        *p -= step.lr * if self.nesterov { g + self.momentum * *m } else { *m };
    }
}
