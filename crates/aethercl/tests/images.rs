//! Images: every format, kind, addressing mode and filter against the standard's formulas in `f64`. Also queries, checks and counters.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use aethercl::image::{Channel, ChannelOrder, Class, Format, Image, Sampler};
use aethercl::types::ImageKind;
use aethercl::{
    Access, Arg, Checks, Counters, Finding, FindingKind, Includes, LaunchOptions, Memory, NdRange, Program,
    Source,
};

const RGBA_FLOAT: Format = Format { order: ChannelOrder::Rgba, channel: Channel::Float };
const RGBA8: Format = Format { order: ChannelOrder::Rgba, channel: Channel::Unorm8 };

fn built(text: &str, options: &str) -> Result<Program, String> {
    Program::build(&Source { name: "test.cl", text }, options, &Includes::none()).map_err(|e| e.log)
}

fn build(text: &str) -> Program {
    built(text, "").unwrap_or_else(|log| panic!("{log}"))
}

/// Numbers without a pattern that formats share.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    }
}

struct Bench {
    memory: Memory,
}

impl Bench {
    fn new() -> Self {
        Self { memory: Memory::new(64 << 20) }
    }

    fn buffer(&self, bytes: u64) -> u64 {
        let at = self.memory.allocate(bytes, "out").unwrap();
        self.memory.write(at, &vec![0; bytes as usize]).unwrap();
        at
    }

    fn image(&self, kind: ImageKind, format: Format, extent: [u64; 3], texels: &[u8]) -> Image {
        let mut image = Image::packed(0, kind, format, extent);
        image.address = self.memory.allocate(image.bytes(), "picture").unwrap();
        self.memory.write(image.address, texels).unwrap();
        image
    }

