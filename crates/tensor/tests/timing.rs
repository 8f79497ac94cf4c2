//! The time model against a real card: what `kernel_times` printed on an NVIDIA H200 beside what the model says of the same
//! launches. No clock of this machine has a part in it.
//!
//! `cargo test -p netcl-tensor --test timing --release -- --ignored --nocapture` goes through all of it and prints the table
//! of docs/aethercl.md; the ordinary test takes what is quick to count.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)] // tests

#[path = "../examples/kernel_times/cases.rs"]
mod cases;
#[path = "../examples/kernel_times/measure.rs"]
mod measure;

use aethercl::model::spearman;
use measure::{Line, Scratch};
use netcl_tensor::Settings;
use std::collections::BTreeMap;

const MEASURED: &str = include_str!("timing/h200.jsonl");

/// A kernel of a case that the model is not within twice of.
struct Outside {
    case: &'static str,
    kernel: &'static str,
    /// Modelled over measured: no launch may be further off than these.
    ratios: [f64; 2],
    why: &'static str,
}

/// What is not within twice, and why. An entry that is no longer needed is an error too.
const OUTSIDE: [Outside; 1] = [Outside {
    case: "sum of columns",
    kernel: "reduce_columns",
    ratios: [0.5, 2.15],
    why: "one of six second passes, 11 us: a compiler has more than 16 bytes a lane on their way",
}];

/// Launches that have other sizes than when the card was measured: case, kernel. They are not compared until it is measured again.
const RESIZED: [(&str, &str); 0] = [];

/// A kernel whose parameters the model ranks with less than [`RANKED`].
struct Unranked {
    case: &'static str,
    kernel: &'static str,
    /// Which kernel's parameters are gone through.
    swept: &'static str,
    /// Spearman's coefficient is at least this.
    rank: f64,
    why: &'static str,
}

/// What is ranked badly, and why. An entry that is no longer needed is an error too.
const UNRANKED: [Unranked; 3] = [
    Unranked {
        case: "adamw",
        kernel: "optimizer_prepare",
        swept: "optimizer",
        rank: 0.0,
        why: "one group, which the parameters do not change: 5 to 7.5 us on the card",
    },
    Unranked {
        case: "layer norm plain",
        kernel: "norm_bwd_params",
        swept: "layer_norm_plain",
        rank: 0.0,
        why: "the parameter is the kernel's before it, which leaves its lines in the card's cache or not",
    },
    Unranked {
        case: "layer norm f32",
        kernel: "norm_fwd",
        swept: "norm_rows_fwd",
        rank: 0.35,
        why: "four counts of groups, of which three are one time and the fourth is 20 % slower on the card",
    },
];

/// Spearman's coefficient that other sweeps reach.
const RANKED: f64 = 0.8;

/// Measured times that differ by less than this are one time.
const SPREAD: f64 = 1.25;

type Key = (String, String, BTreeMap<String, i64>, usize, String);

/// Measured and modelled times of each launch of a case.
type Times = BTreeMap<(String, String, usize, String), Vec<(f64, f64)>>;

fn key(line: &Line) -> Key {
    (line.case.clone(), line.swept.clone(), line.variant.clone(), line.index, line.kernel.clone())
}

fn measured() -> BTreeMap<Key, Line> {
    let lines = MEASURED.lines().skip(1).map(|l| serde_json::from_str::<Line>(l).unwrap());
    lines.map(|l| (key(&l), l)).collect()
}

/// Goes through these families; what is wrong.
fn compare(families: &[&str]) -> Vec<String> {
    let settings = Settings::default();
    let device = measure::open("sim:h200", settings).unwrap();
    let scratch = Scratch::new(&device).unwrap();
    let real = measured();
    let mut wrong = Vec::new();
    let mut kernels: Times = BTreeMap::new();
    for (_, family) in cases::FAMILIES.iter().filter(|(name, _)| families.contains(name)) {
        for case in family(&device).unwrap() {
            let mut lines = Vec::new();
            measure::measure(&device, &scratch, &case, |l| lines.push(l)).unwrap();
            for line in lines.iter().map(|l| serde_json::from_str::<Line>(l).unwrap()) {
                let Some(known) = real.get(&key(&line)) else {
                    wrong.push(format!("{} {} was not measured", line.case, line.kernel));
                    continue;
                };
                let resized = (line.global, line.local) != (known.global, known.local);
                let listed = RESIZED.contains(&(line.case.as_str(), line.kernel.as_str()));
                if resized != listed {
                    let how = if resized {
                        "had other sizes when it was measured"
                    } else {
                        "has the sizes measured"
                    };
                    wrong.push(format!("{} {} {:?} {how}", line.case, line.kernel, line.variant));
                }
                if resized {
                    continue;
                }
                let kernel = (line.case, line.swept, line.index, line.kernel);
                kernels.entry(kernel).or_default().push((known.us, line.us));
            }
        }
    }
    wrong.extend(outside(&kernels));
    wrong.extend(ranked(kernels));
    wrong
}

