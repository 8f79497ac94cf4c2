//! The fields of a Hugging Face `config.json`, as data: what netcl makes of each.
//!
//! A configuration is taken whole or refused. A field is read into the model's shape, or must have the value that netcl computes
//! with, or is listed as one that changes nothing in what is computed. Every other field is an error with its name.

use super::{GptConfig, Variant};
use crate::config::nearest;
use crate::layers::Activation;
use netcl_tensor::{Error, Result};
use serde_json::Value;

/// A field, or several names of the same one.
struct Field {
    names: &'static [&'static str],
    rule: Rule,
    required: bool,
}

/// What a field's value is to netcl.
enum Rule {
    /// A size of the model.
    Size(fn(&mut GptConfig, usize)),
    /// A number that is no size.
    Number(fn(&mut GptConfig, f64)),
    /// On or off.
    Flag(fn(&mut GptConfig, bool)),
    /// One of these names.
    Activation(&'static [(&'static str, Activation)]),
    /// Computed with one of these values alone; the text says what else would be needed.
    Only(&'static [Literal], &'static str),
    /// Our own object.
    Own,
    /// Changes nothing in what weights and tokens give.
    Inert,
}

/// A value in the table.
enum Literal {
    Bool(bool),
    Text(&'static str),
    /// `{}` or `[]`.
    Empty,
    /// A list of texts of which each is one of these.
    Among(&'static [&'static str]),
}

const fn field(names: &'static [&'static str], rule: Rule) -> Field {
    Field { names, rule, required: false }
}

const fn required(names: &'static [&'static str], rule: Rule) -> Field {
    Field { names, rule, required: true }
}

/// The names that `transformers` has for the functions that netcl has. Three of them are one approximation of the GELU.
const ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("tanh", Activation::Tanh),
];

/// The families: `model_type`, and the fields of its configuration beside those of every model.
static FAMILIES: &[(&str, &[Field])] = &[("gpt2", GPT2)];

/// Fields of `GPT2Config`, under its names and under those that it translates.
static GPT2: &[Field] = &[
    required(&["n_layer", "num_hidden_layers"], Rule::Size(|c, n| c.layers = n)),
    required(&["n_head", "num_attention_heads"], Rule::Size(|c, n| c.heads = n)),
    required(&["n_embd", "hidden_size"], Rule::Size(|c, n| c.width = n)),
    required(&["n_positions", "max_position_embeddings"], Rule::Size(|c, n| c.context = n)),
    required(&["vocab_size"], Rule::Size(|c, n| c.vocab = n)),
    field(&["n_inner"], Rule::Size(|c, n| c.variant.inner = Some(n))),
    field(&["layer_norm_epsilon"], Rule::Number(|c, n| c.eps = n as f32)),
    field(&["activation_function"], Rule::Activation(ACTIVATIONS)),
    field(&["scale_attn_weights"], Rule::Flag(|c, on| c.variant.scaled = on)),
    field(&["scale_attn_by_inverse_layer_idx"], Rule::Flag(|c, on| c.variant.scaled_by_layer = on)),
    field(&["tie_word_embeddings"], Rule::Flag(|c, on| c.variant.tied = on)),
    field(&["netcl"], Rule::Own),
    field(
        &["architectures"],
        Rule::Only(
            &[Literal::Empty, Literal::Among(&["GPT2LMHeadModel", "GPT2Model"])],
            "a language model: other heads than that are not supported",
        ),
    ),
    // An older name beside `n_positions`, which nothing reads any more.
    field(&["n_ctx"], Rule::Inert),
    // The order of scaling and the type of the softmax: netcl's is f32 in any case.
    field(&["reorder_and_upcast_attn"], Rule::Inert),
    // Of heads that classify.
    field(
        &[
            "summary_type",
            "summary_use_proj",
            "summary_activation",
            "summary_proj_to_labels",
            "summary_first_dropout",
            "predict_special_tokens",
        ],
        Rule::Inert,
    ),
    // Of training.
    field(
        &["embd_pdrop", "attn_pdrop", "resid_pdrop", "initializer_range", "gradient_checkpointing"],
        Rule::Inert,
    ),
];

