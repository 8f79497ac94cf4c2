//! The rows of a tied embedding that a step's tokens use.
//!
//! The table of a tied model has two gradients: that of the output head, with which the backward pass begins, and that of the embedding, with which
//! it ends. The second one has only the rows of the batch's tokens. Ranks reduce the first like any gradient, during the backward pass. All ranks
//! have to wait for the second, so they reduce only the rows that some rank needs.

/// The tokens of a step, one bit per row of the table.
pub(super) struct TokenRows {
    bits: Vec<u8>,
}

impl TokenRows {
    /// Creates an empty set of tokens of a vocabulary of this size.
    pub fn new(vocab: usize) -> Self {
        Self { bits: vec![0; vocab.div_ceil(8)] }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.bits.fill(0);
    }

    /// Adds tokens; ignores ids outside of the vocabulary, which do not get a gradient.
    pub fn add(&mut self, ids: &[u32]) {
        for id in ids {
            if let Some(byte) = self.bits.get_mut(*id as usize / 8) {
                *byte |= 1 << (id % 8);
            }
        }
    }

    /// Returns the bits that ranks exchange.
    pub fn bits(&self) -> &[u8] {
        &self.bits
    }
}

/// Returns the rows that at least one of the ranks needs, in order.
pub(super) fn union(ranks: &[Vec<u8>]) -> Vec<u32> {
    let bytes = ranks.iter().map(Vec::len).max().unwrap_or(0);
    let any = |at: usize| ranks.iter().fold(0, |any, bits| any | bits.get(at).copied().unwrap_or(0));
    let rows = (0..bytes).flat_map(|at| {
        let byte = any(at);
        (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| (at * 8 + bit) as u32)
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_any_rank_in_order() {
        let of = |ids: &[u32]| {
            let mut rows = TokenRows::new(19);
            rows.add(&[5]);
            rows.clear();
            rows.add(ids);
            rows.bits().to_vec()
        };
        assert_eq!(union(&[of(&[18, 3, 3]), of(&[0, 8, 1000])]), [0, 3, 8, 18]);
        assert!(union(&[of(&[]), of(&[])]).is_empty());
        let all: Vec<u32> = (0..19).collect();
        assert_eq!(union(&[of(&all)]), all);
    }
}
