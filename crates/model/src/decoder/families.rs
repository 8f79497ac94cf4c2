//! Families of decoders: one row of data each, with conversion between the family's `config.json` and [`DecoderConfig`].
//!
//! A configuration is read completely or rejected. Writing one is an error unless it would read back as the same model, because not every
//! format can express every configuration.
//!
//! A new family needs a row, a function that reads its fields, one that writes them, and goldens from `tools/golden_decoder.py`. `tests/decoder.rs`
//! fails for a family without goldens. `tests/goldens/configs.json` has configurations of public models.

use super::config::Sizes;
use super::defaults::{self, Table, completed};
use super::family::{ExpertNames, Family, Names};
use super::field_rules::shown;
use super::fields::Fields;
use super::wrapper::{note, text_of};
use super::write::put;
use super::{DecoderConfig, read, write};
use netcl_tensor::{DType, Error, Result};
use serde_json::{Map, Value, json};

/// A row of [`FAMILIES`].
#[derive(Debug)]
pub struct Row {
    /// Names in files.
    pub family: Family,
    /// Reads the configuration from the fields of `config.json`.
    pub read: fn(&'static Family, &mut Fields<'_>) -> Result<DecoderConfig>,
    /// Writes the configuration as fields.
    pub write: fn(&DecoderConfig, &mut Map<String, Value>),
    /// Fields for a configuration with given sizes.
    pub sizes: fn(&Sizes) -> Result<Map<String, Value>>,
    /// Values of fields that a file omits.
    pub defaults: Table,
}

impl Row {
    /// Returns the family with this `model_type`.
    ///
    /// # Errors
    /// `Unsupported` with the list of families.
    fn named(name: &str) -> Result<&'static Self> {
        FAMILIES.iter().find(|row| row.family.model_type == name).ok_or_else(|| {
            let near = netcl_device::did_you_mean(name, FAMILIES.iter().map(|row| row.family.model_type));
            Error::unsupported(format!("model_type is {name:?}, expected one of {}{near}", model_types()))
        })
    }
}

fn model_types() -> String {
    FAMILIES.iter().map(|row| row.family.model_type).collect::<Vec<_>>().join(", ")
}

/// Facts in a `config.json` besides the model itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileFacts {
    /// Type of the stored weights.
    pub dtype: Option<DType>,
    /// Dropout probability of the training.
    pub dropout: f64,
    /// Fields that name tokens, such as `eos_token_id`.
    pub tokens: Map<String, Value>,
}

const LLAMA: Names = Names {
    prefix: "model.",
    embedding: "embed_tokens",
    positions: "",
    layer: "layers.",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    qkv_by_head: false,
    out: "self_attn.o_proj",
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    pre_norms: ["input_layernorm", "post_attention_layernorm"],
    post_norms: ["post_attention_layernorm", "post_feedforward_layernorm"],
    up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    experts: None,
    last_norm: "norm",
    head: "lm_head",
    transposed: false,
    always_biases: false,
    buffers: &["rotary_emb.inv_freq"],
};
/// Names of norms before and after each part.
const GEMMA: Names = Names { pre_norms: ["input_layernorm", "pre_feedforward_layernorm"], ..LLAMA };
const MIXTRAL: Names =
    Names { experts: Some(ExpertNames { folder: "block_sparse_moe", maps: ["w1", "w3", "w2"] }), ..LLAMA };
const QWEN_MOE: Names = Names {
    experts: Some(ExpertNames { folder: "mlp", maps: ["gate_proj", "up_proj", "down_proj"] }),
    ..LLAMA
};
const PHI3: Names = Names { qkv: &["self_attn.qkv_proj"], up: &["mlp.gate_up_proj"], ..LLAMA };
const GPT2: Names = Names {
    prefix: "transformer.",
    embedding: "wte",
    positions: "wpe",
    layer: "h.",
    qkv: &["attn.c_attn"],
    out: "attn.c_proj",
    pre_norms: ["ln_1", "ln_2"],
    up: &["mlp.c_fc"],
    down: "mlp.c_proj",
    last_norm: "ln_f",
    transposed: true,
    always_biases: true,
    buffers: &["attn.bias", "attn.masked_bias"],
    ..LLAMA
};
const STARCODER2: Names = Names { up: &["mlp.c_fc"], down: "mlp.c_proj", ..LLAMA };
const NEOX: Names = Names {
    prefix: "gpt_neox.",
    embedding: "embed_in",
    qkv: &["attention.query_key_value"],
    qkv_by_head: true,
    out: "attention.dense",
    up: &["mlp.dense_h_to_4h"],
    down: "mlp.dense_4h_to_h",
    last_norm: "final_layer_norm",
    head: "embed_out",
    buffers: &["attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"],
    ..LLAMA
};

