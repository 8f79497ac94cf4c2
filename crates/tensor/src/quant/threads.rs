//! Work on the bytes of a matrix, on all cores.

/// Minimum bytes that a thread permutes.
const PER_THREAD: usize = 1 << 18;

/// Runs `one` for `count` parts with `bytes` bytes in total, on as many threads as are useful.
pub(super) fn shared_out<P: Send>(
    count: usize,
    bytes: usize,
    parts: impl Iterator<Item = P>,
    one: &(impl Fn(P) + Sync),
) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(bytes / PER_THREAD).min(count).max(1);
    if threads == 1 {
        return parts.for_each(one);
    }
    let mut parts: Vec<P> = parts.collect();
    let each = parts.len().div_ceil(threads);
    std::thread::scope(|scope| {
        while !parts.is_empty() {
            let mine = parts.split_off(parts.len().saturating_sub(each));
            scope.spawn(move || mine.into_iter().for_each(one));
        }
    });
}
