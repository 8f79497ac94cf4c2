//! The interpreter's loop.

use super::bytecode::{Inst, READ, Reg, WRITE};
use super::clock::thread_time;
use super::group::Group;
use crate::source::Span;
use std::mem::take;
use std::time::Duration;

/// Instructions between two clock readings: they take a thousandth of a second to a second.
const STEPS_PER_LOOK: u64 = 1 << 14;

/// Reason why a group stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It executed the maximum number of instructions.
    Steps(Span),
    /// It used the maximum CPU time.
    Time(Span),
    /// The program reached unreachable code.
    Trap(Span),
}

/// Execution state of a work-group between time slices.
#[derive(Debug, Clone, Copy)]
pub struct GroupState {
    /// Its next instruction.
    pub pc: usize,
    /// Number of instructions that it may still execute.
    pub steps: u64,
}

impl Group<'_> {
    /// Notifies the observer that the work-group starts; returns the initial state.
    pub fn begin(&mut self) -> GroupState {
        self.observe_start();
        GroupState { pc: 0, steps: self.shared.max_steps }
    }

    /// Returns the source position of the next instruction.
    pub fn span(&self, place: &GroupState) -> Span {
        self.shared.code.spans[place.pc]
    }

    /// Executes the work-group to its end, within this CPU time.
    pub fn run(&mut self, place: &mut GroupState, most: Option<Duration>) -> Result<(), Stop> {
        let deadline = most.and_then(|t| thread_time().checked_add(t));
        while !self.go_on(place, u64::MAX, deadline)? {}
        Ok(())
    }

    /// Executes at most `most` instructions, until the thread's CPU time reaches `deadline`. Returns true if the work-group has ended.
    pub fn go_on(
        &mut self,
        place: &mut GroupState,
        most: u64,
        deadline: Option<Duration>,
    ) -> Result<bool, Stop> {
        let code = self.shared.code;
        let mut pc = place.pc;
        let mut steps = place.steps.min(most);
        place.steps -= steps;
        loop {
            let inst = &code.insts[pc];
            if steps == 0 {
                place.pc = pc;
                return if place.steps == 0 { Err(Stop::Steps(code.spans[pc])) } else { Ok(false) };
            }
            steps -= 1;
            if steps.is_multiple_of(STEPS_PER_LOOK) && deadline.is_some_and(|d| thread_time() >= d) {
                place.pc = pc;
                return Err(Stop::Time(code.spans[pc]));
            }
            if let Inst::AsyncCopy { list, .. } = *inst {
                // Each element counts.
                let copied = self.copied(code.listed(list, 4));
                let left = place.steps.saturating_add(steps).saturating_sub(copied);
                if left == 0 {
                    place.pc = pc;
                    return Err(Stop::Steps(code.spans[pc]));
                }
                steps = steps.min(left);
                place.steps = left - steps;
            }
            if self.observer.is_some() {
                self.observe(pc);
            }
            if self.arithmetic(inst) {
                pc += 1;
                continue;
            }
            match *inst {
                Inst::Load { ty, count, list, address, .. } => {
                    self.load(ty, code.listed(list, count), &code.addresses[address as usize]);
                }
                Inst::Store { ty, count, list, address } => {
                    self.store(ty, code.listed(list, count), &code.addresses[address as usize]);
                }
                Inst::End => return Ok(true),
                Inst::Trap if self.mask.is_empty() => {}
                Inst::Trap => return Err(Stop::Trap(code.spans[pc])),
                _ => {
                    if let Some(to) = self.control(inst) {
                        pc = to as usize;
                        continue;
                    }
                }
            }
            pc += 1;
        }
    }

    /// Executes instructions that change the control flow or the running lanes. Returns the target of a jump.
    fn control(&mut self, inst: &Inst) -> Option<u32> {
        match *inst {
            Inst::Jump { to } => return Some(to),
            Inst::JumpIf { cond, value, to } => {
                return ((self.uniforms[cond.index as usize] as u32 != 0) == value).then_some(to);
            }
            Inst::JumpIfNone { to } => return self.mask.is_empty().then_some(to),
            Inst::IfBegin { cond, save, to } => {
                let mut rest = take(&mut self.masks[save as usize]);
                rest.clear();
                self.send(cond, &mut rest);
                self.masks[save as usize] = rest;
                return self.mask.is_empty().then_some(to);
            }
            Inst::IfElse { save, to } => {
                std::mem::swap(&mut self.mask, &mut self.masks[save as usize]);
                return self.mask.is_empty().then_some(to);
            }
            Inst::Join { save } => self.mask.join(&mut self.masks[save as usize]),
            Inst::Clear { save } => self.masks[save as usize].clear(),
            Inst::LoopCond { cond, exit, to } => {
                let mut rest = take(&mut self.masks[exit as usize]);
                self.send(cond, &mut rest);
                self.masks[exit as usize] = rest;
                return self.mask.is_empty().then_some(to);
            }
            Inst::Park { slot } => {
                let mask = &mut self.mask;
                self.masks[slot as usize].join(mask);
            }
            Inst::Resume { slot } => {
                self.mask.clear();
                self.mask.join(&mut self.masks[slot as usize]);
            }
            Inst::Case { entry, cond } => {
                let mut from = take(&mut self.masks[entry as usize]);
                let mut mask = take(&mut self.mask);
                mask.take(self.word_source(cond, &from.range()), &mut from);
                self.mask = mask;
                self.masks[entry as usize] = from;
            }
            _ => self.rare(inst),
        }
        None
    }

    /// Moves lanes with condition 0 to `rest`.
    fn send(&mut self, cond: Reg, rest: &mut super::mask::Mask) {
        let mut mask = take(&mut self.mask);
        let range = mask.range();
        mask.send(self.arch, self.word_source(cond, &range), rest);
        self.mask = mask;
    }

    fn rare(&mut self, inst: &Inst) {
        let code = self.shared.code;
        match *inst {
            Inst::Atomic { op, wide, dst, list, address, .. } => {
                self.atomic(op, wide, dst, code.listed(list, 2), &code.addresses[address as usize]);
            }
            Inst::ReadImage { read, list } => self.read_image(read, code.listed(list, READ)),
            Inst::WriteImage { write, list } => self.write_image(write, code.listed(list, WRITE)),
            Inst::AddressOf { dst, address } => {
                self.lane_addresses(&code.addresses[address as usize]);
                let range = self.mask.range();
                self.long_scratch[range.clone()].copy_from_slice(&self.addresses[range]);
                self.put_long(dst);
            }
            Inst::Collective { op, wide, dst, list } => self.collective(op, wide, dst, code.listed(list, 3)),
            Inst::AsyncCopy { bytes, list, strided } => self.async_copy(bytes, code.listed(list, 4), strided),
            Inst::Print { format, list, count } => {
                self.print(&code.formats[format as usize], code.listed(list, count));
            }
            // The remaining instructions only concern the observer: lanes in lockstep meet at every barrier.
            _ => {}
        }
    }
}
