//! Models with random weights for benchmarks: the same shapes and formats as real models, generated in seconds without a file.

use super::architecture::{Architecture, rotary_tensors, write_config};
use super::mix::Mix;
use super::names::{Change, Placed, placed};
use crate::gguf::{Meta, Plan, TensorToWrite};
use netcl_model::decoder::DecoderConfig;
use netcl_model::params::Init;
use netcl_tensor::quant::{self, Format};
use netcl_tensor::random::Generator;
use netcl_tensor::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Number of random elements that are quantized; tensors repeat their blocks. The number of blocks is rounded down to a prime, so that
/// consecutive rows of a matrix differ.
const POOL: usize = 1 << 18;

/// A model with random weights in a file type.
pub struct RandomModel {
    config: DecoderConfig,
    mix: &'static Mix,
    placed: Vec<Placed>,
    formats: Vec<&'static Format>,
    /// Initialization of each tensor.
    inits: Vec<Init>,
    /// Blocks by format number and the bits of their standard deviation.
    pools: BTreeMap<(u32, u32), Vec<u8>>,
}

/// Returns the largest prime up to `n`, or 1.
fn prime(n: usize) -> usize {
    let is = |n: usize| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    (1..=n).rev().find(|n| is(*n)).unwrap_or(1)
}

impl RandomModel {
    /// Returns a model of this shape with tensors in the formats of `mix`.
    ///
    /// # Errors
    /// `Unsupported` for a family without a GGUF architecture.
    pub fn new(config: &DecoderConfig, mix: &'static Mix) -> Result<Self> {
        let placed = placed(config, Architecture::of_family(config.family)?)?;
        let formats = mix.formats_of(config, &placed, false);
        let mut by_name = HashMap::new();
        for shape in config.shapes() {
            by_name.extend(shape.pieces.iter().map(|(name, _)| (name.clone(), shape.init)));
        }
        let init = |placed: &Placed| placed.files.first().and_then(|name| by_name.get(name)).copied();
        let inits = placed.iter().map(|placed| init(placed).unwrap_or(Init::Zeros)).collect();
        Ok(Self { config: config.clone(), mix, placed, formats, inits, pools: BTreeMap::new() })
    }

    /// Returns its configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }
    /// Returns its type.
    pub fn mix(&self) -> &'static Mix {
        self.mix
    }
    /// Returns its tensors, with the names and order of GGUF files.
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }
    /// Returns their formats.
    pub fn formats(&self) -> &[&'static Format] {
        &self.formats
    }

    /// Returns the bytes of tensor `at` of [`placed`](Self::placed).
    ///
    /// # Errors
    /// `Shape` for rows that are not whole blocks.
    pub fn bytes(&mut self, at: usize) -> Result<Vec<u8>> {
        let (tensor, format) = (&self.placed[at], self.formats[at]);
        let count: usize = tensor.dims.iter().product();
        let size = format.size(count).ok_or_else(|| Error::shape(format!("{}: {format}", tensor.name)))?;
        let more = if tensor.change == Change::PlusOne { 1.0 } else { 0.0 };
        let same = |value: f32| {
            let mut out = vec![0; size];
            format.quantise(&vec![value; count], count.max(1), None, &mut out).map(|()| out)
        };
        let std = match self.inits[at] {
            Init::Zeros => return same(more),
            Init::Ones => return same(1.0 + more),
            Init::Normal(std) => std,
            // With the same standard deviation.
            Init::Uniform(bound) => bound / 3f32.sqrt(),
        };
        let pool = match self.pools.entry((format.number, std.to_bits())) {
            std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => free.insert(pool(format, std)?),
        };
        let mut out = Vec::with_capacity(size);
        while out.len() < size {
            out.extend_from_slice(&pool[..pool.len().min(size - out.len())]);
        }
        Ok(out)
    }

    /// Writes it as a GGUF file without a vocabulary. `progress` receives each tensor, and the total number.
    ///
    /// # Errors
    /// `Unsupported` for properties that the format cannot represent; `Io` with the file; errors of `progress`.
    pub fn write(
        &mut self,
        path: &Path,
        progress: &mut dyn FnMut(&str, [usize; 2]) -> Result<()>,
    ) -> Result<()> {
        let mut plan = Plan { keys: write_config(&self.config)?, tensors: Vec::new() };
        plan.set("general.type", Meta::Str("model".into()));
        plan.set("general.name", Meta::Str("random weights".into()));
        plan.set("general.file_type", Meta::U32(self.mix.number));
        plan.set("general.quantization_version", Meta::U32(2));
        plan.set("tokenizer.ggml.model", Meta::Str("no_vocab".into()));
        let factors = rotary_tensors(&self.config);
        for (name, values) in &factors {
            plan.tensors.push(TensorToWrite {
                name: (*name).into(),
                dims: vec![values.len()],
                format: &quant::F32,
            });
        }
        for (tensor, format) in self.placed.iter().zip(&self.formats) {
            plan.tensors.push(TensorToWrite { name: tensor.name.clone(), dims: tensor.dims.clone(), format });
        }
        let all = plan.tensors.len();
        plan.write(path, |i, out| {
            let bytes = match factors.get(i) {
                Some((_, values)) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                None => {
                    let at = i - factors.len();
                    progress(&self.placed[at].name, [i, all])?;
                    self.bytes(at)?
                }
            };
            out.write_all(&bytes).map_err(|e| Error::io("writing", path, &e))
        })
    }
}

