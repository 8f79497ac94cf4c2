//! Model shapes for benchmarks without files.

use netcl_model::decoder::{DecoderConfig, Sizes};
use netcl_tensor::{Error, Result};

/// A shape: sizes and family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its names, the full one first.
    pub names: &'static [&'static str],
    /// Family in the form of [`DecoderConfig::of`].
    pub family: &'static str,
    /// Layers, query heads, key/value heads.
    layers: [usize; 3],
    /// Hidden size, MLP size, vocabulary, context.
    widths: [usize; 4],
    rope_theta: f64,
    tied: bool,
}

const fn llama(
    names: &'static [&'static str],
    layers: [usize; 3],
    widths: [usize; 4],
    rope_theta: f64,
    tied: bool,
) -> Preset {
    Preset { names, family: "llama", layers, widths, rope_theta, tied }
}

/// From the models' `config.json`, for llama2.c from its README. All have the head size width / heads.
static KNOWN: &[Preset] = &[
    llama(&["stories-15m", "15m"], [6, 6, 6], [288, 768, 32_000, 256], 1e4, true),
    llama(&["stories-42m", "42m"], [8, 8, 8], [512, 1376, 32_000, 1024], 1e4, true),
    llama(&["stories-110m", "110m"], [12, 12, 12], [768, 2048, 32_000, 1024], 1e4, true),
    llama(&["smollm-135m", "135m"], [30, 9, 3], [576, 1536, 49_152, 2048], 1e4, true),
    llama(&["smollm-360m", "360m"], [32, 15, 5], [960, 2560, 49_152, 2048], 1e4, true),
    llama(&["tinyllama-1.1b", "1.1b"], [22, 32, 4], [2048, 5632, 32_000, 2048], 1e4, false),
    llama(&["llama-3.2-1b", "1b"], [16, 32, 8], [2048, 8192, 128_256, 131_072], 5e5, true),
    llama(&["smollm-1.7b", "1.7b"], [24, 32, 32], [2048, 8192, 49_152, 2048], 1e4, true),
    llama(&["llama-3.2-3b", "3b"], [28, 24, 8], [3072, 8192, 128_256, 131_072], 5e5, true),
    llama(&["llama-2-7b", "7b"], [32, 32, 32], [4096, 11_008, 32_000, 4096], 1e4, false),
    llama(&["llama-3-8b", "8b"], [32, 32, 8], [4096, 14_336, 128_256, 8192], 5e5, false),
    llama(&["llama-2-13b", "13b"], [40, 40, 40], [5120, 13_824, 32_000, 4096], 1e4, false),
    Preset {
        names: &["mixtral-8x7b"],
        family: "mixtral",
        layers: [32, 32, 8],
        widths: [4096, 14_336, 32_000, 32_768],
        rope_theta: 1e6,
        tied: false,
    },
    llama(&["llama-3-70b", "70b"], [80, 64, 8], [8192, 28_672, 128_256, 8192], 5e5, false),
];

/// Returns all shapes, by size.
pub fn known() -> &'static [Preset] {
    KNOWN
}

impl Preset {
    /// Returns its sizes.
    pub fn sizes(&self) -> Sizes {
        let [layers, heads, kv_heads] = self.layers;
        let [width, mlp, vocab, context] = self.widths;
        Sizes {
            layers,
            heads,
            kv_heads: Some(kv_heads),
            head_size: None,
            width,
            mlp: Some(mlp),
            context,
            vocab,
            rope_theta: Some(self.rope_theta),
            tied: Some(self.tied),
        }
    }

    /// Returns the configuration for a name, or for a list of sizes such as `layers=22,heads=32,kv_heads=4,width=2048,mlp=5632,vocab=32000`; sizes
    /// that are not listed are those of a Llama with two layers.
    ///
    /// # Errors
    /// `Format` that lists the names, or names the invalid number; errors of [`DecoderConfig::check`].
    pub fn config(text: &str) -> Result<DecoderConfig> {
        let config = match KNOWN.iter().find(|known| known.names.contains(&text)) {
            Some(known) => DecoderConfig::of(known.family, &known.sizes())?,
            None if text.contains('=') => described(text)?,
            None => {
                let all = KNOWN.iter().map(|known| known.names.join(" or ")).collect::<Vec<_>>().join(", ");
                return Err(Error::format(format!(
                    "unknown shape {text:?}; the shapes are {all}, and numbers such as {EXAMPLE}"
                )));
            }
        };
        config.check().map(|()| config)
    }
}

/// Example list of sizes.
const EXAMPLE: &str = "layers=22,heads=32,kv_heads=4,width=2048,mlp=5632,vocab=32000";

fn described(text: &str) -> Result<DecoderConfig> {
    let mut sizes = Sizes { vocab: 32_000, context: 2048, tied: Some(false), ..Sizes::default() };
    let mut family = "llama";
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let wrong = || {
            Error::format(format!(
                "shape {text:?}: cannot parse {part:?}; expected family, layers, heads, kv_heads, head_size, width, mlp, vocab, context, rope_theta \
                 or tied, such as {EXAMPLE}"
            ))
        };
        let number = || value.parse::<usize>().map_err(|_| wrong());
        match key {
            "family" => family = value,
            "layers" => sizes.layers = number()?,
            "heads" => sizes.heads = number()?,
            "kv_heads" => sizes.kv_heads = Some(number()?),
            "head_size" => sizes.head_size = Some(number()?),
            "width" => sizes.width = number()?,
            "mlp" => sizes.mlp = Some(number()?),
            "vocab" => sizes.vocab = number()?,
            "context" => sizes.context = number()?,
            "rope_theta" => sizes.rope_theta = Some(value.parse().map_err(|_| wrong())?),
            "tied" => sizes.tied = Some(value.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }
    }
    DecoderConfig::of(family, &sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the presets with the published parameter counts.
    #[test]
    fn known_shapes_have_the_parameters_of_their_models() {
        let millions = |name: &str| Preset::config(name).unwrap().parameters() as f64 / 1e6;
        for (name, expected) in [
            ("15m", 15.191_712),
            ("42m", 41.689_600),
            ("110m", 109.529_856),
            ("135m", 134.515_008),
            ("360m", 361.821_120),
            ("tinyllama-1.1b", 1_100.048_384),
            ("llama-3.2-1b", 1_235.814_400),
            ("1.7b", 1_711.376_384),
            ("3b", 3_212.749_824),
            ("7b", 6_738.415_616),
            ("8b", 8_030.261_248),
            ("13b", 13_015.864_320),
            ("mixtral-8x7b", 46_702.792_704),
            ("70b", 70_553.706_496),
        ] {
            assert!((millions(name) - expected).abs() < 1e-6, "{name}: {}", millions(name));
        }
        let mut names: Vec<&str> = known().iter().flat_map(|known| known.names.iter().copied()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn numbers_describe_a_shape_too() {
        let text =
            "layers=22,heads=32,kv_heads=4,width=2048,mlp=5632,vocab=32000,context=2048,rope_theta=10000";
        assert_eq!(Preset::config(text).unwrap(), Preset::config("1.1b").unwrap());
        let qwen = Preset::config("family=qwen3,layers=1,heads=2,head_size=32,width=32").unwrap();
        assert_eq!((qwen.family.model_type, qwen.attention.size), ("qwen3", 32));
        for (text, part) in [
            ("900b", "llama-3-8b or 8b"),
            ("layers=two", "\"layers=two\""),
            ("rows=3", "\"rows=3\""),
            ("layers=2,heads=3,kv_heads=2,width=96", "not a multiple"),
        ] {
            let error = Preset::config(text).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
    }
}
