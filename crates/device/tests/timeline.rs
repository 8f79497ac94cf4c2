//! Contents of a timeline: transfers with their queue, in order, on the host clock.
#![allow(clippy::unwrap_used)] // tests

use netcl_device::driver::QueueKind;
use netcl_device::null::NullDriver;
use netcl_device::{Capabilities, Device, DeviceKind, ErrorKind, Settings, Transfer, TransferKind};

/// Runs an upload of two pieces, a concurrent upload, a copy, a fill and two downloads.
fn transfers(device: &Device) -> Vec<Transfer> {
    let n = 1 << 20;
    let (a, b) = (device.allocate(n).unwrap(), device.allocate(n).unwrap());
    let beside = device.allocate(256).unwrap();
    device.fill(&b, &[0; 4]).unwrap();
    device.start_timeline().unwrap();
    let again = device.start_timeline().unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Unsupported);
    device.upload(&a, 0, &vec![7; n]).unwrap();
    device.copy(&a, 0, &b, 0, n / 2).unwrap();
    device.fill(&a, &[3; 4]).unwrap();
    device.upload_overlapped(&beside, 0, &[1; 64]).unwrap();
    let mark = device.mark().unwrap();
    let mut out = vec![0; 256];
    device.download_after(&mark, &a, 0, &mut out).unwrap();
    assert_eq!(out, [3; 256]);
    device.download(&beside, 0, &mut out).unwrap();
    assert_eq!(out[..64], [1; 64]);
    let timeline = device.stop_timeline().unwrap();
    assert!(timeline.launches.is_empty() && timeline.kernels().is_empty());
    if !device.capabilities().simulated {
        let last = timeline.end_ns + timeline.clock_error_ns;
        assert!(
            timeline.transfers.iter().all(|t| t.start_ns <= t.end_ns && t.end_ns <= last),
            "{timeline:?}"
        );
    }
    // Later commands are not in the timeline, and the next timeline can start.
    device.fill(&a, &[5; 4]).unwrap();
    device.start_timeline().unwrap();
    assert!(device.stop_timeline().unwrap().transfers.is_empty());
    assert_eq!(device.stop_timeline().unwrap_err().kind(), ErrorKind::Internal);
    timeline.transfers
}

fn check(device: &Device) {
    use TransferKind::{Copy, Download, Fill, Upload};
    let found = transfers(device);
    let bytes = |kind: TransferKind, queue: QueueKind| -> u64 {
        found.iter().filter(|t| (t.kind, t.queue) == (kind, queue)).map(|t| t.bytes).sum()
    };
    assert_eq!(bytes(Upload, QueueKind::Compute), 1 << 20);
    assert_eq!(bytes(Upload, QueueKind::Copy), 64);
    assert_eq!(bytes(Copy, QueueKind::Compute), 1 << 19);
    assert_eq!(bytes(Fill, QueueKind::Compute), 1 << 20);
    assert_eq!(bytes(Download, QueueKind::Copy), 256);
    assert_eq!(bytes(Download, QueueKind::Compute), 256);
    for queue in [QueueKind::Compute, QueueKind::Copy] {
        let own: Vec<&Transfer> = found.iter().filter(|t| t.queue == queue).collect();
        assert!(own.windows(2).all(|w| w[0].start_ns <= w[1].start_ns), "{own:?}");
    }
}

#[test]
fn transfers_of_the_first_device() {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    check(&Device::open(&name, &Settings::from_env()).unwrap());
}

#[test]
fn transfers_of_the_simulated_device() {
    check(&Device::open("sim", &Settings::default()).unwrap());
}

#[test]
fn a_device_that_keeps_no_times_has_no_timeline() {
    let capabilities = Capabilities::floor("gpu:0", DeviceKind::Gpu);
    let device = Device::from_driver(Box::new(NullDriver::new(capabilities)), Settings::default());
    assert_eq!(device.start_timeline().unwrap_err().kind(), ErrorKind::Unsupported);
}
