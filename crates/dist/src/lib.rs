//! Ranks that compute together: collective operations over the devices of one process, or over processes that an MPI launcher started.
//!
//! ```text
//! Group       interface of a rank: all_reduce, reduce_scatter, all_gather, broadcast, scatter, gather, send, recv, barrier
//! algorithms  pairwise exchange, Bruck's all-gather, binomial trees: written once, over messages from rank to rank
//! Transport   such messages: between threads (local), by MPI (mpi), or either with an added delay and bandwidth limit (slowed)
//! ```
//!
//! Sums are computed in rank order, for 16-bit floats in f32, and rounded once. So a result depends on the number of ranks. It does not depend on the
//! transport, on the arrival times of messages, or on how a vector is split into pieces: two runs give the same bits.

mod collective;
mod cost;
mod element;
mod group;
mod local;
mod mailbox;
mod mpi;
mod relay;
mod selftest;
mod shard;
mod slowed;
mod subset;
mod tensors;
mod transport;
mod watch;

pub use element::{Element, Reduction};
pub use group::Group;
pub use local::local;
pub use mailbox::Mailbox;
pub use mpi::{Launcher, Mpi, launched};
pub use relay::{Collected, Relay, RelaySettings, SmallTimes, Span, WayTime, sum_into};
pub use selftest::{SelfTest, selftest, selftest_long};
pub use shard::{divide, divide_within, shard};
pub use slowed::{Link, slowed};
pub use transport::Transport;
pub use watch::Watch;

#[cfg(test)]
mod segments_tests;
