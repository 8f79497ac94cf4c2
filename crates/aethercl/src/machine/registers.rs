//! The memory-mapped register file: the interface between the host's driver and the device.
//!
//! Offsets are in bytes. Every register has 32 bits; a 64-bit value uses two, the low one first. Writes to read-only registers and accesses to
//! unmapped offsets are ignored (reads return zero).
//!
//! | offset | name | |
//! |---|---|---|
//! | `0x000` | ID | `0x4145434c`, "AECL" |
//! | `0x004` | UNITS | compute units |
//! | `0x008` | STATUS | bit 0 busy, bit 1 a command failed, bit 2 device lost |
//! | `0x00c` | CONTROL | writing 1 resets: rings are emptied, STATUS and FAULT cleared |
//! | `0x010` | IRQ_STATUS | one bit per queue whose fence advanced; writing 1 clears it |
//! | `0x014` | IRQ_MASK | one bit per queue whose interrupt is enabled |
//! | `0x018` | FAULT | 0 none, 1 bad command, 2 bad address, 3 kernel failed, 4 watchdog |
//! | `0x01c` | FAULT_QUEUE | the queue of the fault |
//! | `0x020` | TIME | simulated ns since the device was opened, 64 bits |
//! | `0x028` | IRQ_CLEAR | writing 1 clears a bit of IRQ_STATUS; reads as 0 |
//! | `0x100 + 0x40·q` | queue `q`: RING_WORDS | length of its ring |
//! | `+0x04` | HEAD | next word that the command processor reads |
//! | `+0x08` | DOORBELL | the host writes the position after its last command |
//! | `+0x10` | FENCE | last value written by a SIGNAL command, 64 bits |

/// Offsets of registers.
pub mod offset {
    /// Constant that identifies the device.
    pub const ID: u32 = 0x000;
    /// Number of compute units.
    pub const UNITS: u32 = 0x004;
    /// State of the device, see [`status`](super::status).
    pub const STATUS: u32 = 0x008;
    /// Writing 1 resets the device.
    pub const CONTROL: u32 = 0x00c;
    /// Pending interrupts, one bit per queue.
    pub const IRQ_STATUS: u32 = 0x010;
    /// Enabled interrupts.
    pub const IRQ_MASK: u32 = 0x014;
    /// First failure since the last reset.
    pub const FAULT: u32 = 0x018;
    /// Queue of that failure.
    pub const FAULT_QUEUE: u32 = 0x01c;
    /// The device's clock.
    pub const TIME: u32 = 0x020;
    /// Clears interrupts; reads as 0, so that every write is a change.
    pub const IRQ_CLEAR: u32 = 0x028;
    /// First register of queue 0.
    pub const QUEUES: u32 = 0x100;
    /// Distance between the registers of two queues.
    pub const QUEUE_STRIDE: u32 = 0x40;
    /// Queue register: length of the ring.
    pub const RING_WORDS: u32 = 0x00;
    /// Queue register: read position of the device.
    pub const HEAD: u32 = 0x04;
    /// Queue register: the doorbell.
    pub const DOORBELL: u32 = 0x08;
    /// Queue register: the fence.
    pub const FENCE: u32 = 0x10;
}

/// Value of [`offset::ID`].
pub const ID: u32 = 0x4145_434c;
/// Maximum number of queues in the register file.
pub const QUEUES: usize = 8;

/// Bits of STATUS.
pub mod status {
    /// Announced commands have not been read.
    pub const BUSY: u32 = 1;
    /// A command failed.
    pub const FAILED: u32 = 2;
    /// The device is lost.
    pub const LOST: u32 = 4;
}

/// Effect of a register write by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No effect beyond the register.
    None,
    /// Commands of this queue are ready up to this word.
    Doorbell(usize, u32),
    /// Start over.
    Reset,
}

/// One queue's registers.
#[derive(Clone, Copy, Debug, Default)]
struct QueueRegisters {
    ring_words: u32,
    head: u32,
    doorbell: u32,
    fence: u64,
}

/// The register file.
#[derive(Clone, Debug, Default)]
pub struct Registers {
    units: u32,
    status: u32,
    irq_status: u32,
    irq_mask: u32,
    fault: u32,
    fault_queue: u32,
    time: u64,
    queues: [QueueRegisters; QUEUES],
}

impl Registers {
    /// After power-on.
    pub fn new(units: u32) -> Self {
        Self { units, irq_mask: u32::MAX, ..Self::default() }
    }

    /// Returns the value that the host reads at `at`.
    pub fn read(&self, at: u32) -> u32 {
        match at {
            offset::ID => ID,
            offset::UNITS => self.units,
            offset::STATUS => self.status,
            offset::IRQ_STATUS => self.irq_status,
            offset::IRQ_MASK => self.irq_mask,
            offset::FAULT => self.fault,
            offset::FAULT_QUEUE => self.fault_queue,
            _ if at == offset::TIME => self.time as u32,
            _ if at == offset::TIME + 4 => (self.time >> 32) as u32,
            _ => self.read_queue(at),
        }
    }

