//! Variants against each other, and messages.

use super::*;
use crate::suite::test_device;
use netcl_kernel::tune::Params;

/// The suite runs the variant that the device prefers; this compares the others with it, on shapes of several tiles.
#[test]
fn variants_agree() {
    let device = test_device().unwrap();
    let tuning = Tuning::of(&device);
    let mut generator = Generator::new(3);
    // Kernels with barriers take a CPU driver seconds to compile: two sizes of tiles, and the third in the suite of a GPU. Each
    // has more than a tile (64 and 16 rows, 32 and 16 keys) of both, and no more: simulators are slow.
    let shapes = [([1, 2, 1, 40, 45, 34], DType::F32), ([1, 1, 1, 18, 21, 136], DType::F16)];
    for (i, ([b, h, kh, t, s, d], dtype)) in shapes.into_iter().enumerate() {
        let mut draw =
            |dims: [usize; 4]| Tensor::normal(&device, dims, 0.0, 1.0, dtype, &mut generator).unwrap();
        let inputs = [draw([b, h, t, d]), draw([b, kh, s, d]), draw([b, kh, s, d])].map(|x| x.parameter("x"));
        let dy = draw([b, h, t, d]);
        let options = AttentionOptions { causal: i == 0, ..AttentionOptions::default() };
        let options = options.drop(if i == 0 { 0.2 } else { 0.0 }, [b, h, t, s], &mut generator).unwrap();
        let run = || {
            let y = attention(&inputs[0], &inputs[1], &inputs[2], options).unwrap();
            inputs.iter().for_each(|x| x.set_grad(None));
            y.backward_with(&dy).unwrap();
            let grads = inputs.iter().map(|x| x.grad().unwrap().to_vec().unwrap());
            [y.to_vec().unwrap()].into_iter().chain(grads).collect::<Vec<_>>()
        };
        let expected = run();
        for job in ["attention_fwd", "attention_bwd"] {
            for variant in tuning.candidates(job) {
                tuning.try_out(job, 0, Some(variant.clone()));
                compare(&run(), &expected, 16.0 * dtype.epsilon(), &variant);
                tuning.try_out(job, 0, None);
            }
        }
    }
}

fn compare(got: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f64, variant: &Params) {
    for (part, (got, expected)) in got.iter().zip(expected).enumerate() {
        let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            assert!(
                f64::from((g - e).abs()) <= tolerance * f64::from(scale),
                "{variant:?}: result {part}, element {i}: {g}, {e}"
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = test_device().unwrap();
    let zeros = |dims: &[usize]| Tensor::zeros(&device, dims, DType::F32).unwrap();
    let (q, k) = (zeros(&[1, 3, 4, 8]), zeros(&[1, 2, 4, 8]));
    let e = attention(&q, &k, &k, AttentionOptions::causal()).unwrap_err();
    assert!(
        e.message().contains("q [1, 3, 4, 8], k [1, 2, 4, 8]") && e.message().contains("H a multiple of KH"),
        "{e}"
    );
    let e = attention_qkv(&zeros(&[1, 4, 20]), 2, 1, AttentionOptions::causal()).map(|_| ());
    assert!(e.is_ok(), "{e:?}");
    let e = attention_qkv(&zeros(&[1, 4, 21]), 2, 1, AttentionOptions::causal()).unwrap_err();
    assert!(e.message().contains("qkv [1, 4, 21] with 2 query and 1 key heads"), "{e}");
    let wide = zeros(&[1, 1, 2, 257]);
    let e = attention(&wide, &wide, &wide, AttentionOptions::causal()).unwrap_err();
    assert!(e.message().contains("heads of 257, at most 256"), "{e}");
}
