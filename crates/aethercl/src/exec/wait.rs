//! What a group that does not come to its end waits for.

use super::bytecode::{AtomicOp, Inst, MemType};
use super::group::Group;
use super::observe::context;
use super::run::Place;
use crate::check::Details;
use crate::memory::address::{self, Space};

/// Instructions that are followed; a loop that waits has a few.
const FOLLOWED: u32 = 20_000;
/// Rounds of the loop after which it counts as one.
const ROUNDS: u32 = 3;
/// Different words that a waiting loop looks at, at most.
const WORDS: usize = 4;

/// A word of global memory that the loop looks at.
struct Word {
    pc: usize,
    at: u64,
    lane: usize,
    ty: MemType,
    held: u64,
    times: u32,
}

impl Group<'_> {
    /// Goes on for a while and tells what the group reads again and again while nothing changes: the instruction, and the words for a finding.
    /// Memory is not of use to anybody afterwards where the group writes.
    pub(super) fn awaited(&mut self, place: &mut Place) -> Option<(usize, Details)> {
        self.observer = None;
        let mut words: Vec<Word> = Vec::new();
        // A copy by the whole group counts each element, so the end may come earlier.
        place.steps = u64::from(FOLLOWED);
        for _ in 0..FOLLOWED {
            if let Some(word) = self.looks_at(place.pc)? {
                match words.iter().position(|w| (w.pc, w.at) == (word.pc, word.at)) {
                    Some(i) if words[i].held == word.held => words[i].times += 1,
                    // What it waits for, or what it does by itself, goes on.
                    Some(_) => return None,
                    None if words.len() < WORDS => words.push(word),
                    None => return None,
                }
            }
            if self.go_on(place, 1, None).ok()? {
                return None;
            }
            if words.iter().any(|w| w.times >= ROUNDS) {
                break;
            }
        }
        let word = words.into_iter().find(|w| w.times >= ROUNDS)?;
        Some((word.pc, self.tells(&word)))
    }

    /// The word of global memory that the next instruction reads; none where it reads none. Nothing at all where it writes there.
    fn looks_at(&mut self, pc: usize) -> Option<Option<Word>> {
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
        if address::space(at) != Space::Global {
            return Some(None);
        }
        let held = self.read_lane(at, ty, lane);
        if writes { None } else { Some(Some(Word { pc, at, lane, ty, held, times: 0 })) }
    }

    fn tells(&self, word: &Word) -> Details {
        let cx = context(self);
        let bytes = word.ty.size();
        let touch = cx.touch(word.lane, word.at, bytes);
        let (object, _) = cx.object(Space::Global, touch.object);
        let mut item = cx.item(word.lane);
        item.did = "reads";
        let [x, y, z] = self.id;
        Details {
            message: format!(
                "work-group ({x},{y},{z}) waits here: it reads offset {} of global `{object}` again and again, which stays as it is",
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
