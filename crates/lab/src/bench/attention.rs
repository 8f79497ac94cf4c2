//! `netcl bench attention`: softmax(q kᵀ / √D) v on one packed product of queries, keys and values, as in a GPT.

mod check;
pub mod regret;

use super::choice::{Choice, mixed};
use super::measure::median;
use super::peer::Peer;
use super::{Bench, Common, Line};
use check::{Results, Sequence};
use netcl::prelude::*;
use netcl::tensor::Generator;
use netcl::tensor::ops::Row;
use netcl::tensor::ops::attention::{
    AttentionOptions, attention_by, attention_gradients_by, attention_qkv, explain,
};
use serde_json::{Value, json};

/// Flags of `bench attention`.
#[derive(clap::Args)]
#[command(after_help = TIMED)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Shapes BxHxTxD, or 4x32/8x4096x128 for 32 query heads on 8 key heads [default: by device]
    ///
    /// The default is three shapes of models on a GPU, or two small ones on a CPU.
    #[arg(long, value_delimiter = ',', value_parser = shape)]
    shapes: Vec<Shape>,
    /// Let every query see every key [default: causal]
    #[arg(long)]
    full: bool,
    /// fwd, fwd+bwd
    #[arg(long, value_delimiter = ',', default_value = "fwd,fwd+bwd", value_parser = PASSES)]
    passes: Vec<String>,
    /// Backend of the peer's attention: default is its own choice, best is the fastest on a GPU
    ///
    /// On a CPU, best is the peer's own choice.
    #[arg(long, default_value = "best", value_parser = ["best", "default", "cudnn", "flash", "efficient", "math"])]
    backend: String,
    /// Print each algorithm's estimate, or why it does not apply, instead of timing
    ///
    /// For these shapes, or those of --shapes, forward and backward.
    #[arg(long, value_name = "BxHxTxD", value_delimiter = ',', num_args = 0.., value_parser = shape)]
    explain: Option<Vec<Shape>>,
    /// Draw this many random attentions; print the chosen algorithm's time divided by the fastest's
    ///
    /// Heads of 8 to 256, 1 to 8192 tokens, grouped or not, causal or not. Every applicable algorithm of the forward and of the gradients is timed.
    /// With 0, the shapes of --shapes are timed.
    #[arg(long, value_name = "N")]
    regret: Option<usize>,
    /// Seed; the same seed draws the same attentions
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

const TIMED: &str = "Only attention is timed. Queries, keys and values are parts of one tensor (B, T, (H + 2 KV) D), as a layer's product stores \
    them, for the peer too. fwd+bwd is a recorded forward and its gradients for a random gradient of the result, which netcl writes into one such \
    tensor.";
const PASSES: [&str; 2] = ["fwd", "fwd+bwd"];

/// The peer's backends that `best` tries. The caches of one backend are discarded before the next one runs.
const BACKENDS: [&str; 4] = ["math", "efficient", "flash", "cudnn"];
/// Samples per backend.
const TRIALS: usize = 3;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub tokens: usize,
    pub size: usize,
}

const MODELS: [Shape; 3] = [
    Shape { batch: 16, heads: 12, kv_heads: 12, tokens: 1024, size: 64 },
    Shape { batch: 4, heads: 32, kv_heads: 32, tokens: 4096, size: 128 },
    Shape { batch: 4, heads: 32, kv_heads: 8, tokens: 4096, size: 128 },
];
const SMALL_SHAPES: [Shape; 2] = [
    Shape { batch: 1, heads: 6, kv_heads: 6, tokens: 256, size: 64 },
    Shape { batch: 1, heads: 4, kv_heads: 4, tokens: 512, size: 64 },
];

fn shape(text: &str) -> Result<Shape, String> {
    let number = |text: &str| text.parse::<usize>().unwrap_or(0);
    let parts: Vec<&str> = text.split('x').collect();
    let [batch, heads, tokens, size] = parts[..] else { return Err(EXPECTED.into()) };
    let (heads, kv_heads) = heads.split_once('/').unwrap_or((heads, heads));
    let [batch, heads, kv_heads, tokens, size] = [batch, heads, kv_heads, tokens, size].map(number);
    if [batch, heads, kv_heads, tokens, size].contains(&0) {
        return Err(EXPECTED.into());
    }
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!(
            "{kv_heads} key heads do not divide {heads} query heads; each key head serves the same number of queries"
        ));
    }
    Ok(Shape { batch, heads, kv_heads, tokens, size })
}

