//! Optimizers over parameter groups.
//!
//! A step updates all parameters in a handful of launches and returns at once. Clipping, loss scaling and the decision to skip are made on the
//! device. [`KINDS`] lists the optimizers; [`by_name`] creates one from settings.
//!
//! ```no_run
//! # use netcl_train::optim::{AdamW, Optimizer, ParamGroup};
//! # use std::sync::Arc;
//! # fn train(params: &[netcl_tensor::Tensor], loss: netcl_tensor::Tensor) -> netcl_tensor::Result<()> {
//! let rule = Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 });
//! let mut optimizer = Optimizer::new(rule, ParamGroup::gpt(params, 0.1))?;
//! optimizer.clip_grad_norm(1.0);
//! optimizer.zero_grad();
//! optimizer.backward(&loss)?;
//! optimizer.step(1e-3)?;
//! let report = optimizer.report()?;
//! // … the next step is enqueued here …
//! println!("gradient norm {}", report.read()?.norm);
//! # Ok(()) }
//! ```

mod parts;

pub use parts::{ParameterPart, StatePart};

use netcl_model::checkpoint::{Bytes, FileDtype, TensorData, TensorToWrite};
pub use netcl_tensor::ops::optimizer::{
    Adam, AdamW, Hyper, KINDS, Lion, LossScale, OptimizerKind, Report, Rule, Sgd, StepInfo, UpdateStep,
};
use netcl_tensor::ops::optimizer::{Counters, Entry, Total, Update};
use netcl_tensor::{DType, Error, Result, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MASTER: &str = ".master";
const STEP: &str = "step";
const LOSS_SCALE: &str = "loss_scale";
const GOOD_STEPS: &str = "good_steps";

/// Creates the optimizer of this name with these hyperparameters, and defaults for the others.
///
/// # Errors
/// `Format` for an unknown name or hyperparameter, with the known ones, and for a value out of its bounds.
pub fn by_name(name: &str, hyper: &[(&str, f64)]) -> Result<Arc<dyn Rule>> {
    OptimizerKind::named(name)?.with(hyper)
}

/// Parameters with the same weight decay and learning rate factor.
#[derive(Clone, Debug)]
pub struct ParamGroup {
    /// Tensors made by [`Tensor::parameter`].
    pub params: Vec<Tensor>,
    /// Weight decay.
    pub weight_decay: f64,
    /// Factor on the learning rate.
    pub lr_scale: f64,
}

impl ParamGroup {
    /// Creates a group with learning rate factor 1.
    pub fn new(params: &[Tensor], weight_decay: f64) -> Self {
        Self { params: params.to_vec(), weight_decay, lr_scale: 1.0 }
    }
    /// Groups parameters by the convention for GPTs: matrices and embeddings decay; biases and norms do not.
    pub fn gpt(params: &[Tensor], weight_decay: f64) -> Vec<Self> {
        let (matrices, vectors): (Vec<_>, Vec<_>) = params.iter().cloned().partition(|p| p.dims().len() >= 2);
        vec![Self::new(&matrices, weight_decay), Self::new(&vectors, 0.0)]
    }
}

/// An optimizer and its state.
pub struct Optimizer {
    update: Update,
    /// The parameters, group by group.
    params: Vec<Tensor>,
    /// Names of the parameters in states.
    names: Vec<String>,
    /// The updated parts of the parameters, one per entry of the update, if not everything is updated here.
    parts: Option<Vec<ParameterPart>>,
    max_norm: Option<f64>,
    scaling: bool,
}

impl Optimizer {
    /// Creates an optimizer for the parameters of all groups. Create it after weights were loaded, or call [`Optimizer::weights_changed`] afterwards.
    ///
    /// # Errors
    /// `Shape` for parameters without a name, with the same name, or that share memory; `Format` for a hyperparameter out of its bounds; `Memory`.
    pub fn new(rule: Arc<dyn Rule>, groups: Vec<ParamGroup>) -> Result<Self> {
        Self::make(rule, groups, None)
    }
    /// Does the same with dynamic loss scaling, for f16: use [`Optimizer::backward`].
    pub fn with_loss_scale(rule: Arc<dyn Rule>, groups: Vec<ParamGroup>, scale: LossScale) -> Result<Self> {
        Self::make(rule, groups, Some(scale))
    }
    /// Creates the optimizer for parameters stored as `dtype`: with dynamic loss scaling for f16, whose gradients would underflow, without it for
    /// other types.
    ///
    /// # Errors
    /// Errors of [`Optimizer::new`].
    pub fn for_storage(rule: Arc<dyn Rule>, groups: Vec<ParamGroup>, dtype: DType) -> Result<Self> {
        Self::make(rule, groups, (dtype == DType::F16).then(LossScale::default))
    }

    /// Does the same with names of the parameters in states, group by group. The parameters' own names are not used, so several optimizers
    /// can give one parameter different names.
    ///
    /// # Errors
    /// `Shape` for another number of names than parameters, or for a name that occurs twice; other errors of [`Optimizer::new`].
    pub fn with_names(rule: Arc<dyn Rule>, groups: Vec<ParamGroup>, names: Vec<String>) -> Result<Self> {
        let entries = Self::unnamed_entries(groups);
        if names.len() != entries.len() {
            return Err(Error::shape(format!(
                "optimizer: got {} names for {} parameters",
                names.len(),
                entries.len()
            )));
        }
        Self::check_names(&names)?;
        Self::over(rule, entries, names, None)
    }

    fn make(rule: Arc<dyn Rule>, groups: Vec<ParamGroup>, scale: Option<LossScale>) -> Result<Self> {
        let entries = Self::entries(groups)?;
        let names = entries.iter().map(|e| e.param.name().unwrap_or_default().to_owned()).collect();
        Self::over(rule, entries, names, scale)
    }

    fn over(
        rule: Arc<dyn Rule>,
        entries: Vec<Entry>,
        names: Vec<String>,
        scale: Option<LossScale>,
    ) -> Result<Self> {
        let params = entries.iter().map(|e| e.param.clone()).collect();
        let (parts, scaling) = (None, scale.is_some());
        Ok(Self { update: Update::new(rule, entries, scale)?, params, names, parts, max_norm: None, scaling })
    }

    fn unnamed_entries(groups: Vec<ParamGroup>) -> Vec<Entry> {
        let entry = |weight_decay, lr_scale| move |param| Entry { param, weight_decay, lr_scale };
        groups.into_iter().flat_map(|g| g.params.into_iter().map(entry(g.weight_decay, g.lr_scale))).collect()
    }

    fn check_names(names: &[String]) -> Result<()> {
        let mut seen = BTreeSet::new();
        match names.iter().find(|name| !seen.insert(name.as_str())) {
            Some(name) => Err(Error::shape(format!("optimizer: two parameters are named {name}"))),
            None => Ok(()),
        }
    }

    /// Returns the parameters of all groups, which must have names.
    fn entries(groups: Vec<ParamGroup>) -> Result<Vec<Entry>> {
        let entries = Self::unnamed_entries(groups);
        let name = |Entry { param, .. }: &Entry| {
            param.name().map(str::to_owned).ok_or_else(|| {
                Error::shape(format!(
                    "optimizer: a tensor of shape {} does not have a name; make it with Tensor::parameter",
                    param.shape()
                ))
            })
        };
        Self::check_names(&entries.iter().map(name).collect::<Result<Vec<_>>>()?)?;
        Ok(entries)
    }

    /// Limits the norm of all gradients together to `max_norm` from the next step on, by scaling them down; 0 only measures the norm.
    pub fn clip_grad_norm(&mut self, max_norm: f64) {
        self.max_norm = Some(max_norm);
    }

    /// Computes the gradients of `loss`, multiplied by the loss scale if there is one, and adds them to the accumulated gradients.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.update.backward(loss)
    }
    /// Performs one step with learning rate `lr`.
    ///
    /// # Errors
    /// `Shape` with the name of a parameter without gradient; nothing is changed then.
    pub fn step(&mut self, lr: f64) -> Result<()> {
        self.update.step(lr, self.max_norm)
    }
    /// Performs the host part of [`Optimizer::step`]: uploads the learning rate. Not captured.
    pub fn set_rate(&mut self, lr: f64) -> Result<()> {
        self.update.set(lr, self.max_norm)
    }
    /// Performs the device part of [`Optimizer::step`], which can be captured as a graph. Call [`Optimizer::count`] for each time it was enqueued or
    /// replayed.
    ///
    /// # Errors
    /// `Shape` with the name of a parameter without gradient.
    pub fn apply(&mut self) -> Result<()> {
        self.update.apply()
    }
    /// Does the same if other devices have other parameters of the same model; see [`Update::apply_with`].
    ///
    /// # Errors
    /// Errors of [`Optimizer::apply`]; those of `total`.
    pub fn apply_with(&mut self, total: &mut Total<'_>) -> Result<()> {
        self.update.apply_with(total)
    }
    /// Allocates the optimizer's tables and buffers (except the moments), according to the gradients present; changes no parameter.
    ///
    /// # Errors
    /// `Shape` with the name of a parameter without gradient.
    pub fn prepare(&mut self) -> Result<()> {
        self.update.prepare_plan()
    }
    /// Counts a step that was enqueued; the next [`Optimizer::report`] belongs to it.
    pub fn count(&self) {
        self.update.count();
    }
    /// Changes hyperparameters, and weight decay and learning rate factor of each parameter, in their order; see [`Update::reconfigure`].
    ///
    /// # Errors
    /// Errors of [`Update::reconfigure`].
    pub fn reconfigure(&mut self, rule: Arc<dyn Rule>, factors: &[(f64, f64)]) -> Result<()> {
        self.update.reconfigure(rule, factors)
    }
    /// Returns the rule by which parameters are updated.
    pub fn rule(&self) -> &dyn Rule {
        self.update.rule()
    }
    /// Drops the gradients.
    pub fn zero_grad(&self) {
        self.params().for_each(|p| p.set_grad(None));
        self.parts.iter().flatten().for_each(|part| part.view.set_grad(None));
    }
    /// Returns the result of the last step (gradient norm, whether it was skipped). Reading it one step later does not wait for the device.
    pub fn report(&self) -> Result<Report> {
        self.update.report()
    }
    /// Returns the parameters, group by group.
    pub fn params(&self) -> impl Iterator<Item = &Tensor> {
        self.params.iter()
    }
    /// Declares that only steps and [`Optimizer::weights_changed`] change parameters, as in a trainer: steps do not check for other writes.
    pub fn owns_parameters(&mut self) {
        self.update.owns_parameters();
    }
    /// Copies parameters to the f32 master weights. Call it after parameters were overwritten.
    pub fn weights_changed(&mut self) {
        self.update.take_master(true);
    }

    /// Sets the master weights of f16 and bf16 parameters from the tensors that the parameters were loaded from, by name: an f32 file has
    /// more digits than the 16-bit parameters. Parameters in f32 do not need master weights and are skipped.
    ///
    /// # Errors
    /// `Format` with the name of the parameter that `weights` lacks or has in another shape; nothing is changed then.
    pub fn load_master(&mut self, weights: &[TensorData]) -> Result<()> {
        let mut found = Vec::new();
        for StatePart { name, shape, first, tensor } in self.state_parts()? {
            let Some(name) = name.strip_suffix(MASTER) else { continue };
            match weights.iter().find(|t| t.name == name) {
                Some(data) if data.shape == shape => found.push((tensor, data.floats()?, first)),
                Some(data) => {
                    return Err(Error::format(format!(
                        "master weights: {data:?}, expected the shape {shape:?}"
                    )));
                }
                None => return Err(Error::format(format!("master weights: {name} is missing"))),
            }
        }
        found.iter().try_for_each(|(tensor, data, first)| {
            data.get(*first..first + tensor.count()).map_or_else(
                || Err(Error::format("master weights: the tensor's data is truncated")),
                |part| tensor.set_f32(part),
            )
        })?;
        self.update.take_master(false);
        Ok(())
    }

    /// Returns the state that, with the weights, allows a bit-exact continuation: `step`, the moments (`….exp_avg`, `….exp_avg_sq`,
    /// `….momentum_buffer`) and master weights (`….master`) of each parameter, and the loss scale.
    pub fn state_dict(&self) -> Result<Vec<TensorData>> {
        self.planned_state()?.iter().map(TensorToWrite::take).collect()
    }

    /// Returns the same; moments and master weights are copied to the host when their bytes are requested.
    ///
    /// # Errors
    /// Errors of the device; `Unsupported` if it has the state of some parts only.
    pub fn planned_state(&self) -> Result<Vec<TensorToWrite<'static>>> {
        if self.parts.is_some() {
            return Err(Error::unsupported("optimizer: the state of other parts is on other ranks"));
        }
        let mut all = self.planned_counters()?;
        for StatePart { name, shape, tensor, .. } in self.state_parts()? {
            let bytes = Bytes::Later(Box::new(move || tensor.to_bytes()));
            all.push(TensorToWrite { name, dtype: FileDtype::F32, shape, bytes });
        }
        Ok(all)
    }

    /// Returns the state that does not belong to a parameter: steps and loss scale.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn planned_counters(&self) -> Result<Vec<TensorToWrite<'static>>> {
        let counters = self.update.counters()?;
        let number = |name: &str, dtype: FileDtype, bytes: Vec<u8>| TensorToWrite {
            name: name.into(),
            dtype,
            shape: Vec::new(),
            bytes: Bytes::Later(Box::new(move || Ok(bytes.clone()))),
        };
        let integer = |name, value: u32| number(name, FileDtype::I64, i64::from(value).to_le_bytes().into());
        let mut all = vec![integer(STEP, counters.step)];
        if self.scaling {
            all.push(integer(GOOD_STEPS, counters.good));
            all.push(number(LOSS_SCALE, FileDtype::F32, counters.scale.to_le_bytes().into()));
        }
        Ok(all)
    }

    /// Loads the state of [`Optimizer::state_dict`]. If the `….master` tensors are missing, master weights are copied from the parameters, which
    /// must have been loaded before.
    ///
    /// # Errors
    /// `Format` with the name of a tensor that is missing, unknown or of another shape; nothing is changed then.
    pub fn load_state_dict(&mut self, state: &[TensorData]) -> Result<()> {
        let mut given: BTreeMap<&str, &TensorData> = state.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut take = |name: &str, dtype: FileDtype, shape: &[usize]| match given.remove(name) {
            Some(t) if t.dtype == dtype && t.shape == shape => Ok(Some(t)),
            Some(t) => Err(Error::format(format!("optimizer state: {t:?}, expected {dtype}{shape:?}"))),
            None => Ok(None),
        };
        let missing = |name: &str| {
            Error::format(format!(
                "optimizer state: {name} is missing; it was saved by another optimizer or for another model"
            ))
        };
        let step = take(STEP, FileDtype::I64, &[])?.ok_or_else(|| missing(STEP))?;
        let mut counters = Counters { step: integer(step)?, ..self.update.counters()? };
        // Loss scaling may have been switched on or off since the state was saved; then the initial scale is used.
        let (good, scale) = (take(GOOD_STEPS, FileDtype::I64, &[])?, take(LOSS_SCALE, FileDtype::F32, &[])?);
        if let (true, Some(good), Some(scale)) = (self.scaling, good, scale) {
            counters.good = integer(good)?;
            counters.scale = f32::from_le_bytes(scale.bytes[..].try_into().map_err(|_| torn(scale))?);
        }
        let (mut of_params, mut from_parameters) = (BTreeMap::new(), false);
        let all = self.params().zip(&self.names);
        for (param, of, kind) in
            all.flat_map(|(param, name)| self.kinds(param).map(move |kind| (param, name, kind)))
        {
            let name = format!("{of}.{kind}");
            match take(&name, FileDtype::F32, param.dims())? {
                Some(data) if data.bytes.len() == param.count() * 4 => drop(of_params.insert(name, data)),
                Some(data) => return Err(torn(data)),
                None if name.ends_with(MASTER) => from_parameters = true,
                None => return Err(missing(&name)),
            }
        }
        if let Some((name, _)) = given.first_key_value() {
            return Err(Error::format(format!(
                "optimizer state: {name} belongs to no parameter of this optimizer"
            )));
        }
        for StatePart { name, first, tensor, .. } in self.state_parts()? {
            if let Some(data) = of_params.get(&name) {
                tensor.set_bytes(&data.bytes[first * 4..(first + tensor.count()) * 4])?;
            }
        }
        self.update.take_master(from_parameters);
        self.update.set_counters(counters)
    }

    /// Returns the kinds of state kept for each element of a parameter, by their names in checkpoints.
    fn kinds(&self, param: &Tensor) -> impl Iterator<Item = &'static str> {
        let master = (param.dtype() != DType::F32).then_some(&MASTER[1..]);
        self.update.rule().state().iter().copied().chain(master)
    }
}

fn torn(data: &TensorData) -> Error {
    Error::format(format!("optimizer state: {data:?} with {} bytes", data.bytes.len()))
}

fn integer(data: &TensorData) -> Result<u32> {
    let bytes = data.bytes[..].try_into().map_err(|_| torn(data))?;
    u32::try_from(i64::from_le_bytes(bytes))
        .map_err(|_| Error::format(format!("optimizer state: {} is not a number of steps", data.name)))
}

#[cfg(test)]
mod tests;
