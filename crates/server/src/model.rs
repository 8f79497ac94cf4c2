//! A loaded model as the HTTP side sees it: what its texts are made of, and the way to the thread that it works on.

use crate::checker::Checker;
use crate::error::{ApiError, ApiResult};
use crate::forms::{Calls, Forms, THINK};
use crate::metrics::{Busy, OfModel};
use crate::piece::Piece;
use crate::profile::{Sampled, Times};
use crate::reader::Reader;
use crate::schemas::Schemas;
use crate::tools::Tools;
use crate::worker::{Asked, Command, Status, Ticket, Worker};
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

/// How long the thread of a model may take to end.
const END: Duration = Duration::from_secs(10);
/// Room in a request's channel beside its tokens: the piece with its end, for each text.
const SPARE: usize = 2;

/// Where a model comes from, and how it is loaded.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// What requests call it.
    pub name: String,
    /// A GGUF file, a folder in the Hugging Face layout, or the folder of a run.
    pub path: PathBuf,
    /// Low-rank adapters with their factors.
    pub adapters: Vec<(PathBuf, f32)>,
}

/// What holds for all models of a server.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Devices that layers are divided among.
    pub devices: Vec<Device>,
    /// Storage of dense weights, keys and values.
    pub dtype: Option<DType>,
    /// Tokens of the context.
    pub context: Option<usize>,
    /// Whether quantised matrices are stored dense.
    pub dequantise: bool,
    /// What quantised matrices are multiplied by.
    pub activations: Option<Activations>,
    /// Layers of each device.
    pub layers: Option<Vec<usize>>,
    /// Texts at the same time, pages, the cache.
    pub engine: EngineOptions,
    /// Texts that wait beside those, at most.
    pub queue: usize,
    /// Kernels of every so many steps are timed; of none without it.
    pub profile: Option<usize>,
    /// Compiles grammars of requests within a budget, before the server does.
    pub checker: Option<Checker>,
}

/// What is known of a loaded model.
#[derive(Clone, Debug)]
pub struct About {
    /// Tokens that a text can have: of the context, or of what the cache has room for.
    pub longest: usize,
    /// Tokens of the context that its files name.
    pub trained: usize,
    /// Elements of all parameters.
    pub parameters: u64,
    /// The family's name.
    pub architecture: &'static str,
    /// The type of most of its weights.
    pub quantization: String,
    /// Width of the hidden states.
    pub width: usize,
    /// Ids of the vocabulary.
    pub vocab: usize,
    /// How its files say that tokens are drawn.
    pub sampling: Sampling,
    /// Bytes that it takes on its devices, with its cache.
    pub memory: u64,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
}

/// What texts are made of.
pub struct TextParts {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat templates.
    pub templates: Arc<Templates>,
    /// Makes prompts of conversations.
    pub prompts: Prompts,
    /// Grammars of schemas.
    pub schemas: Schemas,
    /// How its answers are read.
    pub forms: Forms,
}

/// What a model's thread needs, and what it says when it is ready.
type Ready = (About, Option<TextParts>);

/// A loaded model.
pub struct Loaded {
    /// What requests call it.
    pub name: String,
    /// What it is.
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

/// A request that is being answered. Dropped, it frees what it has.
pub struct Running {
    /// Hears of its texts.
    pub pieces: mpsc::Receiver<Piece>,
    /// Texts that are still to end.
    pub choices: usize,
    /// What all of them took, once they have ended: tokens of prompts, of those from the cache, and new ones.
    pub totals: Option<[usize; 3]>,
    ticket: Ticket,
    commands: Sender<Command>,
    /// The request's name, as logs have it.
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
                tracing::info!(%request, %model, ms, "not answered to the end");
                drop(self.commands.send(Command::Cancel(self.ticket)));
            }
        }
    }
}

impl Loaded {
    /// Loads a model on a thread of its own, which keeps it until this is dropped. All models together take `budget` bytes on their devices at most, with
    /// their caches, and without what a step needs besides.
    ///
    /// # Errors
    /// Those of [`LoadedModel::open_adapted`] and of its engine.
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
            // What the weights have left of what all models may take.
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
        let thread = thread.map_err(|e| Error::memory(format!("a thread for the model: {e}")))?;
        let lost = || Error::internal("the thread of the model ended while it was loaded");
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

    /// Tokenizer, templates and schemas.
    ///
    /// # Errors
    /// 400 for a model without a tokenizer.
    pub fn text(&self) -> ApiResult<&TextParts> {
        self.text.as_ref().ok_or_else(|| {
            let message =
                format!("The model {} has no tokenizer: it takes prompts of token ids alone", self.name);
            ApiError::field("model", message)
        })
    }

