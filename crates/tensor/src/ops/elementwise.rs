//! Element-wise operations. To add one, add a row: name, C expression, its derivative, f64 function.
//!
//! Expressions use `x0`, `x1`, … (floats or float vectors) and scalars `s0`, `s1`. In a derivative, `x0` is the tensor that the row saves (input or
//! output), and the last `x` is the gradient of the result.

use super::integer;
use super::map::map_typed;
use super::prelude::*;

/// The saved tensor in which a unary operation's derivative is expressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// `x0` is the input.
    Input,
    /// `x0` is the output.
    Output,
}

/// An operation of one tensor and up to two scalars.
pub struct UnaryRow {
    /// Name.
    pub name: &'static str,
    /// Formula, for callers by name.
    pub doc: &'static str,
    /// Expression of the result in `x0`, `s0`, `s1`.
    pub y: &'static str,
    /// The tensor that `dx` uses as `x0`.
    pub saves: Saves,
    /// Expression of the derivative times `x1`, the gradient of the result.
    pub dx: &'static str,
    /// The function in f64.
    pub f: fn(f64, [f64; 2]) -> f64,
    /// Range of the samples, away from poles and kinks.
    pub domain: (f64, f64),
    /// Names of the scalars, and the values in samples.
    pub scalars: &'static [(&'static str, f32)],
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

const fn row(
    name: &'static str,
    doc: &'static str,
    y: &'static str,
    dx: &'static str,
    f: fn(f64, [f64; 2]) -> f64,
) -> UnaryRow {
    UnaryRow { name, doc, y, saves: Saves::Input, dx, f, domain: (-3.0, 3.0), scalars: &[] }
}

impl UnaryRow {
    const fn output(mut self) -> Self {
        self.saves = Saves::Output;
        self
    }
    const fn on(mut self, low: f64, high: f64) -> Self {
        self.domain = (low, high);
        self
    }
    const fn with(mut self, scalars: &'static [(&'static str, f32)]) -> Self {
        self.scalars = scalars;
        self
    }
}

/// Returns the error function, by its series, or by its continued fraction if the series loses digits.
fn erf(x: f64) -> f64 {
    if x.abs() < 3.0 {
        let (mut sum, mut term) = (x, x);
        for n in 1..100 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 2.0 / std::f64::consts::PI.sqrt() * sum;
    }
    let mut fraction = 0.0;
    for k in (1..60).rev() {
        fraction = f64::from(k) / 2.0 / (x.abs() + fraction);
    }
    x.signum() * (1.0 - (-x * x).exp() / std::f64::consts::PI.sqrt() / (x.abs() + fraction))
}

/// fmin and fmax would drop a NaN, in the argument and in the bounds. The upper bound has priority over a lower bound above it.
const CLAMP: &str = "x0 != x0 || (FV)(s0) != (FV)(s0) || (FV)(s1) != (FV)(s1) ? x0 + s0 + s1 \
                     : x0 > s1 || (FV)(s0) > (FV)(s1) ? (FV)(s1) : x0 < s0 ? (FV)(s0) : x0";
const SIN: &str = "fabs(x0) < 1e-4f ? x0 : sin(x0)";
/// Square roots of -infinity and -0 are those of `sqrt`, as in PyTorch.
const POW: &str = "s0 == 0.5f ? sqrt(x0) : s0 == -0.5f ? 1.0f / sqrt(x0) : pow(x0, (FV)(s0))";
const POW_GRAD: &str = "s0 == 0.0f ? (FV)(0.0f) : x1 * (s0 * (s0 == 1.5f ? sqrt(x0) : s0 == 0.5f ? 1.0f / sqrt(x0) \
                        : pow(x0, (FV)(s0 - 1.0f))))";

/// tanh(log(1 + n)) = n (n + 2) / (n (n + 2) + 2) with n = e^x; above 20 it is 1.
const MISH: &str =
    "x0 > 20.0f ? x0 : x0 * (EXP(x0) * (EXP(x0) + 2.0f)) / (EXP(x0) * (EXP(x0) + 2.0f) + 2.0f)";
const MISH_GRAD: &str = "x0 > 20.0f ? x1 : x1 * (EXP(x0) * (EXP(x0) + 2.0f) / (EXP(x0) * (EXP(x0) + 2.0f) + 2.0f) \
                         + x0 * sigmoid(x0) * (2.0f / (EXP(x0) * (EXP(x0) + 2.0f) + 2.0f)) \
                         * (1.0f + EXP(x0) * (EXP(x0) + 2.0f) / (EXP(x0) * (EXP(x0) + 2.0f) + 2.0f)))";

fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
}

fn clamped(x: f64, [low, high]: [f64; 2]) -> f64 {
    if x.is_nan() || low.is_nan() || high.is_nan() {
        f64::NAN
    } else if x > high || low > high {
        high
    } else if x < low {
        low
    } else {
        x
    }
}

fn power(x: f64, exponent: f64) -> f64 {
    if exponent == 0.5 {
        x.sqrt()
    } else if exponent == -0.5 {
        1.0 / x.sqrt()
    } else {
        x.powf(exponent)
    }
}

/// Returns the larger of two numbers, or NaN if one is NaN; `f64::max` would drop it.
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}
/// Returns the smaller of two numbers, or NaN if one is NaN.
fn smaller(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

/// All unary operations.
pub static UNARY: &[UnaryRow] = &[
    row("neg", "`-x`.", "-x0", "-x1", |x, _| -x),
    row("exp", "`e^x`.", "EXP(x0)", "x0 * x1", |x, _| x.exp()).output(),
    row("log", "Natural logarithm.", "log(x0)", "x1 / x0", |x, _| x.ln()).on(0.2, 4.0),
    row("sqrt", "Square root.", "sqrt(x0)", "0.5f * x1 / x0", |x, _| x.sqrt()).output().on(0.2, 4.0),
    row("rsqrt", "`1 / sqrt(x)`.", "1.0f / sqrt(x0)", "-0.5f * x0 * x0 * x0 * x1", |x, _| 1.0 / x.sqrt()).output().on(0.2, 4.0),
    row("tanh", "Hyperbolic tangent.", "tanh_of(x0)", "(1.0f - x0 * x0) * x1", |x, _| x.tanh()).output(),
    row("sigmoid", "`1 / (1 + e^-x)`.", "sigmoid(x0)", "x0 * (1.0f - x0) * x1", |x, _| 1.0 / (1.0 + (-x).exp())).output(),
    row(
        "relu", "`max(x, 0)`.",
        "x0 < 0.0f ? (FV)(0.0f) : x0",
        "x0 <= 0.0f ? (FV)(0.0f) : x1",
        |x, _| if x < 0.0 { 0.0 } else { x },
    )
    .on(0.1, 2.0),
    row("silu", "`x · sigmoid(x)`.", "silu(x0)", "silu_grad(x0) * x1", |x, _| x / (1.0 + (-x).exp())),
    row("gelu", "`x · Φ(x)` with the error function (Hendrycks and Gimpel 2016).", "gelu(x0)", "gelu_grad(x0) * x1", |x, _| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))),
    row("gelu_tanh", "GELU by its tanh approximation, as in GPT-2.", "gelu_tanh(x0)", "gelu_tanh_grad(x0) * x1", |x, _| {
        0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
    }),
    row("abs", "`|x|`.", "fabs(x0)", "(x0 > 0.0f ? (FV)(1.0f) : x0 < 0.0f ? (FV)(-1.0f) : (FV)(0.0f)) * x1", |x, _| {
        x.abs()
    })
    .on(0.1, 2.0),
    row("square", "`x²`.", "x0 * x0", "2.0f * x0 * x1", |x, _| x * x),
    // Below 1e-4 the first term of the series is exact in f32; PoCL's sine of 1e-40 is 0.008.
    row("sin", "Sine.", SIN, "(fabs(x0) < 1e-4f ? (FV)(1.0f) : cos(x0)) * x1", |x, _| x.sin()),
    row(
        "cos", "Cosine.",
        "fabs(x0) < 1e-4f ? (FV)(1.0f) : cos(x0)",
        "-(fabs(x0) < 1e-4f ? x0 : sin(x0)) * x1",
        |x, _| x.cos(),
    ),
    row("add_scalar", "`x + s`.", "x0 + s0", "x1", |x, s| x + s[0]).with(&[("s", 1.5)]),
    row("mul_scalar", "`x · s`.", "x0 * s0", "x1 * s0", |x, s| x * s[0]).with(&[("s", -2.5)]),
    row("rsub_scalar", "`s - x`.", "s0 - x0", "-x1", |x, s| s[0] - x).with(&[("s", 1.0)]),
    row("rdiv_scalar", "`s / x`.", "s0 / x0", "-x1 * ((s0 / x0) / x0)", |x, s| s[0] / x).with(&[("s", 2.0)]).on(0.3, 3.0),
    row("pow_scalar", "`x^s`.", POW, POW_GRAD, |x, s| power(x, s[0])).with(&[("s", 1.7)]).on(0.3, 3.0),
    row("leaky_relu", "x if it is positive, otherwise `x · slope`.", "x0 > 0.0f ? x0 : x0 * s0", "x0 > 0.0f ? x1 : x1 * s0", |x, s| if x > 0.0 { x } else { x * s[0] }).with(&[("slope", 0.1)]),
    row("elu", "x if it is positive, otherwise `alpha · (e^x - 1)`.", "x0 > 0.0f ? x0 : s0 * expm1(x0)", "x0 <= 0.0f ? x1 * s0 * EXP(x0) : x1", |x, s| if x > 0.0 { x } else { s[0] * x.exp_m1() }).with(&[("alpha", 1.5)]),
    row("softplus", "`log(1 + e^x)`.", "x0 > 0.0f ? x0 + log1p(EXP(-x0)) : log1p(EXP(x0))", "sigmoid(x0) * x1", |x, _| softplus(x)),
    row("hard_swish", "`x · min(max(x + 3, 0), 6) / 6`.", "x0 * fmin(fmax(x0 + 3.0f, 0.0f), 6.0f) / 6.0f", "x0 < -3.0f ? (FV)(0.0f) : x0 <= 3.0f ? x1 * (x0 / 3.0f + 0.5f) : x1", |x, _| x * (x + 3.0).clamp(0.0, 6.0) / 6.0).on(-2.9, 2.9),
    row("mish", "`x · tanh(log(1 + e^x))` (Misra 2019).", MISH, MISH_GRAD, |x, _| x * softplus(x).tanh()),
    row("clamp", "x clamped to `low` and `high`; `high` if they cross, and NaN if one of the three is NaN. The gradient is 0 outside and at the bounds.", CLAMP, "(x0 > s0 && x0 < s1) ? x1 : (FV)(0.0f)", clamped).with(&[("low", -5.0), ("high", 2.9)]),
];

