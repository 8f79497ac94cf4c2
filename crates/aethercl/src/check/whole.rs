//! An access of all running lanes within one object. Most accesses are of this kind, and most checks then need not inspect every lane.

use super::{GroupContext, Kind};
use crate::exec::Mask;
use crate::memory::address::{self, PointerSpace};
use pulp::Arch;
use std::ops::Range;

/// Addresses of the lanes of an access. Slices have one entry per lane of the group.
#[derive(Debug, Clone, Copy)]
pub enum Lanes<'a> {
    /// All to one address.
    Same(u64),
    /// Each to `base + index * scale`.
    Indexed {
        /// The address for index 0.
        base: u64,
        /// The index of each lane.
        index: &'a [u32],
        /// Whether the index is signed.
        signed: bool,
        /// Bytes.
        scale: i64,
    },
    /// A separate address per lane.
    Each(&'a [u64]),
}

impl Lanes<'_> {
    /// Returns the address of a running lane.
    #[inline(always)]
    fn at(&self, lane: usize) -> u64 {
        match *self {
            Lanes::Same(at) => at,
            Lanes::Indexed { base, index, signed, scale } => {
                base.wrapping_add(distance(index[lane], signed, scale) as u64)
            }
            Lanes::Each(addresses) => addresses[lane],
        }
    }

    /// Returns the lowest and the highest address of running lanes, and the OR of the bits of the inspected addresses. `None` if it cannot be
    /// determined.
    fn extent(&self, align: u32, mask: &Mask) -> Option<(u64, u64, u64)> {
        let range = mask.range();
        let bits = (!mask.is_dense()).then(|| &mask.bits()[range.clone()]);
        match *self {
            Lanes::Same(at) => Some((at, at, at)),
            Lanes::Indexed { base, index, signed, scale } => {
                // All addresses between the ends are multiples of the scale.
                if scale.unsigned_abs() >= 1 << 24 || scale % i64::from(align) != 0 {
                    return None;
                }
                let flip = if signed { 1 << 31 } else { 0 };
                let (low, high) = Arch::new().dispatch(Ends { index: &index[range], bits, flip });
                let end = |i: u32| base.wrapping_add(distance(i, signed, scale) as u64);
                let (a, b) = if scale < 0 { (end(high), end(low)) } else { (end(low), end(high)) };
                // Beyond the last address it would wrap around.
                (a <= b).then_some((a, b, a))
            }
            Lanes::Each(addresses) => {
                Some(Arch::new().dispatch(Bounds { addresses: &addresses[range], bits }))
            }
        }
    }
}

/// Returns the bytes from the address for index 0.
#[inline(always)]
fn distance(index: u32, signed: bool, scale: i64) -> i64 {
    let wide = if signed { i64::from(index as i32) } else { i64::from(index) };
    wide.wrapping_mul(scale)
}

/// The lowest and the highest index of the running lanes; `flip` has the highest bit set for signed ones.
struct Ends<'a> {
    index: &'a [u32],
    bits: Option<&'a [u32]>,
    flip: u32,
}

impl pulp::NullaryFnOnce for Ends<'_> {
    type Output = (u32, u32);
    #[inline(always)]
    fn call(self) -> (u32, u32) {
        let (mut low, mut high) = (u32::MAX, 0);
        match self.bits {
            None => {
                for i in self.index {
                    (low, high) = (low.min(i ^ self.flip), high.max(i ^ self.flip));
                }
            }
            Some(bits) => {
                for (i, m) in self.index.iter().zip(bits) {
                    let key = i ^ self.flip;
                    (low, high) = (low.min(key | !m), high.max(key & m));
                }
            }
        }
        (low ^ self.flip, high ^ self.flip)
    }
}

/// The lowest and the highest address of the running lanes, and the OR of all of them.
struct Bounds<'a> {
    addresses: &'a [u64],
    bits: Option<&'a [u32]>,
}

impl pulp::NullaryFnOnce for Bounds<'_> {
    type Output = (u64, u64, u64);
    #[inline(always)]
    fn call(self) -> (u64, u64, u64) {
        let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
        match self.bits {
            None => {
                for a in self.addresses {
                    (low, high, bits) = (low.min(*a), high.max(*a), bits | a);
                }
            }
            Some(running) => {
                for (a, m) in self.addresses.iter().zip(running) {
                    let here = u64::from(*m != 0).wrapping_neg();
                    (low, high, bits) = (low.min(a | !here), high.max(a & here), bits | (a & here));
                }
            }
        }
        (low, high, bits)
    }
}

/// An aligned access whose lanes all stay within one object.
pub struct Whole<'a> {
    /// Kind of access.
    pub kind: Kind,
    /// Whether the content of memory matters.
    pub reads: bool,
    /// Bytes that each lane accesses.
    pub bytes: u32,
    /// The space.
    pub space: PointerSpace,
    /// Index of the argument, or of the object in its space.
    pub object: u32,
    /// Byte range that the lanes access, from the start of the allocation or space: from the first byte to after the last one.
    pub places: Range<usize>,
    /// The lowest address.
    low: u64,
    lanes: Lanes<'a>,
}

