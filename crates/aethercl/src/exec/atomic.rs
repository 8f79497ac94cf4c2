//! Atomic operations, one lane at a time, and copies by the whole group.

use super::bytecode::{Address, AtomicOp, File, MemType, Reg};
use super::group::Group;
use crate::memory::address::{self, PointerSpace};
use std::sync::atomic::Ordering::SeqCst;

/// Returns the new value of memory.
fn apply(op: AtomicOp, wide: bool, old: u64, x: u64, y: u64) -> u64 {
    let signed = |v: u64| if wide { v as i64 } else { i64::from(v as u32 as i32) };
    let float = |v: u64| if wide { f64::from_bits(v) } else { f64::from(f32::from_bits(v as u32)) };
    let bits = |v: f64| if wide { v.to_bits() } else { u64::from((v as f32).to_bits()) };
    let new = match op {
        AtomicOp::Add => old.wrapping_add(x),
        AtomicOp::Sub => old.wrapping_sub(x),
        AtomicOp::Exchange | AtomicOp::Store => x,
        AtomicOp::Min => signed(old).min(signed(x)) as u64,
        AtomicOp::Max => signed(old).max(signed(x)) as u64,
        AtomicOp::MinU => old.min(x),
        AtomicOp::MaxU => old.max(x),
        AtomicOp::And => old & x,
        AtomicOp::Or => old | x,
        AtomicOp::Xor => old ^ x,
        // The sum of two f32 in f64, rounded once to f32, is the f32 sum.
        AtomicOp::AddF => bits(float(old) + float(x)),
        AtomicOp::SubF => bits(float(old) - float(x)),
        AtomicOp::MinF => bits(float(old).min(float(x))),
        AtomicOp::MaxF => bits(float(old).max(float(x))),
        AtomicOp::Load => old,
        AtomicOp::CompareExchange => {
            if old == x {
                y
            } else {
                old
            }
        }
    };
    if wide { new } else { u64::from(new as u32) }
}

impl Group<'_> {
    pub(super) fn atomic(&mut self, op: AtomicOp, wide: bool, dst: Reg, operands: &[Reg], a: &Address) {
        if self.mask.is_empty() {
            return;
        }
        self.lane_addresses(a);
        let ty = if wide { MemType::B64 } else { MemType::B32 };
        for lane in self.mask.range() {
            if !self.mask.has(lane) {
                continue;
            }
            let at = self.addresses[lane];
            let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
            let (x, y) =
                (self.lane_value(operands[0], lane) & mask, self.lane_value(operands[1], lane) & mask);
            let old = match (address::space(at), wide) {
                (PointerSpace::Global, false) => self.atomic_global(op, at, x, y),
                _ => {
                    let old = self.read_lane(at, ty, lane);
                    self.write_lane(at, ty, apply(op, wide, old, x, y), lane);
                    old
                }
            };
            if dst.file == File::Long {
                self.long_scratch[lane] = old;
            } else {
                self.word_scratch[lane] = old as u32;
            }
        }
        if dst.file == File::Long { self.put_long(dst) } else { self.put_word(dst) }
    }

    /// Exchanges the word atomically, because other groups may run at the same time.
    fn atomic_global(&self, op: AtomicOp, at: u64, x: u64, y: u64) -> u64 {
        let Some((found, offset)) = self.find(at) else { return 0 };
        let Some(word) = usize::try_from(offset / 4).ok().and_then(|i| found.words.get(i)) else { return 0 };
        let mut old = word.load(SeqCst);
        loop {
            let new = apply(op, false, u64::from(old), x, y) as u32;
            match word.compare_exchange_weak(old, new, SeqCst, SeqCst) {
                Ok(_) => return u64::from(old),
                Err(now) => old = now,
            }
        }
    }

    /// Returns the requested number of elements of an `async_work_group_copy`.
    pub(super) fn copied(&self, operands: &[Reg]) -> u64 {
        self.mask.lanes().next().map_or(0, |lane| self.lane_value(operands[2], lane))
    }

    /// `async_work_group_copy`: the first lane performs the copy at once for all lanes.
    pub(super) fn async_copy(&mut self, bytes: u32, operands: &[Reg], strided: bool) {
        let Some(lane) = self.mask.lanes().next() else { return };
        let [to, from, count, stride] = [0, 1, 2, 3].map(|i| self.lane_value(operands[i], lane));
        let bytes = u64::from(bytes);
        let step = if strided { stride.wrapping_mul(bytes) } else { bytes };
        let global_target = address::space(to) == PointerSpace::Global;
        let (to_step, from_step) = if global_target { (step, bytes) } else { (bytes, step) };
        let ty = if bytes % 4 == 0 {
            MemType::B32
        } else if bytes % 2 == 0 {
            MemType::U16
        } else {
            MemType::U8
        };
        let parts = bytes / u64::from(ty.size());
        for i in 0..count {
            for part in 0..parts {
                let more = part * u64::from(ty.size());
                let source = from.wrapping_add(i.wrapping_mul(from_step)).wrapping_add(more);
                let target = to.wrapping_add(i.wrapping_mul(to_step)).wrapping_add(more);
                let value = self.read_lane(source, ty, lane);
                self.write_lane(target, ty, value, lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_read_their_bits_as_named() {
        assert_eq!(apply(AtomicOp::Min, false, u64::from(u32::MAX), 1, 0), u64::from(u32::MAX));
        assert_eq!(apply(AtomicOp::MinU, false, u64::from(u32::MAX), 1, 0), 1);
        assert_eq!(apply(AtomicOp::Sub, false, 0, 1, 0), u64::from(u32::MAX));
        let one = u64::from(1.0f32.to_bits());
        assert_eq!(apply(AtomicOp::AddF, false, one, one, 0), u64::from(2.0f32.to_bits()));
        assert_eq!(apply(AtomicOp::CompareExchange, true, 5, 5, 9), 9);
    }
}
