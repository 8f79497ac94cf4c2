//! A loaded model on the HTTP side: its tokenizer and templates, and the channel to its worker thread.

use crate::checker::Checker;
use crate::error::{ApiError, ApiResult};
use crate::forms::{Calls, Forms, THINK};
use crate::metrics::{ModelLoad, OfModel};
use crate::piece::NewTokens;
use crate::profile::{Sampled, Times};
use crate::reader::Reader;
use crate::schemas::Schemas;
use crate::tools::Tools;
use crate::worker::{Command, PromptRequest, Status, Ticket, Worker};
use netcl::device::{Device, Error, Result, guarded};
use netcl::llm::engine::{EngineOptions, Job, Options, Prompts, Talk};
use netcl::llm::sampler::Sampling;
use netcl::llm::template::Templates;
use netcl::llm::{LoadedModel, Tokenizer};
use netcl::model::decoder::DecoderConfig;
use netcl::model::model::Model as _;
use netcl::tensor::DType;
use netcl::tensor::quant::Activations;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Time limit for a model's thread to end.
const END: Duration = Duration::from_secs(10);
/// Capacity of a request's channel in addition to its tokens: the final piece of each sequence.
const SPARE: usize = 2;

/// Source of a model, and how to load it.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Name in requests.
    pub name: String,
    /// A GGUF file, a folder in the Hugging Face layout, or a training run folder.
    pub path: PathBuf,
    /// LoRA adapters with their scale factors.
    pub adapters: Vec<(PathBuf, f32)>,
}

/// Options for all models of a server.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Devices over which layers are distributed.
    pub devices: Vec<Device>,
    /// Storage type of dense weights, keys and values.
    pub dtype: Option<DType>,
    /// Context length in tokens.
    pub context: Option<usize>,
    /// Whether quantized matrices are stored dense.
    pub dequantise: bool,
    /// Type of the activations that quantized matrices are multiplied by.
    pub activations: Option<Activations>,
    /// Number of layers per device.
    pub layers: Option<Vec<usize>>,
    /// Concurrent sequences, pages, the cache.
    pub engine: EngineOptions,
    /// Maximum number of additional sequences that wait.
    pub queue: usize,
    /// Interval in steps at which kernels are timed [default: never].
    pub profile: Option<usize>,
    /// Compiles grammars of requests within a budget before the server does.
    pub checker: Option<Checker>,
}

/// Properties of a loaded model.
#[derive(Clone, Debug)]
pub struct About {
    /// Maximum tokens of a sequence: the context length, or the capacity of the cache.
    pub longest: usize,
    /// Context length in the model's files.
    pub trained: usize,
    /// Number of parameters.
    pub parameters: u64,
    /// Name of the family.
    pub architecture: &'static str,
    /// Type of most of its weights.
    pub quantization: String,
    /// Hidden size.
    pub width: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Sampling parameters in its files.
    pub sampling: Sampling,
    /// Bytes on its devices, including its cache.
    pub memory: u64,
    /// Load time in seconds since 1970.
    pub created: u64,
}

/// Components for text input and output.
pub struct TextParts {
    /// Tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat templates.
    pub templates: Arc<Templates>,
    /// Converts conversations to prompts.
    pub prompts: Prompts,
    /// Grammars of schemas.
    pub schemas: Schemas,
    /// Format of its answers.
    pub forms: Forms,
}

/// Message from a model's thread when it is ready.
type Ready = (About, Option<TextParts>);

/// A loaded model.
pub struct Loaded {
    /// Name in requests.
    pub name: String,
    /// Properties of the model.
    pub about: About,
    text: Option<TextParts>,
    commands: Sender<Command>,
    places: Arc<Semaphore>,
    parallel: usize,
    all_places: usize,
    status: Arc<Status>,
    thread: Mutex<Option<JoinHandle<()>>>,
    tickets: AtomicU64,
    used: Mutex<Instant>,
}

