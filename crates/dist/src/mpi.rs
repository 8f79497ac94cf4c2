//! Messages between processes by MPI. The system's library is found and loaded at run time.
//!
//! Three binary interfaces are in use:
//! - Open MPI: handles are addresses of the library's objects.
//! - MPICH, shared by Intel MPI, MVAPICH and Cray: handles are numbers in an `int`.
//! - The standard of MPI 5: handles are small numbers in a pointer.
//!
//! On little-endian 64-bit machines, a number in a pointer-sized argument is a valid `int` argument. An `int` written to a zeroed pointer is its
//! number. So one table of functions serves all three; on other machines MPI is refused.
//!
//! This is the only module of this crate that may use `unsafe`: it calls the library's functions with the signatures of the MPI standard.
#![allow(unsafe_code)]

use crate::watch::Waiting;
use crate::{Group, Transport, Watch};
use netcl_device::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Environment of a process that a launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// `Open MPI`, `MPICH`, `Slurm`.
    pub name: &'static str,
    /// Number of processes that it started.
    pub size: usize,
    /// Rank of this process.
    pub rank: usize,
    /// Rank of this process on its machine; 0 if the launcher does not report it.
    pub local_rank: usize,
}

/// Returns the launcher that started this process together with at least one more.
pub fn launched(variable: &dyn Fn(&str) -> Option<String>) -> Option<Launcher> {
    const LAUNCHERS: [(&str, [&str; 3]); 4] = [
        ("Open MPI", ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"]),
        ("MPICH", ["PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"]),
        ("MVAPICH", ["MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"]),
        // A batch script also has a number of tasks, but only processes started by `srun` are tasks of a step.
        ("Slurm", ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"]),
    ];
    const LOCAL_RANKS: [&str; 5] = [
        "MPI_LOCALRANKID",
        "PMI_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "SLURM_LOCALID",
    ];
    LAUNCHERS.iter().find_map(|(name, [size, rank, local_rank])| {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let size = number(size).filter(|size| *size > 1)?;
        // A launcher may use another one's protocol to talk to the library, like `srun --mpi=pmi2`.
        let local_rank = number(local_rank).or_else(|| LOCAL_RANKS.iter().find_map(|name| number(name)));
        Some(Launcher { name, size, rank: number(rank)?, local_rank: local_rank.unwrap_or(0) })
    })
}

/// The library's handle for a communicator, a datatype or a request.
type Handle = usize;

type InitThread = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
type AskComm = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Duplicate = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
type SetHandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Probe = unsafe extern "C" fn(c_int, c_int, Handle, *mut c_int, usize) -> c_int;
type Test = unsafe extern "C" fn(*mut Handle, *mut c_int, usize) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;

/// The functions in use, and the values of the standard's constants in a binary interface.
struct Library {
    path: String,
    initialized: Ask,
    query_thread: Option<Ask>,
    init_thread: InitThread,
    finalize: Finalize,
    abort: Abort,
    comm_rank: AskComm,
    comm_size: AskComm,
    comm_dup: Duplicate,
    set_handler: SetHandler,
    send: Send,
    receive: Receive,
    test: Test,
    probe: Probe,
    version: Text,
    error_text: ErrorText,
    world: Handle,
    byte: Handle,
    errors_return: Handle,
    status_ignore: usize,
    /// `MPI_THREAD_SERIALIZED`.
    serialized: c_int,
}

/// Buffer size for `MPI_MAX_LIBRARY_VERSION_STRING` and `MPI_MAX_ERROR_STRING` of every implementation.
const TEXT: usize = 16 << 10;
/// Bytes per message: counts are `int`.
const PIECE: usize = 1 << 30;
const TAG: c_int = 1;
/// Tag of the messages with which waiting ranks report that they are alive.
const PRESENT: c_int = 2;
/// Wait duration after which a rank starts to check whether another one timed out, and the interval of these checks.
const SLOW: Duration = Duration::from_millis(500);
/// Time for waiting ranks to report.
const ROLL_CALL: Duration = Duration::from_secs(2);
/// Time that a rank waits to be ended by the reporting rank.
const SPOKEN_FOR: Duration = Duration::from_secs(5);

impl Library {
    /// Opens the first of `candidates` that loads and has all functions.
    fn open(candidates: &[PathBuf]) -> Result<Self> {
        let mut tried = Vec::new();
        for path in candidates {
            match Self::load(path) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        Err(Error::device(format!(
            "no MPI library found: {}. Install Open MPI or MPICH, whichever launcher started this program (on Debian and Ubuntu: apt-get install \
             openmpi-bin), or name the library in NETCL_MPI_LIBRARY",
            tried.join("; ")
        )))
    }

    fn load(path: &Path) -> std::result::Result<Self, String> {
        if cfg!(any(target_endian = "big", not(target_pointer_width = "64"))) {
            return Err("MPI is supported only on little-endian 64-bit machines".into());
        }
        // SAFETY: loading runs the library's constructors, the same as in any program that is linked with it.
        let library = unsafe { open_global(path) }.map_err(|e| e.to_string())?;
        // Other threads may be inside the library at exit, so it stays loaded.
        let library = std::mem::ManuallyDrop::new(library);
        let find = |name: &str| -> Option<usize> {
            // SAFETY: only the address is taken.
            let address = unsafe { library.get::<*const c_void>(name.as_bytes()).ok()?.try_as_raw_ptr() };
            address.map(|p| p as usize).filter(|p| *p != 0)
        };
        let need = |name: &str| find(name).ok_or_else(|| format!("{name} is missing"));
        let (world, byte, errors_return, status_ignore, serialized) =
            match (find("ompi_mpi_comm_world"), find("ompi_mpi_byte"), find("ompi_mpi_errors_return")) {
                (Some(world), Some(byte), Some(errors)) => (world, byte, errors, 0, 2),
                _ if find("MPI_Abi_get_version").is_some() && is_standard(path) => {
                    (0x101, 0x247, 0x143, 0, 2048)
                }
                _ => (0x4400_0000, 0x4c00_010d, 0x5400_0001, 1, 2),
            };
        // SAFETY: the symbols are functions of the MPI standard, with its signatures; an `int` handle is the low half of a pointer-sized
        // argument. `transmute` from `usize` to a function pointer is how an address from `dlsym` becomes callable.
        unsafe {
            Ok(Self {
                path: path.display().to_string(),
                initialized: std::mem::transmute::<usize, Ask>(need("MPI_Initialized")?),
                query_thread: find("MPI_Query_thread").map(|f| std::mem::transmute::<usize, Ask>(f)),
                init_thread: std::mem::transmute::<usize, InitThread>(need("MPI_Init_thread")?),
                finalize: std::mem::transmute::<usize, Finalize>(need("MPI_Finalize")?),
                abort: std::mem::transmute::<usize, Abort>(need("MPI_Abort")?),
                comm_rank: std::mem::transmute::<usize, AskComm>(need("MPI_Comm_rank")?),
                comm_size: std::mem::transmute::<usize, AskComm>(need("MPI_Comm_size")?),
                comm_dup: std::mem::transmute::<usize, Duplicate>(need("MPI_Comm_dup")?),
                set_handler: std::mem::transmute::<usize, SetHandler>(need("MPI_Comm_set_errhandler")?),
                send: std::mem::transmute::<usize, Send>(need("MPI_Isend")?),
                receive: std::mem::transmute::<usize, Receive>(need("MPI_Irecv")?),
                test: std::mem::transmute::<usize, Test>(need("MPI_Test")?),
                probe: std::mem::transmute::<usize, Probe>(need("MPI_Iprobe")?),
                version: std::mem::transmute::<usize, Text>(need("MPI_Get_library_version")?),
                error_text: std::mem::transmute::<usize, ErrorText>(need("MPI_Error_string")?),
                world,
                byte,
                errors_return,
                status_ignore,
                serialized,
            })
        }
    }

    fn is_initialized(&self) -> Result<bool> {
        let mut before = 0;
        // SAFETY: MPI_Initialized may be called at any time; the pointer is valid.
        self.check("MPI_Initialized", unsafe { (self.initialized)(&raw mut before) })?;
        Ok(before != 0)
    }

    /// Returns the error of a call that returned `code`.
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = (vec![0u8; TEXT], 0);
        // SAFETY: the buffer is longer than any implementation's MPI_MAX_ERROR_STRING.
        unsafe { (self.error_text)(code, text.as_mut_ptr().cast(), &raw mut length) };
        text.truncate(usize::try_from(length).unwrap_or(0));
        Err(Error::device(format!("{call}: {}", String::from_utf8_lossy(&text))))
    }

    /// Returns the implementation and its version: the first line of its version string.
    fn version(&self) -> String {
        let (mut text, mut length) = (vec![0u8; TEXT], 0);
        // SAFETY: the buffer is longer than any implementation's MPI_MAX_LIBRARY_VERSION_STRING.
        unsafe { (self.version)(text.as_mut_ptr().cast(), &raw mut length) };
        text.truncate(usize::try_from(length).unwrap_or(0));
        let text = String::from_utf8_lossy(&text).replace('\t', " ");
        let first = text.split(['\n', '\0']).next().unwrap_or_default();
        let first = first.split(", package").next().unwrap_or_default();
        first.replace("Version:", "").split_whitespace().collect::<Vec<_>>().join(" ").replace(" v", " ")
    }

    /// Returns the value that `ask` reports for a communicator.
    fn number(&self, call: &str, ask: AskComm, comm: Handle) -> Result<usize> {
        let mut value = 0;
        // SAFETY: `comm` is a communicator of this library, which is initialized.
        self.check(call, unsafe { ask(comm, &raw mut value) })?;
        usize::try_from(value).map_err(|_| Error::device(format!("{call} says {value}")))
    }
}

/// Returns true if a library implements the standard's interface. An MPICH that only answers queries about it does not count.
fn is_standard(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("mpi_abi"))
}

/// # Safety
/// Same as for every library: its constructors run.
#[cfg(unix)]
unsafe fn open_global(path: &Path) -> std::result::Result<libloading::Library, libloading::Error> {
    use libloading::os::unix;
    // Components that Open MPI loads itself look up its symbols in the whole process.
    let flags = unix::RTLD_NOW | unix::RTLD_GLOBAL;
    // SAFETY: the caller's.
    unsafe { unix::Library::open(Some(path), flags) }.map(Into::into)
}

/// # Safety
/// Same as for every library: its constructors run.
#[cfg(not(unix))]
unsafe fn open_global(path: &Path) -> std::result::Result<libloading::Library, libloading::Error> {
    // SAFETY: the caller's.
    unsafe { libloading::Library::new(path) }
}

/// Returns the names of MPI libraries, those of `launcher` first.
fn candidates(launcher: Option<&Launcher>, named: Option<&Path>) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named.to_path_buf()];
    }
    let open_mpi = ["libmpi.so.40", "libmpi.so.80", "libmpi.40.dylib"];
    let mpich = ["libmpi.so.12", "libmpich.so.12", "libmpi.12.dylib"];
    let others =
        ["libmpi_abi.so.0", "libmpi_abi.so", "libmpi.so", "libmpich.so", "libmpi.dylib", "msmpi.dll"];
    let is_open_mpi = launcher.is_none_or(|l| l.name != "MPICH" && l.name != "MVAPICH");
    let (first, second) = if is_open_mpi { (open_mpi, mpich) } else { (mpich, open_mpi) };
    first.iter().chain(&second).chain(&others).map(PathBuf::from).collect()
}

