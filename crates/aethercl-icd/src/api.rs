//! The functions that programs and loaders call, and the dispatch table of `cl_khr_icd`.
//!
//! A line of [`api!`] is a function of `CL/cl.h` with its C parameters, and the function that implements it. It becomes a function of [`entry`],
//! which the table points to, and an exported function of the same name for programs that link the library directly. The two are separate because a
//! loader in the process exports the same names. A reference to an exported name would find the loader's function.
#![allow(unsafe_code)] // exported names
#![allow(non_snake_case)] // OpenCL's names

use crate::answer::Room;
use crate::cl;
use crate::cl::Result;
use crate::context::Context;
use crate::kernel::Kernel;
use crate::memory::Mem;
use crate::program::Program;
use crate::queue::{Ask, Event, Queue};
use crate::raw::{ContextNotify, EventNotify, Handle, ImageDescriptor, ImageFormat, In, Notify, Out, Unused};
use crate::sampler::Sampler;
use crate::{calls, context, kernel, memory, platform, program, queue, refused, registry, sampler};
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call whose result is a code. A defect of this crate becomes an error of the call and does not end the program.
fn status(name: &'static str, call: impl FnOnce() -> Result<()>) -> i32 {
    let begun = calls::begin();
    let code = status_of(call);
    calls::end(name, begun, code);
    code
}

fn status_of(call: impl FnOnce() -> Result<()>) -> i32 {
    registry::set_dispatch(TABLE.0.as_ptr().addr());
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => cl::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => cl::OUT_OF_HOST_MEMORY,
    }
}

/// Runs a call whose result is an object or an address.
fn object<T: Into<(Handle, i32)>>(
    name: &'static str,
    code: Out<i32>,
    call: impl FnOnce() -> Result<T>,
) -> Handle {
    let begun = calls::begin();
    registry::set_dispatch(TABLE.0.as_ptr().addr());
    let made = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(cl::OUT_OF_HOST_MEMORY));
    let (handle, why) = made.map_or_else(|why| (Handle::NULL, why), Into::into);
    code.set(why);
    calls::end(name, begun, why);
    handle
}

/// An object that was created without an additional code.
impl From<Handle> for (Handle, i32) {
    fn from(handle: Handle) -> Self {
        (handle, cl::SUCCESS)
    }
}

macro_rules! api {
    ($($kind:ident $name:ident($($arg:ident: $ty:ty),*) => $call:expr;)*) => {
        /// The functions that the dispatch table points to.
        pub mod entry {
            use super::*;
            $(api!(@entry $kind $name [$($arg: $ty),*] $call);)*
        }
        /// The same functions under exported names.
        mod exports {
            use super::*;
            $(api!(@export $kind $name [$($arg: $ty),*]);)*
        }
    };
    (@entry status $name:ident [$($arg:ident: $ty:ty),*] $call:expr) => {
        #[doc = concat!("`", stringify!($name), "`")]
        pub extern "C" fn $name($($arg: $ty),*) -> i32 { status(stringify!($name), || $call) }
    };
    (@entry object $name:ident [$($arg:ident: $ty:ty),*] $call:expr) => {
        #[doc = concat!("`", stringify!($name), "`")]
        pub extern "C" fn $name($($arg: $ty,)* errcode_ret: Out<i32>) -> Handle { object(stringify!($name), errcode_ret, || $call) }
    };
    (@export status $name:ident [$($arg:ident: $ty:ty),*]) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> i32 { entry::$name($($arg),*) }
    };
    (@export object $name:ident [$($arg:ident: $ty:ty),*]) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty,)* errcode_ret: Out<i32>) -> Handle { entry::$name($($arg,)* errcode_ret) }
    };
}

