//! Inputs of a build in addition to its source: options, files for `#include`, the device's capabilities.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Files that `#include` finds.
#[derive(Clone, Debug, Default)]
pub struct Includes {
    files: HashMap<String, String>,
    directories: Vec<String>,
    from_disk: bool,
    /// Files read from disk, by path. Clones of one list share it.
    read: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Includes {
    /// No files.
    pub fn none() -> Self {
        Self::default()
    }

    /// Also allows files on disk, by the given path or below a `-I` directory.
    pub fn from_disk() -> Self {
        Self { from_disk: true, ..Self::default() }
    }

    /// Adds a source under the name that `#include` uses.
    pub fn with(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.into(), text.into());
        self
    }

    /// Returns the list with the directories of `-I`.
    pub(crate) fn with_directories(&self, directories: &[String]) -> Self {
        Self { directories: directories.to_vec(), ..self.clone() }
    }

    /// Returns path and content of a file. `beside` is the path of a file whose folder is searched first.
    pub(crate) fn find(&self, name: &str, beside: Option<&str>) -> Option<(String, String)> {
        let folder = beside.and_then(|path| path.rsplit_once(['/', '\\'])).map(|(folder, _)| folder);
        let near = folder.filter(|_| !name.starts_with('/')).map(|folder| format!("{folder}/{name}"));
        let inside = self.directories.iter().map(|d| format!("{}/{name}", d.trim_end_matches('/')));
        near.into_iter().chain([name.to_string()]).chain(inside).find_map(|path| {
            let given = self.files.get(&path).cloned();
            let text = given.or_else(|| self.read_file(&path))?;
            Some((path, text))
        })
    }

    fn read_file(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(path).ok().filter(|_| self.from_disk)?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(path.into(), text.clone());
        Some(text)
    }

    /// Returns paths and contents of the files that builds with this list have read from disk so far.
    pub fn read_from_disk(&self) -> Vec<(String, String)> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.iter().map(|(path, text)| (path.clone(), text.clone())).collect()
    }
}

/// Capabilities of the device for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Extensions; each defines a macro, and some enable types or functions.
    pub extensions: Vec<String>,
}

impl Default for Target {
    fn default() -> Self {
        let names = [
            "cl_khr_3d_image_writes",
            "cl_khr_byte_addressable_store",
            "cl_khr_fp16",
            "cl_khr_fp64",
            "cl_khr_global_int32_base_atomics",
            "cl_khr_global_int32_extended_atomics",
            "cl_khr_int64_base_atomics",
            "cl_khr_int64_extended_atomics",
            "cl_khr_local_int32_base_atomics",
            "cl_khr_local_int32_extended_atomics",
            "cl_khr_subgroups",
            "cl_khr_subgroup_ballot",
            "cl_khr_subgroup_shuffle",
            "cl_khr_subgroup_shuffle_relative",
        ];
        Self { extensions: names.map(String::from).to_vec() }
    }
}

/// Parsed build options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// `-D` and `-U` in order: the name with its value, or `None` to undefine.
    pub defines: Vec<(String, Option<String>)>,
    /// `-I`.
    pub directories: Vec<String>,
    /// `-cl-std`: 100, 110, 120, 200 or 300.
    pub version: u32,
    /// Whether warnings are on (`-Wall` or similar, without `-w`).
    pub warn: bool,
    /// `-Werror`.
    pub warnings_are_errors: bool,
    /// `-cl-fast-relaxed-math`.
    pub fast_relaxed_math: bool,
    /// `-cl-single-precision-constant`.
    pub single_precision_constant: bool,
    /// Options of one vendor's compiler, which are ignored here.
    pub foreign: Vec<String>,
}

/// Prefixes of options that only one vendor's compiler accepts.
const VENDORS: [&str; 9] =
    ["-cl-nv-", "-cl-intel-", "-cl-amd-", "-cl-arm-", "-cl-qcom-", "-cl-img-", "-cl-pocl-", "-qcom-", "-ze-"];
/// Those whose value may be a separate word.
const WITH_VALUE: [&str; 3] = ["-cl-nv-maxrregcount", "-cl-nv-opt-level", "-cl-nv-arch"];