/// Fields that `transformers` knows of every model.
static COMMON: &[Field] = &[
    field(&["model_type"], Rule::Inert),
    field(
        &["add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"],
        Rule::Only(&[Literal::Bool(false)], "no model of an encoder and a decoder is supported"),
    ),
    field(&["pruned_heads"], Rule::Only(&[Literal::Empty], "no head may be left out")),
    field(
        &["quantization_config", "compression_config"],
        Rule::Only(
            &[Literal::Empty],
            "quantised weights are not read; save the model in float32, bfloat16 or float16",
        ),
    ),
    field(
        &["auto_map", "custom_pipelines"],
        Rule::Only(&[Literal::Empty], "the folder brings code of its own, which netcl does not run"),
    ),
    field(
        &["position_embedding_type"],
        Rule::Only(&[Literal::Text("absolute")], "positions are learned, one vector each"),
    ),
    // Where it came from and how it is stored; tensors say their type themselves.
    field(
        &[
            "_name_or_path",
            "transformers_version",
            "dtype",
            "torch_dtype",
            "torchscript",
            "use_bfloat16",
            "transformers.js_config",
            "_commit_hash",
        ],
        Rule::Inert,
    ),
    // Tokens that other files name, too.
    field(
        &[
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "sep_token_id",
            "unk_token_id",
            "cls_token_id",
            "mask_token_id",
            "decoder_start_token_id",
            "tokenizer_class",
            "prefix",
        ],
        Rule::Inert,
    ),
    // Labels of classifiers and tasks.
    field(
        &["id2label", "label2id", "num_labels", "finetuning_task", "problem_type", "task_specific_params"],
        Rule::Inert,
    ),
    // How the same numbers are computed, and what is returned beside them.
    field(
        &[
            "use_cache",
            "attn_implementation",
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_attn_implementation_internal",
            "chunk_size_feed_forward",
            "output_attentions",
            "output_hidden_states",
            "output_past",
            "return_dict",
            "use_return_dict",
            "is_decoder",
            "cross_attention_hidden_size",
            "tf_legacy_loss",
        ],
        Rule::Inert,
    ),
    // How text is drawn: options of `generate`.
    field(
        &[
            "max_length",
            "min_length",
            "do_sample",
            "early_stopping",
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "repetition_penalty",
            "length_penalty",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "bad_words_ids",
            "num_return_sequences",
            "output_scores",
            "return_dict_in_generate",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "suppress_tokens",
            "begin_suppress_tokens",
        ],
        Rule::Inert,
    ),
];

/// Reads a `config.json`.
pub(super) fn read(json: &Value) -> Result<GptConfig> {
    let Some(object) = json.as_object() else {
        return Err(Error::format(format!("expected an object of fields, found {}", shown(json))));
    };
    let kind = object.get("model_type").and_then(Value::as_str);
    let Some((_, family)) = FAMILIES.iter().find(|(name, _)| Some(*name) == kind) else {
        let known: Vec<_> = FAMILIES.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let found = object.get("model_type").map_or("missing".into(), shown);
        return Err(Error::unsupported(format!("model_type is {found}, expected {}", known.join(" or "))));
    };
    let fields = || family.iter().chain(COMMON);
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        if !fields().any(|field| field.names.contains(&name.as_str())) {
            let all = fields().flat_map(|field| field.names.iter().copied());
            let hint = match nearest(name, all) {
                Some(near) => format!("did you mean {near}?"),
                None => "if it changes nothing in what the model computes, remove it from the file".into(),
            };
            return Err(Error::unsupported(format!(
                "{name} is {}, which netcl does not know and so might compute without: {hint}",
                shown(value)
            )));
        }
    }
    let mut config = GptConfig {
        layers: 0,
        heads: 0,
        width: 0,
        context: 0,
        vocab: 0,
        bias: true,
        eps: 1e-5,
        variant: Variant::default(),
    };
    for field in fields() {
        field.read(object, &mut config)?;
    }
    config.validate()?;
    Ok(config)
}

