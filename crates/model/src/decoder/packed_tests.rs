//! Rows of several documents have the losses and gradients of separate documents.

use super::{Decoder, DecoderConfig, Freeze, Sizes};
use crate::layers::{Mode, Recompute};
use crate::model::Model;
use netcl_tensor::suite::quickly_built;
use netcl_tensor::{DType, Device, Tensor};

/// Lengths of the documents in each row of eight tokens; the rest is padding.
const DOCUMENTS: [&[usize]; 2] = [&[3, 1, 4], &[5, 2]];
const TOKENS: usize = 8;
const IGNORED: u32 = (-100i32).cast_unsigned();

fn model(device: &Device, family: &str) -> Decoder {
    let sizes = Sizes { layers: 2, heads: 2, width: 16, context: TOKENS, vocab: 24, ..Sizes::default() };
    let mut config = DecoderConfig::of(family, &sizes).unwrap();
    if let Some(moe) = &mut config.mlp.moe {
        // The balance loss is not a sum over documents.
        moe.balance = false;
    }
    Decoder::partly_frozen(device, config, DType::F32, Some(3), &Freeze::default()).unwrap()
}

/// Ids and targets of document `n`; its last token is not followed by a target.
fn document(n: usize, length: usize) -> [Vec<u32>; 2] {
    let ids: Vec<u32> = (0..length).map(|i| ((n * 7 + i * 5 + 1) % 24) as u32).collect();
    let targets = ids.iter().skip(1).copied().chain([IGNORED]).collect();
    [ids, targets]
}

fn gradients(model: &Decoder, loss: &Tensor) -> (f32, Vec<(String, Vec<f32>)>) {
    loss.backward().unwrap();
    let of = |param: &Tensor| {
        let grad = param.grad().map(|grad| grad.to_vec().unwrap()).unwrap_or_default();
        (param.name().unwrap_or_default().to_owned(), grad)
    };
    (loss.item().unwrap(), model.params().trained().iter().map(of).collect())
}

#[test]
fn packed_rows_have_the_loss_and_the_gradients_of_separate_documents() {
    let device = quickly_built().unwrap();
    let one = Tensor::from_f32(&device, [1], &[1.0], DType::F32).unwrap();
    for family in ["gpt2", "llama", "qwen3", "gemma2", "gemma3_text", "gpt_neox", "mixtral"] {
        let apart = model(&device, family);
        let (mut ids, mut targets, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sum, mut n): (Option<Tensor>, usize) = (None, 0);
        for lengths in DOCUMENTS {
            for length in lengths {
                let [x, y] = document(n, *length);
                n += 1;
                ids.extend(&x);
                targets.extend(&y);
                positions.extend(0..*length as u32);
                if *length > 1 {
                    let mode = Mode { loss_weight: Some(&one), ..Mode::eval() };
                    let [x, y] = [x, y].map(|ids| Tensor::from_u32(&device, [1, *length], &ids).unwrap());
                    let loss = apart.loss(&x, &y, mode).unwrap();
                    sum = Some(sum.map_or(loss.clone(), |sum| sum.add(&loss).unwrap()));
                }
            }
            let rest = TOKENS - lengths.iter().sum::<usize>();
            ids.extend(vec![0; rest]);
            targets.extend(vec![IGNORED; rest]);
            positions.extend(vec![0; rest]);
        }
        let (expected, grads) = gradients(&apart, &sum.unwrap());
        let [ids, targets, positions] =
            [ids, targets, positions].map(|ids| Tensor::from_u32(&device, [2, TOKENS], &ids).unwrap());
        for recompute in [Recompute::None, Recompute::Block] {
            let packed = model(&device, family);
            let mode =
                Mode { loss_weight: Some(&one), positions: Some(&positions), recompute, ..Mode::eval() };
            let (found, other) = gradients(&packed, &packed.loss(&ids, &targets, mode).unwrap());
            assert!(
                (found - expected).abs() <= 1e-6 * expected.abs(),
                "{family}: {found}, expected {expected}"
            );
            for ((name, found), (_, expected)) in other.iter().zip(&grads) {
                assert_eq!(found.len(), expected.len(), "{family} {name}");
                let largest = expected.iter().fold(1e-3f32, |most, v| most.max(v.abs()));
                let off =
                    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
                assert!(off <= 2e-6, "{family} {name}: {off}");
            }
            // Without the mask the documents see each other.
            let mixed = Mode { positions: None, ..mode };
            let mixed = packed.loss(&ids, &targets, mixed).unwrap().item().unwrap();
            assert!((mixed - expected).abs() > 1e-4, "{family}");
        }
    }
}
