//! A model of random weights on a device.

use super::fit::{Needs, available};
use super::weights::maps;
use super::{LoadedModel, Loading, Options};
use crate::model::RandomModel;
use crate::sampler::Sampling;
use crate::template::Templates;
use netcl_nn::decoder::{Decoder, DecoderConfig};
use netcl_tensor::quant::Blocks;
use netcl_tensor::{DType, Device, Error, Result};
use std::collections::{BTreeMap, HashMap};

impl LoadedModel {
    /// Makes a model of random weights, which lies on the device as one from a file of its type would: matrices that kernels unpack as
    /// blocks, the others drawn there. It has no tokenizer. `progress` hears of every quantised parameter and may end it.
    ///
    /// # Errors
    /// `Memory` that says what is needed, what is there and what would fit; that of `progress`.
    pub fn random(
        model: &mut RandomModel,
        device: &Device,
        options: Options,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<Self> {
        let config = model.config().clone();
        let dtype = options.dtype.unwrap_or(match model.mix().base.name {
            "F32" => DType::F32,
            "BF16" => DType::Bf16,
            _ => DType::F16,
        });
        let names = model.placed().iter().enumerate();
        let names = names.flat_map(|(at, placed)| placed.files.iter().map(move |name| (name.as_str(), at)));
        let places: HashMap<&str, usize> = names.collect();
        let maps = match options.dequantise {
            true => Vec::new(),
            false => {
                let place = |name: &str| places.get(name).copied();
                maps(&config, model.placed(), place, |at| Ok(model.formats()[at]))?
            }
        };
        let mut quantised = [0, 0];
        for at in maps.iter().flat_map(|(_, places)| places) {
            let count = model.placed()[*at].dims.iter().product();
            quantised[0] += count as u64;
            quantised[1] += model.formats()[*at].size(count).unwrap_or(0) as u64;
        }
        let capabilities = device.capabilities();
        let needs = Needs::new(config.clone(), dtype, quantised);
        let context = needs.on(&capabilities.id, available(capabilities)).context(options.context)?;
        let (total, mut done) = (config.parameters() as u64, 0);
        let mut blocks = BTreeMap::new();
        {
            let _tag = device.tag("quantised weights");
            for (shape, places) in &maps {
                progress(Loading { name: &shape.name, done, total })?;
                let mut parts = Vec::with_capacity(places.len());
                for at in places {
                    let (format, dims) = (model.formats()[*at], model.placed()[*at].dims.clone());
                    let dims =
                        dims.try_into().map_err(|_| Error::internal("a map of other than two axes"))?;
                    parts.push(Blocks::new(device, format, dims, &model.bytes(*at)?)?);
                }
                blocks.insert(shape.name.clone(), parts);
                done += shape.count() as u64;
            }
        }
        let trained_context = config.context;
        let config = DecoderConfig { context, ..config };
        let decoder = Decoder::with_blocks(device, config, dtype, Some(0), blocks)?;
        progress(Loading { name: "", done: total, total })?;
        Ok(Self {
            decoder,
            tokenizer: None,
            templates: Templates::default(),
            sampling: Sampling::default(),
            path: "random weights".into(),
            trained_context,
        })
    }
}
