//! Formats of the tensors in a quantized file: llama.cpp's rules, so that size and quality match its files.

use super::names::Placed;
use super::source::Source;
use netcl_model::decoder::DecoderConfig;
use netcl_tensor::quant::{
    BF16, F16, F32, Format, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K,
    Q8_0, TQ1_0, TQ2_0,
};
use netcl_tensor::{Error, Result};

/// A file type: a format for most tensors and better ones for some.
#[derive(Debug, PartialEq)]
pub struct Mix {
    /// Its name for `--type`.
    pub name: &'static str,
    /// `general.file_type` in GGUF files.
    pub number: u32,
    /// Format of most matrices.
    pub base: &'static Format,
}

const fn row(name: &'static str, number: u32, base: &'static Format) -> Mix {
    Mix { name, number, base }
}

/// All file types that netcl writes.
pub static MIXES: &[Mix] = &[
    row("f32", 0, &F32),
    row("f16", 1, &F16),
    row("bf16", 32, &BF16),
    row("q8_0", 7, &Q8_0),
    row("q4_0", 2, &Q4_0),
    row("q4_1", 3, &Q4_1),
    row("q5_0", 8, &Q5_0),
    row("q5_1", 9, &Q5_1),
    row("q2_k", 10, &Q2_K),
    row("q2_k_s", 21, &Q2_K),
    row("q3_k_s", 11, &Q3_K),
    row("q3_k_m", 12, &Q3_K),
    row("q3_k_l", 13, &Q3_K),
    row("q4_k_s", 14, &Q4_K),
    row("q4_k_m", 15, &Q4_K),
    row("q5_k_s", 16, &Q5_K),
    row("q5_k_m", 17, &Q5_K),
    row("q6_k", 18, &Q6_K),
    row("iq4_nl", 25, &IQ4_NL),
    row("iq4_xs", 30, &IQ4_XS),
    row("tq1_0", 36, &TQ1_0),
    row("tq2_0", 37, &TQ2_0),
    row("mxfp4_moe", 38, &MXFP4),
];

