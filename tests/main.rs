//! Tests of the engine through its public interface. They are one test binary, because each binary links all crates.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // helpers of tests

mod ranks;

mod accumulation;
mod capture;
mod classifier_ranks;
mod decoder;
mod evaluate;
mod examples;
mod families;
mod faults;
mod fine_tune;
mod gpt_parity;
mod mixture;
mod parallel;
mod pipeline;
mod preferences;
mod promises;
mod replay;
mod tiny;
mod train_reference;
mod vision;
mod zero;
