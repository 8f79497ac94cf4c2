//! Images and samplers through the API.

use super::setup::*;
use aethercl_icd::api::entry::*;
use aethercl_icd::cl;
use aethercl_icd::raw::{Handle, ImageDescriptor, ImageFormat, In, Out};

const RGBA8: ImageFormat = ImageFormat { order: 0x10b5, channel: 0x10d2 };
const R_FLOAT: ImageFormat = ImageFormat { order: 0x10b0, channel: 0x10de };

fn plane(width: usize, height: usize) -> ImageDescriptor {
    ImageDescriptor { kind: cl::MEM_OBJECT_IMAGE2D, width, height, ..ImageDescriptor::default() }
}

fn image(s: &Setup, flags: u64, format: ImageFormat, d: ImageDescriptor, host: usize) -> Result<Handle, i32> {
    made(|e| clCreateImage(s.context, flags, In::of(&[format]), In::of(&[d]), host, e))
}

fn info(image: Handle, name: u32) -> u64 {
    number(asked(|size, v, r| clGetImageInfo(image, name, size, v, r)))
}

fn read_part(
    s: &Setup,
    image: Handle,
    origin: [usize; 3],
    region: [usize; 3],
    pitches: [usize; 2],
    out: &mut [u8],
) -> i32 {
    let [row, slice] = pitches;
    let (origin, region) = (In::of(&origin), In::of(&region));
    clEnqueueReadImage(s.queue, image, 1, origin, region, row, slice, address(out), 0, In::NULL, Out::NULL)
}

fn write_part(s: &Setup, image: Handle, origin: [usize; 3], region: [usize; 3], data: &mut [u8]) -> i32 {
    let (origin, region) = (In::of(&origin), In::of(&region));
    clEnqueueWriteImage(s.queue, image, 1, origin, region, 0, 0, address(data), 0, In::NULL, Out::NULL)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + 3) as u8).collect()
}

#[test]
fn parts_come_back_with_the_pitches_of_the_call() {
    let s = Setup::new();
    let d = ImageDescriptor {
        kind: cl::MEM_OBJECT_IMAGE3D,
        width: 5,
        height: 4,
        depth: 3,
        ..ImageDescriptor::default()
    };
    let volume = image(&s, 0, RGBA8, d, 0).unwrap();
    let asked =
        [cl::IMAGE_WIDTH, cl::IMAGE_HEIGHT, cl::IMAGE_DEPTH, cl::IMAGE_ROW_PITCH, cl::IMAGE_SLICE_PITCH];
    assert_eq!(asked.map(|name| info(volume, name)), [5, 4, 3, 20, 80]);
    assert_eq!([cl::IMAGE_ELEMENT_SIZE, cl::IMAGE_ARRAY_SIZE].map(|name| info(volume, name)), [4, 0]);
    let mut data = bytes(240);
    assert_eq!(write_part(&s, volume, [0; 3], [5, 4, 3], &mut data), 0);
    let mut out = vec![0; 2 * 48];
    assert_eq!(read_part(&s, volume, [1, 2, 1], [2, 2, 2], [12, 48], &mut out), 0);
    for (z, y, x) in (0..2).flat_map(|z| (0..2).flat_map(move |y| (0..2).map(move |x| (z, y, x)))) {
        let from = (1 + z) * 80 + (2 + y) * 20 + (1 + x) * 4;
        let to = z * 48 + y * 12 + x * 4;
        assert_eq!(out[to..to + 4], data[from..from + 4], "{x} {y} {z}");
    }
    assert_eq!(read_part(&s, volume, [4, 0, 0], [2, 1, 1], [0, 0], &mut out), cl::INVALID_VALUE);
    assert_eq!(read_part(&s, volume, [0; 3], [5, 1, 1], [16, 0], &mut out), cl::INVALID_VALUE);
    assert_eq!(clReleaseMemObject(volume), 0);
}

