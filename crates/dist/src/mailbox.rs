//! Transfers tensors between adjacent ranks through page-locked host memory that the ranks of a machine share. A transfer is a copy to the host, a
//! short message, and a copy to the other device. If the ranks are on several machines, or use a [`slowed`](crate::slowed) link, the message contains
//! the bytes.

use crate::Group;
use netcl_device::{Device, Error, Pinned, Result};
use netcl_tensor::Tensor;
use std::sync::Arc;

/// Slots start at multiples of this many bytes.
const PAGE: usize = 4096;

/// One rank's mailbox for exchanges with its adjacent ranks.
pub struct Mailbox {
    group: Group,
    device: Device,
    /// The memory of all ranks, if shared.
    host: Option<Pinned>,
    /// Bytes per slot.
    slot: usize,
    slots: usize,
    /// Number of messages so far, by side: exchanged with the previous and with the next rank.
    sent: [usize; 2],
    received: [usize; 2],
    /// Bytes to send without shared memory.
    bytes: Vec<u8>,
}

impl Mailbox {
    /// Returns this rank's mailbox on its device, for tensors of at most `bytes`. All ranks of `group` call it with the same sizes. A rank may not be
    /// `slots` or more messages ahead of its reader: before it sends, it must know that the oldest of them was read.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`].
    pub fn new(group: &Group, device: &Device, bytes: usize, slots: usize) -> Result<Self> {
        let (slot, slots) = (bytes.next_multiple_of(PAGE), slots.max(1));
        // Both directions between each two adjacent ranks.
        let lines = 2 * group.size().saturating_sub(1);
        let shared = group.share_memory(lines * slots * slot)?;
        let host = shared.map(|memory| device.pin(&Arc::new(memory)));
        let (group, device, bytes) = (group.clone(), device.clone(), Vec::new());
        Ok(Self { group, device, host, slot, slots, sent: [0; 2], received: [0; 2], bytes })
    }

    /// Returns true if tensors go through memory that the ranks share.
    pub fn shares_memory(&self) -> bool {
        self.host.is_some()
    }

    /// Copies contiguous `x` to the place where the rank `to` will read it, after the device has computed it. Waits until the copy is complete.
    ///
    /// # Errors
    /// `Shape` for a tensor that does not fit, or a rank that is not adjacent; device errors.
    pub fn put(&mut self, to: usize, x: &Tensor) -> Result<()> {
        let side = self.side(to)?;
        let Some(host) = &self.host else {
            self.bytes = x.to_bytes()?;
            return Ok(());
        };
        let x = x.detach().contiguous()?;
        let bytes = self.bytes_of(&x)?;
        let slot = self.place(self.group.rank(), to, self.sent[side]);
        let from = (x.storage(), x.layout().offset * x.dtype().size());
        let there = self.device.download_into(from, (host, slot), bytes)?;
        self.device.flush()?;
        self.device.wait(&there)
    }

    /// Tells the rank `to` that the tensor [put](Mailbox::put) there can be read, and waits for the tensor from the rank in `from`. Later commands of
    /// the device's queue see it. Either argument may be absent. If both name one rank that does the same, the two do not deadlock.
    ///
    /// # Errors
    /// Same as [`Group::exchange`] and [`Mailbox::put`]; device errors.
    pub fn exchange(&mut self, to: Option<usize>, from: Option<(usize, &Tensor)>) -> Result<()> {
        let to = to.map(|to| Ok::<_, Error>((to, self.side(to)?))).transpose()?;
        let from = from.map(|(rank, x)| Ok::<_, Error>((rank, self.side(rank)?, x))).transpose()?;
        match &self.host {
            Some(host) => {
                let mut told = [0u8];
                let message = to.map(|(to, _)| (to, &[1u8][..]));
                self.group.exchange(message, from.map(|(rank, ..)| (rank, &mut told[..])))?;
                if let Some((rank, side, x)) = from {
                    let slot = self.place(rank, self.group.rank(), self.received[side]);
                    let target = (x.storage(), x.layout().offset * x.dtype().size());
                    self.device.upload_from((host, slot), target, self.bytes_of(x)?)?;
                    self.device.flush()?;
                }
            }
            None => {
                let mut room = vec![0; from.map_or(Ok(0), |(.., x)| self.bytes_of(x))?];
                let message = to.map(|(to, _)| (to, self.bytes.as_slice()));
                self.group.exchange(message, from.map(|(rank, ..)| (rank, room.as_mut_slice())))?;
                if let Some((.., x)) = from {
                    x.write_bytes(0, &room)?;
                }
            }
        }
        if let Some((_, side)) = to {
            self.sent[side] += 1;
        }
        if let Some((_, side, _)) = from {
            self.received[side] += 1;
        }
        Ok(())
    }

