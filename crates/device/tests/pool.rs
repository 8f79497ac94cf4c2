//! The memory pool under a mixed load: blocks never overlap, rounding is bounded, and the pool does not fragment.
#![allow(clippy::unwrap_used)] // a test

use netcl_device::draw::Draw;
use netcl_device::null::NullDriver;
use netcl_device::{BlockPlace, Buffer, Capabilities, Device, DeviceKind, ErrorKind, Settings, size_class};
use std::collections::BTreeMap;

fn device(name: &str) -> Device {
    Device::open(name, &Settings::from_env()).unwrap()
}

fn test_device() -> Device {
    device(&std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "sim".into()))
}

/// Allocates and frees buffers of random sizes, and calls `look` with the live ones after each change.
fn load(device: &Device, turns: u32, mut look: impl FnMut(&[Buffer])) {
    let (mut live, mut draw) = (Vec::<Buffer>::new(), Draw::new(1));
    let mut next = |below: usize| draw.below(below);
    for _ in 0..turns {
        if live.len() > 60 || (!live.is_empty() && next(3) == 0) {
            live.swap_remove(next(live.len()));
        } else {
            let largest = [2_000, 100_000, 1 << 20][next(3)];
            live.push(device.allocate(1 + next(largest)).unwrap());
        }
        look(&live);
    }
}

/// Checks that live and free blocks are within their allocations and do not overlap.
fn check_places(device: &Device, live: &[Buffer]) {
    let mut by_allocation: BTreeMap<usize, Vec<BlockPlace>> = BTreeMap::new();
    for place in live.iter().map(|buffer| buffer.place().unwrap()).chain(device.free_blocks()) {
        by_allocation.entry(place.allocation).or_default().push(place);
    }
    for places in by_allocation.values_mut() {
        places.sort();
        assert!(places.iter().all(|p| p.offset + p.bytes <= p.allocation_bytes), "{places:?}");
        assert!(places.windows(2).all(|w| w[0].offset + w[0].bytes <= w[1].offset), "{places:?}");
        assert!(places.iter().all(|p| p.allocation_bytes == places[0].allocation_bytes));
    }
}

#[test]
fn row_214_and_215_small_blocks_share_slabs_and_no_two_overlap() {
    let device = test_device();
    let mut shared = 0;
    load(&device, 2000, |live| {
        check_places(&device, live);
        shared = shared
            .max(live.iter().filter(|b| b.place().unwrap().allocation_bytes > size_class(b.bytes())).count());
        let (asked, stats) = (live.iter().map(Buffer::bytes).sum::<usize>(), device.memory());
        assert_eq!(stats.live, live.iter().map(|b| size_class(b.bytes())).sum::<usize>());
        assert!(stats.live <= asked + asked / 8 + 256 * live.len(), "rounding: {} of {asked}", stats.live);
        assert!(stats.live <= stats.reserved);
    });
    assert!(shared > 10, "{shared} blocks share a slab");
}

/// A load that repeats needs no more memory: its blocks fit into the freed ones, whatever the order of the frees was.
#[test]
fn row_215_a_load_that_repeats_reserves_no_more_memory() {
    let device = test_device();
    load(&device, 2000, |_| ());
    let (first, free) = (device.memory(), device.free_blocks());
    assert!(first.live == 0 && first.reserved > 0 && !free.is_empty());
    for _ in 0..3 {
        load(&device, 2000, |_| ());
        let again = device.memory();
        assert_eq!((again.reserved, again.driver_allocations), (first.reserved, first.driver_allocations));
        assert_eq!(device.free_blocks(), free);
    }
    device.release_cached_memory();
    assert_eq!(device.free_blocks(), []);
}

#[test]
fn threads_get_blocks_of_their_own() {
    let device = test_device();
    let before = device.memory().live;
    std::thread::scope(|threads| {
        for byte in 0..4u8 {
            let device = device.clone();
            threads.spawn(move || {
                for turn in 0..200 {
                    let data = vec![byte; 100 + turn * 37];
                    let buffer = device.allocate(data.len()).unwrap();
                    device.upload(&buffer, 0, &data).unwrap();
                    let mut back = vec![!byte; data.len()];
                    device.download(&buffer, 0, &mut back).unwrap();
                    assert_eq!(back, data);
                }
            });
        }
    });
    assert_eq!(device.memory().live, before);
}

const MIB: usize = 1 << 20;

/// Returns a device whose memory is limited to 12 MiB, of which 11 are for buffers.
fn limited() -> Device {
    let settings = Settings { memory_limit: Some(12 << 20), ..Settings::default() };
    let driver = NullDriver::new(Capabilities::floor("gpu:0", DeviceKind::Gpu));
    Device::from_driver(Box::new(driver), settings)
}

#[test]
fn unused_blocks_are_returned_before_a_limit_is_exceeded() {
    let device = limited();
    let reserved = || device.memory().reserved;
    // Blocks of different sizes that no later request takes.
    for size in [2 * MIB, 3 * MIB, 4 * MIB, 8 * MIB, 10 * MIB] {
        drop(device.allocate(size).unwrap());
        assert!(reserved() <= 11 * MIB, "{} bytes", reserved());
    }
    let (a, b) = (device.allocate(6 * MIB).unwrap(), device.allocate(4 * MIB).unwrap());
    let error = device.allocate(2 * MIB).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory);
    assert!(error.message().contains("NETCL_MEMORY leaves 11.0 MiB for buffers"), "{error}");
    drop((a, b));
    device.allocate(10 * MIB).unwrap();
}

#[test]
fn opened_devices_have_the_limit_as_their_memory() {
    let settings = Settings { memory_limit: Some(12 << 20), ..Settings::from_env() };
    assert_eq!(Device::open("sim", &settings).unwrap().capabilities().global_mem, 11 << 20);
}