/// The processes that a launcher started.
pub struct Mpi {
    library: Library,
    comm: Handle,
    rank: usize,
    size: usize,
    watch: Watch,
    /// Serializes calls: the library is asked for `MPI_THREAD_SERIALIZED`. The lock is not held while waiting for a message.
    calls: Mutex<()>,
    closed: AtomicBool,
    /// Whether this group initialized MPI, and so ends it.
    owner: bool,
}

impl Mpi {
    /// Initializes MPI and joins all processes of the launcher. `library` replaces the search by known names.
    ///
    /// # Errors
    /// `Device` if the library is missing or was initialized before. Also if it belongs to another launcher, which shows as a world of one process.
    pub fn join(launcher: Option<&Launcher>, library: Option<&Path>, patience: Duration) -> Result<Group> {
        let library = Library::open(&candidates(launcher, library))?;
        let mut level = 0;
        if library.is_initialized()? {
            return Err(Error::device("MPI was already initialized in this process"));
        }
        let none = std::ptr::null_mut();
        // SAFETY: called once, before every other function; the standard allows null for argc and argv.
        let code = unsafe { (library.init_thread)(none, none.cast(), library.serialized, &raw mut level) };
        library.check("MPI_Init_thread", code)?;
        Self::world(library, level, launcher, (patience, true))
    }

