//! Compares models with layers on several devices with the same model on one device: from files and with random weights, in sessions and in an
//! engine.

use super::fit::Fit;
use super::tests::{EXACT, batched, cases, device, off, open, shared, tiny};
use super::*;
use crate::model::{Mix, RandomModel};
use crate::sampler::{Sampler, Sampling};
use netcl_device::{ErrorKind, Settings};
use netcl_model::decoder::Sizes;
use netcl_test_data::needs_data;

fn divided(path: &Path, devices: &[Device], layers: &[usize], options: Options<'_>) -> Result<LoadedModel> {
    LoadedModel::open(path, devices, Options { layers: Some(layers), ..options }, &mut |_| Ok(()))
}

/// Returns the logits after the last of some tokens, prefilled in two parts, and after single ones.
fn logits(model: &LoadedModel) -> Vec<Vec<f32>> {
    let vocab = model.config().vocab as u32;
    let ids: Vec<u32> = (0..14).map(|i| (1 + i * 37) % vocab).collect();
    let mut text = model.decoder().continuation().unwrap();
    text.begin(&ids[..5], 9).unwrap();
    (9..=14).map(|end| text.logits_after(&ids[..end]).unwrap()).collect()
}

fn names(model: &LoadedModel) -> Vec<(String, usize)> {
    let spans = model.decoder().spans();
    spans.map(|span| (span.device.capabilities().id.clone(), span.layers.len())).collect()
}

/// A real model from a file, dense and quantized, on two and three devices gives the bits and texts of one device.
#[needs_data("models/stories260K")]
#[test]
fn real_models_say_the_same_on_several_devices() {
    let devices = [0; 3].map(|_| device());
    for format in ["f32", "q4_0", "q4_k_m"] {
        let path = shared(&format!("models/stories260K/gguf/stories260K-{format}.gguf"));
        let options = Options { dtype: Some(DType::F32), activations: None, ..EXACT };
        let whole = open(&path, &devices[0], options).unwrap();
        let (expected, jobs) = (logits(&whole), cases(&whole));
        let texts: Vec<_> = jobs.iter().map(|job| session(&whole, job)).collect();
        // The last number may be omitted.
        for (count, layers) in [(2, &[3, 2][..]), (3, &[1, 3, 1]), (3, &[2, 2])] {
            let parts = divided(&path, &devices[..count], layers, options).unwrap();
            assert_eq!(names(&parts).len(), count);
            assert!(logits(&parts) == expected, "{format}, {layers:?}");
            for (job, expected) in jobs.iter().zip(&texts) {
                assert_eq!(session(&parts, job), *expected, "{format}, {layers:?}");
            }
            for speculation in [Speculation::Off, Speculation::Model(whole.decoder())] {
                let made = batched(&parts, &jobs, speculation);
                let made: Vec<_> = made.into_iter().map(|(tokens, text, _)| (tokens, text)).collect();
                assert_eq!(made, texts, "{format}, {layers:?}");
            }
        }
        assert_eq!(names(&whole).len(), 1);
    }
}

/// Returns tokens and text of a session.
fn session(model: &LoadedModel, job: &Job) -> (Vec<u32>, String) {
    let mut watch = Watch { text: &mut |_| Ok(()), stop: &|| false };
    let mut sampler: Sampler = job.sampler.clone();
    let mut session = model.session().unwrap();
    let made = session.generate(&job.prompt, &mut sampler, job.request.clone(), &mut watch).unwrap();
    (made.tokens, made.text)
}

/// Loads folders in Hugging Face's layout onto two devices: tied and untied, with experts. The simulated device has the first layers or the last.
#[test]
fn folders_are_loaded_onto_several_devices() {
    let [a, b] = [0; 2].map(|_| device());
    let sim = Device::open("sim", &Settings::default()).unwrap();
    for name in ["llama", "gpt2", "gemma2", "mixtral", "qwen3_moe", "gpt_neox", "olmo2"] {
        let path = tiny(name);
        let options = Options { dtype: Some(DType::F32), ..EXACT };
        let whole = open(&path, &a, options).unwrap();
        let expected = logits(&whole);
        let first = whole.config().layers / 2;
        let parts = divided(&path, &[a.clone(), b.clone()], &[first], options).unwrap();
        assert_eq!(
            names(&parts).iter().map(|(_, n)| *n).collect::<Vec<_>>(),
            [first, whole.config().layers - first]
        );
        assert!(logits(&parts) == expected, "{name}");
        if ["llama", "gemma2"].contains(&name) {
            for devices in [[sim.clone(), a.clone()], [a.clone(), sim.clone()]] {
                let parts = divided(&path, &devices, &[first], options).unwrap();
                for (found, expected) in logits(&parts).iter().zip(&expected) {
                    let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
                    assert!(off(found, &expected) < 1e-5, "{name}");
                }
            }
        }
    }
}

