//! Small vectors between a device and the host: several methods to read a vector and to write its sums. The fastest one is used.
//!
//! The cost of such a copy is not its bytes. It is the driver's start of the copy and the notification of the host, and drivers differ in both. So
//! the methods are rows of two tables. Each rank measures them on its device when a [`Relay`](super::Relay) is created, and uses the fastest. All
//! give the same bits, so ranks may use different ones.

use netcl_device::driver::Event;
use netcl_device::{Device, Pinned, Result, SharedMemory};
use netcl_tensor::{DType, Tensor};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum bytes of a vector that is exchanged by messages and summed on the host.
pub(super) const MAX_HOST_SUM_BYTES: usize = 32 << 10;
/// Duration of polling for the end of a copy before the host sleeps, if it has enough cores: about two pieces of a long vector.
pub(super) const AWAKE: Duration = Duration::from_micros(500);
/// Number of vectors that may be on their way to the device while the next one is written.
const SLOTS: usize = 4;
/// Bytes of the vector for measuring the methods, and the number of repetitions.
const PROBE: usize = 4 << 10;
const ROUNDS: usize = 9;
/// A later row of a table is used only if it needs at most this fraction of the time.
const QUICKER: f64 = 0.95;

/// A method to read a vector after the current queue has computed it.
struct ReadWay {
    name: &'static str,
    /// Whether it occupies a core while it waits.
    awake: bool,
    run: fn(&Small, &Tensor, &mut Vec<u8>) -> Result<()>,
}

/// A method to write a vector in order with the current queue.
struct WriteWay {
    name: &'static str,
    run: fn(&mut Small, &Tensor, &[u8]) -> Result<Option<Event>>,
}

const READS: [ReadWay; 3] = [
    ReadWay { name: "blocking", awake: false, run: |_, x, data| x.to_bytes().map(|bytes| *data = bytes) },
    ReadWay {
        name: "page-locked, waiting",
        awake: false,
        run: |small, x, data| small.read_pinned(x, Duration::ZERO, data),
    },
    ReadWay {
        name: "page-locked, awake",
        awake: true,
        run: |small, x, data| small.read_pinned(x, AWAKE, data),
    },
];

const WRITES: [WriteWay; 3] = [
    WriteWay { name: "page-locked", run: |small, x, data| small.write_pinned(x, data).map(Some) },
    WriteWay { name: "staged", run: |_, x, data| x.write_bytes(0, data).map(|()| None) },
    WriteWay {
        name: "at once",
        run: |_, x, data| x.device().upload_now(x.storage(), start(x), data).map(|()| None),
    },
];

/// Time of a method to read or write small vectors on this device.
#[derive(Clone, Debug, PartialEq)]
pub struct WayTime {
    /// `read` or `write`.
    pub what: &'static str,
    /// Name of the method.
    pub name: &'static str,
    /// Median time for a vector of 4 KiB. A read is measured after a fill; a write is measured together with a following read.
    pub time: Duration,
    /// Whether the method is in use.
    pub used: bool,
}

/// Memory of a rank for small vectors, with the methods that are in use.
pub(super) struct Small {
    device: Device,
    /// One vector for reads, and `SLOTS` vectors for writes.
    host: Pinned,
    /// Event until which the device reads a slot.
    busy: [Option<Event>; SLOTS],
    next: usize,
    read: usize,
    write: usize,
    times: Vec<WayTime>,
}

impl Small {
    /// Allocates memory for one rank and measures the methods. `awake` allows polling methods if there are enough cores.
    pub fn new(device: &Device, awake: bool) -> Result<Self> {
        let host = device.pin(&Arc::new(SharedMemory::new((1 + SLOTS) * MAX_HOST_SUM_BYTES)?));
        let (busy, times) = (std::array::from_fn(|_| None), Vec::new());
        let mut small = Self { device: device.clone(), host, busy, next: 0, read: 0, write: 0, times };
        small.measure(awake)?;
        Ok(small)
    }

    /// Returns the times of the methods on this device.
    pub fn times(&self) -> &[WayTime] {
        &self.times
    }