/// Returns blocks of normal values with this standard deviation.
fn pool(format: &'static Format, std: f32) -> Result<Vec<u8>> {
    let count = prime(POOL / format.block) * format.block;
    let values = Generator::new(u64::from(format.number)).normal(count, 0.0, std);
    let mut out = vec![0; format.size(count).unwrap_or(0)];
    format.quantise(&values, format.block, None, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MIXES, Source};
    use netcl_model::decoder::Sizes;

    #[test]
    fn a_written_model_is_read_as_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = Sizes { layers: 3, heads: 4, kv_heads: Some(2), width: 256, ..Sizes::default() };
        for (family, mix) in
            [("llama", "q4_k_m"), ("gemma3_text", "q8_0"), ("gpt2", "q4_0"), ("qwen3", "f16")]
        {
            let kv_heads = sizes.kv_heads.filter(|_| family != "gpt2");
            let config = DecoderConfig::of(family, &Sizes { kv_heads, ..sizes }).unwrap();
            let mut model = RandomModel::new(&config, Mix::named(mix).unwrap()).unwrap();
            let path = dir.path().join(format!("{family}.gguf"));
            let mut seen = 0;
            let mut hear = |_: &str, _: [usize; 2]| {
                seen += 1;
                Ok(())
            };
            model.write(&path, &mut hear).unwrap();
            assert_eq!(seen, model.placed().len());
            let source = Source::open(&path).unwrap();
            assert_eq!(source.config, config, "{family}");
            for (at, tensor) in source.placed.iter().enumerate() {
                let stored = source.read(tensor).unwrap();
                assert_eq!(stored.format, model.formats()[at]);
                assert!(*stored.bytes == model.bytes(at).unwrap()[..], "{}", tensor.name);
                let values = stored.floats(tensor.dims.iter().product()).unwrap();
                assert!(values.iter().all(|v| v.is_finite() && v.abs() < 2.1), "{}", tensor.name);
                if tensor.dims.len() > 1 {
                    let spread =
                        (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64).sqrt();
                    assert!((0.005..0.03).contains(&spread), "{}: {spread}", tensor.name);
                    let row = tensor.dims[1];
                    assert!(values[..row] != values[row..2 * row], "{}", tensor.name);
                }
            }
        }
    }

    #[test]
    fn every_type_has_blocks_of_its_formats() {
        for format in MIXES.iter().map(|mix| mix.base) {
            let bytes = pool(format, 0.02).unwrap();
            let count = bytes.len() / format.bytes * format.block;
            assert!(count > POOL / 2 && count <= POOL);
            assert!(format.dequantised(&bytes, count).unwrap().iter().all(|v| v.abs() < 0.2), "{format}");
        }
        assert_eq!([1, 2, 10, 1024].map(prime), [1, 2, 7, 1021]);
    }
}
