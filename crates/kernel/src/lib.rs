//! netcl-kernel
