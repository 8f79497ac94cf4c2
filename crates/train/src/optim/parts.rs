//! An optimizer that updates parts of parameters, while others update the rest: it has moments and master weights for these parts only.

use super::{Entry, Optimizer, ParamGroup, Rule};
use netcl_tensor::ops::optimizer::{LossScale, Update};
use netcl_tensor::{DType, Error, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Consecutive elements of a parameter.
#[derive(Clone, Debug)]
pub struct ParameterPart {
    /// The parameter.
    pub param: Tensor,
    /// Its elements, in row-major order.
    pub range: Range<usize>,
    /// The elements as a tensor, whose gradient the optimizer uses.
    pub view: Tensor,
}

impl ParameterPart {
    /// Returns the elements `range` of a parameter.
    ///
    /// # Errors
    /// `Shape` for elements out of range.
    pub fn new(param: &Tensor, range: Range<usize>) -> Result<Self> {
        let name = param.name().unwrap_or_default();
        let flat = param.detach().reshape([param.count()])?;
        let view =
            flat.slice(0, range.clone())?.parameter(&format!("{name}[{}..{}]", range.start, range.end));
        Ok(Self { param: param.clone(), range, view })
    }
}

/// Moments or master weights of a part of a parameter.
pub struct StatePart {
    /// Name of the whole tensor in checkpoints.
    pub name: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// Index of the first element here.
    pub first: usize,
    /// The elements, f32.
    pub tensor: Tensor,
}

impl Optimizer {
    /// Creates an optimizer like [`Optimizer::for_storage`], for `parts` of the groups' parameters. A step consists of [`Optimizer::measure`], the
    /// exchange of [`Optimizer::squares`] with the optimizers of the other parts, [`Optimizer::set_squares`], and [`Optimizer::apply_measured`].
    ///
    /// # Errors
    /// Errors of [`Optimizer::new`]; `Shape` for a part of a parameter that is in no group, and without parts.
    pub fn of_parts(
        rule: Arc<dyn Rule>,
        groups: Vec<ParamGroup>,
        dtype: DType,
        parts: Vec<ParameterPart>,
    ) -> Result<Self> {
        let all = Self::entries(groups)?;
        let entry = |part: &ParameterPart| {
            let whole = all.iter().find(|e| e.param.name() == part.param.name());
            let whole =
                whole.ok_or_else(|| Error::shape(format!("optimizer: {:?} is in no group", part.view)))?;
            Ok(Entry { param: part.view.clone(), ..whole.clone() })
        };
        let entries = parts.iter().map(entry).collect::<Result<Vec<_>>>()?;
        let scale = (dtype == DType::F16).then(LossScale::default);
        let names = all.iter().map(|e| e.param.name().unwrap_or_default().to_owned()).collect();
        let params = all.into_iter().map(|e| e.param).collect();
        let update = Update::new(rule, entries, scale)?;
        Ok(Self { update, params, names, parts: Some(parts), max_norm: None, scaling: scale.is_some() })
    }

    /// Returns the parts that are updated; `None` if everything is updated.
    pub fn parts(&self) -> Option<&[ParameterPart]> {
        self.parts.as_deref()
    }

    /// Sums the squares of the gradients of its parts.
    ///
    /// # Errors
    /// Errors of [`Optimizer::apply`].
    pub fn measure(&mut self) -> Result<()> {
        self.update.measure()
    }
    /// Waits for that sum and returns it.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn squares(&self) -> Result<f64> {
        self.update.squares()
    }
    /// Sets the sum of squares of all gradients of the model.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_squares(&mut self, sum: f64) -> Result<()> {
        self.update.set_squares(sum)
    }
    /// Updates like [`Optimizer::apply`], with the norm that was set.
    ///
    /// # Errors
    /// Errors of [`Optimizer::apply`].
    pub fn apply_measured(&mut self) -> Result<()> {
        self.update.apply_measured()
    }

    /// Returns the bytes of moments and master weights that are here.
    pub fn state_bytes(&self) -> usize {
        self.update.state_bytes()
    }

    /// Returns moments and master weights of the parts that are here.
    ///
    /// # Errors
    /// Errors of views.
    pub fn state_parts(&self) -> Result<Vec<StatePart>> {
        let mut all = Vec::new();
        for (i, entry) in self.update.entries().iter().enumerate() {
            let (param, name, first) = match &self.parts {
                Some(parts) => {
                    (&parts[i].param, parts[i].param.name().unwrap_or_default(), parts[i].range.start)
                }
                None => (&entry.param, self.names[i].as_str(), 0),
            };
            let shape = param.dims().to_vec();
            let part = |(kind, tensor): (&str, Tensor)| StatePart {
                name: format!("{name}.{kind}"),
                shape: shape.clone(),
                first,
                tensor,
            };
            all.extend(self.update.state(i)?.into_iter().map(part));
        }
        Ok(all)
    }
}
