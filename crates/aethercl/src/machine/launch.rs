//! A launch descriptor whose kernel is OpenCL C.

use super::work::{Done, Failure, Origin, Work};
use crate::image::{Image, Sampler};
use crate::memory::Memory;
use crate::model::Profile;
use crate::{Access, Arg, LaunchError, LaunchOptions, NdRange, Program};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Maximum number of variables and arguments that a message about local memory lists, largest first.
const MAX_NAMED_VARIABLES: usize = 4;

/// An argument that a descriptor keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Part of device memory.
    Buffer {
        /// Address of its first byte.
        address: u64,
        /// Bytes that the kernel may access.
        bytes: u64,
        /// Access declared by the launch.
        access: Access,
    },
    /// The bytes of a scalar or vector.
    Scalar(Vec<u8>),
    /// Local memory of this many bytes.
    Local(usize),
    /// An image and the access declared by the launch.
    Image(Image, Access),
    /// A sampler.
    Sampler(Sampler),
    /// Part of device memory that the kernel reaches through loaded addresses. These arguments come last.
    Indirect {
        /// Address of its first byte.
        address: u64,
        /// Bytes that the kernel may access.
        bytes: u64,
        /// Access declared by the launch.
        access: Access,
    },
}

/// A kernel of a program with all parameters of a launch.
pub struct KernelLaunch {
    program: Arc<Program>,
    name: String,
    bindings: Vec<Binding>,
    range: NdRange,
    options: LaunchOptions,
    timed: bool,
}

impl KernelLaunch {
    /// Returns a launch of the kernel `name`.
    pub fn new(
        program: &Arc<Program>,
        name: &str,
        bindings: Vec<Binding>,
        range: NdRange,
        options: LaunchOptions,
    ) -> Self {
        Self { program: Arc::clone(program), name: name.into(), bindings, range, options, timed: false }
    }

    /// Enables counting, so that the launch takes time on the device clock even if the device does not count by default.
    #[must_use]
    pub fn timed(mut self, timed: bool) -> Self {
        self.timed = timed;
        self
    }

    fn args(&self) -> Vec<Arg<'_>> {
        self.bindings
            .iter()
            .map(|binding| match binding {
                Binding::Scalar(bytes) => Arg::Scalar(bytes),
                Binding::Local(bytes) => Arg::Local(*bytes),
                Binding::Image(image, access) => Arg::Image(*image, *access),
                Binding::Sampler(sampler) => Arg::Sampler(*sampler),
                Binding::Buffer { address, bytes, access } => {
                    Arg::Buffer { address: *address, bytes: *bytes, access: *access }
                }
                Binding::Indirect { address, bytes, access } => {
                    Arg::Indirect { address: *address, bytes: *bytes, access: *access }
                }
            })
            .collect()
    }
}

impl Work for KernelLaunch {
    fn name(&self) -> &str {
        &self.name
    }

    fn timed(&self) -> bool {
        self.timed
    }

    fn origin(&self) -> Origin {
        Origin { program: self.program.number(), global: self.range.global, local: self.range.local }
    }

    fn sources(&self) -> Vec<(String, String)> {
        let files = self.program.hir().sources.files();
        files.map(|(name, text)| (name.to_string(), text.to_string())).collect()
    }

    fn signature(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.program.number().hash(&mut hash);
        self.name.hash(&mut hash);
        self.range.global.hash(&mut hash);
        self.range.local.hash(&mut hash);
        for binding in &self.bindings {
            match binding {
                // The address of a buffer does not matter, but its size may.
                Binding::Buffer { bytes, .. } | Binding::Indirect { bytes, .. } => bytes.hash(&mut hash),
                Binding::Scalar(bytes) => bytes.hash(&mut hash),
                Binding::Local(bytes) => bytes.hash(&mut hash),
                Binding::Image(image, _) => Image { address: 0, ..*image }.hash(&mut hash),
                Binding::Sampler(sampler) => sampler.hash(&mut hash),
            }
        }
        hash.finish()
    }

    fn addresses(&self) -> Vec<u64> {
        let address = |binding: &Binding| match binding {
            Binding::Buffer { address, .. } | Binding::Indirect { address, .. } => Some(*address),
            Binding::Image(image, _) => Some(image.address),
            Binding::Scalar(_) | Binding::Local(_) | Binding::Sampler(_) => None,
        };
        self.bindings.iter().filter_map(address).collect()
    }

    fn check_resources(&self, on: &Profile) -> Result<(), String> {
        let limit = on.local.group_bytes;
        // Arguments that do not match the kernel are an error of the launch itself.
        let Some(kernel) = self.program.kernel(&self.name) else { return Ok(()) };
        let own = kernel.locals.iter().map(|l| (format!("`{}` {}", l.name, l.bytes), l.bytes, Some(l.span)));
        let given = self.bindings.iter().zip(&kernel.args).enumerate().filter_map(|(at, (binding, arg))| {
            let Binding::Local(bytes) = binding else { return None };
            Some((format!("argument {at} `{}` {bytes}", arg.name), *bytes as u64, None))
        });
        let mut parts: Vec<_> = own.chain(given).collect();
        let total =
            parts.iter().fold(0u64, |sum, (_, bytes, _)| sum.saturating_add(bytes.next_multiple_of(8)));
        if total <= limit {
            return Ok(());
        }
        parts.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
        let named: Vec<_> = parts.iter().take(MAX_NAMED_VARIABLES).map(|(text, ..)| text.as_str()).collect();
        let rest = if parts.len() > MAX_NAMED_VARIABLES { ", …" } else { "" };
        let text = format!(
            "a work-group of `{}` takes {total} bytes of local memory ({}{rest}), {} has {limit}",
            self.name,
            named.join(", "),
            on.name
        );
        Err(match parts.first() {
            Some((_, _, Some(span))) => self.program.message(*span, "error", &text).trim_end().to_owned(),
            _ => text,
        })
    }

    fn run(&self, memory: &Memory, count: bool) -> Result<Done, Failure> {
        let options = LaunchOptions { counters: count, ..self.options.clone() };
        match self.program.launch(memory, &self.name, &self.args(), self.range, &options) {
            Ok(outcome) => Ok(Done {
                counters: count.then_some(outcome.counters),
                findings: outcome.findings,
                printed: outcome.printf,
            }),
            Err(LaunchError::Stopped(why)) => Err(Failure::Endless(why)),
            Err(e) => Err(Failure::Trap(e.to_string())),
        }
    }
}
