//! `netcl train --dry-run`: describes a run without starting it.

use crate::context::Context;
use crate::out;
use crate::reading::ReadingBar;
use crate::table::Table;
use netcl::device::human;
use netcl::model::decoder::DecoderConfig;
use netcl::prelude::*;
use netcl::train::config::TrainConfig;
use netcl::train::{MemoryPlan, fitted, open_inputs};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The description of a run.
struct Plan {
    config: TrainConfig,
    vocab: usize,
    /// Training and validation tokens.
    tokens: [usize; 2],
    memory: MemoryPlan,
    device: String,
    available: u64,
}

/// Prints the settings, parameters, memory and steps of the run that `config` describes. Reads the data, and writes nothing.
///
/// # Errors
/// The errors that a run would return before its first step: invalid settings or data, or too little memory, which is reported after the plan.
pub fn show(config: &TrainConfig, device: &Device, context: &Context, json: bool) -> Result<()> {
    config.validate()?;
    let mut reading = ReadingBar::new(context);
    // Without the token cache, because nothing is written.
    let inputs = open_inputs(config, None, None, &mut |p| reading.show(p))?;
    drop(reading);
    let tokens = inputs.tokens();
    let config = &inputs.settled(config)?;
    let capabilities = device.capabilities();
    let shape = match &config.init {
        Some(dir) => DecoderConfig::of_folder(Path::new(dir))?,
        None => config.decoder(inputs.vocab)?,
    };
    let (config, fitting) = fitted(device, config, &shape)?;
    let config = &config;
    let plan = Plan {
        config: config.clone(),
        vocab: inputs.vocab,
        tokens,
        memory: MemoryPlan::of(config, &shape, capabilities),
        device: format!("{} ({})", capabilities.id, capabilities.name),
        available: capabilities.global_mem,
    };
    if json {
        out::json(&plan.json()?)?
    } else {
        plan.print()?;
        fitting.iter().for_each(|line| out::note(line));
    }
    plan.memory.check(device)
}

impl Plan {
    /// Returns the number of times that each token is used.
    fn epochs(&self) -> f64 {
        self.config.steps as f64 * self.config.tokens_a_step() as f64 / self.tokens[0].max(1) as f64
    }

    fn json(&self) -> Result<Value> {
        let config = serde_json::to_value(&self.config);
        let rows = self.memory.rows();
        let memory: Map<String, Value> =
            rows.iter().map(|(name, bytes)| (name.replace(' ', "_"), json!(bytes))).collect();
        Ok(json!({
            "config": config.map_err(|e| Error::internal(format!("cannot convert the settings to JSON: {e}")))?,
            "device": self.device,
            "vocab": self.vocab,
            "parameters": self.memory.count,
            "memory": memory,
            "memory_device": self.memory.device(),
            "memory_available": self.available,
            "training_tokens": self.tokens[0],
            "validation_tokens": self.tokens[1],
            "steps": self.config.steps,
            "tokens_per_step": self.config.tokens_a_step(),
            "epochs": self.epochs(),
        }))
    }

    fn print(&self) -> Result<()> {
        out::result(self.config.to_toml()?.trim_end())?;
        let c = &self.config;
        let mut about = Table::new(&["", ""]);
        let mut row = |name: &str, value: String| about.row([name.to_owned(), value]);
        row("device", self.device.clone());
        row("vocabulary", self.vocab.to_string());
        row("parameters", self.memory.count.to_string());
        row("training tokens", self.tokens[0].to_string());
        row("validation tokens", self.tokens[1].to_string());
        let step = format!("{} sequences of {} tokens, {} times", c.batch, c.context, c.grad_accum);
        row("tokens per step", format!("{} ({step})", c.tokens_a_step()));
        row(
            "steps",
            format!("{}, {} of them warm-up; every token {:.2} times", c.steps, c.warmup, self.epochs()),
        );
        for (name, bytes) in self.memory.rows() {
            row(&format!("memory, {name}"), human(bytes));
        }
        row(
            "memory of the device",
            format!("about {} of {}", human(self.memory.device()), human(self.available)),
        );
        out::result(&format!("\n{}", about.lines()[1..].join("\n")))?;
        out::note("nothing was written; start this run by leaving out --dry-run");
        Ok(())
    }
}
