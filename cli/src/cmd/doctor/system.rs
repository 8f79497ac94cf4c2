//! The parts of the system that OpenCL depends on: loader, drivers, device files, groups, environment.

use super::packages::{Need, command};
use netcl::device::{LoaderReport, report};
use netcl::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Environment variables that change what OpenCL finds.
const VARIABLES: [&str; 10] = [
    "OCL_ICD_VENDORS",
    "OCL_ICD_FILENAMES",
    "OPENCL_VENDOR_PATH",
    "RUSTICL_ENABLE",
    "POCL_DEBUG",
    "POCL_DEVICES",
    "LD_LIBRARY_PATH",
    "NETCL_OPENCL_LIBRARY",
    "NETCL_NO_LOADER",
    "NETCL_DISABLE",
];

/// A device file.
#[derive(Debug, Serialize)]
pub struct Node {
    pub path: PathBuf,
    /// Why the file cannot be opened for reading and writing; `None` if it can.
    pub error: Option<String>,
}

/// The parts of the system that OpenCL depends on.
#[derive(Debug, Serialize)]
pub struct System {
    pub loader: LoaderReport,
    /// Variables that are set.
    pub environment: BTreeMap<&'static str, String>,
    pub nodes: Vec<Node>,
    /// Groups that usually own device files, and whether this process is a member.
    pub groups: BTreeMap<String, bool>,
    /// Vendors of the GPUs on the bus.
    pub gpus: Vec<&'static str>,
    #[serde(skip)]
    os_release: String,
}

impl System {
    /// Inspects the system; never fails.
    pub fn look(settings: &Settings) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |name: &&'static str| std::env::var(name).ok().map(|v| (*name, v));
        Self {
            loader: report(settings),
            environment: VARIABLES.iter().filter_map(value).collect(),
            nodes: nodes(),
            groups: groups(&read("/etc/group"), &read("/proc/self/status")),
            gpus: gpus(Path::new("/sys/class/drm")),
            os_release: read("/etc/os-release"),
        }
    }

    /// Returns advice, most important first. `platforms` are the platforms found.
    pub fn advice(&self, platforms: &[String]) -> Vec<String> {
        let mut out = Vec::new();
        let mut needs = Vec::new();
        let usable = self.loader.icds.iter().filter(|(_, _, error)| error.is_none()).count();
        if let (Some(name), None) = (self.environment.get("NETCL_OPENCL_LIBRARY"), &self.loader.loader) {
            out.push(format!(
                "NETCL_OPENCL_LIBRARY names {name}, which is not an OpenCL library; unset it to search for one"
            ));
        } else if self.loader.loader.is_none() && platforms.is_empty() {
            needs.push(Need::Loader);
        }
        let has = |slug: &str| platforms.iter().any(|p| p.as_str() == slug);
        for (vendor, need, slugs) in [
            ("AMD", Need::Amd, &["amd", "rusticl", "clover"][..]),
            ("Intel", Need::Intel, &["intel", "rusticl"][..]),
            ("NVIDIA", Need::Nvidia, &["nvidia", "rusticl"][..]),
        ] {
            if self.gpus.contains(&vendor) && !slugs.iter().any(|s| has(s)) {
                needs.push(need);
            }
        }
        if platforms.is_empty() && usable == 0 && needs.iter().all(|n| *n == Need::Loader) {
            needs.push(Need::Cpu);
        }
        if !needs.is_empty() {
            out.push(match command(&self.os_release, &needs) {
                Some(command) => format!("install the missing packages: {command}"),
                None => format!("install the missing components: {}", names(&needs)),
            });
        }
        for (file, library, error) in &self.loader.icds {
            if let Some(error) = error {
                out.push(format!("{} names {library}, which does not load: {error}", file.display()));
            }
        }
        out.extend(self.node_advice());
        if has("rusticl") || self.environment.contains_key("RUSTICL_ENABLE") || !self.gpus.contains(&"AMD") {
            return out;
        }
        out.push("Mesa's rusticl shows AMD GPUs only with RUSTICL_ENABLE=radeonsi in the environment".into());
        out
    }

    fn node_advice(&self) -> Option<String> {
        let closed: Vec<String> = self
            .nodes
            .iter()
            .filter(|n| n.error.as_ref().is_some_and(|e| e.contains("denied")))
            .map(|n| n.path.display().to_string())
            .collect();
        if closed.is_empty() {
            return None;
        }
        let missing: Vec<&str> =
            self.groups.iter().filter(|(_, member)| !**member).map(|(g, _)| &**g).collect();
        let files = closed.join(", ");
        Some(if missing.is_empty() {
            format!("{files}: permission denied for this user")
        } else {
            let list = missing.join(",");
            format!(
                "{files}: permission denied for this user; run `sudo usermod -aG {list} $USER` and log in again"
            )
        })
    }
}

