//! Support for NVIDIA's sm_90 beyond OpenCL C: instructions that the driver's compiler does not accept, device addresses, and the tensor maps that
//! bulk copies (TMA) read. All of it uses only the OpenCL driver.

mod address;
mod reload;
mod tensor_map;
mod wgmma;

pub use address::address;
pub use reload::SM90A;
pub use tensor_map::{Described, MatrixStack, TensorMap, tensor_maps};
pub use wgmma::wgmma_macros;

use super::Hooks;

/// Defines `NVIDIA_CC`, the compute capability, for kernel sources.
pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| device.sm().is_some(),
    options: |device| device.sm().map(|sm| format!("-DNVIDIA_CC={sm}")).unwrap_or_default(),
    keeps_kernels: false,
    header: || None,
};
