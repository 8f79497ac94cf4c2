//! A classifier as a graph of operations, which runs without the training code.

use super::Classifier;
use netcl_tensor::opgraph::OpGraph;
use netcl_tensor::{DType, Result, Tensor};

impl Classifier {
    /// Records the graph for any number of rows. Its input is `image` (rows, C, H, W), f32 from 0 to 1, and its output the probability of each class
    /// (rows, classes).
    ///
    /// # Errors
    /// `Unsupported` with an operation that a graph cannot contain; errors of the device.
    pub fn graph(&self) -> Result<OpGraph> {
        let [channels, height, width] = self.about.size;
        let column = |name: &str, i: usize| {
            let values: Vec<f32> = self.about.statistics.iter().map(|s| s[i]).collect();
            Tensor::from_f32(&self.device, [channels, 1, 1], &values, DType::F32).map(|t| t.frozen(name))
        };
        let (mean, deviation) = (column("mean", 0)?, column("deviation", 1)?);
        let gray = Tensor::full(&self.device, [1, channels, height, width], 0.5, DType::F32)?;
        OpGraph::for_any_rows(&[("image", &gray)], |x| {
            let scaled = x[0].sub(&mean)?.div(&deviation)?;
            Ok(vec![self.network.forward(&scaled, false)?.softmax(-1)?])
        })
    }
}
