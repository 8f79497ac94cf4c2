//! Counters on a device that launches share: every launch finds them 0 and leaves them 0.

use super::prelude::*;
use netcl_device::Buffer;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
struct Kept(Mutex<HashMap<&'static str, Buffer>>);

/// `count` zeros of 32 bits for the launches of `user`, which run one after the other. They stay with the device, so they are
/// no leak where memory is counted.
pub(super) fn zeroed(device: &Device, user: &'static str, count: usize) -> Result<Buffer> {
    let kept = device.extension(|_| Kept::default());
    let mut kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(buffer) = kept.get(user) {
        return Ok(buffer.clone());
    }
    // They outlive whatever is captured now, and must be 0 whether or not it is ever replayed.
    let buffer = device.outside_capture(|| {
        let _tag = device.tag("tile counters");
        let buffer = device.allocate(count * size_of::<u32>())?;
        device.fill(&buffer, &[0; 4])?;
        Ok::<_, Error>(buffer)
    })?;
    kept.insert(user, buffer.clone());
    Ok(buffer)
}
