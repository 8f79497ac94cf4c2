//! Self-test of collective operations on random vectors. Results are compared with those that one rank computes alone. `netcl doctor --mpi` and the
//! tests run it.

use crate::{Group, Reduction, shard};
use half::{bf16, f16};
use netcl_device::draw::Draw;
use netcl_device::{Error, Result};
use netcl_tensor::DType;
use std::time::{Duration, Instant};

/// Result of a self-test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfTest {
    /// Number of collective operations.
    pub operations: usize,
    /// Their total time.
    pub elapsed: Duration,
}

/// Special lengths: zero, one, fewer than the number of ranks, and around the limit between the algorithms.
const LENGTHS: [usize; 10] = [0, 1, 2, 3, 7, 1000, 4099, 16_384, 65_537, 300_001];
const DTYPES: [DType; 6] = [DType::F32, DType::F16, DType::Bf16, DType::I32, DType::U32, DType::Bool];

/// Runs `rounds` rounds of every operation with random vectors from `seed`, of at most `longest` elements. Results must have the same bits as the
/// definition.
///
/// # Errors
/// `Internal` for a wrong result, with the operation, its length and type; errors of the group.
pub fn selftest(group: &Group, seed: u64, rounds: usize, longest: usize) -> Result<SelfTest> {
    let begun = Instant::now();
    let mut operations = 0;
    for round in 0..rounds as u64 {
        let mut draw = Draw::from_state(seed ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for dtype in DTYPES {
            let pick = draw.word() as usize;
            let drawn = draw.word() as usize % longest.max(1);
            let length =
                if pick.is_multiple_of(3) { drawn } else { LENGTHS[pick % LENGTHS.len()].min(longest) };
            let root = draw.word() as usize % group.size();
            let case = Case { group, dtype, length, seed: draw.word() };
            operations += case.reductions()?;
            operations += case.movements(root)?;
        }
        group.barrier()?;
        operations += 1;
    }
    Ok(SelfTest { operations, elapsed: begun.elapsed() })
}

/// Sums and broadcasts a vector of `bytes` bytes with known results, for vectors whose byte count exceeds 31 bits.
///
/// # Errors
/// `Internal` for a wrong result, with its position; errors of the group.
pub fn selftest_long(group: &Group, bytes: usize) -> Result<SelfTest> {
    let begun = Instant::now();
    let own = |rank: usize, i: usize| (i as u32).wrapping_mul(2_654_435_761) ^ (rank as u32) << 28;
    let sum = |i: usize| (0..group.size()).fold(0u32, |sum, rank| sum.wrapping_add(own(rank, i)));
    let last = group.size().saturating_sub(1);
    let mut x: Vec<u32> = (0..bytes / 4).map(|i| own(group.rank(), i)).collect();
    group.all_reduce(&mut x, Reduction::Sum)?;
    let right = |x: &[u32], expected: &dyn Fn(usize) -> u32, op: &str| {
        let wrong = x.iter().enumerate().position(|(i, x)| *x != expected(i));
        let fail = |at: usize| {
            Error::internal(format!("{op} of {bytes} bytes: wrong at element {at} on rank {}", group.rank()))
        };
        wrong.map_or(Ok(()), |at| Err(fail(at)))
    };
    right(&x, &sum, "all_reduce")?;
    x.iter_mut().enumerate().for_each(|(i, x)| *x = own(group.rank(), i));
    group.broadcast(&mut x, last)?;
    right(&x, &|i| own(last, i), "broadcast")?;
    Ok(SelfTest { operations: 2, elapsed: begun.elapsed() })
}

struct Case<'a> {
    group: &'a Group,
    dtype: DType,
    length: usize,
    seed: u64,
}

