//! Counters on a device that launches share: every launch finds them at 0 and leaves them at 0.

use super::prelude::*;
use netcl_device::Buffer;
use netcl_device::driver::QueueKind;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
struct CounterBuffers(Mutex<HashMap<(&'static str, QueueKind), Buffer>>);

/// Returns at least `count` 32-bit zeros for the launches of `user` in this thread's queue, which run one after the other. The existing buffer is
/// reused if it is large enough. The buffers belong to the device, so they do not count as leaks.
pub(super) fn zeroed(device: &Device, user: &'static str, count: usize) -> Result<Buffer> {
    let kept = device.extension(|_| CounterBuffers::default());
    let mut kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = count * size_of::<u32>();
    let user = (user, device.queue());
    if let Some(buffer) = kept.get(&user).filter(|buffer| buffer.bytes() >= bytes) {
        return Ok(buffer.clone());
    }
    // They outlive a current capture, and must be 0 whether or not it is ever replayed.
    let buffer = device.outside_capture(|| {
        let _tag = device.tag("tile counters");
        let buffer = device.allocate(bytes)?;
        device.fill(&buffer, &[0; 4])?;
        Ok::<_, Error>(buffer)
    })?;
    kept.insert(user, buffer.clone());
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::Settings;

    #[test]
    fn counters_are_shared_and_grow_with_what_is_asked() {
        let device = Device::open("sim", &Settings::default()).unwrap();
        let zeros = |user, count| {
            let buffer = zeroed(&device, user, count).unwrap();
            let mut bytes = vec![0xFF; buffer.bytes()];
            device.download(&buffer, 0, &mut bytes).unwrap();
            assert!(buffer.bytes() >= 4 * count && bytes.iter().all(|b| *b == 0));
            buffer
        };
        let few = zeros("a", 2);
        assert!(few.same(&zeros("a", 2)) && few.same(&zeros("a", 1)));
        assert!(!few.same(&zeros("b", 2)), "launches of other users may run at the same time");
        let many = zeros("a", 5000);
        assert!(!many.same(&few) && many.same(&zeros("a", 2)));
    }
}
