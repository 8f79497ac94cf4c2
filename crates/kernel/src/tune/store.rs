//! Tuning results on disk: one JSON file per device under `<cache>/tuning/<vendor>/<architecture>/`, with every measurement.
//!
//! A choice is looked up for the device, then for its architecture, then for its vendor. At each level, local results take precedence over those that
//! ship with netcl (`shipped.json`). Results for an earlier source of the kernel are ignored.

use super::Params;
use super::json_file::JsonFile;
use netcl_device::{Architecture, Capabilities, Error, Result, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The measurement of one candidate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The candidate.
    pub params: Params,
    /// Median device time in microseconds; `None` if it was not timed.
    pub median_us: Option<f64>,
    /// `ok`, or the reason for skipping.
    pub status: String,
}

/// The tuning result of one kernel for one class of shapes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Kernel variant.
    pub kernel: String,
    /// Class of shapes.
    pub bucket: u64,
    /// Operation and shapes of the measurement, for listings.
    pub case: String,
    /// The chosen parameters.
    pub chosen: Params,
    /// The default parameters, as the baseline.
    pub default: Params,
    /// Speedup: time of the default over time of the choice.
    pub speedup: f64,
    /// Hash of the measured kernel source; any source if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// All candidates; empty in shipped results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Shelf {
    vendor: String,
    architecture: String,
    device: String,
    driver: String,
    records: Vec<Record>,
    /// Constants of the device model, by model and name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    models: Models,
}

/// Values of constants, by model and by constant.
pub type Models = BTreeMap<String, BTreeMap<String, f64>>;

/// Results that ship with netcl: a list of devices. `netcl tune --export` adds one.
const SHIPPED: &str = include_str!("shipped.json");

/// Name of the files' content in messages.
const RESULTS: &str = "tuning results";

/// Speedups below this are measurement noise: the default is exported instead.
const MIN_SPEEDUP: f64 = 1.03;

/// Origin of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The default of the kernel.
    Default,
    /// Shipped with netcl.
    Shipped,
    /// Measured locally on another device of the same architecture or vendor.
    Related,
    /// Measured locally on this device.
    Tuned,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Shipped => "shipped",
            Self::Related => "tuned on a related device",
            Self::Tuned => "tuned",
        })
    }
}

/// The tuning results that apply to one device.
pub struct Store {
    file: Option<JsonFile>,
    own: Mutex<Shelf>,
    /// Results of other devices that may apply: same architecture before same vendor, local before shipped.
    others: Vec<(Origin, Shelf)>,
}

/// Returns the name in a form for file names: letters and digits; runs of other characters become one dash.
fn slug(text: &str) -> String {
    let words: Vec<String> = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    if words.is_empty() { "unknown".into() } else { words.join("-") }
}

/// Returns the folder name of the architecture; for processors and unknown architectures, device type and vector lanes.
fn architecture(device: &Capabilities) -> String {
    match &device.architecture {
        Architecture::Nvidia { sm } => format!("sm{sm}"),
        Architecture::Processor | Architecture::Unknown => {
            format!("{:?}-v{}", device.kind, device.float_lanes).to_lowercase()
        }
        known => slug(&known.to_string()),
    }
}

impl Store {
    /// Reads the results for a device. A file that cannot be parsed is ignored, with a warning.
    pub fn open(settings: &Settings, device: &Capabilities) -> Self {
        Self::with(settings, device, SHIPPED)
    }

    fn with(settings: &Settings, device: &Capabilities, shipped: &str) -> Self {
        let own = Shelf {
            vendor: slug(&device.vendor),
            architecture: architecture(device),
            device: slug(&device.name),
            driver: device.driver_version.clone(),
            records: Vec::new(),
            models: Models::new(),
        };
        let root = settings.cache_dir.as_ref().map(|d| d.join("tuning"));
        let path = root
            .as_ref()
            .map(|r| r.join(&own.vendor).join(&own.architecture).join(format!("{}.json", own.device)));
        let files = root.as_ref().map(|r| files_below(r)).unwrap_or_default();
        let mut here: Vec<Shelf> =
            files.into_iter().filter_map(|path| JsonFile::at(path, RESULTS).read()).collect();
        let same = |s: &Shelf| s.device == own.device && s.architecture == own.architecture;
        let mut mine = own.clone();
        if let Some(at) = here.iter().position(same) {
            mine = here.remove(at);
        }
        let shipped: Vec<Shelf> = serde_json::from_str(shipped).unwrap_or_else(|e| {
            tracing::warn!("ignoring the tuning results that netcl ships: {e}");
            Vec::new()
        });
        let here = here.into_iter().map(|s| (Origin::Related, s));
        let mut others: Vec<(Origin, Shelf)> =
            here.chain(shipped.into_iter().map(|s| (Origin::Shipped, s))).collect();
        others.retain(|(_, s)| s.vendor == own.vendor);
        // The sort is stable: local measurements stay before shipped ones.
        others.sort_by_key(|(_, s)| (!same(s), s.architecture != own.architecture));
        Self { file: path.map(|path| JsonFile::at(path, RESULTS)), own: Mutex::new(mine), others }
    }

