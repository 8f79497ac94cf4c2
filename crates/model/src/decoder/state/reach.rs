//! Truncation state of a text: it can be truncated to any of its last tokens, or to the end of a page.

/// The lengths to which a text can be truncated. Keys and values of all tokens are kept, so every length is possible. A recurrent state only has the
/// values after the last few tokens and after the last token of each page.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Number of values that states keep.
    kept: usize,
    /// Tokens per page.
    page: usize,
    /// Up to this length only ends of pages are left.
    lost: usize,
}

impl Reach {
    /// Creates it for states that keep values after the last `kept` tokens, or after all, in pages of `page` tokens.
    pub(super) fn new(kept: Option<usize>, page: usize) -> Self {
        Self { kept: kept.unwrap_or(usize::MAX), page, lost: 0 }
    }

    /// Records that tokens up to `end` were written, including those that the text drops again.
    pub fn wrote(&mut self, end: usize) {
        self.lost = self.lost.max(end.saturating_sub(self.kept));
    }

    /// Truncates to `length` of the written tokens, or to fewer if necessary, and returns the length. The caller writes later tokens again.
    pub fn back(&mut self, length: usize) -> usize {
        if length > self.lost || self.kept == usize::MAX {
            return length;
        }
        self.lost = length / self.page * self.page;
        self.lost
    }

    /// Everything is forgotten.
    pub fn clear(&mut self) {
        self.lost = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_back_to_their_last_tokens_and_to_ends_of_pages() {
        let mut all = Reach::new(None, 4);
        all.wrote(100);
        assert_eq!([99, 5, 0].map(|length| all.back(length)), [99, 5, 0]);
        let mut last = Reach::new(Some(3), 8);
        last.wrote(21);
        assert_eq!((last.back(21), last.back(19)), (21, 19));
        // Token 18 is no longer kept, so the text is read again from the end of the previous page.
        assert_eq!(last.back(18), 16);
        assert_eq!(last.back(16), 16);
        last.wrote(18);
        assert_eq!((last.back(18), last.back(17)), (18, 17));
        // Tokens written beyond the text overwrote values of earlier ones.
        last.wrote(22);
        assert_eq!(last.back(20), 20);
        last.wrote(21);
        assert_eq!((last.back(20), last.back(19)), (20, 16));
        assert_eq!(last.back(7), 0);
        last.wrote(40);
        last.clear();
        assert_eq!(last.back(0), 0);
    }
}
