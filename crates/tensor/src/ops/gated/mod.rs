//! Gated activations (Shazeer 2020): SwiGLU, GeGLU, ReGLU over a projection that concatenates gate and value.

use super::elementwise::UNARY;
use super::map::row_grid;
use super::prelude::*;

static KERNEL: Kernel = Kernel::new("gated", cl_file!("gated.cl"))
    .include(&[cl_file!("../include/activation.cl")])
    .tune(&[("WG", &[128, 256]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// SiLU: SwiGLU.
    Silu,
    /// GELU by its tanh approximation: GeGLU as in Gemma.
    GeluTanh,
    /// GELU with the error function: GeGLU.
    Gelu,
    /// ReLU: ReGLU.
    Relu,
}

impl Gate {
    /// Computes the activation alone.
    ///
    /// # Errors
    /// `DType` if x is not a float.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::GeluTanh => x.gelu_tanh(),
            Self::Gelu => x.gelu(),
            Self::Relu => x.relu(),
        }
    }
}

impl Gate {
    const ALL: [Self; 4] = [Self::Silu, Self::GeluTanh, Self::Gelu, Self::Relu];

    /// Names of the rows in the table of element-wise operations, in the same order.
    pub(super) const NAMES: [&'static str; 4] = ["silu", "gelu_tanh", "gelu", "relu"];

    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
    /// Returns the gate with this name.
    ///
    /// # Errors
    /// `Format` with the known names.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|gate| gate.name() == name);
        found.ok_or_else(|| Error::format(format!("gate is {name:?}, expected {}", Self::NAMES.join(", "))))
    }
    pub(super) fn in_f64(self, x: f64) -> f64 {
        UNARY.iter().find(|row| row.name == self.name()).map_or(f64::NAN, |row| (row.f)(x, [0.0; 2]))
    }
}

/// Computes `act(g) * u` `(.., N)` from x `(.., 2N)`, a gate g of N elements followed by a value u of N.
///
/// # Errors
/// `Shape` if the last axis is odd; `DType` if x does not have a float type.
pub fn gated(x: &Tensor, gate: Gate) -> Result<Tensor> {
    check::float("gated", "x", x)?;
    if x.shape().rank() == 0 || !x.shape().last().is_multiple_of(2) {
        return Err(Error::shape(format!(
            "gated: x has shape {}, expected a last axis of gate and value of equal length",
            x.shape()
        )));
    }
    Gated { gate }.apply([x])
}

/// Operation of [`gated()`].
#[derive(Clone)]
pub struct Gated {
    pub(super) gate: Gate,
}

impl Gated {
    fn launch(
        &self,
        entry: &'static str,
        inputs: &[&Tensor],
        y: &Tensor,
        rows: usize,
        n: usize,
    ) -> Result<()> {
        if y.count() == 0 {
            return Ok(());
        }
        let value = |name| Tuning::value(y.device(), &KERNEL, 0, name);
        let lanes = if has_vectors_of_16_bytes(y, n) { 16 / y.dtype().size() } else { value("VW") };
        let (local, groups) = row_grid(y.device(), value("WG"), lanes, rows, n);
        let launch = KERNEL.launch(entry).define("DTYPE", y.dtype().code()).define("ACT", self.gate as usize);
        let launch = vectors_of_16_bytes(launch, y, n).local(local).groups3(groups);
        inputs.iter().fold(launch, |launch, x| launch.read(*x)).write(y).scalar(rows).scalar(n).run()
    }
}

impl Op<1> for Gated {
    const NAME: &'static str = "gated";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("x holds a gate and a value");
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        let x = x.contiguous()?;
        let (rows, n) = x.shape().rows_cols();
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n / 2;
        }
        let y = Tensor::empty(x.device(), dims, x.dtype())?;
        self.launch("gated_fwd", &[&x], &y, rows, n / 2)?;
        Ok((y, ()))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let (x, dy) = (x.contiguous()?, dy.contiguous()?);
        let (rows, n) = x.shape().rows_cols();
        let dx = x.empty_like()?;
        self.launch("gated_bwd", &[&x, &dy], &dx, rows, n / 2)?;
        Ok([Some(dx)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let n = x.shape.last() / 2;
        let mut dims = x.shape.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n;
        }
        let row = |row: &[f64]| (0..n).map(|i| self.gate.in_f64(row[i]) * row[n + i]).collect::<Vec<_>>();
        Array::new(dims, x.rows().flat_map(row).collect())
    }
    fn calls() -> Vec<Call> {
        let doc = "Gated activation (Shazeer 2020): x `(.., 2N)`, a gate g of N elements followed by a value u of N → `act(g) * u` `(.., N)`.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).choice("gate", &Gate::NAMES);
        vec![call.run(|a| gated(a.inputs::<1>()?[0], Gate::named(&a.get::<String>("gate")?)?))]
    }
    fn attributes(&self) -> Attributes {
        vec![("gate", self.gate.name().into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let mut out = Vec::new();
        for gate in Gate::ALL {
            // Away from the kink of ReLU.
            let input = |shape: &[usize]| match gate {
                Gate::Relu => SampleInput::values(shape, &[0.7, -1.3, 2.0, -0.4, 1.1], None),
                _ => SampleInput::normal(shape),
            };
            let sample = |shape: &[usize]| Sample::new(Self { gate }, [input(shape)]).named(gate.name());
            // Gates far in both tails, and values with large products.
            let far = match gate {
                Gate::Relu => SampleInput::values(&[4, 14], &[70.0, -130.0, 2000.0, -0.4, 1e4], None),
                _ => SampleInput::uniform(&[4, 14], -60.0, 60.0),
            };
            out.push(Sample::new(Self { gate }, [far]).named(gate.name()).extreme().light());
            out.extend([
                sample(&[2, 3, 74]),
                sample(&[5, 32]).light(),
                sample(&[2]).light(),
                sample(&[0, 8]).light(),
            ]);
        }
        out[1] = out[1].clone().bench(&[&[16_384, 4096]]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_row_is_refused() {
        let device = crate::suite::test_device().unwrap();
        let x = Tensor::zeros(&device, [2, 7], DType::F32).unwrap();
        let e = gated(&x, Gate::Silu).unwrap_err();
        assert!(
            e.message().contains("gated: x has shape [2, 7], expected a last axis of gate and value"),
            "{e}"
        );
    }
}
