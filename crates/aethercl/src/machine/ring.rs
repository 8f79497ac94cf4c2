//! A command ring: words in memory that host and device share. The host writes commands at the tail and rings the doorbell; the command processor
//! reads at the head. One word stays free, so that full and empty differ.

use super::packet::{BadPacket, MAX_COMMAND_WORDS, Packet};
use std::collections::VecDeque;

/// One queue's ring.
#[derive(Debug)]
pub struct Ring {
    words: Vec<u32>,
    /// Read position of the command processor.
    head: usize,
    /// Write position of the host.
    tail: usize,
    /// End of the announced commands.
    announced: usize,
    /// Doorbell times, oldest first: the end of each announced range and the host clock.
    doorbells: VecDeque<(usize, u64)>,
}

impl Ring {
    /// Returns a ring of this many words, which must hold two of the longest commands.
    pub fn new(words: usize) -> Self {
        let words = vec![0; words.max(2 * MAX_COMMAND_WORDS + 2)];
        Self { words, head: 0, tail: 0, announced: 0, doorbells: VecDeque::new() }
    }

    /// Returns its length in words.
    pub fn capacity(&self) -> usize {
        self.words.len()
    }
    /// Returns the read position.
    pub fn head(&self) -> usize {
        self.head
    }
    /// Returns the host's place.
    pub fn tail(&self) -> usize {
        self.tail
    }
    /// Returns true if every announced command was read.
    pub fn is_drained(&self) -> bool {
        self.head == self.announced
    }

    fn free(&self) -> usize {
        (self.head + self.words.len() - self.tail - 1) % self.words.len()
    }

    /// Writes a command at the tail, and pads the ring's end if it does not fit. Returns false if the ring is full: the device must first read.
    pub fn push(&mut self, packet: &Packet) -> bool {
        let words = packet.encode();
        let to_end = self.words.len() - self.tail;
        let pad = if words.len() > to_end { to_end } else { 0 };
        if pad + words.len() > self.free() {
            return false;
        }
        if pad > 0 {
            self.words[self.tail] = Packet::Pad { words: pad as u32 - 1 }.encode()[0];
            self.tail = 0;
        }
        self.words[self.tail..self.tail + words.len()].copy_from_slice(&words);
        self.tail = (self.tail + words.len()) % self.words.len();
        true
    }

    /// Handles the host's doorbell: everything up to word `tail` may be read, as of `host_ns`. Values outside the ring are ignored, the same as in
    /// hardware.
    pub fn doorbell(&mut self, tail: usize, host_ns: u64) {
        if tail < self.words.len() && tail != self.announced {
            self.announced = tail;
            self.doorbells.push_back((tail, host_ns));
        }
    }

    /// Imports the words from the last announced position up to `tail`, which the host wrote elsewhere. Tails outside the ring are ignored.
    pub fn import(&mut self, tail: usize, word: impl Fn(usize) -> u32) {
        if tail >= self.words.len() {
            return;
        }
        let mut at = self.announced;
        while at != tail {
            self.words[at] = word(at);
            at = (at + 1) % self.words.len();
        }
        self.tail = tail;
    }

    /// Returns the command at the head and its announcement time, without removing it.
    ///
    /// # Errors
    /// If the words there are not a command.
    pub fn peek(&self) -> Result<Option<(Packet, u64)>, BadPacket> {
        if self.is_drained() {
            return Ok(None);
        }
        let (packet, length) = Packet::decode(&self.words[self.head..])?;
        // A command that extends beyond the announced words would move the head past the end.
        if length > (self.announced + self.words.len() - self.head) % self.words.len() {
            return Err(BadPacket { header: self.words[self.head] });
        }
        let announced = self.doorbells.front().map_or(0, |(_, ns)| *ns);
        Ok(Some((packet, announced)))
    }

    /// Moves the head past the current command.
    pub fn pop(&mut self) {
        let length = Packet::decode(&self.words[self.head..]).map_or(1, |(_, length)| length);
        self.head = (self.head + length) % self.words.len();
        while self.doorbells.front().is_some_and(|(tail, _)| *tail == self.head) {
            self.doorbells.pop_front();
        }
    }

    /// Discards announced commands that were not read, for a reset.
    pub fn clear(&mut self) {
        self.head = self.tail;
        self.announced = self.tail;
        self.doorbells.clear();
    }

    /// Overwrites the word at the head, like a stray write of the host.
    #[cfg(test)]
    pub fn scribble(&mut self, word: u32) {
        self.words[self.head] = word;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_commands_pass_through_a_small_ring_in_order() {
        let mut ring = Ring::new(37);
        let (mut written, mut read) = (0u64, 0u64);
        while read < 1000 {
            // Lengths of 3 and 4 words, so that commands meet the end at every position.
            let packet = |n: u64| {
                if n.is_multiple_of(3) {
                    Packet::Wait { queue: 1, value: n }
                } else {
                    Packet::Signal { value: n }
                }
            };
            while written < 1000 && ring.push(&packet(written)) {
                written += 1;
            }
            ring.doorbell(ring.tail(), written);
            assert!(!ring.is_drained());
            while let Some((found, _)) = ring.peek().unwrap() {
                if let Packet::Pad { .. } = found {
                    ring.pop();
                    continue;
                }
                assert_eq!(found, packet(read));
                read += 1;
                ring.pop();
            }
        }
    }

    #[test]
    fn nothing_is_read_before_the_doorbell_and_each_command_knows_when_it_rang() {
        let mut ring = Ring::new(64);
        assert!(ring.push(&Packet::Signal { value: 1 }));
        assert_eq!(ring.peek(), Ok(None));
        ring.doorbell(ring.tail(), 10);
        assert!(ring.push(&Packet::Signal { value: 2 }));
        ring.doorbell(ring.tail(), 20);
        assert_eq!(ring.peek(), Ok(Some((Packet::Signal { value: 1 }, 10))));
        ring.pop();
        assert_eq!(ring.peek(), Ok(Some((Packet::Signal { value: 2 }, 20))));
        ring.pop();
        assert_eq!(ring.peek(), Ok(None));
    }

    #[test]
    fn words_that_are_no_command_are_an_error() {
        let mut ring = Ring::new(64);
        ring.push(&Packet::Signal { value: 1 });
        ring.doorbell(ring.tail(), 0);
        ring.scribble(0x7777_0001);
        assert_eq!(ring.peek(), Err(BadPacket { header: 0x7777_0001 }));
        ring.clear();
        assert_eq!(ring.peek(), Ok(None));
        ring.doorbell(9999, 0);
        assert!(ring.is_drained());
    }
}
