//! `netcl models`: information about model files.

use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::device::{Capabilities, human, list, sim};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{self, Division, Fit, MemoryPlan, Options};
use netcl::llm::gguf::Gguf;
use netcl::llm::model::adapter::{About, Adapter};
use netcl::llm::model::{Origin, Source};
use netcl::model::decoder::DecoderConfig;
use netcl::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Inspect model files
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print architecture, size, types, tokenizer, and memory on each device; or describe a LoRA adapter
    ///
    /// For a LoRA adapter: rank, alpha and targets.
    Info {
        /// A .gguf file, Hugging Face folder, or run folder; or a LoRA adapter in GGUF or PEFT format
        path: PathBuf,
        /// Tokens of the KV cache to compute memory for [default: the model's context]
        #[arg(long, short, value_name = "TOKENS")]
        ctx_size: Option<usize>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let Action::Info { path, ctx_size, json } = &args.action;
    if Adapter::is_at(path) {
        let about = Adapter::open(path)?.about();
        return if *json { out::json(&adapter_json(path, &about)) } else { print_adapter(&about) };
    }
    let info = Info::of(path, *ctx_size, &devices(context))?;
    if *json { out::json(&info.json()) } else { info.print() }
}

/// Returns every device, with the simulated ones last.
fn devices(context: &Context) -> Vec<Capabilities> {
    let mut all = list(&context.settings).unwrap_or_default();
    all.extend(sim::profiles());
    all
}

/// A model's memory on a device.
struct DeviceMemory {
    id: String,
    name: String,
    available: u64,
    /// The longest context that fits in addition to the weights; `None` if the weights do not fit.
    context: Option<usize>,
    /// Layers that fit with the requested context.
    layers: usize,
}

impl DeviceMemory {
    fn of(device: &Capabilities, needs: &MemoryPlan, tokens: usize) -> Self {
        let places = engine::DevicePlace::of([device]);
        let fit = Fit::new(needs, &places);
        Self {
            id: device.id.clone(),
            name: device.name.clone(),
            available: engine::available(device),
            context: fit.longest(),
            layers: fit.held_by_first(tokens),
        }
    }

    fn fits(&self, tokens: usize) -> bool {
        self.context.is_some_and(|most| most >= tokens)
    }

    fn verdict(&self, tokens: usize, all: usize, needed: u64) -> String {
        let lacking = needed.saturating_sub(self.available);
        let layers = format!("{} of {all} layers", self.layers);
        match self.context {
            Some(most) if most >= tokens => "fits".into(),
            Some(most) => format!("with {most} tokens of context (-c {most}), or {layers}"),
            None if self.layers > 0 => format!("{layers}; all need {} more", human(lacking)),
            None => format!("no: {} more needed", human(lacking)),
        }
    }
}

/// The division of a model between the devices, if no device holds it alone but all together do.
struct Divided {
    ids: Vec<String>,
    layers: Vec<usize>,
}

impl Divided {
    /// Divides the layers; GPUs are filled before CPUs.
    fn of(devices: &[Capabilities], needs: &MemoryPlan, tokens: usize) -> Option<Self> {
        let mut here: Vec<&Capabilities> = devices.iter().filter(|device| !device.simulated).collect();
        here.sort_by_key(|device| device.is_cpu());
        let places = engine::DevicePlace::of(here.iter().copied());
        let Division { layers, .. } = Fit::new(needs, &places).divide(Some(tokens), None).ok()?;
        let used = here.iter().zip(layers).filter(|(_, layers)| *layers > 0);
        let (ids, layers): (Vec<_>, Vec<_>) =
            used.map(|(device, layers)| (device.id.clone(), layers)).unzip();
        (ids.len() > 1).then_some(Self { ids, layers })
    }

    fn summary(&self) -> String {
        let each = self.ids.iter().zip(&self.layers).map(|(id, layers)| format!("{layers} layers on {id}"));
        format!("divided: --device {} has {}", self.ids.join(","), each.collect::<Vec<_>>().join(", "))
    }
}

/// Information about a model.
struct Info {
    path: PathBuf,
    architecture: &'static str,
    family: &'static str,
    config: DecoderConfig,
    /// Number, elements and bytes of the tensors of each format.
    formats: BTreeMap<&'static str, (usize, u64, u64)>,
    tokens: usize,
    /// Memory of the model if loaded without options.
    needs: MemoryPlan,
    tokenizer: Option<String>,
    template: bool,
    name: Option<String>,
    places: Vec<DeviceMemory>,
    divided: Option<Divided>,
}

