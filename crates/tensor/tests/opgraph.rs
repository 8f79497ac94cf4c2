//! Graphs can be saved and run again: with the same bits on the same device, elsewhere within rounding. Unsupported functions and damaged files are
//! rejected with a precise error.

#![allow(clippy::unwrap_used, clippy::panic)] // a test

use netcl_device::draw::Draw;
use netcl_tensor::opgraph::OpGraph;
use netcl_tensor::ops::batch_norm::{Running, batch_norm, batch_norm_inference};
use netcl_tensor::ops::conv::{Conv2dOptions, conv2d};
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::ops::pool::{Windows, max_pool2d};
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, ErrorKind, Generator, Result, Settings, Tensor};
use std::path::Path;

fn random(device: &Device, dims: &[usize], seed: u64) -> Tensor {
    let values = Generator::new(seed).normal(dims.iter().product(), 0.0, 0.7);
    Tensor::from_f32(device, dims, &values, DType::F32).unwrap()
}

/// A small network for images (N, 3, 8, 8).
struct Net {
    conv: [Tensor; 2],
    norm: [Tensor; 4],
    map: [Tensor; 2],
}

impl Net {
    fn new(device: &Device) -> Self {
        let named = |name: &str, dims: &[usize], seed| random(device, dims, seed).parameter(name);
        Self {
            conv: [named("features.0.weight", &[5, 3, 3, 3], 1), named("features.0.bias", &[5], 2)],
            norm: [
                named("features.1.weight", &[5], 3),
                named("features.1.bias", &[5], 4),
                random(device, &[5], 5),
                Tensor::full(device, [5], 0.7, DType::F32).unwrap(),
            ],
            map: [named("head.weight", &[80, 4], 6), named("head.bias", &[4], 7)],
        }
    }
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let options = Conv2dOptions::default().padding(1);
        let x = conv2d(x, &self.conv[0], Some(&self.conv[1]), options)?;
        let [gamma, beta, mean, variance] = &self.norm;
        let running = Running { mean: mean.clone(), variance: variance.clone() };
        let x = batch_norm_inference(&x, gamma, beta, &running, 1e-5)?.gelu()?;
        let x = max_pool2d(&x, Windows::of(2))?;
        let rows = x.dims()[0];
        let x = x.reshape([rows, 80])?;
        let mask = x.gt(&x.mul_scalar(0.0)?)?;
        let x = x.masked_fill(&mask, -0.25)?;
        linear(&x, &self.map[0], Some(&self.map[1]))?.log_softmax(-1)
    }
    fn graph(&self, device: &Device) -> OpGraph {
        let x = random(device, &[2, 3, 8, 8], 8);
        OpGraph::for_any_rows(&[("x", &x)], |x| Ok(vec![self.forward(&x[0])?])).unwrap()
    }
}

fn bits(t: &Tensor) -> Vec<u8> {
    t.to_bytes().unwrap()
}

fn near(a: &Tensor, b: &Tensor) {
    assert_eq!(a.dims(), b.dims());
    for (i, (x, y)) in a.to_vec().unwrap().iter().zip(b.to_vec().unwrap()).enumerate() {
        assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "element {i}: {x}, expected {y}");
    }
}

#[test]
fn a_graph_that_was_saved_gives_the_same_bits_and_elsewhere_the_same_within_rounding() {
    let device = test_device().unwrap();
    let net = Net::new(&device);
    let graph = net.graph(&device);
    let x = random(&device, &[3, 3, 8, 8], 9);
    let expected = net.forward(&x).unwrap();
    let here = graph.run(&[&x]).unwrap().remove(0);
    near(&here, &expected);
    // A second run gives the same result, after a run with other inputs.
    let other = random(&device, &[4, 3, 8, 8], 10);
    graph.run(&[&other]).unwrap();
    assert_eq!(bits(&graph.run(&[&x]).unwrap()[0]), bits(&here));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    graph.save(&path).unwrap();
    let loaded = OpGraph::load(&path, &device).unwrap();
    assert_eq!(loaded.to_string(), graph.to_string());
    assert_eq!(bits(&loaded.run(&[&x]).unwrap()[0]), bits(&here));
    // A loaded graph that is saved again gives the same file.
    let again = dir.path().join("again.safetensors");
    loaded.save(&again).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());

    for name in ["sim", "sim:rx7900xtx"] {
        let there = Device::open(name, &Settings::default()).unwrap();
        let loaded = OpGraph::load(&path, &there).unwrap();
        let y = loaded.run(&[&x.to_device(&there).unwrap()]).unwrap().remove(0);
        near(&y, &expected);
        // The reverse: a graph recorded on that device runs here.
        let net = Net::new(&there);
        let back = dir.path().join("back.safetensors");
        net.graph(&there).save(&back).unwrap();
        let back = OpGraph::load(&back, &device).unwrap();
        near(&back.run(&[&x]).unwrap()[0], &net.forward(&x.to_device(&there).unwrap()).unwrap());
    }
}

