//! One allocation of device memory: words that threads may share, and a record of the written bytes.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A block of device memory.
#[derive(Debug)]
pub struct Allocation {
    /// Address of its first byte.
    pub address: u64,
    /// Requested size in bytes.
    pub bytes: u64,
    /// Its owner's name for it.
    pub tag: String,
    /// The content in little-endian words of four bytes. The last word may extend beyond the allocation.
    pub words: Box<[AtomicU32]>,
    /// One bit per byte: written since allocation.
    written: Box<[AtomicU32]>,
}

/// Saved content of a range of an allocation.
pub struct Saved {
    word: usize,
    words: Vec<u32>,
    bit_word: usize,
    bits: Vec<u32>,
}

impl Allocation {
    /// Returns a zero-filled block in which no byte counts as written.
    pub fn new(address: u64, bytes: u64, tag: &str) -> Allocation {
        let words = bytes.div_ceil(4) as usize;
        Allocation {
            address,
            bytes,
            tag: tag.to_string(),
            words: bytemuck::allocation::zeroed_slice_box(words),
            written: bytemuck::allocation::zeroed_slice_box(words.div_ceil(8)),
        }
    }

    /// Reads bytes starting at `offset`; the range must be in bounds.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let head = ((4 - offset % 4) % 4).min(to.len());
        let (first, rest) = to.split_at_mut(head);
        for (i, byte) in first.iter_mut().enumerate() {
            *byte = self.byte(offset + i);
        }
        let start = (offset + head) / 4;
        let mut chunks = rest.chunks_exact_mut(4);
        let whole = chunks.len();
        for (bytes, word) in (&mut chunks).zip(self.words.iter().skip(start)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        for (i, byte) in chunks.into_remainder().iter_mut().enumerate() {
            *byte = self.byte((start + whole) * 4 + i);
        }
    }

    /// Writes bytes starting at `offset` and marks them as written; the range must be in bounds.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let head = ((4 - offset % 4) % 4).min(from.len());
        let (first, rest) = from.split_at(head);
        for (i, &byte) in first.iter().enumerate() {
            self.set_byte(offset + i, byte);
        }
        let start = (offset + head) / 4;
        let chunks = rest.chunks_exact(4);
        let tail = chunks.remainder();
        let whole = chunks.len();
        for (bytes, word) in chunks.zip(self.words.iter().skip(start)) {
            word.store(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), Relaxed);
        }
        for (i, &byte) in tail.iter().enumerate() {
            self.set_byte((start + whole) * 4 + i, byte);
        }
        self.mark_written(offset, from.len());
    }

    fn byte(&self, offset: usize) -> u8 {
        (self.words[offset / 4].load(Relaxed) >> (offset % 4 * 8)) as u8
    }

    fn set_byte(&self, offset: usize, byte: u8) {
        let shift = offset % 4 * 8;
        store_part(&self.words[offset / 4], u32::from(byte) << shift, 0xff << shift);
    }

    /// Marks `bytes` bytes starting at `offset` as written.
    pub fn mark_written(&self, offset: usize, bytes: usize) {
        let (mut at, end) = (offset, (offset + bytes).min(self.bytes as usize));
        while at < end {
            let n = (32 - at % 32).min(end - at);
            let bits = (u32::MAX >> (32 - n)) << (at % 32);
            let word = &self.written[at / 32];
            if bits == u32::MAX {
                word.store(bits, Relaxed);
            } else {
                word.fetch_or(bits, Relaxed);
            }
            at += n;
        }
    }

    /// Returns true if all of `bytes` bytes (at most 8, not across a multiple of 32) starting at `offset` were written.
    pub fn is_written(&self, offset: usize, bytes: usize) -> bool {
        let bits = (u32::MAX >> (32 - bytes.clamp(1, 32))) << (offset % 32);
        self.written.get(offset / 32).is_some_and(|word| word.load(Relaxed) & bits == bits)
    }

    /// Returns true if all of `bytes` bytes starting at `offset`, which must be in bounds, were written.
    pub fn is_range_written(&self, offset: usize, bytes: usize) -> bool {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let n = (32 - at % 32).min(end - at);
            if !self.is_written(at, n) {
                return false;
            }
            at += n;
        }
        true
    }

    /// Saves content and written bits of a range.
    pub fn save(&self, offset: usize, bytes: usize) -> Saved {
        let load = |list: &[AtomicU32], from: usize, to: usize| {
            list[from..to.min(list.len())].iter().map(|w| w.load(Relaxed)).collect()
        };
        let end = offset + bytes;
        Saved {
            word: offset / 4,
            words: load(&self.words, offset / 4, end.div_ceil(4)),
            bit_word: offset / 32,
            bits: load(&self.written, offset / 32, end.div_ceil(32)),
        }
    }

    /// Restores a saved range.
    pub fn restore(&self, saved: &Saved) {
        let store = |list: &[AtomicU32], from: usize, values: &[u32]| {
            list[from..].iter().zip(values).for_each(|(w, v)| w.store(*v, Relaxed));
        };
        store(&self.words, saved.word, &saved.words);
        store(&self.written, saved.bit_word, &saved.bits);
    }

    /// Copies the written bits from another allocation whose content was copied.
    pub fn copy_written(&self, from: &Allocation, from_offset: usize, offset: usize, bytes: usize) {
        for i in 0..bytes {
            if from.is_written(from_offset + i, 1) {
                self.mark_written(offset + i, 1);
            }
        }
    }
}

/// Stores the bits of `mask` atomically and preserves the other bits of the word.
#[inline(always)]
pub fn store_part(word: &AtomicU32, value: u32, mask: u32) {
    let mut old = word.load(Relaxed);
    while let Err(now) = word.compare_exchange_weak(old, (old & !mask) | (value & mask), Relaxed, Relaxed) {
        old = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_bytes_come_back_and_count_as_written() {
        let a = Allocation::new(0, 101, "a");
        let data: Vec<u8> = (0..97).collect();
        a.write(3, &data);
        let mut back = vec![0; 97];
        a.read(3, &mut back);
        assert_eq!(back, data);
        assert!(!a.is_written(2, 1) && a.is_written(3, 1) && a.is_written(96, 4) && !a.is_written(100, 1));
        assert_eq!(a.byte(2), 0);
    }
}