    /// Joins all processes of the launcher through the MPI that another library of this process has initialized, such as mpi4py. That library ends
    /// MPI, after the group's last message.
    ///
    /// # Errors
    /// Errors of [`Mpi::join`]; `Device` if MPI was not initialized.
    pub fn attach(launcher: Option<&Launcher>, library: Option<&Path>, patience: Duration) -> Result<Group> {
        let library = Library::open(&candidates(launcher, library))?;
        let query = library.query_thread.filter(|_| library.is_initialized().unwrap_or(false));
        let query = query.ok_or_else(|| {
            Error::device(format!(
                "{} was not initialized in this process; NETCL_MPI_LIBRARY names the library that was",
                library.path
            ))
        })?;
        let mut level = 0;
        // SAFETY: MPI is initialized; the pointer is valid.
        library.check("MPI_Query_thread", unsafe { query(&raw mut level) })?;
        Self::world(library, level, launcher, (patience, false))
    }

    /// Returns the group of all processes. `owner` says whether the group ends MPI.
    fn world(
        library: Library,
        level: c_int,
        launcher: Option<&Launcher>,
        (patience, owner): (Duration, bool),
    ) -> Result<Group> {
        if level < library.serialized {
            return Err(Error::device(format!(
                "{} ({}) cannot be called from several threads: it was built or initialized without MPI_THREAD_SERIALIZED",
                library.path,
                library.version()
            )));
        }
        let mut comm = 0;
        // SAFETY: the world is a communicator; the result is a handle of at most pointer size, in memory that was zero.
        unsafe {
            library.check("MPI_Comm_dup", (library.comm_dup)(library.world, &raw mut comm))?;
            library.check("MPI_Comm_set_errhandler", (library.set_handler)(comm, library.errors_return))?;
        }
        let rank = library.number("MPI_Comm_rank", library.comm_rank, comm)?;
        let size = library.number("MPI_Comm_size", library.comm_size, comm)?;
        if let Some(launcher) = launcher.filter(|l| l.size != size) {
            let how = if launcher.name == "Slurm" {
                "srun uses another protocol. Start with --mpi=pmix or --mpi=pmi2 (srun --mpi=list shows the supported ones), load srun's library \
                 with NETCL_MPI_LIBRARY, or start with mpirun within the allocation"
            } else {
                "the launcher belongs to another implementation. Load its library with NETCL_MPI_LIBRARY, or start with this library's launcher"
            };
            return Err(Error::device(format!(
                "{} started {} processes, but {} ({}) sees {size}: {how}",
                launcher.name,
                launcher.size,
                library.path,
                library.version()
            )));
        }
        let (closed, watch) = (AtomicBool::new(false), Watch::new(patience));
        Ok(Group::new(Arc::new(Self {
            library,
            comm,
            rank,
            size,
            watch,
            calls: Mutex::new(()),
            closed,
            owner,
        })))
    }

