//! Times of every tile of the tensor-core convolutions, to fit their cost model: `cargo test -p netcl-tensor --lib -- --ignored
//! conv::algorithms::sweep --nocapture`. `SWEEP='128,56,64,64,3,1 …'` selects other shapes: images, their height and width, channels, channels of
//! the result, taps along both axes, stride.

#![allow(clippy::print_stdout)] // tables

use super::super::geometry::Side;
use super::wgmma;
use super::{ConvRequest, ConvWeights, PixelPosition, Work};
use crate::ops::prelude::*;
use crate::suite::test_device;
use std::time::Instant;

const SHAPES: &str = "128,56,64,64,3,1 128,56,128,128,3,2 128,28,128,128,3,1 128,28,256,256,3,2 128,14,256,256,3,1 128,14,512,512,3,2 \
     128,7,512,512,3,1 128,56,256,512,1,2 128,28,512,1024,1,2 128,14,1024,2048,1,2";
const RUNS: usize = 20;

/// Returns the minimum microseconds of a run in a replayed graph.
fn micros(device: &Device, run: &dyn Fn() -> Result<()>) -> Result<f64> {
    run()?;
    let (graph, ()) = crate::graph::Graph::capture(device, || (0..RUNS).try_for_each(|_| run()))?;
    let mut least = f64::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        (0..4).try_for_each(|_| graph.replay())?;
        device.finish()?;
        least = least.min(begun.elapsed().as_secs_f64() / (4 * RUNS) as f64);
    }
    Ok(least * 1e6)
}

#[test]
#[ignore = "times every tile on a device with wgmma"]
fn tiles() {
    let device = test_device().unwrap();
    if !wgmma::KERNEL.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    for shape in std::env::var("SWEEP").unwrap_or(SHAPES.into()).split_whitespace() {
        let sizes: Vec<usize> = shape.split(',').map(|n| n.parse().unwrap()).collect();
        let [batch, side, c, o, taps, stride] = sizes[..] else { panic!("{shape}: expected six numbers") };
        let places = Side::places(side, taps, stride, taps / 2, 1).unwrap();
        let axis = Side { image: side, places, taps, stride, padding: taps / 2, dilation: 1 }.forward();
        let mut generator = crate::random::Generator::new(7);
        let mut draw =
            |dims: [usize; 4]| Tensor::normal(&device, dims, 0.0, 1.0, DType::Bf16, &mut generator).unwrap();
        let (x, w, y) =
            (draw([batch, side, side, c]), draw([o, taps, taps, c]), draw([batch, places, places, o]));
        let strides = [0, taps * taps * c, 1, taps * c, c];
        let weights = ConvWeights { tensor: w, offset: 0, strides };
        let place = PixelPosition { offset: 0, strides: [places * places * o, places * o, o] };
        let r = ConvRequest {
            x: &x,
            batch,
            groups: 1,
            c,
            o,
            axes: [axis; 2],
            work: Work::Gather { w: &weights, bias: None, tree: None, y: &y, place },
        };
        let (chosen, _) = wgmma::estimate(&r);
        println!("{shape}: estimate of the chosen tile {chosen:.1} us");
        for (tile, estimate, plan) in wgmma::plans(&r) {
            let time = micros(&device, &|| wgmma::run_with(wgmma::KERNELS, &r, &plan));
            println!("  {tile:?}: {:.1} us, estimate {estimate:.1}", time.unwrap());
        }
    }
}
