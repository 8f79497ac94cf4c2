//! Decisions that depend on sizes alone, kept: finding the cheapest of hundreds of plans takes a host longer than the launch itself.

use super::prelude::*;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Entries from which on all are found anew: sizes that never come back would otherwise stay for ever.
const MOST: usize = 4096;

type Known<V> = HashMap<(&'static str, [usize; 4]), V>;

struct Kept<V>(Mutex<Known<V>>);

/// What `find` says about `sizes`, which is asked once for each device, `user` and sizes.
pub(super) fn remembered<V: Copy + Send + 'static>(
    device: &Device,
    user: &'static str,
    sizes: [usize; 4],
    find: impl FnOnce() -> V,
) -> V {
    let kept = device.extension(|_| Kept::<V>(Mutex::default()));
    if let Some(found) = kept.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(user, sizes)) {
        return *found;
    }
    let found = find();
    let mut known = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= MOST {
        known.clear();
    }
    known.insert((user, sizes), found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;

    #[test]
    fn each_answer_is_found_once() {
        let device = test_device().unwrap();
        let mut asked = 0;
        let mut ask = |user, n: usize| {
            remembered(&device, user, [n, 0, 0, 0], || {
                asked += 1;
                (n as u8, user)
            })
        };
        assert_eq!(
            [ask("a", 1), ask("a", 2), ask("b", 1), ask("a", 1)],
            [(1, "a"), (2, "a"), (1, "b"), (1, "a")]
        );
        for n in 0..MOST {
            ask("c", n);
        }
        assert_eq!(ask("a", 2), (2, "a"));
        assert!(asked <= 3 + MOST + 1);
    }
}
