//! Compares the time model with real GPUs: the output of `kernel_times` on an NVIDIA H200 and an H100 with the model's times of the same
//! launches. It does not use this machine's clock.
//!
//! `cargo test -p netcl-tensor --test timing --release -- --ignored --nocapture` compares everything and prints the tables of
//! docs/aethercl.md. The ordinary test compares the launches that are quick to count.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)] // tests

#[path = "../examples/kernel_times/cases.rs"]
mod cases;
#[path = "../examples/kernel_times/measure.rs"]
mod measure;

use aethercl::model::spearman;
use measure::{Line, Scratch};
use netcl_tensor::Settings;
use std::collections::{BTreeMap, BTreeSet};

/// A GPU, and the known exceptions of the model's times.
struct Card {
    /// Profile that models it.
    profile: &'static str,
    /// Output of `kernel_times`.
    measured: &'static str,
    /// Launches that differ by more than a factor of two, with the reason. An entry that is no longer needed fails the test.
    outside: &'static [Outside],
    /// Sweeps with a low rank correlation, with the reason. An entry that is no longer needed fails the test.
    unranked: &'static [Unranked],
}

/// Kernels change, and not every GPU is available when they do: launches that changed since a GPU was measured are skipped for it.
const CARDS: [Card; 2] = [
    Card {
        profile: "h200",
        measured: include_str!("timing/h200.jsonl"),
        outside: &OUTSIDE,
        unranked: &UNRANKED_H200,
    },
    Card {
        profile: "h100",
        measured: include_str!("timing/h100.jsonl"),
        outside: &OUTSIDE,
        unranked: &UNRANKED_H100,
    },
];

/// A kernel of a case for which the model is not within a factor of two.
struct Outside {
    case: &'static str,
    kernel: &'static str,
    /// Modeled over measured: no launch may be outside of this range.
    ratios: [f64; 2],
    why: &'static str,
}

const OUTSIDE: [Outside; 1] = [Outside {
    case: "sum of columns",
    kernel: "reduce_columns",
    ratios: [0.5, 2.15],
    why: "one of six second passes, 11 us: a compiler keeps more than 16 bytes per lane in flight",
}];

/// A kernel whose parameters the model ranks with a correlation below [`RANKED`].
struct Unranked {
    case: &'static str,
    kernel: &'static str,
    /// Kernel whose parameters are swept.
    swept: &'static str,
    /// Lower bound of Spearman's coefficient.
    rank: f64,
    why: &'static str,
}

const LINES_LEFT: Unranked = Unranked {
    case: "layer norm plain",
    kernel: "norm_bwd_params",
    swept: "layer_norm_plain",
    rank: 0.0,
    why: "the parameter belongs to the kernel before it, which may leave its lines in the GPU's cache",
};

const UNRANKED_H200: [Unranked; 3] = [
    Unranked {
        case: "adamw",
        kernel: "optimizer_prepare",
        swept: "optimizer",
        rank: 0.0,
        why: "one group, which the parameters do not change: 5 to 7.5 us on the GPU",
    },
    LINES_LEFT,
    Unranked {
        case: "layer norm f32",
        kernel: "norm_fwd",
        swept: "norm_rows_fwd",
        rank: 0.35,
        why: "four numbers of groups: three take equal time, and the fourth is 20 % slower on the GPU",
    },
];

const UNRANKED_H100: [Unranked; 2] = [
    LINES_LEFT,
    Unranked {
        case: "sum of rows",
        kernel: "reduce_rows",
        swept: "reduce",
        rank: 0.55,
        why: "groups of 256 are slowest in both; the other four times are within 4 % of each other on the GPU",
    },
];

/// Minimum of Spearman's coefficient for other sweeps.
const RANKED: f64 = 0.8;

/// Measured times that differ by less than this factor count as equal.
const SPREAD: f64 = 1.25;

type Key = (String, String, BTreeMap<String, i64>, usize, String);

/// Measured and modeled times of each launch of a case.
type Times = BTreeMap<(String, String, usize, String), Vec<(f64, f64)>>;

fn key(line: &Line) -> Key {
    (line.case.clone(), line.swept.clone(), line.variant.clone(), line.index, line.kernel.clone())
}

/// Result of the comparison with one GPU.
struct Compared {
    wrong: Vec<String>,
    /// Launches that were not measured on the GPU, or with other sizes.
    unknown: BTreeSet<String>,
}

