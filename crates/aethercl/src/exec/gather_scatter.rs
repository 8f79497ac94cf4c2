//! Fast path for loads and stores of whole words whose lanes all point into one block of memory. The word numbers of all lanes are computed and
//! checked first, in loops that the compiler turns into SIMD. They are then used for each element of the instruction.
//!
//! Every other access goes through [`Group::read_lane`] and [`Group::write_lane`] for each lane, with the same result.

use super::access::Cell;
use super::bytecode::{Address, Extend, File, Index, Reg};
use super::group::Group;
use super::lanes::LaneOperand;
use crate::memory::Allocation;
use crate::memory::address::{self, PointerSpace};
use pulp::NullaryFnOnce;
use std::mem::take;
use std::sync::atomic::Ordering::Relaxed;

/// The memory block that all lanes point into.
#[derive(Clone, Copy)]
pub(super) enum Block<'a> {
    Global(&'a Allocation),
    Constant(&'a [u32]),
    Local,
}

/// Valid range of word numbers, and their computation from an index: `start + index * stride`.
#[derive(Clone, Copy)]
struct Line {
    start: i64,
    stride: i64,
    /// The largest number for which all elements of a lane are inside the block.
    last: i64,
}

impl Line {
    /// Returns true if all numbers between two indices are valid.
    fn holds(self, low: i64, high: i64) -> bool {
        let at = |i: i64| i.checked_mul(self.stride).and_then(|i| i.checked_add(self.start));
        let inside = |i: i64| at(i).is_some_and(|at| (0..=self.last).contains(&at));
        inside(low) && inside(high)
    }
}

// The loops below use indices, like those in `spread`: a function that is not inlined would be compiled without the vector instructions that
// `Arch::dispatch` enables.

/// Computes word numbers from 32-bit indices; returns false if one is out of bounds. An inactive lane uses the index of the first active lane.
struct FromWords<'o> {
    out: &'o mut [u32],
    index: &'o [u32],
    bits: Option<&'o [u32]>,
    line: Line,
    signed: bool,
}

impl NullaryFnOnce for FromWords<'_> {
    type Output = bool;
    #[inline(always)]
    fn call(self) -> bool {
        let FromWords { out, index, bits, line, signed } = self;
        let n = out.len();
        let index = &index[..n];
        // Flipping the highest bit orders signed numbers like unsigned ones.
        let flip = if signed { 1 << 31 } else { 0 };
        // Valid numbers fit in 32 bits, so 32-bit arithmetic computes them.
        let (start, stride) = (line.start as u32, line.stride as u32);
        let (mut low, mut high) = (u32::MAX, 0);
        if let Some(bits) = bits {
            let (bits, first) = (&bits[..n], index[0]);
            for i in 0..n {
                let x = (index[i] & bits[i]) | (first & !bits[i]);
                low = low.min(x ^ flip);
                high = high.max(x ^ flip);
                out[i] = x.wrapping_mul(stride).wrapping_add(start);
            }
        } else {
            for i in 0..n {
                let x = index[i];
                low = low.min(x ^ flip);
                high = high.max(x ^ flip);
                out[i] = x.wrapping_mul(stride).wrapping_add(start);
            }
        }
        let wide = |x: u32| if signed { i64::from((x ^ flip) as i32) } else { i64::from(x) };
        line.holds(wide(low), wide(high))
    }
}

/// The same for 64-bit indices.
struct FromLongs<'o> {
    out: &'o mut [u32],
    index: &'o [u64],
    bits: Option<&'o [u32]>,
    line: Line,
}

impl NullaryFnOnce for FromLongs<'_> {
    type Output = bool;
    #[inline(always)]
    fn call(self) -> bool {
        let FromLongs { out, index, bits, line } = self;
        let n = out.len();
        let index = &index[..n];
        let first = index[0];
        let (start, stride) = (line.start as u32, line.stride as u32);
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        for i in 0..n {
            let runs = bits.is_none_or(|bits| bits[i] != 0);
            let x = if runs { index[i] } else { first };
            low = low.min(x as i64);
            high = high.max(x as i64);
            out[i] = (x as u32).wrapping_mul(stride).wrapping_add(start);
        }
        line.holds(low, high)
    }
}

