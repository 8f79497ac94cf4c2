//! `netcl bench ops`: every op's benchmark samples, forward and backward.

use super::versus::SIZES;
use super::{Bench, Common, Line, fuse};
use crate::profile::Costs;
use netcl::device::did_you_mean;
use netcl::prelude::*;
use netcl::tensor::ops::OPS;
use netcl::tensor::suite::{BenchCase, MAX_REFERENCE_ELEMENTS};
use serde_json::{Value, json};

/// Flags of `bench ops`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Only ops whose name contains this; `fuse` for twelve generated kernels, `fuse:NAME` for one
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    /// Print errors against f64, of netcl and of the peer on the same inputs, instead of times
    ///
    /// The sizes are those that a reference on the host can compute.
    #[arg(long)]
    pub errors: bool,
    /// Also profile some further runs and print the time per kernel
    #[arg(long, conflicts_with = "errors")]
    profile: bool,
    /// Compare --device with this device instead of the peer
    ///
    /// Prints a table of speedups at three sizes, with and without the transfers of inputs and results. It covers products, attention, layer norms,
    /// GELU, residual additions and convolutions.
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["errors", "profile", "op"])]
    pub against: Option<String>,
    /// Sizes in that table
    #[arg(long, value_delimiter = ',', default_value = "small,medium,large", requires = "against", value_parser = SIZES.map(|(name, ..)| name))]
    pub sizes: Vec<String>,
}

/// Runs whose kernels are timed.
const PROFILED: u64 = 10;

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    let (device, dtype) = (bench.device.clone(), bench.dtype);
    let fused = fuse::named(args.op.as_deref());
    if args.op.is_none() || fused.is_empty() {
        args.each(&device, dtype, &mut |name, case| measure(bench, name, case, args.profile))?;
    }
    fuse::run(bench, &fused)
}

impl Args {
    /// Visits the cases that `--op` selects, with their names.
    pub fn each(
        &self,
        device: &Device,
        dtype: DType,
        visit: &mut dyn FnMut(&str, BenchCase<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut found = false;
        for op in OPS {
            let named = |name: &str| {
                self.op.as_ref().is_none_or(|part| name.contains(part) || op.name.contains(part))
            };
            (op.bench)(device, dtype, &named, &mut |case| {
                found = true;
                visit(if case.sample.is_empty() { case.op } else { case.sample }, case)
            })?;
        }
        match (&self.op, found) {
            (Some(part), false) => Err(Error::format(format!(
                "no op with a benchmark is called {part:?}; `netcl bench ops` without --op runs all of them{}",
                did_you_mean(part, OPS.iter().flat_map(|op| op.name.split("::")))
            ))),
            _ => Ok(()),
        }
    }
}

/// Compares the op with its reference, values and gradients, at the timed sizes or, if the reference takes too long for them, at smaller ones. Checks
/// every result of the timed sizes for zeros only, or NaNs.
///
/// # Errors
/// `Internal` with the wrong value.
fn check(name: &str, case: &mut BenchCase<'_>) -> Result<()> {
    let wrong =
        |what: &str, e: &Error| Error::internal(format!("bench ops: {name}{what} is wrong: {}", e.message()));
    let verified = (case.accuracy)(MAX_REFERENCE_ELEMENTS).and_then(|a| a.verify());
    verified.map_err(|e| wrong("", &e))?;
    (case.gradients)().map_err(|e| wrong("'s backward", &e))?;
    for (pass, run) in [("", &mut case.forward), ("'s backward", &mut case.backward)] {
        for tensor in run.as_mut().map_or_else(|| Ok(Vec::new()), |run| run())? {
            let values = if tensor.dtype().is_float() { tensor.to_vec()? } else { continue };
            let nothing = !values.is_empty() && values.iter().all(|v| *v == 0.0);
            if nothing || values.iter().any(|v| v.is_nan()) {
                let why = if nothing { "a result of only zeros" } else { "a result with NaNs" };
                return Err(wrong(pass, &Error::internal(why)));
            }
        }
    }
    Ok(())
}

fn measure(bench: &mut Bench, name: &str, mut case: BenchCase<'_>, profile: bool) -> Result<()> {
    check(name, &mut case)?;
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
            checked: true,
            ..Line::default()
        };
        let request = request(name, &case.shapes).map(|mut request| {
            request["pass"] = pass.into();
            request["dtype"] = bench.kind.clone().into();
            request
        });
        bench.measure(line, request, &mut || run().map(|_| ()))?;
        if profile {
            bench.device.start_profile();
            let ran = (0..PROFILED).try_for_each(|_| run().map(|_| ()));
            let kernels = bench.device.stop_profile()?;
            ran?;
            let ceilings = Some(bench.ceilings);
            bench.printer.profile(&Costs { kernels: &kernels, steps: PROFILED, ceilings })?;
        }
    }
    Ok(())
}

