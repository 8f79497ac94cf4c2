//! Register demand of a kernel: the maximum number of live registers at any instruction.
//!
//! Bytecode uses a new register for almost every value; a compiler reuses registers of values that are not live at the same time. Liveness
//! is computed by backward data flow.

use super::bytecode::{Code, File, Inst, Reg};
use super::chain::reads;

/// Maximum size of the liveness table in words (256 MB).
const MAX_TABLE: usize = 1 << 25;

impl Code {
    /// Registers of 32 bits that a work-item needs at one time.
    pub fn registers(&self) -> u32 {
        *self.needed.get_or_init(|| registers(self))
    }
}

/// Returns the number of 32-bit registers of a lane. For code that exceeds the table, all registers of the code.
pub fn registers(code: &Code) -> u32 {
    let words = usize::from(code.words);
    let count = words + usize::from(code.longs);
    let bits = count.div_ceil(64).max(1);
    let number = |r: Reg| match r.file {
        File::Word => Some(usize::from(r.index)),
        File::Long => Some(words + usize::from(r.index)),
        File::Uniform => None,
    };
    let n = code.insts.len();
    if (n + 1).saturating_mul(bits) > MAX_TABLE {
        return u32::from(code.words) + 2 * u32::from(code.longs);
    }
    // Live registers before each instruction, and after the last one.
    let mut live = vec![0u64; (n + 1) * bits];
    let mut now = vec![0u64; bits];
    let mut most = 0;
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for pc in (0..n).rev() {
            let inst = &code.insts[pc];
            now.fill(0);
            let (next, to) = successors(inst, pc);
            for from in next.into_iter().chain(to).map(|s| s.min(n)) {
                let behind = &live[from * bits..(from + 1) * bits];
                now.iter_mut().zip(behind).for_each(|(a, b)| *a |= b);
            }
            let written = inst.results(code);
            for at in written.iter().copied().chain(inst.destination()).filter_map(number) {
                now[at / 64] &= !(1 << (at % 64));
            }
            reads(inst, code, |r| {
                if let Some(at) = number(r) {
                    now[at / 64] |= 1 << (at % 64);
                }
            });
            let before = &mut live[pc * bits..(pc + 1) * bits];
            if before != now.as_slice() {
                before.copy_from_slice(&now);
                changed = true;
            }
        }
    }
    for at in live.chunks(bits) {
        let held = |i: usize| at[i / 64] >> (i % 64) & 1 != 0;
        let weights = (0..count).filter(|i| held(*i)).map(|i| if i < words { 1 } else { 2 });
        most = most.max(weights.sum::<u32>());
    }
    most
}

/// Successors of an instruction.
fn successors(inst: &Inst, pc: usize) -> (Option<usize>, Option<usize>) {
    match *inst {
        Inst::End => (None, None),
        Inst::Jump { to } => (None, Some(to as usize)),
        Inst::JumpIf { to, .. }
        | Inst::JumpIfNone { to }
        | Inst::IfBegin { to, .. }
        | Inst::IfElse { to, .. }
        | Inst::LoopCond { to, .. } => (Some(pc + 1), Some(to as usize)),
        _ => (Some(pc + 1), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::lanes::{Binary32, Unary32};

    fn word(index: u16) -> Reg {
        Reg { file: File::Word, index, variable: false }
    }

    #[test]
    fn registers_are_those_needed_at_one_time() {
        let sum = |dst, a, b| Inst::Binary32 { op: Binary32::Add, dst: word(dst), a: word(a), b: word(b) };
        let neg = |dst, a| Inst::Unary32 { op: Unary32::NegF, dst: word(dst), a: word(a) };
        let code = |insts| Code { words: 16, insts, ..Code::default() };
        // One value passed on through five registers, in addition to the initial one.
        let chain = code(vec![neg(1, 0), neg(2, 1), neg(3, 2), sum(4, 3, 0), neg(5, 4), Inst::End]);
        assert_eq!(registers(&chain), 2);
        // Three at once; in a loop, values that the next iteration reads stay live.
        let three = code(vec![neg(1, 0), neg(2, 0), sum(3, 1, 2), sum(4, 3, 0), Inst::End]);
        assert_eq!(registers(&three), 3);
        let round =
            vec![neg(2, 1), sum(1, 2, 0), Inst::JumpIf { cond: word(9), value: true, to: 0 }, Inst::End];
        assert_eq!(registers(&code(round)), 3);
        assert_eq!(registers(&code(vec![Inst::End])), 0);
    }
}
