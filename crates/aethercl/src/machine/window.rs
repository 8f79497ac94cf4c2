//! The register window: registers and rings as memory that a program accesses directly, like a card's registers mapped into its address space.
//!
//! | offset | content |
//! |---|---|
//! | `0x0000` | the registers of [`registers`](super::registers), each at its offset |
//! | `0x1000 + q · stride` | the words of queue `q`'s ring; the stride is the ring's length rounded up to 4096 bytes |
//!
//! A program writes packets at the tail of a ring, writes the queue's DOORBELL, and sees the FENCE advance. A write is detected by a changed value.
//! So the registers for which every write has an effect read as 0: CONTROL and IRQ_CLEAR. The device reads its window in `Gpu::sync_window`, which
//! the owner of the device must call.

use super::registers::{QUEUES, offset};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offset of the ring of queue 0, bytes.
pub const RINGS: usize = 0x1000;
/// Alignment of rings in bytes.
const PAGE: usize = 4096;

/// Memory that both sides see, and the values that the device last wrote.
pub struct Window {
    words: Arc<[AtomicU32]>,
    shown: Vec<u32>,
    stride: usize,
}

impl Window {
    /// Returns a window for rings of this many words.
    pub(super) fn new(ring_words: usize) -> Self {
        let stride = (4 * ring_words).next_multiple_of(PAGE);
        let words: Arc<[AtomicU32]> = (0..(RINGS + QUEUES * stride) / 4).map(|_| AtomicU32::new(0)).collect();
        Self { shown: vec![0; RINGS / 4], words, stride }
    }

    /// Returns the memory.
    pub fn words(&self) -> &Arc<[AtomicU32]> {
        &self.words
    }

    /// Returns the distance between the rings of two queues, bytes.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Returns a word of a queue's ring, as written by the program.
    pub(super) fn ring_word(&self, queue: usize, word: usize) -> u32 {
        self.words[(RINGS + queue * self.stride) / 4 + word].load(Ordering::Acquire)
    }

    /// Returns the registers that the program wrote since the last call: offset and value, doorbells last.
    pub(super) fn written(&mut self) -> Vec<(u32, u32)> {
        let (mut first, mut doorbells) = (Vec::new(), Vec::new());
        for at in registers() {
            let (word, value) = (at as usize / 4, self.words[at as usize / 4].load(Ordering::Acquire));
            if value != self.shown[word] {
                // Consumed: a later write of the same value counts again.
                self.shown[word] = value;
                if doorbell_of(at).is_some() { doorbells.push((at, value)) } else { first.push((at, value)) }
            }
        }
        first.extend(doorbells);
        first
    }

    /// Shows a register value, unless the program wrote the register meanwhile.
    pub(super) fn show(&mut self, at: u32, value: u32) {
        let word = at as usize / 4;
        let (before, now) = (self.shown[word], &self.words[word]);
        if now.compare_exchange(before, value, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.shown[word] = value;
        }
    }
}

/// Returns the offsets of all registers.
pub(super) fn registers() -> impl Iterator<Item = u32> {
    let shared = (offset::ID..=offset::IRQ_CLEAR).step_by(4);
    let queue = |q: u32| {
        let base = offset::QUEUES + q * offset::QUEUE_STRIDE;
        [offset::RING_WORDS, offset::HEAD, offset::DOORBELL, offset::FENCE, offset::FENCE + 4]
            .map(|register| base + register)
    };
    shared.chain((0..QUEUES as u32).flat_map(queue))
}

/// Returns the queue of a doorbell register.
pub(super) fn doorbell_of(at: u32) -> Option<usize> {
    let inside = at.checked_sub(offset::QUEUES)?;
    (inside % offset::QUEUE_STRIDE == offset::DOORBELL).then_some((inside / offset::QUEUE_STRIDE) as usize)
}
