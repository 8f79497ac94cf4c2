//! Unique numbers and names for requests.

use netcl::tensor::random;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number that no other request has.
pub fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    // The standard library's hasher has different keys in each process.
    let seed = *SEED.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let [a, b, ..] = random::draw(seed, 1, NEXT.fetch_add(1, Ordering::Relaxed));
    u64::from(a) << 32 | u64::from(b)
}

/// Returns a name such as `chatcmpl-0123456789abcdef`.
pub fn name(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", fresh(), fresh() >> 32)
}
