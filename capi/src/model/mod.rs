//! Language models: loading, description, and text generation.

use crate::edge::edge;
use crate::handles::Table;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use crate::tensor::state::{DEVICES, netcl_device, number};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{Options, Request, Watch};
use netcl::llm::sampler::{Finish, Sampler, StopTexts};
use netcl::llm::tokenizer::Specials;
use netcl::model::model::Model as _;
use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

static MODELS: Table<Arc<LoadedModel>> = Table::new("model", 0xe1);

/// A language model on a device.
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_model(());

/// Loads a model from a GGUF file, a folder in the Hugging Face layout, or the folder of a training run. `context` is the context length in
/// tokens. 0 selects the model's own context length, or as much as fits into memory.
///
/// # Safety
/// `path` is a string; `model` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_load(
    device: *mut netcl_device,
    path: *const c_char,
    context: usize,
    model: *mut *mut netcl_model,
) -> NetclStatus {
    edge("netcl_model_load", || {
        pointers::check_out("model", model)?;
        let device = DEVICES.get(device)?;
        // SAFETY: guaranteed by this function's caller.
        let path = unsafe { pointers::text("path", path) }?;
        let options = Options { context: Some(context).filter(|n| *n > 0), ..Options::default() };
        let loaded = LoadedModel::open(Path::new(path), &device, options, &mut |_| Ok(()))?;
        // SAFETY: likewise.
        unsafe { pointers::put("model", model, MODELS.insert(Arc::new(loaded))?) }
    })
}

/// Frees a model.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_model_free(model: *mut netcl_model) -> NetclStatus {
    edge("netcl_model_free", || MODELS.remove(model).map(|_| ()))
}

/// Properties of a model.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_model_info {
    /// Number of tokens in the vocabulary.
    pub vocab: usize,
    /// Context length in tokens, as loaded.
    pub context: usize,
    /// Context length in tokens, according to the model's files.
    pub trained_context: usize,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of parameters.
    pub parameters: u64,
    /// Storage type of the dense weights, `NETCL_F32`, ….
    pub dtype: c_int,
}

/// Writes the properties of a model to `info`.
///
/// # Safety
/// `info` points to space for the description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_describe(
    model: *mut netcl_model,
    info: *mut netcl_model_info,
) -> NetclStatus {
    edge("netcl_model_describe", || {
        let model = MODELS.get(model)?;
        let config = model.config();
        let found = netcl_model_info {
            vocab: config.vocab,
            context: model.context(),
            trained_context: model.trained_context(),
            layers: config.layers,
            width: config.width,
            parameters: model.decoder().params().count() as u64,
            dtype: number(model.dtype()),
        };
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("info", info, found) }
    })
}

/// Settings for generating text. A structure of zeros selects the model's own settings and greedy decoding; see each field.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_generation {
    /// Maximum number of new tokens; 0 for as many as the context allows.
    pub max_tokens: usize,
    /// Sampling temperature. 0 selects greedy decoding; a negative value selects the model's own setting.
    pub temperature: f32,
    /// Number of most likely tokens to sample from; 0 selects the model's own setting.
    pub top_k: usize,
    /// Sampling is limited to the most likely tokens whose total probability reaches this value; 0 selects the model's own setting.
    pub top_p: f32,
    /// Seed of the sampler. The same seed gives the same text.
    pub seed: u64,
    /// String that ends the text, or NULL.
    pub stop: *const c_char,
    /// If not 0, names of control tokens in the prompt are parsed as these tokens instead of as text.
    pub special: c_int,
}

/// Callback that receives the text as it is generated, in whole characters. A nonzero return value stops the generation.
#[allow(non_camel_case_types)] // its name in C
pub type netcl_text_callback = Option<unsafe extern "C" fn(text: *const c_char, user: *mut c_void) -> c_int>;