fn random(family: &str, mix: &str, tied: bool) -> RandomModel {
    let sizes = Sizes {
        layers: 3,
        heads: 4,
        kv_heads: (family != "gpt2").then_some(2),
        width: 256,
        mlp: Some(512),
        vocab: 512,
        context: 1500,
        ..Sizes::default()
    };
    let mut config = DecoderConfig::of(family, &sizes).unwrap();
    if family == "llama" {
        config.tied = tied;
    }
    RandomModel::new(&config, Mix::named(mix).unwrap()).unwrap()
}

fn made(model: &mut RandomModel, devices: &[Device], layers: Option<&[usize]>) -> LoadedModel {
    LoadedModel::random(model, devices, Options { layers, ..Options::default() }, &mut |_| Ok(())).unwrap()
}

/// Quantized matrices are on the device of their layer, a tied embedding is on both ends, and the result has the same bits.
#[test]
fn quantised_layers_are_where_they_belong() {
    let devices = [0; 2].map(|_| device());
    for (family, mix, tied) in [
        ("llama", "q4_0", true),
        ("llama", "q4_k_m", false),
        ("gpt2", "q8_0", true),
        ("mixtral", "q4_0", false),
        ("gemma2", "q8_0", true),
    ] {
        let mut random = random(family, mix, tied);
        let whole = made(&mut random, &devices[..1], None);
        let parts = made(&mut random, &devices, Some(&[2, 1]));
        assert!(logits(&parts) == logits(&whole), "{family} {mix}");
        let [dense, quantised] = [&whole, &parts].map(|model| {
            let params = model.decoder().params();
            [params.count() * params.dtype().size(), params.block_bytes()]
        });
        let table = dense[0] + dense[1] < quantised[0] + quantised[1];
        assert_eq!(table, parts.config().tied, "{family} {mix}: the embedding twice");
        let copy = parts.decoder().shapes().iter().any(|shape| shape.is_copy(parts.config()));
        let blocks = parts.decoder().params().blocks("lm_head.weight").is_some();
        assert!(copy || blocks || !parts.config().tied, "{family} {mix}");
        for (device, other, layer) in [(&devices[0], &devices[1], 1), (&devices[1], &devices[0], 2)] {
            let of =
                |p: &&netcl_tensor::Tensor| p.name().is_some_and(|name| name.contains(&format!(".{layer}.")));
            let own: Vec<_> = parts.decoder().params().list().iter().filter(of).collect();
            assert!(
                !own.is_empty() && own.iter().all(|p| p.device().same(device) && !p.device().same(other))
            );
        }
    }
}

/// The memory of a device with a full context, prompts and steps is within the plan, and not far below it.
#[test]
fn devices_take_what_was_announced() {
    for (family, mix) in [("llama", "q4_0"), ("llama", "f16"), ("gpt2", "f32"), ("mixtral", "q8_0")] {
        let devices = [0; 2].map(|_| device());
        for layers in [&[3, 0][..], &[2, 1]] {
            let mut random = random(family, mix, false);
            devices.iter().for_each(|device| {
                device.release_cached_memory();
                device.reset_memory_peak();
            });
            let before = devices.each_ref().map(|device| device.memory().live as u64);
            let model = made(&mut random, &devices, Some(layers));
            let needs = needs_of(&random, &model);
            let places = DevicePlace::of(devices.iter().map(Device::capabilities));
            let announced = Fit::new(&needs, &places).taken_by_each(layers, model.context());
            let ranges = [0..layers[0], layers[0]..3];
            for ((device, before), range) in devices.iter().zip(&before).zip(&ranges) {
                let (live, dtype) = (device.memory().live as u64 - before, needs.dtype());
                let (weights, rounding) = match range.is_empty() {
                    true => (0, 0),
                    false => (needs.weights_of(range.clone(), dtype), needs.rounding_of(range, 0, dtype)),
                };
                let told = format!("{family} {mix} {layers:?}: {live} of {weights} and {rounding}");
                assert!(live >= weights && live <= weights + rounding + (256 << 10), "{told}");
            }
            let ids: Vec<u32> = (0..1500).map(|i| i % 500).collect();
            let mut text = model.decoder().continuation().unwrap();
            for end in [512, 1024, 1400] {
                text.begin(&ids[..end], 1400).unwrap();
            }
            (1400..1404).for_each(|end| drop(text.logits_after(&ids[..end]).unwrap()));
            for (at, device) in devices.iter().enumerate() {
                let peak = device.memory().peak as u64 - before[at];
                println!("{family} {mix} {layers:?}: device {at} took {peak} of {}", announced[at]);
                assert!(peak <= announced[at], "{family} {mix} {layers:?}: {peak} of {}", announced[at]);
                assert!(
                    announced[at] <= 3 * peak / 2 + (8 << 20),
                    "{family} {mix} {layers:?}: {peak} of {}",
                    announced[at]
                );
            }
        }
    }
}