#[test]
fn any_number_of_rows_is_computed_in_buckets_and_fixed_shapes_are_held() {
    let device = test_device().unwrap();
    let net = Net::new(&device);
    let graph = net.graph(&device).with_buckets(&[2, 6]).unwrap();
    assert_eq!([1, 2, 3, 6].map(|rows| graph.bucket(rows)), [2, 2, 6, 6]);
    for rows in [1, 2, 5, 6, 7, 13] {
        let x = random(&device, &[rows, 3, 8, 8], 11);
        let y = graph.run(&[&x]).unwrap().remove(0);
        near(&y, &net.forward(&x).unwrap());
    }
    let x = random(&device, &[2, 3, 8, 7], 11);
    assert!(
        graph
            .run(&[&x])
            .unwrap_err()
            .message()
            .contains("input x is f32 [2, 3, 8, 7], expected f32 [rows, 3, 8, 8]")
    );
    assert!(net.graph(&device).with_buckets(&[0, 3]).is_err());

    let x = random(&device, &[2, 3, 8, 8], 12);
    let fixed = OpGraph::of(&[("image", &x)], |x| Ok(vec![net.forward(&x[0])?])).unwrap();
    near(&fixed.run(&[&x]).unwrap()[0], &net.forward(&x).unwrap());
    let three = random(&device, &[3, 3, 8, 8], 12);
    assert_eq!(fixed.run(&[&three]).unwrap_err().kind(), ErrorKind::Shape);
    assert!(fixed.with_buckets(&[1]).is_err());
}

#[test]
fn integers_several_results_and_layers_by_name() {
    let device = test_device().unwrap();
    let table = random(&device, &[11, 6], 1).parameter("wte");
    let ids = Tensor::from_u32(&device, [1, 4], &[3, 0, 10, 7]).unwrap();
    let graph = OpGraph::for_any_rows(&[("ids", &ids)], |x| {
        let e = embedding(&table, &x[0])?;
        let [n, t, c] = e.dims3()?;
        let heads = e.reshape([n, t, 2, c / 2])?.permute(&[0, 2, 1, 3])?;
        Ok(vec![heads.sum(&[-1], false)?, e.softmax(-1)?])
    })
    .unwrap();
    let many = Tensor::from_u32(&device, [3, 4], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]).unwrap();
    let [sums, shares] = <[Tensor; 2]>::try_from(graph.run(&[&many]).unwrap()).unwrap();
    assert_eq!((sums.dims(), shares.dims()), (&[3, 2, 4][..], &[3, 4, 6][..]));
    near(&shares, &embedding(&table, &many).unwrap().softmax(-1).unwrap());

    let x = random(&device, &[2, 6], 2);
    let w = random(&device, &[6, 6], 3);
    let map = |x: &Tensor| x.matmul(&w);
    let act = |x: &Tensor| x.tanh();
    let graph = OpGraph::from_layers(&x, &[("first", &map), ("act", &act), ("second", &map)]).unwrap();
    let layers: Vec<&str> = graph.spec().nodes.iter().map(|n| n.layer.as_str()).collect();
    assert_eq!(layers, ["first", "act", "second"]);
    near(&graph.run(&[&x]).unwrap()[0], &map(&act(&map(&x).unwrap()).unwrap()).unwrap());
}

