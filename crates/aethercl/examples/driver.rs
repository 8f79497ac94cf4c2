//! A driver for the simulated GPU that has registers, a ring and packets only. It multiplies 5 x 4 by 4 x 6 numbers.

use aethercl::machine::{Binding, Gpu, KernelLaunch, MachineOptions, window::RINGS};
use aethercl::{Access, Includes, LaunchOptions, NdRange, Program, Source, model::Profile};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

// Registers of queue 0, by their byte in the window.
const RING_WORDS: usize = 0x100;
const HEAD: usize = 0x104;
const DOORBELL: usize = 0x108;
const FENCE: usize = 0x110;

struct Driver {
    gpu: Gpu,
    window: Arc<[AtomicU32]>,
    tail: u32,
    signals: u32,
}

impl Driver {
    fn open(mut gpu: Gpu) -> Self {
        let window = Arc::clone(gpu.map_window().words());
        Self { gpu, window, tail: 0, signals: 0 }
    }
    fn get(&self, register: usize) -> u32 {
        self.window[register / 4].load(SeqCst)
    }
    fn word(&mut self, value: u32) {
        self.window[RINGS / 4 + self.tail as usize].store(value, SeqCst);
        self.tail = (self.tail + 1) % self.get(RING_WORDS);
    }
    /// A packet is a header, operation and number of words, and those words. It is contiguous: the rest of the ring is padded.
    fn push(&mut self, operation: u32, words: &[u32]) {
        let (length, capacity) = (1 + words.len() as u32, self.get(RING_WORDS));
        let pad = if self.tail + length > capacity { capacity - self.tail } else { 0 };
        while (self.get(HEAD) + capacity - self.tail - 1) % capacity < length + pad {
            self.ring();
        }
        if pad > 0 {
            self.word(0x10 << 24 | (pad - 1));
            (1..pad).for_each(|_| self.word(0));
        }
        self.word(operation << 24 | (length - 1));
        words.iter().for_each(|w| self.word(*w));
    }
    /// Announces the written words; the device reads its registers.
    fn ring(&mut self) {
        self.window[DOORBELL / 4].store(self.tail, SeqCst);
        self.gpu.sync_window();
    }
    fn finish(&mut self) {
        self.signals += 1;
        self.push(0x40, &[self.signals, 0]);
        while self.get(FENCE) != self.signals {
            self.ring();
        }
    }
    fn copy_in(&mut self, to: u64, data: &[f32]) {
        let from = self.gpu.pin(data.iter().flat_map(|x| x.to_le_bytes()).collect());
        self.push(0x20, &[halves(to), halves(from), halves(4 * data.len() as u64)].concat());
    }
    fn copy_out(&mut self, from: u64, count: usize) -> Vec<f32> {
        let to = self.gpu.pin(vec![0; 4 * count]);
        self.push(0x21, &[halves(to), halves(from), halves(4 * count as u64)].concat());
        self.finish();
        let bytes = self.gpu.unpin(to).unwrap_or_default();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
    fn launch(&mut self, work: KernelLaunch) {
        let descriptor = self.gpu.describe(Arc::new(work));
        self.push(0x30, &halves(descriptor));
    }
}

fn halves(n: u64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

const KERNEL: &str =
    "kernel void multiply(global const float *a, global const float *b, global float *c, int k) {
  int x = get_global_id(0), y = get_global_id(1), n = get_global_size(0);
  float sum = 0;
  for (int i = 0; i < k; i++) sum += a[y * k + i] * b[i * n + x];
  c[y * n + x] = sum;
}";

/// The product of `a`, m x k, and `b`, k x n, as many times as asked for; the last one.
pub fn multiply(
    a: &[f32],
    b: &[f32],
    [m, k, n]: [usize; 3],
    times: u32,
) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let program =
        Arc::new(Program::build(&Source { name: "multiply.cl", text: KERNEL }, "", &Includes::none())?);
    let mut gpu = Gpu::new(Profile::named("teaching")?, MachineOptions::default());
    gpu.open_queue()?;
    let sizes = [m * k, k * n, m * n].map(|numbers| 4 * numbers as u64);
    let at = [gpu.allocate(sizes[0], "a")?, gpu.allocate(sizes[1], "b")?, gpu.allocate(sizes[2], "c")?];
    let mut driver = Driver::open(gpu);
    let mut product = Vec::new();
    for _ in 0..times {
        let buffer = |i: usize, access| Binding::Buffer { address: at[i], bytes: sizes[i], access };
        let k = Binding::Scalar((k as i32).to_le_bytes().to_vec());
        let bindings = vec![buffer(0, Access::Read), buffer(1, Access::Read), buffer(2, Access::Write), k];
        let range = NdRange::plane([n as u64, m as u64], [n as u64, 1]);
        driver.copy_in(at[0], a);
        driver.copy_in(at[1], b);
        driver.launch(KernelLaunch::new(&program, "multiply", bindings, range, LaunchOptions::default()));
        product = driver.copy_out(at[2], m * n);
    }
    Ok(product)
}

#[allow(clippy::print_stdout)] // an example
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<f32> = (0..24).map(|i| i as f32).collect();
    for row in multiply(&numbers[..20], &numbers, [5, 4, 6], 1)?.chunks(6) {
        println!("{row:?}");
    }
    Ok(())
}
