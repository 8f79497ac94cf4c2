//! What kernels for NVIDIA's sm_90 need beyond OpenCL C: instructions that the driver's compiler does not pass on, device
//! addresses, and the tensor maps that bulk copies (TMA) read. All of it goes through the OpenCL driver alone.

mod address;
mod reload;
mod tensor_map;
mod wgmma;

pub use address::address;
pub(crate) use reload::{complaint, patch};
pub use tensor_map::{Described, Element, MatrixStack, TensorMap, tensor_maps};
pub use wgmma::wgmma_macros;