    fn read_queue(&self, at: u32) -> u32 {
        let Some((q, register)) = split(at) else { return 0 };
        let queue = &self.queues[q];
        match register {
            offset::RING_WORDS => queue.ring_words,
            offset::HEAD => queue.head,
            offset::DOORBELL => queue.doorbell,
            _ if register == offset::FENCE => queue.fence as u32,
            _ if register == offset::FENCE + 4 => (queue.fence >> 32) as u32,
            _ => 0,
        }
    }

    /// Handles a host write of `value` at `at`.
    pub fn write(&mut self, at: u32, value: u32) -> Effect {
        match at {
            offset::CONTROL if value & 1 != 0 => {
                self.status = 0;
                self.fault = 0;
                self.fault_queue = 0;
                self.irq_status = 0;
                return Effect::Reset;
            }
            offset::IRQ_STATUS | offset::IRQ_CLEAR => self.irq_status &= !value,
            offset::IRQ_MASK => self.irq_mask = value,
            _ => {
                if let Some((q, offset::DOORBELL)) = split(at) {
                    self.queues[q].doorbell = value;
                    return Effect::Doorbell(q, value);
                }
            }
        }
        Effect::None
    }

    /// Returns pending enabled interrupts.
    pub fn pending(&self) -> u32 {
        self.irq_status & self.irq_mask
    }
    /// Returns true if a bit of STATUS is set.
    pub fn has(&self, bit: u32) -> bool {
        self.status & bit != 0
    }
    /// Returns a queue's fence.
    pub fn fence(&self, queue: usize) -> u64 {
        self.queues.get(queue).map_or(0, |q| q.fence)
    }

    pub(super) fn set_status(&mut self, bit: u32, on: bool) {
        self.status = if on { self.status | bit } else { self.status & !bit };
    }
    pub(super) fn set_ring(&mut self, queue: usize, words: usize, head: usize) {
        self.queues[queue].ring_words = words as u32;
        self.queues[queue].head = head as u32;
    }
    pub(super) fn signal(&mut self, queue: usize, value: u64) {
        self.queues[queue].fence = value;
        self.irq_status |= 1 << queue;
    }
    pub(super) fn advance(&mut self, ns: u64) {
        self.time = self.time.max(ns);
    }
    /// Keeps the first fault since the last reset.
    pub(super) fn fail(&mut self, code: u32, queue: usize) {
        self.status |= status::FAILED;
        if self.fault == 0 {
            self.fault = code;
            self.fault_queue = queue as u32;
        }
    }
}

/// Returns the queue of an offset and its register.
fn split(at: u32) -> Option<(usize, u32)> {
    let within = at.checked_sub(offset::QUEUES)?;
    let q = (within / offset::QUEUE_STRIDE) as usize;
    (q < QUEUES).then_some((q, within % offset::QUEUE_STRIDE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_sees_what_the_device_sets_and_cannot_set_it() {
        let mut r = Registers::new(4);
        assert_eq!((r.read(offset::ID), r.read(offset::UNITS)), (ID, 4));
        r.signal(2, 0x1_0000_0007);
        let fence = offset::QUEUES + 2 * offset::QUEUE_STRIDE + offset::FENCE;
        assert_eq!((r.read(fence), r.read(fence + 4)), (7, 1));
        assert_eq!(r.write(fence, 9), Effect::None);
        assert_eq!(r.fence(2), 0x1_0000_0007);
        assert_eq!(r.pending(), 4);
        r.write(offset::IRQ_MASK, 1);
        assert_eq!(r.pending(), 0);
        r.write(offset::IRQ_STATUS, 4);
        assert_eq!(r.read(offset::IRQ_STATUS), 0);
        r.advance(1 << 33);
        assert_eq!((r.read(offset::TIME), r.read(offset::TIME + 4)), (0, 2));
    }

    #[test]
    fn doorbells_and_reset_reach_the_device_and_the_first_fault_is_kept() {
        let mut r = Registers::new(1);
        assert_eq!(
            r.write(offset::QUEUES + offset::QUEUE_STRIDE + offset::DOORBELL, 12),
            Effect::Doorbell(1, 12)
        );
        r.fail(3, 1);
        r.fail(2, 0);
        assert_eq!((r.read(offset::FAULT), r.read(offset::FAULT_QUEUE)), (3, 1));
        assert!(r.has(status::FAILED));
        assert_eq!(r.write(offset::CONTROL, 1), Effect::Reset);
        assert_eq!((r.read(offset::FAULT), r.read(offset::STATUS)), (0, 0));
        for at in [0x50, 0x7fff_fff0, u32::MAX, offset::QUEUES + 64 * 8] {
            assert_eq!(r.read(at), 0);
            assert_eq!(r.write(at, 1), Effect::None);
        }
    }
}
