use super::*;
use netcl_device::ErrorKind;
use netcl_model::decoder::{DecoderConfig, Sizes};
use std::collections::HashMap;

/// Eight layers of about 1.3 MB in f32.
fn needs(tied: bool) -> MemoryPlan {
    let sizes = Sizes {
        layers: 8,
        heads: 4,
        width: 128,
        mlp: Some(640),
        vocab: 8192,
        context: 8192,
        ..Sizes::default()
    };
    let config = DecoderConfig { tied, ..DecoderConfig::of("llama", &sizes).unwrap() };
    MemoryPlan::new(config, DType::F32, &HashMap::new())
}

fn place(id: &str, available: u64, memory: usize) -> DevicePlace {
    DevicePlace {
        id: id.into(),
        available,
        shared: available,
        memory,
        one_launch: false,
        copies_experts: true,
    }
}

/// Returns the memory of a device with these layers.
fn taken(needs: &MemoryPlan, layers: Range<usize>, tokens: usize) -> u64 {
    Fit::new(needs, &[]).taken(&place("any", 0, 0), layers, tokens)
}

#[test]
fn a_context_is_what_was_asked_for_or_as_much_as_fits() {
    let needs = needs(false);
    let one = |tokens: usize| [place("here", taken(&needs, 0..8, tokens), 0)];
    let context = |places: &[DevicePlace], asked| {
        Fit::new(&needs, places).divide(asked, None).map(|division| division.context)
    };
    assert_eq!(context(&one(9000), None).unwrap(), 8192);
    assert_eq!(context(&one(300), None).unwrap(), 300);
    assert_eq!(context(&one(300), Some(300)).unwrap(), 300);
    assert_eq!(context(&one(5000), Some(7)).unwrap(), 7);
    for wrong in [0, 8193] {
        let error = context(&one(5000), Some(wrong)).unwrap_err();
        assert!(error.message().contains("expected 1 to 8192"), "{error}");
    }
    for error in [context(&one(300), Some(301)).unwrap_err(), context(&one(255), None).unwrap_err()] {
        let text = error.message();
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert!(text.contains("here has") && text.contains("Nothing was allocated"), "{text}");
        assert!(text.contains("would fit") && text.contains("--dtype f16 -c "), "{text}");
        assert!(text.contains("enough for") && text.contains("of 8 layers"), "{text}");
    }
    let none = context(&[place("here", 10, 0)], None).unwrap_err();
    assert!(none.message().contains("no storage type and no context fits"), "{none}");
    assert!(none.message().contains("enough for 0 of 8 layers"), "{none}");
}

/// Bytes are those of each parameter in stored form. Stages together need the memory of one device, and a tied embedding twice.
#[test]
fn weights_are_those_of_the_layers() {
    let all = needs(false);
    let config = all.config().clone();
    assert_eq!(all.weights(), 4 * config.parameters() as u64);
    let [a, b, c] = [0..3, 3..4, 4..8].map(|layers| all.weights_of(layers, DType::F32));
    assert_eq!(a + b + c, all.weights());
    let tied = needs(true);
    let table = (8192 * 128 * 4) as u64;
    assert_eq!(tied.weights(), all.weights() - table);
    let [a, b] = [0..3, 3..8].map(|layers| tied.weights_of(layers, DType::F32));
    assert_eq!(a + b, tied.weights() + table);
    // Quantized matrices count with their size in the file, also as a copy.
    let name = "model.embed_tokens.weight".to_owned();
    let blocks = MemoryPlan::new(tied.config().clone(), DType::F32, &HashMap::from([(name, 1000)]));
    assert_eq!(blocks.weights(), tied.weights() - table + 1000);
    let [a, b] = [0..3, 3..8].map(|layers| blocks.weights_of(layers, DType::F32));
    assert_eq!(a + b, blocks.weights() + 1000);
    // Prompts multiply by a dense copy of the largest matrix in a layer.
    let [up, down] = ["gate_up", "down"].map(|map| (format!("model.layers.2.mlp.{map}_proj.weight"), 4096));
    let maps = MemoryPlan::new(tied.config().clone(), DType::F32, &HashMap::from([up, down]));
    assert_eq!(maps.weights(), tied.weights() - 3 * 4 * 128 * 640 + 2 * 4096);
    assert!(
        maps.work(100) >= tied.work(100) + 2 * 4 * 128 * 640 - maps.rounding_of(&(0..8), 100, DType::F32)
    );
    assert_eq!(all.cache(10), 8 * 10 * 2 * 128 * 4);
}

