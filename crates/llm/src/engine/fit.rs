//! Memory plan before allocation: the context length, and the distribution of layers over devices.

use super::memory_plan::MemoryPlan;
use netcl_device::{Capabilities, available_memory, counted, human};
use netcl_model::decoder::Span;
use netcl_tensor::ops::decode_step::WeightPath;
use netcl_tensor::{DType, Device, Error, Result};
use std::ops::Range;

/// Minimum context length if none was requested and the model supports more.
const MIN_CONTEXT: usize = 256;

/// Context length for distributing layers if none was requested: a longer one would move layers to later devices.
const DEFAULT_SPLIT_CONTEXT: usize = 4096;

/// Returns true if a device uses host memory.
pub(super) fn is_on_host(device: &Capabilities) -> bool {
    device.is_cpu() || device.simulated
}

/// Returns the bytes that a process can allocate on a device.
pub fn available(device: &Capabilities) -> u64 {
    device.global_mem.min(shared(device))
}

/// Returns the size of a device's memory in bytes: host memory or its own.
pub(super) fn shared(device: &Capabilities) -> u64 {
    match is_on_host(device) {
        true => available_memory().unwrap_or(u64::MAX),
        false => device.global_mem,
    }
}

/// Returns true if two devices share one memory.
pub(super) fn is_shared(a: &Capabilities, b: &Capabilities) -> bool {
    a.id == b.id || is_on_host(a) && is_on_host(b)
}

/// A device for a model or some of its layers.
#[derive(Clone, Debug)]
pub struct DevicePlace {
    /// Its name.
    id: String,
    /// Available bytes.
    available: u64,
    /// Size of the memory that contains them, and the first place that shares it.
    shared: u64,
    memory: usize,
    /// Whether it can run steps in one launch, as far as known without opening it.
    one_launch: bool,
    /// Whether experts' matrices are dequantized for a prompt: neither byte activations on processors nor tensor cores support them.
    copies_experts: bool,
}

impl DevicePlace {
    /// Returns the devices in fill order.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a Capabilities>) -> Vec<Self> {
        let devices: Vec<&Capabilities> = devices.into_iter().collect();
        let place = |(i, device): (usize, &&Capabilities)| Self {
            id: device.id.clone(),
            available: available(device),
            shared: shared(device),
            memory: devices.iter().position(|other| is_shared(other, device)).unwrap_or(i),
            one_launch: WeightPath::Ring.is_for(device),
            copies_experts: !device.is_cpu() && device.sm() < Some(80),
        };
        devices.iter().enumerate().map(place).collect()
    }
}

/// Layers per device, and the context length of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Layers per device, in order; 0 for an unused device.
    pub layers: Vec<usize>,
    /// Tokens.
    pub context: usize,
}

impl Division {
    /// Returns the layer ranges of those `devices` that have layers.
    pub(super) fn spans(&self, devices: &[Device]) -> Vec<Span> {
        let all = devices.iter().cloned().zip(self.layers.iter().copied());
        Span::in_order(all.filter(|(_, count)| *count > 0))
    }
}

/// Memory plan of a model on devices.
pub struct Fit<'a> {
    needs: &'a MemoryPlan,
    places: &'a [DevicePlace],
    dtype: DType,
}

impl<'a> Fit<'a> {
    /// Returns the plan with the storage type of the model's needs.
    pub fn new(needs: &'a MemoryPlan, places: &'a [DevicePlace]) -> Self {
        Self { needs, places, dtype: needs.dtype() }
    }

    fn layers(&self) -> usize {
        self.needs.config().layers
    }

    /// Returns the bytes that these layers need in a place.
    fn taken(&self, place: &DevicePlace, layers: Range<usize>, tokens: usize) -> u64 {
        if layers.is_empty() {
            return 0;
        }
        let whole = layers.len() == self.layers() && place.one_launch;
        let copies = if whole { self.needs.row_copies(self.dtype) } else { 0 };
        let cache = self.needs.cache_of(layers.clone(), tokens, self.dtype);
        let work = self.needs.work_of(layers.clone(), tokens, self.dtype, place.copies_experts);
        [self.needs.weights_of(layers, self.dtype), cache, work].into_iter().fold(copies, u64::saturating_add)
    }

    /// Returns the bytes that each place needs with these layer counts.
    pub(super) fn taken_by_each(&self, layers: &[usize], tokens: usize) -> Vec<u64> {
        let mut start = 0;
        let each = self.places.iter().zip(layers).map(|(place, count)| {
            start += count;
            self.taken(place, start - count..start, tokens)
        });
        each.collect()
    }

