//! Parameters that share a buffer, and the flat moments and master weights beside it.

use super::Entry;
use crate::ops::prelude::*;
use netcl_device::Buffer;
use netcl_kernel::Launch;

/// The parameters of one type within one buffer, be they views of it or windows.
pub(super) struct Arena {
    /// The buffer that no other holds, from its start.
    whole: Tensor,
    pub dtype: DType,
    /// First element of `whole` that moments and master weights have a place for.
    pub base: usize,
    /// f32 weights of f16 and bf16 parameters.
    master: Option<Tensor>,
    /// Whether the master weights are still to be taken from the parameters.
    pub stale: bool,
    moments: Vec<Tensor>,
    /// Numbers of the parameters, by their place.
    pub members: Vec<usize>,
}

impl Arena {
    /// Sorts parameters into arenas, with `moments` flat buffers of zeros each.
    pub fn over(entries: &[Entry], moments: usize) -> Result<Vec<Self>> {
        let mut arenas: Vec<Self> = Vec::new();
        for (i, Entry { param, .. }) in entries.iter().enumerate() {
            let name = param.name().unwrap_or("a parameter without name");
            check::float("optimizer", name, param)?;
            if !param.is_contiguous() {
                return Err(Error::shape(format!(
                    "optimizer: {name} is a view with gaps; give the tensor it is a view of"
                )));
            }
            let whole = param.storage().whole();
            let same = |a: &&mut Self| a.whole.storage().same(whole) && a.dtype == param.dtype();
            match arenas.iter_mut().find(same) {
                Some(arena) => arena.members.push(i),
                None => arenas.push(Self {
                    whole: Tensor::from_parts(whole.clone(), param.layout().clone(), param.dtype(), None),
                    dtype: param.dtype(),
                    base: 0,
                    master: None,
                    stale: true,
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
        let name = |i: usize| entries[i].param.name().unwrap_or("a parameter without name");
        for pair in self.members.windows(2) {
            if place(pair[0]).end > place(pair[1]).start {
                return Err(Error::shape(format!(
                    "optimizer: {} and {} are the same memory; give it once",
                    name(pair[0]),
                    name(pair[1])
                )));
            }
        }
        self.base = self.members.first().map_or(0, |i| place(*i).start);
        let end = self.members.last().map_or(0, |i| place(*i).end);
        let device = self.whole.device().clone();
        let flat = || Tensor::zeros(&device, [end - self.base], DType::F32);
        self.moments = (0..moments).map(|_| flat()).collect::<Result<_>>()?;
        if self.dtype != DType::F32 {
            self.master = Some(flat()?);
        }
        self.whole = self.whole.with_layout(Layout::contiguous([end].into()));
        Ok(())
    }

    /// Master weights start as the parameters are.
    pub fn lead(&mut self) -> Result<()> {
        if let Some(master) = self.master.as_ref().filter(|_| self.stale) {
            let from = self.whole.slice(0, self.base..self.whole.count())?;
            map_into("x0", &[&from], &[], master)?;
        }
        self.stale = false;
        Ok(())
    }

    /// Binds p, master, moments to an update of `elements` elements.
    pub fn bind<'a>(&self, launch: Launch<'a>, elements: usize) -> Launch<'a> {
        let part = |tensor| Part { tensor, elements };
        // With master weights the parameters are only written.
        let launch = match self.master {
            Some(_) => launch.write_base(&part(&self.whole)),
            None => launch.update_base(&part(&self.whole)),
        };
        self.master.iter().chain(&self.moments).fold(launch, |launch, t| launch.update_base(&part(t)))
    }

    /// Moments and master weights of one member, in its shape.
    pub fn state(&self, param: &Tensor, names: &[&'static str]) -> Result<Vec<(&'static str, Tensor)>> {
        let start = first(param) - self.base;
        let window = |t: &Tensor| t.slice(0, start..start + param.count())?.reshape(param.shape());
        let named = names.iter().zip(&self.moments).map(|(n, t)| Ok((*n, window(t)?)));
        named.chain(self.master.iter().map(|t| Ok(("master", window(t)?)))).collect()
    }
}

/// A parameter's first element in the buffer that no other holds.
pub(super) fn first(param: &Tensor) -> usize {
    param.storage().start() / param.dtype().size() + param.layout().offset
}

/// A buffer bound from its start of which a launch touches this many elements.
pub(super) struct Part<'a> {
    pub tensor: &'a Tensor,
    pub elements: usize,
}

impl Operand for Part<'_> {
    fn buffer(&self) -> &Buffer {
        self.tensor.storage()
    }
    fn bytes(&self) -> usize {
        self.elements * self.tensor.dtype().size()
    }
}
