//! Loads and stores of lanes.

use super::bytecode::{Address, Extend, File, Index, MemType, Reg};
use super::group::Group;
use super::lanes::LaneOperand;
use super::shared::Buffer;
use crate::memory::address::{self, GLOBAL, PointerSpace};
use crate::memory::{Allocation, store_part};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A readable word.
pub(super) trait Cell {
    fn get(&self) -> u32;
}

impl Cell for AtomicU32 {
    #[inline(always)]
    fn get(&self) -> u32 {
        self.load(Relaxed)
    }
}

impl Cell for u32 {
    #[inline(always)]
    fn get(&self) -> u32 {
        *self
    }
}

/// Returns the sign- or zero-extended element at a byte offset; 0 outside the words.
#[inline(always)]
pub(super) fn read<C: Cell>(words: &[C], at: i64, ty: MemType) -> u64 {
    let word = |i: i64| words.get(i as usize).map_or(0, Cell::get);
    let low = word(at >> 2) >> ((at & 3) * 8);
    match ty {
        MemType::B32 if at & 3 == 0 => u64::from(low),
        MemType::U8 => u64::from(low & 0xff),
        MemType::I8 => u64::from(i32::from(low as i8) as u32),
        MemType::U16 if at & 3 != 3 => u64::from(low & 0xffff),
        MemType::I16 if at & 3 != 3 => u64::from(i32::from(low as i16) as u32),
        _ => read_unaligned(words, at, ty),
    }
}

fn read_unaligned<C: Cell>(words: &[C], at: i64, ty: MemType) -> u64 {
    let word = |i: i64| u64::from(words.get(i as usize).map_or(0, Cell::get));
    let shift = (at & 3) * 8;
    let two = |i: i64| ((word(i) | word(i + 1) << 32) >> shift) as u32;
    let first = two(at >> 2);
    match ty {
        MemType::U16 => u64::from(first & 0xffff),
        MemType::I16 => u64::from(i32::from(first as i16) as u32),
        MemType::B64 => u64::from(first) | u64::from(two((at >> 2) + 1)) << 32,
        _ => u64::from(first),
    }
}

/// Writes an element at a byte offset; `put` changes bits of a word.
#[inline(always)]
pub(super) fn write(at: i64, ty: MemType, value: u64, mut put: impl FnMut(i64, u32, u32)) {
    let mut bytes = i64::from(ty.size());
    let (mut at, mut value) = (at, value);
    while bytes > 0 {
        let inside = at & 3;
        let n = (4 - inside).min(bytes);
        let mask = (u32::MAX >> (32 - 8 * n)) << (8 * inside);
        put(at >> 2, (value as u32) << (8 * inside), mask);
        at += n;
        bytes -= n;
        value >>= 8 * n;
    }
}

#[inline(always)]
pub(super) fn put_atomic(words: &[AtomicU32], at: i64, value: u32, mask: u32) {
    if let Some(word) = words.get(at as usize) {
        if mask == u32::MAX { word.store(value, Relaxed) } else { store_part(word, value, mask) }
    }
}

#[inline(always)]
fn put_plain(words: &mut [u32], at: i64, value: u32, mask: u32) {
    if let Some(word) = words.get_mut(at as usize) {
        *word = (*word & !mask) | (value & mask);
    }
}

/// Returns true if the numbers count up by one.
fn is_run<I: Copy>(index: &[I], to: impl Fn(I) -> i64) -> bool {
    let (Some(first), Some(last)) = (index.first(), index.last()) else { return false };
    to(*last).wrapping_sub(to(*first)) == index.len() as i64 - 1
        && index.windows(2).fold(true, |all, w| all & (to(w[1]).wrapping_sub(to(w[0])) == 1))
}

/// Copies words `start + index * stride` into lanes.
fn gather<C: Cell, I: Copy>(
    out: &mut [u32],
    words: &[C],
    start: i64,
    index: &[I],
    stride: i64,
    to: impl Fn(I) -> i64 + Copy,
) {
    if stride == 1 && is_run(index, to) {
        let first = start.wrapping_add(to(index[0]));
        if let Some(run) = usize::try_from(first).ok().and_then(|f| words.get(f..f.saturating_add(out.len())))
        {
            out.iter_mut().zip(run).for_each(|(o, w)| *o = w.get());
            return;
        }
    }
    for (o, i) in out.iter_mut().zip(index) {
        *o = words.get(start.wrapping_add(to(*i).wrapping_mul(stride)) as usize).map_or(0, Cell::get);
    }
}

