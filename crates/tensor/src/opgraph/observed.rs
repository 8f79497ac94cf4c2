//! Observes the operations of a block of code that is not a function, for callers that build a graph from them, such as a `with` block in Python.

use super::capture::{ViewKey, by_name};
use crate::ops::call::Value;
use crate::ops::observe;
use crate::{Error, Result, Tensor, no_grad};
use netcl_device::Buffer;
use std::collections::HashMap;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It existed before the block.
    Before,
    /// Index of the operation and of its result.
    Made(usize, usize),
}

/// An operation of the block, with indices of its values.
#[derive(Clone, Debug)]
pub struct ObservedOp {
    /// Name by which it can be called.
    pub name: &'static str,
    /// Inputs.
    pub inputs: Vec<Option<usize>>,
    /// Attributes.
    pub attributes: Vec<(&'static str, Value)>,
    /// Results, with their indices in the results of a call by name.
    pub results: Vec<(usize, usize)>,
}

/// The operations of a block and all their values.
#[derive(Default)]
pub struct Observed {
    /// Operations in the order of their calls.
    pub ops: Vec<ObservedOp>,
    /// Values and their sources.
    pub values: Vec<(Tensor, Source)>,
    keys: HashMap<ViewKey, usize>,
}

impl Observed {
    /// Returns the index of a tensor's value, if an operation of the block uses or makes it.
    pub fn find(&self, tensor: &Tensor) -> Option<usize> {
        self.keys.get(&ViewKey::of(tensor)).copied()
    }

    fn add(&mut self, tensor: &Tensor, source: Source) -> usize {
        self.values.push((tensor.clone(), source));
        self.keys.insert(ViewKey::of(tensor), self.values.len() - 1);
        self.values.len() - 1
    }
}

/// An observation of this thread. It ends when it is dropped.
pub struct Observation {
    first: u64,
    open: Option<observe::Session>,
}

impl Observation {
    /// Starts to observe this thread.
    ///
    /// # Errors
    /// `Unsupported` if this thread is observed already.
    pub fn start() -> Result<Self> {
        if observe::watching() {
            return Err(Error::unsupported("a graph of operations is being recorded in this thread already"));
        }
        Ok(Self { first: Buffer::next_number(), open: Some(observe::Session::start()) })
    }

    /// Ends the observation and returns the operations.
    ///
    /// # Errors
    /// `Unsupported` if an input was made within the block by something that is not an operation with a name. Also if memory was overwritten, or an
    /// operation gives another result when it is called by its name.
    pub fn stop(mut self) -> Result<Observed> {
        let called = self.open.take().map(observe::Session::stop).unwrap_or_default();
        let mut versions = called.iter().flat_map(|call| &call.versions);
        if let Some((t, _)) = versions.find(|(t, version)| version.is_stale_in(t.storage())) {
            return Err(Error::unsupported(format!(
                "a tensor of shape {} is overwritten within the graph: use a model in evaluation mode, and write to tensors before or after",
                t.shape()
            )));
        }
        let mut all = Observed::default();
        for (at, call) in called.iter().enumerate() {
            let mut inputs = Vec::with_capacity(call.inputs.len());
            for x in &call.inputs {
                let Some(x) = x else {
                    inputs.push(None);
                    continue;
                };
                let known = all.find(x);
                if known.is_none() && x.storage().whole().number() >= self.first {
                    return Err(Error::unsupported(format!(
                        "{} uses a tensor of shape {} that was made within the graph by something that is not an operation with a name: make \
                         constants before the graph",
                        call.name,
                        x.shape()
                    )));
                }
                inputs.push(Some(known.unwrap_or_else(|| all.add(x, Source::Before))));
            }
            let taken = no_grad(|| by_name(call))?;
            let results = call.results.iter().zip(taken).enumerate();
            let results = results.map(|(i, (y, of))| (all.add(y, Source::Made(at, i)), of)).collect();
            all.ops.push(ObservedOp {
                name: call.name,
                inputs,
                attributes: call.attributes.clone(),
                results,
            });
        }
        Ok(all)
    }
}
