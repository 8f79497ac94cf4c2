//! Tests of the server over loopback, with a tiny model of random weights whose tokens are bytes.

mod api;
mod bounds;
mod client;
mod failures;
mod faults;
mod schemas;
mod times;
mod tools;

use crate::app::{App, ServeOptions};
use crate::checker::Checker;
use crate::listen;
use crate::metrics::Metrics;
use crate::model::{ModelOptions, ModelSpec};
use crate::registry::Models;
use client::Client;
use netcl::device::Device;
use netcl::llm::engine::EngineOptions;
use netcl::tensor::random;
use netcl::tensor::suite::test_device;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const TEMPLATE: &str =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>";
/// A template for a family that calls functions.
pub const TAGGED: &str = "{% if tools %}<|system|>{% for t in tools %}{{ t.function.name }}{% endfor %} <tool_call>{\"name\": …}</tool_call><|end|>{% endif %}\
    {% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>";
const SPECIALS: [&str; 4] = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"];
const WIDTH: usize = 32;
const LAYERS: usize = 2;
pub const CONTEXT: usize = 256;

/// Returns the bytes in GPT-2's alphabet.
fn alphabet() -> Vec<char> {
    let plain = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    let letter = |b: u32| match plain(b) {
        true => char::from_u32(b).unwrap(),
        false => {
            next += 1;
            char::from_u32(next - 1).unwrap()
        }
    };
    (0..256).map(letter).collect()
}

fn tokenizer() -> Value {
    let vocab: Map<String, Value> =
        alphabet().into_iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let added: Vec<Value> = SPECIALS
        .iter()
        .enumerate()
        .map(|(at, name)| {
            json!({ "id": 256 + at, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
        })
        .collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    })
}

/// Returns weights of a Llama with these sizes: numbers with mean 0, or ones for norms.
fn weights(vocab: usize) -> Vec<u8> {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![vocab, WIDTH]),
        ("model.norm.weight".into(), vec![WIDTH]),
        ("lm_head.weight".into(), vec![vocab, WIDTH]),
    ];
    for layer in 0..LAYERS {
        for (name, dims) in [
            ("input_layernorm", vec![WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
            ("self_attn.q_proj", vec![WIDTH, WIDTH]),
            ("self_attn.k_proj", vec![WIDTH / 2, WIDTH]),
            ("self_attn.v_proj", vec![WIDTH / 2, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, WIDTH]),
            ("mlp.gate_proj", vec![2 * WIDTH, WIDTH]),
            ("mlp.up_proj", vec![2 * WIDTH, WIDTH]),
            ("mlp.down_proj", vec![WIDTH, 2 * WIDTH]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), dims));
        }
    }
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (which, (name, dims)) in shapes.into_iter().enumerate() {
        let start = data.len();
        for n in 0..dims.iter().product::<usize>() {
            let uniform = f64::from(random::draw(7, which as u64, n as u64)[0]) / f64::from(u32::MAX) - 0.5;
            let value = if dims.len() == 1 { 1.0 } else { 0.9 * uniform };
            data.extend_from_slice(&(value as f32).to_le_bytes());
        }
        header.insert(name, json!({ "dtype": "F32", "shape": dims, "data_offsets": [start, data.len()] }));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Writes a folder with the model in the Hugging Face layout.
pub fn write_model(folder: &Path) {
    let vocab = 256 + SPECIALS.len();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "eos_token_id": 256, "dtype": "float32",
    });
    let more = json!({ "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast" });
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("config.json", config.to_string().as_bytes());
    write("tokenizer.json", tokenizer().to_string().as_bytes());
    write("tokenizer_config.json", more.to_string().as_bytes());
    write("chat_template.jinja", TEMPLATE.as_bytes());
    write("model.safetensors", &weights(vocab));
}

/// A running server; dropping it stops it.
pub struct Server {
    pub client: Client,
    pub app: Arc<App>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    pub folder: tempfile::TempDir,
}

/// Options that a test changes.
pub struct Setup {
    pub options: ServeOptions,
    pub parallel: usize,
    pub queue: usize,
    pub budget: Option<u64>,
    pub names: Vec<&'static str>,
    pub device: Device,
    pub template: &'static str,
    pub profile: Option<usize>,
    pub checker: Option<Checker>,
}

impl Default for Setup {
    fn default() -> Self {
        let options = ServeOptions { port: 0, ..ServeOptions::default() };
        let device = test_device().unwrap();
        Self {
            options,
            parallel: 4,
            queue: 16,
            budget: None,
            names: vec!["tiny"],
            device,
            template: TEMPLATE,
            profile: None,
            checker: Some(schemas::checker()),
        }
    }
}

impl Server {
    pub fn new() -> Self {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        std::fs::write(folder.path().join("chat_template.jinja"), setup.template).unwrap();
        let spec = |name: &&str| ModelSpec {
            name: (*name).into(),
            path: folder.path().into(),
            adapters: Vec::new(),
        };
        let specs = setup.names.iter().map(spec).collect();
        let models = ModelOptions {
            devices: vec![setup.device],
            dtype: None,
            context: None,
            dequantise: false,
            activations: None,
            layers: None,
            engine: EngineOptions { texts: setup.parallel, ..EngineOptions::default() },
            queue: setup.queue,
            profile: setup.profile,
            checker: setup.checker,
        };
        let metrics = Metrics::new();
        let models = Models::new(specs, models, setup.budget, &metrics).unwrap();
        let mut app = App::new(models, metrics, setup.options);
        let (tell, ready) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            crate::runtime().unwrap().block_on(async move {
                let (listener, address) = listen::bind(&app).await.unwrap();
                app.address = Some(address);
                let app = Arc::new(app);
                app.models.open_first().await.unwrap();
                tell.send((Arc::clone(&app), address)).unwrap();
                listen::answer(&app, listener, async {
                    let _ = stopped.await;
                })
                .await;
                app.models.close().await;
            });
        });
        let (app, address) = ready.recv().unwrap();
        Self { client: Client::new(address), app, stop: Some(stop), thread: Some(thread), folder }
    }

    /// Waits until `done` returns true; fails after a while.
    pub fn wait(&self, what: &str, done: impl Fn(&Value) -> bool) {
        for _ in 0..600 {
            if done(&self.client.get("/device/data").json()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{what} did not come: {}", self.client.get("/device/data").json());
    }

    /// Asks it to stop without waiting.
    pub fn ask_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until it has stopped.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ask_to_stop();
        if !std::thread::panicking() {
            self.join();
        }
    }
}
