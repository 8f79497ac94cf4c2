use super::*;
use crate::ops::gated::Gate;
use crate::quant::{Blocks, FORMATS, Format};
use crate::random::Generator;
use crate::suite::test_device;
use netcl_device::Settings;

/// A matrix on the device as blocks in planes or dense, and its values.
struct Matrix {
    dense: Option<Tensor>,
    blocks: Option<Blocks>,
    values: Vec<f64>,
    columns: usize,
}

impl Matrix {
    fn rows(&self) -> Rows<'_> {
        match (&self.blocks, &self.dense) {
            (Some(blocks), _) => Rows::Blocks(blocks),
            (None, Some(tensor)) => Rows::Dense(tensor.clone()),
            (None, None) => unreachable!(),
        }
    }
    fn times(&self, x: &[f64]) -> Vec<f64> {
        let row = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum();
        self.values.chunks(self.columns).map(row).collect()
    }
}

/// What of weights is in which format.
type Choose = fn(&str, usize) -> Option<&'static Format>;

struct Net {
    device: Device,
    dtype: DType,
    from: Generator,
    choose: Choose,
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
    fn tensor(&self, dims: &[usize], values: &[f32]) -> Tensor {
        Tensor::from_f32(&self.device, dims.to_vec(), values, self.dtype).unwrap()
    }
    fn read(&self, x: &Tensor) -> Vec<f64> {
        x.to_vec().unwrap().into_iter().map(f64::from).collect()
    }
    fn matrix(&mut self, name: &str, layer: usize, [rows, columns]: [usize; 2]) -> Matrix {
        let values = self.values(rows * columns, 1.0 / (columns as f32).sqrt());
        if let Some(format) = (self.choose)(name, layer) {
            let mut bytes = vec![0; format.size(values.len()).unwrap()];
            format.quantise(&values, columns, None, &mut bytes).unwrap();
            let mut exact = vec![0.0; values.len()];
            format.dequantise(&bytes, &mut exact).unwrap();
            let blocks = Blocks::of_planes(&self.device, format, [rows, columns], &bytes).unwrap();
            assert_eq!(blocks.to_bytes().unwrap(), bytes, "{format}");
            let dense = blocks.dense(DType::F32).unwrap().to_vec().unwrap();
            assert!(
                dense.iter().zip(&exact).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs() + 1e-9),
                "{format}"
            );
            let values = exact.into_iter().map(f64::from).collect();
            return Matrix { dense: None, blocks: Some(blocks), values, columns };
        }
        let tensor = self.tensor(&[rows, columns], &values);
        let values = self.read(&tensor);
        Matrix { dense: Some(tensor), blocks: None, values, columns }
    }
}

fn normed(x: &[f64], gamma: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(gamma).map(|(v, g)| v * g / (mean + EPS).sqrt()).collect()
}

struct Exact {
    maps: [Matrix; 4],
    extra: Option<Matrix>,
    gammas: [Vec<f64>; 2],
    bias: Vec<f64>,
    head_gammas: Option<[Vec<f64>; 2]>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

/// One token through a layer, in f64.
fn layer(x: &mut [f64], l: &mut Exact, angles: &[f64]) {
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
    l.keys.push(qkv[HEADS * SIZE..(HEADS + KV) * SIZE].to_vec());
    l.values.push(qkv[(HEADS + KV) * SIZE..].to_vec());
    let mut out = vec![0.0; HEADS * SIZE];
    for (h, out) in out.chunks_mut(SIZE).enumerate() {
        let (q, kv) = (&qkv[h * SIZE..(h + 1) * SIZE], h / (HEADS / KV) * SIZE);
        let score =
            |k: &Vec<f64>| q.iter().zip(&k[kv..]).map(|(a, b)| a * b).sum::<f64>() / (SIZE as f64).sqrt();
        let weights: Vec<f64> = l.keys.iter().map(|k| score(k).exp()).collect();
        let all: f64 = weights.iter().sum();
        for (i, o) in out.iter_mut().enumerate() {
            *o = weights.iter().zip(&l.values).map(|(w, v)| w / all * v[kv + i]).sum();
        }
    }
    x.iter_mut().zip(l.maps[1].times(&out)).for_each(|(x, y)| *x += y);
    let both = l.maps[2].times(&normed(x, &l.gammas[1]));
    let (gate, up) = both.split_at(HIDDEN);
    let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    x.iter_mut().zip(l.maps[3].times(&hidden)).for_each(|(x, y)| *x += y);
}

/// A layer's tensors that are no matrices.
struct Rest {
    norms: [Tensor; 2],
    bias: Tensor,
    head_norms: [Tensor; 2],
    cache: Tensor,
}

impl Net {
    /// Factors of a norm, on the device and exact.
    fn gamma(&mut self, n: usize) -> (Tensor, Vec<f64>) {
        let values: Vec<f32> = self.values(n, 0.1).into_iter().map(|v| 1.0 + v).collect();
        let tensor = self.tensor(&[n], &values);
        let exact = self.read(&tensor);
        (tensor, exact)
    }

