//! Language models. A separate thread owns the model and its sequences. Python sends requests to it and receives text while it is
//! generated.

mod model;
mod sampling;
mod stream;
mod worker;

use pyo3::prelude::*;

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<model::PyModel>()?;
    m.add_class::<stream::PyStream>()
}
