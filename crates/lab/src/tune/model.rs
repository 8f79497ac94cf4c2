//! `netcl tune --model`: times every algorithm on random problems, and fits the constants of the device model to them.

use crate::bench::attention::{self, Case, Shape};
use crate::bench::choice::Choice;
use crate::bench::gemm::{self, Operands};
use crate::out;
use crate::table::Table;
use netcl::device::Settings;
use netcl::kernel::ahead;
use netcl::kernel::tune::model::{DEVICE, Observation, fit};
use netcl::kernel::tune::{Model, Tuning};
use netcl::prelude::*;
use netcl::tensor::ops::Row;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Seed of other problems than the default of `bench --regret`, which therefore shows the quality of the fit on new problems.
const SEED: u64 = 0x6d6f_6465;
/// Duration of a sample in milliseconds, and number of samples per algorithm.
const SAMPLE_MS: f64 = 1.0;
const SAMPLES: usize = 3;
/// Minimum number of problems of a kind, regardless of the budget, and the maximum.
const MIN_PROBLEMS: usize = 6;
const MAX_PROBLEMS: usize = 400;

/// Kind of timed problems.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Products,
    Attention,
}

const KINDS: [(Kind, DType); 4] = [
    (Kind::Products, DType::F32),
    (Kind::Products, DType::Bf16),
    (Kind::Attention, DType::F32),
    (Kind::Attention, DType::Bf16),
];

/// A problem on which every algorithm was timed.
pub(super) struct Timed<'a> {
    /// JSON description.
    pub about: Value,
    /// Microseconds by algorithm.
    pub times: Vec<(&'static str, f64)>,
    /// Returns the table's rows for it on the twin.
    pub explain: Box<dyn Fn() -> Vec<Row> + 'a>,
    pub models: Vec<&'static Model>,
}

impl<'a> Timed<'a> {
    /// Times a problem; `before` are the earlier problems of its kind.
    fn new(
        device: &Device,
        before: &[Self],
        dtype: DType,
        choice: &Choice<'_>,
        explain: Box<dyn Fn() -> Vec<Row> + 'a>,
    ) -> Self {
        let times = choice.times(device, SAMPLE_MS, SAMPLES, &|name| !hopeless(before, name));
        let models = distinct(times.iter().flat_map(|(_, row)| row.models));
        let times = times.into_iter().map(|(us, row)| (row.name, us)).collect();
        let mut about = choice.about.clone();
        about["dtype"] = dtype.to_string().into();
        Self { about, times, explain, models }
    }

    /// Prints one JSON object: the problem, and microseconds by algorithm.
    fn print(&self) -> Result<()> {
        let mut line = self.about.clone();
        line["us"] = self.times.iter().map(|(name, us)| ((*name).to_owned(), json!(us))).collect();
        out::json(&line)
    }

    pub fn estimates(&self) -> Vec<f64> {
        let rows = (self.explain)();
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.name == name);
            row.and_then(|row| row.estimate.as_ref().ok()).map_or(f64::INFINITY, |(us, _)| *us)
        };
        self.times.iter().map(|(name, _)| of(name)).collect()
    }
}

/// Returns whether an algorithm was so far from the fastest each time that its time is better spent on further problems.
fn hopeless(before: &[Timed<'_>], name: &str) -> bool {
    let slower = |timed: &Timed<'_>| {
        let fastest = timed.times.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        timed.times.iter().find(|(known, _)| *known == name).map(|(_, us)| us / fastest)
    };
    let slower: Vec<f64> = before.iter().filter_map(slower).collect();
    slower.len() >= TRIALS && slower.iter().all(|times| *times > FAR)
}

/// Number of problems on which every algorithm is timed, and the slowdown from which an algorithm is left out afterwards.
const TRIALS: usize = 5;
const FAR: f64 = 3.0;

/// Returns the mean and the largest regret, and the factor by which estimates of the fastest algorithm are off, as a geometric mean.
fn quality(all: &[Observation<'_>]) -> [f64; 3] {
    let each: Vec<f64> = all.iter().map(Observation::regret).collect();
    let off = |o: &Observation<'_>| {
        let estimates = (o.estimates)();
        let both = o.measured.iter().zip(&estimates).min_by(|a, b| a.0.total_cmp(b.0));
        both.map_or(0.0, |(measured, estimate)| (estimate / measured).ln().abs())
    };
    let off = all.iter().map(off).sum::<f64>() / all.len().max(1) as f64;
    [each.iter().sum::<f64>() / each.len().max(1) as f64, each.iter().copied().fold(1.0, f64::max), off.exp()]
}

/// Returns the products to time, in their order: `[m, n, k]` and layout.
fn products(device: &Device, dtype: DType) -> Vec<([usize; 3], &'static str)> {
    let most = if device.capabilities().is_cpu() { 3e8 } else { 1e11 };
    gemm::regret::drawn_up_to(most, MAX_PROBLEMS, SEED ^ dtype.code() as u64)
}