/// Options without effect on a device that neither reorders nor approximates.
const IGNORED: [&str; 13] = [
    "-cl-opt-disable",
    "-cl-mad-enable",
    "-cl-no-signed-zeros",
    "-cl-unsafe-math-optimizations",
    "-cl-finite-math-only",
    "-cl-denorms-are-zero",
    "-cl-fp32-correctly-rounded-divide-sqrt",
    "-cl-strict-aliasing",
    "-cl-uniform-work-group-size",
    "-cl-no-subgroup-ifp",
    "-cl-kernel-arg-info",
    "-g",
    "-w",
];

impl BuildOptions {
    /// Parses options in the format of `clBuildProgram`.
    ///
    /// # Errors
    /// A message about the first option that is unknown or incomplete.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self { version: 120, ..Self::default() };
        let mut words = split(text)?.into_iter().peekable();
        while let Some(word) = words.next() {
            let mut value = |flag: &str| {
                let rest = word[flag.len()..].to_string();
                if rest.is_empty() {
                    words.next().ok_or(format!("argument to '{flag}' is missing"))
                } else {
                    Ok(rest)
                }
            };
            if word.starts_with("-D") {
                let define = value("-D")?;
                let (name, text) = define.split_once('=').unwrap_or((&define, "1"));
                options.defines.push((name.into(), Some(text.into())));
            } else if word.starts_with("-U") {
                options.defines.push((value("-U")?, None));
            } else if word.starts_with("-I") {
                options.directories.push(value("-I")?);
            } else if let Some(version) = word.strip_prefix("-cl-std=") {
                options.version = version_of(version)?;
            } else if VENDORS.iter().any(|v| word.starts_with(v)) {
                let value =
                    words.next_if(|next| WITH_VALUE.contains(&word.as_str()) && !next.starts_with('-'));
                options.foreign.push(value.map_or(word.clone(), |v| format!("{word} {v}")));
            } else {
                options.flag(&word)?;
            }
        }
        Ok(options)
    }

    fn flag(&mut self, word: &str) -> Result<(), String> {
        match word {
            "-Werror" => (self.warn, self.warnings_are_errors) = (true, true),
            "-cl-fast-relaxed-math" => self.fast_relaxed_math = true,
            "-cl-single-precision-constant" => self.single_precision_constant = true,
            _ if IGNORED.contains(&word) || word.starts_with("-O") || word.starts_with("-f") => {}
            _ if word.starts_with("-W") => self.warn = true,
            _ => return Err(format!("unknown build option '{word}'")),
        }
        Ok(())
    }

    /// Returns `-D` and `-U` as lines of a program.
    pub(crate) fn define_text(&self) -> String {
        let line = |(name, value): &(String, Option<String>)| match value {
            Some(v) => format!("#define {} {}\n", name.replace('\n', " "), v.replace('\n', " ")),
            None => format!("#undef {}\n", name.replace('\n', " ")),
        };
        self.defines.iter().map(line).collect()
    }
}

fn version_of(text: &str) -> Result<u32, String> {
    match text {
        "CL1.0" | "CL" => Ok(100),
        "CL1.1" => Ok(110),
        "CL1.2" => Ok(120),
        "CL2.0" => Ok(200),
        "CL3.0" => Ok(300),
        _ => Err(format!(
            "unknown language version '{text}' in '-cl-std='; known: CL1.0, CL1.1, CL1.2, CL2.0, CL3.0"
        )),
    }
}

/// Splits at white space; quotes and backslashes work like in a shell.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) => word.get_or_insert_default().extend(chars.next()),
            (c, Some(q)) if c == q => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("unfinished quote in the build options".into());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, compile};

    #[test]
    fn a_file_is_looked_for_beside_the_one_that_includes_it() {
        let files = Includes::none()
            .with("lib/a.h", "#include \"b.h\"\n")
            .with("lib/b.h", "constant int b = 1;\n")
            .with("b.h", "#error the wrong one\n");
        let build = |text: &str, options: &str| {
            compile(&Source { name: "<source>", text }, options, &files).map(|_| ()).map_err(|e| e.log)
        };
        assert_eq!(build("#include \"lib/a.h\"\nkernel void k(global int *x) { x[0] = b; }", ""), Ok(()));
        assert_eq!(build("#include \"a.h\"\nkernel void k(global int *x) { x[0] = b; }", "-I lib"), Ok(()));
        assert!(
            build("#include <lib/a.h>\n#include <b.h>\n", "").is_err_and(|log| log.contains("the wrong one"))
        );
    }
}
