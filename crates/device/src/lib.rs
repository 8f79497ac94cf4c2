//! netcl-device: memory, queues and events of one device. This is the only crate that calls OpenCL. It also calls the simulated GPU of the crate
//! `aethercl`, the default feature `sim`.
//!
//! All higher layers use [`driver::Driver`]; [`Device`] adds the memory pool, statistics and the profiler.

pub mod draw;
pub mod driver;
pub mod error;
pub mod fault;
pub mod files;
pub mod host;
pub mod null;
#[cfg(feature = "sim")]
pub mod sim;

mod architecture;
mod capabilities;
mod debug;
mod device;
mod guard;
mod open;
mod opencl;
mod pool;
mod profile;
pub mod quick;
mod quote;
mod settings;
mod suggest;
mod text;
mod timeline;
mod units;

pub use architecture::{Architecture, IntelGeneration};
pub use capabilities::{Capabilities, DeviceKind};
pub use debug::Debug;
pub use device::{Buffer, Device, Effects, Pinned, Stream, TagGuard, WeakBuffer, deferred, record, version};
pub use driver::{Transfer, TransferKind};
pub use error::{Error, ErrorKind, Result};
pub use files::check_writable;
pub use guard::{guarded, is_guarded};
pub use host::{MappedFile, SharedMemory, available_memory};
pub use open::{at_least_one, list, open_driver};
pub use opencl::{LoaderReport, OpenClDevice, OpenClDriver, code_name, devices, hint, report};
pub use pool::{BlockPlace, MemoryStats, human, size_class};
pub use profile::Label;
pub use quote::{quote, quote_path};
pub use settings::{Builders, MatmulPrecision, Settings, SimSettings};
pub use suggest::{did_you_mean, nearest};
pub use text::counted;
pub use timeline::{KernelTime, LaunchTime, Timeline};
pub use units::parse_bytes;
