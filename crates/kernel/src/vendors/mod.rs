//! Vendor support beyond OpenCL: one folder or file per vendor, and the hooks that the program build calls.

pub mod amd;
pub mod intel;
pub mod nvidia;
mod oclgrind;
pub mod pocl;
mod rusticl;

use crate::kernel::Reload;
use netcl_device::Capabilities;
pub(crate) use pocl::Header;

/// All second builds.
const RELOADS: [&Reload; 1] = [&nvidia::SM90A];

/// Returns the second build with this name.
pub(crate) fn reload(name: &str) -> Option<&'static Reload> {
    RELOADS.into_iter().find(|reload| reload.name == name)
}

/// Build hooks of one driver.
pub(crate) struct Hooks {
    /// Returns true for this driver's devices.
    pub applies: fn(&Capabilities) -> bool,
    /// Returns options of every build; may be empty.
    pub options: fn(&Capabilities) -> String,
    /// Whether the driver stores every compiled kernel on disk itself. Requesting binaries from such a driver would compile all kernels again.
    pub keeps_kernels: bool,
    /// Returns the driver's header of built-in functions. Set if the driver parses the complete header before every source and accepts parts of it
    /// instead.
    pub header: fn() -> Option<Header>,
}

/// All drivers and vendors with hooks. Several can apply to one device.
const HOOKS: [&Hooks; 6] =
    [&oclgrind::HOOKS, &nvidia::HOOKS, &amd::HOOKS, &intel::HOOKS, &pocl::HOOKS, &rusticl::HOOKS];

fn of(device: &Capabilities) -> impl Iterator<Item = &'static Hooks> {
    HOOKS.into_iter().filter(|hooks| (hooks.applies)(device))
}

/// Returns the options of every build on a device.
pub(crate) fn options(device: &Capabilities) -> impl Iterator<Item = String> {
    of(device).map(|hooks| (hooks.options)(device))
}

/// Returns true if the device's driver has a complete kernel cache.
pub(crate) fn keeps_kernels(device: &Capabilities) -> bool {
    of(device).any(|hooks| hooks.keeps_kernels)
}

/// Returns the header of built-in functions of a device's driver, if sources receive parts of it.
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
        // PoCL also supports such cards.
        card.id = "pocl:0".into();
        assert!(keeps_kernels(&card) && all(&card) == ["-DNVIDIA_CC=86"]);
    }
}
