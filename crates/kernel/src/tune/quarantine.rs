//! Quarantine: kernel variants and parameter values that are not used on a device. They failed a self-test (`netcl doctor`, or the test before first
//! use), or the user disabled them (`NETCL_DISABLE`).
//!
//! Stored as one JSON file per device and driver under `<cache>/quarantine`, or in the folder that the settings name. An entry is valid for one
//! driver version and one kernel source: with another driver or a changed source, the variant is tried again.

use super::Params;
use super::json_file::JsonFile;
use crate::kernel::Kernel;
use netcl_device::files;
use netcl_device::{Capabilities, Device, Result, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A variant, or some of its parameters, that gave a wrong result or failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Kernel variant.
    pub kernel: String,
    /// The failing parameters; all parameters if absent.
    pub params: Option<Params>,
    /// [`Kernel::fingerprint`] of the source that failed; any source if absent.
    pub text: Option<String>,
    /// The operation whose test failed, and the error.
    pub why: String,
    /// Number of consecutive processes that died during the self-test. After the first, which its user may have stopped, the variant is tested once
    /// more; after the second it is quarantined. 0 for a variant that failed its test.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unfinished: u32,
    /// Id of the process that runs the self-test. While the process exists, the test is not interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Start time of that process, because process ids are reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Suspect {
    /// Returns the number of processes that died during the self-test, excluding one that still runs (if the operating system reports it).
    pub fn ended(&self) -> u32 {
        self.unfinished - u32::from(self.is_under_way())
    }

    /// Returns true if the process that runs the self-test still exists.
    pub fn is_under_way(&self) -> bool {
        let same = |id| match files::started(id) {
            // An older netcl version did not write the start time.
            Some(started) => self.started.is_none_or(|s| s == started),
            None => id == std::process::id() && self.started.is_none(),
        };
        self.unfinished > 0 && self.process.is_some_and(same)
    }

    /// Returns true if the variant is in quarantine. An entry of a first self-test in progress does not count.
    pub fn is_avoided(&self) -> bool {
        self.unfinished != 1
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    device: String,
    driver: String,
    suspects: Vec<Suspect>,
}

/// The quarantine of one device.
pub struct Quarantine {
    file: Option<JsonFile>,
    device: String,
    driver: String,
    disabled: Vec<String>,
    suspects: Mutex<Vec<Suspect>>,
    /// Content of the file when this process last read or wrote it. Entries beyond these were added by other processes.
    on_disk: Mutex<Vec<Suspect>>,
    said: Mutex<BTreeSet<String>>,
}

impl Quarantine {
    /// Reads the quarantine file of a device. A file that cannot be parsed counts as empty, with a warning.
    pub fn open(settings: &Settings, device: &Capabilities) -> Self {
        let mut hash = blake3::Hasher::new();
        for part in [&device.name, &device.driver_version, &device.platform_version] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let name = format!("{}.json", &hash.finalize().to_hex()[..32]);
        let own = settings.quarantine_dir.as_ref();
        let folder = settings.cache_dir.as_ref().map(|dir| own.map_or(dir.join("quarantine"), Clone::clone));
        let file = folder.map(|dir| JsonFile::at(dir.join(name), "variants to avoid"));
        let suspects = file.as_ref().map(read).unwrap_or_default();
        Self {
            file,
            device: device.name.clone(),
            driver: device.driver_version.clone(),
            disabled: settings.disable.clone(),
            on_disk: Mutex::new(suspects.clone()),
            suspects: Mutex::new(suspects),
            said: Mutex::default(),
        }
    }

    /// Returns all entries.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the path of the file; `None` without a cache folder.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.file.as_ref().map(JsonFile::path)
    }

    /// Replaces the entries in memory. For kernels that were launched before, it takes effect with [`Tuning::refresh`](super::Tuning::refresh).
    pub fn replace(&self, suspects: Vec<Suspect>) {
        *self.suspects.lock().unwrap_or_else(PoisonError::into_inner) = suspects;
    }

    /// Sets or removes the entry of a whole kernel (all parameter values), in memory and on disk. Failures that other processes wrote for other
    /// kernels meanwhile are kept on disk and added to memory. Entries of running tests are kept on disk only. Entries that
    /// [`replace`](Self::replace) dropped stay on disk until [`save`](Self::save) and are not read back: an interrupted run of `netcl doctor` removes
    /// nothing.
    ///
    /// # Errors
    /// Same as [`Quarantine::save`].
    pub(super) fn set(&self, kernel: &Kernel, suspect: Option<Suspect>) -> Result<()> {
        let _lock = self.lock();
        let mut file = self.file.as_ref().map(read).unwrap_or_default();
        let known = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut held = self.suspects();
        if self.file.is_some() {
            // An entry that was removed from the file was retested by another program. Failures that were never written stay; entries of running
            // tests follow the file.
            held.retain(|s| file.contains(s) || s.unfinished == 0 && !known.contains(s));
        }
        let missing: Vec<_> = held.iter().filter(|s| !file.contains(s)).cloned().collect();
        let new = |s: &&Suspect| s.unfinished == 0 && !known.contains(s) && !held.contains(s);
        let added: Vec<_> = file.iter().filter(new).cloned().collect();
        file.extend(missing);
        held.extend(added);
        for list in [&mut file, &mut held] {
            list.retain(|s| s.kernel != kernel.name || s.params.is_some());
            list.extend(suspect.clone());
        }
        self.replace(held);
        self.write(file)
    }

    /// Writes the file, or removes it if the list is empty. Failures that other processes added since the last read are kept on disk and
    /// added to memory. Entries of running tests are kept on disk.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn save(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let _lock = self.lock();
        let known = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let on_disk = read(file);
        let mut all = self.suspects();
        // A removed mark means that the process has finished its test successfully.
        all.retain(|s| s.unfinished == 0 || on_disk.contains(s));
        let (tests, found): (Vec<_>, Vec<_>) =
            on_disk.into_iter().filter(|s| !all.contains(s)).partition(|s| s.unfinished > 0);
        all.extend(found.into_iter().filter(|s| !known.contains(s)));
        self.replace(all.clone());
        all.extend(tests.into_iter().filter(|s| s.is_under_way() || !known.contains(s)));
        self.write(all)
    }

    /// Locks the file against other processes. If it cannot be locked, it is written without a lock, and the write reports the error.
    fn lock(&self) -> Option<files::Lock> {
        self.file.as_ref()?.lock().ok()
    }

    fn write(&self, suspects: Vec<Suspect>) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if suspects.is_empty() {
            file.remove()?;
            self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clear();
            return Ok(());
        }
        let on_disk = suspects.clone();
        file.write(&File { device: self.device.clone(), driver: self.driver.clone(), suspects })?;
        *self.on_disk.lock().unwrap_or_else(PoisonError::into_inner) = on_disk;
        Ok(())
    }

    /// Returns the variants of a job that are not in quarantine. If all are, returns the last one with a warning.
    pub(super) fn sift(
        &self,
        device: &Device,
        job: &str,
        variants: Vec<&'static Kernel>,
    ) -> Vec<&'static Kernel> {
        let reasons: Vec<_> = variants.iter().map(|k| self.reason(k, None)).collect();
        if !variants.is_empty() && reasons.iter().all(Option::is_some) {
            let last = variants[variants.len() - 1];
            self.say(
                device,
                last.name,
                &format!("used although disabled or in quarantine: {job} has no other variant"),
            );
            return vec![last];
        }
        let pairs = variants.into_iter().zip(reasons);
        pairs
            .filter_map(|(kernel, reason)| match reason {
                None => Some(kernel),
                Some(why) => {
                    self.say(device, kernel.name, &format!("not used: {why}"));
                    None
                }
            })
            .collect()
    }

    /// Returns true if a kernel without alternatives is not in quarantine.
    pub(super) fn allows(&self, device: &Device, kernel: &Kernel) -> bool {
        match self.reason(kernel, None) {
            None => true,
            Some(why) => {
                self.say(device, kernel.name, &format!("not used: {why}"));
                false
            }
        }
    }

    /// Returns true if these parameter values of a kernel are not in quarantine.
    pub(super) fn allows_params(&self, device: &Device, kernel: &Kernel, params: &Params) -> bool {
        match self.reason(kernel, Some(params)) {
            None => true,
            Some(why) => {
                self.say(device, kernel.name, &format!("parameters {params:?} not used: {why}"));
                false
            }
        }
    }

    fn reason(&self, kernel: &Kernel, params: Option<&Params>) -> Option<String> {
        if params.is_none() && self.disabled.iter().any(|name| name == kernel.name) {
            return Some("NETCL_DISABLE lists it".into());
        }
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = suspects.iter().filter(|s| s.kernel == kernel.name && s.params.as_ref() == params);
        let mut mine = mine.filter(|s| s.is_avoided());
        let found = mine.find(|s| s.text.as_ref().is_none_or(|t| *t == kernel.fingerprint()));
        found.map(|s| format!("it failed its self-test: {}; `netcl doctor` repeats the test", s.why))
    }

    /// Logs each message once per process.
    fn say(&self, device: &Device, kernel: &str, what: &str) {
        let line = format!("kernel {kernel} on {}: {what}", device.capabilities().id);
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            tracing::warn!("{line}");
        }
    }
}

fn read(file: &JsonFile) -> Vec<Suspect> {
    file.read::<File>().map(|file| file.suspects).unwrap_or_default()
}
