//! Cached launches of element-wise kernels. Values that depend only on layouts and types are cached, because computing them takes longer than a
//! driver needs for a small kernel.

use super::super::prelude::*;
use netcl_device::quick::QuickMap;
use netcl_kernel::generate::ELEMENTWISE;
use netcl_kernel::{ResolvedLaunch, Scalar};
use std::sync::{Arc, PoisonError, RwLock};

/// Maximum words of a key. A key determines everything about a launch except its memory and the values of its scalars.
const WORDS: usize = 64;
/// Maximum number of cached launches. Programs whose shapes change at every step start over at this number.
const MAX_CACHED_LAUNCHES: usize = 4096;

/// Key of a launch.
pub(super) struct Key {
    words: [usize; WORDS],
    used: usize,
}

impl Key {
    /// Builds a key, or returns `None` for more axes and inputs than fit.
    pub fn of(
        (expression, in_place): (&'static str, bool),
        inputs: &[&Tensor],
        scalars: usize,
        y: &Tensor,
    ) -> Option<Self> {
        let mut key = Self { words: [0; WORDS], used: 0 };
        key.push(&[expression.as_ptr() as usize, expression.len(), scalars * 2 + usize::from(in_place)])?;
        key.tensor(y)?;
        inputs
            .iter()
            .try_for_each(|input| key.tensor(input).and_then(|()| key.push(&input.layout().strides)))?;
        Some(key)
    }
    /// Appends type and sizes, and the offset as far as vectors are concerned.
    fn tensor(&mut self, x: &Tensor) -> Option<()> {
        self.push(&[x.dtype() as usize, x.dims().len(), x.layout().offset % 16])?;
        self.push(x.dims())
    }
    fn push(&mut self, words: &[usize]) -> Option<()> {
        let end = self.used + words.len();
        self.words.get_mut(self.used..end)?.copy_from_slice(words);
        self.used = end;
        Some(())
    }
    fn words(&self) -> &[usize] {
        &self.words[..self.used]
    }
}

/// A cached launch.
pub(super) struct Ready {
    /// Inputs that the kernel reads.
    pub named: Vec<usize>,
    /// Arguments after the scalars: sizes and strides.
    pub sizes: Vec<usize>,
    /// The last arguments: the amount of work.
    pub extent: Vec<usize>,
    pub found: ResolvedLaunch,
}

impl Ready {
    /// Runs the launch on other memory.
    pub fn run(&self, inputs: &[&Tensor], scalars: &[f32], y: &Tensor) -> Result<()> {
        let mut launch = ELEMENTWISE.launch("elementwise");
        for i in &self.named {
            launch = launch.read_base(inputs[*i]).scalar(inputs[*i].layout().offset);
        }
        for scalar in
            scalars.iter().map(|s| Scalar::from(*s)).chain(self.sizes.iter().map(|n| Scalar::from(*n)))
        {
            launch = launch.scalar(scalar);
        }
        launch = launch.write_base(y).scalar(y.layout().offset);
        for n in &self.extent {
            launch = launch.scalar(*n);
        }
        launch.run_as(&self.found)
    }
}

/// The cached launches of one device.
#[derive(Default)]
pub(super) struct Launches(RwLock<QuickMap<Box<[usize]>, Arc<Ready>>>);

impl Launches {
    /// Returns the cached launch if a new one would be the same.
    pub fn get(&self, key: &Key) -> Option<Arc<Ready>> {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        kept.get(key.words()).filter(|ready| ready.found.is_current()).cloned()
    }
    pub fn keep(&self, key: &Key, ready: Ready) {
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_CACHED_LAUNCHES {
            kept.clear();
        }
        kept.insert(key.words().into(), Arc::new(ready));
    }
}
