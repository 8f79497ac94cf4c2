//! Collective operations between threads.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl_device::{ErrorKind, Result, Settings};
use netcl_dist::{
    Group, Link, Reduction, Relay, RelaySettings, launched, local, selftest, selftest_long, shard, slowed,
};
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, Tensor};
use std::time::{Duration, Instant};

const RANK_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `f` on each of `n` ranks and returns the results.
fn on<T: Send>(n: usize, f: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let f = &f;
    std::thread::scope(|scope| {
        let start = |rank: Group| scope.spawn(move || f(&rank));
        let threads: Vec<_> = local(n, RANK_TIMEOUT).into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn shards_cover_all_elements_once() {
    for (count, size) in [(0, 3), (1, 4), (7, 3), (8, 8), (9, 8), (1000, 7)] {
        let all: Vec<usize> = (0..size).flat_map(|rank| shard(count, size, rank)).collect();
        assert_eq!(all, (0..count).collect::<Vec<_>>());
        assert!((0..size).all(|r| shard(count, size, r).len().abs_diff(count / size) <= 1));
    }
}

#[test]
fn operations_have_the_bits_of_their_definition() {
    for n in 1..=8 {
        for result in on(n, |rank| selftest(rank, 7 + n as u64, 20 / n, 70_001)) {
            result.unwrap();
        }
    }
}

/// Sums vectors whose shares are longer than the segment that is exchanged at a time.
#[test]
fn long_vectors_go_in_segments() {
    let count = (9 << 20) + 3;
    let sums = on(2, |rank| {
        let mut x: Vec<u32> = (0..count).map(|i| i as u32 ^ (rank.rank() as u32) << 30).collect();
        rank.all_reduce(&mut x, Reduction::Sum).map(|()| x)
    });
    for sum in sums {
        let right = |(i, x): (usize, &u32)| *x == (i as u32).wrapping_add(i as u32 ^ 1 << 30);
        assert!(sum.unwrap().iter().enumerate().all(right));
    }
}

#[test]
fn long_vectors_have_the_right_sums() {
    for n in [1, 2, 3] {
        on(n, |rank| selftest_long(rank, 1_000_004))
            .into_iter()
            .for_each(|r| assert!(r.unwrap().operations > 0));
    }
}

/// Sums vectors whose bytes exceed 31 bits, also in the share of each rank. `make collectives` runs it.
#[test]
#[ignore = "9 GB of memory"]
fn vectors_of_more_than_two_to_the_31_bytes() {
    on(2, |rank| selftest_long(rank, (4 << 30) + 20))
        .into_iter()
        .for_each(|r| assert!(r.unwrap().operations > 0));
}

#[test]
fn a_rank_that_ends_is_named_by_those_that_wait() {
    let found = on(3, |rank| {
        if rank.rank() == 1 {
            return Ok(());
        }
        rank.all_reduce(&mut [1.0f32], Reduction::Sum)
    });
    let errors: Vec<_> = found.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|e| e.kind() == ErrorKind::Device));
    assert!(errors.iter().any(|e| e.message().contains("rank 1")), "{errors:?}");
}

#[test]
fn a_rank_that_hangs_is_named_after_a_while() {
    let ranks = local(2, Duration::from_millis(50));
    let error = ranks[0].barrier().unwrap_err();
    assert!(error.message().contains("rank 1 does not answer"), "{error}");
    // The timeout may change while a rank waits, and ranks may have names.
    ranks[0].watch().name_ranks(vec!["pocl:0".into(), "sim".into()]);
    ranks[0].watch().set_patience(Duration::from_secs(3600));
    let error = std::thread::scope(|scope| {
        let waits = scope.spawn(|| ranks[0].barrier());
        std::thread::sleep(Duration::from_millis(20));
        ranks[0].watch().set_patience(Duration::ZERO);
        waits.join().unwrap().unwrap_err()
    });
    assert!(error.message().contains("rank 1 (sim) does not answer"), "{error}");
}

/// A rank may wait for another waiting rank. It names the rank that hangs.
#[test]
fn of_a_chain_of_ranks_that_wait_the_last_one_is_named() {
    let ranks = local(4, RANK_TIMEOUT);
    let errors: Vec<String> = std::thread::scope(|scope| {
        // The first rank waits for the second, the second for the third, and the third for the last, which hangs.
        let wait = |rank: usize| {
            let ranks = &ranks;
            scope.spawn(move || ranks[rank].recv(rank + 1, &mut [0u32]).unwrap_err().to_string())
        };
        let threads: Vec<_> = (0..3).map(wait).collect();
        std::thread::sleep(Duration::from_millis(500));
        let ended = threads.into_iter().zip(&ranks).map(|(thread, rank)| {
            rank.watch().set_patience(Duration::ZERO);
            thread.join().unwrap()
        });
        ended.collect()
    });
    assert!(errors.iter().all(|e| e.contains("rank 3 does not answer")), "{errors:?}");
}

#[test]
fn time_in_operations_is_counted() {
    let busy = on(2, |rank| {
        std::thread::sleep(Duration::from_millis(60 * rank.rank() as u64));
        rank.barrier().unwrap();
        rank.watch().busy()
    });
    assert!(busy[0] >= Duration::from_millis(30) && busy[0] > busy[1], "{busy:?}");
}

#[test]
fn misuse_is_refused_by_name() {
    for results in on(2, |rank| {
        [
            rank.all_reduce(&mut [1u32], Reduction::Mean),
            rank.broadcast(&mut [1u32], 2),
            rank.send(rank.rank(), &[1u32]),
            rank.all_reduce_bytes(DType::F32, &mut [0; 6], Reduction::Sum),
            match rank.rank() {
                0 => rank.scatter(&[1u32; 3], &mut [0], 0),
                _ => rank.broadcast(&mut [1u32], 9),
            },
        ]
    }) {
        let kinds: Vec<_> = results.into_iter().map(|r| r.unwrap_err().kind()).collect();
        use ErrorKind::{DType, Shape};
        assert_eq!(kinds, [DType, Shape, Shape, Shape, Shape]);
    }
}

#[test]
fn ranks_that_differ_are_told_apart() {
    for result in
        on(3, |rank| rank.agree(&[("program", "1".into()), ("seed", rank.rank().min(1).to_string())]))
    {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("seed is 0 at rank 0 and 1 at rank 1"), "{text}");
    }
    assert!(on(3, |rank| rank.agree(&[("seed", "1".into())])).into_iter().all(|r| r.is_ok()));
}