/// A request that is being answered. Dropping it frees its resources.
pub struct Running {
    /// Receives pieces of its sequences.
    pub pieces: mpsc::Receiver<NewTokens>,
    /// Number of sequences that have not ended.
    pub choices: usize,
    /// Total tokens after all sequences have ended: of prompts, of those from the cache, and generated.
    pub totals: Option<[usize; 3]>,
    ticket: Ticket,
    commands: Sender<Command>,
    /// The request's id in logs.
    request: String,
    model: String,
    began: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        let ms = self.began.elapsed().as_secs_f64() * 1e3;
        let (request, model) = (&self.request, &self.model);
        match self.totals {
            Some([prompt, cached, made]) => {
                tracing::info!(%request, %model, prompt, cached, made, ms, "answered");
            }
            None => {
                tracing::info!(%request, %model, ms, "not answered completely");
                drop(self.commands.send(Command::Cancel(self.ticket)));
            }
        }
    }
}

impl Loaded {
    /// Loads a model on a separate thread, which keeps it until this is dropped. All models together may occupy `budget` bytes on their devices,
    /// including their caches, but without the additional memory of a step.
    ///
    /// # Errors
    /// Errors of [`LoadedModel::open_adapted`] and of its engine.
    pub async fn open(
        spec: &ModelSpec,
        options: &ModelOptions,
        budget: Option<u64>,
        metrics: OfModel,
    ) -> Result<Self> {
        let (commands, heard) = std::sync::mpsc::channel();
        let (tell, ready) = oneshot::channel();
        let (own, with) = (spec.clone(), options.clone());
        let status = Arc::new(Status::default());
        let seen = Arc::clone(&status);
        let work = move || {
            let load = || load(&own, &with);
            let (model, before) = match guarded("loading the model", load).and_then(|model| model) {
                Ok(model) => model,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let sampled = Sampled::new(&with.devices, with.profile);
            // The remaining budget after the weights.
            let memory = budget.map(|budget| budget.saturating_sub(live(&with.devices)));
            let engine = EngineOptions { memory, ..with.engine_options() };
            let begin = || Worker::new(&model, engine, Arc::clone(&seen), metrics, sampled);
            let (mut worker, engine) = match guarded("the engine", begin).and_then(|worker| worker) {
                Ok(worker) => worker,
                Err(error) => return drop(tell.send(Err(error))),
            };
            seen.alive.store(true, Ordering::SeqCst);
            let about = about(&model, engine.longest(), live(&with.devices).saturating_sub(before));
            if tell.send(text_parts(&model, with.checker.clone()).map(|text| (about, text))).is_ok() {
                worker.run(engine, &heard);
            }
        };
        let thread = std::thread::Builder::new().name(format!("model {}", spec.name)).spawn(work);
        let thread =
            thread.map_err(|e| Error::memory(format!("cannot start a thread for the model: {e}")))?;
        let lost = || Error::internal("the model's thread ended while the model was loading");
        let (about, text): Ready = ready.await.map_err(|_| lost())??;
        let parallel = options.engine.texts;
        let all_places = parallel + options.queue;
        Ok(Self {
            name: spec.name.clone(),
            about,
            text,
            commands,
            places: Arc::new(Semaphore::new(all_places)),
            parallel,
            all_places,
            status,
            thread: Mutex::new(Some(thread)),
            tickets: AtomicU64::new(0),
            used: Mutex::new(Instant::now()),
        })
    }

    /// Returns tokenizer, templates and schemas.
    ///
    /// # Errors
    /// 400 for a model without a tokenizer.
    pub fn text(&self) -> ApiResult<&TextParts> {
        self.text.as_ref().ok_or_else(|| {
            let message = format!(
                "The model {} does not have a tokenizer, so it accepts only prompts of token ids",
                self.name
            );
            ApiError::field("model", message)
        })
    }

    /// Returns true if its files have a chat template.
    pub fn has_template(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.templates.get(None, false).is_ok())
    }

