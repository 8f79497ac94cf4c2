//! Language models: a thread has the model and its texts; Python asks, hears of text as it comes, and may go on with other things.

mod model;
mod sampling;
mod stream;
mod worker;

use pyo3::prelude::*;

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<model::PyModel>()?;
    m.add_class::<stream::PyStream>()
}