/// An operation of two tensors, broadcast against each other.
pub struct BinaryRow {
    /// Name.
    pub name: &'static str,
    /// Formula, for callers by name.
    pub doc: &'static str,
    /// Expression of the result in `x0` and `x1`.
    pub y: &'static str,
    /// Expression of the first operand's gradient in `x0`, `x1` and `x2`, the gradient of the result; empty if it equals `x2`.
    pub da: &'static str,
    /// Expression of the second operand's gradient.
    pub db: &'static str,
    /// The function in f64.
    pub f: fn(f64, f64) -> f64,
}

/// All binary operations.
pub static BINARY: &[BinaryRow] = &[
    BinaryRow {
        name: "add",
        doc: "`a + b`; the shapes broadcast.",
        y: "x0 + x1",
        da: "",
        db: "",
        f: |a, b| a + b,
    },
    BinaryRow {
        name: "sub",
        doc: "`a - b`; the shapes broadcast.",
        y: "x0 - x1",
        da: "",
        db: "-x2",
        f: |a, b| a - b,
    },
    BinaryRow {
        name: "mul",
        doc: "`a · b`, element by element; the shapes broadcast.",
        y: "x0 * x1",
        da: "x1 * x2",
        db: "x0 * x2",
        f: |a, b| a * b,
    },
    BinaryRow {
        name: "div",
        doc: "`a / b`; the shapes broadcast.",
        y: "x0 / x1",
        da: "x2 / x1",
        db: "-x2 * ((x0 / x1) / x1)",
        f: |a, b| a / b,
    },
    BinaryRow {
        name: "maximum",
        doc: "The larger of both, or NaN if one is NaN; the shapes broadcast. Equal elements share the gradient.",
        y: "x0 > x1 || x0 != x0 ? x0 : x1",
        da: "x0 < x1 ? (FV)(0.0f) : x0 == x1 ? 0.5f * x2 : x2",
        db: "x1 < x0 ? (FV)(0.0f) : x0 == x1 ? 0.5f * x2 : x2",
        f: larger,
    },
    BinaryRow {
        name: "minimum",
        doc: "The smaller of both, or NaN if one is NaN; the shapes broadcast. Equal elements share the gradient.",
        y: "x0 < x1 || x0 != x0 ? x0 : x1",
        da: "x0 > x1 ? (FV)(0.0f) : x0 == x1 ? 0.5f * x2 : x2",
        db: "x1 > x0 ? (FV)(0.0f) : x0 == x1 ? 0.5f * x2 : x2",
        f: smaller,
    },
    BinaryRow {
        name: "pow",
        doc: "`a^b`, element by element; the shapes broadcast.",
        y: "pow(x0, x1)",
        da: "x1 == 0.0f ? (FV)(0.0f) : x2 * (x1 * pow(x0, x1 - 1.0f))",
        db: "x0 == 0.0f && x1 >= 0.0f ? (FV)(0.0f) : x2 * (pow(x0, x1) * log(x0))",
        f: f64::powf,
    },
];