/// Returns a row of the table.
const fn row(
    model_type: &'static str,
    architecture: &'static str,
    names: &'static Names,
    read: fn(&'static Family, &mut Fields<'_>) -> Result<DecoderConfig>,
    write: fn(&DecoderConfig, &mut Map<String, Value>),
    defaults: Table,
) -> Row {
    let family = Family { model_type, architecture, names };
    Row { family, read, write, sizes: write::llama_sizes, defaults }
}

/// All families.
pub static FAMILIES: &[Row] = &[
    Row {
        sizes: write::gpt2_sizes,
        ..row("gpt2", "GPT2LMHeadModel", &GPT2, read::gpt2, write::gpt2, defaults::GPT2)
    },
    row("llama", "LlamaForCausalLM", &LLAMA, read::llama, write::llama, defaults::LLAMA),
    row("mistral", "MistralForCausalLM", &LLAMA, read::mistral, write::mistral, defaults::MISTRAL),
    Row {
        sizes: write::mixtral_sizes,
        ..row("mixtral", "MixtralForCausalLM", &MIXTRAL, read::mixtral, write::mixtral, defaults::MIXTRAL)
    },
    row("qwen2", "Qwen2ForCausalLM", &LLAMA, read::qwen2, write::qwen, defaults::QWEN2),
    row("qwen3", "Qwen3ForCausalLM", &LLAMA, read::qwen3, write::qwen, defaults::QWEN3),
    Row {
        sizes: write::qwen3_moe_sizes,
        ..row(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            &QWEN_MOE,
            read::qwen3_moe,
            write::qwen3_moe,
            defaults::QWEN3_MOE,
        )
    },
    row("gemma2", "Gemma2ForCausalLM", &GEMMA, read::gemma2, write::gemma2, defaults::GEMMA2),
    row("gemma3_text", "Gemma3ForCausalLM", &GEMMA, read::gemma3, write::gemma3, defaults::GEMMA3),
    row("phi3", "Phi3ForCausalLM", &PHI3, read::phi3, write::mistral, defaults::PHI3),
    row("olmo2", "Olmo2ForCausalLM", &LLAMA, read::olmo2, write::llama, defaults::OLMO2),
    row("smollm3", "SmolLM3ForCausalLM", &LLAMA, read::smollm3, write::smollm3, defaults::SMOLLM3),
    row("granite", "GraniteForCausalLM", &LLAMA, read::granite, write::granite, defaults::GRANITE),
    Row {
        sizes: write::neox_sizes,
        ..row("gpt_neox", "GPTNeoXForCausalLM", &NEOX, read::gpt_neox, write::gpt_neox, defaults::NEOX)
    },
    Row {
        sizes: write::starcoder2_sizes,
        ..row(
            "starcoder2",
            "Starcoder2ForCausalLM",
            &STARCODER2,
            read::starcoder2,
            write::starcoder2,
            defaults::STARCODER2,
        )
    },
];

impl DecoderConfig {
    /// Returns a configuration of a [family](FAMILIES), given by its `model_type`, with these sizes. Limits of the sizes are only checked by
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// `Unsupported` for an unknown family, or a size that the family cannot set separately; `Format` for a size of 0.
    pub fn of(family: &str, sizes: &Sizes) -> Result<Self> {
        let row = Row::named(family)?;
        let mut fields = (row.sizes)(sizes)?;
        fields.insert("model_type".into(), row.family.model_type.into());
        (row.read)(&row.family, &mut Fields::unlimited(&completed(&fields, row.defaults)))
    }

