//! A model of random weights on a device.

use super::needs::Needs;
use super::weights::{Matrix, Stack, maps, matrices, runs};
use super::{LoadedModel, Loading, Options, divided};
use crate::model::RandomModel;
use crate::sampler::Sampling;
use crate::template::Templates;
use netcl_nn::decoder::{Decoder, DecoderConfig};
use netcl_tensor::quant::Activations;
use netcl_tensor::{DType, Device, Error, Result};
use std::collections::{BTreeMap, HashMap};

impl LoadedModel {
    /// Makes a model of random weights, which lies on the device, or on several, as one from a file of its type would: matrices that kernels unpack as
    /// blocks, the others drawn there. It has no tokenizer. `progress` hears of every quantised parameter and may end it.
    ///
    /// # Errors
    /// `Memory` that says what is needed, what is there and what would fit; that of `progress`.
    pub fn random(
        model: &mut RandomModel,
        devices: &(impl AsRef<[Device]> + ?Sized),
        options: Options<'_>,
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
        let mut quantised: HashMap<String, u64> = HashMap::new();
        for (shape, places) in &maps {
            let size = |at: &usize| model.formats()[*at].size(model.placed()[*at].dims.iter().product());
            let bytes = places.iter().map(|at| size(at).unwrap_or(0) as u64).sum();
            quantised.insert(shape.name.clone(), bytes);
        }
        let needs = Needs::new(config.clone(), dtype, &quantised);
        let division = divided(&needs, devices.as_ref(), options)?;
        let (spans, context) = (division.spans(devices.as_ref()), division.context);
        let (total, mut done) = (config.parameters() as u64, 0);
        let mut blocks = BTreeMap::new();
        for Matrix { span, shape, of } in matrices(&config, &spans, maps.iter().map(|(shape, _)| shape)) {
            let (device, places) = (&span.device, &maps[of].1);
            let activations = options.activations.unwrap_or_else(|| Activations::usual(device));
            let _tag = device.tag("quantised weights");
            progress(Loading { name: &shape.name, device: &device.capabilities().id, done, total })?;
            let formats: Vec<_> = places.iter().map(|at| model.formats()[*at]).collect();
            let mut parts = Vec::with_capacity(places.len());
            for run in runs(&formats) {
                let mut stack = Stack::default();
                for at in &places[run] {
                    let (format, dims) = (model.formats()[*at], model.placed()[*at].dims.clone());
                    let dims =
                        dims.try_into().map_err(|_| Error::internal("a map of other than two axes"))?;
                    stack.push(format, dims, model.bytes(*at)?.into());
                }
                parts.push(stack.blocks(device, activations)?);
            }
            done += if shape.is_copy(&config) { 0 } else { shape.count() as u64 };
            blocks.insert(shape.name, parts);
        }
        let trained_context = config.context;
        let config = DecoderConfig { context, ..config };
        let decoder = Decoder::divided(&spans, config, dtype, Some(0), blocks)?;
        progress(Loading { name: "", device: "", done: total, total })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mix;
    use netcl_nn::decoder::Sizes;
    use netcl_nn::model::Model as _;

    /// Types and bytes of what lies on the device.
    fn held(model: &LoadedModel) -> Vec<String> {
        let (decoder, mut out) = (model.decoder(), Vec::new());
        for shape in decoder.config().shapes() {
            let what = match decoder.params().blocks(&shape.name) {
                Some(parts) => format!("{parts:?}"),
                None => {
                    format!("{:?}", decoder.params().get(&shape.name).map(|p| (p.dims().to_vec(), p.dtype())))
                }
            };
            out.push(format!("{} {what}", shape.name));
        }
        out
    }

    #[test]
    fn random_weights_lie_on_the_device_as_those_of_a_file() {
        let device = netcl_tensor::suite::test_device().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sizes = Sizes { layers: 2, heads: 4, kv_heads: Some(2), width: 256, ..Sizes::default() };
        let config = DecoderConfig::of("llama", &sizes).unwrap();
        for (name, maps) in [("q4_0", [1, 1]), ("q4_k_m", [2, 1]), ("bf16", [0, 0])] {
            let mut random = RandomModel::new(&config, Mix::named(name).unwrap()).unwrap();
            let mut done = Vec::new();
            let mut hear = |p: Loading<'_>| {
                done.push(p.done);
                Ok(())
            };
            let model = LoadedModel::random(&mut random, &device, Options::default(), &mut hear).unwrap();
            assert!(done.is_sorted() && done.last() == Some(&(config.parameters() as u64)));
            // What follows in one format is one matrix.
            let parts = |name: &str| {
                let blocks = model.decoder().params().blocks(&format!("model.layers.1.{name}.weight"));
                blocks.map_or(0, <[_]>::len)
            };
            assert_eq!([parts("self_attn.qkv_proj"), parts("mlp.gate_up_proj")], maps, "{name}");
            let logits = model.decoder().continuation().unwrap().logits_after(&[1, 2, 3]).unwrap();
            assert!(logits.iter().all(|v| v.is_finite() && v.abs() < 100.0), "{name}");
            assert!(logits.iter().any(|v| v.abs() > 1e-3), "{name}");
            let path = dir.path().join(format!("{name}.gguf"));
            random.write(&path, &mut |_, _| Ok(())).unwrap();
            let of_file = LoadedModel::open(&path, &device, Options::default(), &mut |_| Ok(())).unwrap();
            assert_eq!(held(&of_file), held(&model), "{name}");
        }
        let huge = DecoderConfig {
            vocab: 1 << 30,
            ..DecoderConfig::of("llama", &Sizes { width: 1 << 15, ..sizes }).unwrap()
        };
        let mut random = RandomModel::new(&huge, Mix::named("f32").unwrap());
        let refused =
            LoadedModel::random(random.as_mut().unwrap(), &device, Options::default(), &mut |_| Ok(()));
        assert!(refused.err().unwrap().message().contains("Nothing was allocated"));
    }
}
