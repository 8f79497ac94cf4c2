//! What decoding keeps of texts: a list of states, one for each layer, whatever mixes the layer's tokens.

mod reach;
mod recurrent;
mod spec;
mod states;

pub use reach::Reach;
pub use recurrent::At;
pub(super) use spec::Room;
pub use spec::{CacheType, StateSpec};
pub use states::{State, States};