    fn words(&self, at: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * count];
        self.memory.read(at, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    fn launch(
        &self,
        p: &Program,
        args: &[Arg<'_>],
        global: [u64; 2],
        checks: Checks,
    ) -> (Vec<Finding>, Counters) {
        let options = LaunchOptions { checks, counters: true, threads: 2, ..LaunchOptions::default() };
        let local = [global[0].min(8), 1];
        let name = p.kernels()[0].name.clone();
        let outcome = p.launch(&self.memory, &name, args, NdRange::plane(global, local), &options);
        let outcome = outcome.unwrap_or_else(|e| panic!("{e}"));
        (outcome.findings, outcome.counters)
    }
}

fn writable(address: u64, bytes: u64) -> Arg<'static> {
    Arg::Buffer { address, bytes, access: Access::Write }
}

/// Returns a texel channel as a number, by section 8.3 of OpenCL C.
fn channel_value(channel: Channel, bytes: &[u8]) -> f64 {
    let raw = bytes.iter().rev().fold(0u32, |sum, b| sum << 8 | u32::from(*b));
    match channel {
        Channel::Snorm8 => (f64::from(raw as i8) / 127.0).max(-1.0),
        Channel::Snorm16 => (f64::from(raw as i16) / 32767.0).max(-1.0),
        Channel::Unorm8 => f64::from(raw) / 255.0,
        Channel::Unorm16 => f64::from(raw) / 65535.0,
        Channel::Signed8 => f64::from(raw as i8),
        Channel::Signed16 => f64::from(raw as i16),
        Channel::Signed32 => f64::from(raw as i32),
        Channel::Unsigned8 | Channel::Unsigned16 | Channel::Unsigned32 => f64::from(raw),
        Channel::Half => half::f16::from_bits(raw as u16).to_f64(),
        Channel::Float => f64::from(f32::from_bits(raw)),
    }
}

/// Returns the red, green, blue and alpha of a texel, by the OpenCL specification's table of channel orders.
fn colour(format: Format, texel: &[u8]) -> [f64; 4] {
    let size = format.channel.bytes() as usize;
    let c: Vec<f64> = texel.chunks(size).map(|b| channel_value(format.channel, b)).collect();
    match format.order {
        ChannelOrder::R => [c[0], 0.0, 0.0, 1.0],
        ChannelOrder::A => [0.0, 0.0, 0.0, c[0]],
        ChannelOrder::Rg => [c[0], c[1], 0.0, 1.0],
        ChannelOrder::Ra => [c[0], 0.0, 0.0, c[1]],
        ChannelOrder::Rgba => [c[0], c[1], c[2], c[3]],
        ChannelOrder::Bgra => [c[2], c[1], c[0], c[3]],
        ChannelOrder::Argb => [c[1], c[2], c[3], c[0]],
        ChannelOrder::Intensity => [c[0]; 4],
        ChannelOrder::Luminance => [c[0], c[0], c[0], 1.0],
    }
}

/// Texels that are numbers in every format: halves and floats without infinities.
fn texels(format: Format, count: u64, seed: u64) -> Vec<u8> {
    let mut next = noise(seed);
    let channels = count * format.order.channels() as u64;
    let one = |_| match format.channel {
        Channel::Float => ((next() % 2000) as f32 / 100.0 - 10.0).to_le_bytes().to_vec(),
        Channel::Half => half::f16::from_f32((next() % 2000) as f32 / 100.0 - 10.0).to_le_bytes().to_vec(),
        c => next().to_le_bytes()[..c.bytes() as usize].to_vec(),
    };
    (0..channels).flat_map(one).collect()
}

fn as_numbers(class: Class, bits: &[u32]) -> Vec<f64> {
    let one = |b: &u32| match class {
        Class::Float => f64::from(f32::from_bits(*b)),
        Class::Signed => f64::from(*b as i32),
        Class::Unsigned => f64::from(*b),
    };
    bits.iter().map(one).collect()
}

fn suffix(class: Class) -> (&'static str, &'static str) {
    match class {
        Class::Float => ("f", "float4"),
        Class::Signed => ("i", "int4"),
        Class::Unsigned => ("ui", "uint4"),
    }
}

#[test]
fn every_format_is_read_and_written_back_as_it_was() {
    for format in Format::all() {
        let (s, ty) = suffix(format.channel.class());
        let text = format!(
            "kernel void k(read_only image2d_t from, write_only image2d_t to, global {ty} *out) {{
               int2 at = (int2)(get_global_id(0), get_global_id(1));
               {ty} x = read_image{s}(from, at);
               out[at.y * get_image_width(from) + at.x] = x;
               write_image{s}(to, at, x);
             }}"
        );
        let bench = Bench::new();
        let extent = [7, 5, 1];
        let data = texels(format, 35, 3);
        let from = bench.image(ImageKind::Plane, format, extent, &data);
        let to = bench.image(ImageKind::Plane, format, extent, &vec![0x55; data.len()]);
        let out = bench.buffer(35 * 16);
        let args = [Arg::Image(from, Access::Read), Arg::Image(to, Access::Write), writable(out, 35 * 16)];
        let (findings, _) = bench.launch(&build(&text), &args, [7, 5], Checks::ALL);
        assert_eq!(findings, [], "{format:?}");
        let got = as_numbers(format.channel.class(), &bench.words(out, 35 * 4));
        let want: Vec<f64> = data.chunks(format.bytes() as usize).flat_map(|t| colour(format, t)).collect();
        for (i, (a, b)) in got.iter().zip(&want).enumerate() {
            assert!((a - b).abs() <= b.abs() * 1e-7, "{format:?}: texel {} is {a}, not {b}", i / 4);
        }
        let mut back = vec![0; data.len()];
        bench.memory.read(to.address, &mut back).unwrap();
        let twice = |bytes: &[u8]| -> Vec<[f64; 4]> {
            bytes.chunks(format.bytes() as usize).map(|t| colour(format, t)).collect()
        };
        // The lowest signed normalized number reads like the next higher one.
        assert_eq!(twice(&back), twice(&data), "{format:?}");
    }
}

/// A coordinate of a lane of the sampling kernels.
fn coordinate(
    kind: ImageKind,
    extent: [u64; 3],
    normalized: bool,
    next: &mut impl FnMut() -> u64,
) -> [f32; 4] {
    let mut at = [0f32; 4];
    for d in 0..kind.numbers() {
        // From well before the image to well past it, away from coordinates where rounding decides.
        let texels = (next() % 3000) as f32 / 1000.0 - 1.0;
        let scaled = if d < kind.axes() && normalized { 1.0 } else { extent[d] as f32 };
        at[d] = texels * scaled + 0.0137;
    }
    at
}