    fn layer(&mut self, i: usize, biased: bool) -> (Exact, Rest) {
        let rows = (HEADS + 2 * KV) * SIZE;
        // Values apart, as where their format is another.
        let apart = if (self.choose)("v", i).is_some() { KV * SIZE } else { 0 };
        let maps = [
            self.matrix("qkv", i, [rows - apart, WIDTH]),
            self.matrix("out", i, [WIDTH, HEADS * SIZE]),
            self.matrix("gate_up", i, [2 * HIDDEN, WIDTH]),
            self.matrix("down", i, [WIDTH, HIDDEN]),
        ];
        let extra = (apart > 0).then(|| self.matrix("v", i, [apart, WIDTH]));
        let ((a, ga), (b, gb)) = (self.gamma(WIDTH), self.gamma(WIDTH));
        let ((q, gq), (k, gk)) = (self.gamma(SIZE), self.gamma(SIZE));
        let bias = self.values(rows, if biased { 0.5 } else { 0.0 });
        let bias = self.tensor(&[rows], &bias);
        let cache = Tensor::zeros(&self.device, [1, ROOM, 2 * KV, SIZE], self.dtype).unwrap();
        let (gammas, exact_bias) = ([ga, gb], self.read(&bias));
        let head_gammas = biased.then_some([gq, gk]);
        let (keys, values) = (Vec::new(), Vec::new());
        let exact = Exact { maps, extra, gammas, bias: exact_bias, head_gammas, keys, values };
        (exact, Rest { norms: [a, b], bias, head_norms: [q, k], cache })
    }
}

/// The rotation of pair i at position t.
fn angle(t: usize, i: usize) -> f64 {
    t as f64 * 100f64.powf(-2.0 * i as f64 / SIZE as f64)
}

/// A layer as the kernel takes it.
fn tensors<'a>(e: &'a Exact, rest: &'a Rest, biased: bool) -> Layer<'a> {
    let map = |rows| Map { rows: vec![rows], bias: None };
    let qkv = [Some(e.maps[0].rows()), e.extra.as_ref().map(Matrix::rows)].into_iter().flatten();
    Layer {
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

/// The largest error of the logits of several tokens, relative to their root mean square; `biased`: with biases and norms of heads.
fn error(device: &Device, dtype: DType, choose: Choose, biased: bool) -> f64 {
    let mut net = Net { device: device.clone(), dtype, from: Generator::new(7), choose };
    let (mut exact, rest): (Vec<Exact>, Vec<Rest>) = (0..LAYERS).map(|i| net.layer(i, biased)).unzip();
    let (last_norm, last) = net.gamma(WIDTH);
    let head = net.matrix("head", 0, [VOCAB, WIDTH]);
    let table = |f: fn(f64) -> f64| {
        let all = (0..ROOM).flat_map(|t| (0..SIZE / 2).map(move |i| f(angle(t, i)) as f32));
        Tensor::from_f32(device, [ROOM, SIZE / 2], &all.collect::<Vec<_>>(), DType::F32).unwrap()
    };
    let (cosines, sines) = (table(f64::cos), table(f64::sin));
    let model = Model {
        layers: exact.iter().zip(&rest).map(|(e, rest)| tensors(e, rest, biased)).collect(),
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
    let step = DecodeStep::new(&model, Text::Direct).unwrap();
    let mut worst: f64 = 0.0;
    for t in 0..5 {
        let x = net.values(WIDTH, 1.0);
        let x = net.tensor(&[1, WIDTH], &x);
        let got = net.read(&run(&step, &x, t));
        let mut x = net.read(&x);
        let angles: Vec<f64> = (0..SIZE / 2).map(|i| angle(t, i)).collect();
        exact.iter_mut().for_each(|l| layer(&mut x, l, &angles));
        let logits = head.times(&normed(&x, &last));
        let size = logits.iter().map(|v| v * v).sum::<f64>();
        let off = logits.iter().zip(&got).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        worst = worst.max((off / size).sqrt());
    }
    let x = net.values(WIDTH, 1.0);
    agreement(&step, &net.tensor(&[1, WIDTH], &x), &rest);
    worst
}

/// What a step agrees with behind five tokens: with what it made, not with other logits, nor when one head's keys lie one position later.
fn agreement(step: &DecodeStep, x: &Tensor, rest: &[Rest]) {
    let position = Tensor::from_u32(x.device(), [1], &[5]).unwrap();
    let right = run(step, x, 5);
    assert!(step.agrees(x, &position, 5, &right));
    assert!(!step.agrees(x, &position, 5, &right.mul_scalar(1.5).unwrap()));
    assert!(run(step, x, ROOM).to_vec().unwrap().iter().all(|v| v.is_nan()), "no room");
    run(step, x, 5);
    let keys = rest[0].cache.slice(1, 0..5).unwrap().slice(2, 0..1).unwrap();
    let mut values = keys.to_vec().unwrap();
    values.rotate_right(SIZE);
    let moved = Tensor::from_f32(x.device(), keys.dims(), &values, keys.dtype()).unwrap();
    rest[0].cache.slice(1, 0..5).unwrap().write_slice(2, 0, &moved).unwrap();
    assert!(!step.agrees(x, &position, 5, &right), "keys of other positions");
}

/// Logits after x, the token of this position.
fn run(step: &DecodeStep, x: &Tensor, position: usize) -> Tensor {
    let position = Tensor::from_u32(x.device(), [1], &[position as u32]).unwrap();
    step.run(x, &position).unwrap()
}

/// The test device, or where it does not run the text a simulated one that does.
fn device() -> Device {
    let device = test_device().unwrap();
    if Text::Direct.runs_on(&device) {
        device
    } else {
        Device::open("sim:rx7900xtx", &Settings::from_env()).unwrap()
    }
}

fn named(name: &str) -> Option<&'static Format> {
    FORMATS.into_iter().find(|format| format.name == name)
}

#[test]
fn dense_models() {
    let device = device();
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::Bf16, 6e-3)] {
        let off = error(&device, dtype, |_, _| None, dtype == DType::F16);
        assert!(off < bound, "{dtype}: {off}");
    }
}

#[test]
fn quantised_models() {
    let device = device();
    let all: [Choose; 4] = [
        |name, _| named(if name == "head" { "Q6_K" } else { "Q4_0" }).filter(|_| name != "v"),
        |name, layer| named(if name == "v" || name == "down" && layer == 1 { "Q6_K" } else { "Q4_K" }),
        |name, _| if name == "head" { None } else { named("Q8_0").filter(|_| name != "v") },
        |name, layer| match (name, layer) {
            ("qkv", 0) => named("Q5_0"),
            ("out", 0) => named("Q5_1"),
            ("gate_up", 0) => named("Q4_1"),
            ("v", _) => None,
            _ => named("Q5_K"),
        },
    ];
    for (i, choose) in all.into_iter().enumerate() {
        let off = error(&device, DType::F16, choose, i % 2 == 0);
        // Activations of 8 bits: half a step of 1/127 of a group's largest, about 0.7 % of a normal value, in each of two layers' maps.
        assert!(off < 3e-2, "{i}: {off}");
    }
}
