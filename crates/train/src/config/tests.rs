use super::*;
use std::fs;

fn resolve(file: &str, flags: &Overlay) -> Result<TrainConfig> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("my.toml");
    fs::write(&path, file).unwrap();
    TrainConfig::resolve(Some(&path), flags)
}

#[test]
fn every_preset_is_valid_and_survives_its_file() {
    for name in PRESETS {
        let preset = TrainConfig::preset(name).unwrap();
        preset.validate().unwrap();
        let text = preset.to_toml().unwrap();
        assert_eq!(resolve(&text, &Overlay::default()).unwrap(), preset, "{text}");
    }
    let odd = TrainConfig {
        lr: 1.234_567_890_123e-5,
        min_lr: 0.0,
        eps: 1e-12,
        data: vec!["a \"b\"\n".into(), "c\\d".into()],
        encoding: Some("latin1".into()),
        seed: i64::MAX as u64,
        ..TrainConfig::preset("demo").unwrap()
    };
    assert_eq!(resolve(&odd.to_toml().unwrap(), &Overlay::default()).unwrap(), odd);
}

#[test]
fn the_file_has_every_key_once() {
    let preset = TrainConfig::preset("gpt2-124m").unwrap();
    // A file omits absent values.
    let config = TrainConfig {
        encoding: Some("cp1251".into()),
        vocab: Some(9),
        init: Some("model".into()),
        lora: Some("16".into()),
        kv_heads: Some(2),
        head_size: Some(8),
        mlp: Some(16),
        rope_theta: Some(1e4),
        tied: Some(true),
        log_every: Some(5),
        chat_template: Some("chatml".into()),
        loss_type: Some("hinge".into()),
        epochs: Some(2),
        memory: Some("8G".into()),
        ..preset
    };
    let table = toml::Table::try_from(config).unwrap();
    let mut keys: Vec<_> = table.keys().map(String::as_str).collect();
    let mut grouped: Vec<_> = SETTINGS.iter().map(|row| row.name).collect();
    keys.sort_unstable();
    grouped.sort_unstable();
    assert_eq!(keys, grouped);
}

#[test]
fn flags_go_before_the_file_before_the_preset() {
    let flags = Overlay { layers: Some(3), lr: Some(2e-3), ..Overlay::default() };
    let config = resolve("preset = 'char'\nlayers = 9\nheads = 3\nlr = 1\n", &flags).unwrap();
    assert_eq!(
        (&*config.preset, config.layers, config.heads, config.width, config.lr),
        ("char", 3, 3, 384, 2e-3)
    );
    // Settings without a default, too.
    let flags = Overlay { log_every: Some(3), kv_heads: Some(2), ..Overlay::default() };
    let config = resolve("family = 'llama'\nlog_every = 9\nkv_heads = 4\nmlp = 64\n", &flags).unwrap();
    assert_eq!((config.log_every, config.kv_heads, config.mlp), (Some(3), Some(2), Some(64)));
    let flags = Overlay { preset: Some("char-cpu".into()), ..Overlay::default() };
    assert_eq!(resolve("preset = 'char'", &flags).unwrap(), TrainConfig::preset("char-cpu").unwrap());
    assert_eq!(
        TrainConfig::resolve(None, &Overlay::default()).unwrap(),
        TrainConfig::preset("demo").unwrap()
    );
}

#[test]
fn the_preset_of_a_run_that_names_none_follows_from_model_and_device() {
    use super::{SIMULATED, usual_preset};
    for (init, simulated, name) in [
        (false, false, "demo"),
        (false, true, SIMULATED),
        (true, false, "finetune"),
        (true, true, "finetune"),
    ] {
        assert_eq!(usual_preset(init, false, simulated), name);
        assert_eq!(usual_preset(init, true, simulated), "lora");
    }
    let on = |flags: &Overlay| TrainConfig::resolve_on(None, flags, true).unwrap().preset;
    assert_eq!(on(&Overlay::default()), SIMULATED);
    assert_eq!(on(&Overlay { preset: Some("char".into()), ..Overlay::default() }), "char");
}

#[test]
fn what_the_user_did_not_set_follows() {
    let flags = Overlay { lr: Some(5e-5), steps: Some(50), ..Overlay::default() };
    let config = TrainConfig::resolve(None, &flags).unwrap();
    assert!((config.min_lr - 5e-6).abs() < 1e-12);
    assert_eq!(config.warmup, 5);
    let set = Overlay { min_lr: Some(1e-4), ..flags };
    assert!(
        TrainConfig::resolve(None, &set)
            .unwrap_err()
            .message()
            .contains("--min-lr 0.0001 is above --lr 0.00005")
    );
}

