//! The thread that owns a model. Sequences borrow the model, so it must not move.

use super::stream::{GeneratedText, Message};
use crate::edge::guarded;
use netcl::device::ErrorKind;
use netcl::llm::LoadedModel;
use netcl::llm::engine::{
    Conversation, EngineOptions, Event, Generated, Job, MAX_DRAFTED, Options, Request, RequestId, Role,
    Session, Speculation, Watch,
};
use netcl::llm::sampler::{Finish, Sampler};
use netcl::model::layers::Mode;
use netcl::prelude::{DType, Device, Error, Result, Tensor, no_grad};
use netcl::tensor::quant::Activations;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

/// Source and options for loading a model.
pub struct Opening {
    pub path: PathBuf,
    pub adapters: Vec<(PathBuf, f32)>,
    pub devices: Vec<Device>,
    pub dtype: Option<DType>,
    pub context: Option<usize>,
    pub dequantise: bool,
    pub activations: Option<Activations>,
    pub layers: Option<Vec<usize>>,
}

/// A task to run with the model.
pub type Task = Box<dyn for<'w, 'm> FnOnce(&'w mut Worker<'m>) + Send>;

/// A model, and the session and chat that continue from call to call.
pub struct Worker<'m> {
    pub model: &'m LoadedModel,
    session: Option<Session<'m>>,
    chat: Option<Conversation<'m>>,
}

/// Receiver of a text, and the flag that stops its generation.
pub struct Listener {
    pub tell: Sender<Message>,
    pub stop: Arc<AtomicBool>,
}

impl Listener {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    /// Sends text of prompt `at`. If the receiver is gone, generation stops at the next token without an error.
    fn text(&self, at: usize, text: &str) {
        if self.tell.send(Message::Text(at, text.to_owned())).is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
    fn done(&self, at: usize, made: GeneratedText) {
        drop(self.tell.send(Message::Done(at, made)));
    }
    /// Runs `work` and reports its error.
    pub fn guard(&self, work: impl FnOnce() -> Result<()>) {
        if let Err(error) = guarded(work) {
            drop(self.tell.send(Message::Failed(error)));
        }
    }
}

/// Loads a model and runs tasks until no more can arrive.
pub fn serve(opening: Opening, listener: Listener, tasks: Receiver<Task>, ready: impl FnOnce(&LoadedModel)) {
    let load = || {
        let options = Options {
            dtype: opening.dtype,
            context: opening.context,
            dequantise: opening.dequantise,
            activations: opening.activations,
            layers: opening.layers.as_deref(),
            ..Options::default()
        };
        let mut progress = |p: netcl::llm::engine::Loading<'_>| {
            let heard =
                listener.tell.send(Message::Loading(p.name.into(), p.device.into(), p.done, p.total)).is_ok();
            match heard && !listener.stopped() {
                true => Ok(()),
                false => Err(Error::format("loading was canceled")),
            }
        };
        LoadedModel::open_adapted(&opening.path, &opening.adapters, &opening.devices, options, &mut progress)
    };
    let model = match guarded(load) {
        Ok(model) => model,
        Err(error) => return drop(listener.tell.send(Message::Failed(error))),
    };
    ready(&model);
    // Tells the receiver that no more messages will arrive.
    drop(listener);
    let mut worker = Worker { model: &model, session: None, chat: None };
    tasks.into_iter().for_each(|task| task(&mut worker));
}

fn made(g: Generated) -> GeneratedText {
    GeneratedText {
        finish: g.finish.name(),
        prompt_tokens: g.prompt,
        reused_tokens: g.prompt - g.read,
        prompt_seconds: g.prompt_time.as_secs_f64(),
        seconds: g.generation_time.as_secs_f64(),
        text: g.text,
        tokens: g.tokens,
    }
}

