//! One step of Adam on a buffer.

use super::state::{Views, sizes};
use crate::edge::flag;
use crate::status::Failure;
use netcl::tensor::ops::map::map_into;
use std::ffi::{c_int, c_void};

/// `x0` the moment, `x1` the gradient, `x2` the parameter; `s2` is the weight decay.
const FIRST: &str = "s0 * x0 + s1 * (x1 + s2 * x2)";
const SECOND: &str = "s0 * x0 + s1 * (x1 + s2 * x2) * (x1 + s2 * x2)";
/// `x0` the parameter, `x1` and `x2` the moments; `s0` the rate, `s1` and `s2` what corrects the moments, `s3` eps.
const STEP: &str = "x0 - s0 * (x1 * s1) / (sqrt(x2 * s2) + s3)";

/// Step `t`, counted from 1, of Adam (Kingma and Ba, 2015) on f32 buffers of `num_elements`: with g the gradient plus weight_decay times the
/// parameter, m = beta1·m + (1-beta1)·g, v = beta2·v + (1-beta2)·g², and the parameter loses lr · m̂ / (√v̂ + eps), with m̂ = m / (1-beta1ᵗ) and
/// v̂ = v / (1-beta2ᵗ). Parameter, gradient, m and v are four buffers.
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
            return Err(Failure::argument(format!("step {t}; steps are counted from 1")));
        }
        let buffers = [param_buffer, grad_buffer, m_buffer, v_buffer];
        if (1..4).any(|i| buffers[..i].contains(&buffers[i])) {
            return Err(Failure::argument("one buffer is given for two of parameter, gradient, m and v"));
        }
        let shape = sizes(&[num_elements])?;
        let views = Views::of("param_buffer", param_buffer)?;
        let view = |what, handle| views.floats(what, handle, &shape);
        let (p, g) = (view("param_buffer", param_buffer)?, view("grad_buffer", grad_buffer)?);
        let (m, v) = (view("m_buffer", m_buffer)?, view("v_buffer", v_buffer)?);
        // In f64: 1 - beta2 and its powers lose digits in f32.
        let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
        let corrected = |beta: f32| (1.0 / (1.0 - f64::from(beta).powi(t))) as f32;
        map_into(FIRST, &[&m, &g, &p], &[beta1, rest(beta1), weight_decay], &m)?;
        map_into(SECOND, &[&v, &g, &p], &[beta2, rest(beta2), weight_decay], &v)?;
        map_into(STEP, &[&p, &m, &v], &[lr, corrected(beta1), corrected(beta2), eps], &p)?;
        Ok(views.device().finish()?)
    })
}