/// Returns the texels and weights of one axis by the standard's formulas. Texels outside are the border.
fn axis(bits: u32, s: f64, n: i64) -> Vec<(i64, f64)> {
    let (mode, w) = (bits & 0xe, n as f64);
    let u = match mode {
        Sampler::REPEAT => (s - s.floor()) * w,
        Sampler::MIRROR => (s - 2.0 * (0.5 * s).round_ties_even()).abs() * w,
        _ if bits & Sampler::NORMALIZED != 0 => s * w,
        _ => s,
    };
    let place = |i: i64| match mode {
        Sampler::BORDER => i.clamp(-1, n),
        Sampler::REPEAT => i.rem_euclid(n),
        _ => i.clamp(0, n - 1),
    };
    if bits & 0x30 != Sampler::LINEAR {
        return vec![(place(u.floor() as i64), 1.0)];
    }
    let first = (u - 0.5).floor();
    let a = u - 0.5 - first;
    vec![(place(first as i64), 1.0 - a), (place(first as i64 + 1), a)]
}

/// The color of a texel or of the border.
fn texel(image: &Image, data: &[u8], p: [i64; 3]) -> [f64; 4] {
    if (0..3).all(|d| p[d] >= 0 && p[d] < image.extent[d] as i64) {
        let [w, h, _] = image.extent.map(|n| n as i64);
        let (size, index) = (image.format.bytes() as usize, ((p[2] * h + p[1]) * w + p[0]) as usize);
        return colour(image.format, &data[index * size..(index + 1) * size]);
    }
    let opaque = matches!(image.format.order, ChannelOrder::R | ChannelOrder::Rg | ChannelOrder::Luminance);
    [0.0, 0.0, 0.0, if opaque { 1.0 } else { 0.0 }]
}

/// The standard's formulas, in `f64` from the same `f32` coordinates.
fn expected(image: &Image, data: &[u8], bits: u32, at: [f32; 4]) -> [f64; 4] {
    let axes = image.kind.axes();
    let mut places = vec![([0i64; 3], 1.0)];
    for (d, s) in at.iter().enumerate().take(axes) {
        let list = axis(bits, f64::from(*s), image.extent[d] as i64);
        let with = |(p, w): ([i64; 3], f64)| {
            let one = move |(i, v): &(i64, f64)| {
                let mut p = p;
                p[d] = *i;
                (p, w * v)
            };
            list.iter().map(one).collect::<Vec<_>>()
        };
        places = places.into_iter().flat_map(with).collect();
    }
    let mut sum = [0.0; 4];
    for (mut p, weight) in places {
        if image.kind.has_layers() {
            let last = image.extent[axes] as i64 - 1;
            p[axes] = (f64::from(at[axes]).round_ties_even() as i64).clamp(0, last);
        }
        let c = texel(image, data, p);
        sum.iter_mut().zip(c).for_each(|(s, c)| *s += weight * c);
    }
    sum
}

const LANES: u64 = 192;

fn sampled(kind: ImageKind, format: Format, bits: u32, seed: u64) {
    let extent = match kind {
        ImageKind::Line => [13, 1, 1],
        ImageKind::LineArray => [13, 3, 1],
        ImageKind::Plane => [13, 9, 1],
        ImageKind::PlaneArray => [6, 5, 3],
        _ => [6, 5, 4],
    };
    let class = format.channel.class();
    let (s, ty) = suffix(class);
    let swizzle = match kind.lanes() {
        1 => ".x",
        2 => ".xy",
        _ => "",
    };
    let text = format!(
        "kernel void k(read_only {} image, sampler_t how, global const float4 *at, global {ty} *out) {{
           int i = get_global_id(0);
           out[i] = read_image{s}(image, how, at[i]{swizzle});
         }}",
        kind.name()
    );
    let bench = Bench::new();
    let data = texels(format, extent.iter().product(), seed);
    let image = bench.image(kind, format, extent, &data);
    let mut next = noise(seed + 7);
    let normalized = bits & Sampler::NORMALIZED != 0;
    let at: Vec<[f32; 4]> = (0..LANES).map(|_| coordinate(kind, extent, normalized, &mut next)).collect();
    let place = bench.buffer(LANES * 16);
    let raw: Vec<u8> = at.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    bench.memory.write(place, &raw).unwrap();
    let out = bench.buffer(LANES * 16);
    let args = [
        Arg::Image(image, Access::Read),
        Arg::Sampler(Sampler(bits)),
        writable(place, LANES * 16),
        writable(out, LANES * 16),
    ];
    let (findings, _) = bench.launch(&build(&text), &args, [LANES, 1], Checks::ALL);
    assert_eq!(findings, []);
    let got = as_numbers(class, &bench.words(out, LANES as usize * 4));
    for (i, at) in at.iter().enumerate() {
        let want = expected(&image, &data, bits, *at);
        for (c, want) in want.iter().enumerate() {
            let got = got[i * 4 + c];
            assert!(
                (got - want).abs() <= 2e-4 * (1.0 + want.abs()),
                "{kind:?} {format:?} sampler {bits:#x} at {at:?}: channel {c} is {got}, not {want}"
            );
        }
    }
}

