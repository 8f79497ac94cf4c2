//! Gradients that are accumulated in place.
//!
//! Accumulators start at -0, so that adding the first gradient has the bits of setting it.

use super::Restore;
use crate::ops::map::map_into;
use crate::{Error, Result, Tensor};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;

thread_local! {
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
    /// Tensors that already have a gradient of this backward, if the first gradient replaces the memory's contents.
    static REPLACED: RefCell<Option<HashSet<usize>>> = const { RefCell::new(None) };
    /// The tensor whose later gradients have a separate accumulator.
    static APART: RefCell<Option<Apart>> = const { RefCell::new(None) };
}

struct Apart {
    key: usize,
    later: Tensor,
    /// Whether the first of the later gradients replaces the accumulator's contents.
    replaces: bool,
    /// Number of gradients that have reached the tensor.
    arrived: usize,
}

/// Runs `f`, in which a backward on this thread adds to collected gradients in place, instead of replacing them by the sum. The bits are
/// the same. Other handles and views of such a gradient see the sum. This is needed by captured micro-batches, which must find their
/// gradients where the previous one left them.
pub fn accumulate_in_place<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&IN_PLACE, IN_PLACE.replace(true));
    f()
}

/// Like [`accumulate_in_place`], but the first gradient that reaches a tensor replaces the memory's contents. `tensors` that no gradient
/// reaches are zeroed.
///
/// # Errors
/// Errors of `f`; `Internal` if a gradient's form differs from the existing one.
pub fn replace_in_place<R>(tensors: &[Tensor], f: impl FnOnce() -> Result<R>) -> Result<R> {
    struct Leave(Option<HashSet<usize>>);
    impl Drop for Leave {
        fn drop(&mut self) {
            REPLACED.set(self.0.take());
        }
    }
    let _leave = Leave(REPLACED.replace(Some(HashSet::new())));
    let out = accumulate_in_place(f)?;
    for tensor in tensors.iter().filter(|tensor| is_first(tensor)) {
        if let Some(grad) = tensor.grad() {
            map_into("0.0f", &[], &[], &grad)?;
        }
    }
    Ok(out)
}

/// Runs `f`, a backward in place. Only the first gradient that reaches `tensor` is collected as its gradient, so this gradient is complete
/// early in the backward. All others are added to `later`. With `replaces`, they replace its contents, and without others `later` is zeroed.
///
/// # Errors
/// Errors of `f`; `Internal` if a gradient's form differs from `later`.
pub fn later_gradients_apart<R>(
    tensor: &Tensor,
    later: &Tensor,
    replaces: bool,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    struct Leave(Option<Apart>);
    impl Drop for Leave {
        fn drop(&mut self) {
            APART.set(self.0.take());
        }
    }
    let apart = Apart { key: key(tensor), later: later.clone(), replaces, arrived: 0 };
    let _leave = Leave(APART.replace(Some(apart)));
    let out = f()?;
    let nothing = APART.with_borrow(|apart| apart.as_ref().is_some_and(|apart| apart.arrived < 2));
    if replaces && nothing {
        map_into("0.0f", &[], &[], later)?;
    }
    Ok(out)
}

/// Returns the accumulator for this gradient of `tensor`, if it is a later one with a separate accumulator, and whether it replaces the
/// contents.
fn accumulator_of_later(tensor: &Tensor) -> Option<(Tensor, bool)> {
    APART.with_borrow_mut(|apart| {
        let apart = apart.as_mut().filter(|apart| apart.key == key(tensor))?;
        apart.arrived += 1;
        (apart.arrived > 1).then(|| (apart.later.clone(), apart.replaces && apart.arrived == 2))
    })
}

fn key(tensor: &Tensor) -> usize {
    Arc::as_ptr(&tensor.0) as usize
}

/// Returns whether a gradient of `tensor` is the first one and replaces the existing contents.
fn is_first(tensor: &Tensor) -> bool {
    REPLACED.with_borrow_mut(|seen| seen.as_mut().is_some_and(|seen| seen.insert(key(tensor))))
}

/// Returns `before + grad`, the collected gradient of `tensor`, computed in the memory of `before` if requested and possible.
pub(super) fn sum(tensor: &Tensor, before: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let fits = before.is_contiguous() && before.shape() == grad.shape() && before.dtype() == grad.dtype();
    if REPLACED.with_borrow(Option::is_some) && !fits {
        return Err(Error::internal(format!(
            "a gradient of {} {} cannot replace one of {} {}",
            grad.dtype(),
            grad.shape(),
            before.dtype(),
            before.shape()
        )));
    }
    if !IN_PLACE.get() || !fits {
        return before.add(grad);
    }
    if let Some((later, replaces)) = accumulator_of_later(tensor) {
        let terms: &[&Tensor] = if replaces { &[grad] } else { &[&later, grad] };
        map_into(if replaces { "x0" } else { "x0 + x1" }, terms, &[], &later)?;
        return Ok(before.clone());
    }
    if is_first(tensor) {
        map_into("x0", &[grad], &[], before)?;
        return Ok(before.clone());
    }
    // Uses the kernel of `add`, and thus gives the same bits.
    map_into("x0 + x1", &[before, grad], &[], before)?;
    Ok(before.clone())
}