const EXPECTED: &str =
    "expected a shape like 16x12x1024x64 (B, H, T, D), or 4x32/8x4096x128 with 8 key heads";

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { batch, heads, kv_heads, tokens, size } = self;
        match heads == kv_heads {
            true => write!(f, "{batch}×{heads}×{tokens}×{size}"),
            false => write!(f, "{batch}×{heads}/{kv_heads}×{tokens}×{size}"),
        }
    }
}

impl Shape {
    /// Returns the floating-point operations: two products forward, five backward, over the half of all pairs that causality leaves.
    fn flops(&self, causal: bool, backward: bool) -> u64 {
        let product = 2 * self.batch * self.heads * self.tokens * self.tokens * self.size;
        let products = if backward { 7 } else { 2 };
        (product * products / if causal { 2 } else { 1 }) as u64
    }

    /// Returns the elements of queries, keys, values and results, and with `backward` of their gradients.
    fn elements(&self, backward: bool) -> u64 {
        let once = self.batch * self.tokens * self.size * 2 * (self.heads + self.kv_heads);
        (if backward { 2 * once } else { once }) as u64
    }

    /// Returns rows of the result as sequence, head and query: the first and the last, and others at random positions.
    fn rows(&self, count: usize) -> Vec<[usize; 3]> {
        let Self { batch, heads, tokens, .. } = *self;
        let all = batch * heads * tokens;
        let anywhere = (0u64..).map(|i| (mixed(i) >> 20) as usize % all);
        let rows = [0, all - 1].into_iter().chain(anywhere).take(count.min(all).max(2));
        rows.map(|row| [row / tokens / heads, row / tokens % heads, row % tokens]).collect()
    }
}

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    let small = bench.device.capabilities().is_cpu();
    let named = args.explain.as_deref().filter(|shapes| !shapes.is_empty());
    let shapes = match named.unwrap_or(&args.shapes) {
        [] if small => &SMALL_SHAPES[..],
        [] => &MODELS[..],
        given => given,
    };
    if let Some(count) = args.regret {
        let drawn = regret::draw(&bench.device, count, args.seed);
        let given = shapes.iter().map(|shape| (*shape, !args.full)).collect();
        return regret::run(bench, if count > 0 { drawn } else { given }, args.seed);
    }
    for shape in shapes {
        let case = Case::new(&bench.device, *shape, !args.full, bench.dtype)?;
        if args.explain.is_some() {
            case.choices()?.iter().try_for_each(|choice| choice.explain(bench))?;
            continue;
        }
        for pass in PASSES.into_iter().filter(|pass| args.passes.iter().any(|p| p == pass)) {
            measure(bench, &case, pass, &args.backend)?;
        }
    }
    Ok(())
}

fn measure(bench: &mut Bench, case: &Case, pass: &'static str, backend: &str) -> Result<()> {
    let Case { shape, causal, .. } = *case;
    let backward = pass != "fwd";
    case.check(&bench.kind, backward)?;
    let Shape { batch, heads, kv_heads, tokens, size } = shape;
    let sizes = [batch, heads, tokens, size];
    let mut request = json!({ "op": "attention", "shape": sizes, "kv_heads": kv_heads, "causal": causal, "memory": "QKV",
                              "pass": pass, "dtype": bench.kind, "backend": backend });
    if backend == "best" {
        let own = bench.device.capabilities().is_cpu();
        request["backend"] = match &mut bench.peer {
            Some(peer) if !own => fastest(peer, &request)?.into(),
            _ => "default".into(),
        };
    }
    let mut line = Line {
        op: "attention".into(),
        shape: sizes.into(),
        pass,
        flops: shape.flops(causal, backward),
        bytes: shape.elements(backward) * bench.dtype.size() as u64,
        checked: true,
        shown: Some([case.name().into(), shape.to_string()]),
        ..Line::default()
    };
    line.extra.insert("kv_heads".into(), kv_heads.into());
    line.extra.insert("causal".into(), causal.into());
    bench.measure(line, Some(request), &mut || match backward {
        true => case.both().map(drop),
        false => case.forward().map(drop),
    })?;
    Ok(())
}

