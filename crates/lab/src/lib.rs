//! The laboratory: commands of the `netcl` program that measure and teach, each with its flags, its help and its code, and what every
//! command needs of a terminal.
//!
//! Nothing here prints but [`out`], and nothing ends the process.
#![forbid(unsafe_code)]

// Commands.
pub mod bench;
pub mod learn;
pub mod sim;
pub mod tune;

// Flags that several commands have, and their values.
pub mod bytes;
pub mod loading;
pub mod model_size;
pub mod named;

// Surroundings and output.
pub mod context;
pub mod out;
pub mod profile;
pub mod ranks;
pub mod shell;
pub mod table;