/// Returns the operations that the kernels of one run declare; 0 if none declares them.
pub(super) fn flops(device: &Device, run: &mut dyn FnMut() -> Result<()>) -> Result<u64> {
    device.start_profile();
    let ran = run();
    let kernels = device.stop_profile()?;
    ran.map(|()| kernels.iter().map(|k| k.flops).sum())
}

/// Returns the peer's op that computes this one from the same inputs.
pub fn peer_op(name: &str) -> Option<Value> {
    Some(match name {
        "gelu" => json!({ "op": "gelu", "approximate": "none" }),
        "gelu_tanh" => json!({ "op": "gelu", "approximate": "tanh" }),
        "exp" | "tanh" | "sigmoid" | "relu" | "silu" | "add" | "mul" | "layer_norm" | "rms_norm"
        | "softmax" | "log_softmax" | "cross_entropy" | "embedding" | "attention" | "matmul" => {
            json!({ "op": name })
        }
        _ => return None,
    })
}

/// Returns the peer's request, if it has the op.
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
        "experts" => {
            let [_, ids, _, gate_up, down] = shapes else { return None };
            let sizes = [first.first()?, ids.last()?, gate_up.first()?, first.last()?, down.last()?];
            json!({ "op": name, "shape": sizes })
        }
        "attention" if first.len() == 4 => json!({ "op": name, "shape": first }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests;
    use clap::Parser;

    #[test]
    fn requests_have_the_peers_shapes() {
        let shape = |name, shapes: &[Vec<usize>]| request(name, shapes).map(|r| r["shape"].clone());
        assert_eq!(shape("layer_norm", &[vec![2, 3, 8], vec![8]]), Some(json!([6, 8])));
        assert_eq!(shape("embedding", &[vec![50, 8], vec![4, 5]]), Some(json!([50, 8, 20])));
        let experts = [vec![9, 8], vec![9, 2], vec![9, 2], vec![3, 12, 8], vec![3, 8, 6]];
        assert_eq!(shape("experts", &experts), Some(json!([9, 2, 3, 8, 6])));
        assert_eq!(shape("exp", &[vec![4, 5]]), Some(json!([4, 5])));
        assert_eq!(shape("unknown", &[vec![4]]), None);
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn checked(device: &Device, op: &str, dtype: DType) -> Result<usize> {
        let Line { args } = Line::parse_from(["bench", "--op", op]);
        let mut count = 0;
        args.each(device, dtype, &mut |name, case| {
            count += 1;
            check(name, &mut { case })
        })?;
        Ok(count)
    }

    #[test]
    fn a_wrong_kernel_is_found_before_it_is_timed() {
        let healthy = tests::device(|text| text.to_owned());
        assert_eq!(checked(&healthy, "rms_norm", DType::F32).unwrap(), 1);
        assert_eq!(checked(&healthy, "rms_norm", DType::Bf16).unwrap(), 1);
        // The result is right, but a value that the backward reads is wrong.
        let broken = tests::device(|text| text.replace("rstd[row] = r;", "rstd[row] = 0.5f * r;"));
        let message = checked(&broken, "rms_norm", DType::F32).unwrap_err().to_string();
        assert!(message.contains("rms_norm's backward is wrong: gradient"), "{message}");
        let broken = tests::device(|text| text.replace("inverse = 1.0f /", "inverse = 2.0f /"));
        let message = checked(&broken, "softmax", DType::F32).unwrap_err().to_string();
        assert!(message.contains("softmax is wrong: element"), "{message}");
    }
}