#[test]
fn flags_that_no_file_can_hold_are_named() {
    let flags = Overlay { layers: Some(usize::MAX), ..Overlay::default() };
    let message = TrainConfig::resolve(None, &flags).unwrap_err().to_string();
    assert!(message.contains("--layers 18446744073709551615 is above 9223372036854775807"), "{message}");
    let flags = Overlay { lr: Some(f64::NAN), clip: Some(f64::INFINITY), ..Overlay::default() };
    assert!(TrainConfig::resolve(None, &flags).unwrap_err().message().contains("--lr NaN"));
}

#[test]
fn files_with_mistakes_are_named() {
    for (text, parts) in [
        ("lr = 1\nlearning_rate = 1e-3", ["line 2: unknown key `learning_rate`", "did you mean `lr`?"]),
        ("layer = 1", ["line 1: unknown key `layer`", "did you mean `layers`?"]),
        ("weight-decay = 1", ["unknown key `weight-decay`", "`weight_decay`?"]),
        ("zzzzzz = 1", ["unknown key `zzzzzz`", "the keys are preset, init, family"]),
        ("[model]\nlayers = 1", ["line 1: unknown key `model`", "without [tables]"]),
        ("layers = 'six'", ["line 1", "invalid type: string \"six\""]),
        ("layers = -1", ["line 1", "-1"]),
        ("matmul_precision = 'low'", ["unknown variant `low`", "`highest`"]),
        ("dtype = 'f64'", ["unknown variant `f64`", "`bf16`"]),
        ("layers = ", ["line 1", "my.toml"]),
        ("preset = 'cha'", ["unknown preset `cha`, did you mean `char`?", "gpt2-124m"]),
    ] {
        let message = resolve(text, &Overlay::default()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let missing = TrainConfig::resolve(Some("no/such.toml".as_ref()), &Overlay::default()).unwrap_err();
    assert!(missing.message().contains("no/such.toml"));
}

/// An invalid setting and the text that its message must contain.
type Mistake = (fn(&mut TrainConfig), &'static str);

#[test]
fn impossible_settings_name_the_option() {
    let mistakes: &[Mistake] = &[
        (|c| c.layers = 0, "--layers is 0"),
        (|c| c.batch = 0, "--batch is 0"),
        (|c| c.vocab = Some(0), "--vocab is 0"),
        (|c| c.steps = 0, "--steps is 0"),
        (
            |c| (c.heads, c.width) = (6, 100),
            "--heads 6 does not divide --width 100; the nearest heads that fit: 5, 10",
        ),
        (
            |c| (c.heads, c.width) = (200, 100),
            "--heads 200 does not divide --width 100; the nearest heads that fit: 100",
        ),
        (
            |c| (c.heads, c.width) = (1, 1024),
            "--heads 1 makes heads of 1024; --width 1024 allows at most 256",
        ),
        // The search for better values ends for every width.
        (
            |c| (c.heads, c.width) = (7, (1 << 61) - 1),
            "--heads 7 does not divide --width 2305843009213693951, nor",
        ),
        (|c| c.heads = usize::MAX, "--heads 18446744073709551615 is above 9223372036854775807"),
        (|c| c.dropout = 1.0, "--dropout 1 "),
        (|c| c.val_split = -0.1, "--val-split -0.1"),
        (|c| c.betas = [0.9, 1.0], "--betas 0.9,1 must"),
        (|c| c.lr = f64::NAN, "--lr NaN"),
        (|c| c.lr = 0.0, "--lr 0 "),
        (|c| c.min_lr = 1.0, "--min-lr 1 is above --lr 0.001; lower it, or use --schedule constant"),
        (|c| c.warmup = 9999, "--warmup 9999 is above --steps 1500"),
        (|c| c.weight_decay = -1.0, "--weight-decay -1"),
        (|c| c.clip = f64::INFINITY, "--clip inf"),
        (|c| c.eps = 0.0, "eps 0 "),
        (|c| c.seed = u64::MAX, "--seed 18446744073709551615"),
        (|c| c.device = String::new(), "--device is empty"),
        (|c| c.keep = 0, "--keep is 0"),
        (|c| c.dtype = DType::I32, "--dtype i32 is unknown; it is one of f32, bf16, f16"),
    ];
    for (change, part) in mistakes {
        let mut config = TrainConfig::preset("demo").unwrap();
        change(&mut config);
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains(part), "{message} lacks: {part}");
    }
}

#[test]
fn names_are_parsed() {
    for (name, value) in Schedule::NAMES {
        assert_eq!((name.parse::<Schedule>().unwrap(), value.to_string()), (value, name.to_owned()));
    }
    for (name, value) in DTYPES {
        assert_eq!((storage_type(name).unwrap(), value.to_string()), (value, name.to_owned()));
    }
    for (names, value) in [
        (["f32", "float32", "fp32", "FLOAT32", "torch.float32", "single"], DType::F32),
        (["bf16", "bfloat16", "BF16", "torch.bfloat16", "BFloat16", "bfloat"], DType::Bf16),
        (["f16", "fp16", "float16", "half", "Half", "torch.half"], DType::F16),
    ] {
        for name in names {
            assert_eq!(storage_type(name).unwrap(), value, "{name}");
            assert_eq!(
                resolve(&format!("dtype = '{name}'"), &Overlay::default()).unwrap().dtype,
                value,
                "{name}"
            );
        }
    }
    for (typed, meant) in [("cosin", "cosine"), ("liner", "linear")] {
        let message = typed.parse::<Schedule>().unwrap_err().to_string();
        assert!(message.ends_with(&format!("; did you mean {meant}?")), "{message}");
    }
    for (name, value) in [("highest", MatmulPrecision::Highest), ("high", MatmulPrecision::High)] {
        assert_eq!((name.parse::<MatmulPrecision>().unwrap(), value.to_string()), (value, name.to_owned()));
        let text = format!("matmul_precision = '{name}'");
        assert_eq!(resolve(&text, &Overlay::default()).unwrap().matmul_precision, value);
    }
    assert!(storage_type("i32").is_err());
    let unknown = "low".parse::<MatmulPrecision>().unwrap_err();
    assert!(unknown.message().contains("--matmul-precision low is unknown; it is one of highest, high"));
    assert!(
        storage_type("f64")
            .unwrap_err()
            .message()
            .contains("--dtype f64 is unknown; it is one of f32, bf16, f16")
    );
}

#[test]
fn graph_and_recompute_have_names() {
    for (name, value) in GraphMode::NAMES {
        let text = format!("graph = '{name}'");
        assert_eq!(resolve(&text, &Overlay::default()).unwrap().graph, value);
        assert_eq!((value.to_string().as_str(), name.parse::<GraphMode>().unwrap()), (name, value));
    }
    for (name, value) in Recompute::NAMES {
        let text = format!("recompute = '{name}'");
        assert_eq!(resolve(&text, &Overlay::default()).unwrap().recompute, value);
        assert_eq!((value.to_string().as_str(), name.parse::<Recompute>().unwrap()), (name, value));
    }
    assert!(Recompute::None < Recompute::Gelu && Recompute::Norm < Recompute::Block);
}

#[test]
fn moving_inputs_of_blocks_to_the_host_excludes_captured_steps_and_stages() {
    let of = |change: fn(&mut TrainConfig)| {
        let mut config = TrainConfig::preset("demo-tiny").unwrap();
        config.recompute = Recompute::Offload;
        change(&mut config);
        config
    };
    assert_eq!(of(|_| {}).graph_mode(), GraphMode::Off);
    of(|_| {}).validate().unwrap();
    for (change, named) in [
        ((|c| c.graph = GraphMode::On) as fn(&mut TrainConfig), "--graph on"),
        (|c| c.pipeline = 2, "--pipeline 2"),
        (|c| c.memory = Some("much".into()), "--memory much"),
    ] {
        let error = of(change).validate().unwrap_err();
        assert!(error.message().contains(named), "{error}");
    }
}

#[test]
fn a_presets_vocabulary_is_that_of_its_tokenizer() {
    for name in PRESETS {
        assert_eq!(TrainConfig::preset(name).unwrap().vocab, None, "{name}");
    }
    // GPT-2's size with the usual padding; a published character model's size; bytes and a few merges.
    assert_eq!([50_257, 65, 300, 1023].map(padded_vocab), [50_304, 65, 300, 1023]);
    assert_eq!([1024, 1025, 4096, 5000].map(padded_vocab), [1024, 1088, 4096, 5056]);
    let flags = Overlay { preset: Some("gpt2-124m".into()), vocab: Some(50_257), ..Overlay::default() };
    assert_eq!(TrainConfig::resolve(None, &flags).unwrap().vocab, Some(50_257));
}

#[test]
fn words_of_a_flag_set_what_the_file_would() {
    let config =
        TrainConfig { data: vec!["a b".into(), "c".into()], ..TrainConfig::preset("gpt2-124m").unwrap() };
    let table = toml::Table::try_from(&config).unwrap();
    let mut given = Overlay::default();
    for (key, value) in &table {
        let words: Vec<String> = match value {
            toml::Value::Array(values) => {
                values.iter().map(|v| v.as_str().map_or(v.to_string(), Into::into)).collect()
            }
            value => vec![value.as_str().map_or(value.to_string(), Into::into)],
        };
        given.set(key, &words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(given.over(TrainConfig::preset("char").unwrap()).unwrap(), config);
    for (name, words, part) in [
        ("betas", &["0.9"][..], "two numbers, such as 0.9,0.95; there is 1"),
        ("steps", &["-1"], "expected a whole number of at least 0, found -1"),
        ("schedule", &["cosin"], "did you mean cosine?"),
        ("nothing", &["1"], "unknown setting `nothing`"),
    ] {
        let message = given.set(name, words).unwrap_err().to_string();
        assert!(message.contains(part), "{message} lacks: {part}");
    }
}

#[test]
fn biases_are_given_where_the_family_has_the_choice() {
    let with = |family: &str, bias: bool| {
        let flags = Overlay { family: Some(family.into()), bias: Some(bias), ..Overlay::default() };
        TrainConfig::resolve(None, &flags)
    };
    assert!(with("gpt2", true).unwrap().bias && !with("llama", false).unwrap().bias);
    let message = with("llama", true).unwrap_err().to_string();
    assert!(message.contains("--bias true is for --family gpt2; the biases of llama are fixed"), "{message}");
}

#[test]
fn names_of_settings_are_unique() {
    let mut names: Vec<String> = SETTINGS
        .iter()
        .flat_map(|row| {
            let synonyms = row.synonyms.iter().map(|name| name.replace('_', "-"));
            // An alias of the flag may also be suggested for the key.
            let aliases = row.aliases.iter().filter(|a| !row.synonyms.contains(&&*a.replace('-', "_")));
            synonyms.chain(aliases.map(|a| (*a).to_owned())).chain([row.flag()]).collect::<Vec<_>>()
        })
        .collect();
    names.sort();
    let double: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(double.is_empty(), "{double:?}");
    assert!(SETTINGS.iter().all(|row| !row.help.is_empty() && !row.help.ends_with('.')));
}

/// One of `--steps` and `--epochs` sets the length of a run. The file of a run has both, and a flag replaces both.
#[test]
fn steps_and_epochs_exclude_each_other() {
    let flags = |steps, epochs| Overlay { steps, epochs, ..Overlay::default() };
    let both = TrainConfig::resolve(None, &flags(Some(3), Some(2))).unwrap_err();
    assert!(both.message().contains("--steps and --epochs"), "{both}");
    assert!(resolve("steps = 300\nepochs = 2\n", &Overlay::default()).is_err());
    let epochs = |flags: &Overlay| resolve("epochs = 2\n", flags).unwrap().epochs;
    assert_eq!(
        [epochs(&flags(None, None)), epochs(&flags(None, Some(5))), epochs(&flags(Some(300), None))],
        [Some(2), Some(5), None]
    );
    let unset = |file: &str, flags: &Overlay| resolve(file, flags).unwrap().unset.steps;
    assert!(unset("", &flags(None, None)) && !unset("", &flags(Some(300), None)));
    assert!(!unset("steps = 300\n", &flags(None, None)) && !unset("epochs = 2\n", &flags(None, None)));
    assert!(!unset("", &flags(None, Some(2))));
    let run =
        TrainConfig { steps: 300, epochs: Some(2), vocab: Some(99), ..TrainConfig::preset("demo").unwrap() };
    let again =
        |flags: &Overlay| resolve(&run.to_toml().unwrap(), flags).map(|c| (c.steps, c.epochs)).unwrap();
    assert_eq!(again(&flags(None, None)), (300, Some(2)));
    assert_eq!(again(&flags(Some(400), None)), (400, None));
    assert_eq!(again(&flags(None, Some(3))), (300, Some(3)));
}
