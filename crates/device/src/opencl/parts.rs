//! Release order of sub-buffers.
//!
//! For each range of a buffer, NVIDIA's driver (580.159) keeps a list of the sub-buffers that kernels have used there. Suppose two of them overlap
//! without being equal. Releasing the older one first leaves an empty list, which the release of the newer one then follows (a crash in
//! `clReleaseMemObject`). Releasing in reverse order of creation is safe. Equal and disjoint sub-buffers are safe in any order.

/// Sub-buffers of one buffer, oldest first. Dropping a `T` releases it.
pub(super) struct Parts<T> {
    next: u64,
    parts: Vec<Part<T>>,
}

struct Part<T> {
    number: u64,
    start: usize,
    end: usize,
    /// The part has no more users.
    gone: bool,
    _owner: T,
}

impl<T> Part<T> {
    /// Returns true if the older of the two must outlive the newer.
    fn overlaps(&self, other: &Self) -> bool {
        let equal = (self.start, self.end) == (other.start, other.end);
        !equal && self.start < other.end && other.start < self.end
    }
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { next: 0, parts: Vec::new() }
    }
}

impl<T> Parts<T> {
    /// Adds the newest part and returns the number that [`Parts::remove`] takes.
    pub fn add(&mut self, start: usize, bytes: usize, owner: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.parts.push(Part { number, start, end: start + bytes, gone: false, _owner: owner });
        number
    }

    /// Drops a part as soon as no newer part overlaps it, together with the parts that waited for it.
    pub fn remove(&mut self, number: u64) {
        let Ok(at) = self.parts.binary_search_by_key(&number, |part| part.number) else { return };
        self.parts[at].gone = true;
        let mut released: Vec<Part<T>> = Vec::new();
        for i in (0..=at).rev() {
            let part = &self.parts[i];
            let waited = i == at || part.gone && released.iter().any(|newer| newer.overlaps(part));
            if waited && !self.parts[i + 1..].iter().any(|newer| newer.overlaps(part)) {
                released.push(self.parts.remove(i));
            }
            if released.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Logged(usize, Rc<RefCell<Vec<usize>>>);
    impl Drop for Logged {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    /// Returns the release order of parts with these ranges, dropped in the order `drops`.
    fn released(ranges: &[(usize, usize)], drops: &[usize]) -> Vec<usize> {
        let log: Rc<RefCell<Vec<usize>>> = Rc::default();
        let mut parts = Parts::default();
        let owner = |i| Logged(i, Rc::clone(&log));
        let numbers: Vec<u64> = ranges
            .iter()
            .enumerate()
            .map(|(i, (start, end))| parts.add(*start, end - start, owner(i)))
            .collect();
        drops.iter().for_each(|i| parts.remove(numbers[*i]));
        log.take()
    }

    #[test]
    fn what_overlaps_is_released_newest_first() {
        let chain = [(0, 4), (2, 6), (5, 8)];
        assert_eq!(released(&chain, &[0, 1]), []);
        assert_eq!(released(&chain, &[0, 1, 2]), [2, 1, 0]);
        assert_eq!(released(&chain, &[2, 0, 1]), [2, 1, 0]);
        assert_eq!(released(&chain, &[1, 2, 0]), [2, 1, 0]);
        // A dropped part that is not released yet still keeps the older parts that it overlaps.
        assert_eq!(released(&[(0, 4), (2, 6), (4, 8), (0, 2)], &[0, 3, 1]), [3]);
    }

    #[test]
    fn what_is_equal_or_disjoint_does_not_wait() {
        assert_eq!(released(&[(0, 4), (4, 8), (0, 4)], &[0, 1]), [0, 1]);
        // Equal numbers of added and removed parts leave nothing.
        let mut parts = Parts::default();
        let mut last = parts.add(0, 8, ());
        for i in 1..1000 {
            let next = parts.add(i % 2 * 8, 8, ());
            parts.remove(last);
            last = next;
        }
        assert_eq!(parts.parts.len(), 1);
    }

    #[test]
    fn every_order_of_drops_releases_all_and_newer_before_older() {
        let mut draw = crate::draw::Draw::new(1);
        let mut random = |n: usize| draw.below(n);
        for _ in 0..200 {
            let ranges: Vec<(usize, usize)> = (0..30)
                .map(|_| {
                    let start = random(40);
                    (start, start + 1 + random(12))
                })
                .collect();
            let mut drops: Vec<usize> = (0..ranges.len()).collect();
            (1..drops.len()).rev().for_each(|i| drops.swap(i, random(i + 1)));
            let order = released(&ranges, &drops);
            assert_eq!(order.len(), ranges.len());
            let place = |i: usize| order.iter().position(|x| *x == i);
            for new in 0..ranges.len() {
                for old in 0..new {
                    let (a, b) = (ranges[old], ranges[new]);
                    assert!(
                        a == b || a.0 >= b.1 || b.0 >= a.1 || place(new) < place(old),
                        "{a:?} before {b:?}"
                    );
                }
            }
        }
    }
}
