//! The lab: commands of the `netcl` program that measure and teach, each with its flags, its help and its code, and the terminal code that every
//! command needs.
//!
//! Only [`out`] prints, and no function ends the process.
#![forbid(unsafe_code)]

// Commands.
pub mod bench;
pub mod learn;
pub mod sim;
pub mod tune;

// Flags shared by several commands, and their values.
pub mod loading;
pub mod model_size;
pub mod named;

// Environment and output.
pub mod context;
pub mod out;
pub mod profile;
pub mod ranks;
pub mod shell;
pub mod table;
