//! Parameters of a model: made by name, living side by side in arenas.
//!
//! An arena is one buffer that holds many parameters at aligned starts, so that an optimizer can update a whole model in one
//! launch. Names are those of the Hugging Face checkpoint.

use netcl_tensor::{DType, Device, Error, Result, Shape, Tensor};

/// Parameters start at multiples of this many elements: any device may make a sub-buffer there, and vectors are aligned.
pub const ALIGN: usize = 256;

/// How a parameter's first values are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform in `[-bound, bound)`.
    Uniform(f32),
}

impl Init {
    /// Glorot and Bengio (2010): uniform with bound `sqrt(6 / (fan_in + fan_out))`.
    pub fn xavier_uniform(fan_in: usize, fan_out: usize) -> Self {
        Self::Uniform((6.0 / (fan_in + fan_out) as f32).sqrt())
    }
    /// He et al. (2015): normal with standard deviation `sqrt(2 / fan_in)`.
    pub fn kaiming_normal(fan_in: usize) -> Self {
        Self::Normal((2.0 / fan_in as f32).sqrt())
    }
    /// He et al. (2015) as PyTorch's `Linear` uses it: uniform with bound `1 / sqrt(fan_in)`.
    pub fn kaiming_uniform(fan_in: usize) -> Self {
        Self::Uniform(1.0 / (fan_in as f32).sqrt())
    }

    fn values(self, count: usize, seed: u64) -> Vec<f32> {
        let mut draw = Draw(seed);
        match self {
            Self::Zeros => vec![0.0; count],
            Self::Ones => vec![1.0; count],
            Self::Uniform(bound) => {
                (0..count).map(|_| ((draw.uniform() * 2.0 - 1.0) * f64::from(bound)) as f32).collect()
            }
            Self::Normal(std) => (0..count).map(|_| (draw.normal() * f64::from(std)) as f32).collect(),
        }
    }
}

/// splitmix64 (Steele, Lea and Flood 2014): initial values are the same on every host.
struct Draw(u64);

impl Draw {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// The parameters of a model, in the order they were made.
pub struct Params {
    device: Device,
    dtype: DType,
    seed: u64,
    list: Vec<Tensor>,
    arenas: Vec<Arena>,
}

struct Arena {
    whole: Tensor,
    used: usize,
}

impl Params {
    /// For a model of about `elements` parameters of type `dtype` whose first values are drawn from `seed`.
    pub fn new(device: &Device, dtype: DType, elements: usize, seed: u64) -> Result<Self> {
        let mut params = Self { device: device.clone(), dtype, seed, list: Vec::new(), arenas: Vec::new() };
        params.grow(elements)?;
        Ok(params)
    }

    /// The device they live on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A new parameter. Its values depend on the seed and its name alone.
    pub fn make(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        let shape = shape.into();
        let count = shape.count();
        if let Some(other) = self.get(name) {
            return Err(Error::format(format!(
                "there is a parameter {name} already, of shape {}: each layer needs a name of its own, which its parameters begin with",
                other.shape()
            )));
        }
        let step = count.next_multiple_of(ALIGN);
        if self.arenas.last().is_none_or(|a| a.used + step > a.whole.count()) {
            self.grow(step)?;
        }
        let Some(arena) = self.arenas.last_mut() else { return Err(Error::internal("no arena")) };
        let window = arena.whole.window(arena.used, shape)?;
        arena.used += step;
        let parameter = window.parameter(name);
        let name_seed = name.bytes().fold(self.seed ^ 0xCBF2_9CE4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3)
        });
        parameter.set_f32(&init.values(count, name_seed))?;
        self.list.push(parameter.clone());
        Ok(parameter)
    }

    /// A new arena with room for `elements`, as far as one allocation goes.
    fn grow(&mut self, elements: usize) -> Result<()> {
        let _tag = self.device.tag("parameters");
        let limit =
            usize::try_from(self.device.capabilities().max_alloc).unwrap_or(usize::MAX) / self.dtype.size();
        let room = (elements).next_multiple_of(ALIGN).min(limit / ALIGN * ALIGN).max(ALIGN);
        let whole = Tensor::zeros(&self.device, [room], self.dtype)?;
        self.arenas.push(Arena { whole, used: 0 });
        Ok(())
    }

    /// The parameter called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.list.iter().find(|t| t.name() == Some(name))
    }
    /// All of them, in the order they were made.
    pub fn list(&self) -> &[Tensor] {
        &self.list
    }
    /// Number of parameters' elements.
    pub fn count(&self) -> usize {
        self.list.iter().map(Tensor::count).sum()
    }
    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The arenas: whole buffers, each with the elements in use.
    pub fn arenas(&self) -> impl Iterator<Item = (&Tensor, usize)> {
        self.arenas.iter().map(|a| (&a.whole, a.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_the_recipe() {
        let mean = |v: &[f32]| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
        let normal = Init::Normal(0.02).values(100_000, 1);
        let variance = mean(&normal.iter().map(|x| x * x).collect::<Vec<_>>());
        assert!(mean(&normal).abs() < 2e-4 && (variance.sqrt() - 0.02).abs() < 2e-4);
        let uniform = Init::xavier_uniform(3, 3).values(10_000, 2);
        assert!(uniform.iter().all(|x| x.abs() <= 1.0) && uniform.iter().any(|x| x.abs() > 0.95));
        assert_eq!(Init::Normal(1.0).values(3, 5), Init::Normal(1.0).values(3, 5));
    }
}
