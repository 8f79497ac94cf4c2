//! Calls the API functions without a loader.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

mod buffers;
mod events;
mod held;
mod images;
mod misuse;
mod programs;
mod setup;
mod threads;
