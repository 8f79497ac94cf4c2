//! Memory use of many consecutive operations. This test has a separate process so that no other test changes its memory use.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl_device::Result;
use netcl_dist::{Group, Reduction, local};
use std::sync::OnceLock;
use std::time::Duration;

/// Returns the bytes of this process's memory, if Linux reports them.
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(4096)
}

/// Memory is reused: the amount that a rank has sent ahead is bounded. Keeping one vector of each operation would take 160 MB.
#[test]
fn ten_thousand_operations_in_a_row() {
    const LENGTH: usize = 4000;
    let before = OnceLock::new();
    let run = |rank: &Group| -> Result<f32> {
        let mut x = vec![0.0f32; LENGTH];
        for i in 0..10_000 {
            if i == 500 {
                before.get_or_init(resident);
            }
            x.fill(rank.rank() as f32 + i as f32);
            rank.all_reduce(&mut x, Reduction::Mean)?;
            rank.broadcast(&mut x, i % 3)?;
        }
        Ok(x[LENGTH - 1])
    };
    let run = &run;
    let last: Vec<Result<f32>> = std::thread::scope(|scope| {
        let start = |rank: Group| scope.spawn(move || run(&rank));
        let threads: Vec<_> = local(3, Duration::from_secs(60)).into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(last.into_iter().all(|x| x.unwrap() == 10_000.0));
    if let (Some(Some(before)), Some(after)) = (before.get(), resident()) {
        assert!(after < before + (32 << 20), "from {before} to {after} bytes");
    }
}