#[test]
fn every_sampler_reads_as_the_formulas_say() {
    let kinds = ImageKind::ALL.into_iter().filter(|k| *k != ImageKind::Buffer);
    for (seed, kind) in (1..).zip(kinds) {
        for filter in [Sampler::NEAREST, Sampler::LINEAR] {
            for mode in [Sampler::EDGE, Sampler::BORDER] {
                sampled(kind, RGBA_FLOAT, filter | mode, seed);
            }
            for mode in [Sampler::EDGE, Sampler::BORDER, Sampler::REPEAT, Sampler::MIRROR] {
                sampled(kind, RGBA_FLOAT, filter | mode | Sampler::NORMALIZED, seed + 10);
            }
        }
    }
}

#[test]
fn every_format_is_filtered_and_has_its_border() {
    for format in Format::all() {
        let filters: &[u32] = match format.channel.class() {
            Class::Float => &[Sampler::NEAREST, Sampler::LINEAR],
            _ => &[Sampler::NEAREST],
        };
        for filter in filters {
            sampled(ImageKind::Plane, format, filter | Sampler::BORDER, 5);
            sampled(ImageKind::Plane, format, filter | Sampler::REPEAT | Sampler::NORMALIZED, 6);
        }
    }
}

#[test]
fn kernels_ask_about_images() {
    let program = build(
        "kernel void k(read_only image3d_t v, read_only image2d_array_t a, read_only image1d_array_t l,
                       write_only image2d_t p, global int *out) {
           int4 d = get_image_dim(v);
           int2 e = get_image_dim(a);
           int n[16] = {get_image_width(v), get_image_height(v), get_image_depth(v), d.x, d.y, d.z, d.w, e.x, e.y,
             (int)get_image_array_size(a), (int)get_image_array_size(l), get_image_width(l), get_image_width(p),
             get_image_height(p), get_image_channel_order(p) == CLK_BGRA,
             get_image_channel_data_type(v) == CLK_FLOAT};
           for (int i = 0; i < 16; i++) out[i] = n[i];
         }",
    );
    let bench = Bench::new();
    let image = |kind, format, extent: [u64; 3]| {
        let bytes = Image::packed(0, kind, format, extent).bytes();
        Arg::Image(bench.image(kind, format, extent, &vec![0; bytes as usize]), Access::Write)
    };
    let bgra = Format { order: ChannelOrder::Bgra, channel: Channel::Unorm8 };
    let out = bench.buffer(64);
    let args = [
        image(ImageKind::Volume, RGBA_FLOAT, [3, 4, 5]),
        image(ImageKind::PlaneArray, RGBA8, [6, 7, 8]),
        image(ImageKind::LineArray, RGBA8, [9, 10, 1]),
        image(ImageKind::Plane, bgra, [11, 12, 1]),
        writable(out, 64),
    ];
    assert_eq!(bench.launch(&program, &args, [1, 1], Checks::ALL).0, []);
    let want = [3, 4, 5, 3, 4, 5, 0, 6, 7, 8, 10, 9, 11, 12, 1, 1];
    assert_eq!(bench.words(out, 16), want);
}

