use crate::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, In, Out};
use std::ffi::CString;

#[test]
fn a_log_is_in_the_form_of_clang() {
    let s = Setup::new();
    let program = s.program("kernel void k(global int *x) {\n  x[0] = y;\n}");
    assert_eq!(clBuildProgram(program, 0, In::NULL, In::NULL, None, 0), cl::BUILD_PROGRAM_FAILURE);
    let log = |name| asked(|n, v, r| clGetProgramBuildInfo(program, s.device, name, n, v, r));
    let text = text(log(cl::PROGRAM_BUILD_LOG));
    assert!(
        text.starts_with("<source>:2:10: error: use of undeclared identifier 'y'\n  x[0] = y;\n"),
        "{text}"
    );
    assert_eq!(number(log(cl::PROGRAM_BUILD_STATUS)) as u32 as i32, cl::BUILD_ERROR);
    let name = CString::new("k").unwrap();
    let kernel = made(|e| clCreateKernel(program, In::from_text(&name), e));
    assert_eq!(kernel, Err(cl::INVALID_PROGRAM_EXECUTABLE));
    let bad = CString::new("-fancy --nonsense").unwrap();
    let code = clBuildProgram(program, 0, In::NULL, In::from_text(&bad), None, 0);
    assert_eq!(code, cl::INVALID_BUILD_OPTIONS);
    assert_eq!(clReleaseProgram(program), 0);
}

#[test]
#[allow(clippy::too_many_lines)] // one life of a program
fn programs_are_compiled_with_headers_linked_and_come_back_from_binaries() {
    let s = Setup::new();
    let header = s.program("struct pair { int a, b; };\nint sum(struct pair p);\n");
    let library = s.program("#include <pair.h>\nint sum(struct pair p) { return p.a + p.b + N; }\n");
    let main = s.program(
        "#include <pair.h>\nkernel void k(global int *x) { struct pair p = { N, 2 }; x[0] = sum(p); }\n",
    );
    let name = CString::new("pair.h").unwrap();
    for (program, options) in [(library, "-D N=100"), (main, "-D N=40")] {
        let options = CString::new(options).unwrap();
        let code = clCompileProgram(
            program,
            0,
            In::NULL,
            In::from_text(&options),
            1,
            In::of(&[header]),
            In::of(&[In::from_text(&name)]),
            None,
            0,
        );
        assert_eq!(code, 0);
    }
    let link = |inputs: &[Handle]| {
        let n = inputs.len() as u32;
        made(|e| clLinkProgram(s.context, 0, In::NULL, In::NULL, n, In::of(inputs), None, 0, e))
    };
    assert_eq!(link(&[main]), Err(cl::LINK_PROGRAM_FAILURE));
    let linked = link(&[main, library]).unwrap();
    let asked = |name| asked(|n, v, r| clGetProgramInfo(linked, name, n, v, r));
    assert_eq!(text(asked(cl::PROGRAM_KERNEL_NAMES)), "k");
    let size = number(asked(cl::PROGRAM_BINARY_SIZES)) as usize;
    let mut binary = vec![0u8; size];
    let mut place = [0u8; 8];
    place.copy_from_slice(&address(&mut binary).to_ne_bytes());
    let to = Out::to_list(&mut place);
    assert_eq!(clGetProgramInfo(linked, cl::PROGRAM_BINARIES, 8, to, Out::NULL), 0);
    let again = |bytes: &[u8]| {
        let (list, sizes) = ([In::of(bytes)], [bytes.len()]);
        let device = [s.device];
        made(|e| {
            let devices = In::of(&device);
            clCreateProgramWithBinary(s.context, 1, devices, In::of(&sizes), In::of(&list), Out::NULL, e)
        })
    };
    assert_eq!(again(&[1, 2, 3]), Err(cl::INVALID_BINARY));
    let again = again(&binary).unwrap();
    for program in [linked, again] {
        if program == again {
            assert_eq!(clBuildProgram(program, 0, In::NULL, In::NULL, None, 0), 0);
        }
        let name = CString::new("k").unwrap();
        let kernel = made(|e| clCreateKernel(program, In::from_text(&name), e)).unwrap();
        let b = s.buffer(0, 4, 0);
        set_buffer(kernel, 0, b);
        assert_eq!(s.launch(kernel, 1, &[], Out::NULL), 0);
        assert_eq!(s.read_ints(b, 1), [142]);
        assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
    }
    for program in [header, library, main, linked, again] {
        assert_eq!(clReleaseProgram(program), 0);
    }
}