impl Mix {
    /// Returns the type with this name, case-insensitively; `q4_k` means `q4_k_m` and so on.
    ///
    /// # Errors
    /// `Unsupported` with a list of all types.
    pub fn named(name: &str) -> Result<&'static Self> {
        let lower = name.to_lowercase();
        let wanted = match lower.as_str() {
            "q3_k" | "q4_k" | "q5_k" => format!("{lower}_m"),
            "mxfp4" => "mxfp4_moe".into(),
            _ => lower,
        };
        MIXES.iter().find(|mix| mix.name == wanted).ok_or_else(|| {
            let all = MIXES.iter().map(|mix| mix.name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!("unknown type {name:?} of files; the types are {all}"))
        })
    }

    /// Returns the format of every tensor of a model, in the order of [`Source::placed`]. Some rules differ with `importance`.
    pub fn formats(&self, source: &Source, importance: bool) -> Vec<&'static Format> {
        self.formats_of(&source.config, &source.placed, importance)
    }

    /// Does the same for a model with these tensors.
    pub fn formats_of(
        &self,
        config: &DecoderConfig,
        placed: &[Placed],
        importance: bool,
    ) -> Vec<&'static Format> {
        let model = Facts {
            layers: config.layers,
            experts: config.mlp.moe.map_or(0, |moe| moe.experts),
            grouped: config.attention.group(),
            tied: config.tied,
            importance,
        };
        placed.iter().map(|tensor| self.format(&tensor.name, &tensor.dims, &model)).collect()
    }

    fn format(&self, name: &str, dims: &[usize], model: &Facts) -> &'static Format {
        let kept = dims.len() < 2 || name.contains("ffn_gate_inp") || !name.ends_with(".weight");
        if kept || name.contains("_norm.weight") {
            return &F32;
        }
        if name == "position_embd.weight" {
            return if self.base == &F16 || self.base == &BF16 { self.base } else { &F32 };
        }
        if self.base.is_plain() {
            return self.base;
        }
        let row = dims.last().copied().unwrap_or(0);
        fitting(self.wanted(name, dims, model), row)
    }

    /// Returns the format according to the rules, even if rows are not whole blocks of it.
    fn wanted(&self, name: &str, dims: &[usize], model: &Facts) -> &'static Format {
        let row = dims.last().copied().unwrap_or(0);
        let part = name.strip_suffix(".weight").and_then(|stem| stem.rsplit('.').next()).unwrap_or_default();
        let layer: usize = name.split('.').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        if part == "output" || (model.tied && part == "token_embd") {
            return match () {
                () if self.name == "mxfp4_moe" || !row.is_multiple_of(self.base.block) => &Q8_0,
                () if self.base == &Q8_0 => &Q8_0,
                () => &Q6_K,
            };
        }
        if self.name == "mxfp4_moe" {
            return if dims.len() > 2 { &MXFP4 } else { &Q8_0 };
        }
        match part {
            "token_embd" if self.name.starts_with("tq") => &Q4_K,
            "attn_v" | "attn_qkv" => self.values(layer, model),
            "attn_k" if model.experts == 8 => &Q8_0,
            "ffn_down" | "ffn_down_exps" => self.down(layer, model),
            "attn_output" => self.attention_output(model),
            _ => self.base,
        }
    }

    /// Returns the format of the value projection, alone or combined with those of queries and keys.
    fn values(&self, layer: usize, model: &Facts) -> &'static Format {
        let grouped = model.grouped >= 4;
        let found = match self.name {
            "q2_k" if grouped => &Q4_K,
            "q2_k" => &Q3_K,
            "q2_k_s" if grouped => &Q4_K,
            "q3_k_m" if layer < 2 => &Q5_K,
            "q3_k_m" => &Q4_K,
            "q3_k_l" => &Q5_K,
            "iq4_nl" | "iq4_xs" if grouped => &Q5_K,
            "q4_k_m" | "q5_k_m" if model.more_bits(layer) => &Q6_K,
            "q4_k_s" if layer < 4 => &Q5_K,
            _ => self.base,
        };
        match found {
            _ if model.experts == 8 => &Q8_0,
            // Llama with 70 billion parameters, whose query heads share eight key/value heads.
            _ if model.layers == 80 && model.grouped > 1 && (found == &Q3_K || found == &Q4_K) => &Q5_K,
            _ => found,
        }
    }

    /// Returns the format of the MLP's down projection.
    fn down(&self, layer: usize, model: &Facts) -> &'static Format {
        let (eighth, sixteenth) = (layer < model.layers / 8, layer < model.layers / 16);
        match self.name {
            "q2_k" => &Q3_K,
            "q2_k_s" if eighth => &Q4_K,
            "q3_k_m" if sixteenth => &Q5_K,
            "q3_k_m" => &Q4_K,
            "q3_k_l" => &Q5_K,
            "q4_k_m" | "q5_k_m" if model.more_bits(layer) => &Q6_K,
            "iq4_nl" | "iq4_xs" if eighth && !model.importance => &Q5_K,
            "q4_k_s" if eighth => &Q5_K,
            "q4_0" if eighth && model.importance => &Q4_1,
            "q5_0" if eighth && model.importance => &Q5_1,
            _ => self.base,
        }
    }

    fn attention_output(&self, model: &Facts) -> &'static Format {
        match (self.name, model.experts == 8) {
            ("q2_k" | "q3_k_s" | "q3_k_m" | "iq4_nl" | "q4_k_s" | "q4_k_m" | "iq4_xs", true) => &Q5_K,
            (_, true) => self.base,
            ("q2_k", _) => &Q3_K,
            ("q3_k_m", _) => &Q4_K,
            ("q3_k_l", _) => &Q5_K,
            _ => self.base,
        }
    }
}

/// Model properties that the rules use.
struct Facts {
    layers: usize,
    experts: usize,
    /// Query heads per key/value head.
    grouped: usize,
    tied: bool,
    importance: bool,
}

impl Facts {
    /// Returns true for the first and the last eighth of the layers, and every third in between.
    fn more_bits(&self, layer: usize) -> bool {
        let eighth = self.layers / 8;
        layer < eighth || layer >= 7 * self.layers / 8 || (layer - eighth) % 3 == 2
    }
}

/// Returns the format itself, or one with smaller blocks if a row is not a multiple of its block.
fn fitting(wanted: &'static Format, row: usize) -> &'static Format {
    if row.is_multiple_of(wanted.block) {
        return wanted;
    }
    let smaller: &'static Format = match wanted.name {
        "IQ4_XS" => &IQ4_NL,
        "Q2_K" | "Q3_K" | "TQ1_0" | "TQ2_0" => &Q4_0,
        "Q4_K" => &Q5_0,
        "Q5_K" => &Q5_1,
        "Q6_K" => &Q8_0,
        _ => wanted,
    };
    if row.is_multiple_of(smaller.block) { smaller } else { &F16 }
}