/// Returns the attentions to time, each forward and backward, and whether they are causal.
fn attentions(device: &Device, dtype: DType) -> Vec<(Shape, bool)> {
    let most = if device.capabilities().is_cpu() { 1 << 27 } else { 1 << 38 };
    attention::regret::drawn_up_to(most, MAX_PROBLEMS, SEED ^ dtype.code() as u64)
}

/// Times products until `until`.
fn time_products<'a>(
    device: &Device,
    twin: &'a Device,
    dtype: DType,
    until: Instant,
) -> Result<Vec<Timed<'a>>> {
    let mut all = Vec::new();
    for (size, layout) in products(device, dtype) {
        if all.len() >= MIN_PROBLEMS && Instant::now() > until {
            break;
        }
        let product = Operands::random(device, size, layout, dtype)?;
        let explain = move || Operands::explain_on(twin, size, layout, dtype).unwrap_or_default();
        let timed = Timed::new(device, &all, dtype, &product.choice()?, Box::new(explain));
        all.push(timed);
    }
    Ok(all)
}

/// Does the same for attentions and their gradients.
fn time_attentions<'a>(
    device: &Device,
    twin: &'a Device,
    dtype: DType,
    until: Instant,
) -> Result<Vec<Timed<'a>>> {
    let mut all = Vec::new();
    for (shape, causal) in attentions(device, dtype) {
        if all.len() >= 2 * MIN_PROBLEMS && Instant::now() > until {
            break;
        }
        let case = Case::new(device, shape, causal, dtype)?;
        for (pass, choice) in case.choices()?.iter().enumerate() {
            let explain = move || {
                let both = Case::explain_on(twin, shape, causal, dtype);
                both.ok().and_then(|both| both.into_iter().nth(pass)).unwrap_or_default()
            };
            let timed = Timed::new(device, &all, dtype, choice, Box::new(explain));
            all.push(timed);
        }
    }
    Ok(all)
}

/// Launches every algorithm on the first problems of each kind, on a device that computes nothing, to build kernels that most of the other problems
/// use too.
fn foresee(twin: &Device) -> Result<()> {
    let every = |choice: &Choice<'_>| {
        for row in choice.rows.iter().filter(|row| row.estimate.is_ok()) {
            if let Err(e) = (choice.run)(row.name) {
                tracing::debug!("cannot build {} ahead: {e}", row.name);
            }
        }
    };
    for (kind, dtype) in KINDS {
        match kind {
            Kind::Products => {
                for (size, layout) in products(twin, dtype).into_iter().take(FORESEEN) {
                    every(&Operands::random(twin, size, layout, dtype)?.choice()?);
                }
            }
            Kind::Attention => {
                for (shape, causal) in attentions(twin, dtype).into_iter().take(FORESEEN / 2) {
                    Case::new(twin, shape, causal, dtype)?.choices()?.iter().for_each(every);
                }
            }
        }
    }
    Ok(())
}

/// Number of problems of a kind whose kernels are built before anything is timed.
const FORESEEN: usize = 40;

/// Returns a device that stores and computes nothing, whose kernels need no self-test.
pub(super) fn twin(device: &Device) -> Device {
    ahead::twin_with(device, |settings| Settings { trust_kernels: true, ..settings })
}

/// Measures for about `budget`, fits, saves and prints the constants.
///
/// # Errors
/// Errors of launches, and `Io` if the results cannot be saved.
pub fn measure(device: &Device, budget: Duration, json: bool) -> Result<()> {
    let begun = Instant::now();
    // The twin makes estimates from trial constants during the fit; its choices are never run.
    let twin = &twin(device);
    let bar = out::progress(!json, 6, "building kernels");
    ahead::build(device, foresee, &mut |_, _| begun.elapsed() < budget / 2)?;
    bar.inc(1);
    let (timing, mut all) = (Instant::now(), Vec::new());
    let share = budget.saturating_sub(begun.elapsed()) / 5;
    for (i, (kind, dtype)) in KINDS.into_iter().enumerate() {
        bar.set_message(format!("{kind:?} in {dtype}").to_lowercase());
        let until = timing + share * (i as u32 + 1);
        all.extend(match kind {
            Kind::Products => time_products(device, twin, dtype, until),
            Kind::Attention => time_attentions(device, twin, dtype, until),
        }?);
        bar.inc(1);
    }
    bar.set_message("fitting");
    bar.finish_and_clear();
    fitted(device, twin, &all, begun, json)?;
    if json { all.iter().try_for_each(Timed::print) } else { Ok(()) }
}