/// A row of [`UNARY`] with its scalars.
#[derive(Clone)]
pub struct Unary {
    pub(super) row: &'static UnaryRow,
    pub(super) scalars: Vec<f32>,
}

impl Op<1> for Unary {
    const NAME: &'static str = "elementwise";
    type Saved = Tensor;
    fn called(&self) -> &'static str {
        self.row.name
    }
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        check::float(self.row.name, "x", x)?;
        let y = map_as_they_lie(self.row.y, &[x], &self.scalars, x.shape(), x.dtype())?;
        let saved = if self.row.saves == Saves::Input { x.detach() } else { y.clone() };
        Ok((y, saved))
    }
    fn term(&self, [x]: [&Tensor; 1]) -> Result<Option<Term>> {
        check::float(self.row.name, "x", x)?;
        Ok(Some(Term::Unary(self.row.name, self.scalars.clone())))
    }
    fn backward(&self, [x]: [&Tensor; 1], saved: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let [saved] = read(["x0"], self.row.dx, [saved], dy);
        Ok([Some(map_as_they_lie(self.row.dx, &[saved, dy], &self.scalars, x.shape(), x.dtype())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let s = |i: usize| self.scalars.get(i).map_or(0.0, |v| f64::from(*v));
        x.map(|v| (self.row.f)(v, [s(0), s(1)]))
    }
    fn calls() -> Vec<Call> {
        let scalars = |call: Call, row: &UnaryRow| {
            row.scalars.iter().fold(call, |call, (name, _)| call.required(name, AttributeKind::Float))
        };
        let of_row = |row: &UnaryRow| scalars(Call::new(row.name, row.doc).inputs(&["x"]), row);
        let mut out: Vec<Call> = UNARY.iter().map(|row| of_row(row).run(unary_called)).collect();
        let scalar = |name, doc| Call::new(name, doc).inputs(&["x"]).required("s", AttributeKind::Float);
        out.extend([
            scalar("sub_scalar", "`x - s`.").run(|a| a.inputs::<1>()?[0].sub_scalar(a.get("s")?)),
            scalar("div_scalar", "`x / s`.").run(|a| a.inputs::<1>()?[0].div_scalar(a.get("s")?)),
        ]);
        out
    }
    fn attributes(&self) -> Attributes {
        self.row
            .scalars
            .iter()
            .zip(&self.scalars)
            .map(|((name, _), value)| (*name, (*value).into()))
            .collect()
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let mut out = Vec::new();
        for row in UNARY {
            let op = Self { row, scalars: row.scalars.iter().map(|(_, value)| *value).collect() };
            let sample = |shape: &[usize]| {
                Sample::new(op.clone(), [SampleInput::uniform(shape, row.domain.0, row.domain.1)])
                    .named(row.name)
            };
            out.extend([sample(&[3, 37]).bench(&[&[4096, 4096]]).light(), sample(&[1]).light()]);
            let (values, ends_at_zero) = extremes(row.name);
            let far = Sample::new(op.clone(), [SampleInput::values(&[3, 37], values, None)]).named(row.name);
            let far = far.extreme().pointwise().light();
            out.push(if ends_at_zero { far.relative_step() } else { far });
        }
        let exp = |shape: &[usize]| {
            Sample::new(Self { row: &UNARY[1], scalars: vec![] }, [SampleInput::normal(shape)])
        };
        out.extend([exp(&[3, 37]), exp(&[1]), exp(&[4, 0])]);
        out
    }
}

/// A row of [`BINARY`].
#[derive(Clone)]
pub struct Binary {
    pub(super) row: &'static BinaryRow,
}

impl Op<2> for Binary {
    const NAME: &'static str = "elementwise";
    type Saved = ();
    fn called(&self) -> &'static str {
        self.row.name
    }
    fn forward(&self, [a, b]: [&Tensor; 2]) -> Result<(Tensor, ())> {
        check::same_float(self.row.name, &[("the first operand", a), ("the second", b)])?;
        let shape = a.shape().broadcast(b.shape(), self.row.name)?;
        Ok((map_as_they_lie(self.row.y, &[a, b], &[], &shape, a.dtype())?, ()))
    }
    fn term(&self, [a, b]: [&Tensor; 2]) -> Result<Option<Term>> {
        check::same_float(self.row.name, &[("the first operand", a), ("the second", b)])?;
        Ok(Some(Term::Binary(self.row.name)))
    }
    fn backward(&self, [a, b]: [&Tensor; 2], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let gradient = |of: &Tensor, expression: &'static str| -> Result<Option<Tensor>> {
            if !of.requires_grad() {
                return Ok(None);
            }
            let full = match expression {
                "" => dy.clone(),
                _ => {
                    let [a, b] = read(["x0", "x1"], expression, [a, b], dy);
                    map_as_they_lie(expression, &[a, b, dy], &[], dy.shape(), dy.dtype())?
                }
            };
            full.sum_to(of.shape()).map(Some)
        };
        Ok([gradient(a, self.row.da)?, gradient(b, self.row.db)?])
    }
    fn reference(&self, [a, b]: [&Array; 2]) -> Array {
        let shape = a.shape.broadcast(&b.shape, self.row.name).unwrap_or_default();
        a.zip(b, &shape, self.row.f)
    }
    fn calls() -> Vec<Call> {
        let of_row = |row: &BinaryRow| Call::new(row.name, row.doc).inputs(&["a", "b"]);
        BINARY
            .iter()
            .map(|row| of_row(row).run(|x| x.inputs().and_then(|[a, b]| binary(x.name(), a, b))))
            .collect()
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let mut out = Vec::new();
        for row in BINARY {
            let op = Self { row };
            // Away from zero and from each other: no poles, no ties. For maximum and minimum, either operand may be the larger one.
            let either = ["maximum", "minimum"].contains(&row.name);
            let draw = |low, high, values: &'static [f64]| {
                move |s: &[usize]| {
                    if either {
                        SampleInput::values(s, values, None)
                    } else {
                        SampleInput::uniform(s, low, high)
                    }
                }
            };
            let (a, b) = (draw(0.5, 1.4, &[0.5, -2.0, 1.25]), draw(1.5, 3.0, &[1.5, 0.75, -0.5, 2.0, -3.0]));
            let sample = |x: &[usize], y: &[usize]| Sample::new(op.clone(), [a(x), b(y)]).named(row.name);
            let big: &[usize] = &[4096, 4096];
            out.extend([
                sample(&[2, 3, 35], &[2, 3, 35]).bench(&[big, big]).light(),
                sample(&[2, 3, 5], &[5]).light(),
                sample(&[1], &[1]).light(),
            ]);
            let [a, b] = extreme_pairs(row.name).map(|values| SampleInput::values(&[2, 3, 35], values, None));
            let far = Sample::new(op.clone(), [a, b]).named(row.name).extreme().pointwise().light();
            out.push(if ["div", "pow"].contains(&row.name) { far.relative_step() } else { far });
        }
        let add = |x: &[usize], y: &[usize]| {
            Sample::new(Self { row: &BINARY[0] }, [SampleInput::normal(x), SampleInput::normal(y)])
        };
        out.extend([
            add(&[2, 3, 35], &[2, 3, 35]),
            add(&[2, 1, 4], &[3, 1]).light(),
            add(&[3], &[]),
            add(&[0, 3], &[1, 3]),
            add(&[2, 3, 4], &[2, 1, 1]).light(),
        ]);
        out
    }
}