#[test]
fn layers_of_lines_are_a_slice_pitch_apart() {
    let s = Setup::new();
    let kind = cl::MEM_OBJECT_IMAGE1D_ARRAY;
    let d = ImageDescriptor { kind, width: 3, layers: 4, ..ImageDescriptor::default() };
    let lines = image(&s, 0, R_FLOAT, d, 0).unwrap();
    let mut data = bytes(48);
    assert_eq!(write_part(&s, lines, [0; 3], [3, 4, 1], &mut data), 0);
    let mut out = vec![0; 40];
    assert_eq!(read_part(&s, lines, [0, 1, 0], [2, 2, 1], [0, 16], &mut out), 0);
    assert_eq!((&out[..8], &out[16..24]), (&data[12..20], &data[24..32]));
    assert_eq!([cl::IMAGE_ARRAY_SIZE, cl::IMAGE_HEIGHT].map(|name| info(lines, name)), [4, 0]);
    assert_eq!(clReleaseMemObject(lines), 0);
}

#[test]
fn the_programs_rows_are_read_and_shown() {
    let s = Setup::new();
    let mut own = bytes(4 * 32);
    let host = address(&mut own);
    let d = ImageDescriptor { row_pitch: 32, ..plane(5, 4) };
    let copy = image(&s, cl::MEM_COPY_HOST_PTR, RGBA8, d, host).unwrap();
    let shown = image(&s, cl::MEM_USE_HOST_PTR, RGBA8, d, host).unwrap();
    assert_eq!([copy, shown].map(|i| info(i, cl::IMAGE_ROW_PITCH)), [20, 32]);
    for of in [copy, shown] {
        let mut out = vec![0; 80];
        assert_eq!(read_part(&s, of, [0; 3], [5, 4, 1], [0; 2], &mut out), 0);
        (0..4).for_each(|y| assert_eq!(out[y * 20..y * 20 + 20], own[y * 32..y * 32 + 20]));
    }
    let mut row = 0;
    let (origin, region) = ([1, 2, 0], [2, 2, 1]);
    let map = |flags, row: Out<usize>| {
        let (origin, region) = (In::of(&origin), In::of(&region));
        made(|e| {
            clEnqueueMapImage(
                s.queue,
                shown,
                1,
                flags,
                origin,
                region,
                row,
                Out::NULL,
                0,
                In::NULL,
                Out::NULL,
                e,
            )
        })
    };
    assert_eq!(map(cl::MAP_READ, Out::NULL), Err(cl::INVALID_VALUE));
    let at = map(cl::MAP_READ | cl::MAP_WRITE, Out::to(&mut row)).unwrap();
    assert_eq!((at.0, row), (host + 2 * 32 + 4, 32));
    own[2 * 32 + 4] = 99;
    // Outside the mapped region, so it has no effect.
    own[0] = 98;
    assert_eq!(clEnqueueUnmapMemObject(s.queue, shown, at.0, 0, In::NULL, Out::NULL), 0);
    let mut out = vec![0; 80];
    assert_eq!(read_part(&s, shown, [0; 3], [5, 4, 1], [0; 2], &mut out), 0);
    assert_eq!((out[2 * 20 + 4], out[0]), (99, 3));
    assert_eq!((clReleaseMemObject(copy), clReleaseMemObject(shown)), (0, 0));
}

