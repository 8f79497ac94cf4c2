//! Compiled kernels on disk, under `<cache>/kernels`.
//!
//! A file's name is the hash of source, options, device, driver, platform and format version, so a stale entry is never
//! found. Files are written aside and renamed; readers see a whole file or none. Each begins with one line of JSON that
//! says what it is, followed by the hash of the binary and the binary.

use netcl_device::{Capabilities, Settings};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Changes when the layout of the files changes.
const FORMAT: u32 = 1;

/// The kernel cache of one user.
#[derive(Clone, Debug)]
pub struct DiskCache {
    folder: PathBuf,
}

/// One cached kernel, as `netcl cache ls` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheEntry {
    /// Kernel text it was built from.
    pub kernel: String,
    /// Device it is for.
    pub device: String,
    /// Driver that built it.
    pub driver: String,
    /// Bytes of the binary; 0 where the driver keeps it.
    pub bytes: u64,
    /// blake3 of the binary.
    hash: String,
}

impl DiskCache {
    /// The cache the settings name; `None` when they say to keep nothing.
    pub fn of(settings: &Settings) -> Option<Self> {
        if settings.no_binary_cache {
            return None;
        }
        settings.cache_dir.as_ref().map(|dir| Self { folder: dir.join("kernels") })
    }

    /// Where the files are.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Name of the entry for a source on a device.
    pub fn key(source: &str, options: &str, device: &Capabilities) -> String {
        let mut hash = blake3::Hasher::new();
        for part in [source, options, &device.name, &device.driver_version, &device.platform_version] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(&FORMAT.to_le_bytes());
        hash.finalize().to_hex()[..32].to_string()
    }

    /// The binary of an entry, if it is there and whole.
    pub fn read(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.folder.join(key)).ok()?;
        let (entry, binary) = split(&bytes)?;
        let whole =
            entry.bytes == binary.len() as u64 && entry.hash == blake3::hash(binary).to_hex().as_str();
        if !whole {
            tracing::warn!("kernel cache: {key} is damaged and is built again");
        }
        (whole && !binary.is_empty()).then(|| binary.to_vec())
    }

    /// Whether an entry was noted as kept by the driver.
    pub fn knows(&self, key: &str) -> bool {
        self.folder.join(key).is_file()
    }

    /// Notes that the driver itself keeps the binary.
    pub fn note(&self, key: &str, kernel: &str, device: &Capabilities) {
        self.write(key, kernel, device, &[]);
    }

    /// Stores a binary. A cache that cannot be written only costs time, so that is logged and nothing more.
    pub fn write(&self, key: &str, kernel: &str, device: &Capabilities, binary: &[u8]) {
        let entry = CacheEntry {
            kernel: kernel.into(),
            device: device.name.clone(),
            driver: device.driver_version.clone(),
            bytes: binary.len() as u64,
            hash: blake3::hash(binary).to_hex().to_string(),
        };
        if let Err(e) = self.write_entry(key, &entry, binary) {
            tracing::warn!("kernel cache: cannot write {}: {e}", self.folder.join(key).display());
        }
    }

    fn write_entry(&self, key: &str, entry: &CacheEntry, binary: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut bytes = serde_json::to_vec(entry)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(binary);
        let aside = self.folder.join(format!("{key}.tmp.{}", std::process::id()));
        std::fs::write(&aside, bytes)?;
        std::fs::rename(&aside, self.folder.join(key))
    }

    /// Every entry, sorted by kernel.
    pub fn list(&self) -> Vec<CacheEntry> {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut out: Vec<CacheEntry> =
            files.filter_map(|f| split(&std::fs::read(f.path()).ok()?).map(|(e, _)| e)).collect();
        out.sort_by(|a, b| (&a.kernel, &a.device).cmp(&(&b.kernel, &b.device)));
        out
    }

    /// Removes every entry; returns how many files went.
    pub fn clear(&self) -> std::io::Result<usize> {
        let mut removed = 0;
        match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
            Ok(files) => {
                for file in files {
                    std::fs::remove_file(file?.path())?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

fn split(bytes: &[u8]) -> Option<(CacheEntry, &[u8])> {
    let end = bytes.iter().position(|b| *b == b'\n')?;
    Some((serde_json::from_slice(&bytes[..end]).ok()?, &bytes[end + 1..]))
}
