//! The models of a server: loaded when they are asked for, and given up, those that were used longest ago first, when another one needs their memory.

use crate::error::{ApiError, ApiResult};
use crate::metrics::{Busy, Metrics, OfModel};
use crate::model::{Loaded, ModelOptions, ModelSpec, live};
use netcl::device::{Error, ErrorKind, Result};
use netcl::llm::LoadedModel;
use netcl::llm::engine::Options;
use std::sync::{Arc, Mutex, PoisonError};

/// Seconds after which a client tries again for memory that others use.
const RETRY: u64 = 5;

/// All models by name.
pub struct Models {
    entries: Vec<Entry>,
    options: ModelOptions,
    /// Bytes that models may take on the devices together.
    budget: Option<u64>,
    /// One model is loaded at a time.
    loading: tokio::sync::Mutex<()>,
}

/// One of them.
struct Entry {
    spec: ModelSpec,
    metrics: OfModel,
    loaded: Mutex<Option<Arc<Loaded>>>,
}

impl Entry {
    fn loaded(&self) -> Option<Arc<Loaded>> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().filter(|loaded| loaded.is_alive()).cloned()
    }
    fn set(&self, loaded: Option<Arc<Loaded>>) -> Option<Arc<Loaded>> {
        std::mem::replace(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner), loaded)
    }
}

impl Models {
    /// None is loaded yet.
    ///
    /// # Errors
    /// `Format` for no model, or two of the same name.
    pub fn new(
        specs: Vec<ModelSpec>,
        options: ModelOptions,
        budget: Option<u64>,
        metrics: &Metrics,
    ) -> Result<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        for spec in specs {
            if entries.iter().any(|entry| entry.spec.name == spec.name) {
                let name = &spec.name;
                return Err(Error::format(format!(
                    "two models are called {name}: give one another name, NAME=PATH"
                )));
            }
            let metrics = metrics.of(&spec.name);
            entries.push(Entry { spec, metrics, loaded: Mutex::default() });
        }
        match entries.is_empty() {
            true => Err(Error::format("a server needs at least one model")),
            false => Ok(Self { entries, options, budget, loading: tokio::sync::Mutex::default() }),
        }
    }

    /// How models are loaded.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// Their names, in the order that they were given in.
    pub fn names(&self) -> Vec<&str> {
        self.entries.iter().map(|entry| entry.spec.name.as_str()).collect()
    }

    /// Each by its name, with the loaded model if it is.
    pub fn each(&self) -> impl Iterator<Item = (&ModelSpec, Option<Arc<Loaded>>)> {
        self.entries.iter().map(|entry| (&entry.spec, entry.loaded()))
    }

    /// The counters of all.
    pub fn metrics(&self) -> Vec<OfModel> {
        self.entries.iter().map(|entry| entry.metrics.clone()).collect()
    }

    /// How busy those are that are loaded.
    pub fn busy(&self) -> Vec<Busy> {
        self.each().filter_map(|(_, loaded)| loaded).map(|loaded| loaded.busy()).collect()
    }

    /// Whether the first model, which is loaded with the server, is there.
    pub fn is_ready(&self) -> bool {
        self.each().any(|(_, loaded)| loaded.is_some())
    }

    fn entry(&self, name: Option<&str>) -> ApiResult<&Entry> {
        let found = match name {
            None => self.entries.first(),
            Some(name) => self.entries.iter().find(|entry| entry.spec.name == name),
        };
        found.ok_or_else(|| ApiError::no_model(name.unwrap_or_default(), &self.names()))
    }

    /// Whether there is a model of that name.
    ///
    /// # Errors
    /// 404 if there is none.
    pub fn check(&self, name: &str) -> ApiResult<()> {
        self.entry(Some(name)).map(drop)
    }

    /// The model of that name, or the first one, which is loaded if it is not.
    ///
    /// # Errors
    /// 404 if there is none of that name, 503 if there is no memory for it now, 500 if it cannot be loaded.
    pub async fn get(&self, name: Option<&str>) -> ApiResult<Arc<Loaded>> {
        let entry = self.entry(name)?;
        self.open(entry).await.map_err(|error| match error.kind() {
            ErrorKind::Memory => {
                ApiError { code: Some("out_of_memory"), ..ApiError::unavailable(error.message(), RETRY) }
            }
            _ => ApiError::internal(format!("The model {} cannot be loaded: {error}", entry.spec.name)),
        })
    }

    /// Loads the first one.
    ///
    /// # Errors
    /// Those of loading it.
    pub async fn open_first(&self) -> Result<()> {
        match self.entries.first() {
            Some(entry) => self.open(entry).await.map(drop),
            None => Ok(()),
        }
    }

    async fn open(&self, entry: &Entry) -> Result<Arc<Loaded>> {
        if let Some(loaded) = entry.loaded() {
            loaded.touch();
            return Ok(loaded);
        }
        let _alone = self.loading.lock().await;
        if let Some(loaded) = entry.loaded() {
            loaded.touch();
            return Ok(loaded);
        }
        if let Some(ended) = entry.set(None) {
            ended.close().await;
        }
        loop {
            let opened = match self.over_budget(entry) {
                Some(error) => Err(error),
                None => Loaded::open(&entry.spec, &self.options, self.budget, entry.metrics.clone()).await,
            };
            match opened {
                Ok(loaded) => {
                    let loaded = Arc::new(loaded);
                    entry.set(Some(Arc::clone(&loaded)));
                    return Ok(loaded);
                }
                Err(error) if error.kind() == ErrorKind::Memory => {
                    if !self.give_one_up().await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Why a model may not be loaded beside those that are.
    fn over_budget(&self, entry: &Entry) -> Option<Error> {
        let budget = self.budget?;
        let options =
            Options { dtype: self.options.dtype, dequantise: self.options.dequantise, ..Options::default() };
        // Without its needs it cannot be opened either, which says why.
        let needs = LoadedModel::needs(&entry.spec.path, options).ok()?;
        // Of the context as much as fits, where none was asked for.
        let engine = self.options.engine;
        let work = needs.workspace(self.options.context.unwrap_or(1), engine.texts, engine.page);
        let (taken, weights) = (live(&self.options.devices), needs.weights());
        (taken.saturating_add(weights).saturating_add(work) > budget).then(|| {
            Error::memory(format!(
                "the model {} needs {} for its weights and {} to work with; of the {} that --memory lets models take, {} are taken",
                entry.spec.name,
                netcl::device::human(weights),
                netcl::device::human(work),
                netcl::device::human(budget),
                netcl::device::human(taken)
            ))
        })
    }

    /// Gives up the model that was used longest ago, of those that nobody waits for. False if there is none.
    async fn give_one_up(&self) -> bool {
        let idle = self.entries.iter().filter_map(|entry| Some((entry, entry.loaded()?)));
        let idle = idle.filter(|(_, loaded)| loaded.is_idle());
        let Some((entry, loaded)) = idle.min_by_key(|(_, loaded)| loaded.used()) else { return false };
        tracing::info!(model = %entry.spec.name, "given up for another model");
        entry.set(None);
        loaded.close().await;
        true
    }

    /// Ends all texts.
    pub fn stop(&self) {
        self.each().filter_map(|(_, loaded)| loaded).for_each(|loaded| loaded.stop());
    }

    /// Gives all models up.
    pub async fn close(&self) {
        for entry in &self.entries {
            if let Some(loaded) = entry.set(None) {
                loaded.close().await;
            }
        }
    }
}
