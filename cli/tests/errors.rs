//! `netcl bench … --errors`: errors against f64, ours alone and beside a peer.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod common;

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