#[test]
fn samplers_stand_in_programs_and_functions_take_images() {
    let program = build(
        "const sampler_t a = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
         __constant sampler_t b = CLK_ADDRESS_CLAMP | CLK_FILTER_LINEAR;
         float one(image2d_t image, sampler_t s, float2 at) { return read_imagef(image, s, at).x; }
         kernel void k(__read_only image2d_t image, sampler_t given, __global float *out) {
           const sampler_t c = CLK_FILTER_LINEAR | CLK_ADDRESS_CLAMP_TO_EDGE;
           float2 at = (float2)(1.0f, 0.5f);
           out[0] = one(image, a, at); out[1] = one(image, b, at); out[2] = one(image, c, at);
           out[3] = one(image, given, at);
           out[4] = read_imagef(image, CLK_FILTER_NEAREST | CLK_ADDRESS_CLAMP, (int2)(-1, 0)).w;
           out[5] = read_imagef(image, (int2)(2, 0)).x;
         }",
    );
    let bench = Bench::new();
    let data: Vec<u8> = [0f32, 1.0, 5.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let format = Format { order: ChannelOrder::R, channel: Channel::Float };
    let image = bench.image(ImageKind::Plane, format, [3, 1, 1], &data);
    let out = bench.buffer(24);
    let given = Sampler(Sampler::NEAREST | Sampler::BORDER);
    let args = [Arg::Image(image, Access::Read), Arg::Sampler(given), writable(out, 24)];
    assert_eq!(bench.launch(&program, &args, [1, 1], Checks::ALL).0, []);
    assert_eq!(
        bench.words(out, 6).iter().map(|w| f32::from_bits(*w)).collect::<Vec<_>>(),
        [1.0, 0.5, 0.5, 1.0, 1.0, 5.0]
    );
}

#[test]
fn halves_and_read_write_images() {
    let text = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable
        kernel void k(read_write image1d_buffer_t image) {
          int i = get_global_id(0);
          half4 x = read_imageh(image, i);
          write_imageh(image, i, x * (half)2.0f);
        }";
    assert!(built(text, "").is_err_and(|log| log.contains("needs OpenCL C 2.0")));
    let program = built(text, "-cl-std=CL3.0").unwrap();
    let bench = Bench::new();
    let data: Vec<u8> = (0..16u16).flat_map(|i| half::f16::from_f32(i.into()).to_le_bytes()).collect();
    let format = Format { order: ChannelOrder::Rgba, channel: Channel::Half };
    let image = bench.image(ImageKind::Buffer, format, [4, 1, 1], &data);
    assert_eq!(bench.launch(&program, &[Arg::Image(image, Access::Write)], [4, 1], Checks::ALL).0, []);
    let got = bench.words(image.address, 8);
    let halves: Vec<f32> = got
        .iter()
        .flat_map(|w| [*w as u16, (w >> 16) as u16])
        .map(|b| half::f16::from_bits(b).to_f32())
        .collect();
    assert_eq!(halves, (0..16).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
}

/// Returns the kinds, lines and messages of the findings for a kernel of a 4 x 4 image with `written` texels written.
fn found(text: &str, written: usize, items: u64) -> Vec<(FindingKind, u32, String)> {
    let bench = Bench::new();
    let image = bench.image(ImageKind::Plane, RGBA8, [4, 4, 1], &vec![0; 4 * written]);
    let access = if text.contains("read_only") { Access::Read } else { Access::Write };
    let out = bench.buffer(64);
    let args = [Arg::Image(image, access), writable(out, 64)];
    let (findings, _) = bench.launch(&build(text), &args, [items, 1], Checks::ALL);
    findings.into_iter().map(|f| (f.kind, f.line, f.message)).collect()
}

#[test]
fn checks_see_texels() {
    let outside = found(
        "kernel void k(write_only image2d_t p, global int *out) {
           write_imagef(p, (int2)(get_global_id(0), 4), (float4)(1.0f));
         }",
        16,
        1,
    );
    assert_eq!(outside.len(), 1, "{outside:?}");
    assert_eq!((outside[0].0, outside[0].1), (FindingKind::WriteOutside, 2));
    assert!(outside[0].2.contains("`picture` at (0, 4), which has 4 x 4 texels"), "{outside:?}");
    let race = found(
        "kernel void k(write_only image2d_t p, global int *out) {
           write_imagef(p, (int2)(get_global_id(0) / 2, 1), (float4)(get_global_id(0) / 4.0f));
         }",
        16,
        4,
    );
    assert_eq!(race.iter().map(|f| f.0).collect::<Vec<_>>(), [FindingKind::RaceInGroup], "{race:?}");
    let unwritten = "kernel void k(read_only image2d_t p, global int *out) {
           out[0] = (int)read_imagef(p, (int2)(3, 3)).x;
         }";
    assert_eq!(found(unwritten, 15, 1)[0].0, FindingKind::Uninitialized);
    assert_eq!(found(unwritten, 16, 1), []);
    let beyond = "kernel void k(read_only image2d_t p, global int *out) {
           out[0] = (int)read_imagef(p, SAMPLER (int2)(4, 3)).x;
         }";
    assert_eq!(found(&beyond.replace("SAMPLER", ""), 16, 1)[0].0, FindingKind::ReadOutside);
    assert_eq!(found(&beyond.replace("SAMPLER", "CLK_ADDRESS_NONE,"), 16, 1)[0].0, FindingKind::ReadOutside);
    assert_eq!(found(&beyond.replace("SAMPLER", "CLK_ADDRESS_CLAMP,"), 16, 1), []);
}

