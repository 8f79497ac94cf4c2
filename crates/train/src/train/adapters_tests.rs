use super::super::{Silent, Trainer};
use super::*;
use crate::optim::{AdamW, Optimizer, ParamGroup};
use netcl_model::checkpoint::{ADAPTER_FILE, TensorData, read_tensors};
use netcl_model::decoder::{ModelFolder, Sizes, adapter_base, model_folder};
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Tensor};
use std::path::PathBuf;
use std::sync::Arc;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// Twenty steps of AdamW give the losses and the adapters of PEFT (`tools/golden_lora_train.py`).
#[test]
fn adapters_are_trained_as_by_peft() {
    const BOUND: f32 = 1e-4;
    let device = test_device().unwrap();
    let mut cases: Vec<_> =
        std::fs::read_dir(goldens().join("lora_train")).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let name = std::fs::read_to_string(case.join("model")).unwrap();
        let folder = ModelFolder::open(&goldens().join("decoder").join(name.trim())).unwrap();
        let mut model = folder.decoder(&device, Some(DType::F32), &Freeze::default()).unwrap();
        model.add_lora(&Lora::of_peft(&case).unwrap(), None).unwrap();
        let before = read_tensors(&case.join(ADAPTER_FILE)).unwrap();
        model.load_state(&before.iter().map(TensorData::view).collect::<Vec<_>>()).unwrap();

        let trained = read_tensors(&case.join("trained.safetensors")).unwrap();
        let named = |name: &str| trained.iter().find(|t| t.name == name).unwrap();
        let (ids, losses) = (named("ids"), named("losses").floats().unwrap());
        let [steps, rows, length] = ids.shape[..] else { panic!("{:?}", ids.shape) };
        let ids: Vec<u32> = ids.bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let rule = Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 });
        let mut optimizer =
            Optimizer::new(rule, vec![ParamGroup::new(&model.params().trained(), 0.1)]).unwrap();
        for step in 0..steps {
            let batch = &ids[step * rows * length..][..rows * length];
            let part = |from: usize| {
                let rows_of = batch.chunks(length).flat_map(|row| &row[from..from + length - 1]);
                let ids: Vec<u32> = rows_of.copied().collect();
                Tensor::from_u32(&device, [rows, length - 1], &ids).unwrap()
            };
            let loss = model.loss(&part(0), &part(1), Mode::eval()).unwrap();
            let (found, expected) = (loss.item().unwrap(), losses[step]);
            assert!(
                (found - expected).abs() < BOUND * expected,
                "{case:?}, step {step}: {found}, PEFT has {expected}"
            );
            optimizer.zero_grad();
            optimizer.backward(&loss).unwrap();
            optimizer.step(2e-3).unwrap();
        }
        let found: Vec<TensorData> = model.state().iter().map(|t| t.take().unwrap()).collect();
        assert_eq!(found.len() + 2, trained.len(), "{case:?}");
        for tensor in &found {
            let (found, expected) = (tensor.floats().unwrap(), named(&tensor.name).floats().unwrap());
            let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let off = (found - expected).abs() / largest;
                assert!(off < BOUND, "{case:?}: {} has {found}, PEFT has {expected}", tensor.name);
            }
        }
    }
}

/// A run with adapters of a tiny model.
fn config(dir: &Path, model: &str) -> TrainConfig {
    let text = dir.join("ids.bin");
    let ids: Vec<u8> = (0..2000u32).flat_map(|i| ((i * i % 23) as u16).to_le_bytes()).collect();
    std::fs::write(&text, ids).unwrap();
    let init = goldens().join("decoder").join(model).canonicalize().unwrap();
    let flags = crate::config::Overlay {
        init: Some(init.display().to_string()),
        lora: Some("r=2,alpha=4".into()),
        data: Some(vec![text.display().to_string()]),
        context: Some(8),
        batch: Some(2),
        steps: Some(6),
        eval_every: Some(3),
        eval_batches: Some(2),
        sample_every: Some(0),
        checkpoint_every: Some(3),
        ..crate::config::Overlay::default()
    };
    TrainConfig::resolve(None, &flags).unwrap()
}

#[test]
fn a_resumed_run_has_the_adapters_of_one_that_was_not_interrupted() {
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "llama");
    assert_eq!((config.preset.as_str(), config.lr), ("lora", 2e-4));
    let run = |name: &str| dir.path().join(name);
    let adapter = |name: &str| std::fs::read(model_folder(&run(name)).unwrap().join(ADAPTER_FILE)).unwrap();
    Trainer::create(&device, config.clone(), &run("whole")).unwrap().run(&mut Silent).unwrap();

    let short = TrainConfig { steps: 3, ..config.clone() };
    // The rate of each step is that of the whole run.
    let short = TrainConfig { schedule: crate::schedule::Schedule::Constant, ..short };
    let long = TrainConfig { schedule: crate::schedule::Schedule::Constant, ..config.clone() };
    Trainer::create(&device, long.clone(), &run("constant")).unwrap().run(&mut Silent).unwrap();
    Trainer::create(&device, short, &run("parts")).unwrap().run(&mut Silent).unwrap();
    let stopped = adapter("parts");
    Trainer::resume(&device, long.clone(), &run("parts")).unwrap().run(&mut Silent).unwrap();
    assert!(adapter("parts") != stopped);
    assert!(adapter("parts") == adapter("constant"), "the resumed run has other adapters");

    let (base, found) = adapter_base(&run("parts")).unwrap().unwrap();
    assert_eq!(base.display().to_string(), config.init.clone().unwrap());
    assert!(found.join(ADAPTER_CONFIG).exists() && !found.join("model.safetensors").exists());
}