    /// Returns the bytes of contiguous `x` after this thread's current queue has computed it.
    pub fn read(&self, x: &Tensor) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        (READS[self.read].run)(self, x, &mut data)?;
        Ok(data)
    }

    /// Replaces the bytes of contiguous `x` for later commands in the queue. Returns the event of their arrival, if the driver reports it.
    pub fn write(&mut self, x: &Tensor, data: &[u8]) -> Result<Option<Event>> {
        (WRITES[self.write].run)(self, x, data)
    }

    fn read_pinned(&self, x: &Tensor, awake: Duration, data: &mut Vec<u8>) -> Result<()> {
        let bytes = bytes(x);
        let there = self.device.download_into((x.storage(), start(x)), (&self.host, 0), bytes)?;
        self.device.flush()?;
        self.device.wait_awake(&there, awake)?;
        data.resize(bytes, 0);
        self.host.memory().read(0, data)
    }

    fn write_pinned(&mut self, x: &Tensor, data: &[u8]) -> Result<Event> {
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        if let Some(busy) = self.busy[slot].take() {
            self.device.flush()?;
            self.device.wait(&busy)?;
        }
        let at = (1 + slot) * MAX_HOST_SUM_BYTES;
        self.host.memory().write(at, data)?;
        // The command is submitted together with the next one in the queue: a separate flush takes as long as the copy.
        let there = self.device.upload_from((&self.host, at), (x.storage(), start(x)), data.len())?;
        self.busy[slot] = Some(there.clone());
        Ok(there)
    }

    fn measure(&mut self, awake: bool) -> Result<()> {
        let x = Tensor::zeros(&self.device, [PROBE / 4], DType::F32)?;
        let mut found = Vec::new();
        for (i, way) in READS.iter().enumerate().filter(|(_, way)| awake || !way.awake) {
            let mut data = Vec::new();
            let time = median(|| {
                self.device.fill(x.storage(), &[0])?;
                let begun = Instant::now();
                (way.run)(self, &x, &mut data).map(|()| begun.elapsed())
            })?;
            found.push((i, time));
        }
        self.read = quickest(&found);
        self.note("read", &READS.map(|way| way.name), &found, self.read);
        let (mut found, data) = (Vec::new(), [0; PROBE]);
        for (i, way) in WRITES.iter().enumerate() {
            let time = median(|| {
                self.device.fill(x.storage(), &[0])?;
                let begun = Instant::now();
                (way.run)(self, &x, &data)?;
                self.read(&x).map(|_| begun.elapsed())
            })?;
            found.push((i, time));
        }
        self.write = quickest(&found);
        self.note("write", &WRITES.map(|way| way.name), &found, self.write);
        tracing::debug!("small vectors of {}: {:?}", self.device.capabilities().id, self.times);
        Ok(())
    }

    fn note(&mut self, what: &'static str, names: &[&'static str], found: &[(usize, Duration)], used: usize) {
        let time =
            |(i, time): &(usize, Duration)| WayTime { what, name: names[*i], time: *time, used: *i == used };
        self.times.extend(found.iter().map(time));
    }
}

/// Returns the index of the fastest row, or of an earlier row if the difference is small.
fn quickest(found: &[(usize, Duration)]) -> usize {
    let better = |best: (usize, Duration), next: &(usize, Duration)| {
        if next.1.as_secs_f64() < QUICKER * best.1.as_secs_f64() { *next } else { best }
    };
    let Some((first, rest)) = found.split_first() else { return 0 };
    rest.iter().fold(*first, better).0
}

/// Returns the median of several times, without the first one.
fn median(mut once: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    once()?;
    let mut times = (0..ROUNDS).map(|_| once()).collect::<Result<Vec<_>>>()?;
    times.sort();
    Ok(times[ROUNDS / 2])
}

fn bytes(x: &Tensor) -> usize {
    x.count() * x.dtype().size()
}

/// Returns the start of contiguous `x` in its buffer, in bytes.
fn start(x: &Tensor) -> usize {
    x.layout().offset * x.dtype().size()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_tensor::suite::test_device;

    /// Combines every read method with every write method, on parts of a buffer, with more parts than slots.
    #[test]
    fn all_ways_bring_the_same_bytes() {
        for device in [test_device().unwrap(), Device::open("sim", &Default::default()).unwrap()] {
            let mut small = Small::new(&device, true).unwrap();
            assert_eq!(small.times().iter().filter(|way| way.used).count(), 2);
            assert_eq!(small.times().len(), READS.len() + WRITES.len());
            let whole = Tensor::zeros(&device, [1000 + 64 * (2 * SLOTS + 1)], DType::F32).unwrap();
            for (read, write) in (0..READS.len()).flat_map(|r| (0..WRITES.len()).map(move |w| (r, w))) {
                (small.read, small.write) = (read, write);
                for round in 0..2 * SLOTS {
                    let x = whole.window(64 * (1 + round), [1000]).unwrap();
                    let data: Vec<u8> = (0..4000).map(|i| (i * 7 + round + read + write) as u8).collect();
                    small.write(&x, &data).unwrap();
                    assert!(
                        small.read(&x).unwrap() == data,
                        "{} and {}",
                        READS[read].name,
                        WRITES[write].name
                    );
                }
            }
        }
    }

    #[test]
    fn a_later_way_has_to_be_clearly_quicker() {
        let us = Duration::from_micros;
        assert_eq!(quickest(&[(0, us(100)), (1, us(96)), (2, us(80))]), 2);
        assert_eq!(quickest(&[(0, us(100)), (1, us(96)), (2, us(97))]), 0);
        assert_eq!(quickest(&[(0, us(100)), (2, us(50))]), 2);
    }

    /// Polling methods are not used if there are few cores.
    #[test]
    fn without_cores_nobody_waits_awake() {
        let small = Small::new(&test_device().unwrap(), false).unwrap();
        assert!(small.times().iter().all(|way| !way.name.contains("awake")));
    }
}
