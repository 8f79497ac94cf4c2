//! What fits on devices, before anything is allocated there: the context, and how layers are divided among several.

use super::needs::Needs;
use netcl_device::{Capabilities, available_memory, counted, human};
use netcl_model::decoder::Span;
use netcl_tensor::ops::decode_step::Text;
use netcl_tensor::{DType, Device, Error, Result};
use std::ops::Range;

/// A context that is not worth to begin with, where nobody asked for one and the model has more.
const LEAST: usize = 256;

/// The context that layers are divided for, where nobody asked for one: a longer one moves layers to later devices.
const DIVIDED: usize = 4096;

/// Whether a device has the memory of the host.
pub(super) fn is_on_host(device: &Capabilities) -> bool {
    device.is_cpu() || device.simulated
}

/// Bytes that a process can take on a device.
pub fn available(device: &Capabilities) -> u64 {
    device.global_mem.min(shared(device))
}

/// Bytes of the memory that a device is in: that of the host, or its own.
pub(super) fn shared(device: &Capabilities) -> u64 {
    match is_on_host(device) {
        true => available_memory().unwrap_or(u64::MAX),
        false => device.global_mem,
    }
}

/// Whether two devices take the same memory.
pub(super) fn is_shared(a: &Capabilities, b: &Capabilities) -> bool {
    a.id == b.id || is_on_host(a) && is_on_host(b)
}

/// A device that a model is to be put on, also one of several.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name.
    id: String,
    /// Bytes that it has.
    available: u64,
    /// Bytes of the memory that it takes them from, and the first place that does so too.
    shared: u64,
    memory: usize,
    /// Whether steps in one launch run there, as far as is known without opening it.
    one_launch: bool,
    /// Whether experts' matrices are dequantised for a prompt: neither processors with bytes as activations nor tensor cores do.
    copies_experts: bool,
}

impl Place {
    /// Devices in the order in which they are filled.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a Capabilities>) -> Vec<Self> {
        let devices: Vec<&Capabilities> = devices.into_iter().collect();
        let place = |(i, device): (usize, &&Capabilities)| Self {
            id: device.id.clone(),
            available: available(device),
            shared: shared(device),
            memory: devices.iter().position(|other| is_shared(other, device)).unwrap_or(i),
            one_launch: Text::Ring.is_for(device),
            copies_experts: !device.is_cpu() && device.sm() < Some(80),
        };
        devices.iter().enumerate().map(place).collect()
    }
}

/// How many layers each device has, and for which context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Layers of each device, in order; 0 for one that is not needed.
    pub layers: Vec<usize>,
    /// Tokens.
    pub context: usize,
}

impl Division {
    /// The layers of each of `devices` that has some.
    pub(super) fn spans(&self, devices: &[Device]) -> Vec<Span> {
        let all = devices.iter().cloned().zip(self.layers.iter().copied());
        Span::in_order(all.filter(|(_, count)| *count > 0))
    }
}

/// A model that is to be put on devices.
pub struct Fit<'a> {
    needs: &'a Needs,
    places: &'a [Place],
    dtype: DType,
}

impl<'a> Fit<'a> {
    /// In the type of the model's needs.
    pub fn new(needs: &'a Needs, places: &'a [Place]) -> Self {
        Self { needs, places, dtype: needs.dtype() }
    }

    fn layers(&self) -> usize {
        self.needs.config().layers
    }

    /// Bytes of a place with these layers.
    fn taken(&self, place: &Place, layers: Range<usize>, tokens: usize) -> u64 {
        if layers.is_empty() {
            return 0;
        }
        let whole = layers.len() == self.layers() && place.one_launch;
        let copies = if whole { self.needs.row_copies(self.dtype) } else { 0 };
        let cache = self.needs.cache_of(layers.clone(), tokens, self.dtype);
        let work = self.needs.work_of(layers.clone(), tokens, self.dtype, place.copies_experts);
        [self.needs.weights_of(layers, self.dtype), cache, work].into_iter().fold(copies, u64::saturating_add)
    }

    /// Bytes of each place with so many layers.
    pub(super) fn taken_by_each(&self, layers: &[usize], tokens: usize) -> Vec<u64> {
        let mut start = 0;
        let each = self.places.iter().zip(layers).map(|(place, count)| {
            start += count;
            self.taken(place, start - count..start, tokens)
        });
        each.collect()
    }

    /// Bytes that place `at` has beside what those before it take.
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

    /// The number of layers from `start` on, up to `most`, that place `at` holds beside what those before it take.
    fn held(&self, at: usize, (start, most): (usize, usize), tokens: usize, taken: &[u64]) -> usize {
        let left = self.left(at, taken);
        let fit = |n: usize| self.taken(&self.places[at], start..start + n, tokens) <= left;
        longest(most, fit).unwrap_or(0)
    }

