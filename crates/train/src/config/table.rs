//! The table of settings. Each row defines a field, a key of `config.toml`, a flag with its help and range, a rule of `--resume`, and a line of
//! `docs/settings.md`.
//!
//! A row has the key (the flag is the same with dashes), the type, the default (presets override it), and the help. The rest is the group, whether a
//! resumed run may change it, and properties that differ from the usual.

use super::dtype;
use super::graph_mode::GraphMode;
use super::objective::ObjectiveName;
use super::optimizer::OptimizerName;
use super::setting::Change::{Added, Fixed, Free, Rate};
use super::setting::Check::{AboveZero, AtLeastOne, Between, Fraction, FromZero, NotEmpty};
use super::setting::Group::{Data, Device, General, Model, Objective, Optimizer, Run};
use super::setting::Setting;
use super::train_on::TrainOn;
use super::value::{Given, Value, too_large};
use crate::schedule::Schedule;
use netcl_device::{Error, MatmulPrecision, Result};
use netcl_model::layers::Recompute;
use netcl_tensor::DType;
use serde::{Deserialize, Serialize};

macro_rules! settings {
    ($($(#[$read:meta])* $name:ident: $type:ty = $default:expr, $help:literal, $row:expr;)*) => {
        /// Settings of a training run. Each field corresponds to the flag of the same name.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct TrainConfig {
            $(#[doc = $help] pub $name: $type,)*
            /// Settings that were not given.
            #[serde(skip)]
            pub unset: Unset,
        }

        /// Partial settings, from a file or from flags.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Overlay {
            $(#[doc = $help] $(#[$read])* pub $name: Option<<$type as Value>::Given>,)*
        }

        /// All settings, in the order of `config.toml`.
        pub static SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            kind: <<$type as Value>::Given as Given>::KIND,
            help: $help,
            parse: |word| <<$type as Value>::Given as Given>::parse(&[word]).map(drop),
            ..$row
        },)*];

        impl TrainConfig {
            /// Returns the defaults that presets start from.
            pub(crate) fn base() -> Self {
                Self { $($name: $default,)* unset: Unset::default() }
            }

            /// Returns an error for the first setting that is invalid on its own.
            pub(super) fn out_of_range(&self) -> Option<String> {
                let mut rows = SETTINGS.iter();
                $(if let (Some(row), Some(value)) = (rows.next(), self.$name.given())
                    && let Some(refusal) = row.check.refusal(&row.flag(), &value.numbers(), value.text())
                {
                    return Some(refusal);
                })*
                None
            }
        }

        impl Overlay {
            /// Sets a setting from the words after its flag.
            ///
            /// # Errors
            /// `Format` for words that are not a value of the setting, or an unknown name.
            pub fn set(&mut self, name: &str, words: &[&str]) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = Some(Given::parse(words)?),)*
                    _ => return Err(Error::format(format!("unknown setting `{name}`"))),
                }
                Ok(())
            }

            /// Returns `base`, overridden by these settings.
            pub fn over(&self, base: TrainConfig) -> Result<TrainConfig> {
                if let Some(message) = too_large(self) {
                    return Err(Error::format(message));
                }
                Ok(TrainConfig { $($name: Value::or(base.$name, self.$name.clone()),)* unset: base.unset })
            }
        }
    };
}

/// Settings that were not given, for which the data may have a better value than the preset. Equal values are equal settings, whether they were
/// given or not.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Unset {
    /// Neither `steps` nor `epochs`: records are trained for one epoch.
    pub steps: bool,
    /// `warmup`: it follows from the steps.
    pub warmup: bool,
}