#[test]
fn fills_and_copies_go_between_images_and_buffers() {
    let s = Setup::new();
    let (a, b) = (image(&s, 0, RGBA8, plane(6, 6), 0).unwrap(), image(&s, 0, RGBA8, plane(8, 4), 0).unwrap());
    let buffer = s.buffer(0, 64, 0);
    let colour = [1.0f32, 0.0, 0.5, 2.0].map(f32::to_bits);
    let fill = |origin: [usize; 3], region: [usize; 3]| {
        let (origin, region) = (In::of(&origin), In::of(&region));
        clEnqueueFillImage(s.queue, a, In::of(&colour), origin, region, 0, In::NULL, Out::NULL)
    };
    assert_eq!(fill([0; 3], [6, 6, 1]), 0);
    let mut texels = bytes(16);
    assert_eq!(write_part(&s, a, [2, 3, 0], [2, 2, 1], &mut texels), 0);
    let (from, to, region) = ([2, 3, 0], [5, 1, 0], [2, 2, 1]);
    let copy = |from_image, to_image, from: &[usize; 3], to: &[usize; 3]| {
        let (from, to, region) = (In::of(from), In::of(to), In::of(&region));
        clEnqueueCopyImage(s.queue, from_image, to_image, from, to, region, 0, In::NULL, Out::NULL)
    };
    assert_eq!(copy(a, b, &from, &to), 0);
    let (origin, size) = (In::of(&to), In::of(&region));
    assert_eq!(clEnqueueCopyImageToBuffer(s.queue, b, buffer, origin, size, 8, 0, In::NULL, Out::NULL), 0);
    assert_eq!(s.read(buffer, 24)[8..], texels[..]);
    let back = [0; 3];
    let (origin, size) = (In::of(&back), In::of(&region));
    assert_eq!(clEnqueueCopyBufferToImage(s.queue, buffer, a, 8, origin, size, 0, In::NULL, Out::NULL), 0);
    let mut out = vec![0; 12];
    assert_eq!(read_part(&s, a, [0; 3], [3, 1, 1], [0; 2], &mut out), 0);
    assert_eq!((&out[..8], &out[8..]), (&texels[..8], &[255, 0, 128, 255][..]));
    assert_eq!(copy(a, a, &[0; 3], &[1, 1, 0]), cl::MEM_COPY_OVERLAP);
    assert_eq!(copy(a, a, &[0; 3], &[2, 0, 0]), 0);
    let other = image(&s, 0, R_FLOAT, plane(6, 6), 0).unwrap();
    assert_eq!(copy(a, other, &[0; 3], &[0; 3]), cl::IMAGE_FORMAT_MISMATCH);
    assert_eq!(copy(a, buffer, &[0; 3], &[0; 3]), cl::INVALID_MEM_OBJECT);
    for of in [a, b, buffer, other] {
        assert_eq!(clReleaseMemObject(of), 0);
    }
}

#[test]
fn a_kernel_samples_an_image() {
    let s = Setup::new();
    let kernel = s.kernel(
        "kernel void k(read_only image2d_t p, sampler_t how, write_only image1d_buffer_t to, global float *out) {
           int i = get_global_id(0);
           float x = read_imagef(p, how, (float2)(i / 4.0f, 0.5f)).x;
           out[i] = x; write_imagef(to, i, (float4)(x));
         }",
        "k",
    );
    let mut data: Vec<u8> = [0f32, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let p = image(&s, cl::MEM_COPY_HOST_PTR, R_FLOAT, plane(2, 1), address(&mut data)).unwrap();
    let (out, bytes) = (s.buffer(0, 16, 0), s.buffer(0, 16, 0));
    let kind = cl::MEM_OBJECT_IMAGE1D_BUFFER;
    let d = ImageDescriptor { kind, width: 4, buffer: bytes, ..ImageDescriptor::default() };
    let line = image(&s, 0, R_FLOAT, d, 0).unwrap();
    let how = made(|e| clCreateSampler(s.context, 1, cl::ADDRESS_REPEAT, cl::FILTER_LINEAR, e)).unwrap();
    for (i, handle) in (0..).zip([p, how, line]) {
        assert_eq!(set(kernel, i, &handle.0.to_ne_bytes()), 0);
    }
    set_buffer(kernel, 3, out);
    assert_eq!(s.launch(kernel, 4, &[], Out::NULL), 0);
    let floats =
        |b: Handle| -> Vec<f32> { s.read_ints(b, 4).iter().map(|w| f32::from_bits(*w as u32)).collect() };
    assert_eq!(floats(out), [2.0, 0.0, 2.0, 4.0]);
    assert_eq!(floats(bytes), [2.0, 0.0, 2.0, 4.0]);
    // The buffer lives as long as its image.
    assert_eq!(clReleaseMemObject(bytes), 0);
    assert_eq!(info(line, cl::IMAGE_BUFFER), bytes.0 as u64);
    let wrong = |index, handle: Handle| set(kernel, index, &handle.0.to_ne_bytes());
    assert_eq!(wrong(0, out), cl::INVALID_MEM_OBJECT);
    assert_eq!(wrong(0, line), cl::INVALID_ARG_VALUE);
    assert_eq!(wrong(1, p), cl::INVALID_SAMPLER);
    assert_eq!(wrong(3, p), cl::INVALID_MEM_OBJECT);
    assert_eq!(set(kernel, 0, &[0; 4]), cl::INVALID_ARG_SIZE);
    let read_only = |name| number(asked(|size, v, r| clGetKernelArgInfo(kernel, 0, name, size, v, r)));
    assert_eq!(read_only(cl::KERNEL_ARG_ACCESS_QUALIFIER), u64::from(cl::KERNEL_ARG_ACCESS_READ_ONLY));
    assert_eq!(
        text(asked(|size, v, r| clGetKernelArgInfo(kernel, 0, cl::KERNEL_ARG_TYPE_NAME, size, v, r))),
        "image2d_t"
    );
    assert_eq!((clReleaseSampler(how), clReleaseKernel(kernel)), (0, 0));
    for of in [p, out, line] {
        assert_eq!(clReleaseMemObject(of), 0);
    }
}