impl Field {
    fn read(&self, object: &serde_json::Map<String, Value>, config: &mut GptConfig) -> Result<()> {
        let mut given =
            self.names.iter().filter_map(|name| Some((name, object.get(*name).filter(|v| !v.is_null())?)));
        if matches!(self.rule, Rule::Inert) {
            return Ok(());
        }
        // One name of several may be said twice, as long as it is said alike; what may not be combined is each its own field.
        if let Rule::Only(..) = self.rule {
            return given.try_for_each(|(name, value)| self.rule.take(name, value, config));
        }
        let Some((name, value)) = given.next() else {
            return match self.required {
                true => Err(Error::format(format!("{} is missing", self.names[0]))),
                false => Ok(()),
            };
        };
        if let Some((other, different)) = given.find(|(_, other)| *other != value) {
            return Err(Error::format(format!(
                "{name} is {}, and {other}, another name for it, is {}",
                shown(value),
                shown(different)
            )));
        }
        self.rule.take(name, value, config)
    }
}

impl Rule {
    fn take(&self, name: &str, value: &Value, config: &mut GptConfig) -> Result<()> {
        let wrong =
            |expected: &str| Error::format(format!("{name} is {}, expected {expected}", shown(value)));
        match self {
            Self::Size(set) => {
                let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
                let size = size.filter(|n| (1..=super::config::MAX_SIZE).contains(n));
                let expected = || wrong(&format!("a whole number from 1 to {}", super::config::MAX_SIZE));
                set(config, size.ok_or_else(expected)?);
            }
            Self::Number(set) => set(config, value.as_f64().ok_or_else(|| wrong("a number"))?),
            Self::Flag(set) => set(config, value.as_bool().ok_or_else(|| wrong("true or false"))?),
            Self::Activation(all) => {
                let found = all.iter().find(|(known, _)| value.as_str() == Some(known));
                let names = || all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                let unknown = || Error::unsupported(wrong(&format!("one of {}", names())).message());
                config.variant.activation = found.ok_or_else(unknown)?.1;
            }
            Self::Only(literals, why) => {
                if !literals.iter().any(|literal| literal.is(value)) {
                    return Err(Error::unsupported(format!("{name} is {}: {why}", shown(value))));
                }
            }
            Self::Own => own(name, value, config)?,
            Self::Inert => {}
        }
        Ok(())
    }
}

/// What the format cannot say, in an object of our own.
fn own(name: &str, value: &Value, config: &mut GptConfig) -> Result<()> {
    let wrong = || Error::format(format!("{name} is {}, expected {{\"bias\": true or false}}", shown(value)));
    for (key, value) in value.as_object().ok_or_else(wrong)? {
        match (key.as_str(), value.as_bool()) {
            ("bias", Some(bias)) => config.bias = bias,
            _ => return Err(wrong()),
        }
    }
    Ok(())
}

impl Literal {
    fn is(&self, value: &Value) -> bool {
        match self {
            Self::Bool(expected) => value.as_bool() == Some(*expected),
            Self::Text(expected) => value.as_str() == Some(*expected),
            Self::Empty => {
                value.as_object().is_some_and(serde_json::Map::is_empty)
                    || value.as_array().is_some_and(Vec::is_empty)
            }
            Self::Among(names) => {
                let known = |v: &Value| v.as_str().is_some_and(|name| names.contains(&name));
                value.as_array().is_some_and(|all| all.iter().all(known))
            }
        }
    }
}

