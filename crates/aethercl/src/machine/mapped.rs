//! The device side of the register window: executes the program's writes and shows the results.

use super::gpu::Gpu;
use super::registers::offset;
use super::window::{Window, doorbell_of, registers};

impl Gpu {
    /// Creates the register window if necessary. From now on interrupts stay until the program clears them.
    pub fn map_window(&mut self) -> &Window {
        let words = self.ring_words();
        let window = self.window.take().unwrap_or_else(|| Window::new(words));
        self.window = Some(window);
        self.show_window();
        self.window.get_or_insert_with(|| Window::new(words))
    }

    /// Removes the window; later writes of the program have no effect.
    pub fn unmap_window(&mut self) {
        self.window = None;
    }

    /// Executes the program's writes since the last call and shows the results. Returns true if there were any.
    ///
    /// Command errors appear where a program with register access finds them: STATUS, FAULT, FAULT_QUEUE.
    pub fn sync_window(&mut self) -> bool {
        let Some(window) = &mut self.window else { return false };
        let written = window.written();
        for (at, value) in &written {
            if let Some(queue) = doorbell_of(*at) {
                self.import(queue, *value as usize);
            }
            self.write_register(*at, *value);
        }
        if written.iter().any(|(at, _)| doorbell_of(*at).is_some()) {
            // Queues that wait for one another stay BUSY.
            let _ = self.run();
        }
        self.show_window();
        !written.is_empty()
    }

    /// Takes the words of a ring that the program wrote up to `tail`.
    fn import(&mut self, queue: usize, tail: usize) {
        let (Some(window), Some(q)) = (&self.window, self.queues.get_mut(queue)) else { return };
        q.ring.import(tail, |word| window.ring_word(queue, word));
    }

