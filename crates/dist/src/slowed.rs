//! A link that is slower than this machine's, for tests of overlap and for estimates of other machines.

use crate::{Group, Transport, Watch};
use netcl_device::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time of a message: `delay + bytes / bytes_per_s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time before the first byte arrives.
    pub delay: Duration,
    /// Bandwidth per direction.
    pub bytes_per_s: f64,
}

impl Link {
    /// Returns the time of a message of `bytes`.
    pub fn time(&self, bytes: usize) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_s.max(1.0);
        self.delay + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Returns the same group over a link that is at most as fast as `link`.
#[must_use]
pub fn slowed(group: &Group, link: Link) -> Group {
    Group::new(Arc::new(Slowed { inner: group.transport().clone(), link }))
}

struct Slowed {
    inner: Arc<dyn Transport>,
    link: Link,
}

impl Transport for Slowed {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn exchange(&self, to: Option<(usize, &[u8])>, from: Option<(usize, &mut [u8])>) -> Result<()> {
        let begun = Instant::now();
        let bytes = to.as_ref().map_or(0, |m| m.1.len()).max(from.as_ref().map_or(0, |m| m.1.len()));
        self.inner.exchange(to, from)?;
        std::thread::sleep(self.link.time(bytes).saturating_sub(begun.elapsed()));
        Ok(())
    }

    fn may_share_memory(&self) -> bool {
        // Shared memory would be faster than the link.
        false
    }

    fn watch(&self) -> &Watch {
        self.inner.watch()
    }

    fn name(&self) -> String {
        format!("{}, at most {:.3} GB/s", self.inner.name(), self.link.bytes_per_s / 1e9)
    }

    fn abort(&self, code: u8) {
        self.inner.abort(code);
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