/// Returns arguments at which a function overflows, saturates or loses digits, and whether it takes only positive numbers.
fn extremes(name: &str) -> (&'static [f64], bool) {
    match name {
        // 100 overflows f32.
        "exp" => (&[-1e4, -104.0, -88.0, -20.0, 20.0, 80.0, 88.0, 100.0], false),
        "log" | "sqrt" | "rsqrt" => (&[1e-30, 1e-10, 1e10, 1e30], true),
        "pow_scalar" => (&[1e-20, 1e-10, 1e10, 1e20], true),
        "rdiv_scalar" => (&[-1e30, -1e-15, 1e-15, 1e30], true),
        // The first and the last overflow.
        "square" => (&[-1e30, -1e15, 1e-15, 1e15, 1e30], false),
        // Central differences over 1e-5 are too inexact for larger angles.
        "sin" | "cos" => (&[-200.0, -100.0, 100.0, 200.0], false),
        _ => (&[-1e18, -1e4, -88.0, -20.0, 20.0, 88.0, 1e4, 1e18], false),
    }
}

/// Returns the same for pairs of numbers.
fn extreme_pairs(name: &str) -> [&'static [f64]; 2] {
    match name {
        // The first product overflows.
        "mul" => [&[1e20, 1e-20, -1e10, 1e25], &[1e20, 1e20, 1e-10, 1e-25]],
        // The square of the third divisor overflows, its quotient does not.
        "div" => [&[1e15, 1e-20, 1e38, -3.0], &[1e-10, 1e10, 1e20, 1e25]],
        // The third and the last overflow.
        "pow" => [&[1e30, 1e-30, 1e20, 2.0, 1e10], &[-1.0, 1.0, 3.0, -100.0, 30.0]],
        "maximum" | "minimum" => [&[1e30, -1e30, 1e30, -1e-3], &[-1e30, 1.0, 1e31, -2e-3]],
        // The last sum, or difference, overflows.
        _ => [&[1e30, -1e30, 1e-30, 3e38, 3e38], &[1e30, 3e30, 2e-30, 3e38, -3e38]],
    }
}

