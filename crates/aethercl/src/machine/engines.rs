//! Scheduling of the command processor, the compute units and the copy engines. Each is busy until a time on the simulated clock.

use crate::model::Profile;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// Host to device.
    In,
    /// Device to host.
    Out,
    /// Within the device.
    Within,
}

/// An interval on the simulated clock, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Begin.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// One compute unit's share of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The unit.
    pub unit: usize,
    /// Groups it runs.
    pub groups: u64,
    /// Time of its work.
    pub time: Interval,
}

/// Times until which each part is busy, ns.
#[derive(Clone, Debug)]
pub struct Engines {
    units: Vec<u64>,
    copies: Vec<u64>,
    processor: u64,
}

impl Engines {
    /// Returns idle engines.
    pub fn new(profile: &Profile) -> Self {
        Self {
            units: vec![0; profile.compute.units as usize],
            copies: vec![0; profile.link.copy_engines as usize],
            processor: 0,
        }
    }

    /// Returns the time at which the command processor would have read a command that is available at `ready`.
    pub fn earliest(&self, ready: u64) -> u64 {
        ready.max(self.processor)
    }

    /// Lets the command processor read a command, which takes `ns`.
    pub fn fetch(&mut self, ready: u64, ns: u64) -> u64 {
        self.processor = self.earliest(ready) + ns;
        self.processor
    }

    /// Returns the number of the engine for this copy direction.
    pub fn copy_engine(&self, direction: CopyDirection) -> usize {
        if direction == CopyDirection::Out { 1 % self.copies.len() } else { 0 }
    }

    /// Schedules a copy of `ns` that can start at `ready`.
    pub fn copy(&mut self, direction: CopyDirection, ready: u64, ns: u64) -> (usize, Interval) {
        let engine = self.copy_engine(direction);
        let start = ready.max(self.copies[engine]);
        let time = Interval { start, end: start + ns };
        self.copies[engine] = time.end;
        (engine, time)
    }

    /// Schedules a launch of `groups` groups that can start at `ready` and takes `ns` on the unit with most groups. Groups are distributed round
    /// robin over the units that are free first. A launch with fewer groups than units leaves the other units to other queues.
    pub fn compute(&mut self, ready: u64, groups: u64, ns: u64) -> (Interval, Vec<Share>) {
        let wanted = usize::try_from(groups).unwrap_or(usize::MAX).clamp(1, self.units.len());
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        order.sort_by_key(|u| (self.units[*u].max(ready), *u));
        order.truncate(wanted);
        let start = order.iter().map(|u| self.units[*u]).fold(ready, u64::max);
        let n = wanted as u64;
        let most = groups.div_ceil(n).max(1);
        let mut shares: Vec<Share> = Vec::with_capacity(wanted);
        for (i, unit) in order.into_iter().enumerate() {
            let mine = groups / n + u64::from((i as u64) < groups % n);
            // Rounded up, so that a share never takes zero time.
            let length = (u128::from(ns) * u128::from(mine)).div_ceil(u128::from(most)) as u64;
            let time = Interval { start, end: start + length };
            self.units[unit] = time.end;
            shares.push(Share { unit, groups: mine, time });
        }
        (Interval { start, end: start + ns }, shares)
    }

    /// Returns the time at which all parts are idle.
    pub fn idle_at(&self) -> u64 {
        self.units.iter().chain(&self.copies).copied().fold(self.processor, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines() -> Engines {
        Engines::new(&Profile::named("teaching").unwrap())
    }

    #[test]
    fn groups_are_dealt_in_turns_and_the_last_round_leaves_units_idle() {
        let (time, shares) = engines().compute(100, 6, 200);
        assert_eq!(time, Interval { start: 100, end: 300 });
        let groups: Vec<u64> = shares.iter().map(|s| s.groups).collect();
        assert_eq!(groups, [2, 2, 1, 1]);
        let ends: Vec<u64> = shares.iter().map(|s| s.time.end).collect();
        assert_eq!(ends, [300, 300, 200, 200]);
    }

    #[test]
    fn small_launches_of_two_queues_run_side_by_side_and_large_ones_do_not() {
        let mut e = engines();
        let (a, _) = e.compute(0, 2, 100);
        let (b, shares) = e.compute(0, 2, 100);
        assert_eq!((a.start, b.start), (0, 0));
        assert_eq!((shares[0].unit, shares[1].unit), (2, 3));
        let (c, _) = e.compute(0, 4, 50);
        assert_eq!(c, Interval { start: 100, end: 150 });
        assert_eq!(e.idle_at(), 150);
    }

    #[test]
    fn both_directions_move_at_a_time_and_each_direction_in_order() {
        let mut e = engines();
        let (engine, first) = e.copy(CopyDirection::In, 0, 100);
        let (_, second) = e.copy(CopyDirection::In, 10, 100);
        let (other, back) = e.copy(CopyDirection::Out, 10, 100);
        assert_ne!(engine, other);
        assert_eq!((first.end, second.start, back.start), (100, 100, 10));
        assert_eq!(e.fetch(5, 10), 15);
        assert_eq!(e.fetch(5, 10), 25);
    }
}
