//! The mask of running lanes of a work-group.

use super::lanes::LaneOperand;
use pulp::{Arch, NullaryFnOnce};

/// A set of lanes.
#[derive(Debug, Clone, Default)]
pub struct Mask {
    /// All ones for a lane in the set, otherwise 0.
    bits: Vec<u32>,
    lo: usize,
    hi: usize,
    count: usize,
}

impl Mask {
    /// Returns an empty set of `lanes` lanes.
    pub fn new(lanes: usize) -> Mask {
        Mask { bits: vec![0; lanes], ..Mask::default() }
    }

    /// Sets the first `lanes` lanes, all of a group.
    pub fn fill(&mut self, lanes: usize) {
        self.bits.fill(0);
        self.bits[..lanes].fill(u32::MAX);
        (self.lo, self.hi, self.count) = (0, lanes, lanes);
    }

    /// Returns the range from the first lane of the set to after the last one.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.lo..self.hi
    }

    /// Returns the number of lanes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns true if no lane is set.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if every lane of its range belongs to it.
    pub fn is_dense(&self) -> bool {
        self.count == self.hi - self.lo
    }

    /// Returns all ones for a lane in the set, otherwise 0; one entry per lane of the group.
    pub fn bits(&self) -> &[u32] {
        &self.bits
    }

    /// Returns true if a lane belongs to the set.
    pub fn has(&self, lane: usize) -> bool {
        self.bits[lane] != 0
    }

    /// Returns the lanes in order.
    pub fn lanes(&self) -> impl Iterator<Item = usize> + '_ {
        self.range().filter(|l| self.bits[*l] != 0)
    }

    /// Removes all lanes.
    pub fn clear(&mut self) {
        if self.count > 0 {
            self.bits[self.lo..self.hi].fill(0);
            (self.lo, self.hi, self.count) = (0, 0, 0);
        }
    }

    /// Moves lanes with condition 0 to `rest`.
    pub fn send(&mut self, arch: Arch, cond: LaneOperand<'_, u32>, rest: &mut Mask) {
        if self.count == 0 {
            return;
        }
        let range = self.range();
        let cond = match cond {
            LaneOperand::One(0) => {
                rest.join(self);
                return;
            }
            LaneOperand::One(_) => return,
            LaneOperand::Lanes(cond) => cond,
        };
        let (own, other) = (&mut self.bits[range.clone()], &mut rest.bits[range.clone()]);
        let staying = arch.dispatch(Send { own, other, cond });
        let moved = self.count - staying as usize;
        if moved == 0 {
            return;
        }
        let (lo, hi) = if rest.count == 0 {
            (range.start, range.end)
        } else {
            (rest.lo.min(range.start), rest.hi.max(range.end))
        };
        (rest.lo, rest.hi, rest.count) = (lo, hi, rest.count + moved);
        rest.shrink();
        self.count = staying as usize;
        self.shrink();
    }

    /// Moves lanes of `from` for which the condition holds to this set.
    pub fn take(&mut self, cond: LaneOperand<'_, u32>, from: &mut Mask) {
        let range = from.range();
        for (at, lane) in range.enumerate() {
            let holds = match cond {
                LaneOperand::One(c) => c != 0,
                LaneOperand::Lanes(c) => c[at] != 0,
            };
            if holds && from.bits[lane] != 0 {
                from.bits[lane] = 0;
                self.bits[lane] = u32::MAX;
            }
        }
        from.recount();
        self.recount();
    }

    /// Moves all lanes of `other` to this set.
    pub fn join(&mut self, other: &mut Mask) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            std::mem::swap(self, other);
            return;
        }
        for (own, more) in self.bits[other.lo..other.hi].iter_mut().zip(&mut other.bits[other.lo..other.hi]) {
            *own |= *more;
            *more = 0;
        }
        self.lo = self.lo.min(other.lo);
        self.hi = self.hi.max(other.hi);
        self.count += other.count;
        (other.lo, other.hi, other.count) = (0, 0, 0);
    }

    fn shrink(&mut self) {
        if self.count == 0 {
            (self.lo, self.hi) = (0, 0);
            return;
        }
        while self.bits[self.lo] == 0 {
            self.lo += 1;
        }
        while self.bits[self.hi - 1] == 0 {
            self.hi -= 1;
        }
    }

    fn recount(&mut self) {
        self.count = self.bits.iter().filter(|b| **b != 0).count();
        (self.lo, self.hi) = (0, self.bits.len());
        self.shrink();
    }
}

/// Implements [`Mask::send`] on bits; returns the number of remaining lanes.
struct Send<'m> {
    own: &'m mut [u32],
    other: &'m mut [u32],
    cond: &'m [u32],
}

impl NullaryFnOnce for Send<'_> {
    type Output = u32;
    #[inline(always)]
    fn call(self) -> u32 {
        let Send { own, other, cond } = self;
        let n = own.len();
        let (other, cond) = (&mut other[..n], &cond[..n]);
        let mut staying = 0;
        for i in 0..n {
            let keep = if cond[i] != 0 { own[i] } else { 0 };
            other[i] |= own[i] ^ keep;
            own[i] = keep;
            staying += keep & 1;
        }
        staying
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_neither_lost_nor_doubled() {
        let (mut now, mut rest) = (Mask::new(8), Mask::new(8));
        now.fill(6);
        now.send(Arch::new(), LaneOperand::Lanes(&[0, 1, 0, 5, 0, 0]), &mut rest);
        assert_eq!(now.lanes().collect::<Vec<_>>(), [1, 3]);
        assert_eq!((now.range(), now.is_dense()), (1..4, false));
        assert_eq!(rest.lanes().collect::<Vec<_>>(), [0, 2, 4, 5]);
        let mut more = Mask::new(8);
        now.send(Arch::new(), LaneOperand::Lanes(&[0, 9, 1]), &mut more);
        assert_eq!((now.count(), more.count()), (1, 1));
        now.join(&mut rest);
        now.join(&mut more);
        assert_eq!((now.count(), now.range(), now.is_dense()), (6, 0..6, true));
        assert!(rest.is_empty() && more.is_empty());
    }
}
