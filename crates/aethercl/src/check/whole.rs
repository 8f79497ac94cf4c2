//! An access of all running lanes at once, where it stays within one object: most do, and most checks then need no look at
//! every lane.

use super::{Context, Kind};
use crate::memory::address::{self, Space};
use std::ops::Range;

/// An access whose lanes all stay inside of one object, aligned.
pub struct Whole<'a> {
    /// What it does.
    pub kind: Kind,
    /// What memory holds matters.
    pub reads: bool,
    /// Bytes that each lane touches.
    pub bytes: u32,
    /// The space.
    pub space: Space,
    /// The argument, or the object of its space.
    pub object: u32,
    /// Bytes from the start of the allocation, or of the space, that lanes touch: from the first to behind the last.
    pub places: Range<usize>,
    /// Each lane touches what lies behind the lane before it.
    pub consecutive: bool,
    /// The lowest address.
    low: u64,
    addresses: &'a [u64],
}

impl<'a> Whole<'a> {
    /// None where a lane leaves the object, or is not aligned. The mask has a lane.
    pub fn of(
        addresses: &'a [u64],
        (kind, reads): (Kind, bool),
        bytes: u32,
        align: u32,
        cx: &Context<'_>,
    ) -> Option<Whole<'a>> {
        let range = cx.mask.range();
        let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
        let lanes = &addresses[range.clone()];
        if cx.mask.is_dense() {
            for a in lanes {
                (low, high, bits) = (low.min(*a), high.max(*a), bits | a);
            }
        } else {
            for (a, m) in lanes.iter().zip(&cx.mask.bits()[range.clone()]) {
                let here = u64::from(*m != 0).wrapping_neg();
                (low, high, bits) = (low.min(a | !here), high.max(a & here), bits | (a & here));
            }
        }
        let first = cx.touch(range.start, low, bytes);
        let last = cx.touch(range.start, high, bytes);
        let same = low >> 48 == high >> 48 && first.object == last.object;
        if !(same && first.inside && last.inside) || bits & (u64::from(align) - 1) != 0 {
            return None;
        }
        let step = u64::from(bytes);
        let consecutive = cx.mask.is_dense() && lanes.windows(2).all(|w| w[1].wrapping_sub(w[0]) == step);
        let places = first.place as usize..last.place as usize + bytes as usize;
        debug_assert!(address::space(low) == first.space);
        Some(Whole {
            kind,
            reads,
            bytes,
            space: first.space,
            object: first.object,
            places,
            consecutive,
            low,
            addresses,
        })
    }

    /// Bytes from the start of the allocation, or of the space, to what a running lane touches.
    #[inline(always)]
    pub fn place(&self, lane: usize) -> usize {
        self.places.start + (self.addresses[lane] - self.low) as usize
    }

    /// Bytes that the lanes touch together, each counted as often as it is touched.
    pub fn touched(&self, cx: &Context<'_>) -> usize {
        cx.mask.count() * self.bytes as usize
    }
}
