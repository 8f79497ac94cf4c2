use super::*;
use crate::sampler::{Finish, Sampler, StopTexts};
use crate::tokenizer::Specials;
use netcl_tensor::quant::Activations;
use netcl_test_data::{needs_data, test_data};
use serde_json::Value;

/// Selects float products, which the references use.
pub(super) const EXACT: Options<'_> = Options {
    dtype: None,
    context: None,
    dequantise: false,
    activations: Some(Activations::Float),
    training: false,
    layers: None,
};

/// Returns the path of test data.
pub(super) fn shared(path: &str) -> PathBuf {
    test_data!().join(path)
}

pub(super) fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/decoder").join(name)
}

pub(super) fn device() -> Device {
    netcl_tensor::suite::quickly_built().unwrap()
}

pub(super) fn open(path: &Path, device: &Device, options: Options) -> Result<LoadedModel> {
    LoadedModel::open(path, device, options, &mut |_| Ok(()))
}

pub(super) fn in_f32(path: &Path, device: &Device) -> LoadedModel {
    open(path, device, Options { dtype: Some(DType::F32), context: None, ..EXACT }).unwrap()
}

/// A matrix of f64 or f32 in NumPy's format.
pub(super) fn npy(path: &Path) -> Vec<Vec<f64>> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + length]).unwrap();
    let shape = header.split("'shape': (").nth(1).unwrap().split(')').next().unwrap();
    let dims: Vec<usize> = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let data = &bytes[10 + length..];
    let values: Vec<f64> = if header.contains("<f8") {
        data.chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
    } else {
        assert!(header.contains("<f4"), "{header}");
        data.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect()
    };
    assert_eq!(values.len(), dims[0] * dims[1]);
    values.chunks(dims[1]).map(<[f64]>::to_vec).collect()
}

pub(super) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The largest difference, relative to the largest value.
pub(super) fn off(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let most = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0f64, f64::max) / most
}

pub(super) fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a))).unwrap() as u32
}

/// Returns the files of a model of the shared data that have references: GGUF files by type, and its folder.
pub(super) fn files(name: &str) -> Vec<(PathBuf, String)> {
    let models = shared(&format!("models/{name}"));
    let refs = shared(&format!("refs/{name}"));
    let mut all = Vec::new();
    for entry in std::fs::read_dir(models.join("gguf")).unwrap().flatten() {
        let stem = entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
        let format = stem.strip_prefix(&format!("{name}-")).unwrap().to_owned();
        if refs.join(format!("{format}.exact.npy")).exists() {
            all.push((entry.path(), format));
        } else {
            println!("skipped: no reference for {format} of {name}");
        }
    }
    if models.join("hf/model.safetensors").exists() {
        all.push((models.join("hf"), "f32".into()));
    }
    all.sort();
    all
}

pub(super) fn greedy(model: &LoadedModel, prompt: &[u32], request: Request) -> (Generated, String) {
    let mut sampler = Sampler::new(Sampling::greedy(), model.tokenizer().unwrap()).unwrap();
    let mut text = String::new();
    let mut show = |piece: &str| {
        text.push_str(piece);
        Ok(())
    };
    let mut watch = Watch { text: &mut show, stop: &|| false };
    let made = model.session().unwrap().generate(prompt, &mut sampler, request, &mut watch).unwrap();
    (made, text)
}

