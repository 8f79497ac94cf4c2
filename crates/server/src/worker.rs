//! The worker thread that owns a model and its engine. It takes commands, steps the engine while there is work, and sends tokens to the requesters.
//! Without work it waits for a command; it never waits for a reader.

use crate::metrics::OfModel;
use crate::piece::{NewTokens, SequenceEnd, Token};
use crate::profile::{Kernels, Sampled};
use netcl::device::{Error, ErrorKind, Result, guarded};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{
    Engine, EngineOptions, Event, Job, Load, Request, RequestId, Speculation, StepCost,
};
use netcl::llm::sampler::Sampler;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Time limit for building kernels before the first request.
const WARMUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Prompt lengths, in tokens, for which kernels are built in advance.
const WARM_PROMPTS: [usize; 5] = [2, 8, 32, 128, 512];

/// Identifies one HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// A command to a worker.
pub enum Command {
    /// Continues a prompt in one or more sequences.
    Generate(Box<PromptRequest>),
    /// Cancels everything with this ticket.
    Cancel(Ticket),
    /// Computes the means of the last hidden states of texts.
    Embed(Vec<Vec<u32>>, oneshot::Sender<Result<Vec<Vec<f32>>>>),
    /// Ends everything.
    Stop,
    /// Simulates a defect, for tests.
    #[cfg(test)]
    Panic,
}

/// A prompt, and the receiver of its sequences.
pub struct PromptRequest {
    /// The HTTP request that it belongs to.
    pub ticket: Ticket,
    /// The prompt and its generation parameters.
    pub job: Job,
    /// Number of sequences.
    pub choices: usize,
    /// Index of the first sequence.
    pub first: usize,
    /// Sender for all sequences. Its capacity is the whole answer, so that a slow reader delays no one.
    pub tell: mpsc::Sender<NewTokens>,
    /// One permit per sequence.
    pub places: OwnedSemaphorePermit,
}

/// Shared status of a worker.
#[derive(Default)]
pub struct Status {
    load: Mutex<Load>,
    costs: Mutex<Vec<StepCost>>,
    /// Whether it still takes commands.
    pub alive: AtomicBool,
    /// Kernel times, if steps are timed.
    pub kernels: Kernels,
}

impl Status {
    /// Returns the load of the engine.
    pub fn load(&self) -> Load {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Returns the costs of the engine's steps.
    pub fn costs(&self) -> Vec<StepCost> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn set(&self, load: Load) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }
}

/// Marks the thread as ended when dropped, however it ends.
struct Alive(Arc<Status>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::SeqCst);
    }
}

/// A running sequence.
struct Listener {
    ticket: Ticket,
    choice: usize,
    tell: mpsc::Sender<NewTokens>,
    /// Released when the sequence has ended.
    _place: OwnedSemaphorePermit,
    began: Instant,
    last: Option<Instant>,
}

/// Texts to embed.
struct Embedding {
    texts: VecDeque<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
    reply: oneshot::Sender<Result<Vec<Vec<f32>>>>,
}

/// A running model.
pub struct Worker<'a> {
    model: &'a LoadedModel,
    options: EngineOptions,
    listeners: HashMap<RequestId, Listener>,
    embeddings: VecDeque<Embedding>,
    status: Arc<Status>,
    metrics: OfModel,
    sampled: Sampled,
}

impl<'a> Worker<'a> {
    /// Returns a worker with the engine for [`run`](Self::run); its kernels are built.
    ///
    /// # Errors
    /// Errors of [`LoadedModel::engine`].
    pub fn new(
        model: &'a LoadedModel,
        options: EngineOptions,
        status: Arc<Status>,
        metrics: OfModel,
        sampled: Sampled,
    ) -> Result<(Self, Engine<'a>)> {
        let mut engine = model.engine(options, Speculation::Off)?;
        warm(model, &mut engine, options.texts)?;
        status.set(engine.load());
        let (listeners, embeddings) = (HashMap::new(), VecDeque::new());
        Ok((Self { model, options, listeners, embeddings, status, metrics, sampled }, engine))
    }

    /// Runs until it receives a stop command or the channel closes. A panic ends the current sequences, and the next ones get a new engine. If an
    /// engine cannot be created, the model is dropped, and the next request loads it again.
    pub fn run(&mut self, engine: Engine<'a>, commands: &Receiver<Command>) {
        let _alive = Alive(Arc::clone(&self.status));
        let mut next = Some(engine);
        while let Some(engine) = next.take() {
            let Err(panic) = guarded("the model's thread", || self.work(engine, commands)) else { break };
            tracing::error!("{}", panic.message());
            self.fail_all(&panic);
            let defect = Error::internal(panic.message());
            self.embeddings.drain(..).for_each(|one| drop(one.reply.send(Err(defect.clone()))));
            let again = || self.model.engine(self.options, Speculation::Off);
            match guarded("the engine", again).and_then(|engine| engine) {
                Ok(engine) => next = Some(engine),
                Err(error) => tracing::error!("unloading the model after an error: {error}"),
            }
        }
        self.status.alive.store(false, Ordering::SeqCst);
        self.fail_all(&Error::device("the server is stopping"));
    }

