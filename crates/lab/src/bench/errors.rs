//! `netcl bench gemm|ops --errors`: differences of results from f64, of netcl and of the peer on the same inputs.

use super::gemm::Product;
use super::{Setup, gemm, ops};
use crate::out;
use netcl::prelude::*;
use netcl::tensor::array::Array;
use netcl::tensor::suite::{Accuracy, Errors, ReferenceGradients};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Maximum elements of an op's inputs, for which the f64 reference takes some seconds.
const ELEMENTS: usize = 1 << 22;
/// Entries of a product that are compared, each a sum in f64 on the host.
const ENTRIES: usize = 4096;

/// A folder for the peer's inputs and results, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("netcl-errors-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Error::io("creating", &path, &e))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, data: impl Iterator<Item = f32>) -> Result<PathBuf> {
        let path = self.0.join(name);
        let bytes: Vec<u8> = data.flat_map(f32::to_ne_bytes).collect();
        std::fs::write(&path, bytes).map_err(|e| Error::io("writing", &path, &e))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(path: &Path) -> Result<Vec<f32>> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("reading", path, &e))?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// One op's errors.
struct Row {
    op: String,
    shape: Vec<usize>,
    layout: String,
    ours: Errors,
    /// The peer's errors, or why it has none.
    theirs: Option<std::result::Result<Errors, String>>,
}

/// Prints the errors of every product.
///
/// # Errors
/// Errors of the device; `Io` if the peer has ended.
pub fn gemm(args: &gemm::Args, setup: &mut Setup) -> Result<()> {
    let mut table = Table::new(setup)?;
    for (size, layout) in args.products(&setup.device) {
        let product = Product::new(&setup.device, size, layout, setup.dtype)?;
        let places = product.places(ENTRIES);
        let expected: Vec<f64> = places.iter().map(|&(i, j)| product.entry(i, j).0).collect();
        let got = product.run()?.to_vec()?;
        let [m, n, k] = size;
        let pick = |c: &[f32]| -> Vec<f32> {
            places.iter().map(|(i, j)| c.get(i * n + j).copied().unwrap_or(f32::NAN)).collect()
        };
        let ours = Errors::of(&pick(&got), &expected);
        let stored =
            |shape: [usize; 2], transposed: bool| if transposed { [shape[1], shape[0]] } else { shape };
        let shapes = [stored([m, k], layout.starts_with('T')), stored([k, n], layout.ends_with('T'))];
        let inputs: Vec<Input> =
            product.stored.iter().zip(shapes).map(|(data, shape)| (data.clone(), shape.to_vec())).collect();
        let request = json!({ "op": "gemm", "layout": layout });
        let theirs = table.peer(setup, request, inputs, m * n)?;
        let theirs = theirs.map(|c| c.map(|c| Errors::of(&pick(&c), &expected)));
        table.row(
            setup,
            &Row { op: "gemm".into(), shape: size.into(), layout: layout.into(), ours, theirs },
        )?;
    }
    Ok(())
}

/// Prints the errors of every op that has a benchmark.
///
/// # Errors
/// Errors of [`gemm`].
pub fn ops(args: &ops::Args, setup: &mut Setup) -> Result<()> {
    let mut table = Table::new(setup)?;
    let (device, dtype) = (setup.device.clone(), setup.dtype);
    args.each(&device, dtype, &mut |name, case| {
        let Accuracy { inputs, expected, got, .. } = (case.accuracy)(ELEMENTS)?;
        let (Some(got), Some(expected)) = (got.first(), expected.first()) else { return Ok(()) };
        let ours = Errors::of(got, &expected.data);
        let shape = inputs.first().map_or_else(Vec::new, |a| a.shape.dims().to_vec());
        let list = inputs.iter().map(|a| {
            let data = a.data.iter().map(|v| *v as f32).collect();
            (data, a.shape.dims().to_vec())
        });
        let theirs = match ops::peer_op(name) {
            Some(request) => table.peer(setup, request, list.collect(), expected.data.len())?,
            None => setup.peer.as_ref().map(|_| Err("the peer does not have this op".into())),
        };
        let theirs = theirs.map(|y| y.map(|y| Errors::of(&y, &expected.data)));
        table.row(setup, &Row { op: name.into(), shape, layout: String::new(), ours, theirs })?;
        let Some(request) = ops::peer_op(name).filter(|_| setup.peer.is_some()) else { return Ok(()) };
        let Some(gradients) = (case.gradients_of)(ELEMENTS)? else { return Ok(()) };
        backward(&mut table, setup, name, request, &gradients)
    })
}

