//! netcl-nn