/// Returns the peer's backend that is fastest on `request`; its own choice if none supports it.
fn fastest(peer: &mut Peer, request: &Value) -> Result<&'static str> {
    let (mut best, mut least) = ("default", f64::INFINITY);
    for backend in BACKENDS {
        let mut request = request.clone();
        request["backend"] = backend.into();
        match peer.ask(&request, TRIALS)? {
            Ok(mut reply) if !reply.samples_ms.is_empty() => {
                let ms = median(&mut reply.samples_ms);
                tracing::debug!("the peer's {backend}: {ms:.3} ms");
                if ms < least {
                    (best, least) = (backend, ms);
                }
            }
            Ok(_) => {}
            Err(why) => tracing::debug!("the peer's {backend}: {why}"),
        }
    }
    Ok(best)
}

/// An attention to measure.
pub struct Case {
    shape: Shape,
    causal: bool,
    /// (B, T, (H + 2 KV) D).
    qkv: Tensor,
    /// Gradient of the result: (B, T, H D).
    dy: Tensor,
}

/// Rows of the result, and of the gradients, to compare.
const SAMPLES: usize = 16;
/// Multiply-adds on the host that take a second or two.
const MAX_REFERENCE_SCORES: usize = 1 << 32;

impl Case {
    /// Creates normally distributed values.
    pub fn new(device: &Device, shape: Shape, causal: bool, dtype: DType) -> Result<Self> {
        let Shape { batch, heads, kv_heads, tokens, size } = shape;
        let (of_queries, of_keys) = ([batch, heads, tokens, size], [batch, kv_heads, tokens, size]);
        // Queries and the result, keys and values.
        let all: [&[usize]; 4] = [&of_queries, &of_queries, &of_keys, &of_keys];
        super::fits(device, &format!("attention of {shape}"), &all, dtype)?;
        let mut from = Generator::new(1);
        let mut draw =
            |heads: usize| Tensor::normal(device, [batch, tokens, heads * size], 0.0, 1.0, dtype, &mut from);
        let qkv = draw(heads + 2 * kv_heads)?.parameter("qkv");
        Ok(Self { shape, causal, qkv, dy: draw(heads)? })
    }

    /// Returns every algorithm with its estimate on an empty device, forward and backward.
    ///
    /// # Errors
    /// Errors of `explain`.
    pub fn explain_on(twin: &Device, shape: Shape, causal: bool, dtype: DType) -> Result<[Vec<Row>; 2]> {
        let Shape { batch, heads, kv_heads, tokens, size } = shape;
        let all = Tensor::empty(twin, [batch, tokens, heads + 2 * kv_heads, size], dtype)?;
        let part = |first: usize, count: usize| all.slice(2, first..first + count)?.permute(&[0, 2, 1, 3]);
        let (q, k, v) = (part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?);
        explain(&q, &k, &v, AttentionOptions { causal, ..AttentionOptions::default() })
    }

    fn options(&self) -> AttentionOptions {
        AttentionOptions { causal: self.causal, ..AttentionOptions::default() }
    }

    /// Returns the result, (B, T, H D).
    fn attend(&self) -> Result<Tensor> {
        attention_qkv(&self.qkv, self.shape.heads, self.shape.kv_heads, self.options())
    }

