//! `netcl bench conv`: convolutions of images, forward and the gradients of image and weights.

use super::choice::{Choice, mixed};
use super::{Bench, Common, Line};
use crate::out;
use netcl::prelude::*;
use netcl::tensor::Generator;
use netcl::tensor::ops::conv::{Conv2dOptions, conv2d, explain};
use serde_json::json;

/// Flags of `bench conv`.
#[derive(clap::Args)]
#[command(after_help = TIMED)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Shapes NxCxHxW/OxIxJ with options, such as 128x64x56x56/128x3x3s2 [default: by device]
    ///
    /// Options: s stride (1), p padding (default: the result is as large as the image), d dilation (1), g groups (1). The default shapes are the
    /// layers of ResNet-50, or two of ResNet-18 on a CPU.
    #[arg(long, value_delimiter = ',', value_parser = shape)]
    shapes: Vec<Shape>,
    /// Batch size for the layers of ResNet-50
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// fwd, fwd+bwd
    #[arg(long, value_delimiter = ',', default_value = "fwd,fwd+bwd", value_parser = PASSES)]
    passes: Vec<String>,
    /// Print each forward algorithm's estimate, or why it does not apply, instead of timing
    #[arg(long)]
    explain: bool,
}

const TIMED: &str = "Images and weights are stored with channels last, for the peer too (channels_last). Images of up to four channels get no \
    gradient, like the input of a network. The last line is the geometric mean of the peer's time divided by netcl's, and the smallest ratio.";
const PASSES: [&str; 2] = ["fwd", "fwd+bwd"];

/// Sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// N, C, H, W.
    x: [usize; 4],
    /// O, I, J.
    w: [usize; 3],
    options: Conv2dOptions,
}

const EXPECTED: &str =
    "expected a shape like 128x64x56x56/128x3x3s2 (N, C, H, W / O, I, J, then options s, p, d, g)";

fn shape(text: &str) -> Result<Shape, String> {
    let (image, kernel) = text.split_once('/').ok_or(EXPECTED)?;
    let end = kernel.find(|c: char| !c.is_ascii_digit() && c != 'x').unwrap_or(kernel.len());
    let numbers = |text: &str| text.split('x').map(|n| n.parse().unwrap_or(0)).collect::<Vec<usize>>();
    let x: [usize; 4] = numbers(image).try_into().map_err(|_| EXPECTED)?;
    let w: [usize; 3] = numbers(&kernel[..end]).try_into().map_err(|_| EXPECTED)?;
    if x.contains(&0) || w.contains(&0) {
        return Err(EXPECTED.into());
    }
    let mut options = Conv2dOptions::default();
    let mut padding = None;
    let mut rest = &kernel[end..];
    while let Some(option) = rest.chars().next() {
        let digits = rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| n + 1);
        let value: usize = rest[1..digits].parse().map_err(|_| EXPECTED)?;
        match option {
            's' if value > 0 => options = options.stride(value),
            'd' if value > 0 => options = options.dilation(value),
            'g' if value > 0 => options = options.groups(value),
            'p' => padding = Some(value),
            _ => return Err(EXPECTED.into()),
        }
        rest = &rest[digits..];
    }
    let same = [w[1], w[2]].map(|taps| (taps - 1) / 2);
    options.padding =
        padding.map_or([same[0] * options.dilation[0], same[1] * options.dilation[1]], |p| [p; 2]);
    if !x[1].is_multiple_of(options.groups) || !w[0].is_multiple_of(options.groups) {
        return Err(format!("{} groups do not divide {} and {} channels", options.groups, x[1], w[0]));
    }
    Ok(Shape { x, w, options })
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [n, c, h, w] = self.x;
        let [o, i, j] = self.w;
        let at = self.options;
        write!(f, "{n}×{c}×{h}×{w}/{o}×{i}×{j}")?;
        let of = |name, pair: [usize; 2], usual| {
            if pair == [usual; 2] { String::new() } else { format!("{name}{}", pair[0]) }
        };
        write!(f, "{}{}{}", of("s", at.stride, 1), of("d", at.dilation, 1), of("g", [at.groups; 2], 1))
    }
}