    /// Returns true if its answers start with reasoning.
    pub fn reasons(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.forms.thinks)
    }

    /// Returns true if its template supports tools in a format that can be parsed.
    pub fn calls_tools(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.forms.calls.is_some())
    }

    /// Returns a parser for an answer. It finds calls only if functions were given.
    pub fn reader(&self, tools: Option<&Arc<Tools>>) -> Reader {
        let forms = self.text.as_ref().map(|text| text.forms).unwrap_or_default();
        Reader::new(forms, tools.cloned())
    }

    /// Returns true if its thread still accepts requests.
    pub fn is_alive(&self) -> bool {
        self.status.alive.load(Ordering::SeqCst)
    }

    /// Returns true if no request waits for it.
    pub fn is_idle(&self) -> bool {
        self.places.available_permits() == self.all_places
    }

    /// Returns the time of its last use.
    pub fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the time of its last use.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns the kernel times of the timed steps.
    pub fn kernels(&self) -> Times {
        self.status.kernels.times()
    }

    /// Returns its load.
    pub fn busy(&self) -> ModelLoad {
        let load = self.status.load();
        ModelLoad {
            model: self.name.clone(),
            running: load.running + load.reading,
            // Includes requests that the engine has not received yet.
            waiting: (self.all_places - self.places.available_permits())
                .saturating_sub(load.running + load.reading),
            used: load.pages.saturating_sub(load.available),
            pages: load.pages,
            costs: self.status.costs(),
        }
    }

    /// Returns permits for this many sequences.
    ///
    /// # Errors
    /// 429 if not enough are free, 400 if the total is too small.
    pub fn places(&self, texts: usize) -> ApiResult<OwnedSemaphorePermit> {
        if texts > self.all_places {
            let message = format!(
                "n: {texts} texts were requested, but this server continues at most {} at the same time",
                self.all_places
            );
            return Err(ApiError::field("n", message));
        }
        let wanted = u32::try_from(texts).unwrap_or(u32::MAX);
        Arc::clone(&self.places).try_acquire_many_owned(wanted).map_err(|_| {
            let waiting = self.busy().waiting;
            // Assumes one second per request; clients add their own delay.
            let seconds = (waiting / self.parallel.max(1)).clamp(1, 30) as u64;
            ApiError::full(waiting, seconds)
        })
    }

    /// Starts the answers to prompts, each `choices` times.
    ///
    /// # Errors
    /// 503 if its thread has ended.
    pub fn begin(
        &self,
        request: &str,
        jobs: Vec<Job>,
        choices: usize,
        mut places: OwnedSemaphorePermit,
    ) -> ApiResult<Running> {
        self.touch();
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let room = jobs.iter().map(|job| {
            let left = (self.about.longest + 1).saturating_sub(job.prompt.len());
            choices * (job.request.max.unwrap_or(left).min(left) + SPARE)
        });
        let (tell, pieces) = mpsc::channel(room.sum::<usize>().max(1));
        let all = jobs.len() * choices;
        for (at, job) in jobs.into_iter().enumerate() {
            let Some(places) = places.split(choices) else { return Err(lost()) };
            let asked =
                PromptRequest { ticket, job, choices, first: at * choices, tell: tell.clone(), places };
            self.commands.send(Command::Generate(Box::new(asked))).map_err(|_| lost())?;
        }
        Ok(Running {
            pieces,
            choices: all,
            totals: None,
            ticket,
            commands: self.commands.clone(),
            request: request.to_owned(),
            model: self.name.clone(),
            began: Instant::now(),
        })
    }

    /// Returns the embeddings of texts.
    ///
    /// # Errors
    /// 503 if its thread has ended, device errors.
    pub async fn embed(&self, texts: Vec<Vec<u32>>) -> ApiResult<Vec<Vec<f32>>> {
        self.touch();
        let (reply, made) = oneshot::channel();
        self.commands.send(Command::Embed(texts, reply)).map_err(|_| lost())?;
        made.await.map_err(|_| lost())?.map_err(|e| ApiError::of(&e))
    }

    /// Makes its thread panic.
    #[cfg(test)]
    pub fn inject_panic(&self) {
        drop(self.commands.send(Command::Panic));
    }

    /// Ends all sequences.
    pub fn stop(&self) {
        drop(self.commands.send(Command::Stop));
    }

    /// Frees its memory. Returns when that is done or has taken too long.
    pub async fn close(&self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let (tell, ended) = oneshot::channel::<()>();
        let wait = move || {
            drop(thread.join());
            drop(tell);
        };
        // All threads for requests may be in use.
        let waits = std::thread::Builder::new().name("end of a model".into()).spawn(wait);
        if waits.is_ok() && tokio::time::timeout(END, ended).await.is_err() {
            tracing::warn!(model = %self.name, "its thread has not ended within {} s", END.as_secs());
        }
    }
}

