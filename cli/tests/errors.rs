//! `netcl bench … --errors`: errors against f64, of netcl alone and of a peer; `--against`: one device compared with another.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, netcl, texts};
use serde_json::Value;

fn lines(args: &str) -> Vec<Value> {
    let output = netcl().args(args.split(' ')).args(["--device", &device()]).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

#[test]
fn errors_of_products_are_those_of_their_type() {
    for (dtype, least, most) in [("f32", 1e-9, 1e-5), ("bf16", 1e-4, 2e-2), ("f16", 1e-5, 2e-3)] {
        let found =
            lines(&format!("bench gemm --errors --json --peer none --sizes 64x48x80 --dtype {dtype}"));
        assert_eq!(
            found.iter().map(|l| l["layout"].as_str().unwrap()).collect::<Vec<_>>(),
            ["NN", "NT", "TN"]
        );
        for line in found {
            let (max, rms) = (line["max"].as_f64().unwrap(), line["rms"].as_f64().unwrap());
            assert!(rms <= max && least < rms && max < most, "{dtype}: {line}");
            assert!(line.get("peer_max").is_none() && line["dtype"] == dtype, "{line}");
        }
    }
}

#[test]
fn errors_of_an_op_without_a_peer_and_as_a_table() {
    let found = lines("bench ops --errors --json --peer none --op rms_norm");
    let rms_norm: Vec<&Value> = found.iter().filter(|l| l["op"] == "rms_norm error").collect();
    assert_eq!(rms_norm.len(), 1, "{found:?}");
    let rms = rms_norm[0]["rms"].as_f64().unwrap();
    assert!(rms > 1e-9 && rms < 1e-6, "{rms}");
    let args = "bench gemm --errors --peer none --sizes 32 --layouts NN --device";
    let output = netcl().args(args.split(' ')).arg(device()).output().unwrap();
    let (out, err) = texts(&output);
    assert!(out.contains("Errors against f64") && out.contains("peer rms"), "{out}{err}");
    assert!(out.lines().any(|l| l.starts_with("gemm") && l.contains("32×32×32")), "{out}");
}

#[test]
fn one_device_beside_another_is_a_line_for_each_operation() {
    let against = device();
    let found = lines(&format!(
        "bench ops --against {against} --sizes small --rounds 1 --sample-ms 0.01 --json --peer none"
    ));
    let ops: Vec<&str> = found.iter().map(|l| l["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["matmul", "attention", "layer_norm", "gelu", "residual", "conv2d"]);
    for line in &found {
        assert_eq!(
            (&line["size"], &line["dtype"], &line["device"]),
            (&"small".into(), &"f32".into(), &line["against"])
        );
        let number = |key: &str| line[key].as_f64().unwrap();
        for (speedup, [ours, theirs]) in [
            ("speedup", ["median_ms", "against_median_ms"]),
            ("speedup_with_transfers", ["median_ms_with_transfers", "against_median_ms_with_transfers"]),
        ] {
            assert!(
                number(ours) > 0.0 && (number(speedup) - number(theirs) / number(ours)).abs() < 1e-9,
                "{line}"
            );
        }
    }
    assert_eq!(found[0]["shapes"], serde_json::json!([[16, 768], [768, 768]]));
    let args = ["bench", "ops", "--against", &against, "--sizes", "huge"];
    let (_, err) = texts(&netcl().args(args).output().unwrap());
    assert!(err.contains("small, medium, large"), "{err}");
}
