//! Measurements printed by `tune --model --json` and `bench gemm|attention --regret --json`, for fitting constants without measuring.

use super::model::{Timed, distinct, fitted, twin};
use crate::bench::attention::{Case, Shape};
use crate::bench::gemm::Operands;
use netcl::prelude::*;
use netcl::tensor::ops::Row;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Fits constants to earlier measurements of this device; saves and prints them.
///
/// # Errors
/// Errors of [`read`], and `Io` if the results cannot be saved.
pub fn refit(device: &Device, files: &[PathBuf], json: bool) -> Result<()> {
    let (begun, twin) = (Instant::now(), &twin(device));
    let all = files.iter().map(|file| read(twin, file)).collect::<Result<Vec<_>>>()?;
    fitted(device, twin, &all.into_iter().flatten().collect::<Vec<_>>(), begun, json)
}

/// Reads the measured problems of a file of JSON lines. Skips other lines, and algorithms that netcl no longer has.
///
/// # Errors
/// `Io`; `Format` for a file without measurements, or one that cannot be parsed.
fn read<'a>(twin: &'a Device, path: &Path) -> Result<Vec<Timed<'a>>> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("reading", path, &e))?;
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let times = times(&line);
        if times.is_empty() || !line["shape"].is_array() {
            continue;
        }
        let problem = problem(twin, line, times);
        all.push(problem.map_err(|e| e.context(format!("{}, line {}", path.display(), i + 1)))?);
    }
    if all.is_empty() {
        return Err(Error::format(format!(
            "{}: no measurements; `netcl tune --model --json` and `netcl bench gemm --regret N --json` print them",
            path.display()
        )));
    }
    Ok(all)
}

/// Returns algorithms and their microseconds, in either format.
fn times(line: &Value) -> Vec<(String, f64)> {
    let of_rows = line["algorithms"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| Some((row["algorithm"].as_str()?.to_owned(), row["us"].as_f64()?)));
    let by_name = line["us"].as_object().into_iter().flatten();
    of_rows.chain(by_name.filter_map(|(name, us)| Some((name.clone(), us.as_f64()?)))).collect()
}

fn problem(twin: &Device, line: Value, times: Vec<(String, f64)>) -> Result<Timed<'_>> {
    let missing = |what: &str| Error::format(format!("a measurement without {what}: {line}"));
    let shape: Vec<usize> = serde_json::from_value(line["shape"].clone()).map_err(|_| missing("sizes"))?;
    let dtype = DType::FLOATS.into_iter().find(|dtype| line["dtype"] == dtype.to_string());
    let dtype = dtype.ok_or_else(|| missing("dtype"))?;
    let explain: Box<dyn Fn() -> Vec<Row> + '_> = match (line["op"].as_str(), shape.as_slice()) {
        (Some("gemm"), &[m, n, k]) => {
            let layout = line["layout"].as_str().ok_or_else(|| missing("layout"))?.to_owned();
            Box::new(move || Operands::explain_on(twin, [m, n, k], &layout, dtype).unwrap_or_default())
        }
        (Some("attention"), &[batch, heads, tokens, size]) => {
            let kv_heads = line["kv_heads"].as_u64().ok_or_else(|| missing("kv_heads"))? as usize;
            let causal = line["causal"].as_bool().ok_or_else(|| missing("causal"))?;
            let pass = usize::from(line["pass"] == "bwd");
            let shape = Shape { batch, heads, kv_heads, tokens, size };
            Box::new(move || {
                let both = Case::explain_on(twin, shape, causal, dtype);
                both.ok().and_then(|both| both.into_iter().nth(pass)).unwrap_or_default()
            })
        }
        _ => return Err(missing("an op with a choice of algorithms")),
    };
    let rows = explain();
    let row_of = |name: &str| rows.iter().find(|row| row.name == name && row.estimate.is_ok());
    let times: Vec<_> = times.iter().filter_map(|(name, us)| Some((row_of(name)?, *us))).collect();
    let models = distinct(times.iter().flat_map(|(row, _)| row.models));
    let times = times.into_iter().map(|(row, us)| (row.name, us)).collect();
    Ok(Timed { about: line, times, explain, models })
}
