//! The state of one work-group, and the instructions that operate on registers.

use super::bytecode::{File, Inst, Reg, preset};
use super::lanes::{self, LaneOperand, Unary32};
use super::mask::Mask;
use super::observer::Observer;
use super::shared::Shared;
use crate::builtins::{math, real};
use pulp::Arch;
use std::ops::Range;

/// One work-group being executed.
pub struct Group<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) arch: Arch,
    /// Number of lanes of the registers.
    pub(super) lanes: usize,
    /// Work-items of this group.
    pub(super) items: usize,
    pub(super) size: [u64; 3],
    pub(super) id: [u64; 3],
    pub(super) words: Vec<Vec<u32>>,
    pub(super) longs: Vec<Vec<u64>>,
    pub(super) uniforms: Vec<u64>,
    pub(super) word_scratch: Vec<u32>,
    pub(super) long_scratch: Vec<u64>,
    /// Results of a load of four words.
    pub(super) scratch_4: [Vec<u32>; 4],
    pub(super) addresses: Vec<u64>,
    /// Word numbers that [`Group::places`] found.
    pub(super) places: Vec<u32>,
    pub(super) mask: Mask,
    pub(super) masks: Vec<Mask>,
    pub(super) private: Vec<u32>,
    pub(super) local: Vec<u32>,
    pub(super) observer: Option<Box<Observer>>,
    pub(super) printed: String,
}

/// Returns a lane register or a uniform value as a source of 32-bit operands.
#[inline(always)]
pub(super) fn words<'b>(
    words: &'b [Vec<u32>],
    uniforms: &[u64],
    r: Reg,
    range: &Range<usize>,
) -> LaneOperand<'b, u32> {
    match r.file {
        File::Uniform => LaneOperand::One(uniforms[r.index as usize] as u32),
        _ => LaneOperand::Lanes(&words[r.index as usize][range.clone()]),
    }
}

#[inline(always)]
pub(super) fn longs<'b>(
    longs: &'b [Vec<u64>],
    uniforms: &[u64],
    r: Reg,
    range: &Range<usize>,
) -> LaneOperand<'b, u64> {
    match r.file {
        File::Uniform => LaneOperand::One(uniforms[r.index as usize]),
        _ => LaneOperand::Lanes(&longs[r.index as usize][range.clone()]),
    }
}

