//! Sizes of a layer's decoding state, and the lengths to which it can be truncated.

use netcl_tensor::ops::decode_attention::MAX_TOKENS;
use netcl_tensor::ops::paged_cache::q8_words;
use netcl_tensor::{DType, Error, Result};

/// Storage type of the rows that a state keeps for every token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheType {
    /// The type of the model's dense weights.
    #[default]
    Weights,
    /// 8 bits with a scale for every 32 elements of a head (ggml's q8_0).
    Q8_0,
}

impl CacheType {
    /// All values by name.
    pub const NAMES: [(&'static str, Self); 2] = [("weights", Self::Weights), ("q8_0", Self::Q8_0)];

    /// Returns the stored elements of a head: number and type.
    fn stored(self, size: usize, dtype: DType) -> (usize, DType) {
        match self {
            Self::Weights => (size, dtype),
            Self::Q8_0 => (q8_words(size), DType::U32),
        }
    }
}

impl std::str::FromStr for CacheType {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        found.ok_or_else(|| {
            Error::unsupported(format!("unknown cache type {name:?}; the types are weights and q8_0"))
        })
    }
}

/// The decoding state of a text in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpec {
    /// Rows of every token that later tokens read, such as keys and values.
    Rows {
        /// Rows per token.
        rows: usize,
        /// Elements per row.
        size: usize,
        /// Number of tokens that a new one reads, including itself; `None`: all.
        window: Option<usize>,
    },
    /// A vector that every token changes, in the type of the weights.
    Recurrent {
        /// Its elements.
        size: usize,
    },
}

/// Values of a recurrent state that a page keeps: those of all tokens of a step, and the preceding one. So a step can be partly undone. Running it
/// twice, for example during capture, gives the same result.
const KEPT_STATES_PER_PAGE: usize = MAX_TOKENS + 1;

/// Tokens between the values of a recurrent state that a separate cache keeps.
const INTERVAL: usize = 64;

/// Layout of states.
#[derive(Clone, Copy, Debug)]
pub(in crate::decoder) enum Room {
    /// Texts stored contiguously, each with the same capacity in tokens.
    Texts {
        /// Texts.
        count: usize,
        /// Tokens of each.
        tokens: usize,
    },
    /// Pages with the same number of tokens, which texts use in any order.
    Pages {
        /// Pages.
        count: usize,
        /// Tokens per page.
        size: usize,
    },
}

impl Room {
    /// Returns the tokens per page; also defined for recurrent states of contiguous texts.
    pub(super) fn page(self) -> usize {
        match self {
            Self::Texts { .. } => INTERVAL,
            Self::Pages { size, .. } => size,
        }
    }
}

impl StateSpec {
    /// Bytes of a text of `tokens` tokens in a separate cache; saturating.
    pub fn bytes(&self, tokens: usize, dtype: DType) -> u64 {
        self.bytes_of(Room::Texts { count: 1, tokens }, CacheType::Weights, dtype)
    }

    /// Bytes of a page of `tokens` tokens; saturating.
    pub fn page_bytes(&self, tokens: usize, kind: CacheType, dtype: DType) -> u64 {
        self.bytes_of(Room::Pages { count: 1, size: tokens }, kind, dtype)
    }

    fn bytes_of(&self, room: Room, kind: CacheType, dtype: DType) -> u64 {
        let (shape, stored) = self.shape(room, kind, dtype);
        shape.into_iter().chain([stored.size()]).fold(1, |all, n| all.saturating_mul(n as u64))
    }

    /// Returns shape and type of its memory: rows (B, S, rows, size), in pages (P, page, rows, size); values (B, pages, kept, size), or (P, 1, kept,
    /// size).
    pub(super) fn shape(&self, room: Room, kind: CacheType, dtype: DType) -> ([usize; 4], DType) {
        match (*self, room) {
            (
                Self::Rows { rows, size, .. },
                Room::Texts { count, tokens: page } | Room::Pages { count, size: page },
            ) => {
                let (elements, stored) = kind.stored(size, dtype);
                ([count, page, rows, elements], stored)
            }
            (Self::Recurrent { size }, Room::Texts { count, tokens }) => {
                ([count, tokens.div_ceil(INTERVAL), KEPT_STATES_PER_PAGE.min(INTERVAL), size], dtype)
            }
            (Self::Recurrent { size }, Room::Pages { count, size: page }) => {
                ([count, 1, KEPT_STATES_PER_PAGE.min(page), size], dtype)
            }
        }
    }

    /// Returns the number of tokens that a new one reads, including itself; `None`: all. Pages of earlier ones are no longer needed.
    pub fn window(&self) -> Option<usize> {
        match *self {
            Self::Rows { window, .. } => window,
            // The preceding value.
            Self::Recurrent { .. } => Some(2),
        }
    }

    /// Returns the number of last tokens by which a text can be truncated, in pages of `page` tokens; `None`: all. Beyond that, the end of each page
    /// is possible.
    pub(super) fn kept(&self, page: usize) -> Option<usize> {
        match self {
            Self::Rows { .. } => None,
            Self::Recurrent { .. } => Some(KEPT_STATES_PER_PAGE.min(page)),
        }
    }
}