    /// Reads the `config.json` of a model of one of the [families](FAMILIES).
    ///
    /// # Errors
    /// `Unsupported` for an unknown family or field or an unsupported value; `Format` for a field that is missing or of the wrong type; `Shape`
    /// for inconsistent sizes.
    pub fn from_json(config: &Value) -> Result<Self> {
        Self::from_json_with_notes(config).map(|(config, _)| config)
    }

    /// Does the same and also returns notes on ignored fields of the file, which `transformers` does not read either.
    ///
    /// # Errors
    /// Same as [`from_json`](Self::from_json).
    pub fn from_json_with_notes(config: &Value) -> Result<(Self, Vec<String>)> {
        Self::read(config).map_err(|e| e.context("config.json"))
    }

    fn read(config: &Value) -> Result<(Self, Vec<String>)> {
        let text = text_of(config)?;
        let Some(map) = text.as_ref().unwrap_or(config).as_object() else {
            return Err(Error::format(format!("expected an object of fields, found {}", shown(config))));
        };
        let row = match map.get("model_type") {
            Some(Value::String(name)) => Row::named(name)?,
            other => {
                let found = other.map_or("missing".into(), shown);
                return Err(Error::unsupported(format!(
                    "model_type is {found}, expected one of {}",
                    model_types()
                )));
            }
        };
        let map = completed(map, row.defaults);
        let mut fields = Fields::new(&map);
        let out = (row.read)(&row.family, &mut fields)?;
        architectures(&mut fields, &row.family)?;
        let mut notes = fields.finish(row.family.model_type)?;
        notes.extend(text.as_ref().and_then(|_| note(config)));
        out.check()?;
        Ok((out, notes))
    }

    /// Returns the `config.json` of this configuration, for `transformers`.
    ///
    /// # Errors
    /// `Unsupported` for a configuration that the family's format cannot express.
    pub fn to_json(&self, facts: &FileFacts) -> Result<Value> {
        let row = Row::named(self.family.model_type)?;
        let mut map = Map::new();
        put(
            &mut map,
            json!({ "architectures": [self.family.architecture], "model_type": self.family.model_type }),
        );
        (row.write)(self, &mut map);
        put(
            &mut map,
            json!({ "initializer_range": 0.02, "use_cache": true, "attention_dropout": facts.dropout }),
        );
        map.extend(facts.tokens.clone());
        // Without them `transformers` uses defaults that can exceed the vocabulary, and does not open the model.
        for name in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            map.entry(name).or_insert(Value::Null);
        }
        if map["pad_token_id"].as_u64().is_some_and(|id| id >= self.vocab as u64) {
            map.insert("pad_token_id".into(), Value::Null);
        }
        if let Some(dtype) = facts.dtype {
            let name = match dtype {
                DType::F16 => "float16",
                DType::Bf16 => "bfloat16",
                _ => "float32",
            };
            // The second is the name for older versions.
            put(&mut map, json!({ "dtype": name, "torch_dtype": name }));
        }
        if self.family.model_type == "gpt2" {
            map.remove("attention_dropout");
            let dropout = facts.dropout;
            put(&mut map, json!({ "embd_pdrop": dropout, "attn_pdrop": dropout, "resid_pdrop": dropout }));
        }
        let json = Value::Object(map);
        match Self::from_json(&json) {
            Ok(same) if same == *self => Ok(json),
            other => Err(Error::unsupported(format!(
                "a config.json of {} cannot describe this model: {}",
                self.family.model_type,
                other.err().map_or("it would be read back differently".into(), |e| e.to_string())
            ))),
        }
    }
}

/// Checks that it is a language model; classifiers have another head.
fn architectures(fields: &mut Fields<'_>, family: &Family) -> Result<()> {
    let Some(value) = fields.get("architectures") else { return Ok(()) };
    // The model without a head has another name: its head is tied, or the file is rejected for lack of one.
    let own = |name: &Value| {
        name.as_str().is_some_and(|name| {
            name == family.architecture
                || name.ends_with("ForCausalLM")
                || name.ends_with("LMHeadModel")
                || name.ends_with("Model")
        })
    };
    match value.as_array() {
        Some(names) if names.iter().all(own) => Ok(()),
        _ => Err(Error::unsupported(format!(
            "architectures is {}, expected [\"{}\"]: only heads of language models are supported",
            shown(value),
            family.architecture
        ))),
    }
}
