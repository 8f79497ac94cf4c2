//! `netcl bench ops`: every op's benchmark samples, forward and backward.

use super::{Bench, Common, Line};
use netcl::prelude::*;
use netcl::tensor::ops::OPS;
use netcl::tensor::suite::BenchCase;
use serde_json::{Value, json};

/// Flags of `bench ops`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Only ops whose name contains this
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
}

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    let mut found = false;
    for op in OPS {
        let (device, dtype) = (bench.device.clone(), bench.dtype);
        let wanted =
            |name: &str| args.op.as_ref().is_none_or(|part| name.contains(part) || op.name.contains(part));
        (op.bench)(&device, dtype, &wanted, &mut |case| {
            found = true;
            measure(bench, case)
        })?;
    }
    match (&args.op, found) {
        (Some(part), false) => Err(Error::format(format!(
            "no op with a benchmark is called {part:?}; `netcl bench ops` without --op shows all of them"
        ))),
        _ => Ok(()),
    }
}

fn measure(bench: &mut Bench, mut case: BenchCase<'_>) -> Result<()> {
    let name = case.name;
    let passes = [("fwd", case.forward.take(), case.bytes[0]), ("bwd", case.backward.take(), case.bytes[1])];
    for (pass, run, bytes) in passes {
        let Some(mut run) = run else { continue };
        let flops = flops(&bench.device, &mut || run().map(|_| ()))?;
        let line = Line {
            op: name.into(),
            shape: case.shapes.first().cloned().unwrap_or_default(),
            pass,
            flops,
            bytes,
            ..Line::default()
        };
        let request = request(name, &case.shapes).map(|mut request| {
            request["pass"] = pass.into();
            request["dtype"] = bench.kind.clone().into();
            request
        });
        bench.measure(line, request, &mut || run().map(|_| ()))?;
    }
    Ok(())
}

/// What the kernels of one run say they compute; 0 where none says.
fn flops(device: &Device, run: &mut dyn FnMut() -> Result<()>) -> Result<u64> {
    device.start_profile();
    let ran = run();
    let kernels = device.stop_profile()?;
    ran.map(|()| kernels.iter().map(|k| k.flops).sum())
}

/// The same for the peer, where it has the op.
fn request(name: &str, shapes: &[Vec<usize>]) -> Option<Value> {
    let first = shapes.first()?;
    let rows_cols = || first.split_last().map(|(n, rows)| vec![rows.iter().product::<usize>(), *n]);
    Some(match name {
        "exp" | "tanh" | "sigmoid" | "relu" | "silu" | "add" | "mul" => json!({ "op": name, "shape": first }),
        "gelu" => json!({ "op": "gelu", "shape": first, "approximate": "none" }),
        "gelu_tanh" => json!({ "op": "gelu", "shape": first, "approximate": "tanh" }),
        "layer_norm" | "rms_norm" | "softmax" | "log_softmax" | "cross_entropy" => {
            json!({ "op": name, "shape": rows_cols()? })
        }
        "embedding" => {
            let ids: usize = shapes.get(1)?.iter().product();
            json!({ "op": name, "shape": [first.first()?, first.get(1)?, ids] })
        }
        "attention" if first.len() == 4 => json!({ "op": name, "shape": first }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_peers_shapes() {
        let shape = |name, shapes: &[Vec<usize>]| request(name, shapes).map(|r| r["shape"].clone());
        assert_eq!(shape("layer_norm", &[vec![2, 3, 8], vec![8]]), Some(json!([6, 8])));
        assert_eq!(shape("embedding", &[vec![50, 8], vec![4, 5]]), Some(json!([50, 8, 20])));
        assert_eq!(shape("exp", &[vec![4, 5]]), Some(json!([4, 5])));
        assert_eq!(shape("unknown", &[vec![4]]), None);
    }
}
