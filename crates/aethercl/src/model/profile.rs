//! A device as data: units, rates, latencies and sizes of one GPU, read from TOML.

use serde::Deserialize;
use std::fmt;

/// The built-in profiles: name and TOML text.
const OWN: [(&str, &str); 7] = [
    ("teaching", include_str!("../../profiles/teaching.toml")),
    ("h200", include_str!("../../profiles/h200.toml")),
    ("h100", include_str!("../../profiles/h100.toml")),
    ("rx7900xtx", include_str!("../../profiles/rx7900xtx.toml")),
    ("arc-a770", include_str!("../../profiles/arc-a770.toml")),
    ("adreno-750", include_str!("../../profiles/adreno-750.toml")),
    ("mali-g720", include_str!("../../profiles/mali-g720.toml")),
];

/// Model parameters of a device.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name: `h200`.
    pub name: String,
    /// Device name.
    pub title: String,
    /// Vendor of the modeled hardware.
    pub vendor: String,
    /// Origin of the figures: `measured`, `public figures`, `estimates` or `invented`.
    pub basis: String,
    /// Compute units and their capacity.
    pub compute: Compute,
    /// Throughput of one unit.
    pub rates: Rates,
    /// Latencies of single operations.
    pub latency: Latency,
    /// Local memory.
    pub local: LocalMemory,
    /// Caches.
    pub cache: Cache,
    /// Device memory.
    pub memory: DeviceMemory,
    /// Link to the host.
    pub link: Link,
    /// Costs of commands.
    pub launch: LaunchOverhead,
}

/// Compute units and their capacity.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Compute {
    /// Compute units (streaming multiprocessors, Xe cores).
    pub units: u32,
    /// Lanes that advance together (warp, wave, subgroup).
    pub simd_width: u32,
    /// Instructions that one unit issues per clock, each from a different wave.
    pub schedulers: u32,
    /// Clock, MHz.
    pub clock_mhz: u32,
    /// Maximum work-items per group.
    pub max_group: u32,
    /// Maximum resident groups per unit.
    pub groups_per_unit: u32,
    /// Maximum resident waves per unit.
    pub waves_per_unit: u32,
    /// 32-bit registers per unit.
    pub registers: u32,
    /// Maximum 32-bit registers per work-item.
    pub registers_per_lane: u32,
    /// Whether `half` arithmetic is supported.
    pub fp16: bool,
    /// Whether `double` arithmetic is supported.
    pub fp64: bool,
    /// Whether sub-group functions are supported.
    pub subgroups: bool,
}

/// Lanes per unit and clock, by class of instruction.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// f32 addition, multiplication, fused multiply-add.
    pub float: u32,
    /// Integer and logic.
    pub integer: u32,
    /// exp, log, sin, square roots, divisions.
    pub special: u32,
    /// f64; 0 if not supported.
    pub double: u32,
    /// Loads and stores of local memory.
    pub local: u32,
    /// Addresses of global loads and stores.
    pub global: u32,
    /// Reads of images, each of up to four texels of four bytes (a bilinear one of RGBA8).
    #[serde(default = "texture_rate")]
    pub texture: u32,
    /// Branches and mask operations.
    pub branch: u32,
}

/// Default for profiles without this value: typical for GPUs.
fn texture_rate() -> u32 {
    4
}

/// Latencies of single operations.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Latency of an arithmetic result, clocks.
    pub arithmetic_clocks: u32,
    /// Load from local memory, clocks.
    pub local_clocks: u32,
    /// Load that hits the L1 cache, clocks.
    pub l1_clocks: u32,
    /// Load that hits the L2 cache, clocks.
    pub l2_clocks: u32,
    /// Load from device memory, ns.
    pub dram_ns: u32,
    /// Independent arithmetic instructions of one wave in flight.
    pub independent_arithmetic: u32,
    /// Barrier at which all waves have already arrived, clocks.
    pub barrier_clocks: u32,
}

/// Local memory.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LocalMemory {
    /// Maximum bytes per group.
    pub group_bytes: u64,
    /// Bytes that the resident groups of a unit share.
    pub unit_bytes: u64,
    /// Banks.
    pub banks: u32,
    /// Width of a bank, bytes per clock.
    pub bank_bytes: u32,
}

/// Caches.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Bytes per line: the unit of coalescing accesses of adjacent lanes.
    pub line_bytes: u32,
    /// Minimum transfer size in bytes.
    pub sector_bytes: u32,
    /// L1 cache of a unit, bytes.
    pub l1_bytes: u64,
    /// L1 bandwidth, bytes per clock.
    pub l1_bytes_per_clock: u32,
    /// L2 cache shared by all units, bytes.
    pub l2_bytes: u64,
    /// L2 bandwidth, 10⁹ bytes per second.
    pub l2_gb_per_s: f64,
    /// Atomic operations on different words per clock.
    pub l2_atomics_per_clock: u32,
}

