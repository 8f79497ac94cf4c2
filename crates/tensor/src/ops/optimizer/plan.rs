//! Assignment of gradients to launches. It is rebuilt only if a gradient's type or offset in its buffer changes.

use super::arena::{Arena, BufferPart, first};
use super::{Entry, KERNEL, LANES, SLOTS};
use crate::ops::prelude::*;
use netcl_kernel::Launch;

/// Words per row of the table: `ROW` of the kernel.
const ROW: usize = 6;

pub(super) struct UpdatePlan {
    /// Type and offset of every gradient, for which the plan was made.
    key: Vec<(DType, usize)>,
    pub batches: Vec<ParameterBatch>,
    /// One row per parameter, in the order of the batches.
    table: Tensor,
    /// Sums of squares, one per work-group of all batches.
    pub partial: Tensor,
    /// Elements per work-group.
    pub chunk: usize,
    /// The number of each parameter and of its partial sums, in their order.
    groups: Vec<(usize, usize)>,
}

/// Parameters of one arena with gradients of one type.
pub(super) struct ParameterBatch {
    pub arena: usize,
    /// Type of the gradients.
    pub dtype: DType,
    /// Numbers of the parameters.
    members: Vec<usize>,
    /// First row of the table.
    first: usize,
    /// Whether everything starts at multiples of [`LANES`]; always false on CPUs, which load from any address.
    pub aligned: bool,
    pub groups: usize,
    /// First partial sum.
    pub part: usize,
    pub elements: usize,
}

impl UpdatePlan {
    /// Returns whether the plan was made for gradients like these.
    pub fn fits(&self, grads: &[Tensor]) -> bool {
        grads.iter().map(|g| (g.dtype(), g.layout().offset)).eq(self.key.iter().copied())
    }

    /// Returns `last` if it still fits, otherwise a new plan.
    pub fn renew(last: Option<Self>, entries: &[Entry], arenas: &[Arena], grads: &[Tensor]) -> Result<Self> {
        match last {
            Some(plan) if plan.fits(grads) => Ok(plan),
            _ => {
                let key = grads.iter().map(|g| (g.dtype(), g.layout().offset));
                Self::new(key.collect(), entries, arenas)
            }
        }
    }

    fn new(key: Vec<(DType, usize)>, entries: &[Entry], arenas: &[Arena]) -> Result<Self> {
        let device = entries[0].param.device();
        let value = |name| Tuning::value(device, &KERNEL, 0, name);
        let (chunk, vectors) = (value("CHUNK"), value("WG") > 1);
        let mut batches: Vec<ParameterBatch> = Vec::new();
        let mut of_params = Vec::with_capacity(entries.len());
        let mut table: Vec<u64> = Vec::with_capacity(entries.len() * ROW);
        for (arena, a) in arenas.iter().enumerate() {
            for dtype in DType::FLOATS {
                let fits = |i: &&usize| key[**i].0 == dtype && entries[**i].param.count() > 0;
                let members: Vec<usize> = a.members.iter().filter(fits).copied().collect();
                for members in members.chunks(SLOTS) {
                    let part = batches.last().map_or(0, |b| b.part + b.groups);
                    let row = table.len() / ROW;
                    let (mut groups, mut elements, mut aligned) = (0, 0, vectors);
                    for i in members {
                        let Entry { param, weight_decay, lr_scale } = &entries[*i];
                        let [decay, factor] =
                            [weight_decay, lr_scale].map(|x| u64::from((*x as f32).to_bits()));
                        let places = [first(param), a.place(param), key[*i].1];
                        aligned &= places.iter().all(|n| n.is_multiple_of(LANES));
                        let [start, state, grad] = places;
                        let sizes = [start, grad, param.count(), groups, state];
                        table.extend(sizes.map(|n| n as u64));
                        table.push(decay | factor << 32);
                        of_params.push((*i, param.count().div_ceil(chunk)));
                        groups += param.count().div_ceil(chunk);
                        elements += param.count();
                    }
                    batches.push(ParameterBatch {
                        arena,
                        dtype,
                        members: members.to_vec(),
                        first: row,
                        aligned,
                        groups,
                        part,
                        elements,
                    });
                }
            }
        }
        let parts = batches.last().map_or(0, |b| b.part + b.groups);
        let partial = Tensor::empty(device, [parts], DType::F32)?;
        // 8-byte words are uploaded as pairs of 4-byte words, since no tensor type has 8 bytes.
        let table = Tensor::from_u32(device, [2 * table.len()], bytemuck::cast_slice(&table))?;
        Ok(Self { key, batches, table, partial, chunk, groups: of_params })
    }

    /// Returns the sum of the partial sums of each of `count` parameters. Waits for the device.
    pub fn sums(&self, count: usize) -> Result<Vec<f64>> {
        let (partial, mut sums) = (self.partial.to_vec()?, vec![0.0; count]);
        let mut left = partial.iter();
        for (param, groups) in &self.groups {
            sums[*param] = left.by_ref().take(*groups).map(|sum| f64::from(*sum)).sum();
        }
        Ok(sums)
    }
}

impl ParameterBatch {
    /// Declares the parameters that the update changes: an arena may hold others that are not updated here.
    pub fn changes<'a>(&self, launch: Launch<'a>, entries: &[Entry]) -> Launch<'a> {
        self.members.iter().fold(launch, |launch, i| launch.changes(entries[*i].param.storage()))
    }
    /// Binds the table and the gradients.
    pub fn gradients<'a>(&self, launch: Launch<'a>, plan: &UpdatePlan, grads: &[Tensor]) -> Launch<'a> {
        let count = self.members.len();
        let launch = launch.read(&plan.table).scalar(self.first as u32).scalar(count as u32);
        (0..SLOTS).fold(launch, |launch, slot| {
            let tensor = &grads[self.members[slot.min(count - 1)]];
            launch.read_base(&BufferPart { tensor, elements: if slot < count { tensor.count() } else { 0 } })
        })
    }
}
