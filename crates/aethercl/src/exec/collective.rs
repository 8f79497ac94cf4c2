//! Functions that access other lanes of the group or the sub-group.

use super::bytecode::{Collective, File, NumberKind, Reg};
use super::group::Group;
use crate::hir::{Reduction, Scan};

/// Combination of values.
struct Combine {
    how: Reduction,
    number: NumberKind,
    wide: bool,
}

impl Combine {
    fn signed(&self, v: u64) -> i64 {
        if self.wide { v as i64 } else { i64::from(v as u32 as i32) }
    }

    fn neutral(&self) -> u64 {
        let float = |x: f64| if self.wide { x.to_bits() } else { u64::from((x as f32).to_bits()) };
        let ones = if self.wide { u64::MAX } else { u64::from(u32::MAX) };
        match (self.how, self.number) {
            (Reduction::Add, NumberKind::Float) => 0,
            (Reduction::Mul, NumberKind::Float) => float(1.0),
            (Reduction::Min, NumberKind::Float) => float(f64::INFINITY),
            (Reduction::Max, NumberKind::Float) => float(f64::NEG_INFINITY),
            (Reduction::Mul, _) => 1,
            (Reduction::Min, NumberKind::Signed) => ones >> 1,
            (Reduction::Max, NumberKind::Signed) => (ones >> 1) + 1,
            (Reduction::Min, _) | (Reduction::And, _) => ones,
            _ => 0,
        }
    }

    fn combine(&self, a: u64, b: u64) -> u64 {
        if self.number == NumberKind::Float {
            return self.combine_float(a, b);
        }
        let v = match (self.how, self.number) {
            (Reduction::Add, _) => a.wrapping_add(b),
            (Reduction::Mul, _) => a.wrapping_mul(b),
            (Reduction::Min, NumberKind::Signed) => self.signed(a).min(self.signed(b)) as u64,
            (Reduction::Max, NumberKind::Signed) => self.signed(a).max(self.signed(b)) as u64,
            (Reduction::Min, _) => a.min(b),
            (Reduction::Max, _) => a.max(b),
            (Reduction::And, _) => a & b,
            (Reduction::Or, _) => a | b,
            (Reduction::Xor, _) => a ^ b,
        };
        if self.wide { v } else { u64::from(v as u32) }
    }

    fn combine_float(&self, a: u64, b: u64) -> u64 {
        let float = |v: u64| if self.wide { f64::from_bits(v) } else { f64::from(f32::from_bits(v as u32)) };
        let (x, y) = (float(a), float(b));
        let v = match self.how {
            Reduction::Mul => x * y,
            Reduction::Min => x.min(y),
            Reduction::Max => x.max(y),
            _ => x + y,
        };
        if self.wide { v.to_bits() } else { u64::from((v as f32).to_bits()) }
    }
}

impl Group<'_> {
    pub(super) fn collective(&mut self, op: Collective, wide: bool, dst: Reg, operands: &[Reg]) {
        if self.mask.is_empty() {
            return;
        }
        let whole = self.uniforms[operands[2].index as usize] != 0;
        let size = if whole { self.items } else { self.shared.sub_group as usize };
        let mut first = 0;
        while first < self.items {
            let end = (first + size).min(self.items);
            self.collective_part(op, wide, operands, first, end);
            first = end;
        }
        if dst.file == File::Long { self.put_long(dst) } else { self.put_word(dst) }
    }

    fn collective_part(&mut self, op: Collective, wide: bool, operands: &[Reg], first: usize, end: usize) {
        let lanes: Vec<usize> = (first..end).filter(|l| self.mask.has(*l)).collect();
        let value = |g: &Self, lane: usize| {
            let v = g.lane_value(operands[0], lane);
            if wide { v } else { u64::from(v as u32) }
        };
        let values: Vec<u64> = lanes.iter().map(|l| value(self, *l)).collect();
        if let Collective::Reduce(how, scan, number) = op {
            let c = Combine { how, number, wide };
            let mut sum = c.neutral();
            for (lane, v) in lanes.iter().zip(&values) {
                let before = sum;
                sum = c.combine(sum, *v);
                self.put_lane(*lane, wide, if scan == Scan::Exclusive { before } else { sum });
            }
            if scan == Scan::Reduce {
                lanes.iter().for_each(|l| self.put_lane(*l, wide, sum));
            }
            return;
        }
        let (all, any) = (values.iter().all(|v| *v != 0), values.iter().any(|v| *v != 0));
        for lane in &lanes {
            let index = self.lane_value(operands[1], *lane) as usize & 0xffff_ffff;
            let own = lane - first;
            let from = match op {
                Collective::Broadcast | Collective::Shuffle => index,
                Collective::ShuffleXor => own ^ index,
                Collective::ShuffleUp => own.wrapping_sub(index),
                Collective::ShuffleDown => own + index,
                _ => lanes[0] - first,
            };
            let other = if from < end - first { value(self, first + from) } else { 0 };
            let result = match op {
                Collective::All => u64::from(all),
                Collective::Any => u64::from(any),
                Collective::Elect => u64::from(*lane == lanes[0]),
                Collective::Ballot(word) => self.ballot(&lanes, &values, first, word),
                _ => other,
            };
            self.put_lane(*lane, wide, result);
        }
    }

    fn ballot(&self, lanes: &[usize], values: &[u64], first: usize, word: u8) -> u64 {
        let base = first + usize::from(word) * 32;
        let set = lanes.iter().zip(values).filter(|(l, v)| **v != 0 && (base..base + 32).contains(*l));
        set.fold(0, |bits, (l, _)| bits | 1 << (l - base))
    }

    fn put_lane(&mut self, lane: usize, wide: bool, value: u64) {
        if wide {
            self.long_scratch[lane] = value;
        } else {
            self.word_scratch[lane] = value as u32;
        }
    }
}
