//! Gradients that are added up where they lie.

use super::Restore;
use crate::ops::map::map_into;
use crate::{Result, Tensor};
use std::cell::Cell;

thread_local! {
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which a backward on this thread adds to collected gradients in their own memory instead of replacing them by the sum.
/// The bits are the same. Whoever has such a gradient, or a view of it, sees the sum: a captured micro-batch has to find its
/// gradients where the one before left them.
pub fn accumulate_in_place<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&IN_PLACE, IN_PLACE.replace(true));
    f()
}

/// `before + grad`, in the memory of `before` where that is asked for and possible.
pub(super) fn sum(before: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let fits = before.is_contiguous() && before.shape() == grad.shape() && before.dtype() == grad.dtype();
    if !IN_PLACE.get() || !fits {
        return before.add(grad);
    }
    // As `add` has it: the same kernel, the same bits.
    map_into("x0 + x1", &[before, grad], &[], before)?;
    Ok(before.clone())
}
