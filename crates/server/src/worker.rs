//! The thread that has a model and its engine. It takes commands, steps the engine while there is something to do, and hands tokens to those who
//! asked for them. With nothing to do it waits for a command; it never waits for a reader.

use crate::metrics::OfModel;
use crate::piece::{End, Piece, Token};
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

/// How long building kernels before the first request may take.
const WARM: Duration = Duration::from_secs(10);

/// Prompts that kernels are built for, in tokens.
const WARM_PROMPTS: [usize; 5] = [2, 8, 32, 128, 512];

/// Names what one HTTP request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// What a worker is asked to do.
pub enum Command {
    /// Continues a prompt in several ways.
    Generate(Box<Asked>),
    /// Ends all that has this ticket.
    Cancel(Ticket),
    /// The means of the last hidden states of texts.
    Embed(Vec<Vec<u32>>, oneshot::Sender<Result<Vec<Vec<f32>>>>),
    /// Ends everything.
    Stop,
    /// A defect, for tests.
    #[cfg(test)]
    Panic,
}

/// A prompt, and who hears of its texts.
pub struct Asked {
    /// Whose it is.
    pub ticket: Ticket,
    /// The prompt and how it goes on.
    pub job: Job,
    /// How many texts.
    pub choices: usize,
    /// The number of the first one.
    pub first: usize,
    /// Hears of all of them. Its capacity is that of the whole answer, so that a slow reader delays nobody.
    pub tell: mpsc::Sender<Piece>,
    /// As many places as there are choices.
    pub places: OwnedSemaphorePermit,
}

/// What others see of a worker.
#[derive(Default)]
pub struct Status {
    load: Mutex<Load>,
    costs: Mutex<Vec<StepCost>>,
    /// Whether it still takes commands.
    pub alive: AtomicBool,
    /// What kernels take, if steps are timed.
    pub kernels: Kernels,
}

impl Status {
    /// How busy the engine is.
    pub fn load(&self) -> Load {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// What steps of the engine have taken.
    pub fn costs(&self) -> Vec<StepCost> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn set(&self, load: Load) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }
}

/// Says that a thread takes no commands any more, however it ends.
struct Alive(Arc<Status>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::SeqCst);
    }
}

/// A text that is waited for.
struct Listener {
    ticket: Ticket,
    choice: usize,
    tell: mpsc::Sender<Piece>,
    /// Free again when the text has ended.
    _place: OwnedSemaphorePermit,
    began: Instant,
    last: Option<Instant>,
}

/// Texts whose vectors are wanted.
struct Embedding {
    texts: VecDeque<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
    reply: oneshot::Sender<Result<Vec<Vec<f32>>>>,
}