/// Launches further off than twice, or than what is excused; excuses that nothing needs.
fn outside(kernels: &Times) -> Vec<String> {
    let mut ratios: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for ((case, _, _, kernel), times) in kernels {
        ratios.entry((case, kernel)).or_default().extend(times.iter().map(|(real, model)| model / real));
    }
    let mut wrong = Vec::new();
    for ((case, kernel), ratios) in ratios {
        let excuse = OUTSIDE.iter().find(|o| (o.case, o.kernel) == (case, kernel));
        let [low, high] = excuse.map_or([0.5, 2.0], |o| o.ratios);
        let far: Vec<&f64> = ratios.iter().filter(|r| !(low..=high).contains(*r)).collect();
        if !far.is_empty() {
            wrong.push(format!("{case} {kernel}: modelled over measured is {far:.2?}, not {low} to {high}"));
        }
        if let (Some(o), true) = (excuse, ratios.iter().all(|r| (0.5..=2.0).contains(r))) {
            wrong.push(format!("{case} {kernel} is within twice and needs no excuse ({})", o.why));
        }
    }
    wrong
}

/// Prints the table of docs/aethercl.md, a line for each launch of a case; those whose parameters are ranked badly.
fn ranked(kernels: Times) -> Vec<String> {
    let mut wrong = Vec::new();
    for ((case, swept, _, kernel), times) in kernels {
        let (real, model): (Vec<f64>, Vec<f64>) = times.iter().copied().unzip();
        let ends = |v: &[f64]| v.iter().fold((f64::MAX, 0.0f64), |(l, h), x| (l.min(*x), h.max(*x)));
        let ratios: Vec<f64> = times.iter().map(|(r, m)| m / r).collect();
        let rank = spearman(&real, &model);
        let spread = ends(&real).1 / ends(&real).0;
        let ratio = match (ratios.as_slice(), ends(&ratios)) {
            ([one], _) => format!("{one:.2}"),
            (_, (low, high)) => format!("{low:.2} to {high:.2}"),
        };
        let shown = if times.len() > 2 && spread > SPREAD { format!("{rank:.2}") } else { String::new() };
        println!(
            "| {case} | {kernel} | {} | {:.1} | {:.1} | {ratio} | {shown} |",
            times.len(),
            real[0],
            model[0]
        );
        if times.len() <= 2 || spread <= SPREAD {
            continue;
        }
        let excuse = UNRANKED
            .iter()
            .find(|u| (u.case, u.kernel, u.swept) == (case.as_str(), kernel.as_str(), swept.as_str()));
        if rank < excuse.map_or(RANKED, |u| u.rank) {
            wrong.push(format!("{case} {kernel}: ranked with {rank:.2}"));
        }
        if let (Some(u), true) = (excuse, rank >= RANKED) {
            wrong.push(format!("{case} {kernel} is ranked with {rank:.2} and needs no excuse ({})", u.why));
        }
    }
    wrong
}

#[test]
fn the_model_is_near_a_card_where_it_is_quick_to_count() {
    let wrong = compare(&["reductions", "steps"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "two minutes; prints the table"]
fn the_model_is_near_a_card() {
    let families: Vec<&str> = cases::FAMILIES.iter().map(|(name, _)| *name).collect();
    let wrong = compare(&families);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ranks_are_spearmans() {
    assert!((spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 40.0]) - 1.0).abs() < 1e-12);
    assert!((spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
    assert_eq!(spearman(&[1.0, 2.0, 3.0], &[5.0, 5.0, 5.0]), 0.0);
    assert!((spearman(&[1.0, 2.0, 3.0, 4.0], &[1.0, 3.0, 2.0, 4.0]) - 0.8).abs() < 1e-12);
}