impl<'a> Group<'a> {
    #[inline(always)]
    pub(super) fn index_value(&self, index: Index) -> i64 {
        let bits = self.uniforms[index.reg.index as usize];
        let wide = match index.extend {
            Extend::Wide => bits as i64,
            Extend::Signed => i64::from(bits as u32 as i32),
            Extend::Unsigned => i64::from(bits as u32),
        };
        wide.wrapping_mul(index.scale)
    }

    /// Returns the part of an address that is the same in all lanes; the base must be uniform.
    #[inline(always)]
    pub(super) fn uniform_address(&self, a: &Address) -> u64 {
        let base = self.uniforms[a.base.index as usize];
        let more = a.offset.wrapping_add(a.uniform.map_or(0, |u| self.index_value(u)));
        base.wrapping_add(more as u64)
    }

    /// Computes the address of every running lane.
    pub(super) fn lane_addresses(&mut self, a: &Address) {
        let range = self.mask.range();
        let mut out = std::mem::take(&mut self.addresses);
        let more = a.offset.wrapping_add(a.uniform.map_or(0, |u| self.index_value(u))) as u64;
        let lanes = &mut out[range.clone()];
        match self.long_source(a.base, &range) {
            LaneOperand::One(base) => lanes.fill(base.wrapping_add(more)),
            LaneOperand::Lanes(base) => {
                lanes.iter_mut().zip(base).for_each(|(o, b)| *o = b.wrapping_add(more))
            }
        }
        if let Some(index) = a.index {
            let scale = index.scale as u64;
            match (index.reg.file, index.extend) {
                (File::Long, _) => {
                    let i = &self.longs[index.reg.index as usize][range];
                    lanes.iter_mut().zip(i).for_each(|(o, i)| *o = o.wrapping_add(i.wrapping_mul(scale)));
                }
                (File::Word, Extend::Unsigned) => {
                    let i = &self.words[index.reg.index as usize][range];
                    lanes
                        .iter_mut()
                        .zip(i)
                        .for_each(|(o, i)| *o = o.wrapping_add(u64::from(*i).wrapping_mul(scale)));
                }
                (File::Word, _) => {
                    let i = &self.words[index.reg.index as usize][range];
                    let wide = |i: u32| i64::from(i as i32) as u64;
                    lanes
                        .iter_mut()
                        .zip(i)
                        .for_each(|(o, i)| *o = o.wrapping_add(wide(*i).wrapping_mul(scale)));
                }
                (File::Uniform, _) => {
                    let step = self.index_value(index) as u64;
                    lanes.iter_mut().for_each(|o| *o = o.wrapping_add(step));
                }
            }
        }
        self.addresses = out;
    }

    /// Returns the allocation of a global address, and the byte offset in it, which may be out of bounds.
    #[inline(always)]
    pub(super) fn find(&self, at: u64) -> Option<(&'a Allocation, i64)> {
        let shared = self.shared;
        let buffer: Option<&'a Buffer> =
            address::argument(at).and_then(|k| shared.buffers.get(k)).and_then(Option::as_ref);
        let buffer = match buffer {
            Some(b) => b,
            None => shared
                .buffers
                .iter()
                .flatten()
                .find(|b| (at & GLOBAL).wrapping_sub(b.allocation.address) < b.allocation.bytes)?,
        };
        let allocation: &'a Allocation = &buffer.allocation;
        Some((allocation, (at & GLOBAL) as i64 - allocation.address as i64))
    }

    /// Returns one element at any address, from the view of a lane.
    pub(super) fn read_lane(&self, at: u64, ty: MemType, lane: usize) -> u64 {
        match address::space(at) {
            PointerSpace::Global => self.find(at).map_or(0, |(a, offset)| read(&a.words, offset, ty)),
            PointerSpace::Constant => read(&self.shared.constants.words, i64::from(address::offset(at)), ty),
            PointerSpace::Local => read(&self.local, i64::from(address::offset(at)), ty),
            PointerSpace::Private => {
                let at = i64::from(address::offset(at));
                let mut own = [0u32; 3];
                for (i, w) in own.iter_mut().enumerate() {
                    *w = self
                        .private
                        .get(
                            ((at >> 2) as usize)
                                .saturating_add(i)
                                .saturating_mul(self.lanes)
                                .saturating_add(lane),
                        )
                        .copied()
                        .unwrap_or(0);
                }
                read(&own, at & 3, ty)
            }
        }
    }

