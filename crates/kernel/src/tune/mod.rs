//! Autotuning: candidate values of kernel parameters, their measurement, the stored choices, the quarantine of failing variants, and the device model
//! for estimates.

mod json_file;
pub mod model;
mod proof;
mod quarantine;
mod search;
mod space;
mod store;

pub use model::{Constant, Model};
pub use proof::take_crash;
pub use quarantine::{Quarantine, Suspect};
pub use search::{REPEATS, SearchOutcome, Trial, search};
pub use space::{Recording, Tuning, combinations, covering};
pub use store::{Measurement, Origin, Record, Store};

/// Values of a kernel's tuned parameters, by name.
pub type Params = std::collections::BTreeMap<String, i64>;
