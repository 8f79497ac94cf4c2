//! The environment of every command: settings, devices, terminal.

use netcl::device::Builders;
use netcl::prelude::*;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Settings and terminal of this process.
pub struct Context {
    /// Settings of the environment.
    pub settings: Settings,
    /// Files that a signal removes before it ends the process.
    pub leftovers: Leftovers,
}

/// Files and folders to remove if the process ends early, in the order of removal.
#[derive(Clone, Default)]
pub struct Leftovers(Arc<Mutex<Vec<PathBuf>>>);

impl Leftovers {
    /// Replaces the list.
    pub fn set(&self, paths: Vec<PathBuf>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = paths;
    }

    /// Removes them, except folders that are not empty.
    pub fn remove(&self) {
        for path in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
        }
    }
}

impl Context {
    /// Registers files and folders that a signal removes, in this order, before it ends the process, until the command handles signals itself.
    pub fn leave_nothing_of(&self, paths: Vec<PathBuf>) {
        self.leftovers.set(paths);
    }

    /// Opens the device called `name`.
    pub fn open_device(&self, name: &str) -> Result<Device> {
        self.open_device_with(name, MatmulPrecision::default())
    }

    /// Opens a device that starts no other process, for child processes.
    pub fn open_device_alone(&self, name: &str) -> Result<Device> {
        Device::open(name, &self.settings)
    }

    /// Opens the devices called `names`, which are separated by commas; one may occur several times.
    pub fn open_devices(&self, names: &str) -> Result<Vec<Device>> {
        self.open_devices_with(names, MatmulPrecision::default())
    }

    /// Does the same with a precision for products of f32.
    pub fn open_devices_with(&self, names: &str, matmul_precision: MatmulPrecision) -> Result<Vec<Device>> {
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        if names.len() > 1 && names.contains(&"") {
            return Err(Error::format(format!(
                "--device {}: a name is missing between two commas",
                names.join(",")
            )));
        }
        names.into_iter().map(|name| self.open_device_with(name, matmul_precision)).collect()
    }

    /// Does the same with a precision for products of f32.
    ///
    /// Child processes of this program build kernels for it: several at once for a job that compiles many, and always on a driver whose compiler may
    /// end the calling process.
    pub fn open_device_with(&self, name: &str, matmul_precision: MatmulPrecision) -> Result<Device> {
        self.open_device_within(name, matmul_precision, None)
    }

    /// Does the same with a limit of device memory in bytes.
    pub fn open_device_within(
        &self,
        name: &str,
        matmul_precision: MatmulPrecision,
        limit: Option<u64>,
    ) -> Result<Device> {
        let own = || std::env::current_exe().ok().map(Builders::program);
        let builders = self.settings.builders.clone().or_else(own);
        let memory_limit = limit.or(self.settings.memory_limit);
        Device::open(name, &Settings { matmul_precision, builders, memory_limit, ..self.settings.clone() })
    }

    /// Returns whether lines on stderr can be redrawn.
    pub fn live(&self) -> bool {
        let dumb = std::env::var("TERM").is_ok_and(|t| t == "dumb");
        std::io::stderr().is_terminal() && !dumb && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
    }
}