/// Returns the operands that a derivative uses, and `dy` in place of the others, which may have been overwritten.
fn read<'a, const N: usize>(
    names: [&str; N],
    expression: &str,
    operands: [&'a Tensor; N],
    dy: &'a Tensor,
) -> [&'a Tensor; N] {
    std::array::from_fn(|i| if expression.contains(names[i]) { operands[i] } else { dy })
}

/// Computes [`map`] with the result in the layout of a full-size operand with channels last, `(N, H, W, C)` seen as `(N, C, H, W)`. Results that
/// follow a convolution thus keep the layout that convolutions read.
pub(super) fn map_as_they_lie(
    expression: &'static str,
    inputs: &[&Tensor],
    scalars: &[f32],
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    let channels_last = |x: &&&Tensor| {
        let [n, c, h, w] = x.layout().strides[..] else { return false };
        let [_, channels, height, width] = *x.dims() else { return false };
        x.shape() == shape
            && !x.is_contiguous()
            && [c, w, h, n] == [1, channels, width * channels, height * width * channels]
    };
    if shape.rank() != 4 || !inputs.iter().any(|x| channels_last(&x)) {
        return map(expression, inputs, scalars, shape, dtype);
    }
    let order = [0, 2, 3, 1];
    let dims = order.map(|axis| shape.dims()[axis]);
    let views =
        inputs.iter().map(|x| x.detach().expand(shape)?.permute(&order)).collect::<Result<Vec<_>>>()?;
    let views: Vec<&Tensor> = views.iter().collect();
    map(expression, &views, scalars, &dims.into(), dtype)?.permute(&[0, 3, 1, 2])
}

fn unary(name: &'static str, x: &Tensor, scalars: &[f32]) -> Result<Tensor> {
    let row = UNARY.iter().find(|r| r.name == name);
    let row = row.ok_or_else(|| Error::internal(format!("no element-wise op {name}")))?;
    Unary { row, scalars: scalars.to_vec() }.apply([x])
}

/// Runs a row by its name, with the scalars of a call.
fn unary_called(a: &Args<'_>) -> Result<Tensor> {
    let row = UNARY.iter().find(|row| row.name == a.name()).map_or(&[][..], |row| row.scalars);
    let scalars = row.iter().map(|(name, _)| a.get(name)).collect::<Result<Vec<f32>>>()?;
    unary(a.name(), a.inputs::<1>()?[0], &scalars)
}

fn binary(name: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if integer::are(a, b) {
        return observe::noted(name, &[a, b], Vec::new, || integer::binary(name, a, b));
    }
    let row = BINARY.iter().find(|r| r.name == name);
    Binary { row: row.ok_or_else(|| Error::internal(format!("no element-wise op {name}")))? }.apply([a, b])
}

