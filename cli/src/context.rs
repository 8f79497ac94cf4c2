//! Surroundings of every command: settings, devices and terminal as in the laboratory, and signals.

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

/// How long the reading of data may take to notice that it should stop, before the process ends all the same.
const GRACE: Duration = Duration::from_secs(1);

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

/// What came, and what a signal does.
#[derive(Default)]
struct Signals {
    /// The last one that came.
    came: Arc<AtomicUsize>,
    /// Whether the next one only asks to stop.
    polite: AtomicBool,
    /// Whether SIGINT or SIGTERM came since then.
    again: Arc<AtomicBool>,
    /// Readings of data, which look at `came` as they go.
    readings: AtomicUsize,
    /// Files of this process that are removed when it ends before it has begun.
    leftovers: lab::Leftovers,
    /// Where tokens of a text that is being read are written.
    tokens: Option<TokenCache>,
}

impl Signals {
    /// Another signal.
    #[cfg(unix)]
    fn heed(self: &Arc<Self>, number: i32) {
        let before = self.came.swap(usize::try_from(number).unwrap_or(0), Ordering::SeqCst);
        if self.polite.load(Ordering::SeqCst) {
            // A terminal that goes away sends SIGHUP more than once, itself and through the shell: one more is no reason to end at once.
            if number != signal_hook::consts::SIGHUP && self.again.swap(true, Ordering::SeqCst) {
                signal_hook::low_level::exit(128 + number);
            }
            return;
        }
        if before != 0 || self.readings.load(Ordering::SeqCst) == 0 {
            self.end(number);
        }
        // The reading stops and takes back what it has written; a second signal does not wait for that.
        let signals = Arc::clone(self);
        let timer = move || {
            std::thread::sleep(GRACE);
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

    /// Removes what must not stay.
    #[cfg(unix)]
    fn clean(&self) {
        self.leftovers.remove();
        self.tokens.iter().for_each(TokenCache::abandon);
    }

    /// Hears signals on a thread of its own.
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

    /// Notes signals; the second one ends the process.
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

/// Data is being read, by something that asks [`Context::interrupted`] now and then. Dropped, it is not.
pub struct Reading(Arc<Signals>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readings.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Context {
    /// Reads the environment and begins to listen for SIGINT, SIGTERM and SIGHUP. Until [`Context::polite`] each ends the process at
    /// once, or within a second where data is read, with the exit code 128 and its number: 130, 143, 129.
    pub fn new() -> Result<Self> {
        let settings = Settings::from_env();
        let signals = Arc::new(Signals { tokens: TokenCache::of(&settings), ..Signals::default() });
        listening(signals.listen())?;
        let lab = lab::Context { settings, leftovers: signals.leftovers.clone() };
        Ok(Self { lab, signals, save: Arc::default() })
    }

    /// Says that data is read from now on.
    pub fn reading(&self) -> Reading {
        self.signals.readings.fetch_add(1, Ordering::SeqCst);
        Reading(Arc::clone(&self.signals))
    }

    /// From now on the first signal only asks to stop, and a second SIGINT or SIGTERM ends at once: there is something to lose.
    /// False where one came already: then there is nothing to lose yet, and all stays as it was.
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

    /// Does work that the first signal only asks to stop; afterwards it is as if none had come, and the next one ends the process.
    pub fn answering<T>(&self, work: impl FnOnce() -> T) -> T {
        self.signals.polite.store(true, Ordering::SeqCst);
        let done = work();
        self.signals.polite.store(false, Ordering::SeqCst);
        self.signals.came.store(0, Ordering::SeqCst);
        self.signals.again.store(false, Ordering::SeqCst);
        done
    }

    /// Whether a signal came before there was anything to lose.
    pub fn ended_early(&self) -> bool {
        self.interrupted() && !self.signals.polite.load(Ordering::SeqCst)
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

    /// Whether a signal asked to stop.
    pub fn interrupted(&self) -> bool {
        self.signals.came.load(Ordering::SeqCst) != 0
    }

    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signals.came.load(Ordering::SeqCst)).ok().filter(|s| *s != 0)
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
