//! Records every API call of the program with the host's wall-clock time, if a detailed report was requested.

use crate::settings::settings;
use aethercl::report::{ApiCall, FunctionCalls, MAX_ENTRIES, RunReport};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// All calls recorded so far.
struct Calls {
    list: Vec<ApiCall>,
    left_out: u64,
    functions: BTreeMap<&'static str, FunctionCalls>,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { list: Vec::new(), left_out: 0, functions: BTreeMap::new() });
/// Start time of the first call.
static FIRST: OnceLock<Instant> = OnceLock::new();
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: u32 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the start time of a call; `None` if calls are not recorded.
pub fn begin() -> Option<Instant> {
    settings().detail.then(|| {
        let now = Instant::now();
        FIRST.get_or_init(|| now);
        now
    })
}

/// Records a call that ends now and returns `code`.
pub fn end(name: &'static str, begun: Option<Instant>, code: i32) {
    let (Some(begun), Some(first)) = (begun, FIRST.get()) else { return };
    let ns = begun.elapsed().as_nanos() as u64;
    let start_ns = begun.saturating_duration_since(*first).as_nanos() as u64;
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let function = calls.functions.entry(name).or_default();
    function.calls += 1;
    function.errors += u64::from(code != 0);
    function.ns += ns;
    if calls.list.len() >= MAX_ENTRIES {
        calls.left_out += 1;
        return;
    }
    // During thread shutdown the thread-local number may already be destroyed; such calls count for thread 0.
    let thread = THREAD.try_with(|t| *t).unwrap_or(0);
    calls.list.push(ApiCall { process: 0, thread, name: name.into(), start_ns, ns, code });
}

/// Returns a report that contains only the calls recorded so far.
pub fn report() -> RunReport {
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let named = |(name, f): (&&str, &FunctionCalls)| FunctionCalls { name: (*name).to_string(), ..f.clone() };
    let mut functions: Vec<FunctionCalls> = calls.functions.iter().map(named).collect();
    functions.sort_by_key(|f| std::cmp::Reverse(f.ns));
    RunReport { calls: calls.list.clone(), calls_left_out: calls.left_out, functions, ..RunReport::default() }
}
