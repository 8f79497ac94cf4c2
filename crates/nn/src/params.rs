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
    /// Whether only shapes are noted: the first pass of [`Params::build`].
    counting: bool,
}

struct Arena {
    whole: Tensor,
    used: usize,
}

/// Elements that an arena has at most beyond what was asked for.
const LATER_ARENA: usize = 1 << 24;

/// Elements up to where the next parameter may start.
fn step(count: usize) -> Option<usize> {
    count.checked_next_multiple_of(ALIGN)
}

fn too_many(what: &str) -> Error {
    Error::memory(format!("parameters: {what} has more elements than memory can have"))
}

impl Params {
    /// No parameters yet; those to come are of type `dtype`, with first values drawn from `seed`. Arenas are added as they are
    /// needed, each at least as large as all before it. [`Params::build`] makes one of the right size.
    pub fn new(device: &Device, dtype: DType, seed: u64) -> Self {
        let (device, list, arenas) = (device.clone(), Vec::new(), Vec::new());
        Self { device, dtype, seed, list, arenas, counting: false }
    }

    /// A model and its parameters, side by side in one arena of the size they take, as far as one allocation goes.
    ///
    /// `make` runs twice and has to make the same parameters both times. In the first run, which counts, they are zeros without
    /// memory of their own.
    ///
    /// # Errors
    /// Those of `make`; `Memory` when the device has no room.
    pub fn build<M>(
        device: &Device,
        dtype: DType,
        seed: u64,
        mut make: impl FnMut(&mut Self) -> Result<M>,
    ) -> Result<(Self, M)> {
        let mut counted = Self { counting: true, ..Self::new(device, dtype, seed) };
        drop(make(&mut counted)?);
        let mut params = Self::new(device, dtype, seed);
        let room = counted.list.iter().try_fold(0usize, |room, t| room.checked_add(step(t.count())?));
        drop(counted);
        params.grow(room.ok_or_else(|| too_many("a model"))?)?;
        let model = make(&mut params)?;
        Ok((params, model))
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
        let step = step(count).ok_or_else(|| too_many(name))?;
        if self.counting {
            let one = Tensor::zeros(&self.device, Shape::default(), self.dtype)?;
            self.list.push(one.expand(shape)?.parameter(name));
            return Ok(self.list[self.list.len() - 1].clone());
        }
        if self.arenas.last().is_none_or(|a| step > a.whole.count() - a.used) {
            let before: usize = self.arenas.iter().map(|a| a.whole.count()).sum();
            self.grow(step.max(before.min(LATER_ARENA)))?;
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
        let room = step(elements).ok_or_else(|| too_many("an arena"))?.min(limit / ALIGN * ALIGN).max(ALIGN);
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

    /// A model of a user who never counted anything.
    fn layers(params: &mut Params) -> Result<Vec<Tensor>> {
        let sizes = [(300, 5), (7, 7), (1, 1000)];
        let make =
            |(i, (a, b)): (usize, (usize, usize))| params.make(&format!("w{i}"), [a, b], Init::Normal(1.0));
        sizes.into_iter().enumerate().map(make).collect()
    }

    #[test]
    fn a_builder_counts_and_makes_one_arena_of_the_right_size() {
        let device = netcl_tensor::suite::test_device().unwrap();
        let before = device.memory().live;
        let (params, made) = Params::build(&device, DType::F32, 7, layers).unwrap();
        let sizes: Vec<(usize, usize)> = params.arenas().map(|(whole, used)| (whole.count(), used)).collect();
        assert_eq!(sizes, [(1536 + 256 + 1024, 1536 + 256 + 1024)]);
        assert_eq!(params.count(), 1500 + 49 + 1000);
        assert!(device.memory().live - before < 2 * 4 * sizes[0].0, "the counting run keeps nothing");
        // One by one: more arenas, the same values.
        let mut single = Params::new(&device, DType::F32, 7);
        let again = layers(&mut single).unwrap();
        assert!(single.arenas().count() > 1);
        for (a, b) in made.iter().zip(&again) {
            assert!(a.is_contiguous() && a.to_bytes().unwrap() == b.to_bytes().unwrap());
        }
    }

    #[test]
    fn a_count_that_wraps_is_refused() {
        let device = netcl_tensor::suite::test_device().unwrap();
        for shape in [[1 << 62, 4], [usize::MAX, 1]] {
            let make = |p: &mut Params| p.make("w", shape, Init::Zeros).map(drop);
            assert!(Params::build(&device, DType::F32, 7, make).is_err());
            assert!(make(&mut Params::new(&device, DType::F32, 7)).is_err());
        }
    }

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