fn lost() -> ApiError {
    ApiError::unavailable("The model was unloaded; the next request loads it again", 1)
}

impl ModelOptions {
    /// Returns the engine options; this side limits the queue.
    fn engine_options(&self) -> EngineOptions {
        EngineOptions { queue: self.engine.texts + self.queue, ..self.engine }
    }
}

/// Returns the bytes in use on devices, counting each device once.
pub fn live(devices: &[Device]) -> u64 {
    let first = |at: usize| !devices[..at].iter().any(|other| other.same(&devices[at]));
    let own = (0..devices.len()).filter(|at| first(*at));
    own.map(|at| devices[at].memory().live as u64).sum()
}

/// Returns the model, and the bytes that were in use before it was loaded.
fn load(spec: &ModelSpec, options: &ModelOptions) -> Result<(LoadedModel, u64)> {
    let before = live(&options.devices);
    let how = Options {
        dtype: options.dtype,
        context: options.context,
        dequantise: options.dequantise,
        activations: options.activations,
        layers: options.layers.as_deref(),
        ..Options::default()
    };
    let began = Instant::now();
    let model =
        LoadedModel::open_adapted(&spec.path, &spec.adapters, &options.devices, how, &mut |_| Ok(()))?;
    if model.tokenizer().is_err() {
        tracing::warn!(model = %spec.name, "{} does not have a tokenizer: the model accepts only prompts of token ids, with /v1/completions", spec.path.display());
    }
    let seconds = began.elapsed().as_secs_f64();
    let (context, trained) = (model.context(), model.trained_context());
    tracing::info!(model = %spec.name, seconds, context, "loaded {}", spec.path.display());
    if context < trained && options.context.is_none() {
        tracing::warn!(model = %spec.name, "using a context of {context} tokens, which fits in memory; the model's context is {trained}");
    }
    Ok((model, before))
}

fn about(model: &LoadedModel, longest: usize, memory: u64) -> About {
    let config: &DecoderConfig = model.config();
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    About {
        longest,
        trained: model.trained_context(),
        parameters: config.parameters() as u64,
        architecture: config.family.model_type,
        quantization: quantization(model),
        width: config.width,
        vocab: config.vocab,
        sampling: model.sampling().clone(),
        memory,
        created: since,
    }
}

/// Returns the type of most elements, with its name in files: `q4_k`, `bf16`.
fn quantization(model: &LoadedModel) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for shape in model.config().shapes() {
        let name = match model.decoder().params().blocks(&shape.name) {
            Some([first, ..]) => first.format().name.to_lowercase(),
            _ => format!("{}", model.dtype()).to_lowercase(),
        };
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += shape.count(),
            None => counts.push((name, shape.count())),
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or_else(String::new, |(name, _)| name)
}

fn text_parts(model: &LoadedModel, checker: Option<Checker>) -> Result<Option<TextParts>> {
    let (Some(tokenizer), templates) = model.shared_text_parts() else { return Ok(None) };
    let prompts = Prompts::new(&tokenizer, model.begins_conversations())?;
    let forms = forms(&tokenizer, &templates, &prompts);
    let schemas = Schemas::new(Arc::clone(&tokenizer), checker);
    Ok(Some(TextParts { schemas, tokenizer, templates, prompts, forms }))
}

/// Returns the answer format of a model with these templates.
fn forms(tokenizer: &Tokenizer, templates: &Templates, prompts: &Prompts) -> Forms {
    let calls = templates.get(None, true).ok().and_then(|template| Calls::of_template(template.text()));
    let Ok(template) = templates.get(None, false) else { return Forms { calls, ..Forms::default() } };
    let channels = calls == Some(Calls::Channels);
    let thinks = template.text().contains(THINK[1]);
    let message = serde_json::json!({ "role": "user", "content": "?" });
    let talk = Talk { messages: std::slice::from_ref(&message), ..Talk::default() };
    let prompt = prompts.render(tokenizer, template, talk).map(|(text, _)| text).unwrap_or_default();
    Forms { calls, channels, thinks, thinking: thinks && prompt.trim_end().ends_with(THINK[0]) }
}