impl<'a> Group<'a> {
    /// Allocates state for groups of up to `lanes` work-items.
    pub fn new(shared: &'a Shared<'a>, lanes: usize, observer: Option<Box<Observer>>) -> Group<'a> {
        let code = shared.code;
        Group {
            shared,
            arch: Arch::new(),
            lanes,
            items: 0,
            size: [0; 3],
            id: [0; 3],
            words: (0..code.words).map(|_| vec![0; lanes]).collect(),
            longs: (0..code.longs).map(|_| vec![0; lanes]).collect(),
            uniforms: shared.uniforms.clone(),
            word_scratch: vec![0; lanes],
            long_scratch: vec![0; lanes],
            scratch_4: std::array::from_fn(|_| vec![0; lanes]),
            addresses: vec![0; lanes],
            places: vec![0; lanes],
            mask: Mask::new(lanes),
            masks: (0..code.masks).map(|_| Mask::new(lanes)).collect(),
            private: vec![0; code.private_bytes.div_ceil(4) as usize * lanes],
            local: vec![0; shared.local_bytes.div_ceil(4) as usize],
            observer,
            printed: String::new(),
        }
    }

    /// Prepares the group with this number.
    pub fn start(&mut self, id: [u64; 3]) {
        let [offset, global, local] = self.shared.range;
        let mut size = [0; 3];
        self.uniforms.copy_from_slice(&self.shared.uniforms);
        for d in 0..3 {
            size[d] = local[d].min(global[d] - id[d] * local[d]);
            self.uniforms[preset::GROUP as usize + d] = id[d];
            self.uniforms[preset::LOCAL_SIZE as usize + d] = size[d];
            self.uniforms[preset::BASE as usize + d] = offset[d] + id[d] * local[d];
        }
        self.id = id;
        if size != self.size {
            self.size = size;
            self.items = (size[0] * size[1] * size[2]) as usize;
            self.number_items();
        }
        self.uniforms[preset::ITEMS as usize] = self.items as u64;
        self.mask.fill(self.items);
        self.masks.iter_mut().for_each(Mask::clear);
        for (offset, bytes) in &self.shared.private_arguments {
            for (i, byte) in bytes.iter().enumerate() {
                let at = *offset as usize + i;
                let shift = at % 4 * 8;
                let row = at / 4 * self.lanes;
                for word in &mut self.private[row..row + self.lanes] {
                    *word = (*word & !(0xff << shift)) | (u32::from(*byte) << shift);
                }
            }
        }
    }

    fn number_items(&mut self) {
        let [x, y, _] = self.size;
        for lane in 0..self.items {
            let l = lane as u64;
            let ids = [l % x, l / x % y, l / (x * y), l];
            for (d, id) in ids.into_iter().enumerate() {
                self.longs[preset::LOCAL_ID as usize + d][lane] = id;
                self.words[preset::LOCAL_ID as usize + d][lane] = id as u32;
            }
        }
    }

    /// Returns the output of the group's `printf`.
    pub fn take_printed(&mut self) -> String {
        std::mem::take(&mut self.printed)
    }

    /// Returns the observer after the groups are done.
    pub fn take_observer(&mut self) -> Option<Box<Observer>> {
        self.observer.take()
    }

    /// Puts back the observer of [`Group::take_observer`].
    pub fn put_observer(&mut self, observer: Option<Box<Observer>>) {
        self.observer = observer;
    }

    /// Copies the result in the word scratch to the register's running lanes.
    #[inline(always)]
    pub(super) fn put_word(&mut self, dst: Reg) {
        let to = &mut self.words[dst.index as usize];
        if !dst.variable || self.mask.count() == self.items {
            std::mem::swap(to, &mut self.word_scratch);
            return;
        }
        let range = self.mask.range();
        let from = &self.word_scratch[range.clone()];
        if self.mask.is_dense() {
            to[range].copy_from_slice(from);
        } else {
            let bits = &self.mask.bits()[range.clone()];
            to[range].iter_mut().zip(from).zip(bits).for_each(|((t, f), m)| *t = (*t & !m) | (f & m));
        }
    }

    #[inline(always)]
    pub(super) fn put_long(&mut self, dst: Reg) {
        let to = &mut self.longs[dst.index as usize];
        if !dst.variable || self.mask.count() == self.items {
            std::mem::swap(to, &mut self.long_scratch);
            return;
        }
        let range = self.mask.range();
        let from = &self.long_scratch[range.clone()];
        if self.mask.is_dense() {
            to[range].copy_from_slice(from);
        } else {
            let bits = &self.mask.bits()[range.clone()];
            to[range]
                .iter_mut()
                .zip(from)
                .zip(bits)
                .for_each(|((t, f), m)| *t = if *m != 0 { *f } else { *t });
        }
    }

    /// Runs an instruction that computes a 32-bit result in lanes.
    #[inline(always)]
    fn compute_word(&mut self, dst: Reg, run: impl Fn(Arch, &mut [u32], &Group<'a>, &Range<usize>)) {
        let range = self.mask.range();
        let mut scratch = std::mem::take(&mut self.word_scratch);
        run(self.arch, &mut scratch[range.clone()], self, &range);
        self.word_scratch = scratch;
        self.put_word(dst);
    }

    /// Runs an instruction that computes a 64-bit result in lanes.
    #[inline(always)]
    fn compute_long(&mut self, dst: Reg, run: impl Fn(Arch, &mut [u64], &Group<'a>, &Range<usize>)) {
        let range = self.mask.range();
        let mut scratch = std::mem::take(&mut self.long_scratch);
        run(self.arch, &mut scratch[range.clone()], self, &range);
        self.long_scratch = scratch;
        self.put_long(dst);
    }

    /// Runs an instruction with uniform operands once.
    #[inline(always)]
    fn compute_uniform(&mut self, inst: &Inst) -> bool {
        let wide = |r: Reg| self.uniforms[r.index as usize];
        let word = |r: Reg| self.uniforms[r.index as usize] as u32;
        let mut out = [0];
        let (dst, value) = match *inst {
            Inst::Binary32 { op, dst, a, b } => (dst, u64::from(lanes::one_binary32(op, word(a), word(b)))),
            Inst::Binary64 { op, dst, a, b } => (dst, lanes::one_binary64(op, wide(a), wide(b))),
            Inst::Compare64 { op, dst, a, b } => (dst, u64::from(lanes::one_compare64(op, wide(a), wide(b)))),
            Inst::Ternary32 { op, dst, s: [a, b, c] } => {
                (dst, u64::from(lanes::one_ternary32(op, word(a), word(b), word(c))))
            }
            Inst::Ternary64 { op, dst, s: [a, b, c] } => {
                (dst, lanes::one_ternary64(op, wide(a), wide(b), wide(c)))
            }
            Inst::Unary32 { op, dst, a } => {
                out[0] = lanes::one_unary32(op, word(a));
                if is_angle(op) {
                    repair_angles(op, &mut out, LaneOperand::One(word(a)));
                }
                (dst, u64::from(out[0]))
            }
            Inst::Unary64 { op, dst, a } => (dst, lanes::one_unary64(op, wide(a))),
            Inst::Widen { op, dst, a } => (dst, lanes::one_widen(op, word(a))),
            Inst::Narrow { op, dst, a } => (dst, u64::from(lanes::one_narrow(op, wide(a)))),
            Inst::Math32 { op, dst, a } => {
                lanes::math32(op, &mut out, LaneOperand::One(word(a)));
                (dst, u64::from(out[0]))
            }
            Inst::Math64 { op, dst, a } => (dst, math::unary(op, f64::from_bits(wide(a))).to_bits()),
            _ => return false,
        };
        self.uniforms[dst.index as usize] = value;
        true
    }

    #[inline(always)]
    pub(super) fn word_source(&self, r: Reg, range: &Range<usize>) -> LaneOperand<'_, u32> {
        words(&self.words, &self.uniforms, r, range)
    }

    #[inline(always)]
    pub(super) fn long_source(&self, r: Reg, range: &Range<usize>) -> LaneOperand<'_, u64> {
        longs(&self.longs, &self.uniforms, r, range)
    }

    /// Runs an instruction on registers; returns false for any other instruction.
    #[inline(always)]
    pub(super) fn arithmetic(&mut self, inst: &Inst) -> bool {
        if inst.destination().is_some_and(|d| d.file == File::Uniform) && self.compute_uniform(inst) {
            return true;
        }
        match *inst {
            Inst::Binary32 { op, dst, a, b } => self.compute_word(dst, |arch, out, g, r| {
                lanes::binary32(arch, op, out, g.word_source(a, r), g.word_source(b, r));
            }),
            Inst::Ternary32 { op, dst, s } => self.compute_word(dst, |arch, out, g, r| {
                let [a, b, c] = s;
                lanes::ternary32(
                    arch,
                    op,
                    out,
                    g.word_source(a, r),
                    g.word_source(b, r),
                    g.word_source(c, r),
                );
            }),
            Inst::Unary32 { op, dst, a } => self.compute_word(dst, |arch, out, g, r| {
                lanes::unary32(arch, op, out, g.word_source(a, r));
                if is_angle(op) {
                    repair_angles(op, out, g.word_source(a, r));
                }
            }),
            Inst::Binary64 { op, dst, a, b } => self.compute_long(dst, |arch, out, g, r| {
                lanes::binary64(arch, op, out, g.long_source(a, r), g.long_source(b, r));
            }),
            Inst::Ternary64 { op, dst, s } => self.compute_long(dst, |arch, out, g, r| {
                let [a, b, c] = s;
                lanes::ternary64(
                    arch,
                    op,
                    out,
                    g.long_source(a, r),
                    g.long_source(b, r),
                    g.long_source(c, r),
                );
            }),
            Inst::Unary64 { op, dst, a } => self.compute_long(dst, |arch, out, g, r| {
                lanes::unary64(arch, op, out, g.long_source(a, r));
            }),
            Inst::Compare64 { op, dst, a, b } => self.compute_word(dst, |arch, out, g, r| {
                lanes::compare64(arch, op, out, g.long_source(a, r), g.long_source(b, r));
            }),
            Inst::Widen { op, dst, a } => self.compute_long(dst, |arch, out, g, r| {
                lanes::widen(arch, op, out, g.word_source(a, r));
            }),
            Inst::Narrow { op, dst, a } => self.compute_word(dst, |arch, out, g, r| {
                lanes::narrow(arch, op, out, g.long_source(a, r));
            }),
            Inst::Math32 { op, dst, a } => self.compute_word(dst, |_, out, g, r| {
                lanes::math32(op, out, g.word_source(a, r));
            }),
            Inst::Math64 { op, dst, a } => self.compute_long(dst, |_, out, g, r| {
                lanes::math64(op, out, g.long_source(a, r));
            }),
            _ => return false,
        }
        true
    }
}

fn is_angle(op: Unary32) -> bool {
    matches!(op, Unary32::SinF | Unary32::CosF | Unary32::TanF)
}

/// Recomputes angles that are too large for the SIMD forms.
fn repair_angles(op: Unary32, out: &mut [u32], a: LaneOperand<'_, u32>) {
    let exact = match op {
        Unary32::SinF => math::Math1::Sin,
        Unary32::CosF => math::Math1::Cos,
        _ => math::Math1::Tan,
    };
    let large = |x: u32| f32::from_bits(x).is_nan() || f32::from_bits(x).abs() > real::TRIG_LIMIT;
    for (i, o) in out.iter_mut().enumerate() {
        let x = match a {
            LaneOperand::Lanes(a) => a[i],
            LaneOperand::One(x) => x,
        };
        if large(x) {
            *o = math::unary_f32(exact, f32::from_bits(x)).to_bits();
        }
    }
}
