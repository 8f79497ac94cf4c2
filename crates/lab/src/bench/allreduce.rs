//! `netcl bench allreduce`: the speed at which ranks sum their vectors, compared with the link between them.

use crate::context::Context;
use crate::out;
use crate::ranks::{Failed, finish};
use crate::table::Table;
use netcl::device::{SharedMemory, human};
use netcl::dist::{Group, Mpi, Reduction, Relay, RelaySettings, WayTime, launched, local};
use netcl::prelude::*;
use netcl::train::config::{DTYPES, storage_type};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RANK_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of the vectors.
const SIZES: [usize; 7] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

/// Flags of the benchmark.
#[derive(clap::Args)]
pub struct Args {
    /// Devices, one rank each [default: without mpirun, two ranks sum vectors in host memory]
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    devices: Vec<String>,
    /// Number of ranks without devices
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    ranks: u8,
    /// Storage type, by any name such as bfloat16 or half
    #[arg(long, default_value = "f32", value_parser = crate::named::named_by(&DTYPES, storage_type))]
    dtype: DType,
    /// Bytes of the longest vector, such as 64M
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = largest)]
    largest: usize,
    /// Measurements per size
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Parses a size of at least one element.
fn largest(text: &str) -> Result<usize, String> {
    let found = netcl::device::parse_bytes(text)?;
    usize::try_from(found)
        .ok()
        .filter(|n| *n >= 4)
        .ok_or_else(|| format!("expected at least 4 bytes, found {text:?}"))
}

/// One size. Times are medians of the slowest rank's.
#[derive(Serialize)]
struct Line {
    bytes: usize,
    us: f64,
    /// Bytes of the vector divided by the time.
    gb_per_s: f64,
    /// 2 (n - 1) / n of the vector divided by the time, as in NCCL's tests: the minimum that each rank has to send and to receive.
    bus_gb_per_s: f64,
    /// Bandwidth of the link in each direction; if ranks have devices, of their copies to and from the host.
    link_gb_per_s: f64,
    link: &'static str,
    /// Parts of the time for a small vector on devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<Parts>,
}

/// Parts of the time for a vector that the host sums, on the first rank: medians, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Parts {
    /// Until the host has this rank's vector.
    read_us: f64,
    /// Until it has the sum.
    message_us: f64,
    /// Until the copy of the sum is enqueued.
    write_us: f64,
    /// Until it is on the device.
    there_us: f64,
}

impl Parts {
    /// Computes them from all rounds except the first; `None` if the vectors were not small.
    fn of(rounds: &[[f64; 4]]) -> Option<Self> {
        let part = |i: usize| {
            let mut all: Vec<f64> = rounds.iter().skip(1).map(|round| round[i]).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).map(|seconds| seconds * 1e6)
        };
        Some(Self { read_us: part(0)?, message_us: part(1)?, write_us: part(2)?, there_us: part(3)? })
    }
}

/// Time of a method to copy small vectors, on the first rank.
#[derive(Serialize)]
struct Way {
    way: String,
    us: f64,
    used: bool,
}

/// The measurements of one rank.
struct RankTimes {
    lines: Vec<Line>,
    ways: Vec<Way>,
}

/// Runs the benchmark.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let Some(launcher) = launched(&|name| std::env::var(name).ok()) {
        let library = std::env::var_os("NETCL_MPI_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
        let group = Mpi::join(Some(&launcher), library.as_deref(), RANK_TIMEOUT)?;
        let device = args.devices.get(launcher.local_rank % args.devices.len().max(1));
        let about = (group.size(), group.transport().name());
        let measured = rank(args, &group, device.map(String::as_str), context);
        let shown = measured.and_then(|all| if group.leads() { show(args, &about, &all) } else { Ok(()) });
        return finish(&group, shown.map_err(Failed::Own));
    }
    let n = if args.devices.is_empty() { usize::from(args.ranks) } else { args.devices.len() };
    let names: Vec<Option<String>> = (0..n).map(|i| args.devices.get(i).cloned()).collect();
    let mut groups = local(n, RANK_TIMEOUT);
    let about = (n, groups.first().map_or(String::new(), |group| group.transport().name()));
    let lines = std::thread::scope(|scope| {
        let start = |(group, name): (Group, Option<String>)| {
            scope.spawn(move || rank(args, &group, name.as_deref(), context))
        };
        let threads: Vec<_> = groups.drain(..).zip(names).map(start).collect();
        let panicked = || Err(Error::internal("a rank panicked"));
        let all = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked()));
        all.collect::<Result<Vec<_>>>()
    })?;
    lines.first().map_or_else(|| Err(Error::internal("no ranks")), |all| show(args, &about, all))
}

