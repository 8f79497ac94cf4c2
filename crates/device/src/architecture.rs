//! Detects the architecture of a device from what its driver reports.
//!
//! Every vendor reports it in a different place:
//! - NVIDIA answers a query with the compute capability.
//! - AMD names the device after its instruction set (`gfx90a:sramecc+:xnack-`). Mesa writes it in parentheses.
//! - Intel answers a query with an IP version.
//! - Qualcomm and Arm put a model number into the name or the version.
//!
//! An unrecognized device is [`Architecture::Unknown`] and runs the kernels that run on any device.

use serde::Serialize;

/// Generations of Intel GPUs, named after Intel's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum IntelGeneration {
    /// HD, UHD and Iris Graphics of the 6th to 10th Core generation (Skylake to Comet Lake).
    #[serde(rename = "Gen9")]
    Gen9,
    /// Ice Lake.
    #[serde(rename = "Gen11")]
    Gen11,
    /// Iris Xe and UHD 700: Tiger Lake to Raptor Lake, DG1.
    #[serde(rename = "Xe-LP")]
    XeLp,
    /// Arc A and Data Center GPU Flex.
    #[serde(rename = "Xe-HPG")]
    XeHpg,
    /// Data Center GPU Max.
    #[serde(rename = "Xe-HPC")]
    XeHpc,
    /// Meteor Lake and Arrow Lake.
    #[serde(rename = "Xe-LPG")]
    XeLpg,
    /// Arc B and Lunar Lake.
    #[serde(rename = "Xe2")]
    Xe2,
    /// Panther Lake.
    #[serde(rename = "Xe3")]
    Xe3,
}

/// Architecture of a device, in JSON: `{"family": "nvidia", "sm": 90}`, `{"family": "amd", "gfx": "gfx90a"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "family", rename_all = "lowercase")]
pub enum Architecture {
    /// NVIDIA: compute capability as major × 10 + minor, `sm_90`.
    Nvidia {
        /// 90 for `sm_90`.
        sm: u32,
    },
    /// AMD: the instruction set as LLVM names it, `gfx90a`.
    Amd {
        /// `gfx` and the number, without features.
        gfx: String,
    },
    /// Intel's GPUs.
    Intel {
        /// Generation.
        generation: IntelGeneration,
    },
    /// Qualcomm's GPUs.
    Adreno {
        /// `740`, `X1-85`; empty if the driver does not report it.
        model: String,
    },
    /// Arm's GPUs.
    Mali {
        /// `G710`, `T860`; `Immortalis-G715` for GPUs with that name.
        model: String,
    },
    /// A host processor. Its vector width is in [`Capabilities::float_lanes`](crate::Capabilities::float_lanes).
    Processor,
    /// Any other architecture, a driver that does not report one, or a simulated device.
    #[default]
    Unknown,
}

/// The part of a driver's report that identifies the architecture.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reported<'a> {
    /// `CL_DEVICE_NAME`.
    pub name: &'a str,
    /// `CL_DEVICE_VENDOR`.
    pub vendor: &'a str,
    /// `CL_DEVICE_VERSION`.
    pub version: &'a str,
    /// Whether the device is a host processor.
    pub processor: bool,
    /// Major and minor compute capability, from `cl_nv_device_attribute_query`.
    pub compute_capability: Option<[u32; 2]>,
    /// `CL_DEVICE_IP_VERSION_INTEL`, from `cl_intel_device_attribute_query`.
    pub intel_ip: Option<u32>,
}

/// Code names that Mesa shows for AMD GPUs instead of a `gfx` number.
const AMD_CODE_NAMES: [(&str, &str); 14] = [
    ("polaris10", "gfx803"),
    ("polaris11", "gfx803"),
    ("ellesmere", "gfx803"),
    ("vega10", "gfx900"),
    ("vega20", "gfx906"),
    ("navi10", "gfx1010"),
    ("navi14", "gfx1012"),
    ("navi21", "gfx1030"),
    ("navi22", "gfx1031"),
    ("navi23", "gfx1032"),
    ("navi24", "gfx1034"),
    ("navi31", "gfx1100"),
    ("navi32", "gfx1101"),
    ("navi33", "gfx1102"),
];