api! {
    status clGetPlatformIDs(num_entries: u32, platforms: Out<Handle>, num_platforms: Out<u32>) => platform::get_platform_ids(num_entries, platforms, num_platforms);
    status clGetPlatformInfo(platform: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => platform::get_platform_info(platform, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clGetDeviceIDs(platform: Handle, device_type: u64, num_entries: u32, devices: Out<Handle>, num_devices: Out<u32>) => platform::get_device_ids(platform, device_type, num_entries, devices, num_devices);
    status clGetDeviceInfo(device: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => platform::get_device_info(device, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    object clCreateContext(properties: In<usize>, num_devices: u32, devices: In<Handle>, pfn_notify: ContextNotify, user_data: usize) => context::create_context(properties, num_devices, devices, pfn_notify, user_data);
    object clCreateContextFromType(properties: In<usize>, device_type: u64, pfn_notify: ContextNotify, user_data: usize) => context::create_context_from_type(properties, device_type, pfn_notify, user_data);
    status clRetainContext(context: Handle) => registry::retain::<Context>(context);
    status clReleaseContext(context: Handle) => registry::release::<Context>(context);
    status clGetContextInfo(context: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => context::get_context_info(context, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    object clCreateCommandQueue(context: Handle, device: Handle, properties: u64) => queue::create_command_queue(context, device, properties);
    status clRetainCommandQueue(command_queue: Handle) => registry::retain::<Queue>(command_queue);
    status clReleaseCommandQueue(command_queue: Handle) => registry::release::<Queue>(command_queue);
    status clGetCommandQueueInfo(command_queue: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => queue::get_command_queue_info(command_queue, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clSetCommandQueueProperty(command_queue: Handle, properties: u64, enable: u32, old_properties: Out<u64>) => queue::set_command_queue_property(command_queue, properties, enable, old_properties);
    object clCreateBuffer(context: Handle, flags: u64, size: usize, host_ptr: usize) => memory::create_buffer(context, flags, size, host_ptr);
    object clCreateImage2D(context: Handle, flags: u64, image_format: In<ImageFormat>, image_width: usize, image_height: usize, image_row_pitch: usize, host_ptr: usize) => memory::create_image_2d(context, flags, image_format, image_width, image_height, image_row_pitch, host_ptr);
    object clCreateImage3D(context: Handle, flags: u64, image_format: In<ImageFormat>, image_width: usize, image_height: usize, image_depth: usize, image_row_pitch: usize, image_slice_pitch: usize, host_ptr: usize) => memory::create_image_3d(context, flags, image_format, [image_width, image_height, image_depth], image_row_pitch, image_slice_pitch, host_ptr);
    status clRetainMemObject(memobj: Handle) => registry::retain::<Mem>(memobj);
    status clReleaseMemObject(memobj: Handle) => registry::release::<Mem>(memobj);
    status clGetSupportedImageFormats(context: Handle, flags: u64, image_type: u32, num_entries: u32, image_formats: Out<ImageFormat>, num_image_formats: Out<u32>) => memory::get_supported_image_formats(context, flags, image_type, num_entries, image_formats, num_image_formats);
    status clGetMemObjectInfo(memobj: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => memory::get_mem_object_info(memobj, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clGetImageInfo(image: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => memory::get_image_info(image, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    object clCreateSampler(context: Handle, normalized_coords: u32, addressing_mode: u32, filter_mode: u32) => sampler::create_sampler(context, normalized_coords, addressing_mode, filter_mode);
    status clRetainSampler(sampler: Handle) => registry::retain::<Sampler>(sampler);
    status clReleaseSampler(sampler: Handle) => registry::release::<Sampler>(sampler);
    status clGetSamplerInfo(sampler: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => sampler::get_sampler_info(sampler, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    object clCreateProgramWithSource(context: Handle, count: u32, strings: In<In<c_char>>, lengths: In<usize>) => program::create_program_with_source(context, count, strings, lengths);
    object clCreateProgramWithBinary(context: Handle, num_devices: u32, device_list: In<Handle>, lengths: In<usize>, binaries: In<In<u8>>, binary_status: Out<i32>) => program::create_program_with_binary(context, num_devices, device_list, lengths, binaries, binary_status);
    status clRetainProgram(program: Handle) => registry::retain::<Program>(program);
    status clReleaseProgram(program: Handle) => registry::release::<Program>(program);
    status clBuildProgram(program: Handle, num_devices: u32, device_list: In<Handle>, options: In<c_char>, pfn_notify: Notify, user_data: usize) => program::build_program(program, num_devices, device_list, options, pfn_notify, user_data);
    status clUnloadCompiler() => platform::unload_compiler();
    status clGetProgramInfo(program: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => program::get_program_info(program, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clGetProgramBuildInfo(program: Handle, device: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => program::get_program_build_info(program, device, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    object clCreateKernel(program: Handle, kernel_name: In<c_char>) => kernel::create_kernel(program, kernel_name);
    status clCreateKernelsInProgram(program: Handle, num_kernels: u32, kernels: Out<Handle>, num_kernels_ret: Out<u32>) => kernel::create_kernels_in_program(program, num_kernels, kernels, num_kernels_ret);
    status clRetainKernel(kernel: Handle) => registry::retain::<Kernel>(kernel);
    status clReleaseKernel(kernel: Handle) => registry::release::<Kernel>(kernel);
    status clSetKernelArg(kernel: Handle, arg_index: u32, arg_size: usize, arg_value: In<u8>) => kernel::set_kernel_arg(kernel, arg_index, arg_size, arg_value);
    status clGetKernelInfo(kernel: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => kernel::get_kernel_info(kernel, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clGetKernelWorkGroupInfo(kernel: Handle, device: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => kernel::get_kernel_work_group_info(kernel, device, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clWaitForEvents(num_events: u32, event_list: In<Handle>) => queue::wait_for_events(num_events, event_list);
    status clGetEventInfo(event: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => queue::get_event_info(event, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clRetainEvent(event: Handle) => registry::retain::<Event>(event);
    status clReleaseEvent(event: Handle) => registry::release::<Event>(event);
    status clGetEventProfilingInfo(event: Handle, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => queue::get_event_profiling_info(event, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clFlush(command_queue: Handle) => queue::flush(command_queue);
    status clFinish(command_queue: Handle) => queue::finish(command_queue);
    status clEnqueueReadBuffer(command_queue: Handle, buffer: Handle, blocking_read: u32, offset: usize, size: usize, ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_read_buffer(command_queue, buffer, blocking_read, offset, size, ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueWriteBuffer(command_queue: Handle, buffer: Handle, blocking_write: u32, offset: usize, size: usize, ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_write_buffer(command_queue, buffer, blocking_write, offset, size, ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueCopyBuffer(command_queue: Handle, src_buffer: Handle, dst_buffer: Handle, src_offset: usize, dst_offset: usize, size: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_copy_buffer(command_queue, src_buffer, dst_buffer, src_offset, dst_offset, size, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueReadImage(command_queue: Handle, image: Handle, blocking_read: u32, origin: In<usize>, region: In<usize>, row_pitch: usize, slice_pitch: usize, ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_read_image(command_queue, image, blocking_read, origin, region, row_pitch, slice_pitch, ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueWriteImage(command_queue: Handle, image: Handle, blocking_write: u32, origin: In<usize>, region: In<usize>, input_row_pitch: usize, input_slice_pitch: usize, ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_write_image(command_queue, image, blocking_write, origin, region, input_row_pitch, input_slice_pitch, ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueCopyImage(command_queue: Handle, src_image: Handle, dst_image: Handle, src_origin: In<usize>, dst_origin: In<usize>, region: In<usize>, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_copy_image(command_queue, src_image, dst_image, src_origin, dst_origin, region, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueCopyImageToBuffer(command_queue: Handle, src_image: Handle, dst_buffer: Handle, src_origin: In<usize>, region: In<usize>, dst_offset: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_copy_image_to_buffer(command_queue, src_image, dst_buffer, src_origin, region, dst_offset, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueCopyBufferToImage(command_queue: Handle, src_buffer: Handle, dst_image: Handle, src_offset: usize, dst_origin: In<usize>, region: In<usize>, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_copy_buffer_to_image(command_queue, src_buffer, dst_image, src_offset, dst_origin, region, Ask::new(num_events_in_wait_list, event_wait_list, event));
    object clEnqueueMapBuffer(command_queue: Handle, buffer: Handle, blocking_map: u32, map_flags: u64, offset: usize, size: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_map_buffer(command_queue, buffer, blocking_map, map_flags, offset, size, Ask::new(num_events_in_wait_list, event_wait_list, event));
    object clEnqueueMapImage(command_queue: Handle, image: Handle, blocking_map: u32, map_flags: u64, origin: In<usize>, region: In<usize>, image_row_pitch: Out<usize>, image_slice_pitch: Out<usize>, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_map_image(command_queue, image, blocking_map, map_flags, (origin, region), (image_row_pitch, image_slice_pitch), Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueUnmapMemObject(command_queue: Handle, memobj: Handle, mapped_ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_unmap_mem_object(command_queue, memobj, mapped_ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueNDRangeKernel(command_queue: Handle, kernel: Handle, work_dim: u32, global_work_offset: In<usize>, global_work_size: In<usize>, local_work_size: In<usize>, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => kernel::enqueue_nd_range_kernel(command_queue, kernel, work_dim, global_work_offset, global_work_size, local_work_size, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueTask(command_queue: Handle, kernel: Handle, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => kernel::enqueue_task(command_queue, kernel, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueNativeKernel(command_queue: Handle, _user_func: Unused, _args: usize, _cb_args: usize, _num_mem_objects: u32, _mem_list: In<Handle>, _args_mem_loc: In<In<u8>>, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    status clEnqueueMarker(command_queue: Handle, event: Out<Handle>) => queue::enqueue_marker(command_queue, event);
    status clEnqueueWaitForEvents(command_queue: Handle, num_events: u32, event_list: In<Handle>) => queue::enqueue_wait_for_events(command_queue, num_events, event_list);
    status clEnqueueBarrier(command_queue: Handle) => queue::enqueue_barrier(command_queue);
    status clSetEventCallback(event: Handle, command_exec_callback_type: i32, pfn_notify: EventNotify, user_data: usize) => queue::set_event_callback(event, command_exec_callback_type, pfn_notify, user_data);
    object clCreateSubBuffer(buffer: Handle, flags: u64, buffer_create_type: u32, buffer_create_info: In<usize>) => memory::create_sub_buffer(buffer, flags, buffer_create_type, buffer_create_info);
    status clSetMemObjectDestructorCallback(memobj: Handle, pfn_notify: Notify, user_data: usize) => memory::set_mem_object_destructor_callback(memobj, pfn_notify, user_data);
    object clCreateUserEvent(context: Handle) => queue::create_user_event(context);
    status clSetUserEventStatus(event: Handle, execution_status: i32) => queue::set_user_event_status(event, execution_status);
    status clEnqueueReadBufferRect(command_queue: Handle, buffer: Handle, blocking_read: u32, buffer_origin: In<usize>, host_origin: In<usize>, region: In<usize>, buffer_row_pitch: usize, buffer_slice_pitch: usize, host_row_pitch: usize, host_slice_pitch: usize, ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_read_buffer_rect(command_queue, buffer, blocking_read, buffer_origin, host_origin, region, buffer_row_pitch, buffer_slice_pitch, host_row_pitch, host_slice_pitch, ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueWriteBufferRect(command_queue: Handle, buffer: Handle, blocking_write: u32, buffer_origin: In<usize>, host_origin: In<usize>, region: In<usize>, buffer_row_pitch: usize, buffer_slice_pitch: usize, host_row_pitch: usize, host_slice_pitch: usize, ptr: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_write_buffer_rect(command_queue, buffer, blocking_write, buffer_origin, host_origin, region, buffer_row_pitch, buffer_slice_pitch, host_row_pitch, host_slice_pitch, ptr, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueCopyBufferRect(command_queue: Handle, src_buffer: Handle, dst_buffer: Handle, src_origin: In<usize>, dst_origin: In<usize>, region: In<usize>, src_row_pitch: usize, src_slice_pitch: usize, dst_row_pitch: usize, dst_slice_pitch: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_copy_buffer_rect(command_queue, src_buffer, dst_buffer, src_origin, dst_origin, region, src_row_pitch, src_slice_pitch, dst_row_pitch, dst_slice_pitch, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clCreateSubDevices(in_device: Handle, properties: In<usize>, num_devices: u32, out_devices: Out<Handle>, num_devices_ret: Out<u32>) => platform::create_sub_devices(in_device, properties, num_devices, out_devices, num_devices_ret);
    status clRetainDevice(device: Handle) => platform::retain_device(device);
    status clReleaseDevice(device: Handle) => platform::retain_device(device);
    object clCreateImage(context: Handle, flags: u64, image_format: In<ImageFormat>, image_desc: In<ImageDescriptor>, host_ptr: usize) => memory::create_image(context, flags, image_format, image_desc, host_ptr);
    object clCreateProgramWithBuiltInKernels(context: Handle, num_devices: u32, device_list: In<Handle>, kernel_names: In<c_char>) => program::create_program_with_built_in_kernels(context, num_devices, device_list, kernel_names);
    status clCompileProgram(program: Handle, num_devices: u32, device_list: In<Handle>, options: In<c_char>, num_input_headers: u32, input_headers: In<Handle>, header_include_names: In<In<c_char>>, pfn_notify: Notify, user_data: usize) => program::compile_program(program, num_devices, device_list, options, num_input_headers, input_headers, header_include_names, pfn_notify, user_data);
    object clLinkProgram(context: Handle, num_devices: u32, device_list: In<Handle>, options: In<c_char>, num_input_programs: u32, input_programs: In<Handle>, pfn_notify: Notify, user_data: usize) => program::link_program(context, num_devices, device_list, options, num_input_programs, input_programs, pfn_notify, user_data);
    status clUnloadPlatformCompiler(platform: Handle) => platform::unload_platform_compiler(platform);
    status clGetKernelArgInfo(kernel: Handle, arg_indx: u32, param_name: u32, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => kernel::get_kernel_arg_info(kernel, arg_indx, param_name, Room::new(param_value_size, param_value, param_value_size_ret));
    status clEnqueueFillBuffer(command_queue: Handle, buffer: Handle, pattern: In<u8>, pattern_size: usize, offset: usize, size: usize, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_fill_buffer(command_queue, buffer, pattern, pattern_size, offset, size, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueFillImage(command_queue: Handle, image: Handle, fill_color: In<u32>, origin: In<usize>, region: In<usize>, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_fill_image(command_queue, image, fill_color, origin, region, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueMigrateMemObjects(command_queue: Handle, num_mem_objects: u32, mem_objects: In<Handle>, flags: u64, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => memory::enqueue_migrate_mem_objects(command_queue, num_mem_objects, mem_objects, flags, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueMarkerWithWaitList(command_queue: Handle, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => queue::enqueue_marker_with_wait_list(command_queue, Ask::new(num_events_in_wait_list, event_wait_list, event));
    status clEnqueueBarrierWithWaitList(command_queue: Handle, num_events_in_wait_list: u32, event_wait_list: In<Handle>, event: Out<Handle>) => queue::enqueue_barrier_with_wait_list(command_queue, Ask::new(num_events_in_wait_list, event_wait_list, event));
    object clCreateCommandQueueWithProperties(context: Handle, device: Handle, properties: In<u64>) => queue::create_command_queue_with_properties(context, device, properties);
    object clCreatePipe(context: Handle, _flags: u64, _pipe_packet_size: u32, _pipe_max_packets: u32, _properties: In<usize>) => refused::in_context(context);
    status clGetPipeInfo(pipe: Handle, _param_name: u32, _param_value_size: usize, _param_value: Out<u8>, _param_value_size_ret: Out<usize>) => refused::not_of_buffers(pipe);
    status clEnqueueSVMFree(command_queue: Handle, _num_svm_pointers: u32, _svm_pointers: In<In<u8>>, _pfn_free_func: Unused, _user_data: usize, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    status clEnqueueSVMMemcpy(command_queue: Handle, _blocking_copy: u32, _dst_ptr: usize, _src_ptr: usize, _size: usize, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    status clEnqueueSVMMemFill(command_queue: Handle, _svm_ptr: usize, _pattern: In<u8>, _pattern_size: usize, _size: usize, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    status clEnqueueSVMMap(command_queue: Handle, _blocking_map: u32, _flags: u64, _svm_ptr: usize, _size: usize, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    status clEnqueueSVMUnmap(command_queue: Handle, _svm_ptr: usize, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    object clCreateSamplerWithProperties(context: Handle, sampler_properties: In<u64>) => sampler::create_sampler_with_properties(context, sampler_properties);
    status clSetKernelArgSVMPointer(kernel: Handle, _arg_index: u32, _arg_value: In<u8>) => refused::kernel_call(kernel);
    status clSetKernelExecInfo(kernel: Handle, _param_name: u32, _param_value_size: usize, _param_value: In<u8>) => refused::kernel_call(kernel);
    object clCloneKernel(source_kernel: Handle) => kernel::clone_kernel(source_kernel);
    object clCreateProgramWithIL(context: Handle, il: In<u8>, length: usize) => program::create_program_with_il(context, il, length);
    status clEnqueueSVMMigrateMem(command_queue: Handle, _num_svm_pointers: u32, _svm_pointers: In<In<u8>>, _sizes: In<usize>, _flags: u64, _num_events_in_wait_list: u32, _event_wait_list: In<Handle>, _event: Out<Handle>) => refused::command(command_queue);
    status clGetDeviceAndHostTimer(device: Handle, device_timestamp: Out<u64>, host_timestamp: Out<u64>) => platform::get_device_and_host_timer(device, device_timestamp, host_timestamp);
    status clGetHostTimer(device: Handle, host_timestamp: Out<u64>) => platform::get_host_timer(device, host_timestamp);
    status clGetKernelSubGroupInfo(kernel: Handle, device: Handle, param_name: u32, input_value_size: usize, input_value: In<u8>, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => kernel::get_kernel_sub_group_info(kernel, device, param_name, input_value_size, input_value, Room::new(param_value_size, param_value, param_value_size_ret));
    status clSetDefaultDeviceCommandQueue(context: Handle, device: Handle, _command_queue: Handle) => queue::set_default_device_command_queue(context, device);
    status clSetProgramReleaseCallback(program: Handle, pfn_notify: Notify, user_data: usize) => program::set_program_release_callback(program, pfn_notify, user_data);
    status clSetProgramSpecializationConstant(program: Handle, spec_id: u32, spec_size: usize, spec_value: In<u8>) => program::set_program_specialization_constant(program, spec_id, spec_size, spec_value);
    object clCreateBufferWithProperties(context: Handle, properties: In<u64>, flags: u64, size: usize, host_ptr: usize) => memory::create_buffer_with_properties(context, properties, flags, size, host_ptr);
    object clCreateImageWithProperties(context: Handle, properties: In<u64>, flags: u64, image_format: In<ImageFormat>, image_desc: In<ImageDescriptor>, host_ptr: usize) => memory::create_image_with_properties(context, properties, flags, image_format, image_desc, host_ptr);
    status clSetContextDestructorCallback(context: Handle, pfn_notify: Notify, user_data: usize) => context::set_context_destructor_callback(context, pfn_notify, user_data);
    object clCreateFromGLBuffer(context: Handle, _flags: u64, _bufobj: u32) => refused::in_context(context);
    object clCreateFromGLTexture2D(context: Handle, _flags: u64, _target: u32, _level: i32, _texture: u32) => refused::in_context(context);
    object clCreateFromGLTexture3D(context: Handle, _flags: u64, _target: u32, _level: i32, _texture: u32) => refused::in_context(context);
    object clCreateFromGLTexture(context: Handle, _flags: u64, _target: u32, _level: i32, _texture: u32) => refused::in_context(context);
    object clCreateFromGLRenderbuffer(context: Handle, _flags: u64, _renderbuffer: u32) => refused::in_context(context);
    object clCreateEventFromGLsyncKHR(context: Handle, _sync: usize) => refused::in_context(context);
    object clCreateFromEGLImageKHR(context: Handle, _display: usize, _image: usize, _flags: u64, _properties: In<usize>) => refused::in_context(context);
    object clCreateEventFromEGLSyncKHR(context: Handle, _sync: usize, _display: usize) => refused::in_context(context);
    status clGetGLObjectInfo(_memobj: Handle, _kind: Out<u32>, _name: Out<u32>) => refused::not_of_buffers(_memobj);
    status clGetGLTextureInfo(_memobj: Handle, _name: u32, _size: usize, _value: Out<u8>, _size_ret: Out<usize>) => refused::not_of_buffers(_memobj);
    status clEnqueueAcquireGLObjects(queue: Handle, _n: u32, _objects: In<Handle>, _count: u32, _list: In<Handle>, _event: Out<Handle>) => refused::command(queue);
    status clEnqueueReleaseGLObjects(queue: Handle, _n: u32, _objects: In<Handle>, _count: u32, _list: In<Handle>, _event: Out<Handle>) => refused::command(queue);
    status clEnqueueAcquireEGLObjectsKHR(queue: Handle, _n: u32, _objects: In<Handle>, _count: u32, _list: In<Handle>, _event: Out<Handle>) => refused::command(queue);
    status clEnqueueReleaseEGLObjectsKHR(queue: Handle, _n: u32, _objects: In<Handle>, _count: u32, _list: In<Handle>, _event: Out<Handle>) => refused::command(queue);
    status clGetGLContextInfoKHR(_properties: In<usize>, _name: u32, _size: usize, _value: Out<u8>, _size_ret: Out<usize>) => refused::no_sharing();
    status clCreateSubDevicesEXT(device: Handle, _properties: In<u64>, room: u32, to: Out<Handle>, count: Out<u32>) => platform::create_sub_devices(device, In::NULL, room, to, count);
    status clRetainDeviceEXT(device: Handle) => platform::retain_device(device);
    status clReleaseDeviceEXT(device: Handle) => platform::retain_device(device);
    status clGetKernelSubGroupInfoKHR(kernel: Handle, device: Handle, param_name: u32, input_value_size: usize, input_value: In<u8>, param_value_size: usize, param_value: Out<u8>, param_value_size_ret: Out<usize>) => kernel::get_kernel_sub_group_info(kernel, device, param_name, input_value_size, input_value, Room::new(param_value_size, param_value, param_value_size_ret));
    status clIcdGetPlatformIDsKHR(num_entries: u32, platforms: Out<Handle>, num_platforms: Out<u32>) => platform::get_platform_ids(num_entries, platforms, num_platforms);
}

/// Functions whose result is neither a code nor an object with a code.
mod plain {
    use super::*;

    /// `clGetExtensionFunctionAddress`: every function of the table by name, and the function that loaders request first.
    pub extern "C" fn clGetExtensionFunctionAddress(name: In<c_char>) -> usize {
        registry::set_dispatch(TABLE.0.as_ptr().addr());
        let name = name.text().unwrap_or_default();
        if name == "clIcdGetPlatformIDsKHR" {
            return (entry::clIcdGetPlatformIDsKHR as *const ()).addr();
        }
        let extension = name.ends_with("KHR") || name.ends_with("EXT");
        let place = NAMES.iter().position(|n| extension && *n == name);
        place.map_or(0, |at| TABLE.0[at].0.addr())
    }

    /// `clGetExtensionFunctionAddressForPlatform`.
    pub extern "C" fn clGetExtensionFunctionAddressForPlatform(platform: Handle, name: In<c_char>) -> usize {
        if platform == crate::device::platform() { clGetExtensionFunctionAddress(name) } else { 0 }
    }

    /// `clSVMAlloc`: no device has shared virtual memory.
    pub extern "C" fn clSVMAlloc(_context: Handle, _flags: u64, _size: usize, _alignment: u32) -> usize {
        0
    }

    /// `clSVMFree`.
    pub extern "C" fn clSVMFree(_context: Handle, _pointer: usize) {}
}

/// The same functions under exported names.
mod plain_exports {
    use super::*;

    #[unsafe(no_mangle)]
    extern "C" fn clGetExtensionFunctionAddress(name: In<c_char>) -> usize {
        plain::clGetExtensionFunctionAddress(name)
    }
    #[unsafe(no_mangle)]
    extern "C" fn clGetExtensionFunctionAddressForPlatform(platform: Handle, name: In<c_char>) -> usize {
        plain::clGetExtensionFunctionAddressForPlatform(platform, name)
    }
    #[unsafe(no_mangle)]
    extern "C" fn clSVMAlloc(context: Handle, flags: u64, size: usize, alignment: u32) -> usize {
        plain::clSVMAlloc(context, flags, size, alignment)
    }
    #[unsafe(no_mangle)]
    extern "C" fn clSVMFree(context: Handle, pointer: usize) {
        plain::clSVMFree(context, pointer);
    }
}

/// A function of the table, or null.
#[derive(Clone, Copy)]
struct Slot(*const ());

/// The table in the order of `cl_icd_dispatch`.
struct Table([Slot; NAMES.len()]);

// SAFETY: the pointers are those of functions, which any thread may call.
unsafe impl Sync for Table {}

macro_rules! table {
    (@slot none $name:ident) => { Slot(std::ptr::null()) };
    (@slot $module:ident $name:ident) => { Slot($module::$name as *const ()) };
    ($($module:ident $name:ident,)*) => {
        /// Names of the table's functions in its order.
        pub const NAMES: [&str; [$(stringify!($name)),*].len()] = [$(stringify!($name)),*];
        static TABLE: Table = Table([$(table!(@slot $module $name)),*]);
    };
}

// Direct3D sharing entries are absent on systems whose loaders do not have functions for it.
table! {
    entry clGetPlatformIDs,
    entry clGetPlatformInfo,
    entry clGetDeviceIDs,
    entry clGetDeviceInfo,
    entry clCreateContext,
    entry clCreateContextFromType,
    entry clRetainContext,
    entry clReleaseContext,
    entry clGetContextInfo,
    entry clCreateCommandQueue,
    entry clRetainCommandQueue,
    entry clReleaseCommandQueue,
    entry clGetCommandQueueInfo,
    entry clSetCommandQueueProperty,
    entry clCreateBuffer,
    entry clCreateImage2D,
    entry clCreateImage3D,
    entry clRetainMemObject,
    entry clReleaseMemObject,
    entry clGetSupportedImageFormats,
    entry clGetMemObjectInfo,
    entry clGetImageInfo,
    entry clCreateSampler,
    entry clRetainSampler,
    entry clReleaseSampler,
    entry clGetSamplerInfo,
    entry clCreateProgramWithSource,
    entry clCreateProgramWithBinary,
    entry clRetainProgram,
    entry clReleaseProgram,
    entry clBuildProgram,
    entry clUnloadCompiler,
    entry clGetProgramInfo,
    entry clGetProgramBuildInfo,
    entry clCreateKernel,
    entry clCreateKernelsInProgram,
    entry clRetainKernel,
    entry clReleaseKernel,
    entry clSetKernelArg,
    entry clGetKernelInfo,
    entry clGetKernelWorkGroupInfo,
    entry clWaitForEvents,
    entry clGetEventInfo,
    entry clRetainEvent,
    entry clReleaseEvent,
    entry clGetEventProfilingInfo,
    entry clFlush,
    entry clFinish,
    entry clEnqueueReadBuffer,
    entry clEnqueueWriteBuffer,
    entry clEnqueueCopyBuffer,
    entry clEnqueueReadImage,
    entry clEnqueueWriteImage,
    entry clEnqueueCopyImage,
    entry clEnqueueCopyImageToBuffer,
    entry clEnqueueCopyBufferToImage,
    entry clEnqueueMapBuffer,
    entry clEnqueueMapImage,
    entry clEnqueueUnmapMemObject,
    entry clEnqueueNDRangeKernel,
    entry clEnqueueTask,
    entry clEnqueueNativeKernel,
    entry clEnqueueMarker,
    entry clEnqueueWaitForEvents,
    entry clEnqueueBarrier,
    plain clGetExtensionFunctionAddress,
    entry clCreateFromGLBuffer,
    entry clCreateFromGLTexture2D,
    entry clCreateFromGLTexture3D,
    entry clCreateFromGLRenderbuffer,
    entry clGetGLObjectInfo,
    entry clGetGLTextureInfo,
    entry clEnqueueAcquireGLObjects,
    entry clEnqueueReleaseGLObjects,
    entry clGetGLContextInfoKHR,
    none clGetDeviceIDsFromD3D10KHR,
    none clCreateFromD3D10BufferKHR,
    none clCreateFromD3D10Texture2DKHR,
    none clCreateFromD3D10Texture3DKHR,
    none clEnqueueAcquireD3D10ObjectsKHR,
    none clEnqueueReleaseD3D10ObjectsKHR,
    entry clSetEventCallback,
    entry clCreateSubBuffer,
    entry clSetMemObjectDestructorCallback,
    entry clCreateUserEvent,
    entry clSetUserEventStatus,
    entry clEnqueueReadBufferRect,
    entry clEnqueueWriteBufferRect,
    entry clEnqueueCopyBufferRect,
    entry clCreateSubDevicesEXT,
    entry clRetainDeviceEXT,
    entry clReleaseDeviceEXT,
    entry clCreateEventFromGLsyncKHR,
    entry clCreateSubDevices,
    entry clRetainDevice,
    entry clReleaseDevice,
    entry clCreateImage,
    entry clCreateProgramWithBuiltInKernels,
    entry clCompileProgram,
    entry clLinkProgram,
    entry clUnloadPlatformCompiler,
    entry clGetKernelArgInfo,
    entry clEnqueueFillBuffer,
    entry clEnqueueFillImage,
    entry clEnqueueMigrateMemObjects,
    entry clEnqueueMarkerWithWaitList,
    entry clEnqueueBarrierWithWaitList,
    plain clGetExtensionFunctionAddressForPlatform,
    entry clCreateFromGLTexture,
    none clGetDeviceIDsFromD3D11KHR,
    none clCreateFromD3D11BufferKHR,
    none clCreateFromD3D11Texture2DKHR,
    none clCreateFromD3D11Texture3DKHR,
    none clCreateFromDX9MediaSurfaceKHR,
    none clEnqueueAcquireD3D11ObjectsKHR,
    none clEnqueueReleaseD3D11ObjectsKHR,
    none clGetDeviceIDsFromDX9MediaAdapterKHR,
    none clEnqueueAcquireDX9MediaSurfacesKHR,
    none clEnqueueReleaseDX9MediaSurfacesKHR,
    entry clCreateFromEGLImageKHR,
    entry clEnqueueAcquireEGLObjectsKHR,
    entry clEnqueueReleaseEGLObjectsKHR,
    entry clCreateEventFromEGLSyncKHR,
    entry clCreateCommandQueueWithProperties,
    entry clCreatePipe,
    entry clGetPipeInfo,
    plain clSVMAlloc,
    plain clSVMFree,
    entry clEnqueueSVMFree,
    entry clEnqueueSVMMemcpy,
    entry clEnqueueSVMMemFill,
    entry clEnqueueSVMMap,
    entry clEnqueueSVMUnmap,
    entry clCreateSamplerWithProperties,
    entry clSetKernelArgSVMPointer,
    entry clSetKernelExecInfo,
    entry clGetKernelSubGroupInfoKHR,
    entry clCloneKernel,
    entry clCreateProgramWithIL,
    entry clEnqueueSVMMigrateMem,
    entry clGetDeviceAndHostTimer,
    entry clGetHostTimer,
    entry clGetKernelSubGroupInfo,
    entry clSetDefaultDeviceCommandQueue,
    entry clSetProgramReleaseCallback,
    entry clSetProgramSpecializationConstant,
    entry clCreateBufferWithProperties,
    entry clCreateImageWithProperties,
    entry clSetContextDestructorCallback,
}
