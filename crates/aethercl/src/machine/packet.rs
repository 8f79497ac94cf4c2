//! Format of commands in a ring: a header word, then the operands.
//!
//! The upper byte of the header is the operation, the lower bytes are the number of following words. Addresses and sizes have 64 bits, the low word
//! first.

/// Operations: the upper byte of a header.
mod op {
    pub const PAD: u32 = 0x10;
    pub const COPY_IN: u32 = 0x20;
    pub const COPY_OUT: u32 = 0x21;
    pub const COPY: u32 = 0x22;
    pub const FILL: u32 = 0x23;
    pub const LAUNCH: u32 = 0x30;
    pub const SIGNAL: u32 = 0x40;
    pub const WAIT: u32 = 0x41;
}

/// One command of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Padding: the words up to the ring's end, if the next command did not fit.
    Pad {
        /// Words to skip after the header.
        words: u32,
    },
    /// Copies host memory to device memory.
    CopyIn {
        /// Device address.
        to: u64,
        /// Bus address of pinned host memory.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Copies device memory to host memory.
    CopyOut {
        /// Bus address of pinned host memory.
        to: u64,
        /// Device address.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Within device memory.
    Copy {
        /// Device address.
        to: u64,
        /// Device address.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Repeats a pattern.
    Fill {
        /// Device address.
        to: u64,
        /// Number of bytes, a multiple of the pattern.
        bytes: u64,
        /// The pattern, of which the first `length` bytes are used.
        pattern: [u8; 16],
        /// 1, 2, 4, 8 or 16.
        length: u32,
    },
    /// Runs a kernel.
    Launch {
        /// Bus address of the launch descriptor.
        descriptor: u64,
    },
    /// Writes `value` into the queue's fence register after everything before is complete, and raises its interrupt.
    Signal {
        /// Increases by one per command.
        value: u64,
    },
    /// Holds the queue until another queue's fence register has reached `value`.
    Wait {
        /// The other queue.
        queue: u32,
        /// Value that the fence must reach.
        value: u64,
    },
}

/// Maximum words of a command, header included.
pub const MAX_COMMAND_WORDS: usize = 10;

/// Reason why words are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPacket {
    /// The header.
    pub header: u32,
}

fn pair(words: &mut Vec<u32>, value: u64) {
    words.extend([value as u32, (value >> 32) as u32]);
}

impl Packet {
    /// Returns the command's words, header first.
    pub fn encode(&self) -> Vec<u32> {
        let mut words = vec![0];
        let op = match self {
            Self::Pad { words } => return vec![op::PAD << 24 | words],
            Self::CopyIn { to, from, bytes }
            | Self::CopyOut { to, from, bytes }
            | Self::Copy { to, from, bytes } => {
                [*to, *from, *bytes].into_iter().for_each(|v| pair(&mut words, v));
                match self {
                    Self::CopyIn { .. } => op::COPY_IN,
                    Self::CopyOut { .. } => op::COPY_OUT,
                    _ => op::COPY,
                }
            }
            Self::Fill { to, bytes, pattern, length } => {
                pair(&mut words, *to);
                pair(&mut words, *bytes);
                words.push(*length);
                words.extend(pattern.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
                op::FILL
            }
            Self::Launch { descriptor } => {
                pair(&mut words, *descriptor);
                op::LAUNCH
            }
            Self::Signal { value } => {
                pair(&mut words, *value);
                op::SIGNAL
            }
            Self::Wait { queue, value } => {
                words.push(*queue);
                pair(&mut words, *value);
                op::WAIT
            }
        };
        words[0] = op << 24 | (words.len() as u32 - 1);
        words
    }

    /// Decodes the command that starts with `words[0]`, and returns its number of words.
    ///
    /// # Errors
    /// If the header has an unknown operation, or a wrong number of words.
    pub fn decode(words: &[u32]) -> Result<(Self, usize), BadPacket> {
        let header = words.first().copied().unwrap_or(0);
        let bad = BadPacket { header };
        let (op, rest) = (header >> 24, (header & 0x00ff_ffff) as usize);
        if op == op::PAD {
            return Ok((Self::Pad { words: rest as u32 }, rest + 1));
        }
        let body = words.get(1..=rest).ok_or(bad)?;
        let long = |i: usize| u64::from(body[i]) | u64::from(body[i + 1]) << 32;
        let packet = match (op, rest) {
            (op::COPY_IN, 6) => Self::CopyIn { to: long(0), from: long(2), bytes: long(4) },
            (op::COPY_OUT, 6) => Self::CopyOut { to: long(0), from: long(2), bytes: long(4) },
            (op::COPY, 6) => Self::Copy { to: long(0), from: long(2), bytes: long(4) },
            (op::FILL, 9) if [1, 2, 4, 8, 16].contains(&body[4]) => {
                let mut pattern = [0; 16];
                for (to, from) in pattern.chunks_exact_mut(4).zip(&body[5..9]) {
                    to.copy_from_slice(&from.to_le_bytes());
                }
                Self::Fill { to: long(0), bytes: long(2), pattern, length: body[4] }
            }
            (op::LAUNCH, 2) => Self::Launch { descriptor: long(0) },
            (op::SIGNAL, 2) => Self::Signal { value: long(0) },
            (op::WAIT, 3) => Self::Wait { queue: body[0], value: long(1) },
            _ => return Err(bad),
        };
        Ok((packet, rest + 1))
    }

    /// Describes the command as text.
    pub fn describe(&self) -> String {
        match self {
            Self::Pad { words } => format!("nothing, {words} words to the ring's end"),
            Self::CopyIn { to, from, bytes } => {
                format!("copy in {bytes} bytes from host {from:#x} to device {to:#x}")
            }
            Self::CopyOut { to, from, bytes } => {
                format!("copy out {bytes} bytes from device {from:#x} to host {to:#x}")
            }
            Self::Copy { to, from, bytes } => format!("copy {bytes} bytes from {from:#x} to {to:#x}"),
            Self::Fill { to, bytes, length, .. } => {
                format!("fill {bytes} bytes at {to:#x} with a pattern of {length}")
            }
            Self::Launch { descriptor } => format!("launch what host {descriptor:#x} describes"),
            Self::Signal { value } => format!("write {value} into the fence"),
            Self::Wait { queue, value } => format!("wait until the fence of queue {queue} is {value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Packet> {
        let (to, from, bytes) = (0x1_2345_6789, 0x8000_0000_0000, 1 << 33);
        vec![
            Packet::Pad { words: 5 },
            Packet::CopyIn { to, from, bytes },
            Packet::CopyOut { to, from, bytes },
            Packet::Copy { to, from, bytes },
            Packet::Fill { to, bytes, pattern: std::array::from_fn(|i| i as u8), length: 16 },
            Packet::Launch { descriptor: from },
            Packet::Signal { value: u64::MAX },
            Packet::Wait { queue: 3, value: 1 << 40 },
        ]
    }

    #[test]
    fn what_is_written_is_read_again() {
        for packet in all() {
            let mut words = packet.encode();
            assert!(words.len() <= MAX_COMMAND_WORDS, "{packet:?} has {} words", words.len());
            let length = if let Packet::Pad { words } = packet { words as usize + 1 } else { words.len() };
            words.push(0xdead_beef);
            assert_eq!(Packet::decode(&words), Ok((packet, length)));
        }
    }

    #[test]
    fn no_words_make_it_panic() {
        assert!(Packet::decode(&[]).is_err());
        for op in 0..=255u32 {
            for rest in 0..12u32 {
                for have in 0..12usize {
                    let mut words = vec![0xffff_ffff; have + 1];
                    words[0] = op << 24 | rest;
                    if let Ok((packet, _)) = Packet::decode(&words) {
                        assert!(!packet.describe().is_empty());
                    }
                }
            }
        }
    }
}
