//! Shared parts of the benchmarks of continued texts: a check of the cached step, and the memory that it reads.

use super::measure::median;
use netcl::model::decoder::{Decoder, DecoderConfig, ParamShape, Positions};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::quant::{Activations, Blocks};
use std::time::Instant;

/// Compares the logits after every token of a text with those of all tokens at once, up to rounding; returns the launches per token.
pub fn checked(model: &Decoder, ids: &[u32], prompt: usize) -> Result<Option<usize>> {
    let (device, vocab, end) =
        (model.params().device(), model.config().vocab, ids.len().min(prompt + CHECKED));
    let all = Tensor::from_u32(device, [1, end], &ids[..end])?;
    let expected = no_grad(|| model.forward(&all, Mode::eval()))?.to_vec()?;
    let mut text = model.continuation()?;
    for at in prompt..=end {
        let (got, expected) = (text.logits_after(&ids[..at])?, &expected[(at - 1) * vocab..at * vocab]);
        if let Some(what) = difference(model, &got, expected) {
            return Err(Error::internal(format!(
                "logits after {at} tokens differ from those of all tokens at once: {what}"
            )));
        }
    }
    Ok(text.launches())
}

/// Compares the logits after a text whose last two tokens are steps with those of the whole text as a prompt, up to rounding. This checks keys and
/// values of a context of the measured length.
pub fn checked_behind(model: &Decoder, ids: &[u32]) -> Result<()> {
    let expected = model.continuation()?.logits_after(ids)?;
    let (mut text, mut got) = (model.continuation()?, Vec::new());
    for end in ids.len().saturating_sub(2).max(1)..=ids.len() {
        got = text.logits_after(&ids[..end])?;
    }
    difference(model, &got, &expected).map_or(Ok(()), |what| {
        Err(Error::internal(format!(
            "logits of steps after {} tokens differ from those of a prompt: {what}",
            ids.len().saturating_sub(2)
        )))
    })
}

/// Describes differences between logits and the expected ones that exceed rounding.
fn difference(model: &Decoder, got: &[f32], expected: &[f32]) -> Option<String> {
    if model.config().mlp.moe.is_some() {
        // Rounding may select either of two experts with nearly equal scores, which affects later tokens. Bounds of elements are then meaningless.
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = dot(got, expected) / (dot(got, got) * dot(expected, expected)).sqrt();
        let alike = cosine >= MIN_COSINE;
        return (!alike).then(|| format!("the cosine between them is {cosine:.3}, expected {MIN_COSINE}"));
    }
    let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    // The result of each layer is rounded to the storage type, with a bias in one direction: errors add up like a random walk.
    let deep = (model.config().layers as f32 / 12.0).sqrt().max(1.0);
    // Bytes are rounded like a type with eight bits.
    let bytes: f32 = if model.params().activations() == Some(Activations::Int8) { 1.0 / 256.0 } else { 0.0 };
    let epsilon = bytes.max(model.params().dtype().epsilon() as f32);
    let bound = (16.0 * epsilon + 1e-4) * deep * largest;
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= bound;
    if got.iter().zip(expected).all(near) {
        return None;
    }
    let off = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    Some(format!("by {off:.1e}; allowed are {bound:.1e}"))
}

/// Minimum cosine between the logits of a mixture of experts computed in two ways; for other weights it is near zero.
const MIN_COSINE: f64 = 0.8;

/// Number of new tokens to check.
const CHECKED: usize = 12;

/// Returns the bytes of the weights on the device.
pub fn bytes_of_weights(model: &Decoder) -> u64 {
    let params = model.params();
    (params.count() * params.dtype().size() + params.block_bytes()) as u64
}