/// The workspace of an engine's prompts and steps is within its permitted memory in addition to the weights.
#[test]
fn an_engine_takes_no_more_than_it_may() {
    for (family, mix) in [("llama", "q4_0"), ("gpt2", "f32"), ("mixtral", "q8_0")] {
        let device = [device()];
        let model = made(&mut random(family, mix, false), &device, None);
        let options = EngineOptions { texts: 9, ..EngineOptions::default() };
        let (work, page) = (model.workspace(options), model.decoder().page_bytes(0..3, 32, options.cache));
        let with = |memory| model.engine(EngineOptions { memory: Some(memory), ..options }, Speculation::Off);
        let Err(error) = with(work + page - 1) else { panic!("{family}: an engine without a page") };
        assert!(
            error.kind() == ErrorKind::Memory && error.message().contains(" reserved for prompts and steps"),
            "{error}"
        );
        device[0].release_cached_memory();
        device[0].reset_memory_peak();
        let (before, budget) = (device[0].memory().live as u64, work + 40 * page);
        let mut engine = with(budget).unwrap();
        assert_eq!(engine.load().pages, 40);
        // Prompts are long and short, in all batch sizes.
        for texts in 1..=9u32 {
            for text in 0..texts {
                let length = if text == 0 { 1000 } else { 20 + text };
                let prompt = (0..length).map(|i| (i * 7 + text) % 500).collect();
                let sampler = Sampler::of_ids(Sampling { seed: 3, ..Sampling::default() }).unwrap();
                let request = Request { max: Some(6), ..Request::default() };
                engine.add(Job::new(prompt, sampler, request)).unwrap();
            }
            while !engine.is_idle() {
                engine.step().unwrap();
            }
        }
        let peak = device[0].memory().peak as u64 - before;
        println!("{family} {mix}: {peak} of {budget}, {work} of them as workspace");
        assert!(peak <= budget, "{family} {mix}: {peak} of {budget}");
        // Small models: the reserve for step states, and for copies of experts, is more than they need.
        assert!(budget <= 3 * peak / 2 + (16 << 20), "{family} {mix}: {peak} of {budget}");
    }
}

/// The same form as the model's file.
fn needs_of(random: &RandomModel, model: &LoadedModel) -> MemoryPlan {
    let mut bytes = std::collections::HashMap::new();
    for (name, parts) in random.config().shapes().filter_map(|shape| {
        let blocks = model.decoder().params().blocks(&shape.name)?;
        Some((shape.name, blocks.iter().map(|b| b.bytes() as u64).sum()))
    }) {
        bytes.insert(name, parts);
    }
    MemoryPlan::new(random.config().clone(), model.dtype(), &bytes)
}

#[test]
fn what_cannot_be_divided_is_said() {
    let [a, b] = [0; 2].map(|_| device());
    let layers = DecoderConfig::of_folder(&tiny("llama")).unwrap().layers;
    for wrong in [&[layers, 1][..], &[1, 1, 1], &[layers + 1]] {
        let refused = divided(&tiny("llama"), &[a.clone(), b.clone()], wrong, EXACT).err().unwrap();
        let text = refused.message();
        assert_eq!(refused.kind(), ErrorKind::Format);
        assert!(text.contains("llama") && text.contains(&format!("the model has {layers}")), "{text}");
        assert!(text.contains("--layers") && text.contains("2 devices"), "{text}");
    }
    let none = LoadedModel::open(&tiny("llama"), &[][..], EXACT, &mut |_| Ok(())).err().unwrap();
    assert!(none.message().contains("at least one device"), "{none}");
    // Progress reports the device of each parameter.
    let mut told = Vec::new();
    let mut hear = |p: Loading<'_>| {
        told.push((p.device.to_owned(), p.done));
        Ok(())
    };
    let sim = Device::open("sim", &Settings::default()).unwrap();
    let devices = [a.clone(), sim];
    LoadedModel::open(&tiny("llama"), &devices, Options { layers: Some(&[1]), ..EXACT }, &mut hear).unwrap();
    assert!(told.is_sorted_by_key(|(_, done)| *done), "{told:?}");
    let simulated = told.iter().filter(|(device, _)| device.starts_with("sim")).count();
    assert!(simulated > 3 && told.iter().any(|(device, _)| *device == a.capabilities().id), "{told:?}");
}
