//! Reference of the step in f64 on the host, and its samples.

use super::{DecodeAttention, DecodeOptions};
use crate::ops::paged_cache::{q8_input, q8_row, q8_row_of};
use crate::ops::prelude::*;

/// Returns a head after norm and rotation.
fn prepared(
    op: &DecodeAttention,
    head: &[f64],
    [cosines, sines, gamma]: [&Array; 3],
    place: usize,
) -> Vec<f64> {
    let mut x = head.to_vec();
    if let Some((eps, unit)) = op.norm {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let by = 1.0 / (mean + f64::from(eps)).sqrt();
        x.iter_mut().zip(&gamma.data).for_each(|(v, g)| *v *= by * (g + if unit { 1.0 } else { 0.0 }));
    }
    let (before, half) = (x.clone(), if op.rotary { cosines.shape.last() } else { 0 });
    for i in 0..half {
        let (c, s) = (cosines.data[place * half + i], sines.data[place * half + i]);
        x[i] = before[i] * c - before[i + half] * s;
        x[i + half] = before[i + half] * c + before[i] * s;
    }
    x
}

/// Computes the step from explicit queries, keys and values, one key after the other.
pub(super) fn reference(
    op: &DecodeAttention,
    [qkv, cache, position, cosines, sines, query, key, pages]: [&Array; 8],
) -> [Array; 2] {
    let DecodeOptions { heads, kv_heads, scale, window, softcap } = op.options;
    let (tokens, page, last) = (qkv.shape.dims()[1], cache.shape.dims()[1], cache.shape.last());
    let size = qkv.shape.last() / (heads + 2 * kv_heads);
    let lines = if op.paged { pages.shape.last() } else { 1 };
    let room = lines * page;
    let (mut cache, mut out) = (cache.clone(), Vec::new());
    // Read a row of the cache as numbers, and write numbers to a row.
    let read = |row: &[f64]| if last == size { row.to_vec() } else { q8_row(row, size) };
    let write = |row: &mut [f64], x: &[f64]| match last == size {
        true => row.copy_from_slice(x),
        false => q8_row_of(x, row),
    };
    for (row, x) in qkv.rows().enumerate() {
        let (b, t) = (row / tokens.max(1), row % tokens.max(1));
        let place = position.data[if position.data.len() > 1 { b } else { 0 }] as usize + t;
        let head = |i: usize| &x[i * size..(i + 1) * size];
        let at = |s: usize, h: usize| {
            let of = if op.paged { pages.data[b * lines + s / page] as usize } else { b };
            let from = ((of * page + s % page) * 2 * kv_heads + h) * last;
            from..from + last
        };
        if place >= room {
            out.extend(std::iter::repeat_n(f64::NAN, heads * size));
            continue;
        }
        for h in 0..kv_heads {
            write(
                &mut cache.data[at(place, h)],
                &prepared(op, head(heads + h), [cosines, sines, key], place),
            );
            write(&mut cache.data[at(place, kv_heads + h)], head(heads + kv_heads + h));
        }
        for h in 0..heads {
            let (q, kh) = (prepared(op, head(h), [cosines, sines, query], place), h / (heads / kv_heads));
            let seen = window.map_or(0, |w| (place + 1).saturating_sub(w))..place + 1;
            let score = |s: usize| {
                let dot: f64 = q.iter().zip(read(&cache.data[at(s, kh)])).map(|(a, b)| a * b).sum();
                let dot = dot * scale.map_or(1.0 / (size as f64).sqrt(), f64::from);
                softcap.map_or(dot, |cap| f64::from(cap) * (dot / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = seen.clone().map(score).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut value = vec![0.0; size];
            for (s, w) in seen.clone().zip(&weights) {
                let row = read(&cache.data[at(s, kv_heads + kh)]);
                value.iter_mut().zip(row).for_each(|(v, x)| *v += w * x);
            }
            out.extend(value.iter().map(|v| v / sum));
        }
    }
    let shape = [qkv.shape.dims()[0], tokens, heads * size];
    [Array::new(shape, out), cache]
}

fn plain(heads: usize, kv_heads: usize) -> DecodeOptions {
    DecodeOptions { heads, kv_heads, scale: None, window: None, softcap: None }
}

fn window(heads: usize, kv_heads: usize, window: usize) -> DecodeOptions {
    DecodeOptions { window: Some(window), ..plain(heads, kv_heads) }
}

/// Builds a sample from texts, new tokens, room, head size, and the number of earlier tokens.
fn made(
    options: DecodeOptions,
    [b, t, room, d]: [usize; 4],
    half: usize,
    norm: Option<(f32, bool)>,
    before: &[f64],
) -> Sample<DecodeAttention, 8> {
    let DecodeOptions { heads, kv_heads, .. } = options;
    let angles =
        || SampleInput::values(&[room, half.max(1)], &[0.8, -0.6, 0.25, 1.0, -0.5], Some(DType::F32));
    let inputs = [
        SampleInput::normal(&[b, t, (heads + 2 * kv_heads) * d]),
        SampleInput::normal(&[b, room, 2 * kv_heads, d]),
        SampleInput::values(&[before.len()], before, Some(DType::U32)),
        angles(),
        angles(),
        SampleInput::shifted(&[d], 1.0),
        SampleInput::shifted(&[d], 1.0),
        SampleInput::indices(&[1, 1], 1),
    ];
    let op = DecodeAttention { options, rotary: half > 0, norm, paged: false };
    Sample::new(op, inputs).sums(room).in_order()
}

/// Converts a sample to pages of `page` rows, with the pages of each text in a line.
fn paged(
    mut sample: Sample<DecodeAttention, 8>,
    page: usize,
    in_8_bits: bool,
    pages: &[&[f64]],
) -> Sample<DecodeAttention, 8> {
    let dims = sample.inputs[1].shape().dims().to_vec();
    let count = pages.iter().flat_map(|line| line.iter()).fold(0.0f64, |most, p| most.max(*p)) as usize + 2;
    sample.op.paged = true;
    sample.inputs[1] = match in_8_bits {
        true => q8_input(&[count, page, dims[2]], dims[3]),
        false => SampleInput::normal(&[count, page, dims[2], dims[3]]),
    };
    sample.inputs[7] = SampleInput::values(&[pages.len(), pages[0].len()], &pages.concat(), Some(DType::U32));
    sample
}

const RMS: Option<(f32, bool)> = Some((1e-6, false));

pub(super) fn all() -> Vec<Sample<DecodeAttention, 8>> {
    let capped = DecodeOptions { softcap: Some(1.5), scale: Some(0.3), ..plain(4, 2) };
    let mut far = made(plain(2, 2), [1, 1, 9, 8], 4, None, &[5.0]);
    far.inputs[0] = SampleInput::uniform(&[1, 1, 48], -40.0, 40.0);
    far.inputs[1] = SampleInput::uniform(&[1, 9, 4, 8], -40.0, 40.0);
    let mut all = vec![
        made(plain(2, 2), [2, 1, 9, 8], 0, None, &[5.0]),
        made(plain(4, 2), [2, 1, 70, 20], 4, None, &[64.0, 3.0])
            .named("grouped, rotated, texts of two lengths"),
        made(plain(4, 1), [1, 1, 12, 8], 4, RMS, &[7.0]).named("norms of heads"),
        made(plain(2, 1), [1, 1, 12, 8], 2, Some((1e-6, true)), &[7.0]).named("norms with 1 + gamma").light(),
        made(plain(1, 1), [1, 1, 3, 8], 4, None, &[0.0]).named("the first token").light(),
        made(plain(3, 1), [1, 3, 40, 16], 8, None, &[30.0]).named("several tokens"),
        made(plain(9, 1), [1, 8, 20, 8], 4, None, &[6.0]).named("more rows than a group takes").light(),
        made(plain(1, 1), [1, 1, 600, 8], 0, None, &[570.0]).named("shares").light(),
        made(plain(2, 1), [2, 2, 1100, 12], 6, RMS, &[900.0, 20.0]).named("shares of two lengths"),
        made(window(2, 1, 5), [1, 1, 30, 8], 4, None, &[20.0]).named("window"),
        made(window(2, 1, 6), [1, 4, 30, 8], 4, None, &[3.0]).named("window over several tokens").light(),
        made(window(1, 1, 300), [1, 2, 1000, 4], 0, None, &[700.0])
            .named("window over several shares")
            .light(),
        made(capped, [1, 2, 12, 8], 4, None, &[7.0]).named("softcap").light(),
        made(plain(1, 1), [1, 1, 5, 256], 64, None, &[3.0]).named("wide heads").light(),
        made(plain(2, 2), [1, 1, 80, 7], 3, None, &[66.0]).named("odd heads").light(),
        made(plain(1, 1), [1, 1, 6, 1], 0, None, &[4.0]).named("heads of 1").light(),
        made(plain(2, 2), [0, 1, 9, 8], 0, None, &[5.0]).light(),
        // A score of 4000 has a rounding error of 2e-4 in f32, which the exponential passes on.
        far.extreme().looser(2000.0).light(),
    ];
    all.extend(in_pages());
    all
}

/// Returns samples with caches in pages, also in 8 bits.
fn in_pages() -> [Sample<DecodeAttention, 8>; 6] {
    [
        paged(
            made(plain(4, 2), [2, 1, 24, 20], 4, None, &[17.0, 3.0]),
            8,
            false,
            &[&[3.0, 1.0, 4.0], &[0.0; 3]],
        )
        .named("pages"),
        paged(
            made(plain(2, 1), [2, 3, 48, 8], 2, RMS, &[14.0, 40.0]),
            16,
            false,
            &[&[1.0, 0.0, 0.0], &[2.0, 4.0, 3.0]],
        )
        .named("pages, several tokens across two")
        .light(),
        paged(made(plain(2, 1), [1, 1, 640, 8], 0, None, &[620.0]), 320, false, &[&[1.0, 0.0]])
            .named("pages in shares")
            .light(),
        paged(made(window(2, 2, 9), [1, 2, 32, 12], 4, None, &[21.0]), 8, false, &[&[0.0, 2.0, 1.0, 3.0]])
            .named("pages and a window")
            .light(),
        paged(
            made(plain(4, 2), [2, 1, 24, 64], 4, None, &[17.0, 3.0]),
            8,
            true,
            &[&[3.0, 1.0, 4.0], &[0.0; 3]],
        )
        .looser(8.0)
        .named("8 bits"),
        paged(made(plain(2, 1), [1, 3, 40, 37], 8, RMS, &[30.0]), 20, true, &[&[1.0, 0.0]])
            .looser(8.0)
            .named("8 bits, odd heads")
            .light(),
    ]
}