impl Case<'_> {
    fn fail(&self, op: &str, at: usize) -> Error {
        Error::internal(format!(
            "{op} of {} elements of {} among {} ranks over {}: wrong at byte {at} on rank {}",
            self.length,
            self.dtype,
            self.group.size(),
            self.group.transport().name(),
            self.group.rank()
        ))
    }

    fn same(&self, op: &str, found: &[u8], expected: &[u8]) -> Result<()> {
        if found.len() != expected.len() {
            return Err(self.fail(op, found.len().min(expected.len())));
        }
        found.iter().zip(expected).position(|(a, b)| a != b).map_or(Ok(()), |at| Err(self.fail(op, at)))
    }

    /// Returns the vector of a rank.
    fn of(&self, rank: usize) -> Vec<u8> {
        let mut draw = Draw::from_state(self.seed.wrapping_add((rank as u64) << 40));
        let mut value = || {
            let bits = draw.word();
            let float = ((bits >> 40) as f32 / (1 << 23) as f32 - 1.0) * 3.0;
            match self.dtype {
                DType::F32 => float.to_le_bytes().to_vec(),
                DType::F16 => f16::from_f32(float).to_le_bytes().to_vec(),
                DType::Bf16 => bf16::from_f32(float).to_le_bytes().to_vec(),
                DType::I32 | DType::U32 => (bits as u32).to_le_bytes().to_vec(),
                DType::Bool => vec![u8::from(bits.is_multiple_of(3))],
            }
        };
        (0..self.length).flat_map(|_| value()).collect()
    }

    fn all(&self) -> Vec<Vec<u8>> {
        (0..self.group.size()).map(|rank| self.of(rank)).collect()
    }

    /// Returns element `i` of the reduction of `all`, computed from the definition.
    fn reduced(&self, how: Reduction, all: &[Vec<u8>], i: usize) -> Vec<u8> {
        let at = |vector: &Vec<u8>| {
            let mut bytes = [0; 4];
            let size = self.dtype.size();
            bytes[..size].copy_from_slice(&vector[i * size..(i + 1) * size]);
            u32::from_le_bytes(bytes)
        };
        let float = |bits: u32| match self.dtype {
            DType::F16 => f16::from_bits(bits as u16).to_f32(),
            DType::Bf16 => f32::from_bits(bits << 16),
            _ => f32::from_bits(bits),
        };
        if !self.dtype.is_float() {
            let value = match (how, self.dtype) {
                (Reduction::Max, DType::I32) => all.iter().map(|v| at(v) as i32).max().unwrap_or(0) as u32,
                (_, DType::Bool) => return vec![all.iter().map(|v| v[i]).max().unwrap_or(0)],
                (Reduction::Max, _) => all.iter().map(at).max().unwrap_or(0),
                _ => all.iter().map(at).fold(0, u32::wrapping_add),
            };
            return value.to_le_bytes().to_vec();
        }
        let values = all.iter().map(|v| float(at(v)));
        let value = match how {
            Reduction::Max => values.fold(f32::NEG_INFINITY, f32::max),
            Reduction::Sum => values.reduce(|a, b| a + b).unwrap_or(0.0),
            Reduction::Mean => values.reduce(|a, b| a + b).unwrap_or(0.0) / all.len() as f32,
        };
        match self.dtype {
            DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    }

    fn reductions(&self) -> Result<usize> {
        let all = self.all();
        let own = &all[self.group.rank()];
        let rules: &[Reduction] = match self.dtype.is_float() {
            true => &[Reduction::Sum, Reduction::Mean, Reduction::Max],
            false => &[Reduction::Sum, Reduction::Max],
        };
        for how in rules {
            let expected: Vec<u8> = (0..self.length).flat_map(|i| self.reduced(*how, &all, i)).collect();
            let mut found = own.clone();
            self.group.all_reduce_bytes(self.dtype, &mut found, *how)?;
            self.same(&format!("all_reduce ({how:?})"), &found, &expected)?;
            let mut found = own.clone();
            self.group.reduce_scatter_bytes(self.dtype, &mut found, *how)?;
            let (size, part) = (self.dtype.size(), shard(self.length, self.group.size(), self.group.rank()));
            let part = part.start * size..part.end * size;
            self.same(&format!("reduce_scatter ({how:?})"), &found[part.clone()], &expected[part])?;
            self.group.all_gather_shards(self.dtype, &mut found)?;
            self.same("all_gather_shards", &found, &expected)?;
        }
        Ok(3 * rules.len())
    }

    fn movements(&self, root: usize) -> Result<usize> {
        let (group, all) = (self.group, self.all());
        let (own, size) = (&all[group.rank()], group.size());
        let joined = all.concat();
        self.same("all_gather", &group.all_gather::<u8>(own)?, &joined)?;
        let uneven = &own[..own.len() * group.rank() / size];
        for (rank, found) in group.all_gather_bytes(uneven)?.iter().enumerate() {
            self.same("all_gather_bytes", found, &all[rank][..all[rank].len() * rank / size])?;
        }
        let mut found = own.clone();
        group.broadcast_bytes(&mut found, root)?;
        self.same("broadcast", &found, &all[root])?;
        let mut found = vec![0u8; own.len()];
        group.scatter(if group.rank() == root { &joined } else { &[] }, &mut found, root)?;
        self.same("scatter", &found, own)?;
        let mut found = vec![0u8; if group.rank() == root { joined.len() } else { 0 }];
        group.gather(own, &mut found, root)?;
        if group.rank() == root {
            self.same("gather", &found, &joined)?;
        }
        // Each pair of adjacent ranks once; the lower rank sends first.
        let mut found = vec![0u8; own.len()];
        if group.rank() + 1 < size {
            group.send(group.rank() + 1, own)?;
        }
        if group.rank() > 0 {
            group.recv(group.rank() - 1, &mut found)?;
            self.same("send, recv", &found, &all[group.rank() - 1])?;
        }
        let half = group.split((group.rank() % 2) as u32)?;
        let mut sum = [group.rank() as u32 + 1];
        half.all_reduce(&mut sum, Reduction::Sum)?;
        let expected: u32 = (0..size).filter(|r| r % 2 == group.rank() % 2).map(|r| r as u32 + 1).sum();
        self.same("split, all_reduce", &sum[0].to_le_bytes(), &expected.to_le_bytes())?;
        Ok(8)
    }
}