#[test]
fn an_error_of_one_rank_is_everyones() {
    let found = on(3, |rank| {
        let own = match rank.rank() {
            2 => Err(netcl_device::Error::io(
                "opening",
                "x.bin".as_ref(),
                &std::io::ErrorKind::NotFound.into(),
            )),
            n => Ok(n),
        };
        rank.all_succeed(own)
    });
    for error in found.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().starts_with("rank 2: opening x.bin"), "{error}");
    }
    assert_eq!(on(2, |rank| rank.all_succeed(Ok(rank.rank())).unwrap()), [0, 1]);
}

#[test]
fn a_slow_link_takes_its_time() {
    let link = Link { delay: Duration::from_millis(5), bytes_per_s: 1e6 };
    assert_eq!(link.time(10_000), Duration::from_millis(15));
    let spent = on(2, |rank| {
        let (rank, begun) = (slowed(rank, link), Instant::now());
        rank.broadcast_bytes(&mut [0; 20_000], 0).unwrap();
        begun.elapsed()
    });
    assert!(spent.iter().all(|t| *t >= Duration::from_millis(25)), "{spent:?}");
}

#[test]
fn tensors_are_reduced_where_they_are() {
    let sums = on(2, |rank| -> Result<Vec<f32>> {
        let device = Device::open("sim", &Settings::default())?;
        let x = Tensor::from_f32(&device, [3], &[1.0, 2.0, rank.rank() as f32], DType::Bf16)?;
        rank.all_reduce_tensor(&x, Reduction::Sum)?;
        rank.broadcast_tensor(&x, 1)?;
        x.to_vec()
    });
    assert!(sums.into_iter().all(|x| x.unwrap() == [2.0, 4.0, 1.0]));
}

#[test]
fn a_process_that_no_launcher_started_is_alone() {
    assert_eq!(launched(&|_| None), None);
}

/// Sums through shared memory, by shares and whole, and through messages of 4096 bytes that use the slots in turn, have the same bits as on the host.
#[test]
fn a_relay_has_the_sums_of_the_host() {
    let numbers = |rank: usize, round: usize, count: usize| -> Vec<f32> {
        let draw = |i: usize| (i * 2_654_435_761 + rank * 40_503 + round * 97) % 4093;
        (0..count).map(|i| draw(i) as f32 / 17.0 - 100.0).collect()
    };
    for (n, shares_from, messages) in
        [(1, 3, false), (2, 3, false), (2, 2, false), (3, 3, false), (10, 11, false), (3, 3, true)]
    {
        let settings = RelaySettings { piece: 4096, slots: 3 + n % 2, shares_from };
        let done = on(n, |rank| -> Result<()> {
            let link = Link { delay: Duration::ZERO, bytes_per_s: 1e12 };
            let group = if messages { slowed(rank, link) } else { rank.clone() };
            let device = if n == 2 { test_device()? } else { Device::open("sim", &Settings::default())? };
            let mut relay = Relay::new(&group, &device, settings)?;
            assert_eq!(relay.shares_memory(), !messages);
            for (round, count) in [1, 1023, 20_000, 17_409, 0, 2048, 30_001, 16_385].into_iter().enumerate() {
                for dtype in [DType::F32, DType::Bf16, DType::F16] {
                    let x = Tensor::from_f32(&device, [count], &numbers(rank.rank(), round, count), dtype)?;
                    let own = x.to_bytes()?;
                    let mut expected = own.clone();
                    group.all_reduce_bytes(dtype, &mut expected, Reduction::Sum)?;
                    relay.all_reduce(&x, &device.mark()?)?;
                    relay.join()?;
                    assert!(x.to_bytes()? == expected, "{n} ranks, {count} {dtype}");
                    // In the device's own queue, after and before other commands; also for the first half alone.
                    x.write_bytes(0, &own)?;
                    relay.all_reduce_in_order(&x.window(0, [count / 2])?)?;
                    let half = count / 2 * dtype.size();
                    let found = x.to_bytes()?;
                    assert!(
                        found[..half] == expected[..half] && found[half..] == own[half..],
                        "{count} {dtype}"
                    );
                    x.write_bytes(0, &own)?;
                    relay.all_reduce_in_order(&x)?;
                    let copy = x.add_scalar(0.0)?;
                    assert!(copy.to_bytes()? == expected, "{n} ranks, {count} {dtype} in order");
                }
            }
            Ok(())
        });
        assert!(done.iter().all(Result::is_ok), "{n} ranks: {done:?}");
    }
}