/// The distinct convolutions of ResNet-50 (He et al. 2015): output channels, taps, stride, input channels, pixels per side.
const RESNET50: [[usize; 5]; 23] = [
    [64, 7, 2, 3, 224],
    [64, 1, 1, 64, 56],
    [64, 3, 1, 64, 56],
    [256, 1, 1, 64, 56],
    [64, 1, 1, 256, 56],
    [128, 1, 1, 256, 56],
    [128, 3, 2, 128, 56],
    [512, 1, 1, 128, 28],
    [512, 1, 2, 256, 56],
    [128, 1, 1, 512, 28],
    [128, 3, 1, 128, 28],
    [256, 1, 1, 512, 28],
    [256, 3, 2, 256, 28],
    [1024, 1, 1, 256, 14],
    [1024, 1, 2, 512, 28],
    [256, 1, 1, 1024, 14],
    [256, 3, 1, 256, 14],
    [512, 1, 1, 1024, 14],
    [512, 3, 2, 512, 14],
    [2048, 1, 1, 512, 7],
    [2048, 1, 2, 1024, 14],
    [512, 1, 1, 2048, 7],
    [512, 3, 1, 512, 7],
];
/// Two convolutions of ResNet-18 on 32 × 32 pixels.
const SMALL_CONVOLUTIONS: [[usize; 5]; 2] = [[64, 3, 1, 64, 32], [256, 3, 1, 256, 8]];

fn layer(batch: usize, [o, taps, stride, c, side]: [usize; 5]) -> Shape {
    let options = Conv2dOptions::default().stride(stride).padding((taps - 1) / 2);
    Shape { x: [batch, c, side, side], w: [o, taps, taps], options }
}

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    let shapes = match args.shapes.is_empty() {
        false => args.shapes.clone(),
        true if bench.device.capabilities().is_cpu() => {
            SMALL_CONVOLUTIONS.map(|l| layer(args.batch.min(64), l)).to_vec()
        }
        true => RESNET50.map(|l| layer(args.batch, l)).to_vec(),
    };
    let mut ratios = Vec::new();
    for shape in shapes {
        let case = Case::new(&bench.device, shape, bench.dtype)?;
        if args.explain {
            out::result(&shape.to_string())?;
            let rows = explain(&first(&case.x)?, &first(&case.w)?, shape.options)?;
            let about = json!({ "op": "conv2d", "shape": shape.x, "kernel": shape.w, "pass": "fwd" });
            let shown = [shape.to_string(), "fwd".into()];
            Choice { about, shown, rows, run: Box::new(|_| Ok(())) }.explain(bench)?;
            continue;
        }
        case.check()?;
        for pass in PASSES.into_iter().filter(|pass| args.passes.iter().any(|p| p == pass)) {
            ratios.extend(measure(bench, &case, pass)?.ratio);
        }
    }
    if let Some(least) = ratios.iter().copied().reduce(f64::min) {
        let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
        out::note(&format!("{} ratios: geometric mean {mean:.3}, smallest {least:.3}", ratios.len()));
    }
    Ok(())
}

