//! Decoding states of texts: a list, one for each layer, for any mixer.

mod reach;
mod recurrent;
mod spec;
mod states;

pub use reach::Reach;
pub use recurrent::At;
pub(super) use spec::Room;
pub use spec::{CacheType, StateSpec};
pub use states::{State, States};
