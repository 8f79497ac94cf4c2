//! A kernel source and its tunable parameters.

use crate::define::Value;
use netcl_device::Capabilities;
use serde::Serialize;

/// Source prepended to every kernel source.
pub const PRELUDE: &str = concat!(crate::cl_file!("prelude.cl"), crate::cl_file!("prelude_reductions.cl"));

/// Tuned parameters: name and candidates, the default first. For `VW`, the candidate 0 means the device's vector lanes.
pub type Space = &'static [(&'static str, &'static [i64])];

/// A second build of a program, from the source that a driver returns as the program's binary. The functions are not serialized: `code` represents
/// them in the names of cached binaries.
#[derive(Clone, Copy, Serialize)]
pub struct Reload {
    /// Name for messages and for other processes, which cannot receive a pointer.
    pub name: &'static str,
    /// Additional options of the second build.
    pub options: &'static str,
    /// Source code of `patch` and `complaint`: the file that defines them.
    pub code: &'static str,
    /// Returns the changed source.
    #[serde(skip)]
    pub patch: fn(&str) -> String,
    /// Returns from the log why a build counts as failed although the driver accepted it.
    #[serde(skip)]
    pub complaint: fn(&str) -> Option<String>,
}

/// Placeholder in the includes for the sources that a define chooses ([`Kernel::choose`]).
pub const CHOSEN: &str = "/* the texts that a define chooses */\n";

/// Sources that a define of a launch selects from.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    /// The define whose value lists the names of the selected sources.
    pub define: &'static str,
    /// All sources by name.
    pub texts: fn() -> Vec<(&'static str, &'static str)>,
}