/// Computes word numbers from addresses in a block that starts at `start`; returns false for an address after `last` or between words.
struct FromAddresses<'o> {
    out: &'o mut [u32],
    lanes: &'o [u64],
    bits: Option<&'o [u32]>,
    start: u64,
    last: i64,
}

impl NullaryFnOnce for FromAddresses<'_> {
    type Output = bool;
    #[inline(always)]
    fn call(self) -> bool {
        let FromAddresses { out, lanes, bits, start, last } = self;
        let n = out.len();
        let lanes = &lanes[..n];
        let first = lanes[0];
        let (mut all, mut highest) = (0, 0);
        for i in 0..n {
            let runs = bits.is_none_or(|bits| bits[i] != 0);
            let bytes = if runs { lanes[i] } else { first }.wrapping_sub(start);
            all |= bytes;
            let word = (bytes >> 2) as u32;
            highest = highest.max(word);
            out[i] = word;
        }
        all >> 34 == 0 && all & 3 == 0 && i64::from(highest) <= last
    }
}

/// Checks whether numbers increase by one.
struct IsRun<'o>(&'o [u32]);

impl NullaryFnOnce for IsRun<'_> {
    type Output = bool;
    #[inline(always)]
    fn call(self) -> bool {
        let numbers = self.0;
        let next = &numbers[1..];
        let mut apart = 0;
        for i in 0..next.len() {
            apart |= next[i].wrapping_sub(numbers[i]) ^ 1;
        }
        apart == 0
    }
}

/// Loads one word per lane, `more` words after the lane's valid number. If the numbers are a run, the words are contiguous.
#[inline(always)]
fn gather<C: Cell>(out: &mut [u32], words: &[C], numbers: &[u32], more: usize, run: bool) {
    let words = &words[more..];
    if run {
        let words = &words[numbers[0] as usize..][..out.len()];
        out.iter_mut().zip(words).for_each(|(o, w)| *o = w.get());
    } else {
        out.iter_mut().zip(numbers).for_each(|(o, n)| *o = words[*n as usize].get());
    }
}

/// Loads four consecutive words per lane, the first at the lane's number; all are valid.
#[inline(always)]
fn gather_4<C: Cell>(out: &mut [Vec<u32>; 4], words: &[C], numbers: &[u32], start: usize) {
    let [a, b, c, d] = out.each_mut().map(|o| &mut o[start..][..numbers.len()]);
    for ((((n, a), b), c), d) in numbers.iter().zip(a).zip(b).zip(c).zip(d) {
        let words = &words[*n as usize..][..4];
        (*a, *b, *c, *d) = (words[0].get(), words[1].get(), words[2].get(), words[3].get());
    }
}

/// Stores each lane's value to the word with its valid number, in lane order.
#[inline(always)]
fn scatter(
    mut put: impl FnMut(usize, u32),
    values: LaneOperand<'_, u32>,
    numbers: &[u32],
    bits: Option<&[u32]>,
) {
    match (values, bits) {
        (LaneOperand::Lanes(values), None) => {
            numbers.iter().zip(values).for_each(|(n, v)| put(*n as usize, *v))
        }
        (LaneOperand::One(v), None) => numbers.iter().for_each(|n| put(*n as usize, v)),
        (values, Some(bits)) => {
            for (lane, n) in numbers.iter().enumerate().filter(|(lane, _)| bits[*lane] != 0) {
                let v = match values {
                    LaneOperand::Lanes(values) => values[lane],
                    LaneOperand::One(v) => v,
                };
                put(*n as usize, v);
            }
        }
    }
}

impl<'a> Group<'a> {
    /// Returns the block of an address, its number of words, and the byte offset.
    #[inline(always)]
    fn block(&self, at: u64) -> Option<(Block<'a>, usize, i64)> {
        let own = || i64::from(address::offset(at) as i32);
        match address::space(at) {
            PointerSpace::Global => {
                self.find(at).map(|(found, offset)| (Block::Global(found), found.words.len(), offset))
            }
            PointerSpace::Constant => {
                let words: &'a [u32] = &self.shared.constants.words;
                Some((Block::Constant(words), words.len(), own()))
            }
            PointerSpace::Local => Some((Block::Local, self.local.len(), own())),
            PointerSpace::Private => None,
        }
    }