#[test]
fn what_a_graph_cannot_hold_is_refused_by_name() {
    let device = test_device().unwrap();
    let x = random(&device, &[4, 6], 1);
    let kept = random(&device, &[6], 2);
    let any = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let graph = OpGraph::for_any_rows(&[("x", &x)], |x| Ok(vec![f(&x[0])?]));
        graph.err().map_or_else(|| panic!("it was recorded"), |e| e.message().to_owned())
    };
    for (message, expected) in [
        (any(&|x| x.softmax(0)), "(permute) gives a result whose first axis is not just the rows"),
        (any(&|x| netcl_tensor::ops::join::cat(&[x, x], 0)), "operation 0 (cat) works along the rows"),
        (any(&|x| x.slice(0, 0..3)), "operation 0 (slice) gives a result"),
        (
            any(&|x| x.transpose(0, 1)),
            "operation 0 (permute) gives a result whose first axis is not just the rows",
        ),
        (any(&|x| x.sub(&x.sum(&[0], true)?)), "operation 0 (sum) gives a result"),
        (any(&|x| batch_norm(x, &kept, &kept, 1e-5).map(|[y, ..]| y)), "operation 0 (batch_norm) "),
        (any(&|x| x.add_scalar(x.to_vec()?[0])), "reads a result on the host"),
        (
            any(&|x| x.add(&Tensor::ones(&device, x.shape(), DType::F32)?)),
            "constant.0 has shape [5, 6] with 5 rows and [7, 6]",
        ),
        (
            any(&|x| if x.dims()[0] < 6 { x.exp() } else { x.tanh() }),
            "with 5 rows operation 0 (exp) is called, but tanh with 7 rows",
        ),
        (any(&|x| netcl_tensor::fuse(&[x], |t| t[0].exp()?.add(&t[0]))), "cannot contain fuse"),
        (
            any(&|x| {
                x.assign(&x.exp()?)?;
                x.tanh()
            }),
            "runs outside of an operation that can be called by name",
        ),
        (
            any(&|x| x.every(1, 0, 2, 3)?.exp()),
            "exp has a view of shape [5, 3] as an input that no operation created",
        ),
    ] {
        assert!(message.contains(expected), "{message}\nexpected: {expected}");
    }
    // This function overwrites another tensor.
    let x = random(&device, &[2, 6], 3);
    let error = OpGraph::of(&[("x", &x)], |x| {
        let y = x[0].mul(&kept)?;
        kept.set_all(1.0)?;
        Ok(vec![y])
    });
    assert!(error.err().unwrap().message().contains("a constant is overwritten within the function"));
}

/// With checks of `NETCL_DEBUG` that replays do not support, the graph is computed operation by operation.
#[test]
fn checks_name_the_operation_of_a_graph() {
    for checks in ["nan", "bounds"] {
        let settings = Settings { debug: vec![checks.into()], ..Settings::from_env() };
        let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
        let device = Device::open(&name, &settings).unwrap();
        let net = Net::new(&device);
        let graph = net.graph(&device);
        let x = random(&device, &[3, 3, 8, 8], 9);
        near(&graph.run(&[&x]).unwrap()[0], &net.forward(&x).unwrap());
        if checks == "nan" {
            let x = Tensor::full(&device, [1, 3, 8, 8], f32::NAN, DType::F32).unwrap();
            let error = graph.run(&[&x]).unwrap_err();
            let message = error.message();
            assert!(message.contains("operation 0 (conv2d of features.0): anomaly"), "{message}");
        }
    }
}

#[test]
fn it_is_shown_as_text_dot_svg_and_a_plan_of_memory() {
    let device = test_device().unwrap();
    let graph = Net::new(&device).graph(&device);
    let text = graph.to_string();
    for expected in [
        "conv2d(%0, %1, %2)",
        "f32 [rows, 5, 8, 8]",
        "features.0",
        "weight %1 features.0.weight f32 [5, 3, 3, 3]",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    assert!(graph.spec().nodes.iter().any(|n| n.kernels.iter().any(|k| !k.defines.is_empty())), "{text}");
    let (dot, svg) = (graph.to_dot(), graph.to_svg());
    assert!(dot.starts_with("digraph") && dot.matches(" -> ").count() >= graph.spec().nodes.len());
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("conv2d · features.0"));
    assert_eq!(svg.matches("<path d=\"M").count(), dot.matches(" -> ").count() + 1);
    let memory = graph.memory(8).unwrap();
    assert!(memory.plan.peak.0 <= memory.plan.bytes && memory.plan.bytes <= memory.unshared() + (1 << 20));
    let text = memory.to_string();
    assert!(text.contains("memory for 8 rows") && text.contains("without sharing"), "{text}");
}

