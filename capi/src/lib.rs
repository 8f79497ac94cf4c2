//! libnetcl: netcl and AetherCL for programs in C. The headers in `include` declare every function; docs/c.md is the guide.
//!
//! Every function passes through [`edge`]. It looks up handles in tables ([`handles`]) and checks pointers ([`pointers`]).
#![allow(unsafe_code)] // functions called from C, and pointers passed by C
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
