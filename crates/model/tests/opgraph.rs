//! Networks and a language model as graphs of operations: for any number of rows they give the model's results, here and on another device.
#![allow(clippy::unwrap_used)] // tests

use netcl_model::decoder::{Decoder, DecoderConfig, Sizes};
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_model::params::Params;
use netcl_model::vision::models;
use netcl_tensor::opgraph::OpGraph;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, Generator, Settings, Tensor, no_grad};

fn near(what: &str, got: &Tensor, expected: &Tensor) {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    let expected = expected.to_vec().unwrap();
    let scale = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    for (i, (x, y)) in got.to_vec().unwrap().iter().zip(&expected).enumerate() {
        assert!((x - y).abs() <= 1e-4 * scale, "{what}, element {i}: {x}, expected {y}");
    }
}

#[test]
fn every_kind_of_network_is_a_graph_for_any_number_of_images() {
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (name, size) in [
        ("mnist-cnn", [1, 28, 28]),
        ("mlp", [1, 12, 12]),
        ("lenet", [1, 28, 28]),
        ("resnet18-small", [3, 16, 16]),
        ("mobilenet-v2-small", [3, 16, 16]),
        ("vit-small", [3, 32, 32]),
    ] {
        let mut params = Params::new(&device, DType::F32, Some(1));
        let network = models::of(name, size, 5).unwrap().build(&mut params, "").unwrap();
        let graph = network.graph(&device, size).unwrap();
        let path = dir.path().join(format!("{name}.safetensors"));
        graph.save(&path).unwrap();
        let loaded = OpGraph::load(&path, &device).unwrap();
        let named = params
            .list()
            .iter()
            .filter(|p| graph.spec().weights.iter().any(|w| Some(w.name.as_str()) == p.name()));
        assert_eq!(named.count(), params.list().len(), "{name}: parameters keep their names");
        for rows in [1, 3] {
            let dims: Vec<usize> = std::iter::once(rows).chain(size).collect();
            let values = Generator::new(7).normal(dims.iter().product(), 0.5, 0.3);
            let x = Tensor::from_f32(&device, dims, &values, DType::F32).unwrap();
            let expected = no_grad(|| network.forward(&x, false)).unwrap();
            let y = graph.run(&[&x]).unwrap().remove(0);
            near(name, &y, &expected);
            assert_eq!(loaded.run(&[&x]).unwrap()[0].to_bytes().unwrap(), y.to_bytes().unwrap(), "{name}");
        }
    }
}

#[test]
fn a_language_model_is_a_graph_that_runs_elsewhere() {
    let device = test_device().unwrap();
    let config = DecoderConfig::of(
        "gpt2",
        &Sizes { vocab: 31, context: 16, layers: 2, heads: 2, width: 16, ..Default::default() },
    )
    .unwrap();
    let decoder = Decoder::new(&device, config, DType::F32, 3).unwrap();
    let ids = |device: &Device, rows: usize| {
        let ids: Vec<u32> = (0..rows as u32 * 8).map(|i| i * 7 % 31).collect();
        Tensor::from_u32(device, [rows, 8], &ids).unwrap()
    };
    let forward = |x: &[Tensor]| Ok(vec![decoder.forward(&x[0], Mode::eval())?]);
    let graph = OpGraph::for_any_rows(&[("ids", &ids(&device, 1))], forward).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpt.safetensors");
    graph.save(&path).unwrap();
    let expected = no_grad(|| decoder.forward(&ids(&device, 3), Mode::eval())).unwrap();
    near("here", &graph.run(&[&ids(&device, 3)]).unwrap()[0], &expected);
    let sim = Device::open("sim", &Settings::default()).unwrap();
    let loaded = OpGraph::load(&path, &sim).unwrap();
    near("sim", &loaded.run(&[&ids(&sim, 3)]).unwrap()[0], &expected);
}
