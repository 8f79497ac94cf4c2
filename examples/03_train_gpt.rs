//! A GPT in forty lines: data, model, optimizer, loop, sample. `netcl train` does the same with checkpoints and a report.
//!
//!     cargo run --release --example 03_train_gpt

use netcl::model::decoder::{Decoder, DecoderConfig, Sizes};
use netcl::model::generate::{Generation, Sampling};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::model::tokenizer::Tokenizer;
use netcl::prelude::*;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use std::sync::Arc;

const STEPS: usize = 60;
const B: usize = 8;
const T: usize = 32;

/// Runs the example.
pub fn main() -> Result<()> {
    let device = Device::open("auto", &Settings::from_env())?;
    let text = (0..200).map(|i| format!("{i} and {} make {}.\n", i + 1, 2 * i + 1)).collect::<String>();
    let tokenizer = Tokenizer::char_from_text([text.as_str()])?;
    let ids = tokenizer.encode(&text)?;

    let config = DecoderConfig::of(
        "gpt2",
        &Sizes {
            layers: 2,
            heads: 2,
            width: 32,
            context: T,
            vocab: tokenizer.vocab_size(),
            ..Sizes::default()
        },
    )?;
    let gpt = Decoder::new(&device, config.clone(), DType::F32, 1)?;
    show(&format!("{} parameters on {}", config.parameters(), device.capabilities().name));
    let rule = Arc::new(AdamW { betas: [0.9, 0.99], eps: 1e-8 });
    let mut optimizer = Optimizer::new(rule, ParamGroup::gpt(gpt.params().list(), 0.1))?;
    optimizer.clip_grad_norm(1.0);

    for step in 0..STEPS {
        // B windows of T tokens, and the same windows shifted by one, which are the targets.
        let start = |b: usize| (step * B + b) * 97 % (ids.len() - T - 1);
        let windows = |shift: usize| -> Vec<u32> {
            (0..B).flat_map(|b| ids[start(b) + shift..start(b) + shift + T].to_vec()).collect()
        };
        let x = Tensor::from_u32(&device, [B, T], &windows(0))?;
        let y = Tensor::from_u32(&device, [B, T], &windows(1))?;
        let loss = gpt.loss(&x, &y, Mode::eval())?;
        optimizer.backward(&loss)?;
        optimizer.step(3e-3)?;
        optimizer.zero_grad();
        if step % 20 == 19 {
            show(&format!("step {:3}: loss {:.3}", step + 1, loss.item()?));
        }
    }

    let sampling = Sampling { temperature: 0.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
    let prompt = tokenizer.encode("7 and")?;
    let made = Generation::new(&gpt, &prompt, sampling)?.take(40).collect::<Result<Vec<u32>>>()?;
    show(&format!("7 and{}", tokenizer.decode(&made)?));
    Ok(())
}

#[allow(clippy::print_stdout)] // a program, not a library
fn show(line: &str) {
    println!("{line}");
}