#[test]
fn a_base_model_that_changed_is_refused() {
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), "llama");
    let base = dir.path().join("base");
    std::fs::create_dir(&base).unwrap();
    for entry in std::fs::read_dir(config.init.as_deref().unwrap()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), base.join(entry.file_name())).unwrap();
    }
    config.init = Some(base.display().to_string());
    let out = dir.path().join("run");
    Trainer::create(&device, config.clone(), &out).unwrap().run(&mut Silent).unwrap();
    let weights = base.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let longer = TrainConfig { steps: 9, ..config };
    let message = Trainer::resume(&device, longer, &out).err().unwrap().to_string();
    assert!(message.contains("model.safetensors has changed since the checkpoint"), "{message}");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "llama");
    for (changed, part) in [
        (TrainConfig { init: None, ..config.clone() }, "name it with --init"),
        (TrainConfig { freeze: vec!["*".into()], ..config.clone() }, "--freeze"),
        (TrainConfig { pipeline: 2, ..config.clone() }, "--pipeline"),
        (TrainConfig { lora: Some("r=0".into()), ..config.clone() }, "expected 1 to 4096"),
    ] {
        let message = changed.validate().unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("--lora"), "{message}");
    }
}

/// Adapters over quantized matrices have the losses and values of adapters over their dequantized weights.
#[test]
fn adapters_of_a_gguf_file_are_those_of_its_dequantized_weights() {
    use netcl_llm::model::{Mix, OutputFormat, RandomModel, WriteOptions, convert};
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sizes =
        Sizes { layers: 2, heads: 4, kv_heads: Some(2), width: 64, mlp: Some(96), ..Sizes::default() };
    let shape = DecoderConfig::of("llama", &Sizes { context: 16, vocab: 64, ..sizes }).unwrap();
    let (file, folder) = (dir.path().join("model.gguf"), dir.path().join("dense"));
    let mix = Mix::named("q4_0").unwrap();
    RandomModel::new(&shape, mix).unwrap().write(&file, &mut |_, _| Ok(())).unwrap();
    let options = WriteOptions { mix: Mix::named("f32").unwrap(), importance: None };
    convert(&Source::open(&file).unwrap(), &folder, OutputFormat::Folder, &options, &mut |_| Ok(())).unwrap();

    let base = config(dir.path(), "llama");
    let run = |name: &str, init: &Path| {
        let init = Some(init.display().to_string());
        let config = TrainConfig {
            init,
            family: "llama".into(),
            layers: 2,
            vocab: Some(64),
            lr: 1e-2,
            ..base.clone()
        };
        let config = TrainConfig {
            heads: 4,
            kv_heads: Some(2),
            head_size: Some(16),
            width: 64,
            mlp: Some(96),
            ..config
        };
        let out = dir.path().join(name);
        let mut trainer = Trainer::create(&device, config.clone(), &out).unwrap();
        assert_eq!(trainer.model().params().block_bytes() > 0, name == "blocks");
        trainer.run(&mut Silent).unwrap();
        let loss = trainer.last_metrics().unwrap().loss;
        (loss, read_tensors(&model_folder(&out).unwrap().join(ADAPTER_FILE)).unwrap(), config)
    };
    let (found, adapters, config) = run("blocks", &file);
    let (expected, dense, _) = run("dense-run", &folder);
    assert!((found - expected).abs() < 1e-5, "{found}, dequantized {expected}");
    assert_eq!(adapters.len(), dense.len());
    for (found, expected) in adapters.iter().zip(&dense) {
        let (name, found, expected) = (&found.name, found.floats().unwrap(), expected.floats().unwrap());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "{name}: {found}, dequantized {expected}");
        }
    }

    // The run is opened with its base, and resumed with it.
    let out = dir.path().join("blocks");
    let options = Options { activations: Some(Activations::Float), ..Options::default() };
    let opened = LoadedModel::open(&out, std::slice::from_ref(&device), options, &mut |_| Ok(())).unwrap();
    let ids = Tensor::from_u32(&device, [1, 6], &[3, 9, 27, 17, 51, 25]).unwrap();
    let logits = opened.decoder().forward(&ids, Mode::eval()).unwrap().to_vec().unwrap();
    let merged = netcl_model::decoder::Decoder::open(&device, &dir.path().join("dense-run"), None).unwrap();
    let expected = merged.forward(&ids, Mode::eval()).unwrap().to_vec().unwrap();
    for (found, expected) in logits.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-3, "{found}, dequantized {expected}");
    }
    let longer = TrainConfig { steps: 8, ..config };
    Trainer::resume(&device, longer, &out).unwrap().run(&mut Silent).unwrap();
}

#[test]
fn the_weights_of_a_gguf_file_are_not_trained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let shape = DecoderConfig::of("llama", &Sizes { width: 64, ..Sizes::default() }).unwrap();
    let mix = netcl_llm::model::Mix::named("q8_0").unwrap();
    netcl_llm::model::RandomModel::new(&shape, mix).unwrap().write(&file, &mut |_, _| Ok(())).unwrap();
    let init = Some(file.display().to_string());
    let flags = crate::config::Overlay { init, ..crate::config::Overlay::default() };
    let message = TrainConfig::resolve(None, &flags).unwrap_err().to_string();
    assert!(message.contains("--lora 16") && message.contains("netcl quantize"), "{message}");
}