impl Choice {
    /// Returns the sources that these defines name, in the order of the list.
    pub fn texts_of(&self, defines: &[(&'static str, Value)]) -> Vec<&'static str> {
        let value = defines.iter().find(|(name, _)| *name == self.define);
        let value = value.map_or_else(String::new, |(_, value)| value.to_string());
        let words: Vec<&str> = value.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        (self.texts)().into_iter().filter(|(name, _)| words.contains(name)).map(|(_, text)| text).collect()
    }
}

/// A kernel source, its tuned parameters and its device requirements.
pub struct Kernel {
    /// Name of the variant. It states the variant's assumption (`matmul_tile`, `matmul_vector`).
    pub name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) includes: &'static [&'static str],
    pub(crate) space: Space,
    pub(crate) cpu_space: Option<Space>,
    pub(crate) requires: fn(&Capabilities) -> bool,
    pub(crate) options: fn(&Capabilities) -> &'static str,
    pub(crate) generated: Option<fn() -> String>,
    pub(crate) choice: Option<Choice>,
    pub(crate) reload: Option<&'static Reload>,
    pub(crate) is_hot: bool,
}

impl Kernel {
    /// Returns a kernel with this name and source ([`cl_file!`](crate::cl_file) for a file) that runs on any device and does not have tuned
    /// parameters.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self {
            name,
            source,
            includes: &[],
            space: &[],
            cpu_space: None,
            requires: |_| true,
            options: |_| "",
            generated: None,
            choice: None,
            reload: None,
            is_hot: false,
        }
    }
    /// Sets sources to insert between the prelude and this one.
    #[must_use]
    pub const fn include(mut self, includes: &'static [&'static str]) -> Self {
        self.includes = includes;
        self
    }
    /// Sets a generated source to insert between the includes and this one.
    #[must_use]
    pub const fn generate(mut self, text: fn() -> String) -> Self {
        self.generated = Some(text);
        self
    }
    /// Sets sources that a define selects from: the selected ones replace [`CHOSEN`] in the includes.
    #[must_use]
    pub const fn choose(
        mut self,
        define: &'static str,
        texts: fn() -> Vec<(&'static str, &'static str)>,
    ) -> Self {
        self.choice = Some(Choice { define, texts });
        self
    }
    /// Sets a second build for instructions that a driver's compiler does not support. The compiler's output is patched and loaded again, as in
    /// [`vendors::nvidia::SM90A`](crate::vendors::nvidia::SM90A).
    #[must_use]
    pub const fn reload(mut self, reload: &'static Reload) -> Self {
        self.reload = Some(reload);
        self
    }
    /// Marks a kernel that takes most of the time of a step. It is compiled with optimizations also if [`Settings::quick_builds`] disables them.
    ///
    /// [`Settings::quick_builds`]: netcl_device::Settings::quick_builds
    #[must_use]
    pub const fn hot(mut self) -> Self {
        self.is_hot = true;
        self
    }
    /// Sets the tuned parameters; they become defines of the same name. `WG` is also the work-group size of
    /// [`Launch::groups`](crate::Launch::groups).
    #[must_use]
    pub const fn tune(mut self, space: Space) -> Self {
        self.space = space;
        self
    }
    /// Sets the tuned parameters on CPUs if they differ.
    #[must_use]
    pub const fn tune_cpu(mut self, space: Space) -> Self {
        self.cpu_space = Some(space);
        self
    }
    /// Sets the device requirements of this variant.
    #[must_use]
    pub const fn requires(mut self, requires: fn(&Capabilities) -> bool) -> Self {
        self.requires = requires;
        self
    }
    /// Sets build options of this source for a device, such as a register limit.
    #[must_use]
    pub const fn options(mut self, options: fn(&Capabilities) -> &'static str) -> Self {
        self.options = options;
        self
    }

    /// Returns true if this variant can run on a device.
    pub fn runs_on(&self, device: &Capabilities) -> bool {
        (self.requires)(device)
    }
    /// Returns a hash that changes when the code does, ignoring comments. Results for one source do not apply to a changed one.
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for text in [PRELUDE, self.source].iter().chain(self.includes) {
            hash.update(crate::text::code(text).as_bytes());
        }
        if let Some(text) = self.generated {
            hash.update(crate::text::code(&text()).as_bytes());
        }
        for (_, text) in self.choice.map_or_else(Vec::new, |choice| (choice.texts)()) {
            hash.update(crate::text::code(text).as_bytes());
        }
        hash.finalize().to_hex()[..16].into()
    }
    /// Returns the search space on a device: each parameter with its candidates, the default first.
    pub fn space_on(&self, device: &Capabilities) -> Vec<(&'static str, Vec<i64>)> {
        let space = if device.is_cpu() { self.cpu_space.unwrap_or(self.space) } else { self.space };
        let lanes = i64::try_from(device.vector_lanes()).unwrap_or(4);
        space
            .iter()
            .map(|(n, vs)| {
                let mut values: Vec<i64> = Vec::with_capacity(vs.len());
                for value in vs.iter().map(|v| if *v == 0 && *n == "VW" { lanes } else { *v }) {
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                (*n, if *n == "WG" { fitting(values, device.max_group) } else { values })
            })
            .collect()
    }
}

/// Returns the work-group sizes that a device supports. If it supports none of them, returns the largest power of two that it supports.
fn fitting(sizes: Vec<i64>, limit: usize) -> Vec<i64> {
    let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
    let fit: Vec<i64> = sizes.into_iter().filter(|wg| *wg <= limit).collect();
    if fit.is_empty() { vec![1 << limit.ilog2()] } else { fit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only 0 of VW stands for the device's vector width. For other parameters, 0 is a number: off, for an on/off parameter.
    #[test]
    fn only_the_vector_width_follows_the_device() {
        static KERNEL: Kernel = Kernel::new("k", "").tune(&[("VW", &[0, 2]), ("ALIGNED", &[1, 0])]);
        let device = netcl_device::Device::open("sim", &netcl_device::Settings::default()).unwrap();
        let device = device.capabilities();
        let lanes = i64::try_from(device.vector_lanes()).unwrap();
        assert_eq!(KERNEL.space_on(device), [("VW", vec![lanes, 2]), ("ALIGNED", vec![1, 0])]);
    }

    #[test]
    fn work_groups_fit_the_device() {
        assert_eq!(fitting(vec![128, 64, 256], 1024), [128, 64, 256]);
        assert_eq!(fitting(vec![128, 64, 256], 100), [64]);
        assert_eq!(fitting(vec![128, 64, 256], 33), [32]);
        assert_eq!(fitting(vec![128], 1), [1]);
    }
}
