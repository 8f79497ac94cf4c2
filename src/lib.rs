//! netcl