#[test]
fn devices_are_filled_in_their_order() {
    let needs = needs(true);
    let first = |layers: usize, tokens: usize| taken(&needs, 0..layers, tokens);
    let divide = |places: &[DevicePlace], context| Fit::new(&needs, places).divide(context, None);
    // A model that fits on one device stays there, with the longest possible context.
    let gpu = |bytes| place("gpu:0", bytes, 0);
    let (cpu, much) = (place("cpu:0", 1 << 40, 1), first(8, 5000));
    let whole = divide(&[gpu(much), cpu.clone()], None).unwrap();
    assert_eq!(whole, Division { layers: vec![8, 0], context: 5000 });
    // Without another device, the first one gets as many layers as fit.
    let alone = divide(&[gpu(first(8, 3000))], None).unwrap();
    assert_eq!(alone, Division { layers: vec![8], context: 3000 });
    // A requested context moves layers. A context that was not requested does so up to 4096 tokens, and is then the longest that the distribution
    // permits.
    let asked = divide(&[gpu(much), cpu.clone()], Some(8192)).unwrap();
    assert!(asked.layers[0] < 8 && asked.layers[1] > 0 && asked.context == 8192, "{asked:?}");
    let five = divide(&[gpu(first(5, DEFAULT_SPLIT_CONTEXT)), cpu.clone()], None).unwrap();
    assert_eq!(five, Division { layers: vec![5, 3], context: DEFAULT_SPLIT_CONTEXT });
    let five = divide(&[gpu(first(5, DEFAULT_SPLIT_CONTEXT + 100)), cpu.clone()], None).unwrap();
    assert_eq!(five, Division { layers: vec![5, 3], context: DEFAULT_SPLIT_CONTEXT + 100 });
    // The head is never without a layer.
    let short = divide(&[gpu(first(8, 300) - 1), cpu.clone()], Some(300)).unwrap();
    assert_eq!(short.layers, [7, 1]);
    // A device that can hold no layer is skipped; three in turn.
    let none = divide(&[gpu(1000), cpu.clone()], Some(300)).unwrap();
    assert_eq!(none.layers, [0, 8]);
    let other = place("gpu:1", taken(&needs, 5..7, 300), 1);
    let three = divide(&[gpu(first(5, 300)), other, place("cpu:0", 1 << 40, 2)], Some(300)).unwrap();
    assert_eq!(three.layers, [5, 2, 1]);
    // Two devices that share one memory count it once.
    let host = first(8, 300) - 1;
    let shared = [place("cpu:0", host, 0), place("cpu:1", host, 0)];
    assert!(divide(&shared, Some(300)).is_err());
    // Each has a separate limit in a larger memory.
    let limited = shared.clone().map(|place| DevicePlace { shared: 2 * host, ..place });
    assert_eq!(divide(&limited, Some(300)).unwrap().layers, [7, 1]);
    let apart = [place("cpu:0", host, 0), place("cpu:1", host, 1)];
    assert!(divide(&apart, Some(300)).is_ok());
}

