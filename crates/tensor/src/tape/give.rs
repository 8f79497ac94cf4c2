//! Gradients that somebody takes as they come, instead of the leaves they belong to.

use crate::{Result, Tensor};
use std::cell::RefCell;
use std::sync::Arc;

/// Takes a leaf and a part of its gradient: what one of its uses in the forward pass contributes.
pub type Taker = Arc<dyn Fn(&Tensor, Tensor) -> Result<()> + Send + Sync>;

thread_local! {
    static TAKER: RefCell<Option<Taker>> = const { RefCell::new(None) };
}

/// Runs `f`, in which a backward on this thread gives gradients of leaves to `taker`, as soon as they are there, and leaves collect none. The
/// memory of such a gradient may be that of others as well: it may be read, and kept, but not written.
pub fn give_gradients<R>(taker: Taker, f: impl FnOnce() -> R) -> R {
    struct Back(Option<Taker>);
    impl Drop for Back {
        fn drop(&mut self) {
            TAKER.set(self.0.take());
        }
    }
    let _back = Back(TAKER.replace(Some(taker)));
    f()
}

/// Who takes gradients on this thread.
pub(super) fn taker() -> Option<Taker> {
    TAKER.with_borrow(Clone::clone)
}
