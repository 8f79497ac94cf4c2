//! The models of a server: loaded on request and unloaded when another one needs their memory, least recently used first.

use crate::error::{ApiError, ApiResult};
use crate::metrics::{Metrics, ModelLoad, OfModel};
use crate::model::{Loaded, ModelOptions, ModelSpec, live};
use netcl::device::{Error, ErrorKind, Result};
use netcl::llm::LoadedModel;
use netcl::llm::engine::Options;
use std::sync::{Arc, Mutex, PoisonError};

/// Seconds after which a client retries when other models occupy the memory.
const RETRY: u64 = 5;

/// All models by name.
pub struct Models {
    entries: Vec<Entry>,
    options: ModelOptions,
    /// Maximum bytes of all models on the devices.
    budget: Option<u64>,
    /// Serializes loading: one model at a time.
    loading: tokio::sync::Mutex<()>,
}

/// One model entry.
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
    /// Returns the models, none of them loaded.
    ///
    /// # Errors
    /// `Format` for an empty list, or two models with the same name.
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
                    "two models are named {name}: give one another name with NAME=PATH"
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

    /// Returns the load options.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// Returns their names in the given order.
    pub fn names(&self) -> Vec<&str> {
        self.entries.iter().map(|entry| entry.spec.name.as_str()).collect()
    }

    /// Returns each model's specification, with the loaded model if it is loaded.
    pub fn each(&self) -> impl Iterator<Item = (&ModelSpec, Option<Arc<Loaded>>)> {
        self.entries.iter().map(|entry| (&entry.spec, entry.loaded()))
    }

    /// Returns the metrics of all models.
    pub fn metrics(&self) -> Vec<OfModel> {
        self.entries.iter().map(|entry| entry.metrics.clone()).collect()
    }

    /// Returns the load of the loaded models.
    pub fn busy(&self) -> Vec<ModelLoad> {
        self.each().filter_map(|(_, loaded)| loaded).map(|loaded| loaded.busy()).collect()
    }

    /// Returns true if the first model, which is loaded at startup, is loaded.
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

    /// Checks that a model with this name exists.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub fn check(&self, name: &str) -> ApiResult<()> {
        self.entry(Some(name)).map(drop)
    }

    /// Returns the model with this name, or the first one. Loads it if necessary.
    ///
    /// # Errors
    /// 404 if no model has this name, 503 if there is currently not enough memory, 500 if it cannot be loaded.
    pub async fn get(&self, name: Option<&str>) -> ApiResult<Arc<Loaded>> {
        let entry = self.entry(name)?;
        self.open(entry).await.map_err(|error| match error.kind() {
            ErrorKind::Memory => {
                ApiError { code: Some("out_of_memory"), ..ApiError::unavailable(error.message(), RETRY) }
            }
            _ => ApiError::internal(format!("The model {} cannot be loaded: {error}", entry.spec.name)),
        })
    }

    /// Loads the first model.
    ///
    /// # Errors
    /// Errors from loading it.
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

    /// Returns the reason why a model cannot be loaded in addition to the loaded ones.
    fn over_budget(&self, entry: &Entry) -> Option<Error> {
        let budget = self.budget?;
        let options =
            Options { dtype: self.options.dtype, dequantise: self.options.dequantise, ..Options::default() };
        // If the memory plan fails, opening the model also fails and reports the reason.
        let needs = LoadedModel::needs(&entry.spec.path, options).ok()?;
        // Without a requested context length, use as much of the context as fits.
        let engine = self.options.engine;
        let work = needs.workspace(self.options.context.unwrap_or(1), engine.texts, engine.page);
        let (taken, weights) = (live(&self.options.devices), needs.weights());
        (taken.saturating_add(weights).saturating_add(work) > budget).then(|| {
            Error::memory(format!(
                "the model {} needs {} for its weights and {} of workspace; of the {} that --memory allows for models, {} are in use",
                entry.spec.name,
                netcl::device::human(weights),
                netcl::device::human(work),
                netcl::device::human(budget),
                netcl::device::human(taken)
            ))
        })
    }

    /// Unloads the least recently used idle model. Returns false without one.
    async fn give_one_up(&self) -> bool {
        let idle = self.entries.iter().filter_map(|entry| Some((entry, entry.loaded()?)));
        let idle = idle.filter(|(_, loaded)| loaded.is_idle());
        let Some((entry, loaded)) = idle.min_by_key(|(_, loaded)| loaded.used()) else { return false };
        tracing::info!(model = %entry.spec.name, "unloaded to make room for another model");
        entry.set(None);
        loaded.close().await;
        true
    }

    /// Ends all sequences.
    pub fn stop(&self) {
        self.each().filter_map(|(_, loaded)| loaded).for_each(|loaded| loaded.stop());
    }

    /// Unloads all models.
    pub async fn close(&self) {
        for entry in &self.entries {
            if let Some(loaded) = entry.set(None) {
                loaded.close().await;
            }
        }
    }
}