/// Device memory.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DeviceMemory {
    /// Bytes.
    pub bytes: u64,
    /// Bandwidth of the interface, 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Fraction of the bandwidth that streaming kernels reach.
    pub efficiency: f64,
    /// Fraction of the bandwidth that fills and copies reach.
    pub fill_efficiency: f64,
}

/// Link to the host.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bandwidth per direction from pinned memory, 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Latency of the first byte, ns.
    pub latency_ns: u64,
    /// Number of copy engines: 2 copy in both directions at the same time.
    pub copy_engines: u32,
    /// Whether host and device share their memory.
    pub unified: bool,
}

/// Overhead of commands.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LaunchOverhead {
    /// Host time to write a command and ring the doorbell, ns.
    pub submit_ns: u64,
    /// Command processor time per command, ns.
    pub command_ns: u64,
    /// Time between two groups assigned to the same unit, ns.
    pub group_ns: f64,
    /// Time between two groups assigned to any unit, ns: the limit of a launch of many short groups.
    pub dispatch_ns: f64,
    /// Time from the last group's end until the next command may begin, ns.
    pub drain_ns: u64,
    /// Time limit of a kernel, ms of the device clock; afterwards it is stopped and the device reset.
    pub watchdog_ms: u64,
}

/// Reason why a profile is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for ProfileError {}