#[test]
fn descriptors_that_do_not_fit_are_refused() {
    let s = Setup::new();
    let wanted = |flags, format, d, host, code| assert_eq!(image(&s, flags, format, d, host), Err(code));
    let rgb = ImageFormat { order: 0x10b4, channel: 0x10d2 };
    wanted(0, rgb, plane(4, 4), 0, cl::IMAGE_FORMAT_NOT_SUPPORTED);
    let none = ImageFormat { order: 1, channel: 0x10d2 };
    wanted(0, none, plane(4, 4), 0, cl::INVALID_IMAGE_FORMAT_DESCRIPTOR);
    wanted(0, RGBA8, plane(0, 4), 0, cl::INVALID_IMAGE_SIZE);
    wanted(0, RGBA8, plane(1 << 20, 4), 0, cl::INVALID_IMAGE_SIZE);
    wanted(0, RGBA8, ImageDescriptor { row_pitch: 16, ..plane(4, 4) }, 0, cl::INVALID_IMAGE_DESCRIPTOR);
    wanted(0, RGBA8, ImageDescriptor { mip_levels: 1, ..plane(4, 4) }, 0, cl::INVALID_IMAGE_DESCRIPTOR);
    wanted(0, RGBA8, ImageDescriptor { kind: 7, ..plane(4, 4) }, 0, cl::INVALID_IMAGE_DESCRIPTOR);
    wanted(cl::MEM_COPY_HOST_PTR, RGBA8, plane(4, 4), 0, cl::INVALID_HOST_PTR);
    wanted(1 << 40, RGBA8, plane(4, 4), 0, cl::INVALID_VALUE);
    let none = made(|e| clCreateImage(s.context, 0, In::NULL, In::of(&[plane(4, 4)]), 0, e));
    assert_eq!(none, Err(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR));
    let none = made(|e| clCreateImage(s.context, 0, In::of(&[RGBA8]), In::NULL, 0, e));
    assert_eq!(none, Err(cl::INVALID_IMAGE_DESCRIPTOR));
    let buffer = s.buffer(0, 1024, 0);
    let d = ImageDescriptor { buffer, row_pitch: 256, ..plane(50, 4) };
    let of_buffer = image(&s, 0, RGBA8, d, 0).unwrap();
    wanted(0, RGBA8, ImageDescriptor { row_pitch: 200, ..d }, 0, cl::INVALID_IMAGE_FORMAT_DESCRIPTOR);
    // Rows that end within a texel also violate the rule for buffers; the length of rows does not matter for buffers.
    wanted(0, RGBA8, ImageDescriptor { row_pitch: 258, ..d }, 0, cl::INVALID_IMAGE_FORMAT_DESCRIPTOR);
    wanted(0, RGBA8, ImageDescriptor { row_pitch: 0, ..d }, 0, cl::INVALID_IMAGE_FORMAT_DESCRIPTOR);
    wanted(0, RGBA8, ImageDescriptor { width: 70, ..d }, 0, cl::INVALID_IMAGE_DESCRIPTOR);
    // Program memory must start at a multiple of 64 texels.
    let mut memory = vec![0u8; 2048];
    let start = address(&mut memory).next_multiple_of(256);
    for (at, is) in [(start, Ok(())), (start + 128, Err(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR))] {
        let buffer = s.buffer(cl::MEM_USE_HOST_PTR, 1024, at);
        let made = image(&s, 0, RGBA8, ImageDescriptor { buffer, ..d }, 0);
        assert_eq!(made.map(|_| ()), is);
        if let Ok(made) = made {
            assert_eq!(clReleaseMemObject(made), 0);
        }
        clReleaseMemObject(buffer);
    }
    wanted(0, RGBA8, ImageDescriptor { height: 5, ..d }, 0, cl::INVALID_IMAGE_SIZE);
    // Buffer commands do not accept images.
    let read = clEnqueueReadBuffer(s.queue, of_buffer, 1, 0, 4, 8, 0, In::NULL, Out::NULL);
    assert_eq!(read, cl::INVALID_MEM_OBJECT);
    assert_eq!((clReleaseMemObject(of_buffer), clReleaseMemObject(buffer)), (0, 0));
    let sampler = |n, mode, filter| made(|e| clCreateSampler(s.context, n, mode, filter, e));
    assert_eq!(sampler(0, cl::ADDRESS_REPEAT, cl::FILTER_LINEAR), Err(cl::INVALID_VALUE));
    assert_eq!(sampler(1, cl::ADDRESS_REPEAT, 7), Err(cl::INVALID_VALUE));
    let list = [u64::from(cl::SAMPLER_FILTER_MODE), cl::FILTER_LINEAR.into(), 0];
    let own = made(|e| clCreateSamplerWithProperties(s.context, In::of(&list), e)).unwrap();
    let of = |name| number(asked(|size, v, r| clGetSamplerInfo(own, name, size, v, r)));
    assert_eq!(
        (of(cl::SAMPLER_FILTER_MODE), of(cl::SAMPLER_NORMALIZED_COORDS)),
        (u64::from(cl::FILTER_LINEAR), 1)
    );
    assert_eq!(clReleaseSampler(own), 0);
    assert_eq!(clReleaseSampler(own), cl::INVALID_SAMPLER);
}

