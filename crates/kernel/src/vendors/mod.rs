//! What one vendor's driver needs beyond OpenCL, in a folder or file of its own, and the hooks by which building a program asks for it.

pub mod amd;
pub mod intel;
pub mod nvidia;
mod oclgrind;
pub mod pocl;
mod rusticl;

use crate::kernel::Reload;
use netcl_device::Capabilities;
pub(crate) use pocl::Header;

/// Every second build that there is.
const RELOADS: [&Reload; 1] = [&nvidia::SM90A];

/// The second build of this name.
pub(crate) fn reload(name: &str) -> Option<&'static Reload> {
    RELOADS.into_iter().find(|reload| reload.name == name)
}

/// How the programs of one driver are built.
pub(crate) struct Hooks {
    /// Whether a device is this driver's.
    pub applies: fn(&Capabilities) -> bool,
    /// Options of every build; empty for none.
    pub options: fn(&Capabilities) -> String,
    /// It keeps every kernel that it compiled on disk itself; asking it for binaries would compile them all once more.
    pub keeps_kernels: bool,
    /// Its header of built-in functions, where it reads a whole one before every text and can be given parts of it.
    pub header: fn() -> Option<Header>,
}

/// Every driver and vendor that has hooks. Several can apply to one device.
const HOOKS: [&Hooks; 6] =
    [&oclgrind::HOOKS, &nvidia::HOOKS, &amd::HOOKS, &intel::HOOKS, &pocl::HOOKS, &rusticl::HOOKS];

fn of(device: &Capabilities) -> impl Iterator<Item = &'static Hooks> {
    HOOKS.into_iter().filter(|hooks| (hooks.applies)(device))
}

/// Options of every build on a device.
pub(crate) fn options(device: &Capabilities) -> impl Iterator<Item = String> {
    of(device).map(|hooks| (hooks.options)(device))
}

/// Whether the device's driver has a complete kernel cache of its own.
pub(crate) fn keeps_kernels(device: &Capabilities) -> bool {
    of(device).any(|hooks| hooks.keeps_kernels)
}

/// The header of built-in functions of a device's driver, where texts are given parts of it.
pub(crate) fn header(device: &Capabilities) -> Option<Header> {
    of(device).find_map(|hooks| (hooks.header)())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::{Architecture, DeviceKind, IntelGeneration};

    #[test]
    fn a_device_gets_what_its_driver_needs() {
        let device = |id: &str| Capabilities::floor(id, DeviceKind::Gpu);
        let all = |device: &Capabilities| options(device).filter(|o| !o.is_empty()).collect::<Vec<_>>();
        assert_eq!(all(&device("amd:0")), [""; 0]);
        let mut card = device("rusticl:0");
        card.architecture = Architecture::Amd { gfx: "gfx1100".into() };
        assert_eq!((all(&card), amd::gfx(&card)), (vec!["-DNO_PREFETCH".to_owned()], Some("gfx1100")));
        card.architecture = Architecture::Intel { generation: IntelGeneration::XeHpg };
        assert_eq!((amd::gfx(&card), intel::generation(&card)), (None, Some(IntelGeneration::XeHpg)));
        assert_eq!(all(&device("oclgrind:0")), ["-DNO_PREFETCH"]);
        let mut card = device("nvidia:0");
        card.architecture = Architecture::Nvidia { sm: 86 };
        assert_eq!(all(&card), ["-DNVIDIA_CC=86"]);
        assert!(!keeps_kernels(&card) && keeps_kernels(&device("pocl:1")));
        // PoCL drives such cards, too.
        card.id = "pocl:0".into();
        assert!(keeps_kernels(&card) && all(&card) == ["-DNVIDIA_CC=86"]);
    }
}