fn measure(bench: &mut Bench, case: &Case, pass: &'static str) -> Result<Line> {
    let Shape { x, w: [o, i, j], options } = case.shape;
    let backward = pass != "fwd";
    let macs = case.dy.count() * (x[1] / options.groups) * i * j;
    let products = if !backward { 1 } else { 2 + usize::from(case.x.requires_grad()) };
    let tensors = [&case.x, &case.w, &case.dy].map(Tensor::count).iter().sum::<usize>();
    let mut line = Line {
        op: "conv2d".into(),
        shape: x.into_iter().chain([o, i, j]).collect(),
        pass,
        flops: (2 * macs * products) as u64,
        bytes: ((if backward { 2 } else { 1 }) * tensors * bench.dtype.size()) as u64,
        checked: true,
        shown: Some(["conv2d".into(), case.shape.to_string()]),
        ..Line::default()
    };
    line.extra.insert("stride".into(), options.stride[0].into());
    let request = json!({ "op": "conv2d", "shape": line.shape, "stride": options.stride, "padding": options.padding, "dilation": options.dilation,
                          "groups": options.groups, "pass": pass, "dtype": bench.kind });
    bench.measure(line, Some(request), &mut || match backward {
        true => case.both().map(drop),
        false => no_grad(|| case.forward()).map(drop),
    })
}

/// A convolution to measure.
struct Case {
    shape: Shape,
    /// (N, H, W, C).
    x: Tensor,
    /// (O, I, J, C).
    w: Tensor,
    /// Gradient of the result, laid out like images.
    dy: Tensor,
}

/// Returns a channels-last tensor with its axes in the order of convolutions: channels first.
fn first(x: &Tensor) -> Result<Tensor> {
    x.permute(&[0, 3, 1, 2])
}

/// Elements of the result, and of each gradient, to compare.
const SAMPLES: u64 = 12;

impl Case {
    /// Creates normally distributed values, scaled so that the result's are of similar size.
    fn new(device: &Device, shape: Shape, dtype: DType) -> Result<Self> {
        let Shape { x: [n, c, height, width], w: [o, i, j], options } = shape;
        let dims = [o, c / options.groups, i, j];
        super::fits(device, &format!("the convolution {shape}"), &[&shape.x, &shape.x, &dims, &dims], dtype)?;
        let mut from = Generator::new(1);
        let terms = (c / options.groups * i * j) as f32;
        let x = Tensor::normal(device, [n, height, width, c], 0.0, 1.0, dtype, &mut from)?;
        let x = if c > 4 { x.parameter("x") } else { x };
        let lie = [o, i, j, c / options.groups];
        let w = Tensor::normal(device, lie, 0.0, terms.sqrt().recip(), dtype, &mut from)?.parameter("w");
        let y = no_grad(|| conv2d(&first(&x)?, &first(&w)?, None, options))?;
        let [_, _, rows, columns] = y.dims4()?;
        super::fits(
            device,
            &format!("the convolution {shape}"),
            &[&shape.x, &shape.x, y.dims(), y.dims()],
            dtype,
        )?;
        let dy = Tensor::normal(device, [n, rows, columns, o], 0.0, 1.0, dtype, &mut from)?;
        Ok(Self { shape, x, w, dy: first(&dy)? })
    }

    fn forward(&self) -> Result<Tensor> {
        conv2d(&first(&self.x)?, &first(&self.w)?, None, self.shape.options)
    }

    /// Returns the result, and the gradients of the image, if it has one, and of the weights.
    fn both(&self) -> Result<(Tensor, Option<Tensor>, Tensor)> {
        let y = self.forward()?;
        y.backward_with(&self.dy)?;
        let [dx, dw] = [&self.x, &self.w].map(|t| {
            let grad = t.grad();
            t.set_grad(None);
            grad.map(|grad| first(&grad)).transpose()
        });
        let (dx, dw) = (dx?, dw?);
        let none = || Error::internal("bench conv: the backward pass did not return a gradient");
        Ok((y.detach(), dx, dw.ok_or_else(none)?))
    }