/// Fits the constants of all models in the measurements, saves them for the device and prints them.
pub(super) fn fitted(
    device: &Device,
    twin: &Device,
    all: &[Timed<'_>],
    begun: Instant,
    json: bool,
) -> Result<()> {
    let models = distinct(all.iter().flat_map(|timed| &timed.models));
    let observations: Vec<Observation<'_>> = all
        .iter()
        .map(|timed| Observation {
            measured: timed.times.iter().map(|(_, us)| *us).collect(),
            estimates: Box::new(|| timed.estimates()),
            models: timed.models.clone(),
        })
        .collect();
    let before = quality(&observations);
    fit(twin, &models, &observations);
    let after = quality(&observations);
    keep(device, twin, &models)?;
    if json {
        out::json(&json!({
            "problems": all.len(), "factor_off": [before[2], after[2]], "regret_mean": [before[0], after[0]],
            "regret_worst": [before[1], after[1]],
        }))?;
    } else {
        out::note(&format!(
            "{} problems in {:.0?}: estimates were off by a factor of {:.2}, now {:.2}; regret of their choices {:.3} on average and {:.2} at \
             worst, now {:.3} and {:.2}",
            all.len(),
            begun.elapsed(),
            before[2],
            after[2],
            before[0],
            before[1],
            after[0],
            after[1]
        ));
    }
    show(device, &models, json)
}

/// Returns each model once, that of the device first, because every estimate uses it.
pub(super) fn distinct<'a>(all: impl Iterator<Item = &'a &'static Model>) -> Vec<&'static Model> {
    let mut models = vec![&DEVICE];
    for model in all {
        if !models.iter().any(|known| known.name == model.name) {
            models.push(model);
        }
    }
    models
}

/// Writes the constants of the device's twin ([`ahead::twin`]) into the device's file, and makes the device use them.
fn keep(device: &Device, twin: &Device, models: &[&'static Model]) -> Result<()> {
    let mut out = BTreeMap::new();
    for model in models {
        let (values, _) = model.known(twin);
        let named = model.constants.iter().zip(values.iter()).map(|(c, v)| (c.name.to_owned(), rounded(*v)));
        out.insert(model.name.to_owned(), named.collect());
        model.assume(device, &values);
    }
    Tuning::of(device).store().put_models(out)
}

/// Rounds to four significant digits, the precision of a fit.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn show(device: &Device, models: &[&'static Model], json: bool) -> Result<()> {
    let mut table = Table::new(&["model", "constant", ">value", "", "what it is"]);
    for model in models {
        let (values, origins) = model.known(device);
        for ((constant, value), origin) in model.constants.iter().zip(values.iter()).zip(origins.iter()) {
            if json {
                out::json(&json!({
                    "model": model.name, "constant": constant.name, "value": value, "origin": origin, "about": constant.about,
                }))?;
            }
            let value = if *value >= 1e4 { format!("{value:.3e}") } else { format!("{value:.3}") };
            table.row([
                model.name.into(),
                constant.name.into(),
                value,
                origin.to_string(),
                constant.about.into(),
            ]);
        }
    }
    if json { Ok(()) } else { table.lines().iter().try_for_each(|line| out::result(line)) }
}

/// Prints the constants in use on the device, and their origin.
///
/// # Errors
/// Errors of the output.
pub fn list(device: &Device, json: bool) -> Result<()> {
    let twin = twin(device);
    let (size, shape) = ([256; 3], attention::regret::drawn_up_to(1 << 20, 1, SEED));
    let mut rows = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        rows.extend(Operands::explain_on(&twin, size, "NN", dtype)?);
        for (shape, causal) in &shape {
            rows.extend(Case::explain_on(&twin, *shape, *causal, dtype)?.into_iter().flatten());
        }
    }
    show(device, &distinct(rows.iter().flat_map(|row| row.models)), json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::device::null::NullDriver;
    use netcl::device::{Architecture, Capabilities, DeviceKind};

    #[test]
    fn kernels_of_every_kind_of_problem_are_foreseen() {
        let mut capabilities = Capabilities::floor("null:0", DeviceKind::Gpu);
        capabilities.vendor = "NVIDIA Corporation".into();
        capabilities.architecture = Architecture::Nvidia { sm: 90 };
        (capabilities.local_mem, capabilities.compute_units, capabilities.max_group) = (227 << 10, 132, 1024);
        (capabilities.global_mem, capabilities.max_alloc) = (64 << 30, 16 << 30);
        let settings = Settings { no_results: true, no_binary_cache: true, ..Settings::default() };
        let device = Device::from_driver(Box::new(NullDriver::new(capabilities)), settings);
        let orders = ahead::orders(&device, foresee).unwrap();
        for kernel in ["matmul_wgmma_sm90", "matmul_tile", "attention_wgmma_sm90", "attention_wgmma_sm90_bwd"]
        {
            let count = orders.iter().filter(|order| order.kernel == kernel).count();
            assert!(count > 1, "{kernel}: {count} of {}", orders.len());
        }
    }
}