    fn work(&mut self, mut engine: Engine<'a>, commands: &Receiver<Command>) {
        while self.receive_commands(&mut engine, commands) {
            self.embed();
            if !engine.is_idle()
                && let Err(error) = self.step(&mut engine)
            {
                // The failure ends all sequences, and the next ones get a new engine. The memory may not suffice for two engines.
                tracing::error!("a step of the engine failed: {error}");
                self.fail_all(&error);
                drop(engine);
                engine = match self.model.engine(self.options, Speculation::Off) {
                    Ok(engine) => engine,
                    Err(error) => {
                        tracing::error!("unloading the model after an error: {error}");
                        break;
                    }
                };
            }
            self.status.set(engine.load());
        }
    }

    fn step(&mut self, engine: &mut Engine<'a>) -> Result<()> {
        let timed = self.sampled.begin();
        let events = guarded("the engine", || engine.step()).and_then(|events| events);
        if timed {
            self.sampled.end(&self.status.kernels)?;
        }
        self.tell(engine, events?);
        *self.status.costs.lock().unwrap_or_else(PoisonError::into_inner) = engine.costs();
        Ok(())
    }

    /// Takes the available commands; waits for one when idle. Returns false at the end.
    fn receive_commands(&mut self, engine: &mut Engine<'a>, commands: &Receiver<Command>) -> bool {
        loop {
            let command = match engine.is_idle() && self.embeddings.is_empty() {
                true => commands.recv().map_err(|_| TryRecvError::Disconnected),
                false => commands.try_recv(),
            };
            match command {
                Ok(Command::Generate(asked)) => self.add(engine, *asked),
                Ok(Command::Cancel(ticket)) => self.cancel(engine, ticket),
                Ok(Command::Embed(texts, reply)) => {
                    let (texts, vectors) = (texts.into(), Vec::new());
                    self.embeddings.push_back(Embedding { texts, vectors, reply });
                }
                #[cfg(test)]
                Ok(Command::Panic) => std::panic::panic_any("a defect of a test"),
                Err(TryRecvError::Empty) => return true,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
            self.status.set(engine.load());
        }
    }

    fn add(&mut self, engine: &mut Engine<'a>, asked: PromptRequest) {
        let PromptRequest { ticket, job, choices, first, tell, mut places } = asked;
        if tell.is_closed() {
            return;
        }
        match engine.add_choices(job, choices) {
            Ok(ids) => {
                for (at, id) in ids.into_iter().enumerate() {
                    let Some(place) = places.split(1) else { continue };
                    let (choice, began) = (first + at, Instant::now());
                    let listener =
                        Listener { ticket, choice, tell: tell.clone(), _place: place, began, last: None };
                    self.listeners.insert(id, listener);
                }
            }
            Err(error) => {
                drop(places);
                for choice in first..first + choices {
                    let end = Some(SequenceEnd::Failed(error.clone()));
                    drop(tell.try_send(NewTokens { choice, tokens: Vec::new(), text: String::new(), end }));
                }
            }
        }
    }

    fn cancel(&mut self, engine: &mut Engine<'a>, ticket: Ticket) {
        let ids: Vec<RequestId> =
            self.listeners.iter().filter(|(_, l)| l.ticket == ticket).map(|(id, _)| *id).collect();
        self.end(engine, &ids);
    }

    /// Ends sequences that no client waits for.
    fn end(&mut self, engine: &mut Engine<'a>, ids: &[RequestId]) {
        for id in ids {
            drop(engine.cancel(*id));
            self.listeners.remove(id);
            self.metrics.cancelled.inc();
        }
    }

    /// Sends the results of a step, one piece per sequence.
    fn tell(&mut self, engine: &mut Engine<'a>, events: Vec<Event>) {
        let (mut order, mut pieces) = (Vec::new(), HashMap::new());
        for event in events {
            let id = event.id();
            let Some(listener) = self.listeners.get(&id) else { continue };
            let piece = pieces.entry(id).or_insert_with(|| {
                order.push(id);
                NewTokens { choice: listener.choice, tokens: Vec::new(), text: String::new(), end: None }
            });
            match event {
                Event::Token { token, text, logprobs, .. } => {
                    piece.text.push_str(&text);
                    piece.tokens.push(Token { id: token, logprobs });
                }
                Event::Text { text, .. } => piece.text.push_str(&text),
                Event::Done { finish, usage, .. } => piece.end = Some(SequenceEnd::Done(finish, usage)),
                Event::Failed { error, .. } => piece.end = Some(SequenceEnd::Failed(error)),
            }
        }
        let now = Instant::now();
        if !order.is_empty() {
            self.metrics.batch.observe(order.len() as f64);
        }
        let mut gone = Vec::new();
        for id in order {
            let (Some(piece), Some(listener)) = (pieces.remove(&id), self.listeners.get_mut(&id)) else {
                continue;
            };
            self.metrics.count(&piece, listener.began, &mut listener.last, now);
            let (ended, tell) = (piece.end.is_some(), listener.tell.clone());
            if ended {
                // The slot is free before the receiver sees the end.
                self.listeners.remove(&id);
            }
            // The channel has capacity for the whole answer, so an error means that the receiver is gone.
            if tell.try_send(piece).is_err() && !ended {
                gone.push(id);
            }
        }
        self.end(engine, &gone);
    }

    fn fail_all(&mut self, error: &Error) {
        // An error that ends all sequences is not caused by one request.
        let error = &match error.kind() {
            ErrorKind::Format | ErrorKind::Unsupported => Error::internal(error.message()),
            _ => error.clone(),
        };
        for (_, Listener { choice, tell, _place: place, .. }) in self.listeners.drain() {
            self.metrics.errors.inc();
            drop(place);
            let end = Some(SequenceEnd::Failed(error.clone()));
            drop(tell.try_send(NewTokens { choice, tokens: Vec::new(), text: String::new(), end }));
        }
    }

    /// Continues with the requested embeddings, by about as many tokens as the engine prefills between two steps, so that streams continue meanwhile.
    fn embed(&mut self) {
        let mut left = self.options.chunk;
        while left > 0 {
            let Some(first) = self.embeddings.front_mut() else { return };
            let made = match first.texts.pop_front() {
                _ if first.reply.is_closed() => Err(Error::device("the client disconnected")),
                None => Ok(None),
                Some(ids) => {
                    left = left.saturating_sub(ids.len());
                    let model = self.model;
                    let vector = guarded("embedding a text", || model.embed(&ids)).and_then(|made| made);
                    self.metrics.prompt_tokens.inc_by(ids.len() as u64);
                    vector.map(Some)
                }
            };
            match made {
                Ok(Some(vector)) => first.vectors.push(vector),
                done => {
                    let Some(Embedding { vectors, reply, .. }) = self.embeddings.pop_front() else { return };
                    drop(reply.send(done.map(|_| vectors)));
                }
            }
        }
    }
}

/// Builds the kernels for steps of every batch size and for prompts, so that no request waits for them. Each step adds one sequence. Long prompts are
/// omitted on devices where they would take too long.
fn warm(model: &LoadedModel, engine: &mut Engine<'_>, texts: usize) -> Result<()> {
    let began = Instant::now();
    let ids = (0..texts).map(|_| begin(model, engine, vec![0], None)).collect::<Result<Vec<_>>>()?;
    // Twice the number of steps, in case the cache cannot hold all sequences.
    for _ in 0..2 * texts {
        step(engine)?;
        if engine.is_idle() || engine.load().running >= texts || began.elapsed() > WARMUP_TIMEOUT {
            break;
        }
    }
    ids.iter().for_each(|id| drop(engine.cancel(*id)));
    let vocab = model.config().vocab.max(1);
    let longest = engine.longest();
    for (n, length) in WARM_PROMPTS.into_iter().enumerate().filter(|(_, length)| *length <= longest) {
        let before = Instant::now();
        // Uses different tokens than before, because the cache would find the pages of equal ones.
        begin(model, engine, vec![((n + 1) % vocab) as u32; length], Some(1))?;
        while !engine.is_idle() {
            step(engine)?;
        }
        if began.elapsed() + 4 * before.elapsed() > WARMUP_TIMEOUT {
            break;
        }
    }
    Ok(())
}

fn begin(
    model: &LoadedModel,
    engine: &mut Engine<'_>,
    prompt: Vec<u32>,
    max: Option<usize>,
) -> Result<RequestId> {
    let request = Request { max, ignore_ends: true, ..Request::default() };
    engine.add(Job::new(prompt, Sampler::of_ids(model.sampling().clone())?, request))
}

fn step(engine: &mut Engine<'_>) -> Result<()> {
    let failed = engine.step()?.into_iter().find_map(|event| match event {
        Event::Failed { error, .. } => Some(error),
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}
