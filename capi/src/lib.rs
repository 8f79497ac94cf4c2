//! libnetcl: netcl and AetherCL for programs in C. the headers in `include` have every function, docs/c.md the guide.
//!
//! Every function goes through [`edge`], looks its handles up in tables ([`handles`]) and its pointers at through [`pointers`].
#![allow(unsafe_code)] // what C calls, and what C points to
#![allow(clippy::too_many_arguments)] // signatures that programs rely on

mod driver;
mod edge;
mod handles;
mod machine;
mod model;
mod pointers;
mod simulated;
mod status;
mod tensor;