fn names(needs: &[Need]) -> String {
    let name = |n: &Need| match n {
        Need::Loader => "the OpenCL ICD loader (libOpenCL.so.1)",
        Need::Cpu => "PoCL, which runs OpenCL on the CPU",
        Need::Amd => "an OpenCL driver for AMD GPUs (ROCm or Mesa)",
        Need::Intel => "Intel's compute runtime",
        Need::Nvidia => "NVIDIA's driver with its OpenCL library",
    };
    needs.iter().map(name).collect::<Vec<_>>().join(" and ")
}

/// Returns the device files of GPUs, and whether this process may use them.
fn nodes() -> Vec<Node> {
    let list = |folder: &str, keep: fn(&str) -> bool| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> =
            entries.filter(|e| keep(&e.file_name().to_string_lossy())).map(|e| e.path()).collect();
        paths.sort();
        paths
    };
    let mut paths = list("/dev/dri", |n| n.starts_with("render"));
    paths.extend(list("/dev", |n| n == "kfd" || n.starts_with("nvidia") && !n.contains("caps")));
    paths
        .into_iter()
        .filter(|p| !p.is_dir())
        .map(|path| {
            let opened = std::fs::File::options().read(true).write(true).open(&path);
            Node { error: opened.err().map(|e| e.to_string()), path }
        })
        .collect()
}

/// Returns which of `render` and `video` exist in /etc/group, and whether /proc/self/status lists them.
fn groups(etc_group: &str, status: &str) -> BTreeMap<String, bool> {
    let mine: Vec<&str> = status
        .lines()
        .filter_map(|l| l.strip_prefix("Groups:").or_else(|| l.strip_prefix("Gid:")))
        .flat_map(str::split_whitespace)
        .collect();
    let root = status
        .lines()
        .any(|l| l.strip_prefix("Uid:").is_some_and(|l| l.split_whitespace().nth(1) == Some("0")));
    let mut out = BTreeMap::new();
    for line in etc_group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [name @ ("render" | "video"), _, id, ..] = fields[..] {
            out.insert(name.to_owned(), root || mine.contains(&id));
        }
    }
    out
}

/// Returns the vendors of the GPUs in /sys.
fn gpus(drm: &Path) -> Vec<&'static str> {
    let cards = std::fs::read_dir(drm).into_iter().flatten().flatten();
    let mut out: Vec<&'static str> = cards
        .filter_map(|card| std::fs::read_to_string(card.path().join("device/vendor")).ok())
        .filter_map(|id| match id.trim() {
            "0x1002" => Some("AMD"),
            "0x8086" => Some("Intel"),
            "0x10de" => Some("NVIDIA"),
            _ => None,
        })
        .collect();
    if Path::new("/dev/nvidiactl").exists() {
        out.push("NVIDIA");
    }
    out.sort_unstable();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(os_release: &str, gpus: &[&'static str]) -> System {
        System {
            loader: LoaderReport::default(),
            environment: BTreeMap::new(),
            nodes: Vec::new(),
            groups: BTreeMap::new(),
            gpus: gpus.to_vec(),
            os_release: os_release.into(),
        }
    }

    #[test]
    fn an_empty_machine_is_told_the_one_command() {
        let advice = system("ID=debian\n", &[]).advice(&[]);
        assert_eq!(
            advice,
            ["install the missing packages: apt-get install ocl-icd-libopencl1 pocl-opencl-icd"]
        );
        let advice = system("ID=unknown\n", &[]).advice(&[]);
        assert!(advice[0].contains("PoCL, which runs OpenCL on the CPU"), "{advice:?}");
    }

    #[test]
    fn a_gpu_without_driver_is_named() {
        let advice = system("ID=arch\n", &["Intel"]).advice(&["pocl".into()]);
        assert_eq!(advice, ["install the missing packages: pacman -S intel-compute-runtime"]);
        assert!(system("ID=arch\n", &["Intel"]).advice(&["intel".into()]).is_empty());
        let advice = system("ID=debian\n", &["AMD"]).advice(&["amd".into()]);
        assert!(advice.len() == 1 && advice[0].contains("RUSTICL_ENABLE=radeonsi"), "{advice:?}");
    }

    #[test]
    fn closed_device_files_lead_to_the_group() {
        let mut system = system("", &[]);
        system.nodes.push(Node {
            path: "/dev/dri/renderD128".into(),
            error: Some("Permission denied (os error 13)".into()),
        });
        system.groups.insert("render".into(), false);
        let advice = system.advice(&["pocl".into()]);
        assert!(
            advice[0].contains("/dev/dri/renderD128") && advice[0].contains("usermod -aG render"),
            "{advice:?}"
        );
    }

    #[test]
    fn groups_are_looked_up_by_number() {
        let etc = "root:x:0:\nvideo:x:44:ann\nrender:x:105:\n";
        let status = "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t44 1000\n";
        let found = groups(etc, status);
        assert_eq!((found["video"], found["render"]), (true, false));
    }
}