/// Parts of Intel GPU names, in lower case, for drivers without an IP version. The first match wins.
const INTEL_NAMES: [(&str, IntelGeneration); 15] = [
    ("data center gpu max", IntelGeneration::XeHpc),
    ("data center gpu flex", IntelGeneration::XeHpg),
    ("arc a", IntelGeneration::XeHpg),
    ("arc b", IntelGeneration::Xe2),
    ("arc graphics", IntelGeneration::XeLpg),
    ("iris xe", IntelGeneration::XeLp),
    ("uhd graphics 7", IntelGeneration::XeLp),
    ("iris plus graphics 6", IntelGeneration::Gen9),
    ("iris plus graphics", IntelGeneration::Gen11),
    ("iris graphics 5", IntelGeneration::Gen9),
    ("uhd graphics 6", IntelGeneration::Gen9),
    ("hd graphics 6", IntelGeneration::Gen9),
    ("hd graphics 5", IntelGeneration::Gen9),
    ("gen9 ", IntelGeneration::Gen9),
    ("gen11 ", IntelGeneration::Gen11),
];

impl Architecture {
    /// Returns the architecture of a device with this report.
    pub(crate) fn of(reported: &Reported<'_>) -> Self {
        if reported.processor {
            return Self::Processor;
        }
        if let Some([major, minor]) = reported.compute_capability.filter(|[major, _]| *major > 0) {
            return Self::Nvidia { sm: major * 10 + minor };
        }
        let name = plain(reported.name);
        let vendor = plain(reported.vendor);
        let version = plain(reported.version);
        let says = |word: &str| [&name, &vendor, &version].iter().any(|text| text.contains(word));
        if says("adreno") || vendor.contains("qualcomm") {
            return Self::Adreno { model: adreno(&name).or_else(|| adreno(&version)).unwrap_or_default() };
        }
        if name.contains("mali") || name.contains("immortalis") {
            return Self::Mali { model: mali(&name) };
        }
        if let Some(gfx) = gfx(&name) {
            return Self::Amd { gfx };
        }
        if vendor.contains("intel") || name.starts_with("intel") {
            let known = reported.intel_ip.and_then(intel_ip);
            let named = || INTEL_NAMES.iter().find(|(part, _)| name.contains(part)).map(|(_, g)| *g);
            return known.or_else(named).map_or(Self::Unknown, |generation| Self::Intel { generation });
        }
        Self::Unknown
    }

