//! `report.html`: a summary of a run in one self-contained file without scripts; charts are inline SVG.

mod axis;
mod bars;
mod chart;
mod format;
mod page;
mod series;

use super::{StepMetrics, speed};
use crate::evaluate::PreferenceMetrics;
use axis::AxisUnit;
use chart::Chart;
use series::{Point, Series, smooth};

/// Content of the page. Empty parts are left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report<'a> {
    /// The run's name.
    pub title: &'a str,
    /// A sentence on how the run ended.
    pub status: &'a str,
    /// Whether a step's loss includes the balance loss of experts, which the validation loss does not include.
    pub balanced: bool,
    /// Metrics of all steps.
    pub metrics: &'a [StepMetrics],
    /// Time of each kernel, if the run was profiled.
    pub kernels: &'a [KernelTime],
    /// Tables with headings: model, device, configuration.
    pub tables: &'a [(&'a str, Vec<(String, String)>)],
}

/// Time of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Its name.
    pub name: String,
    /// Number of launches.
    pub launches: u64,
    /// Total device time.
    pub seconds: f64,
}

/// Number of earlier samples shown.
const MAX_SAMPLES: usize = 12;

impl Report<'_> {
    /// Returns the page as HTML.
    pub fn html(&self) -> String {
        let mut body = page::header(self.title, self.status);
        body += &page::tiles(&self.tiles());
        body += &page::section("", &self.charts());
        if !self.kernels.is_empty() {
            body += &page::section("Time per kernel", &bars::html(self.kernels));
        }
        body += &self.samples();
        let tables = self.tables.iter().filter(|(_, rows)| !rows.is_empty());
        body += &page::columns(tables.map(|(heading, rows)| page::table(heading, rows)));
        page::page(self.title, &body)
    }

    /// Returns the key figures: name, value, remark.
    fn tiles(&self) -> Vec<[String; 3]> {
        let Some(last) = self.metrics.last() else { return Vec::new() };
        let mut tiles = Vec::new();
        let evaluated =
            self.metrics.iter().filter_map(|m| Some((m.val_loss.filter(|loss| !loss.is_nan())?, m.step)));
        if let Some((loss, step)) = evaluated.min_by(|a, b| a.0.total_cmp(&b.0)) {
            tiles.push([
                "Best validation loss".into(),
                format!("{loss:.4}"),
                format!("at step {}", format::integer(step)),
            ]);
        }
        tiles.push(["Training loss".into(), format!("{:.4}", last.loss), "last step".into()]);
        let tokens = format!("{} tokens", format::short(last.tokens as f64));
        tiles.push(["Steps".into(), format::integer(last.step), tokens]);
        if let Some(speed) = speed::overall(self.metrics) {
            // The utilization of a step is scaled from its speed to the average speed of the run.
            let share = last.peak_share.filter(|_| last.tokens_per_s > 0.0);
            let share = share.map(|share| share / last.tokens_per_s * speed * 100.0);
            let share = share.map(|share| format!(", {} % of peak", format::three_digits(share)));
            let remark = format!("whole run{}", share.unwrap_or_default());
            tiles.push(["Tokens per second".into(), format::short(speed), remark]);
        }
        tiles.push(["Device memory".into(), format::bytes(last.memory as f64), "highest".into()]);
        tiles.push(["Time".into(), format::duration(last.elapsed), "of training".into()]);
        tiles
    }

    fn charts(&self) -> String {
        let line = |value: fn(&StepMetrics) -> f64| {
            self.metrics.iter().map(|m| (m.step as f64, value(m))).collect::<Vec<_>>()
        };
        let losses = line(|m| m.loss);
        let names = match self.balanced {
            false => ["training", "training, each step", "training, smoothed"],
            true => [
                "training with balance loss",
                "training with balance loss, each step",
                "training with balance loss, smoothed",
            ],
        };
        let mut lines = trend(losses, names);
        let evaluated = self.metrics.iter().filter_map(|m| Some((m.step as f64, m.val_loss?)));
        let name = if self.balanced { "validation without balance loss" } else { "validation" };
        lines.push(Series::second(name, evaluated.collect()));
        let drawn = |mut chart: Chart, series: &[Series]| {
            chart.series = series.to_vec();
            chart.svg()
        };
        // Each chart is drawn for wide and for narrow screens, and only one drawing is shown: a scaled-down chart would have unreadable labels.
        let half = |title, unit, series: Vec<Series>| {
            drawn(Chart::half(title, unit), &series)
                + &drawn(Chart::narrow(title, unit).starting_at_zero(), &series)
        };
        let unnamed = [""; 3];
        let speeds =
            self.metrics.iter().zip(speed::course(self.metrics)).map(|(m, speed)| (m.step as f64, speed));
        [
            drawn(Chart::wide("Loss", AxisUnit::Plain), &lines),
            drawn(Chart::narrow("Loss", AxisUnit::Plain), &lines),
            half("Learning rate", AxisUnit::Power, vec![Series::line("", line(|m| m.lr))]),
            half("Gradient norm", AxisUnit::Plain, trend(line(|m| m.grad_norm), unnamed)),
            half("Tokens per second", AxisUnit::Plain, vec![Series::line("", speeds.collect())]),
            half("Device memory", AxisUnit::Bytes, vec![Series::line("", line(|m| m.memory as f64))]),
            self.rewards().into_iter().map(|(title, series)| half(title, AxisUnit::Plain, series)).collect(),
        ]
        .concat()
    }

    /// Returns the charts of a run whose loss compares answers.
    fn rewards(&self) -> Vec<(&'static str, Vec<Series>)> {
        if self.metrics.iter().all(|m| m.preference.is_none()) {
            return Vec::new();
        }
        let of = |value: fn(&PreferenceMetrics) -> Option<f64>| {
            let points = |part: fn(&StepMetrics) -> Option<PreferenceMetrics>| {
                let found = self.metrics.iter().filter_map(move |m| Some((m.step as f64, value(&part(m)?)?)));
                found.collect::<Vec<_>>()
            };
            vec![
                Series::line("training", points(|m| m.preference)),
                Series::second("validation", points(|m| m.val_preference)),
            ]
        };
        let all = [
            ("Reward margin", of(|found| found.margin)),
            ("Reward accuracy", of(|found| found.accuracy)),
            ("Reward of chosen answers", of(|found| found.chosen_reward)),
            ("Reward of rejected answers", of(|found| found.rejected_reward)),
        ];
        all.into_iter().filter(|(_, series)| series.iter().any(|line| !line.points.is_empty())).collect()
    }

    fn samples(&self) -> String {
        let all: Vec<_> = self.metrics.iter().filter_map(|m| Some((m.step, m.sample.as_deref()?))).collect();
        let Some(((step, text), earlier)) = all.split_last() else { return String::new() };
        let shown = earlier.len().min(MAX_SAMPLES);
        // At equal distances over the run, including the first.
        let picked = (0..shown).map(|i| earlier[i * earlier.len() / shown]);
        let mut html = page::sample(*step, text, true);
        html.extend(picked.rev().map(|(step, text)| page::sample(step, text, false)));
        page::section("Samples", &html)
    }
}

/// Returns the lines of a noisy series: unchanged if short, otherwise a faint line with its moving average. The names are for these three cases.
fn trend(points: Vec<Point>, [name, each, smoothed]: [&'static str; 3]) -> Vec<Series> {
    match smooth(&points) {
        Some(course) => vec![Series::faint(each, points), Series::line(smoothed, course)],
        None => vec![Series::line(name, points)],
    }
}

#[cfg(test)]
mod tests;
