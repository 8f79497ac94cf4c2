//! Tuned parameters: which candidates there are, how they were measured, what was chosen and why.

mod json_file;
pub mod model;
mod proof;
mod quarantine;
mod search;
mod space;
mod store;

pub use model::{Constant, Model};
pub use quarantine::{Quarantine, Suspect};
pub use search::{Outcome, REPEATS, Trial, search};
pub use space::{Recording, Tuning, combinations, covering};
pub use store::{Measurement, Origin, Record, Store};

/// Values of a kernel's parameters.
pub type Params = std::collections::BTreeMap<String, i64>;
