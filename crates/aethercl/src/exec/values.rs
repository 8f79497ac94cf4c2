//! Dynamic value numbering: finds computations that a compiler would eliminate as common subexpressions or loop invariants.
//!
//! Each register has a value number, which represents an instruction and the value numbers of its operands. An instruction that runs again with the
//! same operand numbers yields the same value, for example a loop-invariant expression, and is not counted. Copies keep the number of their source.
//! Results of instructions with masked lanes, of loads and of cross-lane operations get new numbers.

use super::bytecode::{Code, File, Inst, Reg};
use super::chain::reads;
use super::footprint::LineHasher;
use super::lanes::{Unary32, Unary64};
use std::collections::HashSet;
use std::hash::BuildHasherDefault;

/// Number of newer values after which an unused value counts as forgotten. No compiler keeps that many, and the set of all values of a long-running
/// group would take gigabytes.
const MAX_UNUSED_AGE: usize = 1 << 14;

type Numbers = HashSet<u64, BuildHasherDefault<LineHasher>>;

/// Value numbers of the registers.
#[derive(Default)]
pub struct Values {
    words: Vec<u64>,
    longs: Vec<u64>,
    uniforms: Vec<u64>,
    /// Values that the current work-group recently computed or used.
    seen: Numbers,
    /// Earlier values. A value that is used again moves to `seen`.
    earlier: Numbers,
    /// Next number for a result that is not comparable to any other.
    fresh: u64,
}

/// Returns a 64-bit hash.
fn mixed(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ b
}

impl Values {
    /// Starts the next group.
    pub fn start_group(&mut self, code: &Code) {
        self.seen.clear();
        self.earlier.clear();
        for (file, n) in [(File::Word, code.words), (File::Long, code.longs), (File::Uniform, code.uniforms)]
        {
            let list = self.file(file);
            list.clear();
            list.extend((0..u64::from(n)).map(|i| mixed(file as u64 + 1, i)));
        }
        for (register, bits) in &code.constants {
            self.uniforms[usize::from(*register)] = mixed(7, *bits);
        }
    }

    fn file(&mut self, file: File) -> &mut Vec<u64> {
        match file {
            File::Uniform => &mut self.uniforms,
            File::Word => &mut self.words,
            File::Long => &mut self.longs,
        }
    }

    fn set(&mut self, r: Reg, number: u64) {
        if let Some(place) = self.file(r.file).get_mut(usize::from(r.index)) {
            *place = number;
        }
    }

    fn new_number(&mut self) -> u64 {
        self.fresh += 1;
        mixed(3, self.fresh)
    }

    /// Returns true if the result of an instruction is already known. Call it for every instruction in order; `all`: no lane is masked.
    pub fn is_known(&mut self, pc: usize, inst: &Inst, code: &Code, all: bool) -> bool {
        if matches!(inst, Inst::Load { .. } | Inst::ReadImage { .. }) {
            for to in inst.results(code) {
                let number = self.new_number();
                self.set(*to, number);
            }
            return false;
        }
        let Some(to) = inst.destination() else { return false };
        let copy = match *inst {
            Inst::Unary32 { op: Unary32::Copy, a, .. } | Inst::Unary64 { op: Unary64::Copy, a, .. } => {
                Some(a)
            }
            _ => None,
        };
        let computed = !matches!(inst, Inst::Atomic { .. } | Inst::Collective { .. });
        if !computed || !(all || to.file == File::Uniform) {
            let number = self.new_number();
            self.set(to, number);
            return false;
        }
        if let Some(from) = copy {
            let number = self.file(from.file).get(usize::from(from.index)).copied().unwrap_or(0);
            self.set(to, number);
            return true;
        }
        let mut number = mixed(5, pc as u64);
        reads(inst, code, |r| {
            let read = self.file(r.file).get(usize::from(r.index)).copied().unwrap_or(0);
            number = mixed(number, read);
        });
        self.set(to, number);
        self.is_kept(number)
    }

    /// Returns true if a value was recently computed or used, and marks it as used.
    fn is_kept(&mut self, number: u64) -> bool {
        if !self.seen.insert(number) {
            return true;
        }
        let known = self.earlier.contains(&number);
        if self.seen.len() >= MAX_UNUSED_AGE {
            std::mem::swap(&mut self.seen, &mut self.earlier);
            self.seen.clear();
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::lanes::Binary32;

    fn word(index: u16) -> Reg {
        Reg { file: File::Word, index, variable: false }
    }

    #[test]
    fn what_does_not_change_is_known_the_second_time() {
        let code = Code { words: 8, ..Code::default() };
        let mut values = Values::default();
        values.start_group(&code);
        let sum = |dst, a, b| Inst::Binary32 { op: Binary32::Add, dst: word(dst), a: word(a), b: word(b) };
        let copy = |dst, a| Inst::Unary32 { op: Unary32::Copy, dst: word(dst), a: word(a) };
        // r2 = r0 + r1 does not change; r3 += r2 does.
        assert!(!values.is_known(0, &sum(2, 0, 1), &code, true));
        assert!(!values.is_known(1, &sum(3, 3, 2), &code, true));
        assert!(values.is_known(0, &sum(2, 0, 1), &code, true));
        assert!(!values.is_known(1, &sum(3, 3, 2), &code, true));
        // A copy is the same value; a copy in only some lanes is a new value.
        assert!(values.is_known(2, &copy(4, 2), &code, true));
        assert!(!values.is_known(3, &sum(5, 4, 1), &code, true));
        assert!(values.is_known(3, &sum(5, 2, 1), &code, true));
        assert!(!values.is_known(0, &sum(2, 0, 1), &code, false));
        assert!(!values.is_known(3, &sum(5, 2, 1), &code, true));
        // A used value is not forgotten while others are computed, and not all computed values are kept.
        for i in 0..3 * MAX_UNUSED_AGE {
            assert!(!values.is_known(4, &sum(6, 6, 1), &code, true), "{i}");
            if i % (MAX_UNUSED_AGE / 2) == 0 {
                assert!(values.is_known(3, &sum(5, 2, 1), &code, true), "{i}");
            }
        }
        assert!(values.seen.len() <= MAX_UNUSED_AGE && values.earlier.len() <= MAX_UNUSED_AGE);
        values.set(word(2), 1);
        assert!(!values.is_known(7, &sum(5, 2, 1), &code, true));
        for _ in 0..2 * MAX_UNUSED_AGE {
            values.is_known(4, &sum(6, 6, 1), &code, true);
        }
        assert!(!values.is_known(7, &sum(5, 2, 1), &code, true));
        // Another group starts without known values.
        values.start_group(&code);
        assert!(!values.is_known(0, &sum(2, 0, 1), &code, true));
    }
}