impl Profile {
    /// Returns the names of the built-in profiles; the first is the default.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OWN.iter().map(|(name, _)| *name)
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    /// If it does not exist; the message lists the available ones.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        match OWN.iter().find(|(own, _)| *own == name) {
            Some((_, text)) => Self::parse(text),
            None => {
                let all: Vec<&str> = Self::names().collect();
                Err(ProfileError(format!(
                    "unknown device profile {name:?}; the profiles are {}",
                    all.join(", ")
                )))
            }
        }
    }

    /// Reads a profile from TOML.
    ///
    /// # Errors
    /// Missing, duplicate or invalid figures, with the line.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text).map_err(|e| ProfileError(e.to_string()))?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns the text of a built-in profile.
    pub fn text(name: &str) -> Option<&'static str> {
        OWN.iter().find(|(own, _)| *own == name).map(|(_, text)| *text)
    }

    /// Returns a profile's text with changed figures, each as `table.figure=value`; KB, MB and GB after a number are powers of 1024. Short names:
    /// `l1`, `l2`, `units`, `clock` (MHz), `memory` (bytes), `bandwidth` (GB/s). The new name lists the changes.
    ///
    /// # Errors
    /// An unknown figure, or an invalid value.
    pub fn changed(text: &str, changes: &[String]) -> Result<String, ProfileError> {
        let mut table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| ProfileError(e.to_string()))?;
        for change in changes {
            let (name, value) = change
                .split_once('=')
                .ok_or_else(|| ProfileError(format!("{change:?} is not NAME=VALUE, such as l2=100MB")))?;
            let name = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
            let value = figure(value).ok_or_else(|| {
                ProfileError(format!("{change:?}: expected a value such as 64, 1.5, true or 100MB"))
            })?;
            let place =
                name.split_once('.').and_then(|(group, figure)| table.get_mut(group)?.get_mut(figure));
            *place.ok_or_else(|| ProfileError(format!("a profile does not have a value {name:?}")))? = value;
        }
        let own = table.get("name").and_then(toml::Value::as_str).unwrap_or_default();
        let called = format!("{own} {}", changes.join(" "));
        table.insert("name".into(), toml::Value::String(called));
        let text = table.to_string();
        Self::parse(&text)?;
        Ok(text)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let (c, r, m) = (&self.compute, &self.rates, &self.memory);
        let positive = [
            ("compute.units", f64::from(c.units)),
            ("compute.simd_width", f64::from(c.simd_width)),
            ("compute.schedulers", f64::from(c.schedulers)),
            ("compute.clock_mhz", f64::from(c.clock_mhz)),
            ("compute.max_group", f64::from(c.max_group)),
            ("compute.groups_per_unit", f64::from(c.groups_per_unit)),
            ("compute.waves_per_unit", f64::from(c.waves_per_unit)),
            ("compute.registers", f64::from(c.registers)),
            ("compute.registers_per_lane", f64::from(c.registers_per_lane)),
            ("rates.float", f64::from(r.float)),
            ("rates.integer", f64::from(r.integer)),
            ("rates.special", f64::from(r.special)),
            ("rates.local", f64::from(r.local)),
            ("rates.global", f64::from(r.global)),
            ("rates.texture", f64::from(r.texture)),
            ("rates.branch", f64::from(r.branch)),
            ("local.banks", f64::from(self.local.banks)),
            ("local.bank_bytes", f64::from(self.local.bank_bytes)),
            ("cache.line_bytes", f64::from(self.cache.line_bytes)),
            ("cache.sector_bytes", f64::from(self.cache.sector_bytes)),
            ("cache.l1_bytes_per_clock", f64::from(self.cache.l1_bytes_per_clock)),
            ("cache.l2_gb_per_s", self.cache.l2_gb_per_s),
            ("cache.l2_atomics_per_clock", f64::from(self.cache.l2_atomics_per_clock)),
            ("latency.independent_arithmetic", f64::from(self.latency.independent_arithmetic)),
            ("memory.bytes", m.bytes as f64),
            ("memory.gb_per_s", m.gb_per_s),
            ("memory.efficiency", m.efficiency),
            ("memory.fill_efficiency", m.fill_efficiency),
            ("link.gb_per_s", self.link.gb_per_s),
            ("link.copy_engines", f64::from(self.link.copy_engines)),
            ("launch.watchdog_ms", self.launch.watchdog_ms as f64),
        ];
        if let Some((what, value)) = positive.iter().find(|(_, v)| !v.is_finite() || *v <= 0.0) {
            return Err(self.wrong(format!("{what} is {value}, which is not above zero")));
        }
        self.check_sizes()?;
        for (what, value) in
            [("memory.efficiency", m.efficiency), ("memory.fill_efficiency", m.fill_efficiency)]
        {
            if value > 1.0 {
                return Err(self.wrong(format!("{what} is {value}, a share above one")));
            }
        }
        if c.fp64 && r.double == 0 {
            return Err(self.wrong("compute.fp64 is true, but rates.double is 0".into()));
        }
        if c.max_group.div_ceil(c.simd_width) > c.waves_per_unit {
            return Err(self.wrong("a group of compute.max_group has more waves than a unit holds".into()));
        }
        if self.local.group_bytes > self.local.unit_bytes {
            return Err(self.wrong("local.group_bytes is above local.unit_bytes".into()));
        }
        if !self.cache.line_bytes.is_multiple_of(self.cache.sector_bytes) {
            return Err(self.wrong("cache.line_bytes is not a multiple of cache.sector_bytes".into()));
        }
        Ok(())
    }

    /// Checks the sizes of the machine's tables.
    fn check_sizes(&self) -> Result<(), ProfileError> {
        let (c, m) = (&self.compute, &self.memory);
        // The machine has a table entry for each of these. Real GPUs stay far below these limits.
        let most = [
            ("compute.units", u64::from(c.units), 1 << 16),
            ("compute.simd_width", u64::from(c.simd_width), 1 << 10),
            ("compute.schedulers", u64::from(c.schedulers), 1 << 10),
            ("compute.max_group", u64::from(c.max_group), 1 << 16),
            ("compute.groups_per_unit", u64::from(c.groups_per_unit), 1 << 16),
            ("compute.waves_per_unit", u64::from(c.waves_per_unit), 1 << 16),
            ("compute.registers", u64::from(c.registers), 1 << 30),
            ("compute.registers_per_lane", u64::from(c.registers_per_lane), 1 << 20),
            ("local.banks", u64::from(self.local.banks), 1 << 12),
            ("local.bank_bytes", u64::from(self.local.bank_bytes), 1 << 12),
            ("local.unit_bytes", self.local.unit_bytes, 1 << 30),
            ("cache.line_bytes", u64::from(self.cache.line_bytes), 1 << 16),
            ("cache.sector_bytes", u64::from(self.cache.sector_bytes), 1 << 16),
            ("cache.l1_bytes", self.cache.l1_bytes, 1 << 28),
            ("cache.l2_bytes", self.cache.l2_bytes, 1 << 32),
            ("memory.bytes", m.bytes, 1 << 48),
            ("link.copy_engines", u64::from(self.link.copy_engines), 1 << 10),
        ];
        if let Some((what, value, most)) = most.iter().find(|(_, value, most)| value > most) {
            return Err(self.wrong(format!("{what} is {value}, and at most {most} can be simulated")));
        }
        let of_all = u64::from(c.units) * self.cache.l1_bytes;
        if of_all > 1 << 32 {
            return Err(self.wrong(format!(
                "compute.units of cache.l1_bytes are {of_all} bytes, at most 4 GiB are simulated"
            )));
        }
        Ok(())
    }

    fn wrong(&self, why: String) -> ProfileError {
        ProfileError(format!("profile {}: {why}", self.name))
    }

    /// Returns the clocks of a unit per nanosecond.
    pub fn clocks_per_ns(&self) -> f64 {
        f64::from(self.compute.clock_mhz) / 1000.0
    }

    /// Returns the peak rate of f32 operations, an addition and a multiplication per lane and clock, 10⁹ per second.
    pub fn peak_gflops(&self) -> f64 {
        2.0 * f64::from(self.compute.units) * f64::from(self.rates.float) * self.clocks_per_ns()
    }
}