/// Prints a line for all gradients of an op: netcl's and the peer's, compared with the peer's in f64.
fn backward(
    table: &mut Table,
    setup: &mut Setup,
    name: &str,
    mut request: Value,
    ours: &ReferenceGradients,
) -> Result<()> {
    let f32s = |a: &Array| -> Input { (a.data.iter().map(|v| *v as f32).collect(), a.shape.dims().to_vec()) };
    let (dy, shape) = f32s(&ours.dy);
    let got: Vec<f32> = ours.got.concat();
    let path = table.folder.write("dy", dy.into_iter())?;
    let exact = table.folder.write("exact", std::iter::repeat_n(f32::NAN, 2 * got.len()))?;
    request["dy"] = json!({ "path": path, "shape": shape });
    request["exact"] = json!(exact);
    let shape = ours.inputs.first().map_or_else(Vec::new, |a| a.shape.dims().to_vec());
    let theirs = match table.peer(setup, request, ours.inputs.iter().map(f32s).collect(), got.len())? {
        Some(Ok(theirs)) => theirs,
        Some(Err(why)) => {
            tracing::warn!("{name}'s backward: the peer does not support it: {why}");
            return Ok(());
        }
        None => return Ok(()),
    };
    let bytes = std::fs::read(&exact).map_err(|e| Error::io("reading", &exact, &e))?;
    let exact: Vec<f64> =
        bytes.chunks_exact(8).map(|b| f64::from_ne_bytes(std::array::from_fn(|i| b[i]))).collect();
    let row = Row {
        op: name.into(),
        shape,
        layout: "bwd".into(),
        ours: Errors::of(&got, &exact),
        theirs: Some(Ok(Errors::of(&theirs, &exact))),
    };
    table.row(setup, &row)
}

/// Elements and shape.
type Input = (Vec<f32>, Vec<usize>);

struct Table {
    folder: Folder,
    header: bool,
}

impl Table {
    fn new(setup: &Setup) -> Result<Self> {
        if !setup.json {
            out::result(&format!(
                "{}: {}. Errors against f64, relative to the root mean square of the result",
                setup.device.capabilities().id,
                setup.device.capabilities().name
            ))?;
        }
        Ok(Self { folder: Folder::new()?, header: false })
    }

    /// Returns the peer's result on the same inputs: `None` without a peer, an inner error if it refuses.
    fn peer(
        &self,
        setup: &mut Setup,
        mut request: Value,
        inputs: Vec<Input>,
        elements: usize,
    ) -> Result<Option<std::result::Result<Vec<f32>, String>>> {
        let Some(peer) = &mut setup.peer else { return Ok(None) };
        let mut files = Vec::new();
        for (i, (data, shape)) in inputs.into_iter().enumerate() {
            let path = self.folder.write(&format!("input-{i}"), data.into_iter())?;
            files.push(json!({ "path": path, "shape": shape }));
        }
        let result = self.folder.write("result", std::iter::repeat_n(f32::NAN, elements))?;
        request["inputs"] = files.into();
        request["result"] = json!(result);
        request["dtype"] = setup.kind.clone().into();
        Ok(Some(match peer.evaluate(request)? {
            Ok(()) => Ok(read(&result)?),
            Err(why) => Err(why),
        }))
    }

    fn row(&mut self, setup: &Setup, row: &Row) -> Result<()> {
        let theirs = row.theirs.as_ref().and_then(|t| t.as_ref().ok());
        let ratio = |ours: f64, theirs: Option<f64>| theirs.filter(|t| *t > 0.0).map(|t| ours / t);
        let (max, rms) =
            (ratio(row.ours.max, theirs.map(|t| t.max)), ratio(row.ours.rms, theirs.map(|t| t.rms)));
        if setup.json {
            let mut object = Map::new();
            let mut put = |key: &str, value: Value| object.insert(key.into(), value);
            put("op", format!("{} error", row.op).into());
            put("shape", json!(row.shape));
            put("layout", row.layout.clone().into());
            put("dtype", setup.kind.clone().into());
            put("device", setup.device.capabilities().id.clone().into());
            put("max", json!(row.ours.max));
            put("rms", json!(row.ours.rms));
            if let Some(theirs) = theirs {
                put("peer_max", json!(theirs.max));
                put("peer_rms", json!(theirs.rms));
                put("ratio_max", json!(max));
                put("ratio_rms", json!(rms));
            }
            if let Some(Err(why)) = &row.theirs {
                put("peer_error", why.clone().into());
            }
            return out::json(&object);
        }
        if !std::mem::replace(&mut self.header, true) {
            out::result(&line(&[
                "op", "shape", "", "dtype", "max", "peer max", "ratio", "rms", "peer rms", "ratio",
            ]))?;
        }
        let shape: Vec<String> = row.shape.iter().map(ToString::to_string).collect();
        let number = |n: Option<f64>| n.map_or("".into(), |n| format!("{n:.2e}"));
        let share = |n: Option<f64>| n.map_or("".into(), |n| format!("{n:.2}"));
        let none = if matches!(row.theirs, Some(Err(_))) { "none" } else { "" };
        let peer = |n: Option<f64>| if n.is_some() { number(n) } else { none.into() };
        out::result(&line(&[
            &row.op,
            &shape.join("×"),
            &row.layout,
            &setup.kind,
            &number(Some(row.ours.max)),
            &peer(theirs.map(|t| t.max)),
            &share(max),
            &number(Some(row.ours.rms)),
            &peer(theirs.map(|t| t.rms)),
            &share(rms),
        ]))
    }
}

fn line(cells: &[&str; 10]) -> String {
    let [op, shape, layout, dtype, rest @ ..] = cells;
    let numbers: String = rest.iter().map(|c| format!("{c:>10}")).collect();
    format!("{op:<20}{shape:<20}{layout:<5}{dtype:<6}{numbers}").trim_end().into()
}
