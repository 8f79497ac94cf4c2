//! Readers of files. Each reads as much as a program that opens the file would.

use super::seeds;
use netcl::llm::Tokenizer;
use netcl::llm::gguf::Gguf;
use netcl::llm::model::adapter::{Adapter, Adapters};
use netcl::llm::model::{Importance, Source};
use netcl::llm::template::{Chat, Template, Templates, value_of_json};
use netcl::llm::tokenizer::Specials;
use netcl::model::checkpoint::WeightFiles;
use netcl::model::decoder::ModelFolder;
use netcl::tensor::Result;
use std::path::Path;

/// A reader of files.
pub struct Reader {
    pub name: &'static str,
    /// Kind of its seeds in `seeds::all`.
    pub seeds: &'static str,
    /// Files of a seed to damage; one of those that exist is chosen.
    pub files: &'static [&'static str],
    /// Reads a folder.
    pub read: fn(&Path) -> Result<()>,
}

/// All readers.
pub static READERS: &[Reader] = &[
    Reader { name: "gguf", seeds: "gguf", files: &["model.gguf"], read: gguf },
    Reader {
        name: "safetensors",
        seeds: "folder",
        files: &["model.safetensors", "model-00001-of-00003.safetensors", "model.safetensors.index.json"],
        read: folder,
    },
    Reader { name: "config", seeds: "folder", files: &["config.json"], read: folder },
    Reader {
        name: "tokenizer",
        seeds: "tokenizer",
        files: &["tokenizer.json", "tokenizer_config.json"],
        read: tokenizer,
    },
    Reader { name: "template", seeds: "template", files: &["chat_template.jinja"], read: template },
    Reader {
        name: "adapter",
        seeds: "adapter",
        files: &["adapter_config.json", "adapter_model.safetensors", "adapter.gguf"],
        read: adapter,
    },
    Reader { name: "imatrix", seeds: "imatrix", files: &["imatrix.dat", "imatrix.gguf"], read: imatrix },
];

fn adapter(folder: &Path) -> Result<()> {
    let packed = folder.join("adapter.gguf");
    let path = if packed.exists() { &packed } else { folder };
    let adapter = named(path, Adapter::open(path))?;
    let _ = (adapter.about(), Adapter::is_at(path));
    // The model that it belongs to. A damaged one may fit another model.
    let model = ModelFolder::open(&seeds::decoder("llama"))?;
    let adapters = named(path, Adapters::new(&model.config, &[(adapter, 0.5)]))?;
    for shape in adapters.config(&std::collections::BTreeSet::new()).shapes() {
        let mut values = vec![0.0; shape.count()];
        adapters.merge(&shape, &mut values);
        let _ = (adapters.combined_product(&shape), adapters.touches(&shape), adapters.replaces(&shape));
    }
    Ok(())
}

const TEXTS: [&str; 4] = [
    "",
    "Once upon a time, 123 cats' <s> ate\n\n\tfish.",
    "é\u{301}中文 👨‍👩‍👧 \u{0}\u{feff}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab  ",
];

/// Encodes and decodes texts. The result is not compared, because a damaged vocabulary may change it.
fn encode(tokenizer: &Tokenizer) -> Result<()> {
    for text in TEXTS {
        for specials in [Specials::Plain, Specials::Parsed] {
            let ids = tokenizer.encode_prompt(text, specials)?;
            tokenizer.decode(&ids)?;
            let mut stream = tokenizer.stream();
            for id in ids {
                stream.push(id)?;
            }
        }
    }
    for id in [0, 1, u32::try_from(tokenizer.vocab_size()).unwrap_or(0), u32::MAX] {
        let _ = (tokenizer.kind(id), tokenizer.piece(id).is_ok());
    }
    Ok(())
}

fn render(template: &Template) -> Result<()> {
    let messages = [
        r#"[{"role":"user","content":"Hi"}]"#,
        r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},{"role":"user","content":"Bye"}]"#,
    ];
    let mut first: Option<Result<()>> = None;
    for messages in messages {
        let tools = r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#;
        let chat = Chat {
            messages: value_of_json(messages)?,
            tools: first.is_some().then(|| value_of_json(tools)).transpose()?,
            answer: true,
            bos: "<s>".into(),
            eos: "</s>".into(),
            now: Some(std::time::Duration::from_secs(1_700_000_000)),
            ..Chat::default()
        };
        let rendered = template.render(&chat).map(drop);
        first = Some(first.unwrap_or(rendered));
    }
    first.unwrap_or(Ok(()))
}

/// Adds the file's path to a reader's error.
fn named<T>(path: &Path, read: Result<T>) -> Result<T> {
    if let Err(error) = &read {
        let name = path.file_name().unwrap().to_string_lossy();
        assert!(error.message().contains(&*name), "the error does not name {name}: {error}");
    }
    read
}

fn gguf(folder: &Path) -> Result<()> {
    let path = folder.join("model.gguf");
    let file = named(&path, Gguf::open(&path))?;
    for key in file.keys() {
        let name = key?.0.to_owned();
        let _ = (file.size(&name), file.number(&name), file.flag(&name), file.text(&name));
        let _ = (file.texts(&name), file.numbers(&name), file.wholes(&name));
    }
    let tokenizer = Tokenizer::from_gguf(&file).and_then(|tokenizer| encode(&tokenizer));
    let templates = Templates::from_gguf(&file).and_then(|all| match all.names().next() {
        Some(_) => render(all.get(None, false)?),
        None => Ok(()),
    });
    let source = named(&path, Source::open(&path))?;
    for placed in &source.placed {
        source.read(placed)?;
    }
    tokenizer.and(templates)
}

fn folder(folder: &Path) -> Result<()> {
    let files = named(folder, WeightFiles::open(folder))?;
    for tensor in files.tensors() {
        let _ = (tensor.check_float(), tensor.bytes.len());
    }
    let model = named(folder, ModelFolder::open(folder))?;
    model.config.matched(&files.tensors())?;
    let _ = (model.config.parameters(), model.config.shapes().take(1000).count());
    let source = Source::open(folder)?;
    source.placed.iter().try_for_each(|placed| source.read(placed).map(drop))
}

fn tokenizer(folder: &Path) -> Result<()> {
    encode(&named(folder, Tokenizer::from_folder(folder))?)
}

fn template(folder: &Path) -> Result<()> {
    render(Templates::from_folder(folder)?.get(None, false)?)
}

fn imatrix(folder: &Path) -> Result<()> {
    let old = folder.join("imatrix.dat");
    let path = if old.exists() { old } else { folder.join("imatrix.gguf") };
    named(&path, Importance::open(&path)).map(drop)
}
