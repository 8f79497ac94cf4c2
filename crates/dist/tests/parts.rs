//! Sums of which each rank keeps a part, and parts that all ranks send to each other, through host memory and through messages.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl_device::{Result, Settings};
use netcl_dist::{Group, Link, Reduction, Relay, RelaySettings, Span, local, slowed};
use netcl_tensor::{DType, Device, Tensor};
use std::time::Duration;

/// Number of ranks, and whether they exchange messages instead of sharing memory.
const CASES: [(usize, bool); 6] = [(1, false), (2, false), (3, false), (6, false), (2, true), (3, true)];

/// Runs `f` on each of `n` ranks, with a relay of small pieces.
fn relayed(n: usize, messages: bool, f: impl Fn(&Group, &Device, &mut Relay) -> Result<()> + Sync) {
    let f = &f;
    let run = |rank: Group| -> Result<()> {
        let link = Link { delay: Duration::ZERO, bytes_per_s: 1e12 };
        let group = if messages { slowed(&rank, link) } else { rank };
        let device = Device::open("sim", &Settings::default())?;
        let settings = RelaySettings { piece: 4096, slots: 3 + n % 2, ..RelaySettings::default() };
        let mut relay = Relay::new(&group, &device, settings)?;
        f(&group, &device, &mut relay)
    };
    std::thread::scope(|scope| {
        let ranks = local(n, Duration::from_secs(60)).into_iter();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
        for thread in threads {
            thread.join().unwrap().map_err(|e| e.context(format!("{n} ranks, messages {messages}"))).unwrap();
        }
    });
}

/// Returns bounds of parts with different lengths, some of them empty.
fn bounds(n: usize, count: usize, round: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (1..n).map(|rank| (rank * 7919 * (round + 1)) % (count + 1)).collect();
    all.extend([0, count]);
    all.sort_unstable();
    all
}

fn numbers(rank: usize, round: usize, count: usize) -> Vec<f32> {
    let draw = |i: usize| (i * 2_654_435_761 + rank * 40_503 + round * 97) % 4093;
    (0..count).map(|i| draw(i) as f32 / 17.0 - 100.0).collect()
}

/// Sums of parts have the same bits as sums of the whole, and other elements stay unchanged. Several vectors are in flight at a time.
#[test]
fn each_rank_has_its_part_of_the_sums() {
    for (n, messages) in CASES {
        relayed(n, messages, |group, device, relay| {
            for dtype in [DType::F32, DType::Bf16] {
                let mut all = Vec::new();
                for (round, count) in [1, 20_000, 17_409, 0, 30_001].into_iter().enumerate() {
                    let x = numbers(group.rank(), round, count);
                    let x = Tensor::from_f32(device, [count], &x, dtype)?;
                    let bounds = bounds(n, count, round);
                    let (before, mut expected) = (x.to_bytes()?, x.to_bytes()?);
                    group.all_reduce_bytes(dtype, &mut expected, Reduction::Sum)?;
                    relay.reduce_scatter(&x, &bounds, &device.mark()?)?;
                    all.push((x, bounds, before, expected));
                }
                relay.join()?;
                for (x, bounds, before, expected) in all {
                    let part = bounds[group.rank()] * dtype.size()..bounds[group.rank() + 1] * dtype.size();
                    let found = x.to_bytes()?;
                    assert!(found[part.clone()] == expected[part.clone()], "{n} ranks, {dtype} {bounds:?}");
                    // Short vectors are summed whole.
                    if x.count() > 16_384 {
                        assert!(found[..part.start] == before[..part.start]);
                        assert!(found[part.end..] == before[part.end..]);
                    }
                }
            }
            Ok(())
        });
    }
}

#[test]
fn all_ranks_get_the_parts_of_the_others() {
    for (n, messages) in CASES {
        relayed(n, messages, |group, device, relay| {
            for round in 0..4 {
                // Parts of two tensors; the second tensor is at a different place in each.
                let tensors = [1000 + 17 * round, 9000 * round + 1].map(|count| {
                    let mine = numbers(group.rank(), round, count);
                    Tensor::from_f32(device, [count], &mine, DType::F32)
                });
                let [a, b] = tensors;
                let (a, b) = (a?, b?);
                let cuts = [bounds(n, a.count(), round), bounds(n, b.count(), round + 1)];
                let span = |x: &Tensor, cut: &[usize], rank: usize| Span {
                    buffer: x.storage().clone(),
                    start: cut[rank] * 4,
                    bytes: (cut[rank + 1] - cut[rank]) * 4,
                };
                let parts: Vec<Vec<Span>> =
                    (0..n).map(|r| vec![span(&a, &cuts[0], r), span(&b, &cuts[1], r)]).collect();
                let mut told = Vec::new();
                relay.all_gather(&parts, &device.mark()?, |bytes, there| told.push((bytes, there)))?;
                let longest = parts.iter().map(|part| part.iter().map(|s| s.bytes).sum()).max();
                assert!(told.iter().map(|(bytes, _)| *bytes).is_sorted());
                assert_eq!(told.last().map(|(bytes, _)| *bytes), longest.filter(|_| n > 1));
                // A rank waits in one of two ways.
                match (round % 2, told.iter().rev().find_map(|(_, there)| there.clone())) {
                    (1, Some(last)) => device.wait_for(&last)?,
                    _ => relay.join()?,
                }
                for (x, cut) in [(&a, &cuts[0]), (&b, &cuts[1])] {
                    let found = x.to_vec()?;
                    for rank in 0..n {
                        let expected = numbers(rank, round, x.count());
                        assert!(found[cut[rank]..cut[rank + 1]] == expected[cut[rank]..cut[rank + 1]]);
                    }
                }
            }
            Ok(())
        });
    }
}

#[test]
fn parts_that_do_not_divide_a_vector_are_refused() {
    relayed(2, false, |_, device, relay| {
        let x = Tensor::zeros(device, [10], DType::F32)?;
        let ready = device.mark()?;
        for bounds in [vec![0, 10], vec![0, 5, 9], vec![1, 5, 10], vec![0, 11, 10]] {
            assert!(relay.reduce_scatter(&x, &bounds, &ready).is_err(), "{bounds:?}");
        }
        assert!(relay.all_gather(&[], &ready, |_, _| ()).is_err());
        Ok(())
    });
}
