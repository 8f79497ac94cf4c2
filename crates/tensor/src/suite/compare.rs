//! Comparison of results with references, and of two runs.

use crate::array::Array;
use crate::{Error, Result, Tensor};

/// Uploads `data` in the shapes and types of `ys`.
pub(super) fn upload_like(ys: &[Tensor], data: &[Array]) -> Result<Vec<Tensor>> {
    let place = |(y, dy): (&Tensor, &Array)| {
        let data: Vec<f32> = dy.data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(y.device(), y.shape(), &data, y.dtype())
    };
    ys.iter().zip(data).map(place).collect()
}

/// Checks that differences are within `tolerance` of the largest expected value, or of each element's own value, at least 1. Results that overflow
/// the storage type must be infinite. NaN never passes.
pub(super) fn compare(
    what: &str,
    got: &Tensor,
    expected: &Array,
    (tolerance, pointwise): (f64, bool),
) -> Result<()> {
    if *got.shape() != expected.shape {
        return Err(Error::internal(format!("{what}: shape {}, expected {}", got.shape(), expected.shape)));
    }
    let fits = |e: f64| got.dtype().round(e).is_finite();
    let largest = expected.data.iter().fold(1.0f64, |m, v| if fits(*v) { m.max(v.abs()) } else { m });
    for (i, (g, e)) in got.to_vec()?.iter().zip(&expected.data).enumerate() {
        let g = f64::from(*g);
        let e = if fits(*e) { *e } else { got.dtype().round(*e) };
        let scale = if pointwise { e.abs().max(1.0) } else { largest };
        let near = g == e || (g - e).abs() <= tolerance * scale;
        if !near {
            return Err(Error::internal(format!(
                "{what}: element {i} of {} is {g}, expected {e}; allowed difference {:.2e}",
                expected.shape,
                tolerance * scale
            )));
        }
    }
    Ok(())
}

/// Returns an error unless both have the same bits.
pub(super) fn same_bits(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.to_bytes()? == b.to_bytes()? {
        return Ok(());
    }
    Err(Error::internal(format!("{what}: a second run gave different bits")))
}
