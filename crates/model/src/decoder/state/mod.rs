//! Decoding states of texts: a list with one entry per layer, for any mixer.

mod reach;
mod recurrent;
mod spec;
mod states;

pub use reach::Reach;
pub use recurrent::At;
pub(super) use spec::Room;
pub use spec::{CacheType, StateSpec};
pub use states::{LayerState, States};
