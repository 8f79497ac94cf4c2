//! `--explain` and `--regret`: the rows of a table of algorithms for a problem, and how much longer its choices take than the fastest rows, over
//! random problems.

use super::Bench;
use crate::out;
use crate::table::Table;
use netcl::prelude::*;
use netcl::tensor::ops::Row;
use serde_json::{Value, json};
use std::time::Instant;

/// Solves a problem with the named algorithm.
pub type SolveWith<'a> = Box<dyn Fn(&str) -> Result<()> + 'a>;

/// A choice between algorithms for one problem.
pub struct Choice<'a> {
    /// JSON description of the problem: an object.
    pub about: Value,
    /// Shape and kind, as text.
    pub shown: [String; 2],
    /// Rows of the table.
    pub rows: Vec<Row>,
    pub run: SolveWith<'a>,
}

impl Choice<'_> {
    fn json(&self, bench: &Bench, rest: Value) -> Result<()> {
        let mut line = self.about.clone();
        line["dtype"] = bench.kind.as_str().into();
        for (key, value) in rest.as_object().into_iter().flatten() {
            line[key] = value.clone();
        }
        out::json(&line)
    }

    /// Prints every algorithm with its estimate, or why it does not apply.
    pub fn explain(&self, bench: &Bench) -> Result<()> {
        if bench.printer.json {
            let row = |row: &Row| match &row.estimate {
                Ok((micros, plan)) => {
                    json!({ "algorithm": row.name, "estimate_us": micros, "plan": plan, "chosen": row.chosen })
                }
                Err(why) => json!({ "algorithm": row.name, "why_not": why }),
            };
            let rows: Vec<_> = self.rows.iter().map(row).collect();
            return self.json(bench, json!({ "algorithms": rows }));
        }
        let [shape, kind] = &self.shown;
        out::result(&format!("{shape} {kind} {}", bench.kind))?;
        let mut table = Table::new(&["", "algorithm", ">estimate", "plan, or why it does not apply"]);
        for row in &self.rows {
            let mark = if row.chosen { "*" } else { "" };
            let (micros, text) = match &row.estimate {
                Ok((micros, plan)) => (format!("{micros:.1} us"), plan.clone()),
                Err(why) => (String::new(), why.clone()),
            };
            table.row([mark.into(), row.name.into(), micros, text]);
        }
        table.lines().iter().try_for_each(|line| out::result(line))
    }

    /// Returns the microseconds of each row that applies, is `wanted` and builds on the driver: the smallest of several samples, taken in turn.
    pub fn times(
        &self,
        device: &Device,
        sample_ms: f64,
        samples: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Vec<(f64, &Row)> {
        let timed = |row: &Row, calls: usize| -> Result<f64> {
            let begun = Instant::now();
            for _ in 0..calls {
                (self.run)(row.name)?;
            }
            device.finish()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        };
        let applies = |row: &&Row| row.estimate.as_ref().is_ok_and(|(micros, _)| micros.is_finite());
        let mut all = Vec::new();
        for row in self.rows.iter().filter(applies).filter(|row| wanted(row.name)) {
            // A driver may refuse one of a kernel's sources; then it is not a candidate.
            if let Ok(once) = timed(row, 1).and_then(|_| timed(row, 1)) {
                let calls = (sample_ms * 1e3 / once.max(1.0)).ceil().clamp(1.0, 1000.0);
                all.push((once, row, calls as usize));
            }
        }
        // A single candidate needs only one sample.
        for _ in 0..if all.len() > 1 { samples } else { 1 } {
            for (least, row, calls) in all.iter_mut().filter(|(least, ..)| *least <= LONG_CALL_MICROSECONDS) {
                if let Ok(micros) = timed(row, *calls) {
                    *least = least.min(micros / *calls as f64);
                }
            }
        }
        all.into_iter().map(|(least, row, _)| (least, row)).collect()
    }
}

/// Timed samples of each row.
const SAMPLES: usize = 5;
/// Microseconds of a call from which one call per sample suffices, because launch overhead is negligible.
const LONG_CALL_MICROSECONDS: f64 = 200e3;

