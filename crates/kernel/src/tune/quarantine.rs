//! What must not be used on a device: variants and parameters that failed their self-test (`netcl doctor`), and variants
//! that the user disabled (`NETCL_DISABLE`).
//!
//! One file for each device and driver under `<cache>/quarantine`; another driver, or another kernel text, starts afresh.

use super::Params;
use super::json_file::JsonFile;
use crate::kernel::Kernel;
use netcl_device::files;
use netcl_device::{Capabilities, Device, Result, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A variant, or some parameters of it, that gave a wrong result or failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Kernel variant.
    pub kernel: String,
    /// The parameters that fail; all of them where absent.
    pub params: Option<Params>,
    /// [`Kernel::fingerprint`] of the text that failed; any text where absent.
    pub text: Option<String>,
    /// The op that it failed in, and how.
    pub why: String,
    /// How many programs in a row ended during its test. One may have been stopped by its user, so the variant is tested once
    /// more; the second time it is avoided. 0 for what failed.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unfinished: u32,
    /// The program whose test it is; while that runs, the test has not ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// When that program was started: its number may be another's by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Suspect {
    /// How many programs ended during its test, not counting one that still runs, as far as the system tells.
    pub fn ended(&self) -> u32 {
        let same = |id| match files::started(id) {
            // A program that wrote no start is an older netcl's.
            Some(started) => self.started.is_none_or(|s| s == started),
            None => id == std::process::id() && self.started.is_none(),
        };
        let runs = self.process.is_some_and(same);
        self.unfinished - u32::from(runs && self.unfinished > 0)
    }

    /// Whether it is avoided, and not only under test.
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
    /// What the file held when it was last read or written here: what it holds beyond that others added.
    on_disk: Mutex<Vec<Suspect>>,
    said: Mutex<BTreeSet<String>>,
}

impl Quarantine {
    /// What is known of a device. A file that cannot be read counts as empty, with a warning.
    pub fn open(settings: &Settings, device: &Capabilities) -> Self {
        let mut hash = blake3::Hasher::new();
        for part in [&device.name, &device.driver_version, &device.platform_version] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let name = format!("{}.json", &hash.finalize().to_hex()[..32]);
        let cache = settings.cache_dir.as_ref();
        let file = cache.map(|dir| JsonFile::at(dir.join("quarantine").join(name), "variants to avoid"));
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

    /// What failed.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the file is; `None` when nothing is kept on disk.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.file.as_ref().map(JsonFile::path)
    }

    /// Holds these from now on, in memory; [`Tuning::refresh`](super::Tuning::refresh) makes it count for what was launched.
    pub fn replace(&self, suspects: Vec<Suspect>) {
        *self.suspects.lock().unwrap_or_else(PoisonError::into_inner) = suspects;
    }

    /// Puts `suspect` in the place of what is held against all of a kernel's parameters together, in memory and on disk. What other
    /// programs wrote about other kernels meanwhile stays, and is held from now on. What [`replace`](Self::replace) dropped stays on
    /// disk until [`save`](Self::save), and is not held again: a self-test that was stopped has released nothing.
    ///
    /// # Errors
    /// As [`Quarantine::save`].
    pub(super) fn set(&self, kernel: &Kernel, suspect: Option<Suspect>) -> Result<()> {
        let _lock = self.lock();
        let mut file = self.file.as_ref().map(read).unwrap_or_default();
        let known = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut held = self.suspects();
        if self.file.is_some() {
            // What was in the file before and is no more, another program has tested again. Failures that were never written stay;
            // tests under way are the file's.
            held.retain(|s| file.contains(s) || s.unfinished == 0 && !known.contains(s));
        }
        let missing: Vec<_> = held.iter().filter(|s| !file.contains(s)).cloned().collect();
        let added: Vec<_> =
            file.iter().filter(|s| !known.contains(s) && !held.contains(s)).cloned().collect();
        file.extend(missing);
        held.extend(added);
        for list in [&mut file, &mut held] {
            list.retain(|s| s.kernel != kernel.name || s.params.is_some());
            list.extend(suspect.clone());
        }
        self.replace(held);
        self.write(file)
    }

    /// Writes the file, or removes it when nothing is held. What other programs added since it was last read stays, and is held
    /// from now on.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn save(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let _lock = self.lock();
        let known = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = self.suspects();
        let added = read(file).into_iter().filter(|s| !known.contains(s) && !all.contains(s));
        all.extend(added.collect::<Vec<_>>());
        self.replace(all.clone());
        self.write(all)
    }

    /// The right to change the file, which other programs change, too. Without one it is written all the same: that the folder
    /// cannot be written is said then.
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

    /// Those of a job's variants that may be used. Where none may, the last is used all the same, with a warning.
    pub(super) fn sift(
        &self,
        device: &Device,
        job: &str,
        variants: Vec<&'static Kernel>,
    ) -> Vec<&'static Kernel> {
        let reasons: Vec<_> = variants.iter().map(|k| self.reason(k, None)).collect();
        if !variants.is_empty() && reasons.iter().all(Option::is_some) {
            let last = variants[variants.len() - 1];
            self.say(device, last.name, &format!("{job} has no other variant, so it is used all the same"));
            return vec![last];
        }
        let pairs = variants.into_iter().zip(reasons);
        pairs
            .filter_map(|(kernel, reason)| match reason {
                None => Some(kernel),
                Some(why) => {
                    self.say(device, kernel.name, &format!("it is avoided ({why})"));
                    None
                }
            })
            .collect()
    }

    /// Whether these parameters of a kernel may be used.
    pub(super) fn allows_params(&self, device: &Device, kernel: &Kernel, params: &Params) -> bool {
        match self.reason(kernel, Some(params)) {
            None => true,
            Some(why) => {
                self.say(device, kernel.name, &format!("{params:?} is avoided ({why})"));
                false
            }
        }
    }

    fn reason(&self, kernel: &Kernel, params: Option<&Params>) -> Option<String> {
        if params.is_none() && self.disabled.iter().any(|name| name == kernel.name) {
            return Some("NETCL_DISABLE names it".into());
        }
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = suspects.iter().filter(|s| s.kernel == kernel.name && s.params.as_ref() == params);
        let mut mine = mine.filter(|s| s.is_avoided());
        let found = mine.find(|s| s.text.as_ref().is_none_or(|t| *t == kernel.fingerprint()));
        found.map(|s| format!("it failed its self-test: {}; `netcl doctor` tests again", s.why))
    }

    /// One line a process for each thing avoided.
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
