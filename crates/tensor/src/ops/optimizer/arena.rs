//! Parameters that share a buffer, and their flat moments and master weights.

use super::{Entry, LANES};
use crate::ops::prelude::*;
use netcl_device::Buffer;
use netcl_device::version::Version;
use netcl_kernel::Launch;

/// The parameters of one type within one buffer, as views or windows of it.
pub(super) struct Arena {
    /// The whole buffer, from its start.
    whole: Tensor,
    pub dtype: DType,
    /// The parameters in runs of adjacent ones, in order.
    stretches: Vec<Stretch>,
    /// f32 weights of f16 and bf16 parameters.
    master: Option<Tensor>,
    /// Whether the master weights must still be copied from the parameters.
    pub stale: bool,
    /// The buffer's write counter after the last update, and the version of each member at that time.
    seen: Option<(u64, Vec<Version>)>,
    moments: Vec<Tensor>,
    /// Numbers of the parameters, in the order of their positions.
    pub members: Vec<usize>,
}

/// Adjacent elements with only alignment gaps. Their moments and master weights are contiguous with the same length.
struct Stretch {
    /// First element in the buffer.
    first: usize,
    /// First element of its moments and master weights.
    state: usize,
    count: usize,
}

/// Maximum gap that is included in moments. Larger gaps belong to tensors that are not updated here.
const GAP: usize = 256;
/// Bytes from which moments and master weights are allocated in their exact size. They live long, and size classes would take up to an eighth more.
const OWN: usize = 64 << 10;

impl Arena {
    /// Sorts parameters into arenas, with `moments` flat buffers of zeros each.
    pub fn over(entries: &[Entry], moments: usize) -> Result<Vec<Self>> {
        let mut arenas: Vec<Self> = Vec::new();
        for (i, Entry { param, .. }) in entries.iter().enumerate() {
            let name = param.name().unwrap_or("unnamed parameter");
            check::float("optimizer", name, param)?;
            if !param.is_contiguous() {
                return Err(Error::shape(format!(
                    "optimizer: {name} is a non-contiguous view; pass the tensor under the view"
                )));
            }
            let whole = param.storage().whole();
            let same = |a: &&mut Self| a.whole.storage().same(whole) && a.dtype == param.dtype();
            match arenas.iter_mut().find(same) {
                Some(arena) => arena.members.push(i),
                None => arenas.push(Self {
                    whole: Tensor::from_parts(whole.clone(), param.layout().clone(), param.dtype(), None),
                    dtype: param.dtype(),
                    stretches: Vec::new(),
                    master: None,
                    stale: true,
                    seen: None,
                    moments: Vec::new(),
                    members: vec![i],
                }),
            }
        }
        arenas.iter_mut().try_for_each(|a| a.lay_out(entries, moments))?;
        Ok(arenas)
    }

    fn lay_out(&mut self, entries: &[Entry], moments: usize) -> Result<()> {
        let place = |i: usize| {
            let param = &entries[i].param;
            first(param)..first(param) + param.count()
        };
        self.members.sort_by_key(|i| place(*i).start);
        let name = |i: usize| entries[i].param.name().unwrap_or("unnamed parameter");
        for pair in self.members.windows(2) {
            if place(pair[0]).end > place(pair[1]).start {
                return Err(Error::shape(format!(
                    "optimizer: {} and {} share memory; pass only one of them",
                    name(pair[0]),
                    name(pair[1])
                )));
            }
        }
        for place in self.members.iter().map(|i| place(*i)) {
            match self.stretches.last_mut() {
                Some(last) if place.start - (last.first + last.count) <= GAP => {
                    last.count = place.end - last.first;
                }
                last => {
                    // Vectors of the state are aligned like those of the parameters.
                    let state = last.map_or(0, |last| (last.state + last.count).next_multiple_of(LANES));
                    self.stretches.push(Stretch { first: place.start, state, count: place.len() });
                }
            }
        }
        let end = self.members.last().map_or(0, |i| place(*i).end);
        let elements = self.stretches.last().map_or(0, |last| last.state + last.count);
        let device = self.whole.device().clone();
        let flat = || {
            let bytes = elements.checked_mul(DType::F32.size());
            let bytes = bytes.ok_or_else(|| Error::memory("optimizer: more elements than fit in memory"))?;
            if bytes < OWN {
                return Tensor::zeros(&device, [elements], DType::F32);
            }
            let buffer = device.allocate_own(bytes)?;
            device.fill(&buffer, &0f32.to_le_bytes())?;
            Ok(Tensor::from_parts(buffer, Layout::contiguous([elements].into()), DType::F32, None))
        };
        self.moments = (0..moments).map(|_| flat()).collect::<Result<_>>()?;
        if self.dtype != DType::F32 {
            self.master = Some(flat()?);
        }
        self.whole = self.whole.with_layout(Layout::contiguous([end].into()));
        Ok(())
    }