/// Returns the bytes that a step of `texts` texts must read: every weight, and the keys and values of `seen` tokens of each text. It reads one row
/// of the tables per text, and only the experts that this many tokens can choose.
pub fn bytes_of_step(model: &Decoder, texts: usize, seen: usize) -> u64 {
    let (config, size) = (model.config(), model.params().dtype().size());
    let DecoderConfig { vocab, width, .. } = *config;
    let places = if config.positions == Positions::Learned { config.context * width } else { 0 };
    let names = config.family.names;
    let embedding = model.params().blocks(&format!("{}{}.weight", names.prefix, names.embedding));
    let embedding = embedding.map_or(vocab * width * size, |parts| parts.iter().map(Blocks::bytes).sum());
    // The head of a tied model on another device is a copy.
    let read = config.tied && model.spans().count() == 1;
    let tables = places * size + if read { 0 } else { embedding };
    let unused = config.mlp.moe.map_or(0, |moe| {
        let bytes = |shape: ParamShape| match model.params().blocks(&shape.name) {
            Some(parts) => parts.iter().map(Blocks::bytes).sum(),
            None => shape.count() * size,
        };
        let all: usize = config.shapes().filter(ParamShape::of_experts).map(bytes).sum();
        all / moe.experts * moe.experts.saturating_sub(texts * moe.top_k)
    });
    let dtype = model.params().dtype();
    let cache: u64 = (0..config.layers).map(|i| config.state(i).bytes(seen, dtype)).sum();
    let weights = bytes_of_weights(model).saturating_sub((tables + unused) as u64);
    weights + texts as u64 * cache
}

/// Returns the GB/s at which a large tensor is read by a sum.
pub fn read_speed(device: &Device) -> Result<f64> {
    // Far larger than every cache.
    let elements = 64 << 20;
    let x = Tensor::ones(device, [1024, elements / 1024], DType::F32)?;
    let sum = || -> Result<f64> {
        let begun = Instant::now();
        no_grad(|| x.sum(&[1], false))?;
        device.finish()?;
        Ok((elements * 4) as f64 / begun.elapsed().as_secs_f64() * 1e-9)
    };
    sum()?;
    let mut speeds = (0..9).map(|_| sum()).collect::<Result<Vec<_>>>()?;
    Ok(median(&mut speeds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests;
    use netcl::train::config::TrainConfig;

    #[test]
    fn a_step_is_checked_and_a_wrong_kernel_is_found() {
        let sizes = |heads| TrainConfig {
            layers: 2,
            heads,
            width: 16,
            context: 40,
            ..TrainConfig::preset("char").unwrap()
        };
        let config = sizes(2).decoder(19).unwrap();
        let ids: Vec<u32> = (0..20).map(|i| i % 19).collect();
        let device = tests::device(|text| text.to_owned());
        for dtype in [DType::F32, DType::Bf16] {
            let model = Decoder::new(&device, config.clone(), dtype, 0).unwrap();
            assert_eq!(checked(&model, &ids, 5).unwrap(), Some(12));
            checked_behind(&model, &ids).unwrap();
        }
        // Excludes the new token's own key.
        let broken = tests::device(|text| text.replace("return s <= seen.p + t;", "return s < seen.p + t;"));
        let model = Decoder::new(&broken, config.clone(), DType::F32, 0).unwrap();
        model.params().list().iter().for_each(|p| {
            p.set_f32(&p.to_vec().unwrap().iter().map(|v| 20.0 * v).collect::<Vec<_>>()).unwrap()
        });
        let message = checked(&model, &ids, 5).unwrap_err().to_string();
        assert!(message.contains("tokens differ from those of all tokens at once: by"), "{message}");
        // The check looks at one token, whose own key may have little weight.
        let found = (3..=ids.len()).find_map(|end| checked_behind(&model, &ids[..end]).err());
        let message = found.unwrap().to_string();
        assert!(message.contains("tokens differ from those of a prompt: by"), "{message}");
    }

    #[test]
    fn bytes_of_a_step_leave_tables_out() {
        let config = TrainConfig {
            layers: 1,
            width: 8,
            heads: 1,
            context: 32,
            ..TrainConfig::preset("char").unwrap()
        };
        let tied = config.decoder(50).unwrap();
        let read = tied.parameters() - 32 * 8 + 10 * 2 * 8;
        let device = tests::device(|text| text.to_owned());
        let model = Decoder::new(&device, tied, DType::F32, 0).unwrap();
        assert_eq!(bytes_of_step(&model, 1, 10), 4 * read as u64);
        assert_eq!(bytes_of_step(&model, 3, 10), 4 * (read + 20 * 2 * 8) as u64);
    }
}