impl<'m> Worker<'m> {
    /// Continues one prompt.
    pub fn continue_one(
        &mut self,
        ids: &[u32],
        mut sampler: Sampler,
        request: Request,
        listener: &Listener,
    ) -> Result<()> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.model.session()?,
        };
        let mut text = |text: &str| {
            listener.text(0, text);
            Ok(())
        };
        let mut watch = Watch { text: &mut text, stop: &|| listener.stopped() };
        let generated = session.generate(ids, &mut sampler, request, &mut watch)?;
        listener.done(0, made(generated));
        // A session that failed is not used again.
        self.session = Some(session);
        Ok(())
    }

    /// Answers the last of the given messages.
    pub fn answer(
        &mut self,
        mut messages: Vec<(Role, String)>,
        mut sampler: Sampler,
        request: Request,
        listener: &Listener,
    ) -> Result<()> {
        let Some((Role::User, last)) = messages.pop() else {
            return Err(Error::format(
                "chat: the last message is not the user's, so there is nothing to answer",
            ));
        };
        let mut chat = match self.chat.take() {
            Some(chat) => chat,
            None => Conversation::new(self.model, None)?,
        };
        chat.restore(messages);
        let mut text = |text: &str| {
            listener.text(0, text);
            Ok(())
        };
        let mut watch = Watch { text: &mut text, stop: &|| listener.stopped() };
        let generated = chat.say(&last, &mut sampler, request, &mut watch)?;
        listener.done(0, made(generated));
        self.chat = Some(chat);
        Ok(())
    }

    /// Continues several prompts at the same time.
    pub fn continue_all(&mut self, jobs: Vec<Job>, parallel: usize, listener: &Listener) -> Result<()> {
        let mut options = EngineOptions {
            texts: parallel.min(jobs.len().max(1)),
            queue: jobs.len(),
            ..EngineOptions::default()
        };
        options.tokens = Some(room(&jobs, options, self.model.context()));
        let mut engine = match self.model.engine(options, Speculation::Off) {
            // With a smaller cache, some sequences wait for others.
            Err(e) if e.kind() == ErrorKind::Memory => {
                self.model.engine(EngineOptions { tokens: None, ..options }, Speculation::Off)?
            }
            engine => engine?,
        };
        let mut texts = vec![GeneratedText::default(); jobs.len()];
        let ids = jobs.into_iter().map(|job| engine.add(job)).collect::<Result<Vec<RequestId>>>()?;
        let at = |id: RequestId| ids.iter().position(|own| *own == id).unwrap_or(0);
        while !engine.is_idle() {
            let events = match listener.stopped() {
                true => ids.iter().flat_map(|id| engine.cancel(*id)).collect(),
                false => engine.step()?,
            };
            for event in events {
                let at = at(event.id());
                match event {
                    Event::Token { token, text, .. } => {
                        texts[at].tokens.push(token);
                        texts[at].text.push_str(&text);
                        listener.text(at, &text);
                    }
                    Event::Text { text, .. } => {
                        texts[at].text.push_str(&text);
                        listener.text(at, &text);
                    }
                    Event::Done { finish, usage, .. } => {
                        let mut made = std::mem::take(&mut texts[at]);
                        if matches!(finish, Finish::Token(_)) {
                            made.tokens.truncate(usage.made);
                        }
                        made.finish = finish.name();
                        (made.prompt_tokens, made.reused_tokens) = (usage.prompt, usage.reused);
                        made.prompt_seconds = usage.prompt_time.as_secs_f64();
                        made.seconds = usage.generation_time.as_secs_f64();
                        listener.done(at, made);
                    }
                    Event::Failed { error, .. } => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Computes the hidden states after the last norm for a text's tokens: (T, C) in f32, row-major.
    pub fn features(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let context = self.model.context();
        if ids.is_empty() || ids.len() > context {
            return Err(Error::format(format!(
                "embed: a text has {} tokens, expected 1 to {context} (the context length)",
                ids.len()
            )));
        }
        let decoder = self.model.decoder();
        no_grad(|| {
            let device = decoder.spans().next().map(|span| span.device.clone());
            let device = device.ok_or_else(|| Error::internal("the model does not have a device"))?;
            let ids = Tensor::from_u32(&device, [1, ids.len()], ids)?;
            decoder.features(&ids, Mode::eval())?.to_vec()
        })
    }
}

/// Returns the cache size in tokens for the longest sequences that run at the same time, including partly filled pages.
fn room(jobs: &[Job], options: EngineOptions, context: usize) -> usize {
    let length = |job: &Job| {
        let end = job.request.max.map_or(context, |max| job.prompt.len().saturating_add(max));
        end.saturating_add(MAX_DRAFTED).min(context) + 2 * options.page
    };
    let mut lengths: Vec<usize> = jobs.iter().map(length).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.iter().take(options.texts).sum()
}
