//! Tuning results on disk: one file a device under `<cache>/tuning/<vendor>/<architecture>/`, every measurement kept.
//!
//! A choice is looked up for the device, then for its architecture, then for its vendor, then among the results that
//! ship with netcl.

use super::Params;
use netcl_device::{Capabilities, Error, Result, Settings};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// One candidate's measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The candidate.
    pub params: Params,
    /// Median device time in microseconds; `None` when it was not timed.
    pub median_us: Option<f64>,
    /// `ok`, or why it was skipped.
    pub status: String,
}

/// What was found for one kernel and class of shapes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Kernel variant.
    pub kernel: String,
    /// Class of shapes.
    pub bucket: u64,
    /// What it was measured on, for people.
    pub case: String,
    /// The choice.
    pub chosen: Params,
    /// The default it was compared with.
    pub default: Params,
    /// Default time over chosen time.
    pub speedup: f64,
    /// Every candidate.
    pub measurements: Vec<Measurement>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Shelf {
    vendor: String,
    architecture: String,
    device: String,
    driver: String,
    records: Vec<Record>,
}

/// Results that ship with netcl.
const SHIPPED: &[&str] = &[];

/// The results that apply to one device.
pub struct Store {
    path: Option<PathBuf>,
    own: Mutex<Shelf>,
    /// Other devices' results, nearest first.
    others: Vec<Shelf>,
}

/// Letters and digits of a name, the rest as single dashes: fit for a file name.
fn slug(text: &str) -> String {
    let words: Vec<String> = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    if words.is_empty() { "unknown".into() } else { words.join("-") }
}

/// Architecture as far as a device tells: compute capability on NVIDIA, name and lanes elsewhere.
fn architecture(device: &Capabilities) -> String {
    if device.nvidia_cc > 0 {
        format!("sm{}", device.nvidia_cc)
    } else {
        format!("{:?}-v{}", device.kind, device.float_lanes).to_lowercase()
    }
}

impl Store {
    /// Reads what there is for a device. A file that does not parse is ignored with a warning.
    pub fn open(settings: &Settings, device: &Capabilities) -> Self {
        let own = Shelf {
            vendor: slug(&device.vendor),
            architecture: architecture(device),
            device: slug(&device.name),
            driver: device.driver_version.clone(),
            records: Vec::new(),
        };
        let root = settings.cache_dir.as_ref().map(|d| d.join("tuning"));
        let path = root
            .as_ref()
            .map(|r| r.join(&own.vendor).join(&own.architecture).join(format!("{}.json", own.device)));
        let mut shelves: Vec<Shelf> =
            root.as_ref().map(|r| files_below(r)).unwrap_or_default().iter().filter_map(read).collect();
        shelves.extend(SHIPPED.iter().filter_map(|text| serde_json::from_str(text).ok()));
        let mut mine = own.clone();
        if let Some(at) =
            shelves.iter().position(|s| s.device == own.device && s.architecture == own.architecture)
        {
            mine = shelves.remove(at);
        }
        shelves.retain(|s| s.vendor == own.vendor);
        shelves.sort_by_key(|s| s.architecture != own.architecture);
        Self { path, own: Mutex::new(mine), others: shelves }
    }

    /// The parameters to use for a kernel, if anything was measured.
    pub fn choice(&self, kernel: &str, bucket: u64) -> Option<Params> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let pick = |shelf: &Shelf| {
            shelf.records.iter().find(|r| r.kernel == kernel && r.bucket == bucket).map(|r| r.chosen.clone())
        };
        pick(&own).or_else(|| self.others.iter().find_map(pick))
    }

    /// Everything known for this very device.
    pub fn records(&self) -> Vec<Record> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).records.clone()
    }

    /// Keeps a result and writes the file.
    pub fn put(&self, record: Record) -> Result<()> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.records.retain(|r| (r.kernel.as_str(), r.bucket) != (record.kernel.as_str(), record.bucket));
        own.records.push(record);
        let Some(path) = &self.path else { return Ok(()) };
        let text = serde_json::to_string_pretty(&*own)
            .map_err(|e| Error::internal(format!("tuning results: {e}")))?;
        let aside = path.with_extension(format!("tmp.{}", std::process::id()));
        let write = || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&aside, text)?;
            std::fs::rename(&aside, path)
        };
        write().map_err(|e| Error::io("writing", path, &e))
    }
}

fn read(path: &PathBuf) -> Option<Shelf> {
    let text = std::fs::read_to_string(path).ok()?;
    serde_json::from_str(&text)
        .map_err(|e| tracing::warn!("tuning results {} are ignored: {e}", path.display()))
        .ok()
}

fn files_below(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "json") {
                out.push(path);
            }
        }
    }
    out.sort();
    out
}