impl<'a> Whole<'a> {
    /// Returns `None` if a lane leaves the object or is misaligned, or if checking requires inspecting every lane. At least one lane must be running.
    pub fn of(
        lanes: Lanes<'a>,
        (kind, reads): (Kind, bool),
        bytes: u32,
        align: u32,
        cx: &GroupContext<'_>,
    ) -> Option<Whole<'a>> {
        let (low, high, bits) = lanes.extent(align, cx.mask)?;
        let first = cx.touch(cx.mask.range().start, low, bytes);
        let last = if low == high { first } else { cx.touch(cx.mask.range().start, high, bytes) };
        let same = low >> 48 == high >> 48 && first.object == last.object;
        if !(same && first.inside && last.inside) || bits & (u64::from(align) - 1) != 0 {
            return None;
        }
        let places = first.place as usize..last.place as usize + bytes as usize;
        debug_assert!(address::space(low) == first.space);
        Some(Whole { kind, reads, bytes, space: first.space, object: first.object, places, low, lanes })
    }

    /// Returns the byte offset, from the start of the allocation or space, of a running lane's access.
    #[inline(always)]
    pub fn place(&self, lane: usize) -> usize {
        self.places.start + (self.lanes.at(lane) - self.low) as usize
    }

    /// Returns the total bytes that the lanes access; a byte accessed several times counts several times.
    pub fn touched(&self, cx: &GroupContext<'_>) -> usize {
        cx.mask.count() * self.bytes as usize
    }

    /// Returns true if all lanes touch the same bytes.
    pub fn is_same(&self) -> bool {
        self.places.len() == self.bytes as usize
    }

    /// Returns true if each lane accesses the bytes directly after those of the previous lane.
    pub fn is_consecutive(&self, cx: &GroupContext<'_>) -> bool {
        let range = cx.mask.range();
        if !cx.mask.is_dense() || self.places.len() != self.touched(cx) {
            return false;
        }
        match self.lanes {
            Lanes::Same(_) => true,
            // The distance between the ends shows that the indices of the lanes increase by one.
            Lanes::Indexed { index, scale, .. } if scale == i64::from(self.bytes) => {
                index[range].windows(2).fold(0, |odd, w| odd | (w[1].wrapping_sub(w[0]) ^ 1)) == 0
            }
            Lanes::Indexed { .. } => {
                let step = u64::from(self.bytes);
                range.clone().skip(1).all(|l| self.lanes.at(l).wrapping_sub(self.lanes.at(l - 1)) == step)
            }
            Lanes::Each(addresses) => {
                let step = u64::from(self.bytes);
                addresses[range].windows(2).fold(0, |odd, w| odd | (w[1].wrapping_sub(w[0]) ^ step)) == 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns masks: all lanes, every third, and one.
    fn masks() -> Vec<Mask> {
        let pick = |keep: fn(usize) -> bool| {
            let (mut mask, mut rest) = (Mask::new(40), Mask::new(40));
            mask.fill(40);
            let cond: Vec<u32> = (0..40).map(|l| u32::from(keep(l))).collect();
            mask.send(pulp::Arch::new(), crate::exec::lanes::LaneOperand::Lanes(&cond), &mut rest);
            mask
        };
        vec![pick(|_| true), pick(|l| l % 3 == 1), pick(|l| l == 7)]
    }

    #[test]
    fn ends_of_indexed_lanes_are_those_of_their_addresses() {
        let index: Vec<u32> = (0..40u32).map(|l| l.wrapping_mul(2_654_435_761)).collect();
        for (mask, signed) in masks().iter().flat_map(|m| [(m, false), (m, true)]) {
            for scale in [1, 4, -4, 12, 1 << 20] {
                let lanes = Lanes::Indexed { base: 3 << 56 | 1 << 55, index: &index, signed, scale };
                let addresses: Vec<u64> = (0..40).map(|l| lanes.at(l)).collect();
                let (low, high, _) = lanes.extent(1, mask).unwrap();
                let each = Lanes::Each(&addresses).extent(1, mask);
                let running: Vec<u64> = mask.lanes().map(|l| addresses[l]).collect();
                assert_eq!((Some(&low), Some(&high)), (running.iter().min(), running.iter().max()));
                let bits = running.iter().fold(0, |b, a| b | a);
                assert_eq!(Some((low, high, bits)), each, "{signed} {scale}");
            }
        }
    }

    #[test]
    fn lanes_around_the_end_of_addresses_and_unaligned_scales_are_looked_at_one_by_one() {
        let mask = &masks()[0];
        let index: Vec<u32> = (0..40).collect();
        let at = |base: u64, scale: i64| {
            Lanes::Indexed { base, index: &index, signed: false, scale }.extent(4, mask)
        };
        assert!(at(u64::MAX - 19, 4).is_none(), "some start over at 0");
        assert!(at(64, 6).is_none() && at(64, 1 << 40).is_none());
        assert_eq!(at(64, 8), Some((64, 64 + 39 * 8, 64)));
    }
}