/// Short names of frequently changed figures.
const SHORT: [(&str, &str); 6] = [
    ("l1", "cache.l1_bytes"),
    ("l2", "cache.l2_bytes"),
    ("units", "compute.units"),
    ("clock", "compute.clock_mhz"),
    ("memory", "memory.bytes"),
    ("bandwidth", "memory.gb_per_s"),
];

/// Parses a value from the command line.
fn figure(text: &str) -> Option<toml::Value> {
    let units = [("KB", 10), ("MB", 20), ("GB", 30)];
    if let Some((number, shift)) = units.iter().find_map(|(u, shift)| Some((text.strip_suffix(u)?, shift))) {
        let bytes = number.parse::<f64>().ok()? * f64::from(1u32 << shift);
        return (bytes.is_finite() && bytes < 9e18).then_some(toml::Value::Integer(bytes as i64));
    }
    let whole = text.parse().ok().map(toml::Value::Integer);
    let part = || text.parse().ok().map(toml::Value::Float);
    whole.or_else(part).or_else(|| text.parse().ok().map(toml::Value::Boolean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_reads_and_is_called_as_it_is_named() {
        for name in Profile::names() {
            assert_eq!(Profile::named(name).unwrap().name, name);
        }
        let e = Profile::named("voodoo").unwrap_err().to_string();
        assert!(e.contains("voodoo") && e.contains("h200"), "{e}");
    }

    #[test]
    fn peaks_are_those_of_the_data_sheets() {
        let peak = |name: &str| Profile::named(name).unwrap().peak_gflops();
        // 66.9 TFLOP/s f32 of an H200; 17.2 of an A770 at its stated clock.
        assert!((peak("h200") - 66_900.0).abs() < 200.0);
        assert!((peak("arc-a770") - 17_200.0).abs() < 100.0);
        assert_eq!(peak("teaching"), 64.0);
    }

    #[test]
    fn figures_are_changed_by_name() {
        let text = Profile::text("h200").unwrap();
        let changed = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|c| c.to_string()).collect();
            Profile::changed(text, &list).and_then(|text| Profile::parse(&text))
        };
        let p = changed(&["l2=100MB", "latency.dram_ns=300", "memory.efficiency=0.5"]).unwrap();
        assert_eq!((p.cache.l2_bytes, p.latency.dram_ns, p.memory.efficiency), (100 << 20, 300, 0.5));
        assert_eq!(p.name, "h200 l2=100MB latency.dram_ns=300 memory.efficiency=0.5");
        for (wrong, says) in [
            ("l3=1", "does not have a value"),
            ("l2", "NAME=VALUE"),
            ("l2=much", "expected a value such as"),
            ("units=0", "compute.units"),
            ("memory.efficiency=2", "above one"),
        ] {
            let e = changed(&[wrong]).unwrap_err().to_string();
            assert!(e.contains(says), "{wrong}: {e}");
        }
    }

    #[test]
    fn figures_that_cannot_be_are_named() {
        let text = include_str!("../../profiles/teaching.toml");
        for (from, to, named) in [
            ("units = 4", "units = 0", "compute.units"),
            ("efficiency = 1.0", "efficiency = 1.5", "memory.efficiency"),
            ("double = 4", "double = 0", "rates.double"),
            ("group_bytes = 49152", "group_bytes = 99999", "local.group_bytes"),
            ("line_bytes = 64", "line_bytes = 65", "cache.line_bytes"),
            ("units = 4", "unit = 4", "unit"),
            ("units = 4", "units = 2147483648", "compute.units"),
            ("simd_width = ", "simd_width = 99999", "compute.simd_width"),
            ("max_group = 256", "max_group = 2560", "max_group"),
            ("gb_per_s = 10", "gb_per_s = nan", "memory.gb_per_s"),
        ] {
            assert!(text.contains(from), "{from}");
            let e = Profile::parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(e.contains(named), "{to}: {e}");
        }
    }
}
