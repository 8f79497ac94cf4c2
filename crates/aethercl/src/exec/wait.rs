//! Diagnoses a work-group that does not end: finds the memory that it polls.

use super::bytecode::{AtomicOp, Inst, MemType};
use super::group::Group;
use super::observe::context;
use super::run::{GroupState, Stop};
use crate::check::Details;
use crate::memory::address::{self, PointerSpace};

/// Instructions that are traced. A polling loop has only a few.
const TRACED_INSTRUCTIONS: u32 = 20_000;
/// Repetitions of an access after which it counts as polling.
const ROUNDS: u32 = 3;
/// Maximum number of different words that a polling loop reads.
const WORDS: usize = 4;

/// A word of global memory that was read.
struct Word {
    pc: usize,
    at: u64,
    lane: usize,
    ty: MemType,
    held: u64,
    times: u32,
}

impl Group<'_> {
    /// Traces the work-group for a while. If it only reads the same unchanged words of global memory, returns the reading instruction and the
    /// details of a finding. Executes instructions, so memory contents are unspecified afterwards.
    pub(super) fn awaited(&mut self, place: &mut GroupState) -> Option<(usize, Details)> {
        self.observer = None;
        // Asynchronous copies count each element, so tracing may end earlier.
        place.steps = u64::from(TRACED_INSTRUCTIONS);
        let word = self.polled(place).ok()??;
        Some((word.pc, self.tells(&word)))
    }

    /// Continues for a while; returns true if it only reads the same unchanged words of global memory.
    pub(super) fn polls(&mut self, place: &mut GroupState) -> Result<bool, Stop> {
        self.polled(place).map(|word| word.is_some())
    }

    /// Continues until a word was polled; returns `None` if the work-group does something else or ends.
    fn polled(&mut self, place: &mut GroupState) -> Result<Option<Word>, Stop> {
        let mut words: Vec<Word> = Vec::new();
        for _ in 0..TRACED_INSTRUCTIONS {
            let Some(read) = self.next_read(place.pc) else { return Ok(None) };
            if let Some(word) = read {
                match words.iter().position(|w| (w.pc, w.at) == (word.pc, word.at)) {
                    Some(i) if words[i].held == word.held => words[i].times += 1,
                    // The value changes, so the loop makes progress.
                    Some(_) => return Ok(None),
                    None if words.len() < WORDS => words.push(word),
                    None => return Ok(None),
                }
            }
            if matches!(self.shared.code.insts[place.pc], Inst::End) || self.go_on(place, 1, None)? {
                return Ok(None);
            }
            if words.iter().any(|w| w.times >= ROUNDS) {
                break;
            }
        }
        Ok(words.into_iter().find(|w| w.times >= ROUNDS))
    }

    /// Returns the word of global memory that the next instruction reads, if any; `None` if it writes global memory.
    fn next_read(&mut self, pc: usize) -> Option<Option<Word>> {
        let code = self.shared.code;
        let Some(lane) = self.mask.lanes().next() else { return Some(None) };
        let (ty, address, writes) = match code.insts[pc] {
            Inst::Load { ty, address, .. } => (ty, address, false),
            Inst::Store { ty, address, .. } => (ty, address, true),
            Inst::Atomic { op, wide, address, .. } => {
                let ty = if wide { MemType::B64 } else { MemType::B32 };
                (ty, address, matches!(op, AtomicOp::Store | AtomicOp::Exchange))
            }
            _ => return Some(None),
        };
        self.lane_addresses(&code.addresses[address as usize]);
        let at = self.addresses[lane];
        if address::space(at) != PointerSpace::Global {
            return Some(None);
        }
        let held = self.read_lane(at, ty, lane);
        if writes { None } else { Some(Some(Word { pc, at, lane, ty, held, times: 0 })) }
    }

    fn tells(&self, word: &Word) -> Details {
        let cx = context(self);
        let bytes = word.ty.size();
        let touch = cx.touch(word.lane, word.at, bytes);
        let (object, _) = cx.object(PointerSpace::Global, touch.object);
        let mut item = cx.item(word.lane);
        item.did = "reads";
        let [x, y, z] = self.id;
        Details {
            message: format!(
                "work-group ({x},{y},{z}) waits here: it reads offset {} of global `{object}` repeatedly, but the value does not change",
                touch.offset
            ),
            items: vec![item],
            object,
            offset: touch.offset,
            bytes,
            values: vec![format!("memory holds {}", word.held)],
        }
    }
}
