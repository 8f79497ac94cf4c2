//! Opens devices from many threads at the same time; no driver may crash.
#![allow(clippy::unwrap_used)] // a test

use netcl_device::{Settings, list};

#[test]
fn first_devices_open_from_many_threads() {
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| list(&Settings::default()).map_or(0, |found| found.len())))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(counts.iter().all(|n| *n == counts[0]), "{counts:?}");
}