/// A model at work.
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
    /// With the engine that [`run`](Self::run) begins with, whose kernels are built.
    ///
    /// # Errors
    /// Those of [`LoadedModel::engine`].
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

    /// Works until it receives a stop command or the channel closes. A panic ends the current texts, and the next ones get a new engine.
    /// If no engine can be made, the model is dropped, and the next request loads it again.
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
                Err(error) => tracing::error!("the model is given up: {error}"),
            }
        }
        self.status.alive.store(false, Ordering::SeqCst);
        self.fail_all(&Error::device("the server is stopping"));
    }

    fn work(&mut self, mut engine: Engine<'a>, commands: &Receiver<Command>) {
        while self.hear(&mut engine, commands) {
            self.embed();
            if !engine.is_idle()
                && let Err(error) = self.step(&mut engine)
            {
                // All texts end with it, and the next ones have a new engine; there may be no memory for two.
                tracing::error!("a step of the engine failed: {error}");
                self.fail_all(&error);
                drop(engine);
                engine = match self.model.engine(self.options, Speculation::Off) {
                    Ok(engine) => engine,
                    Err(error) => {
                        tracing::error!("the model is given up: {error}");
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

    /// Takes the commands that are there; waits for one if there is nothing to do. False at the end.
    fn hear(&mut self, engine: &mut Engine<'a>, commands: &Receiver<Command>) -> bool {
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

    fn add(&mut self, engine: &mut Engine<'a>, asked: Asked) {
        let Asked { ticket, job, choices, first, tell, mut places } = asked;
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
                    let end = Some(End::Failed(error.clone()));
                    drop(tell.try_send(Piece { choice, tokens: Vec::new(), text: String::new(), end }));
                }
            }
        }
    }

    fn cancel(&mut self, engine: &mut Engine<'a>, ticket: Ticket) {
        let ids: Vec<RequestId> =
            self.listeners.iter().filter(|(_, l)| l.ticket == ticket).map(|(id, _)| *id).collect();
        self.end(engine, &ids);
    }

    /// Ends texts that nobody waits for any more.
    fn end(&mut self, engine: &mut Engine<'a>, ids: &[RequestId]) {
        for id in ids {
            drop(engine.cancel(*id));
            self.listeners.remove(id);
            self.metrics.cancelled.inc();
        }
    }

    /// Hands out what a step gave, in one piece a text.
    fn tell(&mut self, engine: &mut Engine<'a>, events: Vec<Event>) {
        let (mut order, mut pieces) = (Vec::new(), HashMap::new());
        for event in events {
            let id = event.id();
            let Some(listener) = self.listeners.get(&id) else { continue };
            let piece = pieces.entry(id).or_insert_with(|| {
                order.push(id);
                Piece { choice: listener.choice, tokens: Vec::new(), text: String::new(), end: None }
            });
            match event {
                Event::Token { token, text, logprobs, .. } => {
                    piece.text.push_str(&text);
                    piece.tokens.push(Token { id: token, logprobs });
                }
                Event::Text { text, .. } => piece.text.push_str(&text),
                Event::Done { finish, usage, .. } => piece.end = Some(End::Done(finish, usage)),
                Event::Failed { error, .. } => piece.end = Some(End::Failed(error)),
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
                // Its place is free before anybody hears of the end.
                self.listeners.remove(&id);
            }
            // There is room for the whole answer, so an error says that nobody listens.
            if tell.try_send(piece).is_err() && !ended {
                gone.push(id);
            }
        }
        self.end(engine, &gone);
    }

    fn fail_all(&mut self, error: &Error) {
        // An error that ends all texts is not caused by one request.
        let error = &match error.kind() {
            ErrorKind::Format | ErrorKind::Unsupported => Error::internal(error.message()),
            _ => error.clone(),
        };
        for (_, Listener { choice, tell, _place: place, .. }) in self.listeners.drain() {
            self.metrics.errors.inc();
            drop(place);
            let end = Some(End::Failed(error.clone()));
            drop(tell.try_send(Piece { choice, tokens: Vec::new(), text: String::new(), end }));
        }
    }

    /// Goes on with vectors that are wanted, by about as many tokens as the engine reads of a prompt between two steps: streams go on meanwhile.
    fn embed(&mut self) {
        let mut left = self.options.chunk;
        while left > 0 {
            let Some(first) = self.embeddings.front_mut() else { return };
            let made = match first.texts.pop_front() {
                _ if first.reply.is_closed() => Err(Error::device("nobody waits for it")),
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

/// Builds the kernels of steps of every number of texts and of prompts, so that no request waits for that: a text comes to those before with each
/// step. Of prompts, which take long on some devices, the longer ones are left out where they would.
fn warm(model: &LoadedModel, engine: &mut Engine<'_>, texts: usize) -> Result<()> {
    let began = Instant::now();
    let ids = (0..texts).map(|_| begin(model, engine, vec![0], None)).collect::<Result<Vec<_>>>()?;
    // As many steps again, in case there is no room for all.
    for _ in 0..2 * texts {
        step(engine)?;
        if engine.is_idle() || engine.load().running >= texts || began.elapsed() > WARM {
            break;
        }
    }
    ids.iter().for_each(|id| drop(engine.cancel(*id)));
    let vocab = model.config().vocab.max(1);
    let longest = engine.longest();
    for (n, length) in WARM_PROMPTS.into_iter().enumerate().filter(|(_, length)| *length <= longest) {
        let before = Instant::now();
        // Other tokens than those before, whose pages would be found again.
        begin(model, engine, vec![((n + 1) % vocab) as u32; length], Some(1))?;
        while !engine.is_idle() {
            step(engine)?;
        }
        if began.elapsed() + 4 * before.elapsed() > WARM {
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