/// A value as the file has it, or its beginning.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gpt2() -> Value {
        json!({ "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 65 })
    }

    fn with(name: &str, value: Value) -> Result<GptConfig> {
        let mut json = gpt2();
        json[name] = value;
        read(&json)
    }

    #[test]
    fn no_field_is_listed_twice() {
        let mut names: Vec<_> = GPT2.iter().chain(COMMON).flat_map(|field| field.names).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn fields_that_change_what_is_computed_are_taken_over() {
        let plain = read(&gpt2()).unwrap();
        assert_eq!(
            (plain.layers, plain.context, plain.eps, plain.variant),
            (2, 16, 1e-5, Variant::default())
        );
        let variant = |name, value| with(name, value).unwrap().variant;
        assert_eq!(variant("n_inner", json!(48)).inner, Some(48));
        assert_eq!(variant("n_inner", Value::Null).inner, None);
        assert!(!variant("tie_word_embeddings", json!(false)).tied);
        assert!(!variant("scale_attn_weights", json!(false)).scaled);
        assert!(variant("scale_attn_by_inverse_layer_idx", json!(true)).scaled_by_layer);
        assert_eq!(variant("activation_function", json!("relu")).activation, Activation::Relu);
        assert!((with("layer_norm_epsilon", json!(1e-6)).unwrap().eps - 1e-6).abs() < 1e-12);
        assert!(!with("netcl", json!({ "bias": false })).unwrap().bias);
        // Other names of the same field.
        let mut other = gpt2();
        other["num_hidden_layers"] = json!(3);
        assert!(
            read(&other).unwrap_err().message().contains("n_layer is 2, and num_hidden_layers, another name")
        );
        other.as_object_mut().unwrap().remove("n_layer");
        assert_eq!(read(&other).unwrap().layers, 3);
    }

    #[test]
    fn fields_that_cannot_be_followed_are_refused_by_name() {
        for (name, value, part) in [
            ("rotary_pct", json!(0.25), "rotary_pct is 0.25, which netcl does not know"),
            ("layer_norm_epsilom", json!(1e-6), "did you mean layer_norm_epsilon?"),
            ("sliding_window", json!(128), "remove it from the file"),
            (
                "activation_function",
                json!("quick_gelu"),
                "activation_function is \"quick_gelu\", expected one of gelu_new",
            ),
            ("tie_word_embeddings", json!("no"), "tie_word_embeddings is \"no\", expected true or false"),
            ("n_layer", json!(2.5), "n_layer is 2.5, expected a whole number"),
            ("n_layer", json!(-1), "n_layer is -1"),
            ("n_layer", Value::Null, "n_layer is missing"),
            ("n_inner", json!(0), "n_inner is 0"),
            (
                "vocab_size",
                json!(4_294_967_296u64),
                "vocab_size is 4294967296, expected a whole number from 1 to 2147483647",
            ),
            ("n_head", json!(3), "3 heads do not divide a width of 32"),
            ("layer_norm_epsilon", json!(-1.0), "epsilon is -1"),
            ("layer_norm_epsilon", json!("small"), "layer_norm_epsilon is \"small\", expected a number"),
            ("add_cross_attention", json!(true), "add_cross_attention is true: no model of an encoder"),
            ("architectures", json!(["GPT2ForSequenceClassification"]), "architectures is"),
            ("quantization_config", json!({ "bits": 4 }), "quantised weights are not read"),
            ("pruned_heads", json!({ "0": [1] }), "no head may be left out"),
            ("position_embedding_type", json!("relative"), "positions are learned"),
            ("auto_map", json!({ "AutoConfig": "x.Y" }), "code of its own"),
            ("model_type", json!("mamba"), "model_type is \"mamba\", expected \"gpt2\""),
            ("model_type", Value::Null, "model_type is null"),
            ("netcl", json!({ "bias": true, "rope": 1 }), "netcl is"),
        ] {
            let error = with(name, value).unwrap_err();
            assert!(error.message().contains(part), "{error} has not: {part}");
        }
        for (json, part) in [(json!([]), "expected an object"), (json!({}), "model_type is missing")] {
            assert!(read(&json).unwrap_err().message().contains(part));
        }
    }
}
