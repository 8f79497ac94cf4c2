//! Language models: loaded from their files, described, asked to go on with a text.

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

/// Loads a model from a GGUF file, a folder in the Hugging Face layout, or the folder of a run. `context` is the tokens that it is to look at, 0 for
/// the model's own or as many as fit.
///
/// # Safety
/// `path` is a text; `model` has room for a handle.
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
        // SAFETY: as this function's caller vouches.
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

/// What a model is.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_model_info {
    /// Tokens of its vocabulary.
    pub vocab: usize,
    /// Tokens that it looks at, as it was loaded.
    pub context: usize,
    /// Tokens that its files say it can look at.
    pub trained_context: usize,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Parameters.
    pub parameters: u64,
    /// How its dense weights are stored, `NETCL_F32`, ….
    pub dtype: c_int,
}

/// Describes a model.
///
/// # Safety
/// `info` has room for the description.
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
        // SAFETY: as this function's caller vouches.
        unsafe { pointers::put("info", info, found) }
    })
}

/// How a text is made. Zeros of a structure that is all zeros are the model's own settings and the likeliest tokens: see each field.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_generation {
    /// New tokens at most; 0 for as many as the context takes.
    pub max_tokens: usize,
    /// 0 takes the likeliest token each time; below 0 is the model's own setting.
    pub temperature: f32,
    /// Keeps the likeliest tokens; 0 is the model's own setting.
    pub top_k: usize,
    /// Keeps the likeliest tokens that together have this probability; 0 is the model's own setting.
    pub top_p: f32,
    /// The same seed gives the same text.
    pub seed: u64,
    /// A text that ends it, or NULL.
    pub stop: *const c_char,
    /// Other than 0: names of control tokens in the prompt are those tokens and not text.
    pub special: c_int,
}

/// Called with text as it becomes final, in whole characters; other than 0 stops.
#[allow(non_camel_case_types)] // its name in C
pub type netcl_text_callback = Option<unsafe extern "C" fn(text: *const c_char, user: *mut c_void) -> c_int>;

/// What came of it.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_generated {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// New tokens.
    pub tokens: usize,
    /// Tokens of the prompt a second.
    pub prompt_speed: f64,
    /// New tokens a second.
    pub speed: f64,
    /// Why it ended: 0 a token that ends texts, 1 the stop text, 2 `max_tokens`, 3 the context is full, 4 `said` asked to.
    pub finish: c_int,
}

/// Sampler and request of a program's options.
///
/// # Safety
/// `options` is null or points to them, and their stop text is one or null.
unsafe fn wishes(
    model: &LoadedModel,
    options: *const netcl_generation,
) -> Result<(Sampler, Request, Specials)> {
    // SAFETY: as the caller vouches.
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

/// Goes on with the text `prompt`. `options` may be NULL for the model's own settings, `said` for a program that wants only the end of it, `generated`
/// for one that does not. A prompt longer than the context is an error; nothing is cut. The status is `NETCL_STATUS_STOPPED` where `said` ended it.
///
/// # Safety
/// `prompt` is a text; `options` and `generated` are NULL or what they say; `said` takes a text that lasts as long as its call.
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
        // SAFETY: as this function's caller vouches.
        let prompt = unsafe { pointers::text("prompt", prompt) }?;
        // SAFETY: likewise.
        let (mut sampler, request, specials) = unsafe { wishes(&model, options) }?;
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
            return Err(Failure::new(NetclStatus::Stopped, "the callback asked to stop"));
        }
        Ok(())
    })
}
