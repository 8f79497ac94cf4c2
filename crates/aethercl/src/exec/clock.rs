//! CPU time of the calling thread, which limits work-groups. Time of other programs on a busy machine does not count.

use std::time::Duration;

/// Returns the CPU time of the calling thread; elapsed time if the system does not report it.
pub fn thread_time() -> Duration {
    #[cfg(unix)]
    {
        use rustix::time::{ClockId, clock_gettime};
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }
    #[cfg(not(unix))]
    {
        use std::{sync::LazyLock, time::Instant};
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGUN.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::thread_time;
    use std::time::{Duration, Instant};

    #[test]
    #[cfg(unix)]
    fn a_thread_that_sleeps_uses_none() {
        let (before, begun) = (thread_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_time() - before < begun.elapsed() / 2);
    }

    #[test]
    fn a_thread_that_computes_uses_some() {
        let before = thread_time();
        while thread_time() == before {
            std::hint::spin_loop();
        }
    }
}