    /// Whether its files have a chat template.
    pub fn has_template(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.templates.get(None, false).is_ok())
    }

    /// Whether its answers begin with what it thinks.
    pub fn reasons(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.forms.thinks)
    }

    /// Whether its template knows tools, in a form that calls are read from.
    pub fn calls_tools(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.forms.calls.is_some())
    }

    /// Reads an answer; calls only where functions were given.
    pub fn reader(&self, tools: Option<&Arc<Tools>>) -> Reader {
        let forms = self.text.as_ref().map(|text| text.forms).unwrap_or_default();
        Reader::new(forms, tools.cloned())
    }

    /// Whether its thread still takes requests.
    pub fn is_alive(&self) -> bool {
        self.status.alive.load(Ordering::SeqCst)
    }

    /// Whether nobody waits for it.
    pub fn is_idle(&self) -> bool {
        self.places.available_permits() == self.all_places
    }

    /// When it was used last.
    pub fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is used.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// What kernels took in steps that were timed.
    pub fn kernels(&self) -> Times {
        self.status.kernels.times()
    }

    /// How busy it is.
    pub fn busy(&self) -> Busy {
        let load = self.status.load();
        Busy {
            model: self.name.clone(),
            running: load.running + load.reading,
            // Also what the engine has not heard of yet.
            waiting: (self.all_places - self.places.available_permits())
                .saturating_sub(load.running + load.reading),
            used: load.pages.saturating_sub(load.available),
            pages: load.pages,
            costs: self.status.costs(),
        }
    }

    /// Places for so many texts.
    ///
    /// # Errors
    /// 429 if there are not so many, 400 if there never are.
    pub fn places(&self, texts: usize) -> ApiResult<OwnedSemaphorePermit> {
        if texts > self.all_places {
            let message = format!(
                "n: {texts} texts are wanted, and this server takes at most {} at the same time",
                self.all_places
            );
            return Err(ApiError::field("n", message));
        }
        let wanted = u32::try_from(texts).unwrap_or(u32::MAX);
        Arc::clone(&self.places).try_acquire_many_owned(wanted).map_err(|_| {
            let waiting = self.busy().waiting;
            // As if each took a second; clients add a delay of their own.
            let seconds = (waiting / self.parallel.max(1)).clamp(1, 30) as u64;
            ApiError::full(waiting, seconds)
        })
    }

    /// Begins the answers to prompts, each `choices` times.
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
            let asked = Asked { ticket, job, choices, first: at * choices, tell: tell.clone(), places };
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

    /// Embeddings of texts.
    ///
    /// # Errors
    /// 503 if its thread has ended, those of the device.
    pub async fn embed(&self, texts: Vec<Vec<u32>>) -> ApiResult<Vec<Vec<f32>>> {
        self.touch();
        let (reply, made) = oneshot::channel();
        self.commands.send(Command::Embed(texts, reply)).map_err(|_| lost())?;
        made.await.map_err(|_| lost())?.map_err(|e| ApiError::of(&e))
    }

    /// Lets its thread panic.
    #[cfg(test)]
    pub fn inject_panic(&self) {
        drop(self.commands.send(Command::Panic));
    }

    /// Ends all texts.
    pub fn stop(&self) {
        drop(self.commands.send(Command::Stop));
    }

    /// Gives its memory back; returns when that is done, or has taken too long.
    pub async fn close(&self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let (tell, ended) = oneshot::channel::<()>();
        let wait = move || {
            drop(thread.join());
            drop(tell);
        };
        // Threads for requests may all be taken.
        let waits = std::thread::Builder::new().name("end of a model".into()).spawn(wait);
        if waits.is_ok() && tokio::time::timeout(END, ended).await.is_err() {
            tracing::warn!(model = %self.name, "its thread has not ended within {} s", END.as_secs());
        }
    }
}

fn lost() -> ApiError {
    ApiError::unavailable("The model is not there any more; it is loaded again with the next request", 1)
}

impl ModelOptions {
    /// The engine's, with a queue that this side bounds.
    fn engine_options(&self) -> EngineOptions {
        EngineOptions { queue: self.engine.texts + self.queue, ..self.engine }
    }
}

/// Bytes that are taken on devices, each counted once.
pub fn live(devices: &[Device]) -> u64 {
    let first = |at: usize| !devices[..at].iter().any(|other| other.same(&devices[at]));
    let own = (0..devices.len()).filter(|at| first(*at));
    own.map(|at| devices[at].memory().live as u64).sum()
}

/// The model, and the bytes that were taken before it.
fn load(spec: &ModelSpec, options: &ModelOptions) -> Result<(LoadedModel, u64)> {
    let before = live(&options.devices);
    let how = Options {
        dtype: options.dtype,
        context: options.context,
        dequantise: options.dequantise,
        activations: options.activations,
        layers: options.layers.as_deref(),
    };
    let began = Instant::now();
    let model =
        LoadedModel::open_adapted(&spec.path, &spec.adapters, &options.devices, how, &mut |_| Ok(()))?;
    if model.tokenizer().is_err() {
        tracing::warn!(model = %spec.name, "{} has no tokenizer: the model takes prompts of token ids alone, by /v1/completions", spec.path.display());
    }
    let seconds = began.elapsed().as_secs_f64();
    let (context, trained) = (model.context(), model.trained_context());
    tracing::info!(model = %spec.name, seconds, context, "loaded {}", spec.path.display());
    if context < trained && options.context.is_none() {
        tracing::warn!(model = %spec.name, "context of {context} tokens, for which there is memory; the model's is {trained}");
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

/// The type of most elements, as files name it: `q4_k`, `bf16`.
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

/// How answers of a model with these templates are read.
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
