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
    /// Whether the next signal of any kind ends the process at once.
    abrupt: Arc<AtomicBool>,
    /// Whether another SIGINT or SIGTERM does.
    again: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
}

impl Context {
    /// Reads the environment and begins to listen for SIGINT, SIGTERM and SIGHUP. Until [`Context::polite`] each ends the process at
    /// once, with the exit code 128 and its number: 130, 143, 129.
    pub fn new() -> Result<Self> {
        let context = Self {
            settings: Settings::from_env(),
            signal: Arc::default(),
            abrupt: Arc::new(AtomicBool::new(true)),
            again: Arc::default(),
            save: Arc::default(),
        };
        for number in [SIGINT, SIGTERM] {
            let (abrupt, again) = (Arc::clone(&context.abrupt), Arc::clone(&context.again));
            listening(context.listen(number, &[abrupt, Arc::clone(&again)]).and_then(|()| {
                flag::register(number, again)?;
                Ok(())
            }))?;
        }
        // A terminal that goes away sends it more than once, itself and through the shell: one more is no reason to end at once.
        #[cfg(unix)]
        if !is_ignored(signal_hook::consts::SIGHUP) {
            let abrupt = Arc::clone(&context.abrupt);
            listening(context.listen(signal_hook::consts::SIGHUP, &[abrupt]))?;
        }
        Ok(context)
    }

    /// Ends at once where one of `flags` is set, else notes that the signal came.
    fn listen(&self, number: i32, flags: &[Arc<AtomicBool>]) -> std::io::Result<()> {
        for flag in flags {
            flag::register_conditional_shutdown(number, 128 + number, Arc::clone(flag))?;
        }
        flag::register_usize(number, Arc::clone(&self.signal), usize::try_from(number).unwrap_or(0))?;
        Ok(())
    }

    /// From now on the first signal only asks to stop, and a second SIGINT or SIGTERM ends at once: there is something to lose.
    pub fn polite(&self) {
        self.abrupt.store(false, Ordering::SeqCst);
    }

    /// Listens for SIGUSR1, which asks for a checkpoint.
    pub fn listen_for_saves(&self) -> Result<()> {
        #[cfg(unix)]
        listening(flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&self.save)).map(|_| ()))?;
        Ok(())
    }

    /// Whether a checkpoint was asked for since the last time.
    pub fn take_save(&self) -> bool {
        self.save.swap(false, Ordering::Relaxed)
    }

    /// Opens the device called `name`.
    pub fn open_device(&self, name: &str) -> Result<Device> {
        Device::open(name, &self.settings)
    }

    /// The same with a precision for products of f32.
    pub fn open_device_with(&self, name: &str, matmul_precision: MatmulPrecision) -> Result<Device> {
        Device::open(name, &Settings { matmul_precision, ..self.settings.clone() })
    }

    /// Whether a signal asked to stop.
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

fn listening(done: std::io::Result<()>) -> Result<()> {
    done.map_err(|e| Error::io("listening for signals on", Path::new("this process"), &e))
}

/// Whether whoever started the program had it ignore a signal, as `nohup` does. Where the system does not tell, it did not.
#[cfg(unix)]
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (number - 1) & 1 == 1
}