    pub(super) fn show_window(&mut self) {
        let now = self.host_ns;
        self.registers.advance(now);
        let mut values: Vec<(u32, u32)> = registers().map(|at| (at, self.registers.read(at))).collect();
        // Status registers come last, because they announce the other values.
        values.sort_by_key(|(at, _)| [offset::IRQ_STATUS, offset::STATUS].contains(at));
        if let Some(window) = &mut self.window {
            values.into_iter().for_each(|(at, value)| window.show(at, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::registers::{ID, status};
    use super::super::window::RINGS;
    use super::super::{MachineOptions, Packet};
    use super::*;
    use crate::model::Profile;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Program {
        gpu: Gpu,
        words: Arc<[AtomicU32]>,
        ring: usize,
        tail: usize,
    }

    impl Program {
        fn new(ring_words: usize) -> Self {
            let profile = Profile::named("teaching").unwrap();
            let mut gpu = Gpu::new(profile, MachineOptions { ring_words, ..MachineOptions::default() });
            gpu.open_queue().unwrap();
            let words = Arc::clone(gpu.map_window().words());
            Self { gpu, words, ring: RINGS / 4, tail: 0 }
        }
        fn read(&self, at: u32) -> u32 {
            self.words[at as usize / 4].load(Ordering::Acquire)
        }
        fn write(&mut self, at: u32, value: u32) {
            self.words[at as usize / 4].store(value, Ordering::Release);
            self.gpu.sync_window();
        }
        /// Writes packets into the ring, wrapping at its end, and rings the doorbell.
        fn push(&mut self, packets: &[Packet]) {
            let length = self.read(offset::QUEUES + offset::RING_WORDS) as usize;
            for packet in packets {
                let mut words = packet.encode();
                if self.tail + words.len() > length {
                    let pad = Packet::Pad { words: (length - self.tail) as u32 - 1 }.encode();
                    self.words[self.ring + self.tail].store(pad[0], Ordering::Release);
                    self.tail = 0;
                }
                for word in words.drain(..) {
                    self.words[self.ring + self.tail].store(word, Ordering::Release);
                    self.tail += 1;
                }
                self.tail %= length;
            }
            self.write(offset::QUEUES + offset::DOORBELL, self.tail as u32);
        }
        fn fence(&self) -> u32 {
            self.read(offset::QUEUES + offset::FENCE)
        }
    }

    #[test]
    fn a_program_with_nothing_but_the_window_copies_and_sees_the_fence() {
        let mut p = Program::new(64);
        assert_eq!((p.read(offset::ID), p.read(offset::UNITS)), (ID, 4));
        let at = p.gpu.allocate(64, "x").unwrap();
        let (from, to) = (p.gpu.pin((0..64).collect()), p.gpu.pin(vec![0; 64]));
        let bytes = 32;
        for turn in 1..=100u32 {
            p.push(&[
                Packet::CopyIn { to: at, from: from + 8, bytes },
                Packet::CopyOut { to: to + 16, from: at, bytes },
                Packet::Signal { value: u64::from(turn) },
            ]);
            assert_eq!((p.fence(), p.read(offset::IRQ_STATUS)), (turn, 1));
            p.write(offset::IRQ_CLEAR, 1);
            assert_eq!((p.read(offset::IRQ_STATUS), p.read(offset::IRQ_CLEAR)), (0, 0));
        }
        let back = p.gpu.unpin(to).unwrap();
        assert_eq!(back[16..48], (8..40).collect::<Vec<u8>>());
        assert!(back[..16].iter().chain(&back[48..]).all(|b| *b == 0));
        assert!(p.read(offset::TIME) > 0 && p.read(offset::STATUS) == 0);
        // A command that the host functions submit gets the next fence after those of the window.
        let fence = p.gpu.submit(0, Packet::Copy { to: at, from: at + 32, bytes: 8 }, None).unwrap();
        assert_eq!(fence.value, 101);
        assert!(p.gpu.wait(fence).is_ok());
        p.gpu.sync_window();
        assert_eq!(p.fence(), 101);
    }

    #[test]
    fn a_queue_that_is_opened_later_is_in_the_window_at_once() {
        let mut p = Program::new(64);
        let at = offset::QUEUES + offset::QUEUE_STRIDE + offset::RING_WORDS;
        assert_eq!(p.read(at), 0);
        p.gpu.open_queue().unwrap();
        assert_eq!(p.read(at), 64);
    }

    #[test]
    fn what_is_wrong_is_in_the_registers_and_a_reset_begins_anew() {
        let mut p = Program::new(64);
        p.push(&[Packet::CopyIn { to: 1, from: 2, bytes: 3 }, Packet::Signal { value: 1 }]);
        assert_eq!((p.read(offset::FAULT), p.read(offset::STATUS) & status::FAILED), (2, status::FAILED));
        assert_eq!(p.fence(), 1, "a command that failed is over as well");
        p.write(offset::CONTROL, 1);
        assert_eq!((p.read(offset::FAULT), p.read(offset::STATUS), p.read(offset::CONTROL)), (0, 0, 0));
        for (word, doorbell) in [(0x7777_0001, 40), (u32::MAX, 3), (0, 63), (5, 64), (9, u32::MAX)] {
            for w in 0..64 {
                p.words[p.ring + w].store(word, Ordering::Release);
            }
            p.write(offset::QUEUES + offset::DOORBELL, doorbell);
            p.write(offset::CONTROL, 1);
        }
        // Read-only registers show the device's value again.
        p.write(offset::ID, 5);
        p.write(offset::QUEUES + 3 * offset::QUEUE_STRIDE + offset::DOORBELL, 7);
        assert_eq!(p.read(offset::ID), ID);
    }

    #[test]
    fn random_writes_into_the_window_never_panic() {
        let mut p = Program::new(64);
        let mut state = 1u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let all: Vec<u32> = registers().collect();
        for _ in 0..20_000 {
            let word = p.ring + next(64);
            let (op, rest) = (next(0x50) as u32, next(12) as u32);
            p.words[word].store(op << 24 | rest, Ordering::Release);
            let value = next(70) as u32;
            p.write(all[next(all.len())], value);
        }
    }
}