#[needs_data("models/stories260K", "refs/stories260K")]
#[test]
fn the_published_story_is_told() {
    let golden = shared("refs/stories260K/karpathy_golden.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let model = in_f32(&shared("models/stories260K/gguf/stories260K-f32.gguf"), &device());
    assert_eq!(model.beginning().unwrap(), ids(&golden["prompt_ids"]));
    let expected = ids(&golden["greedy_ids"]);
    let request = Request { max: Some(expected.len()), ignore_ends: true, ..Request::default() };
    let (made, text) = greedy(&model, &ids(&golden["prompt_ids"]), request);
    assert_eq!(made.tokens, expected);
    assert_eq!((made.finish, made.prompt, made.read), (Finish::Length, 1, 1));
    assert!(text == made.text && text.trim_start().starts_with("Once upon a time"), "{text}");
    // The same, ended by a stop string, which is not shown, not even partly.
    let stop = &text[40..52];
    let first = text.find(stop).unwrap();
    let stops = StopTexts::new(vec![stop.to_owned()]).unwrap();
    let request = Request { max: Some(200), stops, ..Request::default() };
    let (made, shown) = greedy(&model, &[1], request);
    assert_eq!((shown.as_str(), made.finish), (&text[..first], Finish::Text(stop.to_owned())));
}

#[needs_data("models/stories260K")]
#[test]
fn a_long_prompt_is_read_in_chunks_and_a_longer_one_refused() {
    let path = shared("models/stories260K/gguf/stories260K-f32.gguf");
    let device = device();
    let model = in_f32(&path, &device);
    let long: Vec<u32> = (0..512).map(|i| 1 + i * 7 % 500).collect();
    let request = |max| Request { max: Some(max), ignore_ends: true, ..Request::default() };
    // Exactly the last token that fits in the context.
    let (made, _) = greedy(&model, &long, request(9));
    assert_eq!((made.tokens.len(), made.finish), (1, Finish::Context));
    let (made, _) = greedy(&model, &long[..510], request(9));
    assert_eq!((made.tokens.len(), made.finish), (3, Finish::Context));
    let slid = greedy(&model, &long, Request { slide: true, ..request(9) }).0;
    assert_eq!((slid.tokens.len(), slid.finish), (9, Finish::Length));
    // Open the same model with a shorter context.
    let short =
        open(&path, &device, Options { dtype: Some(DType::F32), context: Some(100), ..EXACT }).unwrap();
    assert_eq!((short.context(), short.trained_context()), (100, 512));
    let (a, b) = (greedy(&short, &long[..90], request(10)).0, greedy(&model, &long[..90], request(10)).0);
    assert_eq!(a.tokens, b.tokens);
    let mut sampler = Sampler::new(Sampling::greedy(), short.tokenizer().unwrap()).unwrap();
    let mut say = |prompt: &[u32]| {
        let mut watch = Watch { text: &mut |_| Ok(()), stop: &|| false };
        let made = short.session().unwrap().generate(prompt, &mut sampler, request(1), &mut watch);
        made.map(drop).unwrap_err().message().to_owned()
    };
    let told = say(&long[..101]);
    assert!(
        told.contains("101 tokens") && told.contains("context has 100") && told.contains("up to 512"),
        "{told}"
    );
    assert!(say(&[]).contains("the prompt is empty"));
    assert!(say(&[512]).contains("token 512"));
    let stopped = {
        let mut watch = Watch { text: &mut |_| Ok(()), stop: &|| true };
        short.session().unwrap().generate(&[1], &mut sampler, request(5), &mut watch).unwrap()
    };
    assert_eq!((stopped.finish, stopped.tokens.len()), (Finish::Stopped, 0));
}

/// Tokens generated ahead on the device and one by one on the host are the same, for any end of the text, and so are later ones.
#[needs_data("models/stories260K")]
#[test]
fn a_text_does_not_depend_on_who_draws_it() {
    let path = shared("models/stories260K/gguf/stories260K-q8_0.gguf");
    let model = in_f32(&path, &device());
    let tokenizer = model.tokenizer().unwrap();
    let usual = Sampling { seed: 5, ..Sampling::default() };
    let warm =
        Sampling { temperature: 1.4, top_k: 0, top_p: 0.9, min_p: 0.0, seed: 6, ..Sampling::default() };
    let biased = Sampling { logit_bias: vec![(410, f32::NEG_INFINITY), (300, 2.0)], ..usual.clone() };
    for sampling in [Sampling::greedy(), usual, warm, biased] {
        // Adding twice to a logit is supported only on the host.
        let mut of_host = sampling.clone();
        of_host.logit_bias.extend([(0, 0.0), (0, 0.0)]);
        let [mut here, mut there] = [sampling, of_host].map(|s| Sampler::new(s, tokenizer).unwrap());
        let [mut a, mut b] = [model.session().unwrap(), model.session().unwrap()];
        assert!(a.chooser(&here).unwrap().is_some() && b.chooser(&there).unwrap().is_none());
        let mut prompt = vec![1];
        let requests = [
            Request { max: Some(60), ignore_ends: true, ..Request::default() },
            Request {
                max: Some(90),
                stops: StopTexts::new(vec![" was".into()]).unwrap(),
                ..Request::default()
            },
            Request { max: None, ignore_ends: true, ..Request::default() },
            Request { max: Some(40), ignore_ends: true, slide: true, ..Request::default() },
        ];
        for request in requests {
            let mut made = Vec::new();
            for (session, sampler) in [(&mut a, &mut here), (&mut b, &mut there)] {
                let mut watch = Watch { text: &mut |_| Ok(()), stop: &|| false };
                made.push(session.generate(&prompt, sampler, request.clone(), &mut watch).unwrap());
            }
            let facts = |m: &Generated| (m.tokens.clone(), m.text.clone(), m.finish.clone(), m.read, m.steps);
            assert_eq!(facts(&made[0]), facts(&made[1]), "{request:?}");
            prompt.extend(&made[0].tokens);
            if prompt.len() > 500 {
                prompt.truncate(490);
            }
        }
        // The user stops the text between two tokens.
        let count = std::cell::Cell::new(0);
        let stop = || {
            count.set(count.get() + 1);
            count.get() > 9
        };
        let mut watch = Watch { text: &mut |_| Ok(()), stop: &stop };
        let made = a.generate(&[1], &mut here, Request::default(), &mut watch).unwrap();
        assert_eq!((made.finish, made.tokens.len() < 12), (Finish::Stopped, true));
    }
}

/// Returns a folder of the shared model with our own chat template.
fn with_template(template: Option<&str>) -> tempfile::TempDir {
    let from = shared("models/stories260K/hf");
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    if let Some(text) = template {
        std::fs::write(dir.path().join("chat_template.jinja"), text).unwrap();
    }
    dir
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}assistant:";

#[needs_data("models/stories260K/hf")]
#[test]
fn a_conversation_reads_what_is_new_and_no_control_tokens_of_a_user() {
    let dir = with_template(Some(TEMPLATE));
    let model = in_f32(dir.path(), &device());
    let mut chat = Conversation::new(&model, Some("be short")).unwrap();
    let mut sampler = Sampler::new(Sampling::greedy(), model.tokenizer().unwrap()).unwrap();
    let request = || Request { max: Some(6), ignore_ends: true, ..Request::default() };
    let mut watch = Watch { text: &mut |_| Ok(()), stop: &|| false };
    let first = chat.say("Lily</s>Tom", &mut sampler, request(), &mut watch).unwrap();
    assert_eq!(first.read, first.prompt);
    let (_, prompt) = chat.prompt().unwrap();
    // One token ends each message; those in user text are ordinary text.
    let ends = prompt.iter().filter(|id| **id == 2).count();
    assert_eq!((ends, prompt.iter().filter(|id| **id == 1).count()), (3, 1));
    let text = model.tokenizer().unwrap().decode(&prompt).unwrap();
    assert!(text.contains("Lily</s>Tom"), "{text}");
    let second = chat.say("and then", &mut sampler, request(), &mut watch).unwrap();
    assert!(second.prompt > first.prompt + first.tokens.len());
    assert_eq!(
        second.read,
        second.prompt - first.prompt - first.tokens.len() + 1,
        "the last token was not fed"
    );
    // Cached content changes nothing.
    let (_, whole) = chat.prompt().unwrap();
    let again = greedy(&model, &whole[..second.prompt], request()).0;
    assert_eq!(again.tokens, second.tokens);
    assert_eq!(chat.messages().len(), 5);
    // Messages given all at once give the same text.
    let mut given = Conversation::new(&model, None).unwrap();
    given.restore(chat.messages().to_vec());
    assert_eq!(given.prompt().unwrap().0, chat.prompt().unwrap().0);
    let long = "once upon a time ".repeat(200);
    let error = chat.say(&long, &mut sampler, request(), &mut watch).unwrap_err();
    assert!(error.message().contains("the context has 512"), "{error}");
    assert_eq!(chat.messages().len(), 5);
    chat.clear();
    assert_eq!(chat.messages().len(), 1);
    let anew = chat.say("Lily</s>Tom", &mut sampler, request(), &mut watch).unwrap();
    assert_eq!(anew.tokens, first.tokens);
}

#[test]
fn what_cannot_be_is_said() {
    let device = device();
    let said =
        |path: &Path, options| open(path, &device, options).map(drop).unwrap_err().message().to_owned();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.gguf");
    std::fs::write(&file, "no model").unwrap();
    assert!(said(&file, Options::default()).contains("not a GGUF file"));
    assert!(said(dir.path(), Options::default()).contains("a.gguf"));
    assert!(said(&dir.path().join("nothing"), Options::default()).contains("contains no model"));
    // An adapter is not a model.
    let adapter = dir.path().join("adapter");
    std::fs::create_dir(&adapter).unwrap();
    std::fs::write(adapter.join("adapter_model.safetensors"), "").unwrap();
    for (config, part) in [
        (r#"{"base_model_name_or_path": "org/base"}"#, "its base model is \"org/base\""),
        ("{}", "base_model_name_or_path"),
        ("", "base_model_name_or_path"),
    ] {
        std::fs::write(adapter.join("adapter_config.json"), config).unwrap();
        let found = said(&adapter, Options::default());
        assert!(
            found.contains(part)
                && found.contains("add --lora")
                && found.contains("contains no model: adapter_config.json belongs to an adapter"),
            "{found}"
        );
    }
    let weights = tiny("llama").join("model.safetensors");
    assert!(said(&weights, Options::default()).contains("name its folder"));
    let short = Options { context: Some(1 << 30), ..Options::default() };
    assert!(said(&tiny("llama"), short).contains("expected 1 to"));
    // No memory can hold this context.
    let text = std::fs::read_to_string(tiny("llama").join("config.json")).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["max_position_embeddings"] = i32::MAX.into();
    let model = dir.path().join("long");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), json.to_string()).unwrap();
    std::fs::copy(&weights, model.join("model.safetensors")).unwrap();
    let told = said(&model, Options { context: Some(i32::MAX as usize), ..Options::default() });
    assert!(told.contains("Nothing was allocated") && told.contains("would fit"), "{told}");
    let loaded = open(&model, &device, Options { context: Some(64), ..Options::default() }).unwrap();
    assert_eq!(loaded.context(), 64);
    let none = loaded.tokenizer().map(drop).unwrap_err();
    assert!(none.message().contains("does not have a tokenizer.json"), "{none}");
    let none = loaded.template().map(drop).unwrap_err();
    assert!(none.message().contains("does not have a chat template"), "{none}");
    let stopped =
        LoadedModel::open(&model, &device, Options { context: Some(64), ..Options::default() }, &mut |_| {
            Err(Error::format("enough"))
        });
    assert!(stopped.map(drop).unwrap_err().message().contains("enough"));
}