    /// Records the versions of the parameters after an update.
    pub fn note(&mut self, entries: &[Entry]) {
        if self.master.is_some() {
            let version = |i: &usize| entries[*i].param.storage().version();
            self.seen = Some((self.whole.storage().writes(), self.members.iter().map(version).collect()));
        }
    }

    /// Updates the master weights of parameters that were written since the last update. An element that equals its rounded master weight keeps it.
    pub fn follow(&mut self, entries: &[Entry]) -> Result<()> {
        let (Some(master), Some((writes, versions))) = (&self.master, &self.seen) else { return Ok(()) };
        if self.stale || self.whole.storage().writes() == *writes {
            return Ok(());
        }
        let expression = match self.dtype {
            DType::F16 => "(x0 == ROUNDED1(x1)) ? x1 : x0",
            _ => "(x0 == ROUNDED2(x1)) ? x1 : x0",
        };
        for (i, version) in self.members.iter().zip(versions) {
            let param = &entries[*i].param;
            if version.is_stale_in(param.storage()) {
                let (flat, at) = (param.detach().reshape([param.count()])?, self.place(param));
                let own = master.slice(0, at..at + param.count())?;
                map_into(expression, &[&flat, &own], &[], &own)?;
            }
        }
        self.note(entries);
        Ok(())
    }

    /// Initializes the master weights from the parameters.
    pub fn lead(&mut self) -> Result<()> {
        if let Some(master) = self.master.as_ref().filter(|_| self.stale) {
            for Stretch { first, state, count } in &self.stretches {
                let from = self.whole.slice(0, *first..first + count)?;
                map_into("x0", &[&from], &[], &master.slice(0, *state..state + count)?)?;
            }
        }
        self.stale = false;
        Ok(())
    }

    /// Returns the first element of a member's moments and master weights.
    pub fn place(&self, param: &Tensor) -> usize {
        let at = first(param);
        let stretch = self.stretches.iter().rfind(|stretch| stretch.first <= at);
        stretch.map_or(0, |stretch| stretch.state + at - stretch.first)
    }

    /// Returns the bytes of moments and master weights.
    pub fn state_bytes(&self) -> usize {
        self.master.iter().chain(&self.moments).map(|t| t.count() * t.dtype().size()).sum()
    }

    /// Binds p, master and moments to an update of `elements` elements.
    pub fn bind<'a>(&self, launch: Launch<'a>, elements: usize) -> Launch<'a> {
        let part = |tensor| BufferPart { tensor, elements };
        // With master weights, the parameters are only written.
        let launch = match self.master {
            Some(_) => launch.write_base(&part(&self.whole)),
            None => launch.update_base(&part(&self.whole)),
        };
        self.master.iter().chain(&self.moments).fold(launch, |launch, t| launch.update_base(&part(t)))
    }

    /// Returns the moments and master weights of one member, in its shape.
    pub fn state(&self, param: &Tensor, names: &[&'static str]) -> Result<Vec<(&'static str, Tensor)>> {
        let start = self.place(param);
        let window = |t: &Tensor| t.slice(0, start..start + param.count())?.reshape(param.shape());
        let named = names.iter().zip(&self.moments).map(|(n, t)| Ok((*n, window(t)?)));
        named.chain(self.master.iter().map(|t| Ok(("master", window(t)?)))).collect()
    }
}

/// Returns a parameter's first element in the whole buffer.
pub(super) fn first(param: &Tensor) -> usize {
    param.storage().start() / param.dtype().size() + param.layout().offset
}

/// A buffer bound from its start, of which a launch accesses `elements` elements.
pub(super) struct BufferPart<'a> {
    pub tensor: &'a Tensor,
    pub elements: usize,
}

impl Operand for BufferPart<'_> {
    fn buffer(&self) -> &Buffer {
        self.tensor.storage()
    }
    fn bytes(&self) -> usize {
        self.elements * self.tensor.dtype().size()
    }
}
