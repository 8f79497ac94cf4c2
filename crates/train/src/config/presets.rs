//! Presets: named default configurations.

use super::TrainConfig;
use netcl_tensor::DType;

/// Names of the presets, the default first.
pub const PRESETS: [&str; 13] = [
    "demo",
    "demo-tiny",
    "char",
    "char-cpu",
    "gpt2-124m",
    "gpt2-350m",
    "gpt2-774m",
    "gpt2-1558m",
    "llama-110m",
    "llama-1b",
    "qwen3-0.6b",
    FINETUNE,
    LORA,
];

/// Returns the presets that describe a model, as opposed to fine-tuning of an existing one.
pub fn models() -> impl Iterator<Item = &'static str> {
    PRESETS.into_iter().filter(|name| ![FINETUNE, LORA].contains(name))
}

/// Preset for training that starts from a model's weights.
pub(super) const FINETUNE: &str = "finetune";
/// Preset for training adapters of a model.
pub(super) const LORA: &str = "lora";

/// Preset that a simulated device trains in minutes.
pub const SIMULATED: &str = "demo-tiny";

/// Returns the default preset, if neither flags nor a file name one: for adapters, or fine-tuning if the run starts from a model, on every device.
pub fn usual(starts_from_model: bool, lora: bool, simulated: bool) -> &'static str {
    match (starts_from_model, lora, simulated) {
        (_, true, _) => LORA,
        (true, false, _) => FINETUNE,
        (false, false, true) => SIMULATED,
        (false, false, false) => PRESETS[0],
    }
}

/// Returns the settings of a preset.
pub(super) fn of(name: &str) -> Option<TrainConfig> {
    let config = match name {
        "demo" => demo(),
        "demo-tiny" => demo_tiny(),
        "char" => char(),
        "char-cpu" => char_cpu(),
        "gpt2-124m" => gpt2([12, 12, 768], 6e-4),
        "gpt2-350m" => gpt2([24, 16, 1024], 3e-4),
        "gpt2-774m" => gpt2([36, 20, 1280], 2.5e-4),
        "gpt2-1558m" => gpt2([48, 25, 1600], 2e-4),
        "llama-110m" => llama_110m(),
        "llama-1b" => llama_1b(),
        "qwen3-0.6b" => qwen3(),
        FINETUNE => finetune(),
        // Adapters begin at zero and take ten times the rate of weights.
        LORA => TrainConfig { lr: 2e-4, min_lr: 2e-5, ..finetune() },
        _ => return None,
    };
    Some(TrainConfig { preset: name.into(), ..config })
}

/// Returns nanoGPT's recipe for a character model of Shakespeare on a GPU: 10.6 M parameters, validation loss about 1.47.
fn char() -> TrainConfig {
    // The defaults of the table.
    TrainConfig::base()
}

/// Returns nanoGPT's recipe for the same data on a CPU: 0.8 M parameters, validation loss about 1.88.
fn char_cpu() -> TrainConfig {
    TrainConfig {
        layers: 4,
        heads: 4,
        width: 128,
        context: 64,
        dropout: 0.0,
        batch: 12,
        steps: 2000,
        eval_batches: 20,
        ..char()
    }
}

/// Returns a preset for about three minutes on two CPU cores.
fn demo() -> TrainConfig {
    TrainConfig { context: 128, steps: 1500, eval_batches: 10, sample_every: 250, ..char_cpu() }
}

/// Returns a preset that the simulated GPU trains in a minute or two: 30 thousand parameters, 128 characters per step.
fn demo_tiny() -> TrainConfig {
    TrainConfig {
        layers: 2,
        heads: 2,
        width: 32,
        context: 32,
        batch: 4,
        steps: 300,
        lr: 4e-3,
        min_lr: 4e-4,
        warmup: 20,
        eval_every: 100,
        eval_batches: 4,
        sample_every: 150,
        checkpoint_every: 0,
        ..char_cpu()
    }
}

/// Returns GPT-2's sizes with the learning rates of the GPT-3 paper (table 2.1) and half a million tokens per step. The vocabulary follows from the
/// tokenizer; with GPT-2's own 50257 tokens it is padded to 50304.
fn gpt2([layers, heads, width]: [usize; 3], lr: f64) -> TrainConfig {
    TrainConfig {
        layers,
        heads,
        width,
        context: 1024,
        dropout: 0.0,
        bias: true,
        lr,
        min_lr: lr / 10.0,
        warmup: 700,
        betas: [0.9, 0.95],
        batch: 16,
        grad_accum: 32,
        steps: 19_000,
        eval_batches: 20,
        sample_every: 1000,
        checkpoint_every: 1000,
        dtype: DType::Bf16,
        tokenizer: "gpt2/tokenizer.json".into(),
        ..char()
    }
}

/// Returns the largest of llama2.c's story models (Karpathy 2023), with its recipe: half a million tokens per step, 32 000 tokens of Llama 2's
/// tokenizer.
fn llama_110m() -> TrainConfig {
    TrainConfig {
        family: "llama".into(),
        mlp: Some(2048),
        tied: Some(true),
        bias: false,
        lr: 4e-4,
        min_lr: 0.0,
        warmup: 1000,
        grad_accum: 32,
        steps: 200_000,
        tokenizer: "llama2/tokenizer.json".into(),
        ..gpt2([12, 12, 768], 4e-4)
    }
}

/// Returns the shape of Llama 3.2 1B, with its tokenizer of 128 256 tokens.
fn llama_1b() -> TrainConfig {
    TrainConfig {
        family: "llama".into(),
        kv_heads: Some(8),
        mlp: Some(8192),
        rope_theta: Some(500_000.0),
        tied: Some(true),
        bias: false,
        context: 2048,
        batch: 4,
        grad_accum: 64,
        warmup: 2000,
        steps: 100_000,
        tokenizer: "llama3/tokenizer.json".into(),
        ..gpt2([16, 32, 2048], 3e-4)
    }
}

/// Returns the shape of Qwen 3 0.6B, with its tokenizer of 151 936 tokens.
fn qwen3() -> TrainConfig {
    TrainConfig {
        family: "qwen3".into(),
        kv_heads: Some(8),
        head_size: Some(128),
        mlp: Some(3072),
        rope_theta: Some(1_000_000.0),
        tied: Some(true),
        bias: false,
        context: 2048,
        batch: 4,
        grad_accum: 64,
        warmup: 2000,
        steps: 100_000,
        tokenizer: "qwen3/tokenizer.json".into(),
        ..gpt2([28, 16, 1024], 4e-4)
    }
}

/// Returns a recipe for fine-tuning: a low learning rate, few steps, no weight decay. The sizes are those of the model to start from.
fn finetune() -> TrainConfig {
    TrainConfig {
        context: 1024,
        dropout: 0.0,
        lr: 2e-5,
        min_lr: 2e-6,
        warmup: 20,
        weight_decay: 0.0,
        betas: [0.9, 0.999],
        batch: 8,
        steps: 500,
        eval_every: 50,
        eval_batches: 20,
        sample_every: 100,
        checkpoint_every: 100,
        ..char()
    }
}