/// Weights from this loader equal those of `Decoder::open`, for every family, also with fewer positions.
#[test]
fn every_family_is_loaded_as_training_loads_it() {
    let device = device();
    let all = std::fs::read_dir(tiny("")).unwrap().flatten().map(|entry| entry.path());
    let mut seen = 0;
    for path in
        all.filter(|path| path.join("config.json").exists() && path.join("model.safetensors").exists())
    {
        let model = in_f32(&path, &device);
        let other = Decoder::open(&device, &path, Some(DType::F32)).unwrap();
        for (a, b) in model.decoder().params().list().iter().zip(other.params().list()) {
            assert!(a.to_bytes().unwrap() == b.to_bytes().unwrap(), "{}: {:?}", path.display(), a.name());
        }
        let context = other.config().context.min(12);
        let short =
            open(&path, &device, Options { dtype: Some(DType::F32), context: Some(context), ..EXACT })
                .unwrap();
        let prompt: Vec<u32> = (0..8).collect();
        let logits = |model: &Decoder| model.continuation().unwrap().logits_after(&prompt).unwrap();
        assert_eq!(logits(short.decoder()), logits(&other), "{}", path.display());
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
}

/// Returns prompts with a stop string, greedy and sampled, on the device and on the host.
pub(super) fn cases(model: &LoadedModel) -> Vec<Job> {
    let tokenizer = model.tokenizer().unwrap();
    let seeded = Sampling { seed: 5, ..Sampling::default() };
    let told = [
        ("Once upon a time", 40, vec![], Sampling::greedy()),
        ("Once upon a time, there was a dog", 60, vec![".".to_owned()], Sampling::greedy()),
        ("Tom", 30, vec![], seeded.clone()),
        ("Tom", 9, vec![], Sampling { repeat_penalty: 1.2, ..seeded }),
    ];
    told.into_iter()
        .map(|(text, max, stops, sampling)| {
            let stops = StopTexts::new(stops).unwrap();
            let request = Request { max: Some(max), stops, ..Request::default() };
            let prompt = tokenizer.encode_prompt(text, Specials::Plain).unwrap();
            Job::new(prompt, Sampler::new(sampling, tokenizer).unwrap(), request)
        })
        .collect()
}

/// Tokens, text and finish reason of each job.
pub(super) fn batched(
    model: &LoadedModel,
    jobs: &[Job],
    speculation: Speculation<'_>,
) -> Vec<(Vec<u32>, String, (Finish, Usage))> {
    let options = EngineOptions { tokens: Some(512), texts: 3, page: 16, ..EngineOptions::default() };
    let mut engine = model.engine(options, speculation).unwrap();
    let ids: Vec<RequestId> = jobs.iter().map(|job| engine.add(job.clone()).unwrap()).collect();
    let mut texts = vec![(Vec::new(), String::new(), None); ids.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let (tokens, shown, end) = &mut texts[ids.iter().position(|id| *id == event.id()).unwrap()];
            match event {
                Event::Token { token, text, .. } => {
                    tokens.push(token);
                    shown.push_str(&text);
                }
                Event::Text { text, .. } => shown.push_str(&text),
                Event::Done { finish, usage, .. } => *end = Some((finish, usage)),
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }
    texts.into_iter().map(|(tokens, text, end)| (tokens, text, end.unwrap())).collect()
}

/// Sequences of an engine, with and without proposed tokens, equal those of sessions: tokens, text up to a stop string, ends.
#[needs_data("models/stories260K")]
#[test]
fn an_engine_says_what_sessions_say() {
    let path = shared("models/stories260K/gguf/stories260K-f32.gguf");
    let model = in_f32(&path, &device());
    let jobs = cases(&model);
    let expected: Vec<Generated> = jobs
        .iter()
        .map(|Job { prompt, sampler, request, .. }| {
            let mut watch = Watch { text: &mut |_| Ok(()), stop: &|| false };
            model
                .session()
                .unwrap()
                .generate(prompt, &mut sampler.clone(), request.clone(), &mut watch)
                .unwrap()
        })
        .collect();
    assert_eq!(expected[1].finish, Finish::Text(".".into()));
    for speculation in [Speculation::Off, Speculation::NGrams, Speculation::Model(model.decoder())] {
        let texts = batched(&model, &jobs, speculation);
        for (at, (tokens, text, (finish, usage))) in texts.iter().enumerate() {
            let of = &expected[at];
            assert_eq!((tokens, text, finish), (&of.tokens, &of.text, &of.finish), "{at}");
            assert_eq!((usage.prompt, usage.made), (jobs[at].prompt.len(), tokens.len()));
        }
        let usage = &texts[0].2.1;
        match speculation {
            Speculation::Off => assert_eq!(usage.drafted, 0),
            Speculation::NGrams => assert!(usage.drafted > 0),
            Speculation::Model(_) => {
                assert!(usage.accepted * 10 > usage.drafted * 7, "a model agrees with itself: {usage:?}");
            }
        }
    }
}

/// Keys and values in 8 bits change the logits after a prompt by about a hundredth of the largest, the same as 8-bit activations.
#[needs_data("models/stories260K")]
#[test]
fn a_cache_in_8_bits_moves_logits_little() {
    let path = shared("models/stories260K/gguf/stories260K-f32.gguf");
    let model = in_f32(&path, &device());
    let ids: Vec<u32> = model
        .tokenizer()
        .unwrap()
        .encode_prompt("Once upon a time, there was a little girl named Lily.", Specials::Plain)
        .unwrap();
    let mut exact = model.decoder().continuation().unwrap();
    let expected: Vec<f64> = exact.logits_after(&ids).unwrap().iter().map(|v| f64::from(*v)).collect();
    let of = |kind| {
        let cache = netcl_model::decoder::Paged::new(model.decoder(), 8, 16, kind, None).unwrap();
        // In two parts, so that the second reads stored content.
        let (first, second) = ids.split_at(ids.len() / 2);
        cache.read(first, 0, &[5, 2], ids.len()).unwrap();
        off(&cache.read(second, first.len(), &[5, 2], ids.len()).unwrap().to_vec().unwrap(), &expected)
    };
    let [weights, q8] = [CacheType::Weights, CacheType::Q8_0].map(of);
    assert!(weights < 1e-5 && q8 < 2e-2 && q8 > weights, "{weights:e} {q8:e}");
}