    /// Fills the first `places` places, each as far as it goes; `None` where the layers do not fit.
    fn filled(&self, places: usize, tokens: usize) -> Option<Vec<usize>> {
        let (mut layers, mut taken, mut start) = (vec![0; self.places.len()], Vec::new(), 0);
        for at in 0..places {
            let rest = self.layers() - start;
            let all = self.taken(&self.places[at], start..self.layers(), tokens) <= self.left(at, &taken);
            // The last one has the head, so a layer is left to it.
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

    /// The longest context for which the first `places` places hold the model, up to the model's.
    fn longest_on(&self, places: usize) -> Option<usize> {
        longest(self.needs.config().context, |tokens| self.filled(places, tokens).is_some())
    }

    /// The longest context with this division, up to the model's.
    fn longest_with(&self, layers: &[usize]) -> Option<usize> {
        longest(self.needs.config().context, |tokens| self.fits(layers, tokens))
    }

    /// The longest context that fits on all places together, up to the model's; `None` where not one token does.
    pub fn longest(&self) -> Option<usize> {
        self.longest_on(self.places.len())
    }

    /// The layers that the first place holds, with the embedding and `tokens` tokens of context.
    pub fn held_by_first(&self, tokens: usize) -> usize {
        match self.filled(1, tokens) {
            Some(_) => self.layers(),
            None => self.held(0, (0, self.layers() - 1), tokens, &[]),
        }
    }

    /// Divides the layers among the places: as `asked`, where the last number may be left out, or so that each in turn is filled. The context is the
    /// one that was asked for, or the model's, or of that as much as fits; one that nobody asked for moves no layer to a further device beyond 4096
    /// tokens.
    ///
    /// # Errors
    /// `Format` for a context beyond the model's or layers that are not the model's; `Memory` that says what is needed, what is there and what would
    /// fit.
    pub fn divide(&self, context: Option<usize>, asked: Option<&[usize]>) -> Result<Division> {
        let own = self.needs.config().context;
        if let Some(tokens) = context.filter(|tokens| *tokens == 0 || *tokens > own) {
            return Err(Error::format(format!(
                "a context of {tokens} tokens: expected 1 to {own}, which the model was made for"
            )));
        }
        let enough = |most: &usize| *most >= context.unwrap_or(own.min(LEAST));
        let asked = asked.map(|layers| self.completed(layers)).transpose()?;
        let found = match &asked {
            Some(layers) => self.longest_with(layers).filter(enough).map(|most| (layers.clone(), most)),
            None => self.fewest(context),
        };
        let (layers, most) = found.ok_or_else(|| self.too_large(context.unwrap_or(own), asked.as_deref()))?;
        Ok(Division { layers, context: context.unwrap_or(most) })
    }

    /// The division among the fewest places that hold the context, and the longest one that it has room for. Where nobody asked for one that is the
    /// model's, or 4096 tokens of a longer one; or as much as fits on all of them.
    fn fewest(&self, context: Option<usize>) -> Option<(Vec<usize>, usize)> {
        let own = self.needs.config().context;
        let wanted = context.unwrap_or(own.min(DIVIDED));
        let count = self.places.len();
        let places = (1..=count).find(|places| self.filled(*places, wanted).is_some());
        let tokens = match places {
            Some(_) => wanted,
            None => self.longest_on(count).filter(|most| context.is_none() && *most >= own.min(LEAST))?,
        };
        let layers = self.filled(places.unwrap_or(count), tokens)?;
        let most = self.longest_with(&layers)?;
        Some((layers, most))
    }

    /// The layers of each place, that of the last one from those of the others if it was left out.
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
            "--layers {list} is {} for {} ({names}), in all {sum} layers; the model has {all}, and each device needs a number, but for the last one, \
             which may have the rest",
            counted(asked.len(), "number"),
            counted(places, "device")
        )))
    }

    /// What each place would have to hold, has, and could hold.
    fn told(&self, tokens: usize, asked: Option<&[usize]>) -> String {
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
            let shared = if left < place.available { " beside those before it" } else { "" };
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
        if asked.is_some() && self.longest().is_some_and(|most| most >= tokens.min(LEAST)) {
            all.push("without --layers".into());
        }
        let advice = match all.is_empty() {
            true => "no storage type and no context fits there: take a smaller model, or another device or one more, among which its layers are \
                     divided, as in --device nvidia:0,pocl:0 (`netcl models info` shows which)"
                .into(),
            false => format!("{} would fit", all.join(", or ")),
        };
        Error::memory(format!(
            "the model needs {}: {} of weights in {}, {} for the keys and values of {tokens} tokens and {} to work with; {}. Nothing was allocated; \
             {advice}",
            human(weights.saturating_add(cache).saturating_add(work)),
            human(weights),
            self.dtype,
            human(cache),
            human(work),
            self.told(tokens, asked)
        ))
    }
}

/// The largest number from 1 to `most` that fits, where all below one that fits do.
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