    /// Returns 0 for the previous rank, 1 for the next one.
    fn side(&self, rank: usize) -> Result<usize> {
        let own = self.group.rank();
        match rank {
            _ if rank + 1 == own => Ok(0),
            _ if rank == own + 1 && rank < self.group.size() => Ok(1),
            _ => Err(Error::shape(format!("mailbox: rank {rank} is not adjacent to rank {own}"))),
        }
    }

    fn bytes_of(&self, x: &Tensor) -> Result<usize> {
        let bytes = x.count() * x.dtype().size();
        if bytes > self.slot || !x.is_contiguous() {
            return Err(Error::shape(format!(
                "mailbox: {} {} for at most {} contiguous bytes",
                x.dtype(),
                x.shape(),
                self.slot
            )));
        }
        Ok(bytes)
    }

    /// Returns the position of message `number` from a rank to an adjacent one.
    fn place(&self, from: usize, to: usize, number: usize) -> usize {
        let line = 2 * from.min(to) + usize::from(from > to);
        (line * self.slots + number % self.slots) * self.slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, local, slowed};
    use netcl_tensor::DType;
    use netcl_tensor::suite::test_device;
    use std::time::Duration;

    /// Rows pass through three ranks and back. Each rank adds its number; slots are reused.
    #[test]
    fn tensors_go_to_the_rank_behind_and_come_back() {
        for messages in [false, true] {
            let ranks = local(3, Duration::from_secs(60));
            std::thread::scope(|scope| {
                for rank in ranks {
                    scope.spawn(move || {
                        let link = Link { delay: Duration::ZERO, bytes_per_s: 1e9 };
                        let rank = if messages { slowed(&rank, link) } else { rank };
                        let device = test_device().unwrap();
                        let mut mail = Mailbox::new(&rank, &device, 4000, 3).unwrap();
                        assert_eq!(mail.shares_memory(), !messages);
                        let own = rank.rank();
                        for round in 0..7usize {
                            let values: Vec<f32> = (0..1000).map(|i| (i * (round + 1)) as f32).collect();
                            let mut x = Tensor::from_f32(&device, [10, 100], &values, DType::F32).unwrap();
                            let into = Tensor::zeros(&device, [10, 100], DType::F32).unwrap();
                            if own > 0 {
                                mail.exchange(None, Some((own - 1, &into))).unwrap();
                                x = into.add_scalar(own as f32).unwrap();
                            }
                            if own < 2 {
                                mail.put(own + 1, &x).unwrap();
                                mail.exchange(Some(own + 1), Some((own + 1, &into))).unwrap();
                                x = into.add_scalar(own as f32).unwrap();
                            }
                            if own > 0 {
                                mail.put(own - 1, &x).unwrap();
                                mail.exchange(Some(own - 1), None).unwrap();
                            } else {
                                let expected: Vec<f32> = values.iter().map(|v| v + 4.0).collect();
                                assert_eq!(x.to_vec().unwrap(), expected);
                            }
                        }
                        let large = Tensor::zeros(&device, [2000], DType::F32).unwrap();
                        let beside = if own == 0 { 1 } else { own - 1 };
                        if !messages {
                            assert!(mail.put(beside, &large).is_err());
                        }
                        assert!(mail.put(own, &large).is_err());
                    });
                }
            });
        }
    }
}
