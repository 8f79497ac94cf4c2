//! The time of a step.

use super::{Compute, RunToPlan, Strategy};
use crate::train::{BUCKET, FIRST_BUCKET, is_apart};

impl RunToPlan<'_> {
    /// Returns the seconds of one device for forward and backward of a micro-batch of `rows`, and for an update of the whole model.
    fn compute(&self, rows: usize) -> [f64; 2] {
        let tokens = |rows: usize| (rows * self.model.context) as f64;
        let update = self.update();
        let c = self.config;
        match self.compute {
            Compute::Flops(speed) => {
                [self.model.flops(rows * self.model.context, self.model.context) / speed, update]
            }
            Compute::TokensPerS(speed) => {
                // The speed is that of whole steps with the configured batch, including the update.
                let step = tokens(c.batch) * f64::from(c.grad_accum) / speed;
                let passes = (step - update).max(0.0) / f64::from(c.grad_accum);
                [passes * rows as f64 / c.batch.max(1) as f64, update]
            }
            Compute::Measured { rows: of, passes, update } => {
                [passes * rows as f64 / of.max(1) as f64, update]
            }
        }
    }

    /// Returns the seconds of an update from the bytes that it moves: weights and optimizer's state are read and written, gradients read.
    pub fn update(&self) -> f64 {
        let plan = self.whole(1, 1);
        (2 * plan.parameters + plan.gradients + 2 * plan.optimizer) as f64 / self.machine.memory_bandwidth
    }

    /// Returns the seconds of a step: forward and backward, exposed exchange, update.
    pub(super) fn parts(
        &self,
        devices: usize,
        strategy: Strategy,
        (rows, accum): (usize, usize),
    ) -> [f64; 3] {
        let [passes, update] = self.compute(rows);
        let bytes = self.whole(1, 1).gradients as f64;
        let weights = self.whole(1, 1).parameters as f64;
        let n = devices;
        // The backward takes two thirds of the last micro-batch's time.
        let backward = passes * 2.0 / 3.0;
        match strategy {
            Strategy::Data => {
                let exchange = self.exchange(bytes, backward, n, |bytes| self.link.all_reduce(bytes, n));
                [passes * accum as f64, exchange, update]
            }
            Strategy::Optimizer | Strategy::Gradients => {
                // Each rank keeps its share of the sums, and the new weights come from all ranks, in the order in which the next forward uses them.
                let gather = |bytes: f64| self.link.all_gather(bytes, n);
                let exchange = self.exchange(bytes, backward, n, gather);
                let weights = self.gather(weights, passes / 3.0, n, gather);
                [passes * accum as f64, exchange + weights, update / n as f64]
            }
            Strategy::Pipeline(stages) => {
                let (p, slowest) = (stages as f64, self.slowest_stage(stages));
                let slots = (accum + stages - 1) as f64;
                let state = (rows * self.model.context * self.model.width * self.config.dtype.size()) as f64;
                // For each micro-batch, a state goes forward and its gradient backward, through the relay.
                let send = 2.0 * (self.link.message(state) + 2.0 * state / self.machine.relay);
                let replicas = n / stages.max(1);
                let sum = |bytes: f64| self.link.all_reduce(bytes, replicas);
                let exchange = self.exchange(bytes / p, backward * slowest, replicas, sum);
                [passes * slowest * slots, exchange + send * slots, update / p]
            }
        }
    }

    /// Returns the seconds that the exchange of `bytes` of gradients between `ranks` continues after a backward of `backward` seconds. `operation` is
    /// the time of the collective operation of a buffer.
    fn exchange(&self, bytes: f64, backward: f64, ranks: usize, operation: impl Fn(f64) -> f64) -> f64 {
        let relay = |bytes: f64| bytes / self.machine.relay;
        let network = |bytes: f64| {
            if ranks > 1 { operation(bytes) + bytes / self.machine.sums } else { operation(bytes) }
        };
        if operation(bytes) == 0.0 {
            return 0.0;
        }
        if !self.overlap {
            return 2.0 * relay(bytes) + network(bytes);
        }
        let mut free = [0.0f64; 3];
        for (each, at) in self.buffers(bytes) {
            let mut ready = backward * at;
            for (stage, took) in [relay(each), network(each), relay(each)].into_iter().enumerate() {
                ready = ready.max(free[stage]) + took;
                free[stage] = ready;
            }
        }
        (free[2] - backward).max(0.0)
    }

    /// Returns the seconds that a forward of `forward` seconds waits for `bytes` of weights, of which each of `ranks` devices has its part. It waits
    /// for the whole embedding, and for other weights if they arrive later than they are needed. `operation` is the time of the collective operation
    /// of a buffer.
    fn gather(&self, bytes: f64, forward: f64, ranks: usize, operation: impl Fn(f64) -> f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        // Each device sends its own part down to the host, and receives the parts of others.
        let others = (ranks - 1) as f64 / ranks as f64;
        let down = |bytes: f64| bytes / ranks as f64 / self.machine.relay;
        let up = |bytes: f64| bytes * others / self.machine.relay;
        if !self.overlap {
            return down(bytes) + operation(bytes) + up(bytes);
        }
        let (mut free, mut used, mut exposed) = ([0.0f64; 3], 0.0, 0.0f64);
        for each in self.weights(bytes) {
            let mut there = 0.0f64;
            for (stage, took) in [down(each), operation(each), up(each)].into_iter().enumerate() {
                there = there.max(free[stage]) + took;
                free[stage] = there;
            }
            exposed = exposed.max(there - forward * used / bytes);
            used += each;
        }
        exposed
    }

    /// Returns the sizes of the parts of `bytes` of weights in the order of a forward: the embedding, then parts as large as gradient buffers.
    fn weights(&self, bytes: f64) -> Vec<f64> {
        let table = (self.model.vocab * self.model.width * self.config.dtype.size()) as f64;
        let mut sizes = vec![table.min(bytes)];
        let (mut left, bucket) = (bytes - table.min(bytes), (BUCKET as f64).max(bytes / 1e6));
        while left > 0.0 {
            sizes.push(bucket.min(left));
            left -= bucket.min(left);
        }
        sizes
    }

    /// Returns the buffers in which `bytes` of gradients are exchanged, with the fraction of the backward at which each is ready. Those of the head
    /// come first. A large tied table comes with the head, and the rows of its tokens once more at the end.
    fn buffers(&self, bytes: f64) -> Vec<(f64, f64)> {
        let size = self.config.dtype.size() as f64;
        let table = (self.model.vocab * self.model.width) as f64 * size;
        let apart = self.model.tied && is_apart(self.model.vocab * self.model.width, self.config.dtype);
        let mut sizes = Vec::new();
        let mut left = bytes;
        if apart && table < left {
            sizes.push(table);
            left -= table;
        }
        let mut bucket = FIRST_BUCKET as f64;
        while left > 0.0 {
            // More than a million buffers of one size behave like one stream.
            bucket = bucket.max(bytes / 1e6).min(left);
            sizes.push(bucket);
            left -= bucket;
            bucket = (left / 2.0).clamp(FIRST_BUCKET as f64, BUCKET as f64);
        }
        let mut done = 0.0;
        let mut buffers: Vec<(f64, f64)> = sizes
            .into_iter()
            .map(|each| {
                done += each;
                (each, done / bytes)
            })
            .collect();
        if apart {
            let tokens = self.step_rows() * self.model.context;
            let rows = distinct(self.model.vocab, tokens);
            buffers.push((rows * self.model.width as f64 * size, 1.0));
        }
        buffers
    }
}

/// Returns the expected number of different tokens among `tokens` drawn by Zipf's law, which approximates texts: the frequency of the `i`-th token is
/// proportional to `1 / i`.
fn distinct(vocab: usize, tokens: usize) -> f64 {
    let harmonic: f64 = (1..=vocab).map(|i| 1.0 / i as f64).sum();
    (1..=vocab).map(|i| 1.0 - (-(tokens as f64) / (i as f64 * harmonic)).exp()).sum()
}