impl Info {
    fn of(path: &Path, tokens: Option<usize>, devices: &[Capabilities]) -> Result<Self> {
        let source = Source::open(path)?;
        let config = source.config.clone();
        let tokens = tokens.unwrap_or(config.context);
        if tokens == 0 || tokens > config.context {
            return Err(Error::format(format!(
                "-c {tokens}: expected 1 to {}, the context that the model was trained with",
                config.context
            )));
        }
        let mut formats = BTreeMap::new();
        for tensor in &source.placed {
            let (format, count) = (source.format(tensor)?, tensor.dims.iter().product());
            let entry = formats.entry(format.name).or_insert((0, 0, 0));
            *entry = (entry.0 + 1, entry.1 + count as u64, entry.2 + format.size(count).unwrap_or(0) as u64);
        }
        let needs = LoadedModel::needs(path, Options::default())?;
        let (tokenizer, template, name) = match &source.origin {
            Origin::Gguf(file) => of_gguf(file)?,
            Origin::Folder { folder, .. } => of_folder(&folder.path),
        };
        let places: Vec<DeviceMemory> =
            devices.iter().map(|device| DeviceMemory::of(device, &needs, tokens)).collect();
        let real = devices.iter().zip(&places).filter(|(device, _)| !device.simulated);
        let divided = match real.clone().any(|(_, place)| place.fits(tokens)) {
            true => None,
            false => Divided::of(devices, &needs, tokens),
        };
        Ok(Self {
            path: path.into(),
            architecture: source.architecture.name,
            family: config.family.model_type,
            config,
            formats,
            tokens,
            needs,
            tokenizer,
            template,
            name,
            places,
            divided,
        })
    }

    fn needed(&self) -> u64 {
        let needs = &self.needs;
        needs.weights().saturating_add(needs.cache(self.tokens)).saturating_add(needs.work(self.tokens))
    }

    fn json(&self) -> Value {
        let c = &self.config;
        let tensors: Vec<Value> = self
            .formats
            .iter()
            .map(|(name, (tensors, elements, bytes))| {
                json!({ "type": name, "tensors": tensors, "elements": elements, "bytes": bytes })
            })
            .collect();
        let device = |place: &DeviceMemory| {
            json!({
                "id": place.id, "name": place.name, "memory_available": place.available,
                "fits": place.fits(self.tokens), "context_that_fits": place.context, "layers_that_fit": place.layers,
            })
        };
        json!({
            "path": self.path, "name": self.name, "architecture": self.architecture, "family": self.family,
            "parameters": c.parameters(), "layers": c.layers, "width": c.width, "heads": c.attention.heads,
            "kv_heads": c.attention.kv_heads, "head_size": c.attention.size, "vocab": c.vocab, "context": c.context,
            "experts": c.mlp.moe.map(|moe| moe.experts), "experts_used": c.mlp.moe.map(|moe| moe.top_k), "tied": c.tied,
            "tensors": tensors, "tokenizer": self.tokenizer, "chat_template": self.template,
            "memory": {
                "weights": self.needs.weights(), "dtype": self.needs.dtype().to_string(), "cache": self.needs.cache(self.tokens),
                "cache_tokens": self.tokens, "work": self.needs.work(self.tokens), "total": self.needed(),
            },
            "division": self.divided.as_ref().map(|d| json!({ "devices": d.ids, "layers": d.layers })),
            "devices": self.places.iter().map(device).collect::<Vec<_>>(),
        })
    }

    fn print(&self) -> Result<()> {
        let (c, a) = (&self.config, &self.config.attention);
        let mut about = Table::new(&["", ""]);
        let mut row = |name: &str, value: String| about.row([name.to_owned(), value]);
        if let Some(name) = &self.name {
            row("name", name.clone());
        }
        row("architecture", self.architecture.into());
        row("parameters", c.parameters().to_string());
        row("layers", format!("{} of width {}", c.layers, c.width));
        row("heads", format!("{} of {}, {} of keys and values", a.heads, a.size, a.kv_heads));
        if let Some(moe) = &c.mlp.moe {
            row("experts", format!("{}, of which {} per token", moe.experts, moe.top_k));
        }
        row("vocabulary", c.vocab.to_string());
        row("context", format!("{} tokens", c.context));
        row("tokenizer", self.tokenizer.clone().unwrap_or_else(|| "none".into()));
        row("chat template", if self.template { "yes" } else { "no" }.into());
        let memory = format!(
            "{} of weights, {} of cache for {} tokens, {} of workspace; unquantized tensors in {}",
            human(self.needs.weights()),
            human(self.needs.cache(self.tokens)),
            self.tokens,
            human(self.needs.work(self.tokens)),
            self.needs.dtype()
        );
        row("memory", format!("{} ({memory})", human(self.needed())));
        out::result(&about.lines()[1..].join("\n"))?;
        let mut types = Table::new(&["type", ">tensors", ">elements", ">bytes"]);
        for (name, (tensors, elements, bytes)) in &self.formats {
            types.row([(*name).into(), tensors.to_string(), elements.to_string(), human(*bytes)]);
        }
        out::result(&format!("\n{}", types.text()))?;
        let mut places = Table::new(&["device", ">memory", "", "name"]);
        for place in &self.places {
            let verdict = place.verdict(self.tokens, self.config.layers, self.needed());
            places.row([place.id.clone(), human(place.available), verdict, place.name.clone()]);
        }
        out::result(&format!("\n{}", places.text()))?;
        self.divided.as_ref().map_or(Ok(()), |divided| out::result(&divided.summary()))
    }
}

