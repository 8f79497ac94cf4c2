//! Language models. A separate thread owns the model and its sequences. Python sends requests to it and receives text while it is
//! generated.
//!
//! The stack of that thread owns the loaded model and the objects that borrow it. Ctrl-C ends the receiving at once.

mod model;
mod sampling;
mod stream;
mod worker;

use pyo3::prelude::*;

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<model::PyModel>()?;
    m.add_class::<stream::PyStream>()
}
