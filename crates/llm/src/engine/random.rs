//! A model with random weights on a device.

use super::memory_plan::MemoryPlan;
use super::weights::{Matrix, Stack, TensorPart, maps, matrices};
use super::{LoadedModel, Loading, Options, divided};
use crate::model::RandomModel;
use crate::sampler::Sampling;
use crate::template::Templates;
use netcl_model::decoder::{Decoder, DecoderConfig};
use netcl_tensor::quant::{Activations, Blocks};
use netcl_tensor::{DType, Device, Error, Result};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

impl LoadedModel {
    /// Creates a model with random weights on one or several devices, with the storage of a model loaded from a file of its type: quantized matrices
    /// as blocks, others generated on the device. It does not have a tokenizer. `progress` is called for every quantized parameter and may abort.
    ///
    /// # Errors
    /// `Memory` with the required, available and possible amounts; errors of `progress`.
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
        let names = names.flat_map(|(at, placed)| {
            placed.files.iter().enumerate().map(move |(part, name)| (name.as_str(), (at, part)))
        });
        let places: HashMap<&str, (usize, usize)> = names.collect();
        let placed = model.placed().to_vec();
        let maps = match options.dequantise {
            true => Vec::new(),
            false => {
                let place = |name: &str| places.get(name).copied();
                maps(&config, &placed, place, |of| Ok(model.formats()[of]))?
            }
        };
        let mut quantised: HashMap<String, u64> = HashMap::new();
        for (shape, parts) in &maps {
            let size = |part: &TensorPart<'_>| part.format.size(part.tensor.file_dims.iter().product());
            let bytes = parts.iter().map(|part| size(part).unwrap_or(0) as u64).sum();
            quantised.insert(shape.name.clone(), bytes);
        }
        let needs = MemoryPlan::new(config.clone(), dtype, &quantised);
        let division = divided(&needs, devices.as_ref(), options)?;
        let (spans, context) = (division.spans(devices.as_ref()), division.context);
        let (total, mut done) = (config.parameters() as u64, 0);
        let mut blocks = BTreeMap::new();
        for Matrix { span, shape, of } in matrices(&config, &spans, maps.iter().map(|(shape, _)| shape)) {
            let (device, parts) = (&span.device, &maps[of].1);
            let activations = options.activations.unwrap_or_else(|| Activations::usual(device));
            let _tag = device.tag("quantised weights");
            progress(Loading { name: &shape.name, device: &device.capabilities().id, done, total })?;
            let made = blocks_of(model, device, parts, activations)?;
            done += if shape.is_copy(&config) { 0 } else { shape.count() as u64 };
            blocks.insert(shape.name, made);
        }
        let trained_context = config.context;
        let config = DecoderConfig { context, ..config };
        let decoder = Decoder::divided(&spans, config, dtype, Some(0), blocks)?;
        progress(Loading { name: "", device: "", done: total, total })?;
        Ok(Self {
            decoder,
            tokenizer: None,
            templates: Arc::new(Templates::default()),
            sampling: Sampling::default(),
            max: None,
            pooling: Ok(crate::model::Pooling::default()),
            path: "random weights".into(),
            trained_context,
            needs,
        })
    }
}

/// Matrices of random blocks.
fn blocks_of(
    model: &mut RandomModel,
    device: &Device,
    parts: &[TensorPart<'_>],
    activations: Activations,
) -> Result<Vec<Blocks>> {
    let (mut made, mut bytes) = (Vec::new(), HashMap::new());
    for run in parts.chunk_by(|a, b| a.format == b.format) {
        let mut stack = Stack::default();
        for TensorPart { tensor, of, at, format } in run {
            let dims = tensor.file_dims.as_slice().try_into();
            let dims = dims.map_err(|_| Error::internal("a map that does not have two axes"))?;
            let whole = match bytes.entry(*of) {
                Entry::Occupied(held) => held.into_mut(),
                Entry::Vacant(free) => free.insert(model.bytes(*of)?),
            };
            let size = whole.len() / tensor.files.len().max(1);
            stack.push(format, dims, whole[at * size..(at + 1) * size].to_vec().into());
        }
        made.push(stack.blocks(device, activations)?);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mix;
    use netcl_model::decoder::Sizes;
    use netcl_model::model::Model as _;

    /// Returns types and bytes of the content of the device.
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
        let device = netcl_tensor::suite::quickly_built().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sizes = Sizes { layers: 2, heads: 4, kv_heads: Some(2), width: 256, ..Sizes::default() };
        let config = DecoderConfig::of("llama", &sizes).unwrap();
        let experts = DecoderConfig::of("mixtral", &Sizes { mlp: Some(512), ..sizes }).unwrap();
        for (config, name, maps) in [
            (&config, "q4_0", [1, 1]),
            (&config, "q4_k_m", [2, 1]),
            (&config, "bf16", [0, 0]),
            (&experts, "q4_0", [2, 0]),
        ] {
            let mut random = RandomModel::new(config, Mix::named(name).unwrap()).unwrap();
            let mut done = Vec::new();
            let mut hear = |p: Loading<'_>| {
                done.push(p.done);
                Ok(())
            };
            let model = LoadedModel::random(&mut random, &device, Options::default(), &mut hear).unwrap();
            assert!(done.is_sorted() && done.last() == Some(&(config.parameters() as u64)));
            // Consecutive matrices of one format are one matrix.
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
