//! Collects the state of a run whose tensors are partitioned between ranks on the host of rank 0, which writes checkpoints.

use netcl_dist::Group;
use netcl_model::checkpoint::{Bytes, FileDtype, TensorData, TensorToWrite};
use netcl_tensor::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Elements of a tensor that a rank holds.
pub(super) struct TensorPiece<'a> {
    what: Header,
    bytes: Bytes<'a>,
}

/// The description of a piece that ranks exchange before its bytes.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
struct Header {
    name: String,
    dtype: FileDtype,
    /// Shape of the whole tensor.
    shape: Vec<usize>,
    /// Elements in row-major order.
    elements: Range<usize>,
}

impl Header {
    /// Returns the bytes of this many elements.
    fn bytes(&self, elements: usize) -> Result<usize> {
        let bits = elements.checked_mul(self.dtype.bitsize());
        bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8).ok_or_else(|| {
            Error::format(format!("{}: {elements} elements of {} are not whole bytes", self.name, self.dtype))
        })
    }
}

impl<'a> TensorPiece<'a> {
    /// Creates the piece `elements`, in row-major order, of a tensor of this name, type and shape.
    pub fn new(
        name: String,
        dtype: FileDtype,
        shape: Vec<usize>,
        elements: Range<usize>,
        bytes: Bytes<'a>,
    ) -> Self {
        Self { what: Header { name, dtype, shape, elements }, bytes }
    }
}

impl<'a> From<TensorToWrite<'a>> for TensorPiece<'a> {
    /// Converts a whole tensor.
    fn from(t: TensorToWrite<'a>) -> Self {
        let elements = 0..t.shape.iter().product();
        Self::new(t.name, t.dtype, t.shape, elements, t.bytes)
    }
}

/// Collects whole tensors from the pieces of all ranks; rank 0 gets them, ordered by name. All ranks call it. The other hosts hold one piece in
/// memory at a time.
///
/// # Errors
/// `Internal`, on every rank, if pieces overlap, do not cover a tensor or contradict each other; those of the device and the group.
pub(super) fn gather(group: &Group, own: &[TensorPiece<'_>]) -> Result<Option<Vec<TensorData>>> {
    let headers: Vec<&Header> = own.iter().map(|piece| &piece.what).collect();
    let text = serde_json::to_vec(&headers)
        .map_err(|e| Error::internal(format!("cannot serialize a rank's state: {e}")))?;
    let all: Vec<Vec<Header>> = group
        .all_gather_bytes(&text)?
        .iter()
        .map(|text| serde_json::from_slice(text))
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| Error::internal(format!("cannot parse a rank's state: {e}")))?;
    check(&all)?;
    if !group.leads() {
        for piece in own {
            group.send(0, &bytes(piece)?)?;
        }
        return Ok(None);
    }
    let mut whole: BTreeMap<&str, TensorData> = BTreeMap::new();
    for (rank, headers) in all.iter().enumerate() {
        for (i, header) in headers.iter().enumerate() {
            if !whole.contains_key(&*header.name) {
                whole.insert(&header.name, empty(header)?);
            }
            let Some(tensor) = whole.get_mut(&*header.name) else { continue };
            let place = header.bytes(header.elements.start)?..header.bytes(header.elements.end)?;
            let target = &mut tensor.bytes[place];
            match rank {
                0 => target.copy_from_slice(&bytes(&own[i])?),
                _ => group.recv(rank, target)?,
            }
        }
    }
    Ok(Some(whole.into_values().collect()))
}

/// Creates a tensor whose bytes are still to come.
fn empty(header: &Header) -> Result<TensorData> {
    let bytes = vec![0; header.bytes(header.shape.iter().product())?];
    Ok(TensorData { name: header.name.clone(), dtype: header.dtype, shape: header.shape.clone(), bytes })
}

fn bytes(piece: &TensorPiece<'_>) -> Result<Vec<u8>> {
    let bytes = match &piece.bytes {
        Bytes::Here(bytes) => bytes.to_vec(),
        Bytes::Later(get) => get()?,
    };
    let Header { name, elements, .. } = &piece.what;
    if bytes.len() != piece.what.bytes(elements.len())? {
        return Err(Error::internal(format!("{name}: {} bytes for the elements {elements:?}", bytes.len())));
    }
    Ok(bytes)
}

