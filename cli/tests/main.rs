//! The program as users run it. One test binary for two dozen files, because linking takes a second.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // helpers of tests

mod common;
#[path = "common/mpi.rs"]
mod launch;

mod adapters;
mod bad_input;
mod command_line;
mod doctor;
mod errors;
mod evaluate;
mod foreign_gguf;
mod images;
mod learn;
mod messages;
mod mpi;
mod mpi_faults;
mod optimizers;
mod profile;
mod program;
mod quantize;
mod resume;
mod resume_changes;
mod run_models;
mod serve;
mod several_devices;
mod sim;
mod sim_args;
mod sim_checks;
mod sim_programs;
mod sinks;