/// Returns tokenizer, whether a chat template exists, and the name.
fn of_gguf(file: &Gguf) -> Result<(Option<String>, bool, Option<String>)> {
    let kind = file.text("tokenizer.ggml.model")?;
    let pattern = file.text("tokenizer.ggml.pre")?.map_or(String::new(), |pre| format!(", {pre}"));
    let count =
        file.texts("tokenizer.ggml.tokens")?.map_or(String::new(), |t| format!(", {} tokens", t.len()));
    let template = file.text("tokenizer.chat_template")?.is_some();
    Ok((
        kind.map(|kind| format!("{kind}{pattern}{count}")),
        template,
        file.text("general.name")?.map(str::to_owned),
    ))
}

fn of_folder(path: &Path) -> (Option<String>, bool, Option<String>) {
    let tokenizer = ["tokenizer.json", "tokenizer.model"].into_iter().find(|name| path.join(name).exists());
    let settings = std::fs::read_to_string(path.join("tokenizer_config.json")).unwrap_or_default();
    let settings: Value = serde_json::from_str(&settings).unwrap_or_default();
    let template = path.join("chat_template.jinja").exists() || !settings["chat_template"].is_null();
    (tokenizer.map(str::to_owned), template, None)
}

/// Formats a range from smallest to largest.
fn range<T: PartialEq + std::fmt::Display>([low, high]: [T; 2]) -> String {
    if low == high { low.to_string() } else { format!("{low} to {high}") }
}

fn adapter_json(path: &Path, about: &About) -> Value {
    let targets = about.targets.iter().map(|(name, target)| {
        json!({ "module": name, "parameters": target.count, "rank": target.ranks, "factor": target.factors })
    });
    json!({
        "path": path, "kind": "LoRA adapter", "format": about.format, "architecture": about.architecture, "base_model": about.base,
        "alpha": about.alpha, "parameters": about.elements, "targets": targets.collect::<Vec<_>>(), "replaced": about.wholes,
    })
}

fn print_adapter(about: &About) -> Result<()> {
    let mut table = Table::new(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("kind", format!("LoRA adapter, {}", about.format));
    if let Some(architecture) = &about.architecture {
        row("architecture", architecture.clone());
    }
    if let Some(base) = &about.base {
        row("made for", base.clone());
    }
    row("alpha", about.alpha.to_string());
    row("parameters", about.elements.to_string());
    if !about.wholes.is_empty() {
        row("replaced", about.wholes.join(", "));
    }
    out::result(&table.lines()[1..].join("\n"))?;
    let mut targets = Table::new(&["target", ">parameters", ">rank", ">factor"]);
    for (name, target) in &about.targets {
        targets.row([name.clone(), target.count.to_string(), range(target.ranks), range(target.factors)]);
    }
    out::result(&format!("\n{}", targets.text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::device::DeviceKind;

    fn gpu(id: &str, global_mem: u64) -> Capabilities {
        let profile = sim::profiles().into_iter().next().unwrap();
        Capabilities { id: id.into(), global_mem, simulated: false, kind: DeviceKind::Gpu, ..profile }
    }

    /// A model that no device holds is divided between them; a model that fits on one device is not.
    #[test]
    fn a_model_is_divided_where_no_device_holds_it() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens/decoder/llama");
        let info = |devices: &[Capabilities]| Info::of(&path, Some(16), devices).unwrap();
        let roomy = info(&[gpu("gpu:0", 1 << 30)]);
        let (needed, all) = (roomy.needed(), roomy.config.layers);
        assert!(roomy.divided.is_none() && roomy.places[0].fits(16) && roomy.places[0].layers == all);
        let narrow = info(&[gpu("gpu:0", needed - 1), gpu("gpu:1", needed - 1)]);
        let json = narrow.json();
        assert_eq!(json["division"], json!({ "devices": ["gpu:0", "gpu:1"], "layers": [all - 1, 1] }));
        assert_eq!(json["devices"][0]["layers_that_fit"], all - 1);
        assert_eq!(json["devices"][0]["fits"], false);
        let told = narrow.divided.as_ref().unwrap().summary();
        assert!(told.starts_with("divided: --device gpu:0,gpu:1 has "), "{told}");
        let verdict = narrow.places[0].verdict(16, all, needed);
        assert!(verdict.contains(&format!("{} of {all} layers", all - 1)), "{verdict}");
        assert!(info(&[gpu("gpu:0", needed - 1), gpu("gpu:1", 1 << 30)]).divided.is_none());
        assert!(info(&[gpu("gpu:0", 1000), gpu("gpu:1", 1000)]).divided.is_none());
    }
}
