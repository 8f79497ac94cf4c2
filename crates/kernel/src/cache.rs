//! Compiled kernels on disk, under `<cache>/kernels`.
//!
//! A file's name is the hash of the whole [`Order`], device, driver, platform, netcl version and format version, so a stale entry is never found.
//! Files are written to a temporary path and renamed; readers see a complete file or none. Each file starts with one line of JSON that describes it,
//! followed by the hash of the binary and the binary.
//!
//! A binary is native code that the driver runs in this process. So a folder or file that another user may have written is not read.

use crate::order::Order;
use netcl_device::files::{self, distrust, distrust_of};
use netcl_device::{Capabilities, Settings};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::PathBuf;

/// Increment this when the file layout changes.
const FORMAT: u32 = 2;

/// The kernel cache of one user.
#[derive(Clone, Debug)]
pub struct DiskCache {
    folder: PathBuf,
}

/// One cached kernel, as listed by `netcl cache ls`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheEntry {
    /// Kernel source that it was built from.
    pub kernel: String,
    /// Target device.
    pub device: String,
    /// Driver that built it.
    pub driver: String,
    /// Bytes of the binary; 0 if the driver stores it.
    pub bytes: u64,
    /// blake3 of the binary.
    hash: String,
}

/// The fields that identify an entry; its name is their hash.
#[derive(Serialize)]
struct Identity<'a> {
    format: u32,
    version: &'static str,
    order: &'a Order,
    device: &'a str,
    driver: &'a str,
    platform: &'a str,
}

impl DiskCache {
    /// Returns the cache that the settings name; `None` if they disable storage. [`DiskCache::distrust`] checks whether it may be used.
    pub fn of(settings: &Settings) -> Option<Self> {
        if settings.no_binary_cache {
            return None;
        }
        settings.cache_dir.as_ref().map(|dir| Self { folder: dir.join("kernels") })
    }

    /// Returns the reason not to use the folder: another user may have put kernels there. `None` if the folder is safe.
    pub fn distrust(&self) -> Option<String> {
        let above = self.folder.parent().and_then(distrust);
        let why = above.or_else(|| distrust(&self.folder))?;
        Some(format!(
            "compiled kernels are neither read nor stored: {why}, and kernels are code that runs with your permissions. Set NETCL_CACHE_DIR to \
             another folder"
        ))
    }

    /// Returns the folder of the files.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Returns the name of the entry for an order on a device.
    pub fn key(order: &Order, device: &Capabilities) -> String {
        let identity = Identity {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            order,
            device: &device.name,
            driver: &device.driver_version,
            platform: &device.platform_version,
        };
        let mut hash = blake3::Hasher::new();
        // Strings and numbers always serialize to JSON. In the impossible case, the entry would only be built again.
        hash.update(&serde_json::to_vec(&identity).unwrap_or_default());
        hash.finalize().to_hex()[..32].to_string()
    }

    /// Returns the binary of an entry if it exists and is complete.
    pub fn read(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = self.read_file(key)?;
        let (entry, binary) = split(&bytes)?;
        let whole =
            entry.bytes == binary.len() as u64 && entry.hash == blake3::hash(binary).to_hex().as_str();
        if !whole {
            tracing::warn!("kernel cache: {key} is damaged; building it again");
        }
        (whole && !binary.is_empty()).then(|| binary.to_vec())
    }