/// Result of generating text.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_generated {
    /// Number of tokens in the prompt.
    pub prompt_tokens: usize,
    /// Number of new tokens.
    pub tokens: usize,
    /// Prompt tokens per second.
    pub prompt_speed: f64,
    /// New tokens per second.
    pub speed: f64,
    /// Reason for the end: 0 an end-of-text token, 1 the stop string, 2 `max_tokens`, 3 the context is full, 4 `said` requested a stop.
    pub finish: c_int,
}

/// Builds the sampler and the request from a program's options.
///
/// # Safety
/// `options` is null or points to valid options, and their stop string is valid or null.
unsafe fn sampler_and_request(
    model: &LoadedModel,
    options: *const netcl_generation,
) -> Result<(Sampler, Request, Specials)> {
    // SAFETY: guaranteed by the caller.
    let given = unsafe { pointers::slice("options", options, usize::from(!options.is_null())) }?;
    let (mut sampling, mut request, mut specials) =
        (model.sampling().clone(), Request::default(), Specials::Plain);
    if let [given] = given {
        if given.temperature >= 0.0 {
            sampling.temperature = given.temperature;
        }
        if given.top_k > 0 {
            sampling.top_k = given.top_k;
        }
        if given.top_p > 0.0 {
            sampling.top_p = given.top_p;
        }
        sampling.seed = given.seed;
        request.max = Some(given.max_tokens).filter(|n| *n > 0);
        // SAFETY: likewise.
        if let Some(stop) = unsafe { pointers::text_or_none("stop", given.stop) }? {
            request.stops = StopTexts::new(vec![stop.to_owned()])?;
        }
        if given.special != 0 {
            specials = Specials::Parsed;
        }
    }
    sampling.validate()?;
    Ok((Sampler::new(sampling, model.tokenizer()?)?, request, specials))
}

/// Generates text after `prompt`. `options` may be NULL for the model's own settings. `said` receives the text and may be NULL. `generated`
/// receives the result and may be NULL. A prompt that is longer than the context is an error; it is never truncated. The status is
/// `NETCL_STATUS_STOPPED` if `said` requested a stop.
///
/// # Safety
/// `prompt` is a string; `options` and `generated` are NULL or point to their structures. The string passed to `said` is valid during that call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_generate(
    model: *mut netcl_model,
    prompt: *const c_char,
    options: *const netcl_generation,
    said: netcl_text_callback,
    user: *mut c_void,
    generated: *mut netcl_generated,
) -> NetclStatus {
    edge("netcl_generate", || {
        let model = MODELS.get(model)?;
        // SAFETY: guaranteed by this function's caller.
        let prompt = unsafe { pointers::text("prompt", prompt) }?;
        // SAFETY: likewise.
        let (mut sampler, request, specials) = unsafe { sampler_and_request(&model, options) }?;
        let ids = match prompt {
            "" => model.beginning()?,
            text => model.tokenizer()?.encode_prompt(text, specials)?,
        };
        let stop = Cell::new(false);
        let mut tell = |text: &str| {
            if let (Some(said), false) = (said, stop.get()) {
                let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
                // SAFETY: a function of the program, called as the header says.
                stop.set(unsafe { said(text.as_ptr(), user) } != 0);
            }
            Ok(())
        };
        let mut watch = Watch { text: &mut tell, stop: &|| stop.get() };
        let made = model.session()?.generate(&ids, &mut sampler, request, &mut watch)?;
        let finish = match made.finish {
            Finish::Token(_) => 0,
            Finish::Text(_) => 1,
            Finish::Length => 2,
            Finish::Context => 3,
            Finish::Stopped => 4,
        };
        if !generated.is_null() {
            let out = netcl_generated {
                prompt_tokens: made.prompt,
                tokens: made.tokens.len(),
                prompt_speed: made.prompt_speed(),
                speed: made.speed(),
                finish,
            };
            // SAFETY: likewise.
            unsafe { pointers::put("generated", generated, out) }?;
        }
        if stop.get() {
            return Err(Failure::new(NetclStatus::Stopped, "the callback requested a stop"));
        }
        Ok(())
    })
}
