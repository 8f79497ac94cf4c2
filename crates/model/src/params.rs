//! Parameters of a model: created by name, stored contiguously in arenas.
//!
//! An arena is one buffer that holds many parameters at aligned offsets, so that an optimizer can update a whole model in one launch. Names are those
//! of the Hugging Face checkpoint.

use netcl_tensor::quant::{Activations, Blocks};
use netcl_tensor::random::Generator;
use netcl_tensor::{DType, Device, Error, Result, Shape, Tensor};
use std::collections::{BTreeMap, VecDeque};

/// Alignment of parameters in elements, which every device accepts for sub-buffers and which suits vector loads.
pub const ALIGN: usize = 256;

/// Initialization of a parameter.
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
    /// Returns the initialization of PyTorch's `Linear` (He et al. 2015): uniform with bound `1 / sqrt(fan_in)`.
    pub fn kaiming_uniform(fan_in: usize) -> Self {
        Self::Uniform(1.0 / (fan_in as f32).sqrt())
    }

    /// Draws all elements on the parameter's device; the numbers do not depend on the device.
    fn fill(self, parameter: &Tensor, seed: u64) -> Result<()> {
        let mut stream = Generator::new(seed);
        match self {
            Self::Zeros => parameter.set_all(0.0),
            Self::Ones => parameter.set_all(1.0),
            Self::Uniform(bound) => parameter.set_uniform(-bound, bound, &mut stream),
            Self::Normal(std) => parameter.set_normal(0.0, std, &mut stream),
        }
    }
}