/// Checks that the pieces of each tensor agree about it and cover it once.
fn check(all: &[Vec<Header>]) -> Result<()> {
    let mut of: BTreeMap<&str, Vec<(usize, &Header)>> = BTreeMap::new();
    for (rank, headers) in all.iter().enumerate() {
        headers.iter().for_each(|header| of.entry(&header.name).or_default().push((rank, header)));
    }
    for (name, mut pieces) in of {
        pieces.sort_by_key(|(_, header)| (header.elements.start, header.elements.end));
        let (first, of_first) = pieces[0];
        let mut end = 0;
        for (rank, header) in &pieces {
            if (&header.shape, header.dtype) != (&of_first.shape, of_first.dtype) {
                return Err(Error::internal(format!(
                    "{name} is {}{:?} at rank {first} and {}{:?} at rank {rank}",
                    of_first.dtype, of_first.shape, header.dtype, header.shape
                )));
            }
            if header.elements.start != end {
                return Err(gap(name, end, header.elements.start, *rank));
            }
            end = header.elements.end;
        }
        let count: usize = of_first.shape.iter().product();
        if end != count {
            return Err(gap(name, end, count, first));
        }
    }
    Ok(())
}

fn gap(name: &str, end: usize, next: usize, rank: usize) -> Error {
    let what = if next > end { "no rank has" } else { "two ranks have" };
    Error::internal(format!(
        "{name}: {what} the elements {} to {} (rank {rank})",
        end.min(next),
        end.max(next)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_dist::local;
    use std::time::Duration;

    type Given = (&'static str, Range<usize>);

    /// Returns rank 0's tensors, or the error of each rank, if rank `r` provides `pieces(r)`: name, elements of 10 bytes.
    fn gathered(ranks: usize, pieces: fn(usize) -> Vec<Given>) -> Vec<Result<Option<Vec<TensorData>>>> {
        std::thread::scope(|scope| {
            let work = |group: Group| {
                scope.spawn(move || {
                    let piece = |(name, elements): (&str, Range<usize>)| {
                        let bytes = elements.clone().map(|i| i as u8 + 100).collect::<Vec<u8>>();
                        let later = Bytes::Later(Box::new(move || Ok(bytes.clone())));
                        TensorPiece::new(name.to_owned(), FileDtype::U8, vec![2, 5], elements, later)
                    };
                    let own: Vec<TensorPiece<'_>> = pieces(group.rank()).into_iter().map(piece).collect();
                    gather(&group, &own)
                })
            };
            let ranks: Vec<_> = local(ranks, Duration::from_secs(60)).into_iter().map(work).collect();
            ranks.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn tensors_are_put_together_from_the_ranks_pieces() {
        let all = gathered(3, |rank| match rank {
            0 => vec![("b", 7..10), ("a", 0..10)],
            1 => vec![],
            _ => vec![("b", 0..7), ("b", 7..7), ("c", 0..10)],
        });
        let mut all = all.into_iter().map(|r| r.unwrap());
        let tensors = all.next().unwrap().unwrap();
        assert_eq!(tensors.iter().map(|t| &*t.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        let expected: Vec<u8> = (100..110).collect();
        assert!(tensors.iter().all(|t| t.bytes == expected && t.shape == [2, 5]));
        assert!(all.all(|other| other.is_none()));
    }

    #[test]
    fn gaps_and_overlaps_are_errors_of_every_rank() {
        let missing = gathered(2, |rank| if rank == 0 { vec![("a", 0..4)] } else { vec![("a", 5..10)] });
        let short = gathered(2, |rank| if rank == 0 { vec![("a", 0..4)] } else { vec![("a", 4..9)] });
        let twice = gathered(2, |rank| if rank == 0 { vec![("a", 0..4)] } else { vec![("a", 3..10)] });
        for (all, words) in [
            (missing, "a: no rank has the elements 4 to 5"),
            (short, "a: no rank has the elements 9 to 10"),
            (twice, "a: two ranks have the elements 3 to 4"),
        ] {
            for end in all {
                let text = end.unwrap_err().to_string();
                assert!(text.contains(words), "{text}");
            }
        }
    }
}
