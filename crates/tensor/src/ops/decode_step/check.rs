//! A small Llama-like model, computed by the kernel and in f64: for `netcl doctor` and tests.

use super::{DecodeLayer, DecodeStep, MAX_TEXTS, Map, Model, WeightPath, WeightRows};
use crate::ops::gated::Gate;
use crate::ops::prelude::*;
use crate::quant::{Activations, Blocks, Format};
use crate::random::Generator;

/// A matrix on the device, as blocks in planes or dense, and its values.
struct Matrix {
    stored: Stored,
    values: Vec<f64>,
    columns: usize,
}

enum Stored {
    Dense(Tensor),
    Blocks(Blocks),
}

impl Matrix {
    fn rows(&self) -> WeightRows<'_> {
        match &self.stored {
            Stored::Blocks(blocks) => WeightRows::Blocks(blocks),
            Stored::Dense(tensor) => WeightRows::Dense(tensor.clone()),
        }
    }
    fn times(&self, x: &[f64]) -> Vec<f64> {
        let row = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum();
        self.values.chunks(self.columns).map(row).collect()
    }
}

/// Returns the block format of a layer's map, or `None` for a dense map. With a format for `v`, values have a separate one.
pub(super) type ChooseFormat = fn(&str, usize) -> Option<&'static str>;
/// Uploads blocks to the device.
pub(super) type Make = fn(&Device, &'static Format, [usize; 2], &[u8]) -> Result<Blocks>;

/// Settings from which a model is built.
pub(super) struct Net {
    pub(super) device: Device,
    pub(super) text: WeightPath,
    pub(super) dtype: DType,
    pub(super) from: Generator,
    pub(super) choose: ChooseFormat,
    pub(super) make: Make,
    /// Whether the model has biases and head norms.
    pub(super) biased: bool,
    /// Number of texts in a step.
    pub(super) texts: usize,
}

const WIDTH: usize = 256;
const HEADS: usize = 4;
const KV: usize = 2;
const SIZE: usize = 64;
const HIDDEN: usize = 512;
const VOCAB: usize = 300;
const LAYERS: usize = 2;
const ROOM: usize = 8;
const EPS: f64 = 1e-5;

impl Net {
    fn values(&mut self, n: usize, spread: f32) -> Vec<f32> {
        self.from.normal(n, 0.0, spread)
    }
    fn tensor(&self, dims: &[usize], values: &[f32]) -> Result<Tensor> {
        Tensor::from_f32(&self.device, dims.to_vec(), values, self.dtype)
    }
    /// Draws the embedding of a random token for each text.
    pub(super) fn tokens(&mut self) -> Result<Tensor> {
        let values = self.values(self.texts * WIDTH, 1.0);
        self.tensor(&[self.texts, WIDTH], &values)
    }
    fn matrix(&mut self, name: &str, layer: usize, [rows, columns]: [usize; 2]) -> Result<Matrix> {
        let values = self.values(rows * columns, 1.0 / (columns as f32).sqrt());
        let Some(format) = (self.choose)(name, layer) else {
            let tensor = self.tensor(&[rows, columns], &values)?;
            return Ok(Matrix { values: read(&tensor)?, stored: Stored::Dense(tensor), columns });
        };
        let format = Format::named(format)?;
        let mut bytes = vec![0; format.size(values.len()).unwrap_or(0)];
        format.quantise(&values, columns, None, &mut bytes)?;
        let values = format.dequantised(&bytes, values.len())?.into_iter().map(f64::from).collect();
        let blocks = (self.make)(&self.device, format, [rows, columns], &bytes)?;
        Ok(Matrix { stored: Stored::Blocks(blocks), values, columns })
    }
}

fn read(x: &Tensor) -> Result<Vec<f64>> {
    Ok(x.to_vec()?.into_iter().map(f64::from).collect())
}

fn normed(x: &[f64], gamma: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(gamma).map(|(v, g)| v * g / (mean + EPS).sqrt()).collect()
}

/// A layer in f64, with the keys and values of the tokens so far.
struct Exact {
    maps: [Matrix; 4],
    extra: Option<Matrix>,
    gammas: [Vec<f64>; 2],
    bias: Vec<f64>,
    head_gammas: Option<[Vec<f64>; 2]>,
    kept: Vec<KeysAndValues>,
}

/// Keys and values of a text.
#[derive(Clone, Default)]
struct KeysAndValues {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

/// Computes one token of a text through a layer, in f64.
fn layer(x: &mut [f64], l: &mut Exact, text: usize, angles: &[f64]) {
    let mut qkv = l.maps[0].times(&normed(x, &l.gammas[0]));
    if let Some(extra) = &l.extra {
        qkv.extend(extra.times(&normed(x, &l.gammas[0])));
    }
    qkv.iter_mut().zip(&l.bias).for_each(|(v, b)| *v += b);
    for (h, head) in qkv[..(HEADS + KV) * SIZE].chunks_mut(SIZE).enumerate() {
        if let Some(gammas) = &l.head_gammas {
            head.copy_from_slice(&normed(head, &gammas[usize::from(h >= HEADS)]));
        }
        for (i, angle) in angles.iter().enumerate() {
            let (a, b) = (head[i], head[i + SIZE / 2]);
            (head[i], head[i + SIZE / 2]) =
                (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
        }
    }
    let kept = &mut l.kept[text];
    kept.keys.push(qkv[HEADS * SIZE..(HEADS + KV) * SIZE].to_vec());
    kept.values.push(qkv[(HEADS + KV) * SIZE..].to_vec());
    let mut out = vec![0.0; HEADS * SIZE];
    for (h, out) in out.chunks_mut(SIZE).enumerate() {
        let (q, kv) = (&qkv[h * SIZE..(h + 1) * SIZE], h / (HEADS / KV) * SIZE);
        let score =
            |k: &Vec<f64>| q.iter().zip(&k[kv..]).map(|(a, b)| a * b).sum::<f64>() / (SIZE as f64).sqrt();
        let weights: Vec<f64> = kept.keys.iter().map(|k| score(k).exp()).collect();
        let all: f64 = weights.iter().sum();
        for (i, o) in out.iter_mut().enumerate() {
            *o = weights.iter().zip(&kept.values).map(|(w, v)| w / all * v[kv + i]).sum();
        }
    }
    x.iter_mut().zip(l.maps[1].times(&out)).for_each(|(x, y)| *x += y);
    let both = l.maps[2].times(&normed(x, &l.gammas[1]));
    let (gate, up) = both.split_at(HIDDEN);
    let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    x.iter_mut().zip(l.maps[3].times(&hidden)).for_each(|(x, y)| *x += y);
}

/// A layer's norms, biases and other tensors that are not matrices.
struct Rest {
    norms: [Tensor; 2],
    bias: Tensor,
    head_norms: [Tensor; 2],
    cache: Tensor,
}

impl Net {
    /// Draws the weights of a norm, for the device and in f64.
    fn gamma(&mut self, n: usize) -> Result<(Tensor, Vec<f64>)> {
        let values: Vec<f32> = self.values(n, 0.1).into_iter().map(|v| 1.0 + v).collect();
        let tensor = self.tensor(&[n], &values)?;
        let exact = read(&tensor)?;
        Ok((tensor, exact))
    }

    fn layer(&mut self, i: usize) -> Result<(Exact, Rest)> {
        let rows = (HEADS + 2 * KV) * SIZE;
        // Values are a separate matrix if their format differs.
        let apart = if (self.choose)("v", i).is_some() { KV * SIZE } else { 0 };
        let maps = [
            self.matrix("qkv", i, [rows - apart, WIDTH])?,
            self.matrix("out", i, [WIDTH, HEADS * SIZE])?,
            self.matrix("gate_up", i, [2 * HIDDEN, WIDTH])?,
            self.matrix("down", i, [WIDTH, HIDDEN])?,
        ];
        let extra = if apart > 0 { Some(self.matrix("v", i, [apart, WIDTH])?) } else { None };
        let ((a, ga), (b, gb)) = (self.gamma(WIDTH)?, self.gamma(WIDTH)?);
        let ((q, gq), (k, gk)) = (self.gamma(SIZE)?, self.gamma(SIZE)?);
        let bias = self.values(rows, if self.biased { 0.5 } else { 0.0 });
        let bias = self.tensor(&[rows], &bias)?;
        let cache = Tensor::zeros(&self.device, [self.texts, ROOM, 2 * KV, SIZE], self.dtype)?;
        let (gammas, exact_bias) = ([ga, gb], read(&bias)?);
        let head_gammas = self.biased.then_some([gq, gk]);
        let kept = vec![KeysAndValues::default(); self.texts];
        let exact = Exact { maps, extra, gammas, bias: exact_bias, head_gammas, kept };
        Ok((exact, Rest { norms: [a, b], bias, head_norms: [q, k], cache }))
    }
}

/// Returns the rotation angle of pair i at position t.
fn angle(t: usize, i: usize) -> f64 {
    t as f64 * 100f64.powf(-2.0 * i as f64 / SIZE as f64)
}

/// Returns a layer in the form that the kernel takes.
fn tensors<'a>(e: &'a Exact, rest: &'a Rest, biased: bool) -> DecodeLayer<'a> {
    let map = |rows| Map { rows: vec![rows], bias: None };
    let qkv = [Some(e.maps[0].rows()), e.extra.as_ref().map(Matrix::rows)].into_iter().flatten();
    DecodeLayer {
        norms: Some([(&rest.norms[0], None), (&rest.norms[1], None)]),
        post_norms: None,
        qkv: Map { rows: qkv.collect(), bias: biased.then_some(&rest.bias) },
        head_norms: biased.then_some([&rest.head_norms[0], &rest.head_norms[1]]),
        out: map(e.maps[1].rows()),
        up: map(e.maps[2].rows()),
        down: map(e.maps[3].rows()),
        cache: &rest.cache,
        scale: 1.0 / (SIZE as f32).sqrt(),
        window: None,
        rotary: Some(0),
    }
}

/// A model as a step on the device and in f64.
pub(super) struct Small {
    pub(super) step: DecodeStep,
    texts: usize,
    exact: Vec<Exact>,
    last: Vec<f64>,
    head: Matrix,
}

impl Net {
    pub(super) fn small(&mut self) -> Result<Small> {
        let (exact, rest): (Vec<Exact>, Vec<Rest>) =
            (0..LAYERS).map(|i| self.layer(i)).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let (last_norm, last) = self.gamma(WIDTH)?;
        let head = self.matrix("head", 0, [VOCAB, WIDTH])?;
        let table = |f: fn(f64) -> f64| {
            let all = (0..ROOM).flat_map(|t| (0..SIZE / 2).map(move |i| f(angle(t, i)) as f32));
            Tensor::from_f32(&self.device, [ROOM, SIZE / 2], &all.collect::<Vec<_>>(), DType::F32)
        };
        let (cosines, sines) = (table(f64::cos)?, table(f64::sin)?);
        let model = Model {
            texts: self.texts,
            embedding: None,
            layers: exact.iter().zip(&rest).map(|(e, rest)| tensors(e, rest, self.biased)).collect(),
            pages: None,
            last_norm: (&last_norm, None),
            head: head.rows(),
            angles: vec![[&cosines, &sines]],
            heads: [HEADS, KV],
            hidden: HIDDEN,
            activation: Some(Gate::Silu),
            gated: true,
            parallel: false,
            heads_normed_together: false,
            score_cap: None,
            residual_scale: 1.0,
            logits_scale: 1.0,
            logits_cap: None,
            eps: EPS as f32,
            unit_offset: false,
        };
        let step = DecodeStep::new(&model, self.text)?;
        Ok(Small { step, texts: self.texts, exact, last, head })
    }
}

impl Small {
    /// Returns the largest difference of the logits in round `t` from those in f64, relative to their root mean square. Text b starts in round b:
    /// before that, its logits must be NaN.
    pub(super) fn error(&mut self, x: &Tensor, t: usize) -> Result<f64> {
        let got = read(&self.run(x, t)?)?;
        let mut x = read(x)?;
        let mut worst = 0.0;
        for (text, (x, got)) in x.chunks_mut(WIDTH).zip(got.chunks(VOCAB)).enumerate() {
            let Some(t) = t.checked_sub(text) else {
                worst = if got.iter().all(|v| v.is_nan()) { worst } else { f64::NAN };
                continue;
            };
            let angles: Vec<f64> = (0..SIZE / 2).map(|i| angle(t, i)).collect();
            self.exact.iter_mut().for_each(|l| layer(x, l, text, &angles));
            let logits = self.head.times(&normed(x, &self.last));
            let size = logits.iter().map(|v| v * v).sum::<f64>();
            let off = logits.iter().zip(got).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
            let off = (off / size).sqrt();
            worst = if off <= worst || worst.is_nan() { worst } else { off };
        }
        Ok(worst)
    }

    /// Returns the positions of the texts in round `t`.
    pub(super) fn positions(&self, device: &Device, t: usize) -> Result<Tensor> {
        let of = |text: usize| t.checked_sub(text).map_or(u32::MAX, |t| t as u32);
        let positions: Vec<u32> = (0..self.texts).map(of).collect();
        Tensor::from_u32(device, [self.texts], &positions)
    }

    /// Computes the logits (B, VOCAB) after x, the tokens of round `t`.
    pub(super) fn run(&self, x: &Tensor, t: usize) -> Result<Tensor> {
        self.step.run(x, &self.positions(x.device(), t)?)
    }
}

/// Mixes of formats: those of common files, and others.
pub(super) const MIXES: [ChooseFormat; 4] = [
    |name, _| Some(if name == "head" { "Q6_K" } else { "Q4_0" }).filter(|_| name != "v"),
    |name, layer| Some(if name == "v" || name == "down" && layer == 1 { "Q6_K" } else { "Q4_K" }),
    |name, _| Some("Q8_0").filter(|_| name != "head" && name != "v"),
    |name, layer| match (name, layer) {
        ("qkv", 0) => Some("Q5_0"),
        ("out", 0) => Some("Q5_1"),
        ("gate_up", 0) => Some("Q4_1"),
        ("v", _) => None,
        _ => Some("Q5_K"),
    },
];

/// Runs the kernel on a device that supports it: one model per type, and quantized models if the device stores quantized rows as the kernel reads
/// them. Returns the number of models. A kernel that gives wrong results or does not end is not used from then on.
///
/// # Errors
/// The first wrong result, or an earlier failure of the kernel's self-test.
pub(crate) fn check(device: &Device) -> Result<usize> {
    let Some(text) = [WeightPath::Ring, WeightPath::Direct].into_iter().find(|text| text.runs_on(device, 1))
    else {
        return Ok(0);
    };
    let one = check_texts(device, text, 1)?;
    // If the kernel for several texts failed, such steps use several launches.
    Ok(one + if text.runs_on(device, MAX_TEXTS) { check_texts(device, text, MAX_TEXTS)? } else { 0 })
}

fn check_texts(device: &Device, text: WeightPath, texts: usize) -> Result<usize> {
    let models: Vec<Case> = match texts {
        1 => models(text),
        // One type and one mix of formats: differences between types do not depend on the number of texts.
        _ => models(text).into_iter().skip(1).step_by(2).take(2).collect(),
    };
    let (tuning, kernel) = (Tuning::of(device), text.kernel(texts));
    let mut first = Ok(());
    // Any model can show a hang, so the proof uses the first. All models together compile kernels for longer than a proof may take.
    let proven = tuning.proven(device, kernel, || {
        first = models.first().map_or(Ok(()), |model| run(device, text, texts, model));
        first.as_ref().copied().map_err(|e| Error::internal(e.message().to_owned()))
    });
    first?;
    if !proven {
        return Err(Error::launch("decode_step: the kernel failed an earlier self-test"));
    }
    for model in models.iter().skip(1) {
        run(device, text, texts, model).inspect_err(|e| tuning.retire(device, kernel, e.message()))?;
    }
    Ok(models.len())
}

/// Type, formats, whether the model has biases and head norms, and the maximum relative error of the logits.
type Case = (DType, ChooseFormat, bool, f64);

fn models(text: WeightPath) -> Vec<Case> {
    let dense = [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::Bf16, 6e-3)];
    let dense =
        dense.map(|(dtype, bound)| (dtype, (|_, _| None) as ChooseFormat, dtype == DType::F16, bound));
    // Activations have 8 bits: half a step of 1/127 of a group's largest is about 0.7 % of a normal value, in the maps of each of two layers.
    let quantised = MIXES.into_iter().enumerate().map(|(i, choose)| (DType::F16, choose, i % 2 == 0, 3e-2));
    dense.into_iter().chain(quantised.filter(|_| text == WeightPath::Ring)).collect()
}

fn run(device: &Device, text: WeightPath, texts: usize, (dtype, choose, biased, bound): &Case) -> Result<()> {
    let make: Make = |device, format, dims, bytes| {
        Blocks::with_activations(device, format, dims, bytes, Activations::Int8)
    };
    let (device, from) = (device.clone(), Generator::new(7));
    let mut net = Net { device, text, dtype: *dtype, from, choose: *choose, make, biased: *biased, texts };
    let mut small = net.small()?;
    for t in 0..5 {
        let x = net.tokens()?;
        let off = small.error(&x, t)?;
        // The comparison is false for NaN, which is also wrong.
        let near = off < *bound;
        if !near && !net.device.settings().no_results {
            let formats: Vec<&str> = ["qkv", "v", "out", "gate_up", "down", "head"]
                .into_iter()
                .filter_map(|map| choose(map, 0))
                .collect();
            return Err(Error::launch(format!(
                "decode_step: logits of {texts} texts of a model in {dtype} {formats:?} are off by {off:.1e}, expected {bound:.0e} at most"
            )));
        }
    }
    Ok(())
}