#[test]
fn reads_are_counted_and_take_time() {
    let program = build(
        "kernel void k(read_only image2d_t p, sampler_t s, global float4 *out) {
           float2 at = (float2)(get_global_id(0), get_global_id(1));
           float4 sum = 0.0f;
           for (int i = 0; i < 64; i++) sum += read_imagef(p, s, at + (float2)(0.01f * i, 0.5f));
           out[get_global_id(1) * 64 + get_global_id(0)] = sum;
         }",
    );
    let bench = Bench::new();
    let time = |format: Format, bits: u32| {
        let image = Image::packed(0, ImageKind::Plane, format, [64, 64, 1]);
        let image = bench.image(ImageKind::Plane, format, [64, 64, 1], &vec![0; image.bytes() as usize]);
        let out = bench.buffer(64 * 64 * 16);
        let args =
            [Arg::Image(image, Access::Read), Arg::Sampler(Sampler(bits)), writable(out, 64 * 64 * 16)];
        let (_, counters) = bench.launch(&program, &args, [64, 64], Checks::NONE);
        let profile = aethercl::model::Profile::named("h200").unwrap();
        (counters.clone(), aethercl::model::kernel(&profile, &counters).ns)
    };
    let (nearest, near_ns) = time(RGBA8, Sampler::NEAREST | Sampler::EDGE);
    assert_eq!(nearest.operations.load_image, 64 * 64 * 64);
    assert_eq!(nearest.texture_steps, 64 * 64 * 64);
    let (linear, _) = time(RGBA8, Sampler::LINEAR | Sampler::EDGE);
    assert_eq!(linear.operations.load_image, 4 * 64 * 64 * 64);
    assert_eq!(linear.texture_steps, 64 * 64 * 64, "a bilinear read of RGBA8 takes one step");
    let (wide, wide_ns) = time(RGBA_FLOAT, Sampler::LINEAR | Sampler::EDGE);
    assert_eq!(wide.texture_steps, 4 * 64 * 64 * 64);
    assert!(wide_ns > near_ns, "{wide_ns} {near_ns}");
}

#[test]
fn wrong_uses_are_errors_with_their_reason() {
    let log = |body: &str| built(&format!("kernel void k({body}"), "").unwrap_err();
    let cases = [
        (
            "write_only image2d_t p, global float4 *o) { o[0] = read_imagef(p, (int2)(0)); }",
            "write_only image",
        ),
        ("read_only image2d_t p) { write_imagef(p, (int2)(0), (float4)(0)); }", "read_only image"),
        (
            "read_only image2d_t p, global float4 *o) { o[0] = read_imagef(p, (int4)(0)); }",
            "coordinate of type 'int2'",
        ),
        (
            "read_only image2d_t p, global float4 *o) { o[0] = read_imagef(p, (float2)(0)); }",
            "'int2' for an image2d_t",
        ),
        ("read_only image2d_t p) { read_only image2d_t q = p; }", "can only be used as a function parameter"),
        ("read_only image2d_t p, global int *o) { o[0] = get_image_depth(p); }", "no matching function"),
    ];
    for (body, message) in cases {
        assert!(log(body).contains(message), "{body}\n{}", log(body));
    }
}

#[test]
fn an_image_of_another_kind_is_refused() {
    let program = build("kernel void k(read_only image3d_t p) { }");
    let bench = Bench::new();
    let image = bench.image(ImageKind::Plane, RGBA8, [2, 2, 1], &[0; 16]);
    let options = LaunchOptions::default();
    let error =
        program.launch(&bench.memory, "k", &[Arg::Image(image, Access::Read)], NdRange::line(1, 1), &options);
    assert!(error.is_err_and(|e| e.to_string().contains("takes an image3d_t")));
}
