//! A kernel text and what can be chosen about it.

use crate::define::Value;
use netcl_device::Capabilities;
use serde::Serialize;

/// Prepended to every kernel text.
pub const PRELUDE: &str = concat!(crate::cl_file!("prelude.cl"), crate::cl_file!("prelude_reductions.cl"));

/// A tuned parameter: name and candidates, the default first. The candidate 0 of `VW` stands for the device's vector lanes.
pub type Space = &'static [(&'static str, &'static [i64])];

/// A second build of a program, from the source that a driver returns as the program's binary. The functions are not serialized: `code`
/// replaces them in the names of cached binaries.
#[derive(Clone, Copy, Serialize)]
pub struct Reload {
    /// What it is called where it cannot be pointed at.
    pub name: &'static str,
    /// Further options of the second build.
    pub options: &'static str,
    /// Source code of `patch` and `complaint`: the file that defines them.
    pub code: &'static str,
    /// The changed text.
    #[serde(skip)]
    pub patch: fn(&str) -> String,
    /// Why a build counts as failed though the driver took it, by its log.
    #[serde(skip)]
    pub complaint: fn(&str) -> Option<String>,
}

/// Among includes: the place of the texts that a define chooses ([`Kernel::choose`]).
pub const CHOSEN: &str = "/* the texts that a define chooses */\n";

/// Texts that a define of a launch chooses among.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    /// The define whose value has the names of the texts wanted.
    pub define: &'static str,
    /// Every text by its name.
    pub texts: fn() -> Vec<(&'static str, &'static str)>,
}

impl Choice {
    /// The texts that these defines name, in the order of the list.
    pub fn texts_of(&self, defines: &[(&'static str, Value)]) -> Vec<&'static str> {
        let value = defines.iter().find(|(name, _)| *name == self.define);
        let value = value.map_or_else(String::new, |(_, value)| value.to_string());
        let words: Vec<&str> = value.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        (self.texts)().into_iter().filter(|(name, _)| words.contains(name)).map(|(_, text)| text).collect()
    }
}

/// A kernel text, its tuned parameters and what it needs of a device.
pub struct Kernel {
    /// Name of the variant: what it assumes (`matmul_tile`, `matmul_vector`).
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
}

impl Kernel {
    /// A kernel of this name and text ([`cl_file!`](crate::cl_file) for that of a file) that runs anywhere and has nothing to tune.
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
        }
    }
    /// Texts placed between the prelude and this one.
    #[must_use]
    pub const fn include(mut self, includes: &'static [&'static str]) -> Self {
        self.includes = includes;
        self
    }
    /// A text that a function makes, placed between the includes and this one.
    #[must_use]
    pub const fn generate(mut self, text: fn() -> String) -> Self {
        self.generated = Some(text);
        self
    }
    /// Texts of which a program has those that the value of this define names: they replace [`CHOSEN`] among the includes.
    #[must_use]
    pub const fn choose(
        mut self,
        define: &'static str,
        texts: fn() -> Vec<(&'static str, &'static str)>,
    ) -> Self {
        self.choice = Some(Choice { define, texts });
        self
    }
    /// For instructions that a driver's compiler does not pass on: what it made of the text is changed and loaded back, as
    /// [`vendors::nvidia::SM90A`](crate::vendors::nvidia::SM90A) does.
    #[must_use]
    pub const fn reload(mut self, reload: &'static Reload) -> Self {
        self.reload = Some(reload);
        self
    }
    /// Tuned parameters; they become defines of the same name. `WG` is also the work-group size of [`Launch::groups`](crate::Launch::groups).
    #[must_use]
    pub const fn tune(mut self, space: Space) -> Self {
        self.space = space;
        self
    }
    /// Tuned parameters on CPUs, where they differ.
    #[must_use]
    pub const fn tune_cpu(mut self, space: Space) -> Self {
        self.cpu_space = Some(space);
        self
    }
    /// What a device needs for this variant.
    #[must_use]
    pub const fn requires(mut self, requires: fn(&Capabilities) -> bool) -> Self {
        self.requires = requires;
        self
    }
    /// Build options of this text on a device, such as a register limit.
    #[must_use]
    pub const fn options(mut self, options: fn(&Capabilities) -> &'static str) -> Self {
        self.options = options;
        self
    }

    /// Whether this variant can run on a device at all.
    pub fn runs_on(&self, device: &Capabilities) -> bool {
        (self.requires)(device)
    }
    /// Changes when the code does, comments aside: what was found about one text says nothing about the next.
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
    /// The search space on a device: each parameter with its candidates, the default first.
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

/// Work-group sizes that a device takes; where none does, the largest power of two that it takes.
fn fitting(sizes: Vec<i64>, limit: usize) -> Vec<i64> {
    let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
    let fit: Vec<i64> = sizes.into_iter().filter(|wg| *wg <= limit).collect();
    if fit.is_empty() { vec![1 << limit.ilog2()] } else { fit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elsewhere 0 is a number: off, for a parameter that is on or off.
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