    /// Returns the block and computes the word number of each lane's first element, if all `count` elements of all lanes are words of one block.
    #[inline(always)]
    pub(super) fn places(&mut self, a: &Address, count: usize) -> Option<Block<'a>> {
        if a.base.file == File::Uniform {
            let index = a.index.filter(|i| i.reg.file != File::Uniform && i.scale & 3 == 0)?;
            let (block, words, offset) = self.block(self.uniform_address(a))?;
            let inside = offset & 3 == 0
                && u32::try_from(words).is_ok()
                && self.number(index, offset, words as i64 - count as i64);
            return inside.then_some(block);
        }
        self.lane_addresses(a);
        let range = self.mask.range();
        let first = self.addresses[range.start];
        let (block, words, offset) = self.block(first)?;
        let bits = (!self.mask.is_dense()).then(|| &self.mask.bits()[range.clone()]);
        let start = first.wrapping_sub(offset as u64);
        let (out, lanes) = (&mut self.places[range.clone()], &self.addresses[range]);
        let last = words as i64 - count as i64;
        let inside = u32::try_from(words).is_ok()
            && self.arch.dispatch(FromAddresses { out, lanes, bits, start, last });
        inside.then_some(block)
    }

    /// Computes word numbers from an index into a block, starting at byte `offset`.
    fn number(&mut self, index: Index, offset: i64, last: i64) -> bool {
        let range = self.mask.range();
        let line = Line { start: offset >> 2, stride: index.scale >> 2, last };
        let bits = (!self.mask.is_dense()).then(|| &self.mask.bits()[range.clone()]);
        let out = &mut self.places[range.clone()];
        let register = index.reg.index as usize;
        match (index.reg.file, index.extend) {
            (File::Long, _) => {
                let index = &self.longs[register][range];
                self.arch.dispatch(FromLongs { out, index, bits, line })
            }
            (_, extend) => {
                let (index, signed) = (&self.words[register][range], extend != Extend::Unsigned);
                self.arch.dispatch(FromWords { out, index, bits, line, signed })
            }
        }
    }

    /// Loads the elements at the word numbers into registers.
    pub(super) fn load_placed(&mut self, block: Block<'a>, list: &[Reg]) {
        let range = self.mask.range();
        let places = take(&mut self.places);
        let numbers = &places[range.clone()];
        if list.len() == 4 {
            match block {
                Block::Global(found) => gather_4(&mut self.scratch_4, &found.words, numbers, range.start),
                Block::Constant(words) => gather_4(&mut self.scratch_4, words, numbers, range.start),
                Block::Local => gather_4(&mut self.scratch_4, &self.local, numbers, range.start),
            }
            self.places = places;
            for (element, dst) in list.iter().enumerate() {
                std::mem::swap(&mut self.word_scratch, &mut self.scratch_4[element]);
                self.put_word(*dst);
            }
            return;
        }
        let run = self.arch.dispatch(IsRun(numbers));
        for (more, dst) in list.iter().enumerate() {
            let out = &mut self.word_scratch[range.clone()];
            match block {
                Block::Global(found) => gather(out, &found.words, numbers, more, run),
                Block::Constant(words) => gather(out, words, numbers, more, run),
                Block::Local => gather(out, &self.local, numbers, more, run),
            }
            self.put_word(*dst);
        }
        self.places = places;
    }

    /// Stores registers to the elements at the word numbers.
    pub(super) fn store_placed(&mut self, block: Block<'a>, list: &[Reg]) {
        let range = self.mask.range();
        let numbers = &self.places[range.clone()];
        let bits = (!self.mask.is_dense()).then(|| &self.mask.bits()[range.clone()]);
        for (more, src) in list.iter().enumerate() {
            let values = super::group::words(&self.words, &self.uniforms, *src, &range);
            match block {
                Block::Global(found) => {
                    let words = &found.words[more..];
                    scatter(|n, v| words[n].store(v, Relaxed), values, numbers, bits);
                }
                Block::Constant(_) => {}
                Block::Local => {
                    let words = &mut self.local[more..];
                    scatter(|n, v| words[n] = v, values, numbers, bits);
                }
            }
        }
    }
}
