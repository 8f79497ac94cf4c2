//! The built-in functions of OpenCL C on numbers; the interpreter runs them over lanes.

pub mod convert;
pub mod integer;
pub mod math;
pub mod real;