impl PartialEq for Unset {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Largest head size: attention kernels keep a row of a head in registers or local memory.
pub(super) const MAX_HEAD: u64 = 256;

settings! {
    preset: String = String::new(),
        "Model and recipe to start from; presets of images train a classifier",
        Setting::new(General, Fixed).images(Fixed).unset("demo");

    init: Option<String> = None,
        "Start from the weights, shape and tokenizer of this model: a Hugging Face folder or run folder",
        Setting::new(Model, Fixed).value("DIR").also(&["init_from", "pretrained", "from_pretrained", "model_name_or_path"]);
    family: String = "gpt2".into(),
        "Decoder family, by the model_type of its config.json: gpt2, llama, mistral, qwen2, qwen3, gemma2, …",
        Setting::new(Model, Fixed).also(&["model_type", "architecture", "arch"]);
    layers: usize = 6,
        "Number of transformer blocks",
        Setting::new(Model, Fixed).check(AtLeastOne).also(&["n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"]);
    heads: usize = 6,
        "Number of attention heads; must divide --width unless --head-size is given",
        Setting::new(Model, Fixed).check(AtLeastOne).also(&["n_head", "n_heads", "num_heads", "num_attention_heads"]);
    kv_heads: Option<usize> = None,
        "Number of key/value heads; must divide --heads",
        Setting::new(Model, Fixed).unset("number of heads").also(&["n_kv_head", "n_kv_heads", "num_key_value_heads", "n_head_kv"]);
    head_size: Option<usize> = None,
        "Head size",
        Setting::new(Model, Fixed).check(Between(1, MAX_HEAD)).unset("width / heads").also(&["head_dim", "d_head"]);
    width: usize = 384,
        "Width of the residual stream",
        Setting::new(Model, Fixed).check(AtLeastOne).also(&["n_embd", "d_model", "hidden_size", "dim", "embed_dim"]);
    mlp: Option<usize> = None,
        "Width of the MLP's hidden layer",
        Setting::new(Model, Fixed).check(AtLeastOne).unset("by family")
            .also(&["n_inner", "intermediate_size", "d_ff", "hidden_dim", "ffn_dim", "mlp_width"]);
    context: usize = 256,
        "Context length in tokens",
        Setting::new(Model, Fixed).check(AtLeastOne).alias(&["block-size"])
            .also(&["block_size", "n_ctx", "n_positions", "seq_len", "sequence_length", "max_seq_len"]);
    vocab: Option<usize> = None,
        "Vocabulary size; at least the tokenizer's. Padding ids are never sampled",
        Setting::new(Model, Fixed).check(AtLeastOne).unset("the tokenizer's, from 1024 on rounded up to a multiple of 64")
            .also(&["vocab_size"]);
    rope_theta: Option<f64> = None,
        "Base of the rotary frequencies",
        Setting::new(Model, Fixed).unset("by family");
    tied: Option<bool> = None,
        "Tie the output head to the token embedding",
        Setting::new(Model, Fixed).value("BOOL").unset("by family");
    dropout: f64 = 0.2,
        "Dropout probability",
        Setting::new(Model, Free).check(Fraction);
    bias: bool = false,
        "Add biases to linear and norm layers of GPT-2; fixed in other families",
        Setting::new(Model, Fixed).value("BOOL");
    freeze: Vec<String> = Vec::new(),
        "Freeze parameters of these names (repeatable), such as 'model.layers.0.*' or '*embed_tokens*'",
        Setting::new(Model, Fixed).value("PATTERN");
    lora: Option<String> = None,
        "Train adapters of this rank instead of the weights of --init: 16, or r=16,alpha=32,targets=q_proj+v_proj,rslora=true",
        Setting::new(Model, Fixed).value("SETTINGS").check(NotEmpty).unset("train the weights").also(&["lora_r", "lora_rank"]);

    data: Vec<String> = Vec::new(),
        "Text, records (JSONL, JSON, CSV), folders, globs or token shards; for presets of images, one folder",
        Setting::new(Data, Added).images(Free).value("PATH").several().unset("the sources and docs in this folder");
    encoding: Option<String> = None,
        "Encoding of files that are not UTF-8 and lack a byte order mark: latin1, cp1251, shift_jis, …",
        Setting::new(Data, Fixed).value("NAME");
    as_text: bool = false,
        "Train on record files (JSON Lines, tables) as plain text, including their markup",
        Setting::new(Data, Free).switch().unset("read their fields");
    eval_data: Vec<String> = Vec::new(),
        "Files for validation, instead of a part of --data",
        Setting::new(Data, Fixed).value("PATH").several().unset("a part of --data").also(&["eval_dataset", "validation_file"]);
    train_on: TrainOn = TrainOn::Answers,
        "Messages of conversations that are trained: all answers, the last answer, or every message",
        Setting::new(Data, Fixed).value("WHAT").also(&["assistant_only_loss", "completion_only_loss", "train_on_inputs"]);
    chat_template: Option<String> = None,
        "Chat template of conversations: chatml, llama3, or a Jinja file",
        Setting::new(Data, Fixed).value("NAME|FILE").check(NotEmpty).unset("the model's").also(&["chat_template_path"]);
    pack: bool = false,
        "Pack several records into a row of --context tokens; tokens see only their own record",
        Setting::new(Data, Fixed).switch().unset("a record per row");
    drop_long: bool = false,
        "Drop records longer than --context instead of truncating them",
        Setting::new(Data, Fixed).switch().unset("truncate them");
    skip_bad: bool = false,
        "Skip and count broken records instead of stopping at the first one",
        Setting::new(Data, Free).switch().unset("stop");
    tokenizer: String = "char".into(),
        "Tokenizer: char, or a tokenizer.json",
        Setting::new(Data, Fixed).value("char|FILE").check(NotEmpty);
    val_split: f64 = 0.1,
        "Fraction of the data used for validation",
        Setting::new(Data, Fixed).images(Fixed).value("FRACTION").check(Fraction);

    objective: ObjectiveName = ObjectiveName::Sft,
        "Training objective: the answers themselves (sft), or which answers are preferred",
        Setting::new(Objective, Fixed).value("NAME").also(&["task", "stage", "rl"]);
    loss_type: Option<String> = None,
        "Variant of dpo or kto by TRL's name: hinge, robust, exo_pair, nca_pair, bco_pair, sppo_hard, apo_zero, …",
        Setting::new(Objective, Fixed).value("NAME").check(NotEmpty).unset("sigmoid of dpo, kto of kto").also(&["pref_loss", "rl_loss_type"]);
    beta: f64 = 0.1,
        "β of preference losses: how far answers may move from the reference; τ of ipo",
        Setting::new(Objective, Free).check(AboveZero).also(&["pref_beta", "dpo_beta", "kl_coef"]);
    label_smoothing: f64 = 0.0,
        "Probability that a preference is wrong, for simpo and the losses robust and exo_pair",
        Setting::new(Objective, Free).value("FRACTION").check(Fraction).also(&["label_smoothing_factor", "dpo_label_smoothing"]);
    simpo_gamma: f64 = 0.5,
        "Target margin of simpo",
        Setting::new(Objective, Free).check(FromZero).also(&["gamma_beta_ratio"]);
    cpo_alpha: f64 = 0.0,
        "Weight of the chosen answers' cross entropy in simpo",
        Setting::new(Objective, Free).check(FromZero);
    desirable_weight: f64 = 1.0,
        "Weight of desirable answers in kto",
        Setting::new(Objective, Free).check(FromZero).also(&["kto_chosen_weight"]);
    undesirable_weight: f64 = 1.0,
        "Weight of undesirable answers in kto",
        Setting::new(Objective, Free).check(FromZero).also(&["kto_rejected_weight"]);

    lr: f64 = 1e-3,
        "Highest learning rate",
        Setting::new(Optimizer, Rate).images(Rate).alias(&["learning-rate"]).check(AboveZero).also(&["learning_rate"]);
    min_lr: f64 = 1e-4,
        "Lowest learning rate, reached at the last step",
        Setting::new(Optimizer, Rate).images(Rate).check(FromZero).also(&["min_learning_rate"]);
    warmup: u64 = 100,
        "Warm-up steps, after which the highest learning rate is reached",
        Setting::new(Optimizer, Rate).alias(&["warmup-iters"]).also(&["warmup_iters", "warmup_steps"]);
    schedule: Schedule = Schedule::Cosine,
        "Learning rate schedule after the warm-up",
        Setting::new(Optimizer, Rate).also(&["lr_schedule", "scheduler"]);
    optimizer: OptimizerName = OptimizerName::default(),
        "Optimizer; lion usually needs a tenth of the learning rate of adamw, sgd a higher one",
        Setting::new(Optimizer, Fixed).value("NAME").also(&["optim", "optimizer_name"]);
    weight_decay: f64 = 0.1,
        "Weight decay of matrices and embeddings; adam and sgd add it to the gradient, the others decouple it",
        Setting::new(Optimizer, Free).images(Free).check(FromZero);
    betas: [f64; 2] = [0.9, 0.99],
        "β₁ and β₂ of adamw, adam and lion: 0.9,0.95 or 0.9 0.95",
        Setting::new(Optimizer, Free).images(Free).value("BETA1,BETA2").check(Fraction);
    eps: f64 = 1e-8,
        "ε of adamw and adam",
        Setting::new(Optimizer, Free).check(AboveZero);
    momentum: f64 = 0.0,
        "Momentum of sgd",
        Setting::new(Optimizer, Fixed).check(Fraction);
    clip: f64 = 1.0,
        "Maximum global gradient norm (clipping); 0 disables clipping",
        Setting::new(Optimizer, Free).check(FromZero).also(&["grad_clip", "max_norm", "max_grad_norm"]);

    batch: usize = 64,
        "Batch size: sequences or images per forward pass",
        Setting::new(Run, Free).images(Fixed).alias(&["batch-size"]).check(AtLeastOne).also(&["batch_size", "train_batch_size"]);
    grad_accum: u32 = 1,
        "Gradient accumulation: forward passes per optimizer step",
        Setting::new(Run, Free).check(AtLeastOne).also(&["gradient_accumulation_steps", "accumulate"]);
    epochs: Option<u64> = None,
        "Epochs: passes over the images, or over records instead of --steps",
        Setting::new(Run, Rate).images(Rate).check(AtLeastOne).unset("images: by preset; records: 1 without --steps")
            .also(&["num_train_epochs"]);
    steps: u64 = 5000,
        "Number of optimizer steps",
        Setting::new(Run, Rate).alias(&["max-iters"]).check(AtLeastOne).also(&["max_iters", "max_steps", "iters", "iterations"]);
    seed: u64 = 1337,
        "Seed of initial weights, data order, dropout and samples",
        Setting::new(Run, Fixed).images(Fixed);
    eval_every: u64 = 250,
        "Steps between evaluations; 0: never",
        Setting::new(Run, Free).also(&["eval_interval"]);
    eval_batches: usize = 200,
        "Batches per evaluation",
        Setting::new(Run, Free).also(&["eval_iters"]);
    sample_every: u64 = 500,
        "Steps between samples; 0: never",
        Setting::new(Run, Free);
    checkpoint_every: u64 = 500,
        "Steps between checkpoints; 0: only the best and the last",
        Setting::new(Run, Free).images(Free);
    log_every: Option<u64> = None,
        "Steps between progress lines if stderr is not a terminal",
        Setting::new(Run, Free).value("N").check(AtLeastOne).unset("about every 10 seconds").also(&["log_interval", "logging_steps"]);
    keep: usize = 2,
        "Number of newest checkpoints to keep in addition to the best one",
        Setting::new(Run, Free).images(Free).check(AtLeastOne);

    #[serde(default, deserialize_with = "dtype::maybe")]
    dtype: DType = DType::F32,
        "Storage type of weights and activations, also as bfloat16, half, …; arithmetic is f32",
        Setting::new(Device, Fixed).images(Fixed);
    matmul_precision: MatmulPrecision = MatmulPrecision::Highest,
        "Precision of f32 matrix products; high rounds operands to tf32 on tensor cores",
        Setting::new(Device, Free).value("PRECISION");
    device: String = "auto".into(),
        "Device: auto, <platform>:<index> such as pocl:0 or nvidia:0, an index of `netcl devices`, or sim",
        Setting::new(Device, Free).images(Free).alias(&["gpu-id"]).value("DEVICE").check(NotEmpty);
    graph: GraphMode = GraphMode::Auto,
        "Capture a training step once and replay it; auto: if possible. The results are bit-identical",
        Setting::new(Device, Free).images(Free).value("MODE");
    recompute: Recompute = Recompute::None,
        "Activations that the backward pass recomputes; more if memory requires it. norm includes gelu. offload also keeps inputs of blocks on the host",
        Setting::new(Device, Free).value("WHAT");
    memory: Option<String> = None,
        "Maximum device memory, such as 8G",
        Setting::new(Device, Free).value("BYTES").unset("all");
    zero: u8 = 0,
        "State divided between devices: 0 none, 1 optimizer state (ZeRO-1), 2 also gradients (ZeRO-2)",
        Setting::new(Device, Free).value("STAGE").check(Between(0, 2));
    pipeline: usize = 1,
        "Pipeline stages, each on a separate device (see --grad-accum); more devices hold replicas",
        Setting::new(Device, Free).value("STAGES").check(AtLeastOne);
}

/// Returns the setting with this key.
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}
