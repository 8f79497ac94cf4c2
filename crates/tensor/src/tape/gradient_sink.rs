//! Gradient sink: receives gradients during the backward, instead of collecting them in the leaves.

use crate::{Result, Tensor};
use std::cell::RefCell;
use std::sync::Arc;

/// Receives a leaf and a part of its gradient: the contribution of one of its uses in the forward pass.
pub type GradientSink = Arc<dyn Fn(&Tensor, Tensor) -> Result<()> + Send + Sync>;

thread_local! {
    static SINK: RefCell<Option<GradientSink>> = const { RefCell::new(None) };
}

/// Runs `f`, in which a backward on this thread passes the gradients of leaves to `sink` as soon as they are available. The leaves do not
/// collect them. The memory of such a gradient may be shared: it may be read and kept, but not written.
pub fn with_gradient_sink<R>(sink: GradientSink, f: impl FnOnce() -> R) -> R {
    struct Back(Option<GradientSink>);
    impl Drop for Back {
        fn drop(&mut self) {
            SINK.set(self.0.take());
        }
    }
    let _back = Back(SINK.replace(Some(sink)));
    f()
}

/// Returns the gradient sink of this thread.
pub(super) fn gradient_sink() -> Option<GradientSink> {
    SINK.with_borrow(Clone::clone)
}