/// Returns the file's header and its data.
fn parts(path: &Path) -> (serde_json::Value, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

fn assembled(header: &serde_json::Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn a_newer_schema_another_graph_and_other_weights_are_refused_by_name() {
    let device = test_device().unwrap();
    let graph = Net::new(&device).graph(&device);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    graph.save(&path).unwrap();
    let (header, data) = parts(&path);
    let x = random(&device, &[1, 3, 8, 8], 9);
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let ran = OpGraph::load(&path, &device).and_then(|graph| graph.run(&[&x]));
        ran.err().map_or_else(|| panic!("it ran"), |e| e.message().to_owned())
    };
    let mut newer = header.clone();
    newer["__metadata__"]["schema"] = "3".into();
    assert!(message(&assembled(&newer, &data)).contains("schema 3 is newer than 2"));
    let mut other = header.clone();
    let text = other["__metadata__"]["graph"].as_str().unwrap().replace("gelu", "tanh");
    other["__metadata__"]["graph"] = text.into();
    assert!(message(&assembled(&other, &data)).contains("graph: it is not what was saved"));
    let mut damaged = data.clone();
    damaged[5] ^= 1;
    assert!(
        message(&assembled(&header, &damaged))
            .contains("the bytes of features.0.weight are not what was saved")
    );
    let mut plain = header.clone();
    plain["__metadata__"]["format"] = "pt".into();
    assert!(message(&assembled(&plain, &data)).contains("not a graph of operations"));
    assert!(message(b"").contains("not a whole safetensors file"));
    let all = assembled(&header, &data);
    assert!(message(&all[..all.len() - 1]).contains("not a whole safetensors file"));
}

/// Masks among the weights: bytes in the file, and words in a file of schema 1.
#[test]
fn masks_are_saved_as_bytes_and_read_from_words() {
    let device = test_device().unwrap();
    let bits: Vec<f32> = (0..15).map(|i| f32::from(u8::from(i % 3 == 1))).collect();
    let mask = Tensor::from_f32(&device, [3, 5], &bits, DType::Bool).unwrap();
    let scale = Tensor::from_f32(&device, [5], &[2.0; 5], DType::F32).unwrap();
    let x = random(&device, &[3, 5], 4);
    let graph = OpGraph::of(&[("x", &x)], |x| Ok(vec![x[0].masked_fill(&mask, 7.0)?.mul(&scale)?])).unwrap();
    let expected = graph.run(&[&x]).unwrap()[0].to_vec().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [new, old] = ["new", "old"].map(|name| dir.path().join(name));
    graph.save(&new).unwrap();
    let (mut header, data) = parts(&new);
    let mut spec: serde_json::Value =
        serde_json::from_str(header["__metadata__"]["graph"].as_str().unwrap()).unwrap();
    let found = spec["weights"].as_array_mut().unwrap().iter_mut().find(|w| w["dtype"] == "bool").unwrap();
    let name = found["name"].as_str().unwrap().to_owned();
    assert_eq!(
        (&header[&name]["dtype"], &header[&name]["data_offsets"]),
        (&"BOOL".into(), &serde_json::json!([20, 35]))
    );
    // Read the same file in the first schema.
    let words: Vec<u8> = data[20..].iter().flat_map(|b| [*b, 0, 0, 0]).collect();
    found["hash"] = blake3::hash(&words).to_hex().as_str().into();
    header[&name]["dtype"] = "U32".into();
    header[&name]["data_offsets"] = serde_json::json!([20, 80]);
    let text = spec.to_string();
    header["__metadata__"]["hash"] = blake3::hash(text.as_bytes()).to_hex().as_str().into();
    header["__metadata__"]["graph"] = text.into();
    let data = [&data[..20], words.as_slice()].concat();
    let load = |schema: &str, header: &mut serde_json::Value| {
        header["__metadata__"]["schema"] = schema.into();
        std::fs::write(&old, assembled(header, &data)).unwrap();
        OpGraph::load(&old, &device)
    };
    let loaded = load("1", &mut header).unwrap();
    for graph in [&loaded, &OpGraph::load(&new, &device).unwrap()] {
        assert_eq!(graph.run(&[&x]).unwrap()[0].to_vec().unwrap(), expected);
    }
    // When saved again, it becomes a file of the current schema.
    let again = dir.path().join("again");
    loaded.save(&again).unwrap();
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&new).unwrap());
    let message = load("2", &mut header).err().unwrap().message().to_owned();
    assert!(message.contains("is U32 [3, 5] in the file, but bool [3, 5] in the graph"), "{message}");
}

