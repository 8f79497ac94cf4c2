//! Explanation of a training step's device memory: which buffers are in use at the peak, by purpose, operation and layer.

use super::memory::KeptActivations;
use super::rule::rule;
use super::trainer::Texts;
use super::training::Training;
use crate::optim::Rule;
use crate::run::StepMetrics;
use netcl_device::human;
use netcl_model::params::Params;
use netcl_tensor::graph::{BufferPlan, LiveRange};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Number of groups listed of each kind; the others are summed.
const MAX_LISTED_GROUPS: usize = 8;

/// Purpose of a buffer, in the order of listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Activations: computed by the forward pass and used by the backward pass.
    Activation,
    /// Gradients of parameters, in use from the backward pass to the update.
    ParameterGradient,
    /// Gradients of activations, during the backward pass.
    Gradient,
    /// Partial sums and tables of the optimizer.
    Update,
}

impl Kind {
    fn of(range: &LiveRange, plan: &BufferPlan) -> Self {
        let last = range.commands.and_then(|(_, last)| plan.names.get(last));
        match range.tag {
            "activations" => Self::Activation,
            "optimizer" => Self::Update,
            _ if last.is_some_and(|name| name.starts_with("optimizer")) => Self::ParameterGradient,
            _ => Self::Gradient,
        }
    }
    fn title(self) -> &'static str {
        match self {
            Self::Activation => "activations: results of the forward pass that the backward pass needs",
            Self::ParameterGradient => "gradients of the parameters, kept until the update",
            Self::Gradient => "gradients of activations and workspace of the kernels",
            Self::Update => "workspace of the update",
        }
    }
}

impl Texts {
    /// Describes the memory of parameters, moments, and the buffers of a step at their planned addresses; `None` before a step was captured.
    pub(super) fn explain_memory(&self, training: &Training<StepMetrics>) -> Option<String> {
        let micros = training.passes.sums.is_some().then_some(self.config.grad_accum);
        let text = |plan| explained(plan, self.model.params(), &*rule(&self.config), micros);
        if let Some(plan) = self.slots.plan() {
            let at_a_time = format!(
                "  a pipeline stage holds {} at a time, each with such buffers\n",
                netcl_tensor::counted(self.slots.len() as u64, "batch")
            );
            return Some(text(plan) + &at_a_time);
        }
        Some(text(training.passes.stepper.plan()?) + &self.savings())
    }

    /// Returns why [`explain_memory`](Self::explain_memory) returns nothing: settings of the run, the failure of a capture, or an early end of the
    /// run. `None` if it does return a text.
    pub(super) fn why_memory_is_not_explained(&self, training: &Training<StepMetrics>) -> Option<String> {
        let why = training.passes.stepper.why_no_plan().filter(|_| self.slots.plan().is_none())?;
        let flag =
            "with --detect-anomaly no step is captured, and only the memory of a captured step is planned";
        Some(if training.passes.detect_anomaly { flag.into() } else { why })
    }

    /// Returns a hint about the memory that recomputation would save.
    fn savings(&self) -> String {
        let (c, m) = (&self.config, self.model.config());
        let kept = KeptActivations::of(m, c.dropout > 0.0);
        let rows = c.batch * c.context * self.model.params().dtype().size();
        let mut out = String::from("  compared with keeping everything, --recompute saves about\n");
        for (name, bytes) in [
            ("gelu: the results of the MLPs' activations", rows * kept.activations),
            ("norm: the results of the norms of a layer", rows * kept.norms),
            (
                "block: everything within a layer except its input",
                rows * (kept.all() / m.layers.max(1)).saturating_sub(m.width) * m.layers.saturating_sub(1),
            ),
        ] {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{:>12}  {name}", human(bytes as u64));
        }
        out
    }
}

/// Describes the memory of parameters, moments, and the buffers of a step as `plan` placed them; `micros` is the number of batches per step if their
/// gradients are accumulated.
pub(crate) fn explained(plan: &BufferPlan, params: &Params, rule: &dyn Rule, micros: Option<u32>) -> String {
    let stats = params.device().memory();
    let tagged = |tag: &str| stats.by_tag.iter().find(|(t, _)| *t == tag).map_or(0, |(_, n)| *n);
    let mut out = String::from("memory of training\n");
    let mut line = |bytes: usize, text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:>12}  {text}", human(bytes as u64));
    };
    line(tagged("parameters"), &format!("{} parameters in {}", params.count(), params.dtype()));
    line(
        tagged("optimizer"),
        &format!(
            "state of {}: {}f32 weights if storage is narrower",
            rule.kind().title,
            rule.state().iter().map(|name| format!("{name}, ")).collect::<String>()
        ),
    );
    if let Some(micros) = micros {
        line(
            tagged("gradients"),
            &format!("gradients of the parameters, accumulated over the {micros} batches of a step"),
        );
    }
    line(tagged("inputs"), "input batches");
    let of = if micros.is_some() { "batch" } else { "step" };
    line(
        plan.bytes,
        &format!("buffers of a {of}, in one planned allocation, because most are in use only briefly:"),
    );
    let (_, at) = plan.peak;
    let name = plan.names.get(at).copied().unwrap_or("");
    let peak = format!("peak in use at once, before command {} of {} ({name}):", at + 1, plan.names.len());
    line(plan.peak.0, &peak);
    out.push_str(&at_peak(plan, at));
    out
}

/// Lists the buffers in use at one command, grouped by purpose, operation and layer.
fn at_peak(plan: &BufferPlan, at: usize) -> String {
    let mut groups: BTreeMap<Kind, BTreeMap<&str, (usize, Vec<u32>)>> = BTreeMap::new();
    for range in plan.assignments.iter().map(|u| &u.range) {
        if range.commands.is_none_or(|(first, last)| at < first || at > last) {
            continue;
        }
        let op = if range.op.is_empty() { range.made_by } else { range.op };
        let group = groups.entry(Kind::of(range, plan)).or_default().entry(op).or_default();
        group.0 += range.bytes;
        if range.layer > 0 && !group.1.contains(&range.layer) {
            group.1.push(range.layer);
        }
    }
    let mut out = String::new();
    for (kind, ops) in groups {
        let total: usize = ops.values().map(|(bytes, _)| bytes).sum();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  {:>12}  {}", human(total as u64), kind.title());
        let mut ops: Vec<_> = ops.into_iter().collect();
        ops.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
        for (op, (bytes, layers)) in ops.iter().take(MAX_LISTED_GROUPS) {
            let _ = writeln!(out, "      {:>12}  {op}{}", human(*bytes as u64), of_layers(layers));
        }
        let rest: usize = ops.iter().skip(MAX_LISTED_GROUPS).map(|(_, (bytes, _))| bytes).sum();
        if rest > 0 {
            let _ = writeln!(out, "      {:>12}  others", human(rest as u64));
        }
    }
    out
}

/// Formats ` (layers 1 to 6)`.
fn of_layers(layers: &[u32]) -> String {
    match (layers.iter().min(), layers.iter().max()) {
        (Some(a), Some(b)) if a == b => format!(" (layer {a})"),
        (Some(a), Some(b)) => format!(" (layers {a} to {b})"),
        _ => String::new(),
    }
}
