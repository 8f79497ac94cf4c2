//! Optimizers: a step updates all parameters in a few launches. Gradient clipping and moments are on the device.

use crate::edge::{raised, run, wait};
use crate::files::{Stored, from_stored, stored};
use crate::tensor::PyTensor;
use netcl::prelude::{Optimizer, ParamGroup, Tensor};
use netcl::train::optim::by_name;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// A parameter group as given in Python: named parameters, weight decay, and a factor for the learning rate.
type Group = (Vec<(String, Py<PyTensor>)>, f64, f64);

/// An optimizer over all parameters.
#[pyclass(name = "Update", module = "netcl")]
pub struct PyUpdate(Optimizer);

#[pymethods]
impl PyUpdate {
    #[new]
    fn new(py: Python<'_>, name: &str, groups: Vec<Group>, hyper: BTreeMap<String, f64>) -> PyResult<Self> {
        let hyper: Vec<(&str, f64)> = hyper.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let rule = by_name(name, &hyper).map_err(|e| raised(py, &e))?;
        let (mut all, mut names) = (Vec::with_capacity(groups.len()), Vec::new());
        for (params, weight_decay, lr_scale) in groups {
            let params = params.into_iter().map(|(name, param)| {
                let mut param = param.bind(py).borrow_mut();
                // A frozen parameter becomes a leaf here, so that the optimizer knows it when it is unfrozen. Other leaves are kept.
                if !param.inner.requires_grad() && param.inner.name().is_none() {
                    param.inner = param.inner.frozen(&name);
                }
                names.push(name);
                param.inner.clone()
            });
            all.push(ParamGroup { params: params.collect::<Vec<Tensor>>(), weight_decay, lr_scale });
        }
        run(py, move || Optimizer::with_names(rule, all, names)).map(Self)
    }
    /// Enables clipping from the next step on: gradients are scaled down so that their total norm is at most `max_norm`. 0 only measures
    /// the norm.
    fn clip_grad_norm(&mut self, max_norm: f64) {
        self.0.clip_grad_norm(max_norm);
    }
    /// Changes hyperparameters, and pairs of weight decay and learning rate factor of all parameters. State is kept.
    fn reconfigure(
        &mut self,
        py: Python<'_>,
        hyper: BTreeMap<String, f64>,
        factors: Vec<(f64, f64)>,
    ) -> PyResult<()> {
        let hyper: Vec<(&str, f64)> = hyper.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let rule = by_name(self.0.rule().kind().name, &hyper).map_err(|e| raised(py, &e))?;
        let optimizer = &mut self.0;
        run(py, move || optimizer.reconfigure(rule, &factors))
    }
    /// Runs one step. Every parameter must have a gradient.
    fn step(&mut self, py: Python<'_>, lr: f64) -> PyResult<()> {
        let optimizer = &mut self.0;
        run(py, move || optimizer.step(lr))
    }
    /// Runs the host's part of a step: sets the learning rate for the device's part, which may be in a captured graph.
    fn set_rate(&mut self, py: Python<'_>, lr: f64) -> PyResult<()> {
        let optimizer = &mut self.0;
        run(py, move || optimizer.set_rate(lr))
    }
    /// Runs the device's part of a step.
    fn apply(&mut self, py: Python<'_>) -> PyResult<()> {
        let optimizer = &mut self.0;
        run(py, move || optimizer.apply())
    }
    /// Counts a step. Must be called each time the device's part is enqueued.
    fn count(&self) {
        self.0.count();
    }
    /// Drops the gradients.
    fn zero_grad(&self) {
        self.0.zero_grad();
    }
    /// Must be called after parameters were overwritten.
    fn weights_changed(&mut self) {
        self.0.weights_changed();
    }
    /// Returns the norm of all gradients in the last step, and whether the step was skipped. Waits for the device.
    fn report(&self, py: Python<'_>) -> PyResult<(f64, bool)> {
        let report = run(py, || self.0.report())?;
        let info = wait(py, move || report.read())?;
        Ok((info.norm.into(), info.skipped))
    }
    /// Returns the optimizer state. Together with the weights, it allows resuming with bitwise equal results.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let state = run(py, || self.0.state_dict())?;
        Ok(state.iter().map(|t| stored(py, &t.view())).collect())
    }
    /// Restores a state that `state` returned.
    fn load_state(&mut self, py: Python<'_>, state: Vec<Stored<'_>>) -> PyResult<()> {
        let state = from_stored(py, state)?;
        let optimizer = &mut self.0;
        run(py, move || optimizer.load_state_dict(&state))
    }
}
