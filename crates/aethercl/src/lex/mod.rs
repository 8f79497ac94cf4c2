//! Converts source to tokens, and literals to values.

mod literal;
mod scan;
mod token;

pub use literal::{Number, parse_char, parse_number, parse_text, round_to};
pub use scan::scan;
pub(crate) use token::strength;
pub use token::{Names, Symbol, Token, TokenKind};
