//! Cooperative scheduling of work-groups on one thread, so that a work-group can wait for a later one.
//!
//! A work-group runs to its end unless that takes many instructions: then it may be waiting for another one. In that case work-groups run round
//! robin, in time slices. While no work-group ends, the number of resident work-groups is doubled, up to a limit that is about the capacity of a
//! device.

use super::clock::thread_time;
use super::group::Group;
use super::observer::Looked;
use super::run::{GroupState, Stop};
use super::shared::Shared;
use crate::check::Details;
use std::time::Duration;

/// Instructions that a work-group executes before others are started. Few kernels have work-groups that long.
const INSTRUCTIONS_BEFORE_SHARING: u64 = 1 << 18;
/// Instructions of a time slice.
const INSTRUCTIONS_PER_SLICE: u64 = 1 << 12;
/// Maximum number of resident work-groups. Real devices hold up to a few thousand small ones.
const MAX_RESIDENT_GROUPS: usize = 1024;
/// Approximate memory limit for the state of all resident work-groups, bytes.
const MAX_STATE_BYTES: usize = 512 << 20;
/// Approximate memory of counters for each instruction, bytes.
const OBSERVED: usize = 512;

/// A work-group that has started.
struct Resident<'a> {
    group: Group<'a>,
    place: GroupState,
    number: u64,
    /// CPU time of this work-group, without that of others between its slices.
    ran: Duration,
}

/// Result of all work-groups.
#[derive(Default)]
pub struct Ended {
    /// Output of `printf` by work-group number.
    pub printed: Vec<(u64, String)>,
    /// The work-group that exceeded a limit, which ends the launch.
    pub stopped: Option<(u64, Stop)>,
    /// The value that this work-group waits for.
    pub awaited: Option<(usize, Details)>,
    /// Results of checks and counters.
    pub looked: Option<Looked>,
}

/// Runs `count` work-groups. `id` maps a number to a group id; `fresh` allocates the state of a work-group.
pub fn in_turns<'a>(
    shared: &'a Shared<'a>,
    count: u64,
    id: impl Fn(u64) -> [u64; 3],
    fresh: impl Fn() -> Group<'a>,
) -> Ended {
    let mut out = Ended::default();
    let mut residents: Vec<Resident<'a>> = Vec::new();
    let mut idle: Vec<Group<'a>> = Vec::new();
    let (mut next, mut wanted) = (0, 1);
    let mut progress = thread_time();
    let most = most(shared);
    loop {
        while residents.len() < wanted && next < count {
            let mut group = idle.pop().unwrap_or_else(&fresh);
            group.start(id(next));
            let place = group.begin();
            residents.push(Resident { group, place, number: next, ran: Duration::ZERO });
            next += 1;
        }
        if residents.is_empty() {
            break;
        }
        let turn = if wanted == 1 { INSTRUCTIONS_BEFORE_SHARING } else { INSTRUCTIONS_PER_SLICE };
        let before = residents.len();
        let passed = pass(&mut residents, &mut idle, (turn, shared.max_time), &mut out.printed)
            .and_then(|()| stuck(&mut residents, shared.max_time, &mut progress));
        match passed {
            Ok(()) if residents.len() < before => progress = thread_time(),
            Ok(()) if next < count && wanted < most => wanted = (2 * wanted).min(most),
            Ok(()) => {}
            Err((at, stop)) => {
                let resident = &mut residents[at];
                out.stopped = Some((resident.number, stop));
                idle.extend(residents.drain(..at).map(|r| r.group));
                let mut last = residents.swap_remove(0);
                keep(&mut out, &mut last.group);
                idle.extend(residents.drain(..).map(|r| r.group));
                out.awaited = last.group.awaited(&mut last.place).map(|(pc, mut details)| {
                    details.message += &others(next, count);
                    (pc, details)
                });
                break;
            }
        }
    }
    idle.iter_mut().for_each(|group| keep(&mut out, group));
    out
}

/// Describes the other work-groups, for the message about a waiting work-group.
fn others(begun: u64, count: u64) -> String {
    match count - begun {
        _ if count == 1 => ", and there is no other work-group".into(),
        0 => format!(", and all {count} work-groups have begun"),
        rest => format!(
            "; {begun} of {count} work-groups have begun, {rest} begin when others end, and a device that holds no more would wait as well"
        ),
    }
}

/// Merges the results of a work-group's observer.
fn keep(out: &mut Ended, group: &mut Group<'_>) {
    if let Some(observer) = group.take_observer() {
        let looked = observer.finish();
        out.looked = Some(match out.looked.take() {
            Some(others) => others.and(looked),
            None => looked,
        });
    }
}

/// Runs one time slice of every resident work-group; those that end become idle. An error contains the index of the work-group that exceeded a limit.
fn pass<'a>(
    residents: &mut Vec<Resident<'a>>,
    idle: &mut Vec<Group<'a>>,
    (turn, most): (u64, Option<Duration>),
    printed: &mut Vec<(u64, String)>,
) -> Result<(), (usize, Stop)> {
    let mut at = 0;
    while at < residents.len() {
        let Resident { group, place, number, ran } = &mut residents[at];
        let begun = thread_time();
        let deadline = most.and_then(|t| begun.checked_add(t.saturating_sub(*ran)));
        let ended = group.go_on(place, turn, deadline);
        *ran += thread_time() - begun;
        let text = group.take_printed();
        if !text.is_empty() {
            match printed.iter_mut().find(|(of, _)| of == number) {
                Some((_, before)) => before.push_str(&text),
                None => printed.push((*number, text)),
            }
        }
        if ended.map_err(|stop| (at, stop))? {
            idle.push(residents.remove(at).group);
        } else if most.is_some_and(|t| *ran >= t) {
            return Err((at, Stop::Time(group.span(place))));
        } else {
            at += 1;
        }
    }
    Ok(())
}

/// Called if no work-group has ended within the time limit of one. Returns an error if each of them is waiting, because otherwise each would need the
/// full limit to be detected.
fn stuck(
    residents: &mut [Resident<'_>],
    most: Option<Duration>,
    progress: &mut Duration,
) -> Result<(), (usize, Stop)> {
    if residents.is_empty() || most.is_none_or(|t| thread_time() - *progress < t) {
        return Ok(());
    }
    for (at, Resident { group, place, .. }) in residents.iter_mut().enumerate() {
        if !group.polls(place).map_err(|stop| (at, stop))? {
            *progress = thread_time();
            return Ok(());
        }
    }
    Err((0, Stop::Time(residents[0].group.span(&residents[0].place))))
}

/// Returns the maximum number of resident work-groups for this launch.
fn most(shared: &Shared<'_>) -> usize {
    let code = shared.code;
    let lanes = shared.range[2].iter().product::<u64>() as usize;
    let lane = 4 * usize::from(code.words) + 8 * usize::from(code.longs) + code.private_bytes as usize;
    let group = lane * lanes + shared.local_bytes as usize + OBSERVED * code.insts.len();
    (MAX_STATE_BYTES / group.max(1)).clamp(2, MAX_RESIDENT_GROUPS)
}