    /// Returns path and version of the library that would be loaded, without initializing it.
    ///
    /// # Errors
    /// `Device` if none is found.
    pub fn found(launcher: Option<&Launcher>, library: Option<&Path>) -> Result<(String, String)> {
        let library = Library::open(&candidates(launcher, library))?;
        let version = library.version();
        Ok((library.path, version))
    }

    /// Ends all processes after an error with messages in flight, because returning would free their memory.
    fn end(&self, error: Error) -> Error {
        tracing::error!("{error}");
        self.abort(error.kind().exit_code());
        error
    }

    /// Returns true if a rank reports that it timed out.
    fn is_called(&self) -> Result<bool> {
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            let mut there = 0;
            let ignore = self.library.status_ignore;
            // SAFETY: the communicator is of this library and has this rank; the flag is valid.
            let code =
                unsafe { (self.library.probe)(peer as c_int, PRESENT, self.comm, &raw mut there, ignore) };
            self.library.check("MPI_Iprobe", code)?;
            if there != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports to all ranks that this rank waits, and collects the reports of the others. Ranks without a report are hanging. One rank reports the
    /// error for all; the others wait for it to end them.
    fn roll_call(&self, waited: Duration) -> Result<Error> {
        static HERE: [u8; 1] = [1];
        let (lib, one) = (&self.library, 1);
        // The group ends with this call, so neither the requests nor their memory are used again.
        let room: &'static mut [u8] = Box::leak(vec![0; self.size].into_boxed_slice());
        let mut absent: Vec<(usize, Handle)> = Vec::new();
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            let (mut sent, mut awaited, to) = (0, 0, peer as c_int);
            // SAFETY: the memory lives as long as the process.
            unsafe {
                let at = room[peer..].as_mut_ptr().cast();
                let code = (lib.receive)(at, one, lib.byte, to, PRESENT, self.comm, &raw mut awaited);
                lib.check("MPI_Irecv", code)?;
                let at = HERE.as_ptr().cast();
                lib.check("MPI_Isend", (lib.send)(at, one, lib.byte, to, PRESENT, self.comm, &raw mut sent))?;
            }
            absent.push((peer, awaited));
        }
        let mut waiting = Waiting::begin();
        while !absent.is_empty() && waiting.look() < ROLL_CALL {
            absent.retain_mut(|(_, request)| {
                let mut done = 0;
                // SAFETY: the handle is of a request that was not completed; the flag is valid.
                let code = unsafe { (lib.test)(request, &raw mut done, lib.status_ignore) };
                code != 0 || done == 0
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        let absent: Vec<usize> = absent.into_iter().map(|(peer, _)| peer).collect();
        let speaks = (0..self.size).find(|rank| !absent.contains(rank));
        if speaks != Some(self.rank) {
            std::thread::sleep(SPOKEN_FOR);
        }
        Ok(Error::device(self.watch.silent(waited, &absent)))
    }

    fn call(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for requests of this rank and those of the peers that they depend on. Other threads of this rank may exchange meanwhile.
    fn complete(&self, requests: &mut [(Option<Handle>, usize)]) -> Result<()> {
        let mut waiting = Waiting::begin();
        let (mut rounds, mut looked) = (0u32, Duration::ZERO);
        loop {
            let mut waits = false;
            let one = self.call();
            for (request, peer) in requests.iter_mut() {
                let Some(handle) = request else { continue };
                let mut done = 0;
                // SAFETY: the handle is of a request that was not completed; the flag is valid.
                let code = unsafe { (self.library.test)(handle, &raw mut done, self.library.status_ignore) };
                let of = |e: Error| e.context(format!("rank {}, message with rank {peer}", self.rank));
                self.library.check("MPI_Test", code).map_err(of)?;
                if done != 0 {
                    *request = None;
                } else {
                    waits = true;
                }
            }
            if !waits {
                return Ok(());
            }
            let waited = waiting.look();
            let looks = waited >= looked + SLOW;
            if looks {
                looked = waited;
            }
            if waited > self.watch.patience() || looks && self.is_called()? {
                return Err(self.roll_call(waited)?);
            }
            drop(one);
            // Short messages arrive during polling. During long waits the core is released to other threads, which may be ranks.
            rounds = rounds.saturating_add(1);
            match rounds {
                0..200 => std::hint::spin_loop(),
                200..2000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, to: Option<(usize, &[u8])>, from: Option<(usize, &mut [u8])>) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::device(format!("rank {} has left the group, which was closed", self.rank)));
        }
        let (receiver, out) = to.unwrap_or((self.rank, &[]));
        let (sender, into) = from.unwrap_or((self.rank, &mut []));
        let (mut out, mut into) = (out.chunks(PIECE), into.chunks_mut(PIECE));
        let lib = &self.library;
        loop {
            let (next, room) = (out.next(), into.next());
            if next.is_none() && room.is_none() {
                return Ok(());
            }
            let mut requests = [(None, sender), (None, receiver)];
            let one = self.call();
            if let Some(piece) = room {
                let (count, mut handle) = (piece.len() as c_int, 0);
                // SAFETY: the memory outlives the request, which is completed below or ends all processes; a piece's length fits an `int`.
                let code = unsafe {
                    let at = piece.as_mut_ptr().cast();
                    (lib.receive)(at, count, lib.byte, sender as c_int, TAG, self.comm, &raw mut handle)
                };
                lib.check("MPI_Irecv", code).map_err(|e| self.end(e))?;
                requests[0].0 = Some(handle);
            }
            if let Some(piece) = next {
                let (count, mut handle) = (piece.len() as c_int, 0);
                // SAFETY: same as above.
                let code = unsafe {
                    let at = piece.as_ptr().cast();
                    (lib.send)(at, count, lib.byte, receiver as c_int, TAG, self.comm, &raw mut handle)
                };
                lib.check("MPI_Isend", code).map_err(|e| self.end(e))?;
                requests[1].0 = Some(handle);
            }
            drop(one);
            self.complete(&mut requests).map_err(|e| self.end(e))?;
        }
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn name(&self) -> String {
        self.library.version()
    }

    fn abort(&self, code: u8) {
        if !self.closed.load(Ordering::Relaxed) {
            // SAFETY: the communicator is of this library, which is initialized. The standard lets it be called while others are in the library.
            unsafe { (self.library.abort)(self.comm, c_int::from(code)) };
        }
    }

    fn close(&self) -> Result<()> {
        let _one = self.call();
        if self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if !self.owner {
            return Ok(());
        }
        // SAFETY: all messages of this rank are complete, since `exchange` waits for them.
        self.library.check("MPI_Finalize", unsafe { (self.library.finalize)() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&str, &str)]) -> Option<Launcher> {
        launched(&move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn launchers_are_known_by_their_environment() {
        let open_mpi = with(&[
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ]);
        assert_eq!(open_mpi, Some(Launcher { name: "Open MPI", size: 4, rank: 3, local_rank: 1 }));
        let mpich = with(&[("PMI_SIZE", "2"), ("PMI_RANK", "1"), ("MPI_LOCALRANKID", "1")]);
        assert_eq!(mpich, Some(Launcher { name: "MPICH", size: 2, rank: 1, local_rank: 1 }));
        let pmi2 = with(&[("PMI_SIZE", "4"), ("PMI_RANK", "3"), ("SLURM_LOCALID", "2")]);
        assert_eq!(pmi2.map(|l| l.local_rank), Some(2));
        assert_eq!(with(&[("OMPI_COMM_WORLD_SIZE", "1")]), None);
        assert_eq!(with(&[("SLURM_NTASKS", "8")]), None, "a batch script is not a step");
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let error = Mpi::found(None, Some(Path::new("/nowhere/libmpi.so"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/libmpi.so") && text.contains("NETCL_MPI_LIBRARY"), "{text}");
    }
}