impl Card {
    fn measured(&self) -> BTreeMap<Key, Line> {
        let lines = self.measured.lines().skip(1).map(|l| serde_json::from_str::<Line>(l).unwrap());
        lines.map(|l| (key(&l), l)).collect()
    }

    /// Compares these families.
    fn compare(&self, families: &[&str]) -> Compared {
        let device = measure::open(&format!("sim:{}", self.profile), Settings::default()).unwrap();
        let scratch = Scratch::new(&device).unwrap();
        let real = self.measured();
        let mut unknown = BTreeSet::new();
        let mut kernels: Times = BTreeMap::new();
        for (_, family) in cases::FAMILIES.iter().filter(|(name, _)| families.contains(name)) {
            for case in family(&device).unwrap() {
                let mut lines = Vec::new();
                measure::measure(&device, &scratch, &case, |l| lines.push(l)).unwrap();
                for line in lines.iter().map(|l| serde_json::from_str::<Line>(l).unwrap()) {
                    let same = |known: &&Line| (line.global, line.local) == (known.global, known.local);
                    let Some(known) = real.get(&key(&line)).filter(same) else {
                        unknown.insert(format!("{} {} {:?}", line.case, line.kernel, line.variant));
                        continue;
                    };
                    let kernel = (line.case, line.swept, line.index, line.kernel);
                    kernels.entry(kernel).or_default().push((known.us, line.us));
                }
            }
        }
        let compared = kernels.values().map(Vec::len).sum::<usize>();
        println!(
            "{}: {compared} launches compared, {} not measured in their current form",
            self.profile,
            unknown.len()
        );
        let mut wrong = self.outside(&kernels);
        wrong.extend(self.ranked(kernels));
        wrong.iter_mut().for_each(|w| w.insert_str(0, &format!("{}: ", self.profile)));
        Compared { wrong, unknown }
    }

    /// Returns launches outside of a factor of two, or outside of an exception's range, and exceptions that are not needed.
    fn outside(&self, kernels: &Times) -> Vec<String> {
        let mut ratios: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
        for ((case, _, _, kernel), times) in kernels {
            ratios.entry((case, kernel)).or_default().extend(times.iter().map(|(real, model)| model / real));
        }
        let mut wrong = Vec::new();
        for ((case, kernel), ratios) in ratios {
            let excuse = self.outside.iter().find(|o| (o.case, o.kernel) == (case, kernel));
            let [low, high] = excuse.map_or([0.5, 2.0], |o| o.ratios);
            let far: Vec<&f64> = ratios.iter().filter(|r| !(low..=high).contains(*r)).collect();
            if !far.is_empty() {
                wrong.push(format!(
                    "{case} {kernel}: modeled over measured is {far:.2?}, expected {low} to {high}"
                ));
            }
            if let (Some(o), true) = (excuse, ratios.iter().all(|r| (0.5..=2.0).contains(r))) {
                wrong.push(format!(
                    "{case} {kernel} is within a factor of two; remove its exception ({})",
                    o.why
                ));
            }
        }
        wrong
    }

    /// Prints the table of docs/aethercl.md, one line per launch of a case. Returns sweeps with a low rank correlation.
    fn ranked(&self, kernels: Times) -> Vec<String> {
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
            let excuse = self
                .unranked
                .iter()
                .find(|u| (u.case, u.kernel, u.swept) == (case.as_str(), kernel.as_str(), swept.as_str()));
            if rank < excuse.map_or(RANKED, |u| u.rank) {
                wrong.push(format!("{case} {kernel}: ranked with {rank:.2}"));
            }
            if let (Some(u), true) = (excuse, rank >= RANKED) {
                wrong.push(format!(
                    "{case} {kernel} is ranked with {rank:.2}; remove its exception ({})",
                    u.why
                ));
            }
        }
        wrong
    }
}

/// Returns the defects of the model's times of these families. Each launch must have been measured on some GPU.
fn compare(families: &[&str]) -> Vec<String> {
    let compared = CARDS.map(|card| card.compare(families));
    let unknown = compared.iter().map(|c| c.unknown.clone()).reduce(|a, b| &a & &b).unwrap_or_default();
    let unknown = unknown.into_iter().map(|launch| format!("{launch} was not measured on any GPU"));
    unknown.chain(compared.into_iter().flat_map(|c| c.wrong)).collect()
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
