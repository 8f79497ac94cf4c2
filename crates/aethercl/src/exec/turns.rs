//! Groups of one thread in turns, so that one may wait for what another does.
//!
//! A group runs to its end unless it takes long. Then the others get turns: it may wait for one of them, as a device that holds all of
//! them at a time would let it. As many as are waiting join them, again and again, up to what a device holds.

use super::group::Group;
use super::observer::Looked;
use super::run::{Place, Stop};
use super::shared::Shared;
use crate::check::Details;
use std::time::Instant;

/// Instructions that a group executes by itself before others get turns. Few kernels have groups as long as that.
const ALONE: u64 = 1 << 18;
/// Instructions of a turn.
const TURN: u64 = 1 << 12;
/// Groups at a time at most. Devices hold some thousands of small ones.
const MOST: usize = 1024;
/// Bytes that the state of all of them takes at most, about.
const MOST_BYTES: usize = 512 << 20;
/// Bytes that counters and checks keep for an instruction, about.
const OBSERVED: usize = 512;

/// A group that has begun.
struct Resident<'a> {
    group: Group<'a>,
    place: Place,
    number: u64,
}

/// What became of the groups.
#[derive(Default)]
pub struct Ended {
    /// What groups printed, by number.
    pub printed: Vec<(u64, String)>,
    /// The group that ended them all.
    pub stopped: Option<(u64, Stop)>,
    /// What that group waits for.
    pub awaited: Option<(usize, Details)>,
    /// What observers saw.
    pub looked: Option<Looked>,
}

/// Runs `count` groups, of which `id` tells the place and `fresh` makes the state.
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
    let mut progress = Instant::now();
    let most = most(shared);
    loop {
        while residents.len() < wanted && next < count {
            let mut group = idle.pop().unwrap_or_else(&fresh);
            group.start(id(next));
            let place = group.begin();
            residents.push(Resident { group, place, number: next });
            next += 1;
        }
        if residents.is_empty() {
            break;
        }
        let turn = if wanted == 1 { ALONE } else { TURN };
        let deadline = shared.max_time.and_then(|t| progress.checked_add(t));
        let before = residents.len();
        match pass(&mut residents, &mut idle, (turn, deadline), &mut out.printed) {
            Ok(()) if residents.len() < before => progress = Instant::now(),
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

/// Who else there is, for the message about a group that waits.
fn others(begun: u64, count: u64) -> String {
    match count - begun {
        _ if count == 1 => ", and there is no other work-group".into(),
        0 => format!(", and all {count} work-groups have begun"),
        rest => format!(
            "; {begun} of {count} work-groups have begun, {rest} begin when others end, and a device that holds no more would wait as well"
        ),
    }
}

/// What a group's observer saw.
fn keep(out: &mut Ended, group: &mut Group<'_>) {
    if let Some(observer) = group.take_observer() {
        let looked = observer.finish();
        out.looked = Some(match out.looked.take() {
            Some(others) => others.and(looked),
            None => looked,
        });
    }
}

/// A turn for each of them; those that end are idle afterwards. The one that has to stop, by its place.
fn pass<'a>(
    residents: &mut Vec<Resident<'a>>,
    idle: &mut Vec<Group<'a>>,
    (turn, deadline): (u64, Option<Instant>),
    printed: &mut Vec<(u64, String)>,
) -> Result<(), (usize, Stop)> {
    let mut at = 0;
    while at < residents.len() {
        let Resident { group, place, number } = &mut residents[at];
        let ended = group.go_on(place, turn, deadline);
        let text = group.take_printed();
        if !text.is_empty() {
            match printed.iter_mut().find(|(of, _)| of == number) {
                Some((_, before)) => before.push_str(&text),
                None => printed.push((*number, text)),
            }
        }
        if ended.map_err(|stop| (at, stop))? {
            idle.push(residents.remove(at).group);
        } else {
            at += 1;
        }
    }
    let late = deadline.is_some_and(|d| Instant::now() >= d);
    match residents.first() {
        Some(first) if late => Err((0, Stop::Time(first.group.span(&first.place)))),
        _ => Ok(()),
    }
}

/// Groups that there is room for at a time.
fn most(shared: &Shared<'_>) -> usize {
    let code = shared.code;
    let lanes = shared.range[2].iter().product::<u64>() as usize;
    let lane = 4 * usize::from(code.words) + 8 * usize::from(code.longs) + code.private_bytes as usize;
    let group = lane * lanes + shared.local_bytes as usize + OBSERVED * code.insts.len();
    (MOST_BYTES / group.max(1)).clamp(2, MOST)
}
