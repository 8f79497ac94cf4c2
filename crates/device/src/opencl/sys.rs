//! The OpenCL functions that netcl calls, as a table of optional pointers.
//!
//! Signatures and positions in the vendor dispatch table follow the Khronos headers (`CL/cl.h`, `CL/cl_icd.h`). Every entry is optional: an old
//! driver lacks some. Requesting a missing function is an error, not a crash.

use std::ffi::{c_char, c_void};

pub type Int = i32;
pub type Uint = u32;
pub type Ulong = u64;
pub type Ptr = *mut c_void;

macro_rules! table {
    ($($name:ident @ $slot:literal : fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// Function pointers of one platform.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy, Default)]
        pub struct Table { $(pub $name: Option<unsafe extern "C" fn($($arg),*) -> $ret>,)* }

        impl Table {
            /// Looks up functions by symbol name, in the form that an ICD loader exports.
            pub fn from_names(mut find: impl FnMut(&str) -> *const c_void) -> Self {
                // SAFETY: a non-null symbol of this name has the signature of the OpenCL specification;
                // `Option<fn>` has the layout of a pointer with null as `None`.
                Self { $($name: unsafe { std::mem::transmute::<*const c_void, Option<unsafe extern "C" fn($($arg),*) -> $ret>>(find(stringify!($name))) },)* }
            }
            /// Looks up functions by position in the dispatch table at the start of every object of a vendor ICD.
            ///
            /// # Safety
            /// `slots` points to a dispatch table with at least 107 entries (OpenCL 1.2).
            pub unsafe fn from_dispatch(slots: *const *const c_void) -> Self {
                // SAFETY: the caller promises the table's length; entries have the specification's signatures.
                unsafe { Self { $($name: std::mem::transmute::<*const c_void, Option<unsafe extern "C" fn($($arg),*) -> $ret>>(*slots.add($slot)),)* } }
            }
        }
    };
}

table! {
    clGetPlatformIDs @ 0: fn(Uint, *mut Ptr, *mut Uint) -> Int;
    clGetPlatformInfo @ 1: fn(Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clGetDeviceIDs @ 2: fn(Ptr, Ulong, Uint, *mut Ptr, *mut Uint) -> Int;
    clGetDeviceInfo @ 3: fn(Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clCreateContext @ 4: fn(*const isize, Uint, *const Ptr, *const c_void, *mut c_void, *mut Int) -> Ptr;
    clReleaseContext @ 7: fn(Ptr) -> Int;
    clCreateCommandQueue @ 9: fn(Ptr, Ptr, Ulong, *mut Int) -> Ptr;
    clReleaseCommandQueue @ 11: fn(Ptr) -> Int;
    clCreateBuffer @ 14: fn(Ptr, Ulong, usize, *mut c_void, *mut Int) -> Ptr;
    clReleaseMemObject @ 18: fn(Ptr) -> Int;
    clCreateProgramWithSource @ 26: fn(Ptr, Uint, *const *const c_char, *const usize, *mut Int) -> Ptr;
    clCreateProgramWithBinary @ 27: fn(Ptr, Uint, *const Ptr, *const usize, *const *const u8, *mut Int, *mut Int) -> Ptr;
    clRetainProgram @ 28: fn(Ptr) -> Int;
    clReleaseProgram @ 29: fn(Ptr) -> Int;
    clBuildProgram @ 30: fn(Ptr, Uint, *const Ptr, *const c_char, *const c_void, *mut c_void) -> Int;
    clGetProgramInfo @ 32: fn(Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clGetProgramBuildInfo @ 33: fn(Ptr, Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clCreateKernel @ 34: fn(Ptr, *const c_char, *mut Int) -> Ptr;
    clReleaseKernel @ 37: fn(Ptr) -> Int;
    clSetKernelArg @ 38: fn(Ptr, Uint, usize, *const c_void) -> Int;
    clGetKernelWorkGroupInfo @ 40: fn(Ptr, Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clWaitForEvents @ 41: fn(Uint, *const Ptr) -> Int;
    clGetEventInfo @ 42: fn(Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clReleaseEvent @ 44: fn(Ptr) -> Int;
    clGetEventProfilingInfo @ 45: fn(Ptr, Uint, usize, *mut c_void, *mut usize) -> Int;
    clFlush @ 46: fn(Ptr) -> Int;
    clFinish @ 47: fn(Ptr) -> Int;
    clEnqueueReadBuffer @ 48: fn(Ptr, Ptr, Uint, usize, usize, *mut c_void, Uint, *const Ptr, *mut Ptr) -> Int;
    clEnqueueWriteBuffer @ 49: fn(Ptr, Ptr, Uint, usize, usize, *const c_void, Uint, *const Ptr, *mut Ptr) -> Int;
    clEnqueueCopyBuffer @ 50: fn(Ptr, Ptr, Ptr, usize, usize, usize, Uint, *const Ptr, *mut Ptr) -> Int;
    clEnqueueMapBuffer @ 56: fn(Ptr, Ptr, Uint, Ulong, usize, usize, Uint, *const Ptr, *mut Ptr, *mut Int) -> *mut c_void;
    clEnqueueUnmapMemObject @ 58: fn(Ptr, Ptr, *mut c_void, Uint, *const Ptr, *mut Ptr) -> Int;
    clEnqueueNDRangeKernel @ 59: fn(Ptr, Ptr, Uint, *const usize, *const usize, *const usize, Uint, *const Ptr, *mut Ptr) -> Int;
    clGetExtensionFunctionAddress @ 65: fn(*const c_char) -> *const c_void;
    clCreateSubBuffer @ 82: fn(Ptr, Ulong, Uint, *const c_void, *mut Int) -> Ptr;
    clEnqueueFillBuffer @ 102: fn(Ptr, Ptr, *const c_void, usize, usize, usize, Uint, *const Ptr, *mut Ptr) -> Int;
    clEnqueueMarkerWithWaitList @ 105: fn(Ptr, Uint, *const Ptr, *mut Ptr) -> Int;
    clEnqueueBarrierWithWaitList @ 106: fn(Ptr, Uint, *const Ptr, *mut Ptr) -> Int;
}

pub const DEVICE_TYPE_ALL: Ulong = 0xFFFF_FFFF;
pub const QUEUE_PROFILING_ENABLE: Ulong = 1 << 1;
pub const MEM_READ_WRITE: Ulong = 1;
pub const MEM_USE_HOST_PTR: Ulong = 1 << 3;
pub const MEM_ALLOC_HOST_PTR: Ulong = 1 << 4;
pub const BUFFER_CREATE_TYPE_REGION: Uint = 0x1220;
pub const MAP_READ_WRITE: Ulong = 3;
pub const PROGRAM_BINARY_SIZES: Uint = 0x1165;
pub const PROGRAM_BINARIES: Uint = 0x1166;
pub const PROGRAM_BUILD_LOG: Uint = 0x1183;
pub const KERNEL_WORK_GROUP_SIZE: Uint = 0x11B0;
pub const EVENT_COMMAND_EXECUTION_STATUS: Uint = 0x11D3;
pub const PROFILING_COMMAND_START: Uint = 0x1282;
pub const PROFILING_COMMAND_END: Uint = 0x1283;

/// Keys of `clGetPlatformInfo` and `clGetDeviceInfo`.
pub mod info {
    use super::Uint;
    pub const PLATFORM_VERSION: Uint = 0x0901;
    pub const PLATFORM_NAME: Uint = 0x0902;
    pub const TYPE: Uint = 0x1000;
    pub const MAX_COMPUTE_UNITS: Uint = 0x1002;
    pub const MAX_WORK_GROUP_SIZE: Uint = 0x1004;
    pub const MAX_CLOCK_FREQUENCY: Uint = 0x100C;
    pub const MAX_MEM_ALLOC_SIZE: Uint = 0x1010;
    pub const MEM_BASE_ADDR_ALIGN: Uint = 0x1019;
    pub const GLOBAL_MEM_CACHE_SIZE: Uint = 0x101E;
    pub const GLOBAL_MEM_SIZE: Uint = 0x101F;
    pub const LOCAL_MEM_SIZE: Uint = 0x1023;
    pub const AVAILABLE: Uint = 0x1027;
    pub const COMPILER_AVAILABLE: Uint = 0x1028;
    pub const NAME: Uint = 0x102B;
    pub const VENDOR: Uint = 0x102C;
    pub const DRIVER_VERSION: Uint = 0x102D;
    pub const VERSION: Uint = 0x102F;
    pub const EXTENSIONS: Uint = 0x1030;
    pub const HOST_UNIFIED_MEMORY: Uint = 0x1035;
    pub const NATIVE_VECTOR_WIDTH_FLOAT: Uint = 0x103A;
    pub const OPENCL_C_VERSION: Uint = 0x103D;
    pub const NV_COMPUTE_CAPABILITY_MAJOR: Uint = 0x4000;
    pub const NV_COMPUTE_CAPABILITY_MINOR: Uint = 0x4001;
    pub const INTEL_IP_VERSION: Uint = 0x4250;
}
