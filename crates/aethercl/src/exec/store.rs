//! Stores of the running lanes.

use super::bytecode::{Address, Extend, File, Index, MemType, Reg};
use super::group::Group;
use super::lanes::LaneOperand;
use crate::memory::address::{self, PointerSpace};
use std::sync::atomic::Ordering::Relaxed;

impl Group<'_> {
    /// Stores `count` elements from registers to an address.
    pub(super) fn store(&mut self, ty: MemType, list: &[Reg], a: &Address) {
        if self.mask.is_empty() {
            return;
        }
        if ty == MemType::B32
            && let Some(block) = self.places(a, list.len())
        {
            return self.store_placed(block, list);
        }
        let size = u64::from(ty.size());
        if a.base.file == File::Uniform {
            let at = self.uniform_address(a);
            for (i, src) in list.iter().enumerate() {
                self.store_to(at.wrapping_add(i as u64 * size), ty, *src, a);
            }
            return;
        }
        self.lane_addresses(a);
        for (i, src) in list.iter().enumerate() {
            self.store_scattered(i as u64 * size, ty, *src);
        }
    }

    #[inline(always)]
    fn store_to(&mut self, at: u64, ty: MemType, src: Reg, a: &Address) {
        let space = address::space(at);
        if ty == MemType::B32 && self.mask.is_dense() {
            let done = match (space, a.index) {
                (PointerSpace::Private, None) => self.store_private_row(i64::from(address::offset(at)), src),
                (PointerSpace::Global, Some(index)) => self.store_global_words(at, src, index),
                (PointerSpace::Local, Some(index)) => self.store_local_words(at, src, index),
                _ => false,
            };
            if done {
                return;
            }
        }
        if space != PointerSpace::Private && a.index.is_none() {
            // All lanes store to one place: the value of the last lane stays.
            let Some(lane) = self.mask.lanes().last() else { return };
            let value = self.lane_value(src, lane);
            return self.write_lane(at, ty, value, lane);
        }
        for lane in self.mask.range() {
            if self.mask.has(lane) {
                let more = a.index.map_or(0, |i| self.lane_index(i, lane));
                let value = self.lane_value(src, lane);
                self.write_lane(at.wrapping_add(more as u64), ty, value, lane);
            }
        }
    }

    fn store_private_row(&mut self, offset: i64, src: Reg) -> bool {
        if offset & 3 != 0 {
            return false;
        }
        let range = self.mask.range();
        let row = ((offset >> 2) as usize).saturating_mul(self.lanes).min(usize::MAX >> 1);
        let source = super::group::words(&self.words, &self.uniforms, src, &range);
        let Some(to) = self.private.get_mut(row + range.start..row + range.end) else { return true };
        match source {
            LaneOperand::Lanes(from) => to.copy_from_slice(from),
            LaneOperand::One(x) => to.fill(x),
        }
        true
    }

    fn store_global_words(&self, at: u64, src: Reg, index: Index) -> bool {
        let Some((found, offset)) = self.find(at) else { return true };
        if offset & 3 != 0 || index.scale & 3 != 0 {
            return false;
        }
        let range = self.mask.range();
        let (start, stride) = (offset >> 2, index.scale >> 2);
        let put = |i: i64, v: u32| {
            if let Some(w) = found.words.get(start.wrapping_add(i.wrapping_mul(stride)) as usize) {
                w.store(v, Relaxed);
            }
        };
        let source = self.word_source(src, &range);
        self.scatter(index, source, range, put);
        true
    }

    fn store_local_words(&mut self, at: u64, src: Reg, index: Index) -> bool {
        let offset = i64::from(address::offset(at) as i32);
        if offset & 3 != 0 || index.scale & 3 != 0 {
            return false;
        }
        let range = self.mask.range();
        let (start, stride) = (offset >> 2, index.scale >> 2);
        let mut local = std::mem::take(&mut self.local);
        let put = |i: i64, v: u32| {
            if let Some(w) = local.get_mut(start.wrapping_add(i.wrapping_mul(stride)) as usize) {
                *w = v;
            }
        };
        let source = self.word_source(src, &range);
        self.scatter(index, source, range, put);
        self.local = local;
        true
    }

    #[inline(always)]
    fn scatter(
        &self,
        index: Index,
        source: LaneOperand<'_, u32>,
        range: std::ops::Range<usize>,
        put: impl FnMut(i64, u32),
    ) {
        match (index.reg.file, index.extend) {
            (File::Long, _) => {
                let i = &self.longs[index.reg.index as usize][range];
                scatter_indexed(
                    i,
                    source,
                    #[inline(always)]
                    |i| i as i64,
                    put,
                );
            }
            (_, Extend::Unsigned) => {
                let i = &self.words[index.reg.index as usize][range];
                scatter_indexed(i, source, i64::from, put);
            }
            _ => {
                let i = &self.words[index.reg.index as usize][range];
                scatter_indexed(
                    i,
                    source,
                    #[inline(always)]
                    |i| i64::from(i as i32),
                    put,
                );
            }
        }
    }

    fn store_scattered(&mut self, more: u64, ty: MemType, src: Reg) {
        for lane in self.mask.range() {
            if self.mask.has(lane) {
                let value = self.lane_value(src, lane);
                self.write_lane(self.addresses[lane].wrapping_add(more), ty, value, lane);
            }
        }
    }
}

#[inline(always)]
fn scatter_indexed<I: Copy>(
    index: &[I],
    source: LaneOperand<'_, u32>,
    to: impl Fn(I) -> i64,
    mut put: impl FnMut(i64, u32),
) {
    match source {
        LaneOperand::Lanes(from) => index.iter().zip(from).for_each(|(i, v)| put(to(*i), *v)),
        LaneOperand::One(v) => index.iter().for_each(|i| put(to(*i), v)),
    }
}
