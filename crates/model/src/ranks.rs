//! Tokens in descending order of their logits, sorted lazily: a vocabulary has up to some hundred thousand tokens, and samplers inspect only a few.

/// Tokens in descending order of logits; equal logits in ascending order of ids.
#[derive(Clone, Debug)]
pub struct RankedTokens<L> {
    logits: L,
    order: Vec<u32>,
    /// Length of the sorted prefix.
    sorted: usize,
}

impl<L: AsRef<[f32]>> RankedTokens<L> {
    /// All tokens of `logits (V)` except those with logit −∞.
    pub fn new(logits: L) -> Self {
        let values = logits.as_ref();
        let order = (0..values.len() as u32).filter(|i| values[*i as usize] != f32::NEG_INFINITY).collect();
        Self { logits, order, sorted: 0 }
    }

    /// Extends the sorted prefix by `n` tokens.
    fn select(&mut self, n: usize) {
        let logits = self.logits.as_ref();
        let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let rest = &mut self.order[self.sorted..];
        if n < rest.len() {
            rest.select_nth_unstable_by(n, by);
        }
        let n = n.min(rest.len());
        rest[..n].sort_unstable_by(by);
        self.sorted += n;
    }

    /// Returns the token of rank `i`, from 0.
    pub fn get(&mut self, i: usize) -> Option<usize> {
        while i >= self.sorted && self.sorted < self.order.len() {
            self.select(self.sorted.max(64));
        }
        self.order.get(i).map(|id| *id as usize)
    }

    /// Keeps the first `n`.
    pub fn keep(&mut self, n: usize) {
        if n > self.sorted {
            self.select(n - self.sorted);
        }
        self.order.truncate(n);
        self.sorted = self.sorted.min(n);
    }

    /// Drops the first `n`.
    pub fn drop_first(&mut self, n: usize) {
        if n > self.sorted {
            self.select(n - self.sorted);
        }
        let n = n.min(self.order.len());
        self.order.drain(..n);
        self.sorted -= n;
    }

    /// Keeps the tokens for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let (mut at, mut kept, sorted) = (0, 0, self.sorted);
        self.order.retain(|id| {
            let stays = keep(*id as usize);
            kept += usize::from(stays && at < sorted);
            at += 1;
            stays
        });
        self.sorted = kept;
    }

    /// Returns the remaining tokens, in unspecified order.
    pub fn tokens(&self) -> &[u32] {
        &self.order
    }

    /// Returns the logits of all tokens.
    pub fn logits(&self) -> &[f32] {
        self.logits.as_ref()
    }

    /// Returns the logits, with −∞ for dropped tokens.
    pub fn into_logits(mut self) -> L
    where
        L: AsMut<[f32]>,
    {
        let mut left = vec![false; self.logits.as_ref().len()];
        self.order.iter().for_each(|id| left[*id as usize] = true);
        for (logit, left) in self.logits.as_mut().iter_mut().zip(left) {
            *logit = if left { *logit } else { f32::NEG_INFINITY };
        }
        self.logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> Vec<f32> {
        (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32).collect()
    }

    fn whole(logits: &[f32]) -> Vec<usize> {
        let mut all: Vec<usize> = (0..logits.len()).collect();
        all.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        all
    }

    fn rest(ranks: &mut RankedTokens<&Vec<f32>>) -> Vec<usize> {
        (0..).map_while(|i| ranks.get(i)).collect()
    }

    /// Lazy sorting gives the same order as sorting everything.
    #[test]
    fn ranks_are_those_of_a_whole_sort() {
        let logits = logits();
        let all = whole(&logits);
        let mut ranks = RankedTokens::new(&logits);
        assert_eq!(
            (0..5001).map(|i| ranks.get(i)).collect::<Vec<_>>(),
            [all.iter().map(|i| Some(*i)).collect(), vec![None]].concat()
        );
        for (seen, kept) in [(0, 200), (3, 1), (1000, 999), (70, 5000), (0, 9000)] {
            let mut ranks = RankedTokens::new(&logits);
            (0..seen).for_each(|i| assert_eq!(ranks.get(i), Some(all[i])));
            ranks.keep(kept);
            assert_eq!(rest(&mut ranks), all[..kept.min(5000)]);
        }
    }

    #[test]
    fn what_is_dropped_leaves_the_order_of_the_rest() {
        let logits = logits();
        let all = whole(&logits);
        for (seen, dropped) in [(0, 0), (0, 3), (100, 3), (3, 100), (70, 5000), (0, 9000)] {
            let mut ranks = RankedTokens::new(&logits);
            (0..seen).for_each(|i| assert_eq!(ranks.get(i), Some(all[i])));
            ranks.drop_first(dropped);
            assert_eq!(rest(&mut ranks), all[dropped.min(5000)..]);
        }
        for seen in [0, 5, 300, 5000] {
            let mut ranks = RankedTokens::new(&logits);
            (0..seen).for_each(|i| assert_eq!(ranks.get(i), Some(all[i])));
            ranks.retain(|id| id % 3 == 0);
            let expected: Vec<_> = all.iter().copied().filter(|id| id % 3 == 0).collect();
            assert_eq!(rest(&mut ranks), expected);
            let mut left = ranks.tokens().to_vec();
            left.sort_unstable();
            assert_eq!(left.len(), expected.len());
        }
    }
}
