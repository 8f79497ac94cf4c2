//! A command ring: words in memory that host and device both see. The host writes commands at the tail and says so at the
//! doorbell; the command processor reads at the head. One word stays free, so that full and empty differ.

use super::packet::{BadPacket, LONGEST, Packet};
use std::collections::VecDeque;

/// One queue's ring.
#[derive(Debug)]
pub struct Ring {
    words: Vec<u32>,
    /// Where the command processor reads next.
    head: usize,
    /// Where the host writes next.
    tail: usize,
    /// How far the doorbell has announced commands.
    announced: usize,
    /// When each announced stretch was announced, oldest first: the word after it and the host's clock.
    doorbells: VecDeque<(usize, u64)>,
}

impl Ring {
    /// A ring of this many words, which must hold two of the longest commands.
    pub fn new(words: usize) -> Self {
        let words = vec![0; words.max(2 * LONGEST + 2)];
        Self { words, head: 0, tail: 0, announced: 0, doorbells: VecDeque::new() }
    }

    /// Its length in words.
    pub fn capacity(&self) -> usize {
        self.words.len()
    }
    /// The command processor's place.
    pub fn head(&self) -> usize {
        self.head
    }
    /// The host's place.
    pub fn tail(&self) -> usize {
        self.tail
    }
    /// Whether every announced command was read.
    pub fn is_drained(&self) -> bool {
        self.head == self.announced
    }

    fn free(&self) -> usize {
        (self.head + self.words.len() - self.tail - 1) % self.words.len()
    }

    /// Writes a command at the tail, passing over the ring's end where it does not fit. False when there is no room: the
    /// device has to read first.
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

    /// The host rings: everything up to word `tail` may be read, as of `host_ns`. Values outside of the ring are ignored, as
    /// hardware does.
    pub fn doorbell(&mut self, tail: usize, host_ns: u64) {
        if tail < self.words.len() && tail != self.announced {
            self.announced = tail;
            self.doorbells.push_back((tail, host_ns));
        }
    }

    /// Takes the words from what was announced last up to `tail`, which the host wrote elsewhere. Tails outside of the ring are ignored.
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

    /// The command at the head and when it was announced, without taking it.
    ///
    /// # Errors
    /// When the words there are no command.
    pub fn peek(&self) -> Result<Option<(Packet, u64)>, BadPacket> {
        if self.is_drained() {
            return Ok(None);
        }
        let (packet, length) = Packet::decode(&self.words[self.head..])?;
        // One that goes on behind what is announced would have the head run past the end.
        if length > (self.announced + self.words.len() - self.head) % self.words.len() {
            return Err(BadPacket { header: self.words[self.head] });
        }
        let announced = self.doorbells.front().map_or(0, |(_, ns)| *ns);
        Ok(Some((packet, announced)))
    }

    /// Moves the head past the command there.
    pub fn pop(&mut self) {
        let length = Packet::decode(&self.words[self.head..]).map_or(1, |(_, length)| length);
        self.head = (self.head + length) % self.words.len();
        while self.doorbells.front().is_some_and(|(tail, _)| *tail == self.head) {
            self.doorbells.pop_front();
        }
    }

    /// Drops what is announced and not yet read, as a reset does.
    pub fn clear(&mut self) {
        self.head = self.tail;
        self.announced = self.tail;
        self.doorbells.clear();
    }

    /// Overwrites the word at the head, as a stray write of the host would.
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
            // Lengths of 3 and 4 words, so that the end is met everywhere.
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