#[test]
fn kernels_tell_of_their_arguments() {
    let s = Setup::new();
    let kernel = s.kernel(
        "kernel __attribute__((reqd_work_group_size(8, 4, 1))) void k(global const float4 *restrict a, constant int *b, local uchar *c, volatile global ulong *d, int n) { local int t[10]; t[0] = n; d[0] = a[0].x + b[0] + c[0] + t[0]; }",
        "k",
    );
    let arg = |i: u32, name: u32| asked(|n, v, r| clGetKernelArgInfo(kernel, i, name, n, v, r));
    let names = ["a", "b", "c", "d", "n"];
    let types = ["float4*", "int*", "uchar*", "ulong*", "int"];
    let spaces = [
        cl::KERNEL_ARG_ADDRESS_GLOBAL,
        cl::KERNEL_ARG_ADDRESS_CONSTANT,
        cl::KERNEL_ARG_ADDRESS_LOCAL,
        cl::KERNEL_ARG_ADDRESS_GLOBAL,
        cl::KERNEL_ARG_ADDRESS_PRIVATE,
    ];
    let (c, r, v) = (cl::KERNEL_ARG_TYPE_CONST, cl::KERNEL_ARG_TYPE_RESTRICT, cl::KERNEL_ARG_TYPE_VOLATILE);
    let qualifiers = [c | r, c, 0, v, 0];
    for i in 0..5u32 {
        let n = i as usize;
        assert_eq!(text(arg(i, cl::KERNEL_ARG_NAME)), names[n]);
        assert_eq!(text(arg(i, cl::KERNEL_ARG_TYPE_NAME)), types[n]);
        assert_eq!(number(arg(i, cl::KERNEL_ARG_ADDRESS_QUALIFIER)), u64::from(spaces[n]), "{i}");
        assert_eq!(number(arg(i, cl::KERNEL_ARG_TYPE_QUALIFIER)), qualifiers[n], "{i}");
    }
    assert_eq!(arg(5, cl::KERNEL_ARG_NAME), Err(cl::INVALID_ARG_INDEX));
    let info = |name| asked(|n, v, r| clGetKernelInfo(kernel, name, n, v, r));
    assert_eq!(text(info(cl::KERNEL_ATTRIBUTES)), "reqd_work_group_size(8,4,1)");
    assert_eq!(number(info(cl::KERNEL_NUM_ARGS)), 5);
    let group = |name| asked(|n, v, r| clGetKernelWorkGroupInfo(kernel, s.device, name, n, v, r));
    let sizes: Vec<u8> = [8usize, 4, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
    assert_eq!(group(cl::KERNEL_COMPILE_WORK_GROUP_SIZE).unwrap(), sizes);
    assert_eq!(number(group(cl::KERNEL_LOCAL_MEM_SIZE)), 40);
    assert_eq!(clSetKernelArg(kernel, 2, 100, In::NULL), 0);
    assert_eq!(number(group(cl::KERNEL_LOCAL_MEM_SIZE)), 144);
    assert_eq!(clReleaseKernel(kernel), 0);
}

#[test]
fn groups_that_do_not_divide_the_range_need_a_newer_language() {
    let s = Setup::new();
    let text = "kernel void k(global int *x) { x[get_global_id(0)] = get_local_size(0); }";
    for (options, code) in [("", cl::INVALID_WORK_GROUP_SIZE), ("-cl-std=CL3.0", 0)] {
        let program = s.program(text);
        let options = CString::new(options).unwrap();
        assert_eq!(clBuildProgram(program, 0, In::NULL, In::from_text(&options), None, 0), 0);
        let name = CString::new("k").unwrap();
        let kernel = made(|e| clCreateKernel(program, In::from_text(&name), e)).unwrap();
        let b = s.buffer(0, 40, 0);
        set_buffer(kernel, 0, b);
        let (global, local) = ([10usize], [8usize]);
        let ran = clEnqueueNDRangeKernel(
            s.queue,
            kernel,
            1,
            In::NULL,
            In::of(&global),
            In::of(&local),
            0,
            In::NULL,
            Out::NULL,
        );
        assert_eq!(ran, code);
        if code == 0 {
            assert_eq!(s.read_ints(b, 10), [8, 8, 8, 8, 8, 8, 8, 8, 2, 2]);
        }
        assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b), clReleaseProgram(program)), (0, 0, 0));
    }
}

#[test]
fn a_required_group_is_taken_where_a_launch_names_none() {
    let s = Setup::new();
    let kernel = s.kernel(
        "kernel __attribute__((reqd_work_group_size(4, 1, 1), vec_type_hint(float4))) void k(global int *x) { x[get_global_id(0)] = get_local_size(0); }",
        "k",
    );
    let attributes = asked(|n, v, r| clGetKernelInfo(kernel, cl::KERNEL_ATTRIBUTES, n, v, r));
    assert_eq!(text(attributes), "reqd_work_group_size(4,1,1) vec_type_hint(float4)");
    let b = s.buffer(0, 32, 0);
    set_buffer(kernel, 0, b);
    assert_eq!(s.launch(kernel, 8, &[], Out::NULL), 0);
    assert_eq!(s.read_ints(b, 8), [4; 8]);
    assert_eq!(s.launch(kernel, 6, &[], Out::NULL), cl::INVALID_WORK_GROUP_SIZE);
    assert_eq!((clReleaseKernel(kernel), clReleaseMemObject(b)), (0, 0));
}

#[test]
fn what_devices_lack_is_said_in_the_form_that_the_standard_asks_for() {
    let s = Setup::new();
    let device = |name| asked(|n, v, r| clGetDeviceInfo(s.device, name, n, v, r));
    assert_eq!(number(device(cl::DEVICE_TYPE)), cl::DEVICE_TYPE_GPU);
    // A date on which no version of the conformance tests was published.
    assert_eq!(text(device(cl::DEVICE_LATEST_CONFORMANCE_VERSION_PASSED)), "v0000-01-01-00");
    assert_eq!(clSetDefaultDeviceCommandQueue(s.context, s.device, Handle::NULL), cl::INVALID_OPERATION);
    let kernel = s.kernel("kernel void k(global int *x) { x[0] = 1; }", "k");
    assert_eq!(clSetKernelExecInfo(kernel, 0x11b6, 0, In::NULL), cl::INVALID_OPERATION);
    assert_eq!(clReleaseKernel(kernel), 0);
}
