//! The environment of every command: settings, devices and terminal as in the lab, and signals.

use netcl::prelude::*;
use netcl::train::data::TokenCache;
use netcl_lab::context as lab;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time that reading data has to notice a stop request, before the process ends anyway.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Settings, terminal and signals of this process.
pub struct Context {
    /// Settings, devices and terminal.
    lab: lab::Context,
    signals: Arc<Signals>,
    save: Arc<AtomicBool>,
}

impl Deref for Context {
    type Target = lab::Context;

    fn deref(&self) -> &Self::Target {
        &self.lab
    }
}

/// The signals received, and their effect.
#[derive(Default)]
struct Signals {
    /// The number of the last signal.
    came: Arc<AtomicUsize>,
    /// Whether the next signal only requests a stop.
    polite: AtomicBool,
    /// Whether SIGINT or SIGTERM came after a stop request.
    again: Arc<AtomicBool>,
    /// Number of readers of data, which check `came` regularly.
    readings: AtomicUsize,
    /// Files that are removed if the process ends before its work started.
    leftovers: lab::Leftovers,
    /// Cache into which the tokens of a text are being written.
    tokens: Option<TokenCache>,
}

impl Signals {
    /// Handles a signal.
    #[cfg(unix)]
    fn heed(self: &Arc<Self>, number: i32) {
        let before = self.came.swap(usize::try_from(number).unwrap_or(0), Ordering::SeqCst);
        if self.polite.load(Ordering::SeqCst) {
            // A closed terminal sends SIGHUP more than once, itself and through the shell; a repeated one does not end the process at once.
            if number != signal_hook::consts::SIGHUP && self.again.swap(true, Ordering::SeqCst) {
                signal_hook::low_level::exit(128 + number);
            }
            return;
        }
        if before != 0 || self.readings.load(Ordering::SeqCst) == 0 {
            self.end(number);
        }
        // The reader stops and removes its partial output; a second signal does not wait for that.
        let signals = Arc::clone(self);
        let timer = move || {
            std::thread::sleep(STOP_TIMEOUT);
            if !signals.polite.load(Ordering::SeqCst) {
                signals.end(number);
            }
        };
        if std::thread::Builder::new().name("netcl-grace".into()).spawn(timer).is_err() {
            self.end(number);
        }
    }

    #[cfg(unix)]
    fn end(&self, number: i32) -> ! {
        self.clean();
        signal_hook::low_level::exit(128 + number)
    }

    /// Removes partial output.
    #[cfg(unix)]
    fn clean(&self) {
        self.leftovers.remove();
        self.tokens.iter().for_each(TokenCache::abandon);
    }

    /// Receives signals on a separate thread.
    #[cfg(unix)]
    fn listen(self: &Arc<Self>) -> std::io::Result<()> {
        let mut wanted = vec![SIGINT, SIGTERM];
        if !is_ignored(signal_hook::consts::SIGHUP) {
            wanted.push(signal_hook::consts::SIGHUP);
        }
        let mut heard = signal_hook::iterator::Signals::new(wanted)?;
        let signals = Arc::clone(self);
        let work = move || heard.forever().for_each(|number| signals.heed(number));
        std::thread::Builder::new().name("netcl-signals".into()).spawn(work).map(drop)
    }

    /// Records signals; the second one ends the process.
    #[cfg(not(unix))]
    fn listen(self: &Arc<Self>) -> std::io::Result<()> {
        for number in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&self.again))?;
            flag::register(number, Arc::clone(&self.again))?;
            flag::register_usize(number, Arc::clone(&self.came), usize::try_from(number).unwrap_or(0))?;
        }
        Ok(())
    }
}

