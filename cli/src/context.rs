//! What every command needs of its surroundings: settings, terminal, signals.

use netcl::prelude::*;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Settings, terminal and signals of this process.
pub struct Context {
    /// What the environment says.
    pub settings: Settings,
    signal: Arc<AtomicUsize>,
}

impl Context {
    /// Reads the environment and begins to listen for SIGINT and SIGTERM. With `polite` the first asks to stop and the second
    /// ends at once; without, the first ends at once. The exit code is 130 or 143 either way.
    pub fn new(polite: bool) -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM] {
            let again = Arc::new(AtomicBool::new(!polite));
            let listen = || {
                flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&again))?;
                flag::register(number, Arc::clone(&again))?;
                flag::register_usize(number, Arc::clone(&signal), usize::try_from(number).unwrap_or(0))
            };
            listen().map_err(|e| Error::io("listening for signals on", Path::new("this process"), &e))?;
        }
        Ok(Self { settings: Settings::from_env(), signal })
    }

    /// Opens the device called `name`.
    pub fn open_device(&self, name: &str) -> Result<Device> {
        Device::open(name, &self.settings)
    }

    /// The same with a precision for products of f32.
    pub fn open_device_with(&self, name: &str, matmul_precision: MatmulPrecision) -> Result<Device> {
        Device::open(name, &Settings { matmul_precision, ..self.settings.clone() })
    }

    /// Whether SIGINT or SIGTERM came.
    pub fn interrupted(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|s| *s != 0)
    }

    /// Whether lines on stderr can be redrawn.
    pub fn live(&self) -> bool {
        let dumb = std::env::var("TERM").is_ok_and(|t| t == "dumb");
        std::io::stderr().is_terminal() && !dumb && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
    }
}