#[test]
fn every_required_format_is_there() {
    let s = Setup::new();
    let mut count = 0;
    let kind = cl::MEM_OBJECT_IMAGE2D;
    assert_eq!(clGetSupportedImageFormats(s.context, 1, kind, 0, Out::NULL, Out::to(&mut count)), 0);
    let mut list = vec![ImageFormat::default(); count as usize];
    let to = Out::to_list(&mut list);
    assert_eq!(clGetSupportedImageFormats(s.context, 1, kind, count, to, Out::NULL), 0);
    // R, RG and RGBA of each channel type, BGRA of normalized bytes.
    for order in [0x10b0, 0x10b2, 0x10b5] {
        for channel in
            [0x10d2, 0x10d3, 0x10d0, 0x10d1, 0x10d7, 0x10d8, 0x10d9, 0x10da, 0x10db, 0x10dc, 0x10dd, 0x10de]
        {
            assert!(list.contains(&ImageFormat { order, channel }), "{order:x} {channel:x}");
        }
    }
    assert!(list.contains(&ImageFormat { order: 0x10b6, channel: 0x10d2 }));
    let wrong = clGetSupportedImageFormats(s.context, 1, 7, 0, Out::NULL, Out::to(&mut count));
    assert_eq!(wrong, cl::INVALID_VALUE);
}