/// A guard for reading data: while it exists, the reader checks [`Context::interrupted`] regularly.
pub struct Reading(Arc<Signals>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readings.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Context {
    /// Reads the environment and starts to listen for SIGINT, SIGTERM and SIGHUP. Until [`Context::polite`], each signal ends the process at once, or
    /// within a second while data is read. The exit code is 128 plus the signal's number: 130, 143, 129.
    pub fn new() -> Result<Self> {
        let settings = Settings::from_env();
        let signals = Arc::new(Signals { tokens: TokenCache::of(&settings), ..Signals::default() });
        listening(signals.listen())?;
        let lab = lab::Context { settings, leftovers: signals.leftovers.clone() };
        Ok(Self { lab, signals, save: Arc::default() })
    }

    /// Starts a reading of data.
    pub fn reading(&self) -> Reading {
        self.signals.readings.fetch_add(1, Ordering::SeqCst);
        Reading(Arc::clone(&self.signals))
    }

    /// Makes the first signal only request a stop, and a second SIGINT or SIGTERM end the process at once. Call it when work could be lost. Returns
    /// false, and changes nothing, if a signal came before.
    pub fn polite(&self) -> bool {
        if self.signals.polite.swap(true, Ordering::SeqCst) {
            return true;
        }
        let still = !self.interrupted();
        if still {
            self.leave_nothing_of(Vec::new());
        }
        self.signals.polite.store(still, Ordering::SeqCst);
        still
    }

    /// Runs work in which the first signal only requests a stop. Afterwards the request is forgotten, and the next signal ends the process.
    pub fn answering<T>(&self, work: impl FnOnce() -> T) -> T {
        self.signals.polite.store(true, Ordering::SeqCst);
        let done = work();
        self.signals.polite.store(false, Ordering::SeqCst);
        self.signals.came.store(0, Ordering::SeqCst);
        self.signals.again.store(false, Ordering::SeqCst);
        done
    }

    /// Returns whether a signal came before any work could be lost.
    pub fn ended_early(&self) -> bool {
        self.interrupted() && !self.signals.polite.load(Ordering::SeqCst)
    }

    /// Listens for SIGUSR1, which requests a checkpoint.
    pub fn listen_for_saves(&self) -> Result<()> {
        #[cfg(unix)]
        listening(flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&self.save)).map(|_| ()))?;
        Ok(())
    }

    /// Returns whether a checkpoint was requested since the last call.
    pub fn take_save(&self) -> bool {
        self.save.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a signal requested a stop.
    pub fn interrupted(&self) -> bool {
        self.signals.came.load(Ordering::SeqCst) != 0
    }

    /// Returns the signal that came.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signals.came.load(Ordering::SeqCst)).ok().filter(|s| *s != 0)
    }
}

fn listening(done: std::io::Result<()>) -> Result<()> {
    done.map_err(|e| Error::io("listening for signals on", Path::new("this process"), &e))
}

/// Returns whether the parent process made this one ignore a signal, as `nohup` does. Returns false if the system does not report it.
#[cfg(unix)]
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (number - 1) & 1 == 1
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_stay_is_removed_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("netcl-leftovers-{}", std::process::id()));
        let (outer, inner) = (dir.join("a"), dir.join("a/b"));
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join(".lock"), "").unwrap();
        let cache = Settings { cache_dir: Some(dir.clone()), ..Settings::default() };
        let signals = Signals { tokens: TokenCache::of(&cache), ..Signals::default() };
        let all = || vec![inner.join(".lock"), inner.clone(), outer.clone()];
        signals.leftovers.set(all());
        signals.clean();
        assert!(dir.exists() && !outer.exists());
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(outer.join("mine"), "").unwrap();
        signals.leftovers.set(all());
        let tokens = dir.join("tokens");
        std::fs::create_dir_all(&tokens).unwrap();
        let (mine, others) =
            (tokens.join(format!("k.tmp-{}-0", std::process::id())), tokens.join("k.tmp-0-0"));
        std::fs::write(&mine, "").unwrap();
        std::fs::write(&others, "").unwrap();
        signals.clean();
        assert!(!inner.exists() && outer.join("mine").exists());
        assert!(!mine.exists() && others.exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