fn rank(args: &Args, group: &Group, device: Option<&str>, context: &Context) -> Result<RankTimes> {
    let device = group.all_succeed(device.map(|name| context.open_device(name)).transpose())?;
    let relay = |device: Device| Ok((device.clone(), Relay::new(group, &device, RelaySettings::default())?));
    let mut device = device.map(relay).transpose()?;
    let mut lines = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| *bytes <= args.largest) {
        let count = bytes / args.dtype.size();
        let mut rounds = Vec::new();
        let (seconds, link, name) = match &mut device {
            None => {
                let mut data = vec![0u8; bytes];
                let all =
                    timed(args, group, || group.all_reduce_bytes(args.dtype, &mut data, Reduction::Sum))?;
                let (link, pairs) = (data, group.rank() ^ 1);
                let message = timed(args, group, || exchange(group, pairs, &link))?;
                (all, bytes as f64 / message, "messages between two ranks")
            }
            Some((device, relay)) => {
                let x = Tensor::zeros(device, [count], args.dtype)?;
                let all = timed(args, group, || reduced(relay, &x, &mut rounds))?;
                let copies = copies(args, group, &x)?;
                (all, bytes as f64 / copies, "copies through page-locked memory, in both directions at once")
            }
        };
        let n = group.size() as f64;
        lines.push(Line {
            bytes,
            us: seconds * 1e6,
            gb_per_s: bytes as f64 / seconds / 1e9,
            bus_gb_per_s: 2.0 * (n - 1.0) / n * bytes as f64 / seconds / 1e9,
            link_gb_per_s: link / 1e9,
            link: name,
            parts: Parts::of(&rounds),
        });
    }
    let ways = device.iter().flat_map(|(_, relay)| relay.ways());
    let way = |way: &WayTime| Way {
        way: format!("{} {}", way.what, way.name),
        us: way.time.as_secs_f64() * 1e6,
        used: way.used,
    };
    Ok(RankTimes { lines, ways: ways.map(way).collect() })
}

/// Sums `x` over all ranks and waits until the sums are on the device; adds the parts of the time of a small vector to `rounds`.
fn reduced(relay: &mut Relay, x: &Tensor, rounds: &mut Vec<[f64; 4]>) -> Result<()> {
    relay.all_reduce_in_order(x)?;
    let begun = Instant::now();
    relay.settle()?;
    let there = begun.elapsed();
    if let Some(times) = relay.last_small() {
        rounds.push([times.read, times.message, times.write, there].map(|time| time.as_secs_f64()));
    }
    Ok(())
}

/// Returns the time in which each device copies the elements of `x` to the host, and the same number from it, at the same time.
fn copies(args: &Args, group: &Group, x: &Tensor) -> Result<f64> {
    let (device, bytes) = (x.device(), x.storage().bytes());
    let host = device.pin(&Arc::new(SharedMemory::new(2 * bytes)?));
    let other = Tensor::empty(device, x.shape(), x.dtype())?;
    let (down, up) = (device.stream()?, device.stream()?);
    timed(args, group, || {
        down.run(|| device.download_into((x.storage(), 0), (&host, 0), bytes))?;
        up.run(|| device.upload_from((&host, bytes), (other.storage(), 0), bytes))?;
        down.flush()?;
        up.flush()?;
        down.finish()?;
        up.finish()
    })
}

/// Sends to and receives from the rank `with` at the same time; ranks without a partner do nothing.
fn exchange(group: &Group, with: usize, data: &[u8]) -> Result<()> {
    if with >= group.size() {
        return Ok(());
    }
    let mut room = vec![0u8; data.len()];
    group.transport().exchange(Some((with, data)), Some((with, &mut room)))
}

/// Returns the median over the rounds of the slowest rank's time.
fn timed(args: &Args, group: &Group, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for round in 0..=args.rounds {
        group.barrier()?;
        let begun = Instant::now();
        f()?;
        let mut slowest = [begun.elapsed().as_secs_f32()];
        group.all_reduce(&mut slowest, Reduction::Max)?;
        // The first round touches memory for the first time.
        if round > 0 {
            times.push(f64::from(slowest[0]));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(f64::NAN).max(1e-9))
}

fn show(
    args: &Args,
    (ranks, transport): &(usize, String),
    RankTimes { lines, ways }: &RankTimes,
) -> Result<()> {
    if args.json {
        lines.iter().try_for_each(out::json)?;
        return ways.iter().try_for_each(out::json);
    }
    out::note(&format!("{ranks} ranks, {transport}, {}", args.dtype));
    let mut table = Table::new(&[">vector", ">us", ">GB/s", ">bus GB/s", ">link GB/s", ">of the link"]);
    for line in lines {
        table.row([
            human(line.bytes as u64),
            format!("{:.1}", line.us),
            format!("{:.2}", line.gb_per_s),
            format!("{:.2}", line.bus_gb_per_s),
            format!("{:.2}", line.link_gb_per_s),
            format!("{:.0} %", 100.0 * line.bus_gb_per_s / line.link_gb_per_s),
        ]);
    }
    out::result(&table.text())?;
    out::note(&format!("link: {}", lines.first().map_or("", |line| line.link)));
    for line in lines {
        if let Some(Parts { read_us, message_us, write_us, there_us }) = line.parts {
            out::note(&format!(
                "{}: read {read_us:.1} us, message {message_us:.1}, write {write_us:.1}, on the device {there_us:.1}",
                human(line.bytes as u64)
            ));
        }
    }
    let ways = ways.iter().map(|way| {
        let used = if way.used { " (used)" } else { "" };
        format!("{} {:.1} us{used}", way.way, way.us)
    });
    let ways = ways.collect::<Vec<_>>().join(", ");
    if !ways.is_empty() {
        out::note(&format!("methods for small vectors: {ways}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_have_units() {
        assert_eq!(super::largest("64k"), Ok(65_536));
        assert_eq!(super::largest("256M"), Ok(256 << 20));
        assert_eq!(super::largest("1GiB"), Ok(1 << 30));
        assert_eq!(super::largest("4096"), Ok(4096));
        assert!(super::largest("x").is_err() && super::largest("1").is_err());
    }
}
