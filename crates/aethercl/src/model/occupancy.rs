//! Number of work-groups of a launch that one compute unit holds at a time, and the limiting resource.

use super::Profile;
use crate::counters::Counters;
use std::fmt;

/// The limiting resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The unit's table of groups.
    Groups,
    /// The unit's table of waves.
    Waves,
    /// Registers.
    Registers,
    /// Local memory.
    Local,
    /// The launch itself: it has few groups.
    Launch,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Groups => "groups a unit",
            Self::Waves => "waves a unit",
            Self::Registers => "registers",
            Self::Local => "local memory",
            Self::Launch => "size of the launch",
        })
    }
}

/// Occupancy of a compute unit by a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Waves per group.
    pub waves_per_group: u64,
    /// Groups resident on a unit at a time.
    pub groups: u64,
    /// The limiting resource.
    pub limit: Limit,
    /// Total groups that the busiest unit runs.
    pub groups_of_busiest: u64,
}

/// Index of the launch's own size in [`Occupancy::limits`].
const LAUNCH: usize = 4;

/// Returns the waves per group.
fn waves(profile: &Profile, counters: &Counters) -> u64 {
    let items = counters.items.div_ceil(counters.groups.max(1)).max(1);
    items.div_ceil(u64::from(profile.compute.simd_width))
}

impl Occupancy {
    /// Returns the occupancy of a launch on a device.
    pub fn of(profile: &Profile, counters: &Counters) -> Self {
        let limits = Self::limits(profile, counters);
        // For equal limits, use the first.
        let best = limits.into_iter().reduce(|best, next| if next.0 < best.0 { next } else { best });
        let (most, limit) = best.unwrap_or(limits[0]);
        let busiest = limits[LAUNCH].0;
        // A launch that was accepted runs, so one group always fits.
        let waves_per_group = waves(profile, counters);
        Self { waves_per_group, groups: most.max(1), limit, groups_of_busiest: busiest }
    }

    /// Returns the number of groups per unit that each limit allows; `u64::MAX` for no limit.
    pub fn limits(profile: &Profile, counters: &Counters) -> [(u64, Limit); 5] {
        let c = &profile.compute;
        let waves_per_group = waves(profile, counters);
        let registers = u64::from(counters.registers.clamp(1, c.registers_per_lane));
        // Registers are allocated to whole waves, in units of eight per lane.
        let wave_registers = registers.next_multiple_of(8) * u64::from(c.simd_width);
        let busiest = counters.groups.max(1).div_ceil(u64::from(c.units));
        [
            (u64::from(c.groups_per_unit), Limit::Groups),
            (u64::from(c.waves_per_unit) / waves_per_group, Limit::Waves),
            (u64::from(c.registers) / (wave_registers * waves_per_group), Limit::Registers),
            (profile.local.unit_bytes.checked_div(counters.local_bytes).unwrap_or(u64::MAX), Limit::Local),
            (busiest, Limit::Launch),
        ]
    }

    /// Returns the waves resident on a unit at a time.
    pub fn waves(&self) -> u64 {
        self.groups * self.waves_per_group
    }

    /// Returns the number of times that a unit is filled during the launch.
    pub fn rounds(&self) -> u64 {
        self.groups_of_busiest.div_ceil(self.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(groups: u64, items: u64, registers: u32, local_bytes: u64) -> Occupancy {
        let profile = Profile::named("h200").unwrap();
        let counters =
            Counters { groups, items: groups * items, registers, local_bytes, ..Counters::default() };
        Occupancy::of(&profile, &counters)
    }

    #[test]
    fn figures_of_the_vendors_calculator() {
        // 64 waves fit: 8 groups of 256 with up to 32 registers, then fewer.
        let o = launch(100_000, 256, 32, 0);
        assert_eq!((o.groups, o.waves(), o.limit), (8, 64, Limit::Waves));
        let o = launch(100_000, 256, 128, 0);
        assert_eq!((o.groups, o.limit), (2, Limit::Registers));
        // Above 128 registers only one group of 256 fits, as measured (docs/log/simulator.md).
        assert_eq!(launch(100_000, 256, 136, 0).groups, 1);
        let o = launch(100_000, 64, 16, 48 << 10);
        assert_eq!((o.groups, o.limit), (4, Limit::Local));
        let o = launch(100_000, 32, 16, 0);
        assert_eq!((o.groups, o.limit), (32, Limit::Groups));
    }

    #[test]
    fn small_launches_and_impossible_ones_have_a_group() {
        let o = launch(132, 256, 32, 0);
        assert_eq!((o.groups, o.limit, o.rounds()), (1, Limit::Launch, 1));
        let o = launch(133, 256, 32, 0);
        assert_eq!((o.groups_of_busiest, o.rounds()), (2, 1));
        assert_eq!(launch(10_000, 1024, 255, 1 << 20).groups, 1);
        assert_eq!(launch(0, 0, 0, 0).groups, 1);
    }
}