    /// Returns the bytes that remain at place `at` after earlier places that share its memory.
    fn left(&self, at: usize, taken: &[u64]) -> u64 {
        let place = &self.places[at];
        let before = self.places[..at].iter().zip(taken).filter(|(other, _)| other.memory == place.memory);
        let left = before.fold(place.shared, |left, (_, taken)| left.saturating_sub(*taken));
        left.min(place.available)
    }

    fn fits(&self, layers: &[usize], tokens: usize) -> bool {
        let taken = self.taken_by_each(layers, tokens);
        (0..taken.len()).all(|at| taken[at] <= self.left(at, &taken))
    }

    /// Returns the number of layers from `start`, up to `most`, that fit in place `at` in addition to the bytes of earlier places.
    fn held(&self, at: usize, (start, most): (usize, usize), tokens: usize, taken: &[u64]) -> usize {
        let left = self.left(at, taken);
        let fit = |n: usize| self.taken(&self.places[at], start..start + n, tokens) <= left;
        longest(most, fit).unwrap_or(0)
    }

    /// Fills the first `places` places in order; `None` if the layers do not fit.
    fn filled(&self, places: usize, tokens: usize) -> Option<Vec<usize>> {
        let mut layers = vec![0; self.places.len()];
        let mut taken = Vec::new();
        let mut start = 0;
        for at in 0..places {
            let rest = self.layers() - start;
            let all = self.taken(&self.places[at], start..self.layers(), tokens) <= self.left(at, &taken);
            // The last place has the head, so at least one layer is left for it.
            let count = match all {
                true => rest,
                false => self.held(at, (start, rest - 1), tokens, &taken),
            };
            taken.push(self.taken(&self.places[at], start..start + count, tokens));
            layers[at] = count;
            start += count;
            if all {
                return Some(layers);
            }
        }
        None
    }

    /// Returns the longest context, up to the model's, with which the model fits in the first `places` places.
    fn longest_on(&self, places: usize) -> Option<usize> {
        longest(self.needs.config().context, |tokens| self.filled(places, tokens).is_some())
    }

    /// Returns the longest context with this distribution, up to the model's.
    fn longest_with(&self, layers: &[usize]) -> Option<usize> {
        longest(self.needs.config().context, |tokens| self.fits(layers, tokens))
    }

    /// Returns the longest context that fits on all places together, up to the model's; `None` if not even one token fits.
    pub fn longest(&self) -> Option<usize> {
        self.longest_on(self.places.len())
    }

    /// Returns the number of layers that fit in the first place, with the embedding and `tokens` tokens of context.
    pub fn held_by_first(&self, tokens: usize) -> usize {
        match self.filled(1, tokens) {
            Some(_) => self.layers(),
            None => self.held(0, (0, self.layers() - 1), tokens, &[]),
        }
    }

    /// Distributes the layers over the places. `asked` sets the numbers, and its last number may be omitted. [default: each place is filled in
    /// turn] The context is the requested one, or the model's, or as much as fits. Beyond 4096 tokens, a context that was not requested moves no
    /// layer to a further device.
    ///
    /// # Errors
    /// `Format` for a context beyond the model's or layer counts that do not match the model. `Memory` with the required, available and possible
    /// amounts.
    pub fn divide(&self, context: Option<usize>, asked: Option<&[usize]>) -> Result<Division> {
        let own = self.needs.config().context;
        if let Some(tokens) = context.filter(|tokens| *tokens == 0 || *tokens > own) {
            return Err(Error::format(format!(
                "a context of {tokens} tokens: expected 1 to {own}, the model's context"
            )));
        }
        let enough = |most: &usize| *most >= context.unwrap_or(own.min(MIN_CONTEXT));
        let asked = asked.map(|layers| self.completed(layers)).transpose()?;
        let found = match &asked {
            Some(layers) => self.longest_with(layers).filter(enough).map(|most| (layers.clone(), most)),
            None => self.fewest(context),
        };
        let (layers, most) = found.ok_or_else(|| self.too_large(context.unwrap_or(own), asked.as_deref()))?;
        Ok(Division { layers, context: context.unwrap_or(most) })
    }