#[test]
fn layers_of_a_user_are_kept_or_refused() {
    let needs = needs(false);
    let places = [place("gpu:0", taken(&needs, 0..5, 1000), 0), place("cpu:0", taken(&needs, 5..8, 1000), 1)];
    let fit = Fit::new(&needs, &places);
    let divide = |context, layers: &[usize]| fit.divide(context, Some(layers));
    assert_eq!(divide(Some(1000), &[4, 4]).unwrap_err().kind(), ErrorKind::Memory);
    assert_eq!(divide(Some(700), &[5, 3]).unwrap(), Division { layers: vec![5, 3], context: 700 });
    assert_eq!(divide(None, &[5]).unwrap(), Division { layers: vec![5, 3], context: 1000 });
    let refused = divide(Some(1000), &[6, 2]).unwrap_err();
    let text = refused.message();
    assert!(text.contains("gpu:0 has") && text.contains("and 6 layers would need"), "{text}");
    assert!(text.contains("5 would fit; cpu:0 has"), "{text}");
    assert!(text.contains("or without --layers would fit"), "{text}");
    for wrong in [&[5, 4][..], &[5, 2], &[9], &[4, 3, 1], &[]] {
        let refused = divide(Some(700), wrong).unwrap_err();
        let text = refused.message();
        assert_eq!(refused.kind(), ErrorKind::Format);
        assert!(text.contains("the model has 8") && text.contains("2 devices (gpu:0,cpu:0)"), "{text}");
    }
    // An excluded device gets no layers.
    let roomy = [place("gpu:0", 1 << 40, 0), place("cpu:0", 1 << 40, 1)];
    assert_eq!(Fit::new(&needs, &roomy).divide(Some(9), Some(&[0, 8])).unwrap().layers, [0, 8]);
}

/// Models whose matrices are stored as (in, out) need transposed copies if a step is one launch.
#[test]
fn copies_as_rows_are_counted_where_there_are_some() {
    let sizes = Sizes { layers: 2, heads: 2, width: 64, vocab: 100, context: 64, ..Sizes::default() };
    let of = |family: &str| {
        let needs = MemoryPlan::new(DecoderConfig::of(family, &sizes).unwrap(), DType::F16, &HashMap::new());
        let places = [false, true].map(|one_launch| DevicePlace { one_launch, ..place("gpu:0", 0, 0) });
        let fit = Fit::new(&needs, &places);
        let [without, with] = [0, 1].map(|at| fit.taken(&places[at], 0..2, 64));
        // With only some of the layers, no such step exists.
        assert_eq!(fit.taken(&places[0], 0..1, 64), fit.taken(&places[1], 0..1, 64));
        with - without
    };
    assert_eq!(of("gpt2"), 2 * 2 * (3 * 64 * 64 + 64 * 64 + 2 * 4 * 64 * 64));
    assert_eq!(of("llama"), 0);
}

/// For devices of any sizes, a distribution is found if one exists. It fits, and no earlier device has room for another layer.
#[test]
fn what_can_be_divided_is_divided() {
    let mut random = netcl_tensor::random::Generator::new(7);
    let (mut divided, mut refused) = (0, 0);
    for tied in [false, true] {
        let needs = needs(tied);
        let whole = taken(&needs, 0..8, 500);
        for _ in 0..200 {
            let sizes = random.uniform(3, 0.1, 1.1);
            let places: Vec<DevicePlace> = (0..3)
                .map(|i| place(&format!("gpu:{i}"), (f64::from(sizes[i]) * whole as f64) as u64, i))
                .collect();
            let fit = Fit::new(&needs, &places);
            let all = (0..=8usize).flat_map(|a| (0..=8 - a).map(move |b| [a, b, 8 - a - b]));
            let possible = all.clone().any(|layers| fit.fits(&layers, 500));
            match fit.divide(Some(500), None) {
                Ok(Division { layers, context }) => {
                    assert!(context == 500 && fit.fits(&layers, 500), "{layers:?}");
                    let [a, b, c] = layers[..] else { panic!("{layers:?}") };
                    assert!(b == 0 || !fit.fits(&[a + 1, b - 1, c], 500) || c == 0 && b == 1, "{layers:?}");
                    assert!(c < 2 || !fit.fits(&[a, b + 1, c - 1], 500), "{layers:?}");
                    divided += 1;
                }
                Err(e) => {
                    assert!(!possible, "{e}");
                    refused += 1;
                }
            }
        }
    }
    assert!(divided > 50 && refused > 50, "{divided} {refused}");
}
