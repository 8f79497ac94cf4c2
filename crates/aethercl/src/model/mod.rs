//! The device model: GPU profiles as data, and the computation of a launch's time on such a GPU from its counters.

mod lines;
mod occupancy;
mod profile;
mod rank;
mod timing;

pub use lines::line_shares;
pub use occupancy::{Limit, Occupancy};
pub use profile::{
    Cache, Compute, DeviceMemory, Latency, LaunchOverhead, Link, LocalMemory, Profile, ProfileError, Rates,
};
pub use rank::spearman;
pub use timing::{Bound, Estimate, copy_ns, fill_ns, kernel};