    /// Returns the choices between its algorithms: of the forward, and of the gradients from the forward's result. Queries, keys and values are parts
    /// of `qkv`; gradients are separate tensors.
    pub fn choices(&self) -> Result<[Choice<'_>; 2]> {
        let Shape { batch, heads, kv_heads, tokens, size } = self.shape;
        let parts = self.qkv.detach().reshape([batch, tokens, heads + 2 * kv_heads, size])?;
        let part = |first: usize, count: usize| parts.slice(2, first..first + count)?.permute(&[0, 2, 1, 3]);
        let inputs = [part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?];
        let dy = self.dy.reshape([batch, tokens, heads, size])?.permute(&[0, 2, 1, 3])?;
        let [q, k, v] = &inputs;
        let [forward, backward] = explain(q, k, v, self.options())?;
        let chosen = forward.iter().find(|row| row.chosen).map(|row| row.name);
        let none = || Error::internal(format!("bench attention: no algorithm was chosen for {}", self.shape));
        let results = attention_by(q, k, v, self.options(), chosen.ok_or_else(none)?)?;
        let about = |pass: &str| {
            let sizes = [batch, heads, tokens, size];
            json!({ "op": "attention", "shape": sizes, "kv_heads": kv_heads, "causal": self.causal, "pass": pass })
        };
        let kind = if self.causal { "causal" } else { "full" };
        let shown = |pass: &str| [self.shape.to_string(), format!("{kind} {pass}")];
        let [q, k, v] = inputs.clone();
        Ok([
            Choice {
                about: about("fwd"),
                shown: shown("fwd"),
                rows: forward,
                run: Box::new(move |name| attention_by(&q, &k, &v, self.options(), name).map(drop)),
            },
            Choice {
                about: about("bwd"),
                shown: shown("bwd"),
                rows: backward,
                run: Box::new(move |name| {
                    let [q, k, v] = &inputs;
                    attention_gradients_by([q, k, v], &results, &dy, self.options(), name).map(drop)
                }),
            },
        ])
    }

    fn forward(&self) -> Result<Tensor> {
        no_grad(|| self.attend())
    }

    /// Returns the result, and the gradient of `qkv`, which is removed so that nothing is added to it.
    fn both(&self) -> Result<(Tensor, Tensor)> {
        let y = self.attend()?;
        y.backward_with(&self.dy)?;
        let grad = self.qkv.grad();
        self.qkv.set_grad(None);
        let none = || Error::internal("bench attention: the backward pass did not return a gradient");
        Ok((y.detach(), grad.ok_or_else(none)?))
    }

    /// Compares rows of the result with f64, and with `backward` rows of the gradients and sums that they share. Fails if a sequence's result or
    /// gradient is all zeros, or contains NaNs or infinities.
    ///
    /// # Errors
    /// `Internal` naming the first wrong element.
    fn check(&self, kind: &str, backward: bool) -> Result<()> {
        let (y, dqkv) = match backward {
            true => self.both().map(|(y, dqkv)| (y, Some(dqkv)))?,
            false => (self.forward()?, None),
        };
        let shape = self.shape;
        let rows = shape.rows(SAMPLES);
        for b in 0..shape.batch {
            let results =
                Results { y: one(&y, b)?, dqkv: dqkv.as_ref().map(|dqkv| one(dqkv, b)).transpose()? };
            let here: Vec<_> = rows.iter().filter(|row| row[0] == b).map(|row| [row[1], row[2]]).collect();
            // Rows of keys use the scores of all queries.
            let keys =
                if b + 1 == shape.batch && self.scores() <= MAX_REFERENCE_SCORES { SAMPLES } else { 0 };
            results.verify(&self.sequence(b)?, &here, keys).map_err(|why| {
                let how = self.name();
                Error::internal(format!("bench {how}: {shape} in {kind} is wrong: sequence {b}, {why}"))
            })?;
        }
        Ok(())
    }

    fn sequence(&self, b: usize) -> Result<Sequence> {
        let Self { shape, causal, qkv, dy } = self;
        Ok(Sequence {
            shape: *shape,
            causal: *causal,
            dtype: qkv.dtype(),
            qkv: one(qkv, b)?,
            dy: one(dy, b)?,
        })
    }

    /// Returns the multiply-adds of the scores that belong to a key head of a sequence.
    fn scores(&self) -> usize {
        let Shape { heads, kv_heads, tokens, size, .. } = self.shape;
        (tokens * tokens).saturating_mul(heads / kv_heads * size) / if self.causal { 2 } else { 1 }
    }

    fn name(&self) -> &'static str {
        if self.causal { "attention causal" } else { "attention full" }
    }
}