/// Lists every position of a document that has a value.
fn pointers(json: &serde_json::Value, at: &str, out: &mut Vec<String>) {
    match json {
        serde_json::Value::Array(all) => {
            all.iter().enumerate().for_each(|(i, v)| pointers(v, &format!("{at}/{i}"), out));
        }
        serde_json::Value::Object(all) => {
            all.iter().for_each(|(k, v)| pointers(v, &format!("{at}/{k}"), out))
        }
        _ => {}
    }
    out.push(at.to_owned());
}

/// Returns the file with some bytes changed, with bytes inserted, or with its end cut off.
fn with_other_bytes(whole: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    match draw.below(3) {
        0 => bytes.truncate(draw.below(whole.len())),
        1 => bytes.insert(draw.below(whole.len()), draw.below(256) as u8),
        _ => (0..=draw.below(4)).for_each(|_| bytes[draw.below(whole.len())] ^= 1 << draw.below(8)),
    }
    bytes
}

const VALUES: [&str; 12] = [
    "null",
    "-1",
    "0",
    "1",
    "7",
    "99999999999999",
    "-9223372036854775808",
    "[]",
    "{}",
    "\"exp\"",
    "true",
    "1e300",
];

/// Returns a complete file with a correct hash, whose graph has other values in some places.
fn saying_something_else(header: &serde_json::Value, data: &[u8], draw: &mut Draw) -> Vec<u8> {
    let text = header["__metadata__"]["graph"].as_str().unwrap();
    let mut said: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut places = Vec::new();
    pointers(&said, "", &mut places);
    for _ in 0..=draw.below(2) {
        let value = serde_json::from_str(VALUES[draw.below(VALUES.len())]).unwrap();
        if let Some(place) = said.pointer_mut(&places[draw.below(places.len())]) {
            *place = value;
        }
    }
    let mut header = header.clone();
    let text = said.to_string();
    header["__metadata__"]["hash"] = blake3::hash(text.as_bytes()).to_hex().to_string().into();
    header["__metadata__"]["graph"] = text.into();
    assembled(&header, data)
}

/// A damaged file is an error, or gives the same result if the damaged part has no effect. Half of the files have bytes changed, cut off or
/// inserted. The others are complete files with a correct hash and a changed graph.
#[test]
fn a_thousand_damaged_files_are_errors() {
    let device = test_device().unwrap();
    let x = random(&device, &[2, 6], 1);
    let w = random(&device, &[6, 6], 2).parameter("map.weight");
    let graph = OpGraph::for_any_rows(&[("x", &x)], |x| {
        let n = x[0].dims()[0];
        let y = x[0].matmul(&w)?.relu()?.reshape([n, 2, 3])?.permute(&[0, 2, 1])?.sum(&[1], false)?;
        Ok(vec![y.masked_fill(&y.gt(&y.exp()?)?, f32::NEG_INFINITY)?.softmax(-1)?])
    })
    .unwrap();
    let expected = bits(&graph.run(&[&x]).unwrap()[0]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graph.safetensors");
    graph.save(&path).unwrap();
    let (whole, (header, data)) = (std::fs::read(&path).unwrap(), parts(&path));
    let mut draw = Draw::new(20);
    let (mut errors, mut same) = (0, 0);
    for round in 0..1000 {
        let bytes = match round % 2 {
            0 => with_other_bytes(&whole, &mut draw),
            _ => saying_something_else(&header, &data, &mut draw),
        };
        std::fs::write(&path, &bytes).unwrap();
        device.reset_memory_peak();
        let live = device.memory().live;
        match OpGraph::load(&path, &device).and_then(|graph| graph.run(&[&x])) {
            Err(e) => {
                assert!(!e.message().is_empty() && e.kind() != ErrorKind::Internal, "round {round}: {e}");
                errors += 1;
            }
            // Names of layers, kernels and devices have no effect. A complete file with a changed graph computes that graph.
            Ok(y) => same += usize::from(round % 2 == 1 || bits(&y[0]) == expected),
        }
        let memory = device.memory();
        assert!(
            memory.live <= live + (1 << 16) && memory.peak <= live + (1 << 20),
            "round {round}: {memory:?}"
        );
    }
    assert_eq!(errors + same, 1000);
    assert!(errors > 600, "{errors}");
}