    /// Returns NVIDIA's compute capability, major × 10 + minor; `None` for other vendors. `sm() >= Some(80)` is true only on NVIDIA, from `sm_80` up.
    pub fn sm(&self) -> Option<u32> {
        match self {
            Self::Nvidia { sm } => Some(*sm),
            _ => None,
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = |f: &mut std::fmt::Formatter<'_>, family: &str, model: &str| {
            let gap = if model.is_empty() { "" } else { " " };
            write!(f, "{family}{gap}{model}")
        };
        match self {
            Self::Nvidia { sm } => write!(f, "sm_{sm}"),
            Self::Amd { gfx } => f.write_str(gfx),
            Self::Intel { generation } => f.write_str(match generation {
                IntelGeneration::Gen9 => "Gen9",
                IntelGeneration::Gen11 => "Gen11",
                IntelGeneration::XeLp => "Xe-LP",
                IntelGeneration::XeHpg => "Xe-HPG",
                IntelGeneration::XeHpc => "Xe-HPC",
                IntelGeneration::XeLpg => "Xe-LPG",
                IntelGeneration::Xe2 => "Xe2",
                IntelGeneration::Xe3 => "Xe3",
            }),
            Self::Adreno { model } => named(f, "Adreno", model),
            Self::Mali { model } if model.starts_with("Immortalis") => f.write_str(model),
            Self::Mali { model } => named(f, "Mali", model),
            Self::Processor => f.write_str("processor"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// Returns the text in lower case, without trademark signs.
fn plain(text: &str) -> String {
    text.to_lowercase().replace("(r)", "").replace("(tm)", "").replace(['®', '™'], "")
}

/// Returns the words of a text: runs of letters, digits and dashes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|w| !w.is_empty())
}

/// Returns the `gfx` number in an AMD device's name, or the number of its code name.
fn gfx(name: &str) -> Option<String> {
    let number = |word: &str| {
        let digits = word.strip_prefix("gfx")?;
        let hex = (3..=4).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit());
        hex.then(|| word.to_owned())
    };
    let code_name = || {
        let known = words(name).find_map(|w| AMD_CODE_NAMES.iter().find(|(code, _)| *code == w));
        known.map(|(_, gfx)| (*gfx).to_owned())
    };
    // A colon precedes the features and an underscore precedes the chip stepping: both end a word.
    words(name).find_map(number).or_else(code_name)
}

/// Returns the word after `adreno` that contains a digit.
fn adreno(text: &str) -> Option<String> {
    let after = words(text).skip_while(|w| *w != "adreno").nth(1)?;
    after.chars().any(|c| c.is_ascii_digit()).then(|| after.to_uppercase())
}

/// Returns the letter and number of the series: `mali-g710 mc10`, `mali g52`, `immortalis-g715`.
fn mali(name: &str) -> String {
    let models = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| {
        let mut chars = w.chars();
        matches!(chars.next(), Some('g' | 't')) && w.len() > 1 && chars.all(|c| c.is_ascii_digit())
    });
    let model = models.map(str::to_uppercase).next().unwrap_or_default();
    if name.contains("immortalis") {
        format!("Immortalis-{model}").trim_end_matches('-').into()
    } else {
        model
    }
}

/// Returns the generation for an IP version: 10 bits of architecture, 8 bits of release, and the revision.
fn intel_ip(version: u32) -> Option<IntelGeneration> {
    Some(match (version >> 22, version >> 14 & 0xFF) {
        (9, _) => IntelGeneration::Gen9,
        (11, _) => IntelGeneration::Gen11,
        (12, 0..=49) => IntelGeneration::XeLp,
        (12, 50..=59) => IntelGeneration::XeHpg,
        (12, 60..=69) => IntelGeneration::XeHpc,
        (12, 70..=79) => IntelGeneration::XeLpg,
        (20, _) => IntelGeneration::Xe2,
        (30, _) => IntelGeneration::Xe3,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, vendor: &str, version: &str) -> String {
        Architecture::of(&Reported { name, vendor, version, ..Reported::default() }).to_string()
    }

    #[test]
    fn amd_is_named_by_its_instruction_set() {
        let vendor = "Advanced Micro Devices, Inc.";
        for (name, expected) in [
            ("gfx90a:sramecc+:xnack-", "gfx90a"),
            ("gfx942:sramecc+:xnack-", "gfx942"),
            ("gfx1100", "gfx1100"),
            ("gfx906:sramecc-:xnack-", "gfx906"),
            ("AMD Radeon Graphics (radeonsi, gfx1103_r1, LLVM 17.0.6, DRM 3.57, 6.8.0)", "gfx1103"),
            ("AMD Radeon RX 7900 XTX (radeonsi, navi31, LLVM 15.0.7, DRM 3.54, 6.5.0)", "gfx1100"),
            ("AMD Radeon RX 6700 XT (navi22, LLVM 16.0.6, DRM 3.54, 6.5.0-1-amd64)", "gfx1031"),
            ("Ellesmere", "gfx803"),
            ("AMD Radeon VII", "unknown"),
        ] {
            assert_eq!(shown(name, vendor, "OpenCL 2.0"), expected, "{name}");
        }
        // Mesa writes the vendor differently.
        assert_eq!(shown("AMD Radeon RX 580 Series (polaris10, LLVM 12.0.0)", "AMD", "OpenCL 1.1"), "gfx803");
    }

    #[test]
    fn intel_is_known_by_ip_version_and_else_by_name() {
        let vendor = "Intel(R) Corporation";
        let ip = |architecture: u32, release: u32, revision: u32| {
            let intel_ip = Some(architecture << 22 | release << 14 | revision);
            Architecture::of(&Reported {
                vendor,
                name: "Intel(R) Graphics [0x0000]",
                intel_ip,
                ..Reported::default()
            })
            .to_string()
        };
        // Skylake, Ice Lake, Tiger Lake, DG1, Arc A770, Ponte Vecchio, Meteor Lake-H, Arc B580, Lunar Lake, Panther Lake.
        let versions = [
            (9, 0, 9, "Gen9"),
            (11, 0, 0, "Gen11"),
            (12, 0, 0, "Xe-LP"),
            (12, 10, 0, "Xe-LP"),
            (12, 55, 8, "Xe-HPG"),
            (12, 60, 7, "Xe-HPC"),
            (12, 71, 4, "Xe-LPG"),
            (20, 1, 4, "Xe2"),
            (20, 4, 4, "Xe2"),
            (30, 0, 4, "Xe3"),
            (99, 0, 0, "unknown"),
        ];
        for (architecture, release, revision, expected) in versions {
            assert_eq!(ip(architecture, release, revision), expected);
        }
        for (name, expected) in [
            ("Intel(R) Arc(TM) A770 Graphics", "Xe-HPG"),
            ("Intel(R) Arc(TM) B580 Graphics", "Xe2"),
            ("Intel(R) Arc(TM) Graphics", "Xe-LPG"),
            ("Intel(R) Data Center GPU Max 1550", "Xe-HPC"),
            ("Intel(R) Data Center GPU Flex 170", "Xe-HPG"),
            ("Intel(R) Iris(R) Xe Graphics", "Xe-LP"),
            ("Intel(R) UHD Graphics 770", "Xe-LP"),
            ("Intel(R) UHD Graphics 630 [0x3e9b]", "Gen9"),
            ("Intel(R) Iris(R) Plus Graphics 655", "Gen9"),
            ("Intel(R) Iris(R) Plus Graphics", "Gen11"),
            ("Intel(R) HD Graphics 530", "Gen9"),
            ("Intel(R) Gen9 HD Graphics NEO", "Gen9"),
            ("Intel(R) HD Graphics 4000", "unknown"),
            ("Mesa Intel(R) Arc(tm) A380 Graphics (DG2)", "Xe-HPG"),
        ] {
            assert_eq!(shown(name, vendor, "OpenCL 3.0 NEO "), expected, "{name}");
        }
    }

    #[test]
    fn phones_are_known_by_model() {
        for (name, vendor, version, expected) in [
            ("QUALCOMM Adreno(TM)", "QUALCOMM", "OpenCL 3.0 Adreno(TM) 740", "Adreno 740"),
            ("QUALCOMM Adreno(TM) 630", "QUALCOMM", "OpenCL 2.0 QUALCOMM build: 8f3a", "Adreno 630"),
            ("Qualcomm(R) Adreno(TM) X1-85 GPU", "QUALCOMM", "OpenCL 3.0 QUALCOMM build", "Adreno X1-85"),
            ("QUALCOMM Adreno(TM)", "QUALCOMM", "OpenCL 2.0", "Adreno"),
            ("Mali-G710 r0p0", "ARM", "OpenCL 3.0 v1.r32p1", "Mali G710"),
            ("Mali-G78 MP24", "ARM", "OpenCL 2.1", "Mali G78"),
            ("Mali-T860 (Panfrost)", "Mesa", "OpenCL 3.0", "Mali T860"),
            ("Immortalis-G715 MC11", "ARM", "OpenCL 3.0", "Immortalis-G715"),
            ("Mali-LODX r0p0", "ARM", "OpenCL 2.0", "Mali"),
        ] {
            assert_eq!(shown(name, vendor, version), expected, "{name}");
        }
    }

    #[test]
    fn nvidia_answers_a_query_and_a_processor_is_one_whoever_made_it() {
        let card = Reported {
            name: "NVIDIA H200",
            vendor: "NVIDIA Corporation",
            compute_capability: Some([9, 0]),
            ..Reported::default()
        };
        assert_eq!(Architecture::of(&card), Architecture::Nvidia { sm: 90 });
        let mute = Reported { compute_capability: Some([0, 0]), ..card };
        assert_eq!(Architecture::of(&mute), Architecture::Unknown, "a driver without the query answers 0");
        assert!(Architecture::of(&card).sm() >= Some(80) && Architecture::Unknown.sm() < Some(1));
        for (name, vendor) in [
            ("pthread-Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "GenuineIntel"),
            ("cpu-haswell-AMD EPYC 7R32", "AuthenticAMD"),
            ("Intel(R) Core(TM) i7-8650U CPU", "Intel(R) Corporation"),
        ] {
            let processor = Reported { name, vendor, processor: true, ..Reported::default() };
            assert_eq!(Architecture::of(&processor), Architecture::Processor);
        }
        assert_eq!(shown("Apple M2", "Apple", "OpenCL 1.2"), "unknown");
        assert_eq!(shown("Vivante OpenCL Device GC7000L", "Vivante", "OpenCL 1.2"), "unknown");
    }
}