/// FNV-1a hash of the name, starting from the seed.
fn name_seed(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// The parameters of a model, in order of creation.
pub struct Params {
    device: Device,
    dtype: DType,
    /// Seed of initial values; `None`: zeros.
    seed: Option<u64>,
    list: Vec<Tensor>,
    arenas: Vec<Arena>,
    /// Quantized matrices that replace parameters, by name; read-only and not part of the list.
    blocks: BTreeMap<String, Vec<Blocks>>,
    /// Whether only shapes are recorded: the first pass of [`Params::build`].
    counting: bool,
    /// Elements, with alignment, of the remaining parameters; empty if they were not counted.
    coming: VecDeque<usize>,
}

struct Arena {
    whole: Tensor,
    used: usize,
}

/// Largest number of unused elements of an arena.
const LATER_ARENA: usize = 1 << 24;

/// Maximum bytes of an arena. With NVIDIA's driver (580), filling a buffer of 16 GB piece by piece caused an out-of-bounds access.
const LARGEST_ARENA: u64 = 1 << 32;

/// Returns the number of elements rounded up to the alignment.
fn step(count: usize) -> Option<usize> {
    count.checked_next_multiple_of(ALIGN)
}

fn too_many(what: &str) -> Error {
    Error::memory(format!("parameters: {what} has more elements than the address space"))
}

impl Params {
    /// An empty set of parameters of type `dtype` with initial values drawn from `seed`; without a seed all are zero, for models whose weights
    /// are loaded from files. Arenas are allocated on demand, each at least as large as all before it; [`Params::build`] allocates one of the
    /// exact size.
    pub fn new(device: &Device, dtype: DType, seed: Option<u64>) -> Self {
        let (device, list, arenas) = (device.clone(), Vec::new(), Vec::new());
        Self {
            device,
            dtype,
            seed,
            list,
            arenas,
            blocks: BTreeMap::new(),
            counting: false,
            coming: VecDeque::new(),
        }
    }

    /// Creates a model with its parameters in one arena of the exact size (or in several, if one allocation cannot hold them).
    ///
    /// `make` is called twice and must create the same parameters both times. In the first call, which determines the size, they do not have a
    /// separate memory.
    ///
    /// # Errors
    /// Errors of `make`; `Memory` if the device has too little memory.
    pub fn build<M>(
        device: &Device,
        dtype: DType,
        seed: Option<u64>,
        mut make: impl FnMut(&mut Self) -> Result<M>,
    ) -> Result<(Self, M)> {
        let mut counted = Self { counting: true, ..Self::new(device, dtype, seed) };
        drop(make(&mut counted)?);
        let mut params = Self::new(device, dtype, seed);
        let steps = counted.list.iter().map(|t| step(t.count())).collect::<Option<VecDeque<usize>>>();
        params.coming = steps.ok_or_else(|| too_many("a model"))?;
        drop(counted);
        let model = make(&mut params)?;
        Ok((params, model))
    }

    /// Returns the elements of the parameters that `make` would create, without allocating memory.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn elements_of<M>(
        device: &Device,
        dtype: DType,
        make: impl FnOnce(&mut Self) -> Result<M>,
    ) -> Result<usize> {
        let mut counted = Self { counting: true, ..Self::new(device, dtype, None) };
        drop(make(&mut counted)?);
        Ok(counted.list.iter().fold(0, |all, t| all.saturating_add(t.count())))
    }

    /// Joins the parameters of a model's parts on several devices, in the order of the parts.
    pub fn joined(parts: Vec<Self>) -> Option<Self> {
        parts.into_iter().reduce(|mut all, part| {
            all.extend(part);
            all
        })
    }

    /// Appends other parameters on the same device, in separate arenas.
    pub fn extend(&mut self, other: Self) {
        self.list.extend(other.list);
        self.arenas.extend(other.arenas);
        self.blocks.extend(other.blocks);
    }

    /// Returns the device of the parameters; with several devices, the first.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Creates a parameter. Its values depend only on the seed and its name.
    pub fn make(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        self.add(name, shape.into(), init, Tensor::parameter)
    }

    /// Does the same without gradient.
    pub fn make_frozen(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        self.add(name, shape.into(), init, Tensor::frozen)
    }

    fn add(
        &mut self,
        name: &str,
        shape: Shape,
        init: Init,
        named: fn(&Tensor, &str) -> Tensor,
    ) -> Result<Tensor> {
        let count = shape.count();
        if let Some(other) = self.get(name) {
            return Err(Error::format(format!(
                "a parameter {name} already exists, of shape {}: each layer needs a unique name, which its parameters start with",
                other.shape()
            )));
        }
        let step = step(count).ok_or_else(|| too_many(name))?;
        if self.counting {
            let one = Tensor::zeros(&self.device, Shape::default(), self.dtype)?;
            self.list.push(named(&one.expand(shape)?, name));
            return Ok(self.list[self.list.len() - 1].clone());
        }
        if self.arenas.last().is_none_or(|a| step > a.whole.count() - a.used) {
            let before: usize = self.arenas.iter().map(|a| a.whole.count()).sum();
            let wanted = if self.coming.is_empty() { before.min(LATER_ARENA) } else { self.fitting() };
            self.grow(step.max(wanted.min(self.largest())))?;
        }
        self.coming.pop_front();
        let Some(arena) = self.arenas.last_mut() else { return Err(Error::internal("no arena")) };
        let window = arena.whole.window(arena.used, shape)?;
        arena.used += step;
        let parameter = named(&window, name);
        // A new arena is zero.
        if let Some(seed) = self.seed {
            init.fill(&parameter, name_seed(seed, name))?;
        }
        self.list.push(parameter.clone());
        Ok(parameter)
    }

    /// Returns the maximum number of elements of an arena.
    fn largest(&self) -> usize {
        let bytes = self.device.capabilities().max_alloc.min(LARGEST_ARENA);
        usize::try_from(bytes).unwrap_or(usize::MAX) / self.dtype.size() / ALIGN * ALIGN
    }

    /// Returns the elements of as many of the next parameters as one arena can hold.
    fn fitting(&self) -> usize {
        let largest = self.largest();
        self.coming
            .iter()
            .scan(0usize, |sum, step| {
                *sum = sum.saturating_add(*step);
                (*sum <= largest).then_some(*sum)
            })
            .last()
            .unwrap_or(0)
    }

    /// Allocates an arena for `elements`.
    fn grow(&mut self, elements: usize) -> Result<()> {
        let _tag = self.device.tag("parameters");
        let room = step(elements).ok_or_else(|| too_many("an arena"))?.max(ALIGN);
        let whole = Tensor::zeros(&self.device, [room], self.dtype)?;
        self.arenas.push(Arena { whole, used: 0 });
        Ok(())
    }

    /// Replaces parameters with quantized matrices, stacked along the rows.
    pub fn hold(&mut self, blocks: BTreeMap<String, Vec<Blocks>>) {
        self.blocks.extend(blocks);
    }
    /// Returns the quantized matrices that replace a parameter.
    pub fn blocks(&self, name: &str) -> Option<&[Blocks]> {
        self.blocks.get(name).map(Vec::as_slice)
    }
    /// Returns the type of the activations for the quantized matrices, if any; with several devices, on the first that has some.
    pub fn activations(&self) -> Option<Activations> {
        self.blocks.values().flatten().next().map(Blocks::activations)
    }
    /// Returns the device memory of all quantized matrices in bytes.
    pub fn block_bytes(&self) -> usize {
        self.blocks.values().flatten().map(Blocks::bytes).sum()
    }

    /// Returns the parameter called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.list.iter().find(|t| t.name() == Some(name))
    }
    /// Returns all parameters, in order of creation.
    pub fn list(&self) -> &[Tensor] {
        &self.list
    }
    /// Returns the trained parameters.
    pub fn trained(&self) -> Vec<Tensor> {
        self.list.iter().filter(|t| t.requires_grad()).cloned().collect()
    }
    /// Returns the number of elements of all parameters.
    pub fn count(&self) -> usize {
        self.list.iter().map(Tensor::count).sum()
    }
    /// Returns the storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Returns the arenas: whole buffers, each with the elements in use.
    pub fn arenas(&self) -> impl Iterator<Item = (&Tensor, usize)> {
        self.arenas.iter().map(|a| (&a.whole, a.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user model that was built without counting.
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
        let (params, made) = Params::build(&device, DType::F32, Some(7), layers).unwrap();
        let sizes: Vec<(usize, usize)> = params.arenas().map(|(whole, used)| (whole.count(), used)).collect();
        assert_eq!(sizes, [(1536 + 256 + 1024, 1536 + 256 + 1024)]);
        assert_eq!(params.count(), 1500 + 49 + 1000);
        assert!(device.memory().live - before < 2 * 4 * sizes[0].0, "the counting run keeps no memory");
        // Created one by one, the parameters have more arenas and the same values.
        let mut single = Params::new(&device, DType::F32, Some(7));
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
            assert!(Params::build(&device, DType::F32, Some(7), make).is_err());
            assert!(make(&mut Params::new(&device, DType::F32, Some(7))).is_err());
        }
    }

    /// Initial values drawn on the device are bit-identical to those computed on the host.
    #[test]
    fn first_values_follow_recipe_seed_and_name_alone() {
        let device = netcl_tensor::suite::test_device().unwrap();
        let make = |seed: u64, before: usize| {
            let mut params = Params::new(&device, DType::F32, Some(seed));
            params.make("before", [before], Init::Normal(1.0)).unwrap();
            let values = |t: Tensor| t.to_vec().unwrap();
            [
                values(params.make("a", [700], Init::Normal(0.02)).unwrap()),
                values(params.make("b", [700], Init::xavier_uniform(3, 3)).unwrap()),
                values(params.make("c", [9], Init::Ones).unwrap()),
                values(params.make("d", [9], Init::Zeros).unwrap()),
                values(params.make("e", [700], Init::Normal(0.02)).unwrap()),
            ]
        };
        let [a, b, c, d, e] = make(1, 1);
        assert_eq!(a, Generator::new(name_seed(1, "a")).normal(700, 0.0, 0.02));
        assert_eq!(b, Generator::new(name_seed(1, "b")).uniform(700, -1.0, 1.0));
        assert!(c.iter().all(|v| *v == 1.0) && d.iter().all(|v| *v == 0.0));
        assert!(a != e && make(2, 1)[0] != a);
        assert_eq!(make(1, 3000)[0], a);
    }
}