/// Quality of the choices so far.
pub struct Regrets {
    table: Table,
    all: Vec<f64>,
}

impl Regrets {
    /// Creates an empty record; `kind` is the heading of the second column of [`Choice::shown`].
    pub fn new(shape: &str, kind: &str) -> Self {
        let heads = [shape, kind, ">regret", ">chosen us", ">best us", "chosen", "best"];
        Self { table: Table::new(&heads), all: Vec::new() }
    }

    /// Times every row that applies.
    ///
    /// # Errors
    /// `Internal` if the chosen row cannot be timed.
    pub fn measure(&mut self, bench: &Bench, choice: &Choice<'_>) -> Result<()> {
        let times = choice.times(&bench.device, bench.rounds.sample_ms, SAMPLES, &|_| true);
        let [shape, kind] = &choice.shown;
        let best = times.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let chosen = times.iter().find(|(_, row)| row.chosen);
        let (Some((best, best_row)), Some((chosen, chosen_row))) = (best, chosen) else {
            return Err(Error::internal(format!("bench: no algorithm was chosen for {shape} {kind}")));
        };
        let regret = chosen / best;
        self.all.push(regret);
        if bench.printer.json {
            let row = |(us, row): &(f64, &Row)| {
                let estimate = row.estimate.as_ref().map_or(0.0, |(micros, _)| *micros);
                json!({ "algorithm": row.name, "us": us, "estimate_us": estimate })
            };
            let rows: Vec<_> = times.iter().map(row).collect();
            choice.json(bench, json!({ "regret": regret, "algorithms": rows }))?;
        }
        self.table.row([
            shape.clone(),
            kind.clone(),
            format!("{regret:.2}"),
            format!("{chosen:.1}"),
            format!("{best:.1}"),
            chosen_row.name.into(),
            if regret > 1.0 { best_row.name.into() } else { String::new() },
        ]);
        Ok(())
    }

    /// Prints all cases, with the mean and the worst ratio.
    pub fn finish(self, bench: &Bench, what: &str, seed: u64) -> Result<()> {
        if !bench.printer.json {
            self.table.lines().iter().try_for_each(|line| out::result(line))?;
        }
        let mean = self.all.iter().sum::<f64>() / self.all.len().max(1) as f64;
        let worst = self.all.iter().copied().fold(0.0, f64::max);
        out::note(&format!(
            "{} {what} in {}, seed {seed}: regret {mean:.3} on average, {worst:.2} at worst",
            self.all.len(),
            bench.kind
        ));
        Ok(())
    }
}

/// Mixes bits; the result is the same in each run.
pub fn mixed(i: u64) -> u64 {
    let mixed = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Returns the bits for number i of problem n.
pub fn drawn(seed: u64, n: u64, i: u64) -> u64 {
    mixed(mixed(seed.wrapping_mul(0x9E37) ^ n) ^ i)
}

/// Returns a size from 1 to `largest` from such bits, uniform in its logarithm.
pub fn spread(bits: u64, largest: f64) -> usize {
    (largest.powf((bits >> 11) as f64 / (1u64 << 53) as f64).round() as usize).max(1)
}

/// Does the same; two in three are multiples of 64 or of 8 if they are large enough.
pub fn axis(bits: u64, largest: f64) -> usize {
    let size = spread(bits, largest);
    match bits % 3 {
        0 if size >= 128 => size / 64 * 64,
        1 if size >= 16 => size / 8 * 8,
        _ => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_and_repeat() {
        let sizes = |seed| (0..400).map(|n| axis(drawn(seed, n, 0), 8192.0)).collect::<Vec<usize>>();
        let some = sizes(3);
        assert!(some.iter().all(|s| (1..=8192).contains(s)));
        let share = |f: &dyn Fn(usize) -> bool| some.iter().filter(|s| f(**s)).count();
        assert!(share(&|s| s < 16) > 60 && share(&|s| s > 1000) > 60 && share(&|s| s % 2 == 1) > 60);
        assert_eq!(some, sizes(3));
        assert_ne!(some, sizes(4));
    }
}