    /// Stores one element at any address, from the view of a lane.
    pub(super) fn write_lane(&mut self, at: u64, ty: MemType, value: u64, lane: usize) {
        match address::space(at) {
            PointerSpace::Global => {
                if let Some((a, offset)) = self.find(at) {
                    write(offset, ty, value, |i, v, m| put_atomic(&a.words, i, v, m));
                }
            }
            PointerSpace::Constant => {}
            PointerSpace::Local => {
                let local = &mut self.local;
                write(i64::from(address::offset(at)), ty, value, |i, v, m| put_plain(local, i, v, m));
            }
            PointerSpace::Private => {
                let (private, lanes) = (&mut self.private, self.lanes as i64);
                write(i64::from(address::offset(at)), ty, value, |i, v, m| {
                    put_plain(private, i.saturating_mul(lanes) + lane as i64, v, m);
                });
            }
        }
    }

    /// Loads `count` elements from an address into registers.
    pub(super) fn load(&mut self, ty: MemType, list: &[Reg], a: &Address) {
        if self.mask.is_empty() {
            return;
        }
        let size = i64::from(ty.size());
        if list[0].file == File::Uniform {
            let at = self.uniform_address(a);
            for (i, dst) in list.iter().enumerate() {
                let value = self.read_lane(at.wrapping_add((i as i64 * size) as u64), ty, 0);
                self.uniforms[dst.index as usize] = value;
            }
            return;
        }
        if ty == MemType::B32
            && let Some(block) = self.places(a, list.len())
        {
            return self.load_placed(block, list);
        }
        if a.base.file == File::Uniform {
            let at = self.uniform_address(a);
            for (i, dst) in list.iter().enumerate() {
                self.load_from(at.wrapping_add((i as i64 * size) as u64), ty, *dst, a);
            }
            return;
        }
        self.lane_addresses(a);
        for (i, dst) in list.iter().enumerate() {
            self.load_scattered(i as u64 * size as u64, ty, *dst);
        }
    }

    /// Loads one element per lane; the lanes' addresses differ by an index.
    #[inline(always)]
    fn load_from(&mut self, at: u64, ty: MemType, dst: Reg, a: &Address) {
        let space = address::space(at);
        if ty == MemType::B64 || space == PointerSpace::Private {
            match space {
                PointerSpace::Private => {
                    return self.load_private(i64::from(address::offset(at)), ty, dst, a.index);
                }
                _ => {
                    self.lane_addresses(&Address {
                        offset: a.offset.wrapping_add(at.wrapping_sub(self.uniform_address(a)) as i64),
                        ..*a
                    });
                    return self.load_scattered(0, ty, dst);
                }
            }
        }
        let range = self.mask.range();
        let mut out = std::mem::take(&mut self.word_scratch);
        let lanes = &mut out[range.clone()];
        match space {
            PointerSpace::Global => match self.find(at) {
                Some((found, offset)) => self.load_words(lanes, &found.words, offset, ty, a.index, &range),
                None => lanes.fill(0),
            },
            PointerSpace::Constant => {
                let words = &self.shared.constants.words;
                self.load_words(lanes, words, i64::from(address::offset(at) as i32), ty, a.index, &range);
            }
            _ => self.load_words(
                lanes,
                &self.local,
                i64::from(address::offset(at) as i32),
                ty,
                a.index,
                &range,
            ),
        }
        self.word_scratch = out;
        self.put_word(dst);
    }