    /// Returns the file of an entry if only this user can have written it.
    fn read_file(&self, key: &str) -> Option<Vec<u8>> {
        let mut file = std::fs::File::open(self.folder.join(key)).ok()?;
        let about = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        if let Some(why) = distrust_of(&about) {
            tracing::warn!("kernel cache: {key} {why}; building it again");
            return None;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns true if the entry is recorded as cached by the driver.
    pub fn knows(&self, key: &str) -> bool {
        self.folder.join(key).is_file()
    }

    /// Records that the driver itself caches the binary.
    pub fn note(&self, key: &str, kernel: &str, device: &Capabilities) {
        self.write(key, kernel, device, &[]);
    }

    /// Stores a binary. A cache that cannot be written only costs time, so a failure is only logged.
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
        files::create_private(&self.folder)?;
        let mut bytes = serde_json::to_vec(entry)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(binary);
        files::replace(&self.folder.join(key), &bytes)
    }

    /// Returns all entries, sorted by kernel.
    pub fn list(&self) -> Vec<CacheEntry> {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut out: Vec<CacheEntry> =
            files.filter_map(|f| split(&std::fs::read(f.path()).ok()?).map(|(e, _)| e)).collect();
        out.sort_by(|a, b| (&a.kernel, &a.device).cmp(&(&b.kernel, &b.device)));
        out
    }

    /// Removes all entries and returns the number of removed files.
    pub fn clear(&self) -> std::io::Result<usize> {
        let mut removed = 0;
        match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
            Ok(files) => {
                for file in files {
                    match std::fs::remove_file(file?.path()) {
                        // Another program removed it first.
                        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                        gone => gone.map(|()| removed += 1)?,
                    }
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

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // helpers of tests
mod tests {
    use super::*;
    use crate::Programs;
    use crate::kernel::Reload;
    use netcl_device::null::NullDriver;
    use netcl_device::{Device, DeviceKind};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn capabilities() -> Capabilities {
        Capabilities::floor("gpu:0", DeviceKind::Gpu)
    }

    fn cache(folder: &Path) -> DiskCache {
        let settings = Settings { cache_dir: Some(folder.into()), ..Settings::default() };
        DiskCache::of(&settings).unwrap()
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_cache_that_others_may_write_gets_no_native_code_run() {
        let folder = tempfile::tempdir().unwrap();
        let disk = cache(folder.path());
        assert_eq!(disk.distrust(), None);
        disk.write("key", "k", &capabilities(), b"native code");
        assert_eq!(disk.read("key").as_deref(), Some(b"native code".as_slice()));
        assert_eq!(fs::metadata(disk.folder()).unwrap().permissions().mode() & 0o777, 0o700);
        for open in [folder.path(), disk.folder()] {
            chmod(open, 0o777);
            let why = disk.distrust().unwrap();
            assert!(why.contains(&open.display().to_string()) && why.contains("chmod go-w"), "{why}");
            let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
            let device = Device::from_driver(Box::new(NullDriver::new(capabilities())), settings);
            assert!(Programs::of(&device).disk(&device).is_none());
            chmod(open, 0o700);
            let settings = device.settings().clone();
            let device = Device::from_driver(Box::new(NullDriver::new(capabilities())), settings);
            assert!(Programs::of(&device).disk(&device).is_some());
        }
        chmod(&disk.folder().join("key"), 0o666);
        assert_eq!(disk.read("key"), None, "a file that others may write");
    }

    /// A second build with a different reload produces a different binary from the same source.
    #[test]
    fn a_changed_second_build_is_not_taken_from_the_cache() {
        static OLD: Reload =
            Reload { name: "test", options: "-a", code: "old", patch: str::to_owned, complaint: |_| None };
        static CODE: Reload = Reload { code: "new", ..OLD };
        static OPTIONS: Reload = Reload { options: "-b", ..OLD };
        let order =
            |reload| Order { kernel: "k".into(), source: "text".into(), options: "-x".into(), reload };
        let keys = [None, Some(&OLD), Some(&CODE), Some(&OPTIONS)]
            .map(|reload| DiskCache::key(&order(reload), &capabilities()));
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[i + 1..].contains(key), "{keys:?}");
        }
        let mut driver = capabilities();
        driver.driver_version = "another".into();
        assert_ne!(DiskCache::key(&order(None), &driver), keys[0]);
    }

    /// Regression test: temporary names were per process, so two threads wrote to the same file.
    #[test]
    fn threads_that_store_one_kernel_at_one_time_store_it_whole() {
        let folder = tempfile::tempdir().unwrap();
        let disk = cache(folder.path());
        std::thread::scope(|scope| {
            for i in 0..8u8 {
                let disk = &disk;
                scope.spawn(move || {
                    for _ in 0..20 {
                        disk.write("key", "k", &capabilities(), &vec![i; 1000 * usize::from(i + 1)]);
                        let read = disk.read("key").unwrap();
                        assert!(
                            read.iter().all(|b| *b == read[0])
                                && read.len() == 1000 * usize::from(read[0] + 1)
                        );
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(disk.folder()).unwrap().count(), 1);
    }
}
