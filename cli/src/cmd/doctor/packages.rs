//! Names of the packages that provide OpenCL components, by distribution.

/// An OpenCL component that may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// libOpenCL, which finds the drivers.
    Loader,
    /// A driver for the CPU.
    Cpu,
    /// A driver for AMD GPUs.
    Amd,
    /// A driver for Intel GPUs.
    Intel,
    /// A driver for NVIDIA GPUs.
    Nvidia,
}

struct Family {
    /// `ID` or a word of `ID_LIKE` in /etc/os-release.
    ids: &'static [&'static str],
    install: &'static str,
    /// Package names: loader, CPU, AMD, Intel, NVIDIA.
    packages: [&'static str; 5],
}

const FAMILIES: [Family; 5] = [
    Family {
        ids: &["debian", "ubuntu"],
        install: "apt-get install",
        packages: [
            "ocl-icd-libopencl1",
            "pocl-opencl-icd",
            "mesa-opencl-icd",
            "intel-opencl-icd",
            "nvidia-opencl-icd",
        ],
    },
    Family {
        ids: &["fedora", "rhel", "centos"],
        install: "dnf install",
        packages: [
            "OpenCL-ICD-Loader",
            "pocl",
            "mesa-libOpenCL",
            "intel-compute-runtime",
            "xorg-x11-drv-nvidia-cuda",
        ],
    },
    Family {
        ids: &["arch"],
        install: "pacman -S",
        packages: ["ocl-icd", "pocl", "opencl-mesa", "intel-compute-runtime", "opencl-nvidia"],
    },
    Family {
        ids: &["opensuse", "suse", "sles", "opensuse-tumbleweed", "opensuse-leap"],
        install: "zypper install",
        packages: ["libOpenCL1", "pocl", "Mesa-libOpenCL", "intel-opencl", "nvidia-compute-G06"],
    },
    Family {
        ids: &["alpine"],
        install: "apk add",
        packages: ["opencl-icd-loader", "pocl", "mesa-rusticl", "intel-compute-runtime", ""],
    },
];

/// Returns the command that installs `needs` on the system that this /etc/os-release describes, if that system is known.
pub fn command(os_release: &str, needs: &[Need]) -> Option<String> {
    let words = ids(os_release);
    let family = words.iter().find_map(|word| FAMILIES.iter().find(|f| f.ids.contains(&word.as_str())))?;
    let names: Vec<&str> =
        needs.iter().map(|n| family.packages[*n as usize]).filter(|name| !name.is_empty()).collect();
    (!names.is_empty()).then(|| format!("{} {}", family.install, names.join(" ")))
}

/// Returns `ID`, then the words of `ID_LIKE`.
fn ids(os_release: &str) -> Vec<String> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|l| l.strip_prefix(key));
        line.unwrap_or_default().trim_matches(['"', '\'']).to_lowercase()
    };
    let (id, like) = (value("ID="), value("ID_LIKE="));
    [id.as_str(), like.as_str()].join(" ").split_whitespace().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_command() {
        for (release, expected) in [
            ("ID=debian\n", "apt-get install ocl-icd-libopencl1 pocl-opencl-icd"),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                "apt-get install ocl-icd-libopencl1 pocl-opencl-icd",
            ),
            ("NAME=Fedora\nID=fedora\n", "dnf install OpenCL-ICD-Loader pocl"),
            ("ID=arch\n", "pacman -S ocl-icd pocl"),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "zypper install libOpenCL1 pocl"),
            ("ID=alpine\n", "apk add opencl-icd-loader pocl"),
        ] {
            assert_eq!(command(release, &[Need::Loader, Need::Cpu]).as_deref(), Some(expected));
        }
        assert_eq!(command("ID=plan9\n", &[Need::Loader]), None);
        assert_eq!(command("ID=alpine\n", &[Need::Nvidia]), None);
        assert_eq!(
            command("ID=debian\n", &[Need::Intel]).as_deref(),
            Some("apt-get install intel-opencl-icd")
        );
    }
}
