//! Checks of indices from Python: an index out of range raises an error, although only the device knows the index.
//!
//! The check runs on the device, after which nothing waits for it. The thread's next read from a device raises the error. Steps that are
//! captured as graphs are not checked.

use crate::edge::run;
use netcl::prelude::{DType, Error, Result, Tensor};
use netcl::tensor::ops::call::Value;
use netcl::tensor::ops::map::map_typed;
use netcl::tensor::ops::reduce::{Fold, fold};
use pyo3::prelude::*;
use std::cell::RefCell;

/// A check that the device runs: a mask of one element that is set if an index is out of range, and the message for this case.
pub struct Check(Tensor, String);

/// Number of open checks at which the oldest ones are read.
const MOST: usize = 256;

thread_local! {
    /// Checks whose results have not been read.
    static OPEN: RefCell<Vec<Check>> = const { RefCell::new(Vec::new()) };
}

/// Removes and returns the thread's checks.
pub fn take() -> Vec<Check> {
    OPEN.with_borrow_mut(std::mem::take)
}

/// Reads the checks. Returns the message of the first one that failed.
///
/// # Errors
/// Errors of the device.
pub fn failed(checks: &[Check]) -> Result<Option<String>> {
    for Check(flag, words) in checks {
        if flag.to_u32()?.first().is_some_and(|set| *set != 0) {
            return Ok(Some(words.clone()));
        }
    }
    Ok(None)
}

/// Returns the input with indices, the number of valid ones, and an index that is always valid.
fn bounds<'a>(
    name: &str,
    inputs: &'a [Option<&Tensor>],
    attributes: &[(&'static str, Value)],
) -> Option<(&'a Tensor, usize, Option<i64>)> {
    let number = |name: &str, default: i64| match attributes.iter().find(|(other, _)| *other == name) {
        Some((_, Value::Int(number))) => *number,
        _ => default,
    };
    let along = |x: &Tensor, default: i64| {
        let (axis, rank) = (number("axis", default), x.shape().rank() as i64);
        x.dims().get(usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?).copied()
    };
    let input = |at: usize| inputs.get(at).copied().flatten();
    let ignored = Some(number("ignore_index", -100));
    Some(match name {
        "embedding" => (input(1)?, *input(0)?.dims().first()?, None),
        "gather" | "scatter" | "scatter_add" => (input(1)?, along(input(0)?, -1)?, None),
        "index_select" => (input(1)?, along(input(0)?, 0)?, None),
        "cross_entropy" | "nll_loss" => (input(1)?, *input(0)?.dims().last()?, ignored),
        "linear_cross_entropy" => (input(2)?, *input(1)?.dims().first()?, ignored),
        "one_hot" => (input(0)?, usize::try_from(number("classes", 0)).ok()?, None),
        _ => return None,
    })
}

/// Starts the check of an operation's indices.
///
/// # Errors
/// Errors of the device.
pub fn watch(name: &str, inputs: &[Option<&Tensor>], attributes: &[(&'static str, Value)]) -> Result<()> {
    let Some((ids, n, valid)) = bounds(name, inputs, attributes) else { return Ok(()) };
    let integers = matches!(ids.dtype(), DType::I32 | DType::U32);
    if !integers || ids.count() == 0 || ids.device().is_capturing() {
        return Ok(());
    }
    let outside = match valid {
        Some(valid) => format!("((long)x0 < 0 || (long)x0 >= {n}) && (long)x0 != {valid}"),
        None => format!("(long)x0 < 0 || (long)x0 >= {n}"),
    };
    let mask = map_typed(&outside, &[ids], &[], ids.shape(), DType::Bool)?;
    let flag = fold(Fold::Any, &mask, &[], false)?;
    let words = format!("{name}: an index is out of range, expected 0 to {}", n.saturating_sub(1));
    let full = OPEN.with_borrow_mut(|open| {
        open.push(Check(flag, words));
        if open.len() < MOST { Vec::new() } else { std::mem::take(open) }
    });
    failed(&full)?.map_or(Ok(()), |words| Err(Error::format(words)))
}

/// Waits for the thread's open checks. Raises the error of the first one that failed.
#[pyfunction]
fn check_indices(py: Python<'_>) -> PyResult<()> {
    let open = take();
    match run(py, move || failed(&open))? {
        Some(words) => Err(crate::edge::out_of_bounds(py, words)),
        None => Ok(()),
    }
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(check_indices, m)?)
}