/// Element-wise operations as methods, for any shape. The result has the same type and, with two operands, the broadcast shape. Sums, differences,
/// products, `maximum` and `minimum` also accept integers of one type, which wrap and do not have a gradient.
impl Tensor {
    /// Computes `-x`. Integers wrap.
    pub fn neg(&self) -> Result<Self> {
        if matches!(self.dtype(), DType::I32 | DType::U32) {
            return observe::noted("neg", &[self], Vec::new, || {
                map_typed("0u - (uint)x0", &[self], &[], self.shape(), self.dtype())
            });
        }
        unary("neg", self, &[])
    }
    /// Computes `e^x`.
    pub fn exp(&self) -> Result<Self> {
        unary("exp", self, &[])
    }
    /// Computes the natural logarithm.
    pub fn log(&self) -> Result<Self> {
        unary("log", self, &[])
    }
    /// Computes the square root.
    pub fn sqrt(&self) -> Result<Self> {
        unary("sqrt", self, &[])
    }
    /// Computes `1 / sqrt(x)`.
    pub fn rsqrt(&self) -> Result<Self> {
        unary("rsqrt", self, &[])
    }
    /// Computes the hyperbolic tangent.
    pub fn tanh(&self) -> Result<Self> {
        unary("tanh", self, &[])
    }
    /// Computes `1 / (1 + e^-x)`.
    pub fn sigmoid(&self) -> Result<Self> {
        unary("sigmoid", self, &[])
    }
    /// Computes `max(x, 0)`.
    pub fn relu(&self) -> Result<Self> {
        unary("relu", self, &[])
    }
    /// Computes `x · sigmoid(x)`.
    pub fn silu(&self) -> Result<Self> {
        unary("silu", self, &[])
    }
    /// Computes `x · Φ(x)` with the error function (Hendrycks and Gimpel 2016).
    pub fn gelu(&self) -> Result<Self> {
        unary("gelu", self, &[])
    }
    /// Computes GELU by its tanh approximation, as in GPT-2.
    pub fn gelu_tanh(&self) -> Result<Self> {
        unary("gelu_tanh", self, &[])
    }
    /// Computes `|x|`. The smallest integer stays unchanged.
    pub fn abs(&self) -> Result<Self> {
        match self.dtype() {
            DType::I32 => {
                return observe::noted("abs", &[self], Vec::new, || {
                    map_typed("abs(x0)", &[self], &[], self.shape(), DType::I32)
                });
            }
            DType::U32 => return Ok(self.clone()),
            _ => {}
        }
        unary("abs", self, &[])
    }
    /// Computes `x²`.
    pub fn square(&self) -> Result<Self> {
        unary("square", self, &[])
    }
    /// Computes the sine.
    pub fn sin(&self) -> Result<Self> {
        unary("sin", self, &[])
    }
    /// Computes the cosine.
    pub fn cos(&self) -> Result<Self> {
        unary("cos", self, &[])
    }
    /// Computes `x + s`.
    pub fn add_scalar(&self, s: f32) -> Result<Self> {
        unary("add_scalar", self, &[s])
    }
    /// Computes `x - s`.
    pub fn sub_scalar(&self, s: f32) -> Result<Self> {
        unary("add_scalar", self, &[-s])
    }
    /// Computes `x · s`.
    pub fn mul_scalar(&self, s: f32) -> Result<Self> {
        unary("mul_scalar", self, &[s])
    }
    /// Computes `x / s`.
    pub fn div_scalar(&self, s: f32) -> Result<Self> {
        unary("mul_scalar", self, &[1.0 / s])
    }
    /// Computes `s - x`.
    pub fn rsub_scalar(&self, s: f32) -> Result<Self> {
        unary("rsub_scalar", self, &[s])
    }
    /// Computes `s / x`.
    pub fn rdiv_scalar(&self, s: f32) -> Result<Self> {
        unary("rdiv_scalar", self, &[s])
    }
    /// Computes `x^s`.
    pub fn pow_scalar(&self, s: f32) -> Result<Self> {
        unary("pow_scalar", self, &[s])
    }
    /// Clamps `x` to `low` and `high`; `high` if they cross, and NaN if one of the three is NaN. The gradient is 0 outside and at the bounds.
    pub fn clamp(&self, low: f32, high: f32) -> Result<Self> {
        unary("clamp", self, &[low, high])
    }
    /// Computes x if it is positive, otherwise `x · slope`.
    pub fn leaky_relu(&self, slope: f32) -> Result<Self> {
        unary("leaky_relu", self, &[slope])
    }
    /// Computes x if it is positive, otherwise `alpha · (e^x - 1)`.
    pub fn elu(&self, alpha: f32) -> Result<Self> {
        unary("elu", self, &[alpha])
    }
    /// Computes `log(1 + e^x)`.
    pub fn softplus(&self) -> Result<Self> {
        unary("softplus", self, &[])
    }
    /// Computes `x · min(max(x + 3, 0), 6) / 6`.
    pub fn hard_swish(&self) -> Result<Self> {
        unary("hard_swish", self, &[])
    }
    /// Computes `x · tanh(log(1 + e^x))` (Misra 2019).
    pub fn mish(&self) -> Result<Self> {
        unary("mish", self, &[])
    }
    /// Computes `a + b`.
    pub fn add(&self, other: &Self) -> Result<Self> {
        binary("add", self, other)
    }
    /// Computes `a - b`.
    pub fn sub(&self, other: &Self) -> Result<Self> {
        binary("sub", self, other)
    }
    /// Computes `a · b`, element by element.
    pub fn mul(&self, other: &Self) -> Result<Self> {
        binary("mul", self, other)
    }
    /// Computes `a / b`.
    pub fn div(&self, other: &Self) -> Result<Self> {
        binary("div", self, other)
    }
    /// Computes `a^b`, element by element.
    pub fn pow(&self, exponent: &Self) -> Result<Self> {
        binary("pow", self, exponent)
    }
    /// Returns the larger of both elements, or NaN if one is NaN. Equal elements share the gradient, as in PyTorch.
    pub fn maximum(&self, other: &Self) -> Result<Self> {
        binary("maximum", self, other)
    }
    /// Returns the smaller of both elements, or NaN if one is NaN. Equal elements share the gradient.
    pub fn minimum(&self, other: &Self) -> Result<Self> {
        binary("minimum", self, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use netcl_device::Settings;

    /// Tests that the channels-last layout is kept, with and without broadcasting, and that the values equal those of other layouts.
    #[test]
    fn images_with_neighbouring_channels_keep_their_layout() {
        let device = test_device().unwrap();
        let data: Vec<f32> = (0..2 * 3 * 4 * 5).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
        let plain = Tensor::from_f32(&device, [2, 3, 4, 5], &data, DType::F32).unwrap();
        let last =
            plain.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
        let bias = Tensor::from_f32(&device, [3, 1, 1], &[1.0, -2.0, 3.0], DType::F32).unwrap();
        type Function = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
        let functions: [Function; 4] =
            [|x, _, _| x.relu(), |x, _, b| b.mul(x), |x, y, _| x.add(y), |x, y, _| y.sub(x)];
        for f in functions {
            let (y, expected) = (f(&last, &plain, &bias).unwrap(), f(&plain, &plain, &bias).unwrap());
            assert_eq!(y.layout().strides, [60, 1, 15, 3]);
            assert_eq!(y.to_vec().unwrap(), expected.to_vec().unwrap());
        }
    }

    /// Tests a CPU and a GPU, which compute quotients in different ways.
    #[test]
    fn infinities_and_nans_come_out_as_they_should() {
        let x = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 200.0, -200.0];
        for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
            let x = Tensor::from_f32(&device, [x.len()], &x, DType::F32).unwrap();
            // -infinity times a vanishing probability is NaN, as in PyTorch.
            let expected: [(&str, [f32; 5]); 5] = [
                ("sigmoid", [1.0, 0.0, f32::NAN, 1.0, 0.0]),
                ("tanh", [1.0, -1.0, f32::NAN, 1.0, -1.0]),
                ("silu", [f32::INFINITY, f32::NAN, f32::NAN, 200.0, 0.0]),
                ("gelu", [f32::INFINITY, f32::NAN, f32::NAN, 200.0, 0.0]),
                ("gelu_tanh", [f32::INFINITY, f32::NAN, f32::NAN, 200.0, 0.0]),
            ];
            for (name, expected) in expected {
                let got = unary(name, &x, &[]).unwrap().to_vec().unwrap();
                let same = |(g, e): (&f32, &f32)| g.is_nan() && e.is_nan() || g == e;
                assert!(got.iter().zip(&expected).all(same), "{name}: {got:?}, expected {expected:?}");
            }
        }
    }
}