    /// Returns the distribution over the fewest places that hold the context, and the longest context that it permits. Without a requested context,
    /// uses that of the model, or at least 4096 tokens, or as much as fits on all places.
    fn fewest(&self, context: Option<usize>) -> Option<(Vec<usize>, usize)> {
        let own = self.needs.config().context;
        let wanted = context.unwrap_or(own.min(DEFAULT_SPLIT_CONTEXT));
        let count = self.places.len();
        let places = (1..=count).find(|places| self.filled(*places, wanted).is_some());
        let tokens = match places {
            Some(_) => wanted,
            None => {
                self.longest_on(count).filter(|most| context.is_none() && *most >= own.min(MIN_CONTEXT))?
            }
        };
        let layers = self.filled(places.unwrap_or(count), tokens)?;
        let most = self.longest_with(&layers)?;
        Some((layers, most))
    }

    /// Returns the layers of each place; an omitted last number is computed.
    fn completed(&self, asked: &[usize]) -> Result<Vec<usize>> {
        let (all, places) = (self.layers(), self.places.len());
        let sum = asked.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        let mut layers = asked.to_vec();
        if asked.len() + 1 == places && sum <= all {
            layers.push(all - sum);
        }
        if layers.len() == places && layers.iter().sum::<usize>() == all {
            return Ok(layers);
        }
        let list = asked.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let names = self.places.iter().map(|place| place.id.as_str()).collect::<Vec<_>>().join(",");
        Err(Error::format(format!(
            "--layers {list} is {} for {} ({names}), in all {sum} layers; the model has {all}, and each device needs a number, except the last one, \
             which may have the rest",
            counted(asked.len(), "number"),
            counted(places, "device")
        )))
    }

    /// Describes the required, available and possible amounts of each place.
    fn describe(&self, tokens: usize, asked: Option<&[usize]>) -> String {
        let mut start = 0;
        let mut taken = Vec::new();
        let mut all = Vec::new();
        for (at, place) in self.places.iter().enumerate() {
            let rest = self.layers() - start;
            let fit = self.held(at, (start, rest), tokens, &taken);
            let wanted = asked.and_then(|layers| layers.get(at)).copied();
            let count = wanted.unwrap_or(fit);
            let needed = self.taken(place, start..start + count, tokens);
            let left = self.left(at, &taken);
            let shared = if left < place.available { " in addition to those before it" } else { "" };
            let has = format!("{} has {} available{shared}", place.id, human(left));
            all.push(match wanted {
                Some(count) => format!(
                    "{has} and {} would need {}: {fit} would fit",
                    counted(count, "layer"),
                    human(needed)
                ),
                None => format!("{has}, enough for {fit} of {}", counted(rest, "layer")),
            });
            taken.push(needed);
            start += count;
        }
        all.join("; ")
    }

    fn too_large(&self, tokens: usize, asked: Option<&[usize]>) -> Error {
        let whole = 0..self.layers();
        let weights = self.needs.weights_of(whole.clone(), self.dtype);
        let cache = self.needs.cache_of(whole.clone(), tokens, self.dtype);
        let copies = self.places.iter().any(|place| place.copies_experts);
        let work = self.needs.work_of(whole, tokens, self.dtype, copies);
        let narrow = [DType::F16, DType::Bf16].into_iter().filter(|other| other.size() < self.dtype.size());
        let fits = |dtype: DType| {
            let other = Fit { dtype, ..*self };
            let most = match asked {
                Some(layers) => other.longest_with(layers)?,
                None => other.longest()?,
            };
            let kind = if dtype == self.dtype { String::new() } else { format!("--dtype {dtype} ") };
            Some(format!("{kind}-c {}", most.min(tokens)))
        };
        let mut all: Vec<String> = std::iter::once(self.dtype).chain(narrow).filter_map(fits).collect();
        if asked.is_some() && self.longest().is_some_and(|most| most >= tokens.min(MIN_CONTEXT)) {
            all.push("without --layers".into());
        }
        let advice = match all.is_empty() {
            true => "no storage type and no context fits there: use a smaller model, another device, or an additional device to share its layers, \
                as in --device nvidia:0,pocl:0 (`netcl models info` shows which)"
                .into(),
            false => format!("{} would fit", all.join(", or ")),
        };
        Error::memory(format!(
            "the model needs {}: {} of weights in {}, {} for the keys and values of {tokens} tokens and {} of workspace; {}. Nothing was allocated; \
             {advice}",
            human(weights.saturating_add(cache).saturating_add(work)),
            human(weights),
            self.dtype,
            human(cache),
            human(work),
            self.describe(tokens, asked)
        ))
    }
}

/// Returns the largest number from 1 to `most` that fits; if a number fits, all smaller ones must fit.
fn longest(most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match fits(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Some(low).filter(|n| *n > 0)
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