    /// Compares elements of the result and of both gradients with sums in f64.
    ///
    /// # Errors
    /// `Internal` naming the first wrong element.
    fn check(&self) -> Result<()> {
        let (y, dx, dw) = self.both()?;
        let host = |t: &Tensor| t.detach().contiguous()?.to_vec();
        let (x, w) = (first(&self.x)?, first(&self.w)?);
        let walk = Walk { x: x.dims4()?, w: w.dims4()?, y: y.dims4()?, options: self.shape.options };
        let (x, w, dy) = (host(&x)?, host(&w)?, host(&self.dy)?);
        let epsilon = self.x.dtype().epsilon();
        let near = |what: &str, got: &Tensor, sum: &dyn Fn([usize; 4]) -> (f64, usize)| -> Result<()> {
            let (dims, values) = (got.dims4()?, host(got)?);
            let [_, b, c, d] = dims;
            for at in (0..SAMPLES).map(|i| (mixed(i) >> 20) as usize % values.len().max(1)) {
                let (expected, terms) = sum([at / d / c / b, at / d / c % b, at / d % c, at % d]);
                let allowed = 2.0 * epsilon * expected.abs() + 1e-4 * (terms as f64).sqrt();
                let found = f64::from(values[at]);
                if (found - expected).abs() > allowed {
                    return Err(Error::internal(format!(
                        "bench conv: element {at} of {what} of {} is {found}, expected {expected}",
                        self.shape
                    )));
                }
            }
            Ok(())
        };
        near("the result", &y, &|at| {
            walk.sum(at, 2, &|x_at, w_at, _| f64::from(x[x_at]) * f64::from(w[w_at]))
        })?;
        if let Some(dx) = &dx {
            near("the image's gradient", dx, &|at| {
                walk.sum(at, 0, &|_, w_at, y_at| f64::from(w[w_at]) * f64::from(dy[y_at]))
            })?;
        }
        near("the weights' gradient", &dw, &|at| {
            walk.sum(at, 1, &|x_at, _, y_at| f64::from(x[x_at]) * f64::from(dy[y_at]))
        })
    }
}

/// The elements of image, weights and result that are multiplied together.
struct Walk {
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
    options: Conv2dOptions,
}

impl Walk {
    /// Returns the sum over all terms of element `at` of the image (0), the weights (1) or the result (2), and the number of terms.
    fn sum(&self, at: [usize; 4], of: usize, term: &dyn Fn(usize, usize, usize) -> f64) -> (f64, usize) {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        let ([n, channels, ..], [outputs, c, taps_h, taps_w], [_, _, rows, columns]) =
            (self.x, self.w, self.y);
        let index =
            |[a, b, c, d]: [usize; 4], dims: [usize; 4]| ((a * dims[1] + b) * dims[2] + c) * dims[3] + d;
        let all = |fixed: Option<usize>, count: usize| fixed.map_or(0..count, |v| v..v + 1);
        let (mut sum, mut terms) = (0.0, 0);
        let given = |wanted: usize, i: usize| (of == wanted).then(|| at[i]);
        let each = outputs / groups;
        for image in all(given(0, 0).or(given(2, 0)), n) {
            for o in all(given(1, 0).or(given(2, 1)), outputs) {
                let group = o / each;
                for channel in all(given(0, 1).or(given(1, 1).map(|v| group * c + v)), channels) {
                    if channel / c != group {
                        continue;
                    }
                    for (i, j) in
                        all(given(1, 2), taps_h).flat_map(|i| all(given(1, 3), taps_w).map(move |j| (i, j)))
                    {
                        for row in all(given(2, 2), rows) {
                            let h = (row * stride[0] + i * dilation[0]).wrapping_sub(padding[0]);
                            if h >= self.x[2] || given(0, 2).is_some_and(|v| v != h) {
                                continue;
                            }
                            for column in all(given(2, 3), columns) {
                                let v = (column * stride[1] + j * dilation[1]).wrapping_sub(padding[1]);
                                if v >= self.x[3] || given(0, 3).is_some_and(|x| x != v) {
                                    continue;
                                }
                                let x_at = index([image, channel, h, v], self.x);
                                let w_at = index([o, channel - group * c, i, j], self.w);
                                sum += term(x_at, w_at, index([image, o, row, column], self.y));
                                terms += 1;
                            }
                        }
                    }
                }
            }
        }
        (sum, terms)
    }
}
