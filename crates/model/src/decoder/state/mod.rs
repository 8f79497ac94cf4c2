//! Decoding states of texts: a list with one entry per layer, for any mixer.
//!
//! [`StateSpec::Rows`] are kept for every token, such as keys and values. A [`StateSpec::Recurrent`] is one vector: a page holds the values after its
//! last nine tokens, so its end is a snapshot. Pages of both kinds are shared, copied and found in the same way. [`Reach`] says how far a text can go
//! back; it is prefilled again from there. Caches, the engine, speculation and memory estimates use these sizes.

mod reach;
mod recurrent;
mod spec;
mod states;

pub use reach::Reach;
pub use recurrent::At;
pub(super) use spec::Room;
pub use spec::{CacheType, StateSpec};
pub use states::{LayerState, States};
