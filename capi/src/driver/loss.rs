//! Cross entropy and its gradient, computed from log-probabilities.

use super::forward::four;
use super::state::{Views, store};
use crate::edge::flag;
use crate::status::{Failure, NetclStatus};
use netcl::tensor::ops::map::map;
use netcl::tensor::{DType, Tensor};
use std::ffi::{c_int, c_void};

/// Expression of the gradient. `x0` is the log-probabilities, `x1` the targets as a column, `x2` the class indices as a row, `s0` the
/// number of classes.
const GRADIENT: &str = "x1 >= 0.0f && x1 < s0 ? exp(x0) - (x1 == x2 ? (FV)(1.0f) : (FV)(0.0f)) : (FV)(0.0f)";
const PICKED: &str = "x1 == x2 ? -x0 : (FV)(0.0f)";
/// Largest number of classes: integers up to this value are exact in f32.
const MAX_CLASSES: usize = 1 << 24;

/// Computes the cross entropy and its gradient for each of the B · S rows of log_probs (B, S, V). loss_per_sample (B, S) =
/// -log_probs[target]. grad_input (B, S, V) = exp(log_probs), minus 1 at the target. target_indices (B, S) is int32. A target outside of
/// the classes, such as padding, has loss and gradient 0. Does not wait; later operations on this GPU see the results.
#[unsafe(no_mangle)]
pub extern "C" fn execute_cross_entropy_loss_grad_gpu(
    _gpu_index: c_int,
    log_probs: *mut c_void,
    target_indices: *mut c_void,
    grad_input: *mut c_void,
    loss_per_sample: *mut c_void,
    dim_b: c_int,
    dim_s: c_int,
    dim_v: c_int,
) -> c_int {
    flag("execute_cross_entropy_loss_grad_gpu", || {
        let [b, s, v, _] = four([dim_b, dim_s, dim_v, 0])?;
        let n = b.saturating_mul(s);
        if v > MAX_CLASSES {
            let message = format!("{v} classes, expected at most {MAX_CLASSES}");
            return Err(Failure::new(NetclStatus::Unsupported, message));
        }
        let views = Views::of("log_probs", log_probs)?;
        let x = views.floats("log_probs", log_probs, &[n, v])?;
        let targets = views.ids("target_indices", target_indices, &[n, 1])?;
        let dx = views.floats("grad_input", grad_input, &[n, v])?;
        let loss = views.floats("loss_per_sample", loss_per_sample, &[n])?;
        if x.count() == 0 {
            if n > 0 {
                loss.set_all(0.0)?;
            }
            return Ok(());
        }
        let numbers: Vec<u32> = (0..v as u32).collect();
        let classes = Tensor::from_u32(views.device(), [1, v], &numbers)?;
        let inputs = [&x, &targets, &classes];
        // Computes both results before storing either: a result may share memory with an input.
        let gradient = map(GRADIENT, &inputs, &[v as f32], x.shape(), DType::F32)?;
        let picked = map(PICKED, &inputs, &[], x.shape(), DType::F32)?.sum(&[1], false)?;
        store(&gradient, &dx)?;
        store(&picked, &loss)
    })
}