    /// Returns the stored parameters for a kernel whose source has the hash `text`, and their origin.
    pub fn choice(&self, kernel: &str, bucket: u64, text: &str) -> Option<(Params, Origin)> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let pick = |origin: Origin, shelf: &Shelf| {
            let mut mine = shelf.records.iter().filter(|r| r.kernel == kernel && r.bucket == bucket);
            // A record that the default was fastest must not override a better choice.
            let says = |r: &Record| origin != Origin::Shipped || r.chosen != r.default;
            let found = mine.find(|r| says(r) && r.text.as_ref().is_none_or(|t| t == text));
            found.map(|r| (r.chosen.clone(), origin))
        };
        let others = || self.others.iter().find_map(|(origin, shelf)| pick(*origin, shelf));
        pick(Origin::Tuned, &own).or_else(others)
    }

    /// Returns the stored value of a constant of the device model, for this device or its architecture, and its origin.
    pub fn constant(&self, model: &str, name: &str) -> Option<(f64, Origin)> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let pick = |origin: Origin, shelf: &Shelf| Some((*shelf.models.get(model)?.get(name)?, origin));
        let same = |s: &Shelf| s.architecture == own.architecture;
        let others = || self.others.iter().filter(|(_, s)| same(s)).find_map(|(o, shelf)| pick(*o, shelf));
        pick(Origin::Tuned, &own).or_else(others).filter(|(value, _)| *value > 0.0 && value.is_finite())
    }

    /// Stores constants of the device model and writes the file. Constants of other models are kept.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn put_models(&self, models: Models) -> Result<()> {
        self.change(|own| own.models.extend(models))
    }

    /// Changes the results of this device and writes the file. Results that other processes stored meanwhile are kept and apply from now on.
    fn change(&self, change: impl FnOnce(&mut Shelf)) -> Result<()> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = self.file.as_ref().map(JsonFile::lock).transpose()?;
        if let Some(now) = self.file.as_ref().and_then(JsonFile::read::<Shelf>) {
            (own.records, own.models) = (now.records, now.models);
        }
        change(&mut own);
        self.file.as_ref().map_or(Ok(()), |file| file.write(&*own))
    }

    /// Returns all records that may apply to this device, in order of preference, with their origin. Includes records for earlier sources of a
    /// kernel.
    pub fn all(&self) -> Vec<(Origin, Record)> {
        let mut out: Vec<(Origin, Record)> = Vec::new();
        let own = self.records();
        let others =
            self.others.iter().flat_map(|(o, shelf)| shelf.records.iter().map(move |r| (*o, r.clone())));
        for (origin, record) in own.into_iter().map(|r| (Origin::Tuned, r)).chain(others) {
            let same = |r: &Record| (r.kernel.as_str(), r.bucket) == (record.kernel.as_str(), record.bucket);
            if !out.iter().any(|(_, r)| same(r)) {
                out.push((origin, record));
            }
        }
        out
    }

    /// Exports the local results of this device to a file in the format of the shipped one, without the individual measurements. It replaces this
    /// device's results in the file. Exports choices that are at least 3 % faster than the default, and defaults that no candidate beats by 3 %.
    /// Returns the number of each.
    ///
    /// # Errors
    /// `Io` with the path; `Format` if the file has another format.
    pub fn export(&self, path: &Path) -> Result<[usize; 2]> {
        let file = JsonFile::at(path, RESULTS);
        let _lock = file.lock()?;
        let mut shelves: Vec<Shelf> = match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|e| {
                Error::format(format!("{} does not contain tuning results: {e}", path.display()))
            })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io("reading", path, &e)),
        };
        let mut mine = self.own.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gains = |r: &Record| r.speedup >= MIN_SPEEDUP && r.chosen != r.default;
        for record in &mut mine.records {
            record.measurements.clear();
            if !gains(record) {
                (record.chosen, record.speedup) = (record.default.clone(), 1.0);
            }
        }
        mine.records.sort_by(|a, b| (&a.kernel, a.bucket).cmp(&(&b.kernel, b.bucket)));
        let gained = mine.records.iter().filter(|r| gains(r)).count();
        let counts = [gained, mine.records.len() - gained];
        shelves.retain(|s| (&s.device, &s.architecture) != (&mine.device, &mine.architecture));
        shelves.push(mine);
        shelves.sort_by(|a, b| {
            (&a.vendor, &a.architecture, &a.device).cmp(&(&b.vendor, &b.architecture, &b.device))
        });
        file.write(&shelves)?;
        Ok(counts)
    }

    /// Returns the records of this device.
    pub fn records(&self) -> Vec<Record> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).records.clone()
    }

    /// Stores a result and writes the file.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn put(&self, record: Record) -> Result<()> {
        self.change(|own| {
            own.records.retain(|r| (r.kernel.as_str(), r.bucket) != (record.kernel.as_str(), record.bucket));
            own.records.push(record);
        })
    }
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

#[cfg(test)]
mod tests;
