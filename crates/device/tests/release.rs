//! Memory that is released while handles of it exist.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)] // tests

use netcl_device::{Buffer, Device, ErrorKind, Settings};

fn device() -> Device {
    Device::open("sim", &Settings::default()).unwrap()
}

#[test]
fn a_released_buffer_is_refused_everywhere_and_its_memory_serves_others() {
    let device = device();
    let before = device.memory().live;
    let first = Buffer::next_number();
    let buffer = device.allocate(4096).unwrap();
    let other = device.allocate(4096).unwrap();
    let window = buffer.window(0, 256).unwrap();
    assert!(
        buffer.number() >= first && other.number() > buffer.number() && window.number() == buffer.number()
    );
    device.fill(&buffer, &[1]).unwrap();
    let live = device.memory().live;
    assert!(buffer.release() && window.release(), "a second time does nothing");
    assert_eq!(device.memory().live, live - 4096);
    let (data, mut out) = ([0; 256], [0; 256]);
    for (refused, of) in [(&buffer, "the buffer"), (&window, "its window")] {
        let done = [
            device.upload(refused, 0, &data),
            device.download(refused, 0, &mut out),
            device.copy(refused, 0, &other, 0, 256),
            device.copy(&other, 0, refused, 0, 256),
            device.fill(refused, &[1]),
            refused.window(0, 256).map(drop),
        ];
        for error in done.into_iter().map(|done| done.unwrap_err()) {
            assert!(error.kind() == ErrorKind::Launch && error.message().contains("freed"), "{of}: {error}");
        }
    }
    // A remaining handle does not affect the new owner of the memory.
    let next = device.allocate(4096).unwrap();
    device.fill(&next, &[7]).unwrap();
    drop((buffer, window));
    device.download(&next, 0, &mut out).unwrap();
    assert_eq!(out, [7; 256]);
    drop((next, other));
    assert_eq!(device.memory().live, before);
}

#[test]
fn a_weak_handle_keeps_nothing() {
    let device = device();
    let buffer = device.allocate(64).unwrap();
    let weak = buffer.weak();
    assert!(weak.upgrade().is_some_and(|there| there.same(&buffer)));
    drop(buffer);
    assert!(weak.upgrade().is_none());
}
