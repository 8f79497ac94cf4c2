//! What a model takes on a device, before anything is allocated there.

use netcl_device::{Capabilities, available_memory, human};
use netcl_nn::decoder::DecoderConfig;
use netcl_tensor::{DType, Error, Result};

/// A context that is not worth to begin with, where nobody asked for one and the model has more.
const LEAST: usize = 256;

/// Bytes that a process can take on a device.
pub fn available(device: &Capabilities) -> u64 {
    let on_host = device.is_cpu() || device.simulated;
    let host = available_memory().filter(|_| on_host).unwrap_or(u64::MAX);
    device.global_mem.min(host)
}

/// Bytes of a model's weights in a storage type.
fn weight_bytes(config: &DecoderConfig, dtype: DType) -> u64 {
    (config.parameters() as u64).saturating_mul(dtype.size() as u64)
}

/// Bytes that the keys and values of `tokens` take.
fn cache_bytes(config: &DecoderConfig, dtype: DType, tokens: usize) -> u64 {
    let a = &config.attention;
    [config.layers, 2, a.kv_heads, a.size, dtype.size()]
        .into_iter()
        .fold(tokens as u64, |all, n| all.saturating_mul(n as u64))
}

/// What a model takes wherever it is loaded: the storage of its weights, and how much of it.
pub struct Needs {
    config: DecoderConfig,
    dtype: DType,
    /// Elements and bytes of the matrices that stay quantised.
    quantised: [u64; 2],
}

impl Needs {
    pub(super) fn new(config: DecoderConfig, dtype: DType, quantised: [u64; 2]) -> Self {
        Self { config, dtype, quantised }
    }
    pub(super) fn on<'a>(&'a self, device: &'a str, available: u64) -> Fit<'a> {
        Fit { config: &self.config, dtype: self.dtype, quantised: self.quantised, device, available }
    }
    /// Storage of dense weights, keys and values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Bytes of the weights.
    pub fn weights(&self) -> u64 {
        self.on("", 0).weights(self.dtype)
    }
    /// Bytes of the keys and values of `tokens`.
    pub fn cache(&self, tokens: usize) -> u64 {
        cache_bytes(&self.config, self.dtype, tokens)
    }
    /// The longest context that fits beside the weights in so many bytes, up to the model's; `None` where not one token does.
    pub fn longest(&self, available: u64) -> Option<usize> {
        self.on("", available).longest(self.dtype)
    }
}

/// A model that is to be put on a device.
pub(super) struct Fit<'a> {
    pub config: &'a DecoderConfig,
    pub dtype: DType,
    /// Elements and bytes of the matrices that stay quantised.
    pub quantised: [u64; 2],
    /// Name of the device, and bytes it has.
    pub device: &'a str,
    pub available: u64,
}

impl Fit<'_> {
    /// Bytes of the weights with dense ones in this type.
    fn weights(&self, dtype: DType) -> u64 {
        let [elements, bytes] = self.quantised;
        weight_bytes(self.config, dtype).saturating_sub(elements * dtype.size() as u64).saturating_add(bytes)
    }

    /// The longest context that fits beside the weights, up to the model's.
    fn longest(&self, dtype: DType) -> Option<usize> {
        let left = self.available.checked_sub(self.weights(dtype))?;
        let one = cache_bytes(self.config, dtype, 1).max(1);
        let tokens = usize::try_from(left / one).unwrap_or(usize::MAX);
        Some(tokens.min(self.config.context)).filter(|tokens| *tokens > 0)
    }

    /// The context to begin with: the asked one, or the model's, or of that as much as fits.
    ///
    /// # Errors
    /// `Format` for one beyond the model's; `Memory` that says what is needed, what is there and what would fit.
    pub fn context(&self, asked: Option<usize>) -> Result<usize> {
        let own = self.config.context;
        match asked {
            Some(tokens) if tokens == 0 || tokens > own => Err(Error::format(format!(
                "a context of {tokens} tokens: expected 1 to {own}, which the model was made for"
            ))),
            Some(tokens) if self.longest(self.dtype).is_some_and(|most| tokens <= most) => Ok(tokens),
            Some(tokens) => Err(self.too_large(tokens)),
            None => match self.longest(self.dtype) {
                Some(most) if most >= own.min(LEAST) => Ok(most),
                _ => Err(self.too_large(own)),
            },
        }
    }

    fn too_large(&self, tokens: usize) -> Error {
        let weights = self.weights(self.dtype);
        let cache = cache_bytes(self.config, self.dtype, tokens);
        let narrow = [DType::F16, DType::Bf16].into_iter().filter(|other| other.size() < self.dtype.size());
        let fits = |dtype: DType| {
            let most = self.longest(dtype)?;
            let kind = if dtype == self.dtype { String::new() } else { format!("--dtype {dtype} ") };
            Some(format!("{kind}-c {}", most.min(tokens)))
        };
        let all: Vec<String> = std::iter::once(self.dtype).chain(narrow).filter_map(fits).collect();
        let advice = match all.is_empty() {
            true => "no storage type and no context fits there: take a smaller model, or another device (`netcl models info` shows which)".into(),
            false => format!("{} would fit", all.join(", or ")),
        };
        Error::memory(format!(
            "the model needs {}: {} of weights in {} and {} for the keys and values of {tokens} tokens; {} has {} available. Nothing was allocated; {advice}",
            human(weights.saturating_add(cache)),
            human(weights),
            self.dtype,
            human(cache),
            self.device,
            human(self.available)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_nn::decoder::Sizes;

    fn config() -> DecoderConfig {
        let sizes = Sizes { layers: 2, heads: 4, width: 64, vocab: 512, context: 1024, ..Sizes::default() };
        DecoderConfig::of("llama", &sizes).unwrap()
    }

    #[test]
    fn a_context_is_what_was_asked_for_or_as_much_as_fits() {
        let config = config();
        let weights = weight_bytes(&config, DType::F32);
        let one = cache_bytes(&config, DType::F32, 1);
        assert_eq!(one, 2 * 2 * 64 * 4);
        let fit = |tokens: u64| Fit {
            config: &config,
            dtype: DType::F32,
            quantised: [0; 2],
            device: "here",
            available: weights + one * tokens,
        };
        assert_eq!(fit(5000).context(None).unwrap(), 1024);
        assert_eq!(fit(300).context(None).unwrap(), 300);
        assert_eq!(fit(300).context(Some(300)).unwrap(), 300);
        assert_eq!(fit(5000).context(Some(7)).unwrap(), 7);
        for wrong in [0, 1025] {
            let error = fit(5000).context(Some(wrong)).unwrap_err();
            assert!(error.message().contains("expected 1 to 1024"), "{error}");
        }
        for error in [fit(300).context(Some(301)).unwrap_err(), fit(255).context(None).unwrap_err()] {
            let text = error.message();
            assert_eq!(error.kind(), netcl_device::ErrorKind::Memory);
            assert!(text.contains("here has") && text.contains("Nothing was allocated"), "{text}");
            assert!(text.contains("would fit") && text.contains("--dtype f16 -c "), "{text}");
        }
        // Matrices that stay as they are in the file leave more room.
        let half = Fit { quantised: [1000, 1000], ..fit(300) };
        assert_eq!(half.longest(DType::F32), Some(300 + 3000 / one as usize));
        let none = Fit { available: 10, ..fit(0) }.context(None).unwrap_err();
        assert!(none.message().contains("no storage type and no context fits"), "{none}");
    }
}
