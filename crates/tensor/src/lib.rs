//! netcl-tensor
