//! A decoder whose adapters are trained: creation, files and names.

use super::lister::ParamShape;
use super::lora::{Lora, MapAdapter};
use super::projection::Projection;
use super::{Decoder, DecoderConfig, files};
use crate::checkpoint::{TensorToWrite, TensorView};
use crate::params::Params;
use netcl_tensor::{Error, Result, Tensor};
use std::collections::BTreeMap;

/// The adapters of a decoder.
pub(super) struct DecoderAdapters {
    pub(super) lora: Lora,
    /// Their parameters, which follow those of the model.
    pub(super) shapes: Vec<ParamShape>,
}

impl Decoder {
    /// Adds adapters to the linear maps of its layers. A of each is drawn from `seed` as in PEFT; without a seed it is zero, to be loaded afterwards.
    /// B is zero. The model's own parameters are frozen.
    ///
    /// # Errors
    /// `Format` for a target that the model does not have; `Unsupported` for layers on several devices; `Memory`.
    pub fn add_lora(&mut self, lora: &Lora, seed: Option<u64>) -> Result<()> {
        let [stage] = self.stages.as_mut_slice() else {
            return Err(Error::unsupported("--lora: a model whose layers are on several devices"));
        };
        if self.adapters.is_some() {
            return Err(Error::internal("decoder: adapters are added once"));
        }
        let all = lora.adapters(&self.config)?;
        let (device, dtype) = (self.params.device().clone(), self.params.dtype());
        let (params, ()) = Params::build(&device, dtype, seed, |params| {
            for (layer, block) in stage.span.layers.clone().zip(&mut stage.blocks) {
                let own: Vec<_> = all.iter().filter(|adapter| adapter.layer == layer).cloned().collect();
                attach(&mut block.maps(), &own, params)?;
            }
            Ok(())
        })?;
        for own in self.params.list() {
            own.set_requires_grad(false);
        }
        self.params.extend(params);
        let shapes = all.iter().flat_map(|adapter| adapter.shapes().cloned()).collect();
        self.adapters = Some(DecoderAdapters { lora: lora.clone(), shapes });
        Ok(())
    }

    /// Returns the settings of its adapters.
    pub fn lora(&self) -> Option<&Lora> {
        self.adapters.as_ref().map(|adapters| &adapters.lora)
    }

    /// Returns the shape and tensor of each parameter of its adapters.
    pub(super) fn adapter_parameters(&self) -> impl Iterator<Item = (&ParamShape, &Tensor)> {
        let shapes = self.adapters.iter().flat_map(|adapters| &adapters.shapes);
        shapes.zip(self.params.list().iter().skip(self.shapes.len()))
    }

    /// Returns the tensors of its adapters under their names in PEFT's `adapter_model.safetensors`.
    pub fn adapter_state(&self) -> Vec<TensorToWrite<'static>> {
        files::tensors_of(&self.config, self.adapter_parameters())
    }

    /// Loads its adapters, by those names.
    ///
    /// # Errors
    /// `Format` for a tensor that is missing, unknown, of another shape or not of a floating-point type; nothing is changed then.
    pub fn load_adapters(&self, tensors: &[TensorView<'_>]) -> Result<()> {
        let all = self.adapter_parameters().map(|(shape, _)| shape);
        let found = matched(&self.config, all, tensors)?;
        for ((shape, parameter), tensors) in self.adapter_parameters().zip(found) {
            files::set(shape, parameter, &tensors)?;
        }
        Ok(())
    }
}

/// Gives the maps of a layer their adapters.
fn attach(maps: &mut [&mut Projection], adapters: &[MapAdapter], params: &mut Params) -> Result<()> {
    for adapter in adapters {
        let map = maps.iter_mut().find(|map| map.weight.is_called(&adapter.map));
        let map = map.ok_or_else(|| {
            Error::internal(format!("decoder: no linear map {} for an adapter", adapter.map))
        })?;
        map.low_rank = Some(adapter.make(params)?);
    }
    Ok(())
}

/// Returns the tensors of a file for each parameter.
fn matched<'a, 's>(
    config: &DecoderConfig,
    shapes: impl Iterator<Item = &'s ParamShape>,
    tensors: &[TensorView<'a>],
) -> Result<Vec<Vec<TensorView<'a>>>> {
    let mut left: BTreeMap<&str, TensorView<'a>> = tensors.iter().map(|view| (view.name, *view)).collect();
    let mut out = Vec::new();
    for shape in shapes {
        let mut found = Vec::with_capacity(shape.pieces.len());
        for (name, rows) in &shape.pieces {
            let tensor = left.remove(name.as_str()).ok_or_else(|| {
                Error::format(format!(
                    "the adapter does not contain the tensor {name}, which --lora requires"
                ))
            })?;
            let expected = shape.piece_dims(*rows);
            if tensor.shape != expected {
                return Err(Error::format(format!(
                    "{name} has shape {:?}, expected {expected:?} by --lora",
                    tensor.shape
                )));
            }
            tensor.check_float()?;
            found.push(tensor);
        }
        out.push(found);
    }
    match left.first_key_value() {
        Some((name, _)) => Err(Error::format(format!(
            "the adapter contains {}, for which this {} model with --lora does not have a slot",
            name, config.family.model_type
        ))),
        None => Ok(out),
    }
}