/// Returns the values of one sequence, on the host.
fn one(x: &Tensor, b: usize) -> Result<Vec<f32>> {
    x.detach().slice(0, b..b + 1)?.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests;

    #[test]
    fn shapes() {
        let of = |[batch, heads, kv_heads, tokens, size]: [usize; 5]| {
            Ok(Shape { batch, heads, kv_heads, tokens, size })
        };
        assert_eq!(shape("16x12x1024x64"), of([16, 12, 12, 1024, 64]));
        assert_eq!(shape("4x32/8x4096x128"), of([4, 32, 8, 4096, 128]));
        assert_eq!(shape("4x32/8x4096x128").unwrap().to_string(), "4×32/8×4096×128");
        for bad in ["", "1x2x3", "1x2x3x4x5", "0x1x1x1", "1x2/x3x4", "1x2/0x3x4", "1x2/2/2x3x4", "axbxcxd"] {
            assert_eq!(shape(bad), Err(EXPECTED.into()), "{bad}");
        }
        let message = shape("1x4/3x8x8").unwrap_err();
        assert!(message.starts_with("3 key heads do not divide 4 query heads"), "{message}");
    }

    #[test]
    fn what_is_computed_and_moved() {
        let shape = shape("2x4/2x8x16").unwrap();
        assert_eq!(shape.flops(false, false), 4 * 2 * 4 * 8 * 8 * 16);
        assert_eq!(2 * shape.flops(true, true), 7 * shape.flops(true, false));
        assert_eq!(shape.elements(true), 2 * 2 * 8 * 16 * (4 + 2 + 2 + 4));
        let rows = shape.rows(SAMPLES);
        assert_eq!((rows.len(), rows[0], rows[1]), (SAMPLES, [0, 0, 0], [1, 3, 7]));
        assert!(rows.iter().all(|[b, h, t]| *b < 2 && *h < 4 && *t < 8));
    }

    fn checked(device: &Device, shape: &str, causal: bool, dtype: DType, backward: bool) -> Result<()> {
        Case::new(device, super::shape(shape).unwrap(), causal, dtype)?.check(&dtype.to_string(), backward)
    }

    #[test]
    fn attention_is_checked_in_every_form() {
        let device = tests::device(|text| text.to_owned());
        for dtype in [DType::F32, DType::Bf16] {
            for causal in [true, false] {
                for shape in ["2x2x40x32", "1x4/2x70x32", "1x1x1x32"] {
                    checked(&device, shape, causal, dtype, true).unwrap();
                    checked(&device, shape, causal, dtype, false).unwrap();
                }
            }
        }
        let case = Case::new(&device, shape("1x2x8x32").unwrap(), true, DType::F32).unwrap();
        let [first, second] = [(); 2].map(|()| case.both().unwrap().1.to_vec().unwrap());
        assert!(first == second && case.qkv.grad().is_none(), "gradients add up");
    }

    /// A line of the source for CPUs or GPUs, and its replacement.
    type Defect = [(&'static str, &'static str); 2];

    #[test]
    fn a_wrong_kernel_is_found_before_it_is_timed() {
        let results: Defect =
            [("(FV)(1.0f) / sum[j]", "(FV)(0.9f) / sum[j]"), ("1.0f / all;", "0.9f / all;")];
        let queries: Defect = [
            ("- delta[j]) * SLOPE(i * QV + j);", "- delta[j]) * SLOPE(i * QV + j) * 0.9f;"),
            ("- dot_o[i]) * SLOPE(score);", "- dot_o[i]) * SLOPE(score) * 0.9f;"),
        ];
        let keys: Defect = [
            ("OUTER_TILE(2, tk, td, rq, c)", "OUTER_TILE(2, tk, td, rg, c)"),
            ("ACC_TILE(ak, NY, ds, PS, tq,", "ACC_TILE(ak, NY, ds, PS, tg,"),
        ];
        let values: Defect = [
            ("OUTER_TILE(2, tv, tp, rg, c)", "OUTER_TILE(2, tv, td, rg, c)"),
            ("ACC_TILE(av, NY, p, PS, tg,", "ACC_TILE(av, NY, ds, PS, tg,"),
        ];
        for (defect, backward, expected) in [
            (results, false, "the result at head 0, query 0: element 0 is "),
            (queries, true, "the gradient of the queries at head "),
            (keys, true, "key head 0: dk·k sums to "),
            (values, true, "key head 0: dv·v sums to "),
        ] {
            let broken = tests::device(move |text| {
                defect.iter().fold(text.to_owned(), |text, (right, wrong)| text.replace(right, wrong))
            });
            let wrong = checked(&broken, "1x4/2x70x32", true, DType::Bf16, backward).unwrap_err();
            let message = wrong.to_string();
            let start = "bench attention causal: 1×4/2×70×32 in bf16 is wrong: sequence 0, ";
            assert!(message.contains(&format!("{start}{expected}")), "{message}");
        }
    }

    #[test]
    fn a_wrong_part_of_a_gradient_is_found() {
        let device = tests::device(|text| text.to_owned());
        let case = Case::new(&device, shape("1x4/2x70x32").unwrap(), true, DType::F32).unwrap();
        let sequence = case.sequence(0).unwrap();
        let (y, dqkv) = case.both().unwrap();
        let (y, dqkv) = (one(&y, 0).unwrap(), one(&dqkv, 0).unwrap());
        // Changes each element of these columns of all rows.
        let verdict = |columns: std::ops::Range<usize>, change: &dyn Fn(usize, &mut f32)| {
            let mut dqkv = dqkv.clone();
            for (t, row) in dqkv.chunks_exact_mut(8 * 32).enumerate() {
                row[columns.clone()].iter_mut().for_each(|x| change(t, x));
            }
            let results = Results { y: y.clone(), dqkv: Some(dqkv) };
            results.verify(&sequence, &[[0, 0], [3, 69]], SAMPLES).map_or_else(|why| why, |()| String::new())
        };
        let keys = 4 * 32..6 * 32;
        assert_eq!(verdict(keys.clone(), &|_, _| ()), "");
        assert_eq!(verdict(keys.clone(), &|_, x| *x = 0.0), "the gradient of the keys is all zeros");
        let message = verdict(keys.clone(), &|t, x| *x = if t == 5 { f32::NAN } else { *x });
        assert_eq!(message, "the gradient of the keys has a NaN");
        // One key of the first head, of which no row is sampled.
        let message = verdict(4 * 32..5 * 32, &|t, x| *x *= if t == 5 { 0.9 } else { 1.0 });
        assert!(message.starts_with("key head 0: dk·k sums to "), "{message}");
        let message = verdict(0..32, &|_, x| *x = -*x);
        assert!(message.starts_with("key head 0: dk·k sums to "), "{message}");
        let message = verdict(3 * 32..4 * 32, &|t, x| *x *= if t == 69 { 1.001 } else { 1.0 });
        assert!(
            message.starts_with("the gradient of the queries at head 3, query 69: element "),
            "{message}"
        );
        // Two values' gradients of the last head, changed so that the sum stays the same.
        let (v, at) = (&sequence.qkv, |t: usize| t * 8 * 32 + 7 * 32);
        let by = -1e-2 * v[at(0)] / v[at(14)];
        let message = verdict(7 * 32..7 * 32 + 1, &|t, x| match t {
            0 => *x += 1e-2,
            14 => *x += by,
            _ => (),
        });
        assert!(
            message.starts_with("the gradient of the values at key head 1, key 0: element 0"),
            "{message}"
        );
    }

    /// Returns a peer that answers according to these cases of a shell script.
    #[cfg(unix)]
    fn scripted(answers: &str) -> Peer {
        let script = format!("while read -r line; do case \"$line\" in\n{answers}esac; done");
        Peer::start(std::process::Command::new("sh").args(["-c", &script]), true).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn the_fastest_backend_that_takes_the_case_is_the_peer() {
        let hello = "*hello*) echo '{\"torch\":\"2\",\"cuda\":\"13\"}';;\n*quit*) exit;;\n";
        let times = "*math*) echo '{\"samples_ms\":[9,1,9]}';;\n*flash*) echo '{\"samples_ms\":[4,5,3]}';;\n\
                     *cudnn*) echo '{\"samples_ms\":[7,7,2]}';;\n";
        let refusal = "*) echo '{\"error\":\"No available kernel\"}';;\n";
        let request = json!({ "op": "attention", "backend": "best" });
        let mut peer = scripted(&format!("{hello}{times}{refusal}"));
        assert_eq!(fastest(&mut peer, &request).unwrap(), "flash");
        let mut peer = scripted(&format!("{hello}{refusal}"));
        assert_eq!(fastest(&mut peer, &request).unwrap(), "default");
    }
}
