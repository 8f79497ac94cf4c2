//! Admission and time slices while requests wait. Slices grow with the number of tokens that a sequence has generated (a multilevel feedback queue,
//! Corbató et al. 1962). A request that arrives after many long ones gets its first tokens after one slice and does not wait for their ends.

use super::Engine;
use super::text::Text;

/// Tokens of a sequence's first slice.
const SHORTEST: usize = 8;

/// Maximum tokens per slice.
const MAX_SLICE_TOKENS: usize = 32;

/// A sequence whose pages are needed continues until it has generated this fraction (1/n) of its length. Prefilling it again then costs little in
/// comparison.
const WORTH_READING: usize = 4;

impl<'a> Engine<'a> {
    /// Admits requests while there are slots, and pages for the prefill of them and the ones before them. Sequences at the end of their slice make
    /// room.
    pub(super) fn admit(&mut self) {
        self.lacks_pages = false;
        while self.active.len() < self.options.texts || self.at_its_end(false, 0).is_some() {
            let next = self.next_waiting();
            let Some((at, mut text)) = next.and_then(|at| Some((at, self.waiting.remove(at)?))) else {
                return;
            };
            text.turn(self.cache.class_of_length(text.ids.len()), &mut self.pages);
            let is_paused = !text.pages.is_empty();
            if !is_paused {
                text.find(&mut self.pages);
            }
            if !self.make_room(&text) {
                if !is_paused {
                    text.release(&mut self.pages);
                }
                if !self.active.is_empty() {
                    self.waiting.insert(at, text);
                    return;
                }
                // All pages are for this sequence, and copies would use some of them.
                text.release(&mut self.pages);
                text.usage.reused = 0;
            }
            text.before = text.usage.made;
            self.admitted = self.admitted.wrapping_add(1);
            self.active.push(text);
        }
    }

    /// Returns the sequence to admit next. It alternates between the sequence with the fewest tokens so far and the one that has waited longest.
    /// The first lets short answers finish soon, and the second lets long answers finish too.
    fn next_waiting(&self) -> Option<usize> {
        let mut ready = self.waiting.iter().enumerate().filter(|(_, text)| !self.is_behind(text));
        let next = match self.admitted.is_multiple_of(2) {
            true => ready.min_by_key(|(_, text)| text.usage.made),
            false => ready.next(),
        };
        next.map(|(at, _)| at)
    }

    /// Makes room for a sequence: a slot, and pages for its prefill. For this, pauses a sequence at the end of its slice, and takes the pages of
    /// paused sequences. Returns false if that is not enough.
    fn make_room(&mut self, text: &Text<'a>) -> bool {
        let page = self.pages.size();
        let outstanding: usize = self.active.iter().map(|own| own.lacks(self.to_read(own), page)).sum();
        // One more for the first new token or for a copy.
        let wanted = text.lacks(self.to_read(text), page) + 1 + outstanding;
        let available = self.pages.available();
        let within_reach = available + self.waiting.iter().map(|own| own.pages.len()).sum::<usize>();
        if self.active.len() >= self.options.texts || wanted > within_reach {
            self.lacks_pages = wanted > available;
            let Some(at) = self.at_its_end(self.lacks_pages, 0) else { return false };
            if wanted > within_reach + self.active[at].pages.len() {
                return false;
            }
            let paused = self.active.remove(at);
            self.waiting.push_back(paused);
        }
        while wanted > self.pages.available() {
            if !self.reclaim() {
                return false;
            }
        }
        true
    }

    /// Returns true if a sequence will be paused after this many further steps. Steps enqueued for it afterwards would be lost.
    pub(super) fn pauses_after(&self, steps: usize) -> bool {
        !self.waiting.is_empty() && self.at_its_end(self.lacks_pages, steps).is_some()
    }

    /// Returns the sequence with the most tokens since its admission, of those at the end of their slice after this many steps. A sequence that is
    /// nearly done does not count.
    fn at_its_end(&self, pages_are_scarce: bool, steps: usize) -> Option<usize> {
        let longest = self.longest();
        let is_at_its_end = |text: &Text<'_>| {
            let slice = match pages_are_scarce {
                true => MAX_SLICE_TOKENS.max(text.ids.len() / WORTH_READING),
                false => text.before.clamp(SHORTEST, MAX_SLICE_TOKENS),
            };
            text.is_read()
                && text.usage.made - text.before + steps >= slice
                && text.left(longest) > SHORTEST + steps
        };
        let texts = self.active.iter().enumerate().filter(|(_, text)| is_at_its_end(text));
        // The first of equal ones.
        texts.rev().max_by_key(|(_, text)| text.usage.made - text.before).map(|(at, _)| at)
    }

    /// Takes the pages of the last paused sequence in the queue. Returns false if none has pages.
    pub(super) fn reclaim(&mut self) -> bool {
        let Some(text) = self.waiting.iter_mut().rev().find(|text| !text.pages.is_empty()) else {
            return false;
        };
        text.release(&mut self.pages);
        text.usage.preempted += 1;
        true
    }
}