    #[inline(always)]
    fn load_words<C: Cell>(
        &self,
        lanes: &mut [u32],
        words: &[C],
        offset: i64,
        ty: MemType,
        index: Option<Index>,
        range: &std::ops::Range<usize>,
    ) {
        let Some(index) = index else {
            lanes.fill(read(words, offset, ty) as u32);
            return;
        };
        let whole = ty == MemType::B32 && offset & 3 == 0 && index.scale & 3 == 0;
        match (index.reg.file, index.extend) {
            (File::Long, _) => {
                let i = &self.longs[index.reg.index as usize][range.clone()];
                Self::load_indexed(
                    lanes,
                    words,
                    offset,
                    ty,
                    index.scale,
                    whole,
                    i,
                    #[inline(always)]
                    |i| i as i64,
                );
            }
            (_, Extend::Unsigned) => {
                let i = &self.words[index.reg.index as usize][range.clone()];
                Self::load_indexed(lanes, words, offset, ty, index.scale, whole, i, i64::from);
            }
            _ => {
                let i = &self.words[index.reg.index as usize][range.clone()];
                Self::load_indexed(
                    lanes,
                    words,
                    offset,
                    ty,
                    index.scale,
                    whole,
                    i,
                    #[inline(always)]
                    |i| i64::from(i as i32),
                );
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the parts of one address")]
    fn load_indexed<C: Cell, I: Copy>(
        lanes: &mut [u32],
        words: &[C],
        offset: i64,
        ty: MemType,
        scale: i64,
        whole: bool,
        index: &[I],
        to: impl Fn(I) -> i64 + Copy,
    ) {
        if whole {
            gather(lanes, words, offset >> 2, index, scale >> 2, to);
        } else {
            for (o, i) in lanes.iter_mut().zip(index) {
                *o = read(words, offset.wrapping_add(to(*i).wrapping_mul(scale)), ty) as u32;
            }
        }
    }

    /// Loads private memory. Word `w` of lane `l` is at `w * lanes + l`, so that a uniform address is one contiguous run.
    fn load_private(&mut self, offset: i64, ty: MemType, dst: Reg, index: Option<Index>) {
        let range = self.mask.range();
        if index.is_none() && ty == MemType::B32 && offset & 3 == 0 {
            let row = ((offset >> 2) as usize).saturating_mul(self.lanes).min(usize::MAX >> 1);
            let lanes = &mut self.word_scratch[range.clone()];
            match self.private.get(row + range.start..row + range.end) {
                Some(from) => lanes.copy_from_slice(from),
                None => lanes.fill(0),
            }
            return self.put_word(dst);
        }
        for lane in range {
            let more = index.map_or(0, |i| self.lane_index(i, lane));
            let at = address::object_pointer(PointerSpace::Private, 0, 0)
                .wrapping_add(offset.wrapping_add(more) as u64);
            let value = self.read_lane(at, ty, lane);
            if ty == MemType::B64 {
                self.long_scratch[lane] = value;
            } else {
                self.word_scratch[lane] = value as u32;
            }
        }
        if ty == MemType::B64 { self.put_long(dst) } else { self.put_word(dst) }
    }

    #[inline(always)]
    pub(super) fn lane_index(&self, index: Index, lane: usize) -> i64 {
        let wide = match (index.reg.file, index.extend) {
            (File::Uniform, _) => return self.index_value(index),
            (File::Long, _) => self.longs[index.reg.index as usize][lane] as i64,
            (File::Word, Extend::Unsigned) => i64::from(self.words[index.reg.index as usize][lane]),
            (File::Word, _) => i64::from(self.words[index.reg.index as usize][lane] as i32),
        };
        wide.wrapping_mul(index.scale)
    }

    /// Loads one element from each lane's address plus `more` bytes. Lanes mostly point into one object.
    fn load_scattered(&mut self, more: u64, ty: MemType, dst: Reg) {
        let Some(first) = self.mask.lanes().next() else { return };
        let range = self.mask.range();
        let at = self.addresses[first].wrapping_add(more);
        let (mut words, mut longs) =
            (std::mem::take(&mut self.word_scratch), std::mem::take(&mut self.long_scratch));
        let near: Option<(Result<&Allocation, &[u32]>, u64)> = match address::space(at) {
            PointerSpace::Global => self.find(at).map(|(a, offset)| (Ok(a), at.wrapping_sub(offset as u64))),
            PointerSpace::Local => {
                let start = at.wrapping_sub(u64::from(address::offset(at)));
                Some((Err(&self.local[..]), start))
            }
            _ => None,
        };
        for lane in range {
            let at = self.addresses[lane].wrapping_add(more);
            let value = match near {
                Some((Ok(a), start)) if at.wrapping_sub(start) < a.bytes => {
                    read(&a.words, at.wrapping_sub(start) as i64, ty)
                }
                Some((Err(local), start)) if at.wrapping_sub(start) < local.len() as u64 * 4 => {
                    read(local, at.wrapping_sub(start) as i64, ty)
                }
                _ if self.mask.has(lane) => self.read_lane(at, ty, lane),
                _ => 0,
            };
            if ty == MemType::B64 {
                longs[lane] = value;
            } else {
                words[lane] = value as u32;
            }
        }
        (self.word_scratch, self.long_scratch) = (words, longs);
        if ty == MemType::B64 { self.put_long(dst) } else { self.put_word(dst) }
    }

    /// Returns the bits of a register in a lane.
    #[inline(always)]
    pub(super) fn lane_value(&self, r: Reg, lane: usize) -> u64 {
        match r.file {
            File::Uniform => self.uniforms[r.index as usize],
            File::Word => u64::from(self.words[r.index as usize][lane]),
            File::Long => self.longs[r.index as usize][lane],
        }
    }
}
