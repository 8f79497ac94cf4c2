//! Image reads and writes, one lane at a time.

use super::access::{put_atomic, read, write};
use super::bytecode::{ImageRead, ImageWrite, MemType, Reg};
use super::group::Group;
use crate::builtins::convert::{f32_to_half, half_to_f32};
use crate::image::{Class, Coordinates, Image, Sampler, Taps, taps};
use crate::memory::{Allocation, address};
use std::sync::atomic::AtomicU32;

/// Returns a texel's bytes.
fn load(words: &[AtomicU32], at: i64, bytes: u64) -> u128 {
    match bytes {
        1 => read(words, at, MemType::U8).into(),
        2 => read(words, at, MemType::U16).into(),
        4 => read(words, at, MemType::B32).into(),
        8 => read(words, at, MemType::B64).into(),
        _ => u128::from(read(words, at, MemType::B64)) | u128::from(read(words, at + 8, MemType::B64)) << 64,
    }
}

fn store(words: &[AtomicU32], at: i64, bytes: u64, texel: u128) {
    let put = |at: i64, ty: MemType, value: u64| write(at, ty, value, |i, v, m| put_atomic(words, i, v, m));
    match bytes {
        1 => put(at, MemType::U8, texel as u64),
        2 => put(at, MemType::U16, texel as u64),
        4 => put(at, MemType::B32, texel as u64),
        8 => put(at, MemType::B64, texel as u64),
        _ => {
            put(at, MemType::B64, texel as u64);
            put(at + 8, MemType::B64, (texel >> 64) as u64);
        }
    }
}

/// Returns the four numbers of a read, from the texels that it touches.
fn filtered(image: &Image, taps: &Taps, texel: impl Fn([i64; 3]) -> u128) -> [u32; 4] {
    let colour = |at| {
        if image.holds(at) { image.format.decode(texel(at)) } else { image.format.border() }
    };
    let list = taps.list();
    if let [one] = list {
        return colour(one.at);
    }
    let mut sum = [0f32; 4];
    for tap in list {
        let part = colour(tap.at);
        sum.iter_mut().zip(part).for_each(|(s, c)| *s += tap.weight * f32::from_bits(c));
    }
    sum.map(f32::to_bits)
}

impl<'a> Group<'a> {
    /// Returns the image of a register, its memory, and the offset of its first texel in it.
    pub(super) fn image(&self, r: Reg) -> Option<(Image, &'a Allocation, i64)> {
        let lane = self.mask.lanes().next()?;
        let at = self.lane_value(r, lane);
        let image = (*self.shared.images.get(address::argument(at)?)?)?;
        let (allocation, start) = self.find(at)?;
        Some((image, allocation, start))
    }

    /// Returns a lane's coordinate.
    pub(super) fn coordinates(&self, floats: bool, at: &[Reg], lane: usize) -> Coordinates {
        let bits = [0, 1, 2].map(|d| self.lane_value(at[d], lane) as u32);
        if floats {
            Coordinates::Float(bits.map(f32::from_bits))
        } else {
            Coordinates::Int(bits.map(|b| b as i32))
        }
    }

    /// Returns the texels that a lane's read touches; the list has nine registers.
    pub(super) fn taps(&self, how: ImageRead, list: &[Reg], image: &Image, lane: usize) -> Taps {
        let sampler = how.sampled.then(|| Sampler(self.lane_value(list[5], lane) as u32));
        taps(image, sampler, self.coordinates(how.floats, &list[6..], lane))
    }

    /// Returns the coordinate of a lane's write; the list has eight registers.
    pub(super) fn written_place(&self, list: &[Reg], lane: usize) -> [i64; 3] {
        [1, 2, 3].map(|i| i64::from(self.lane_value(list[i], lane) as u32 as i32))
    }

    /// Returns the texel that a lane writes.
    pub(super) fn written_texel(&self, how: ImageWrite, list: &[Reg], image: &Image, lane: usize) -> u128 {
        let colour = [4, 5, 6, 7].map(|i| self.lane_value(list[i], lane) as u32);
        image.format.encode(if how.half { colour.map(half_to_f32) } else { colour })
    }

    pub(super) fn read_image(&mut self, how: ImageRead, list: &[Reg]) {
        let found = self.image(list[4]);
        let mut out: [Vec<u32>; 4] = std::array::from_fn(|_| vec![0; self.lanes]);
        if let Some((image, allocation, start)) = found {
            let bytes = image.format.bytes();
            let half = how.half && image.format.channel.class() == Class::Float;
            for lane in self.mask.lanes() {
                let taps = self.taps(how, list, &image, lane);
                let texel = |at| load(&allocation.words, start + image.offset(at) as i64, bytes);
                let colour = filtered(&image, &taps, texel);
                for (to, value) in out.iter_mut().zip(colour) {
                    to[lane] = if half { f32_to_half(f32::from_bits(value)) } else { value };
                }
            }
        }
        for (dst, values) in list[..4].iter().zip(out) {
            self.word_scratch = values;
            self.put_word(*dst);
        }
    }

    pub(super) fn write_image(&mut self, how: ImageWrite, list: &[Reg]) {
        let Some((image, allocation, start)) = self.image(list[0]) else { return };
        for lane in self.mask.lanes() {
            let at = self.written_place(list, lane);
            if image.holds(at) {
                let texel = self.written_texel(how, list, &image, lane);
                store(&allocation.words, start + image.offset(at) as i64, image.format.bytes(), texel);
            }
        }
    }
}
