//! One Adam step on buffers.

use super::state::{Views, sizes};
use crate::edge::flag;
use crate::status::Failure;
use netcl::tensor::ops::map::map_into;
use std::ffi::{c_int, c_void};

/// Moments: `x0` is the moment, `x1` the gradient, `x2` the parameter; `s0` and `s1` are beta and 1 - beta; `s2` is the weight decay.
const FIRST: &str = "s0 * x0 + s1 * (x1 + s2 * x2)";
const SECOND: &str = "s0 * x0 + s1 * (x1 + s2 * x2) * (x1 + s2 * x2)";
/// Parameter: `x0` is the parameter, `x1` and `x2` the moments; `s0` is the learning rate, `s1` and `s2` are the bias corrections, `s3` is
/// eps.
const STEP: &str = "x0 - s0 * (x1 * s1) / (sqrt(x2 * s2) + s3)";

/// Runs step `t` of Adam (Kingma and Ba, 2015) on f32 buffers of `num_elements`. Steps start at 1. With g = gradient + weight_decay ·
/// parameter: m = beta1·m + (1-beta1)·g, v = beta2·v + (1-beta2)·g², and the parameter decreases by lr · m̂ / (√v̂ + eps), where m̂ = m /
/// (1-beta1ᵗ) and v̂ = v / (1-beta2ᵗ). Parameter, gradient, m and v are four different buffers.
#[unsafe(no_mangle)]
pub extern "C" fn execute_adam_update_on_gpu(
    _gpu_index: c_int,
    param_buffer: *mut c_void,
    grad_buffer: *mut c_void,
    m_buffer: *mut c_void,
    v_buffer: *mut c_void,
    num_elements: c_int,
    t: c_int,
    lr: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    weight_decay: f32,
) -> c_int {
    flag("execute_adam_update_on_gpu", || {
        if t < 1 {
            return Err(Failure::argument(format!("step {t} is invalid; steps start at 1")));
        }
        let buffers = [param_buffer, grad_buffer, m_buffer, v_buffer];
        if (1..4).any(|i| buffers[..i].contains(&buffers[i])) {
            return Err(Failure::argument("parameter, gradient, m and v must be four different buffers"));
        }
        let shape = sizes(&[num_elements])?;
        let views = Views::of("param_buffer", param_buffer)?;
        let view = |what, handle| views.floats(what, handle, &shape);
        let (p, g) = (view("param_buffer", param_buffer)?, view("grad_buffer", grad_buffer)?);
        let (m, v) = (view("m_buffer", m_buffer)?, view("v_buffer", v_buffer)?);
        // Computed in f64: 1 - beta2 and its powers lose digits in f32.
        let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
        let corrected = |beta: f32| (1.0 / (1.0 - f64::from(beta).powi(t))) as f32;
        map_into(FIRST, &[&m, &g, &p], &[beta1, rest(beta1), weight_decay], &m)?;
        map_into(SECOND, &[&v, &g, &p], &[beta2, rest(beta2), weight_decay], &v)?;
        map_into(STEP, &[&p, &m, &v], &[lr, corrected(beta1), corrected(beta2), eps], &p)?;
        Ok(views.device().finish()?)
    })
}
