//! Line charts.

use super::{
    axis::{Axis, AxisUnit},
    format::{escape, short},
    series::Series,
};

/// Approximate width of a letter of the labels in SVG units.
const LETTER: f64 = 6.6;
const RIGHT: f64 = 18.0;
const BOTTOM: f64 = 40.0;

/// A chart with steps on the x axis.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    title: &'static str,
    unit: AxisUnit,
    size: (f64, f64),
    class: &'static str,
    /// Number of columns to which a line is thinned; above the pixels of a screen.
    columns: usize,
    /// Whether the y axis includes 0.
    starting_at_zero: bool,
    pub series: Vec<Series>,
}

/// The plot area.
struct Frame {
    x: Axis,
    y: Axis,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        self.left + self.x.at(value) * (self.right - self.left)
    }
    fn y(&self, value: f64) -> f64 {
        self.bottom - self.y.at(value) * (self.bottom - self.top)
    }
}

impl Chart {
    /// Creates a chart of full page width, whose y axis need not include 0.
    pub fn wide(title: &'static str, unit: AxisUnit) -> Self {
        let (size, class) = ((1080.0, 360.0), "full broad");
        Self { title, unit, size, class, columns: 700, starting_at_zero: false, series: Vec::new() }
    }

    /// Creates a chart of half the width.
    pub fn half(title: &'static str, unit: AxisUnit) -> Self {
        let (size, class) = ((530.0, 250.0), "half broad");
        Self { title, unit, size, class, columns: 700, starting_at_zero: true, series: Vec::new() }
    }

    /// Creates a chart for narrow screens.
    pub fn narrow(title: &'static str, unit: AxisUnit) -> Self {
        let (size, class) = ((380.0, 240.0), "full narrow");
        Self { title, unit, size, class, columns: 250, starting_at_zero: false, series: Vec::new() }
    }

    /// Makes the y axis include 0.
    pub fn starting_at_zero(self) -> Self {
        Self { starting_at_zero: true, ..self }
    }

    /// Returns the chart as SVG.
    pub fn svg(&self) -> String {
        let (width, height) = self.size;
        let (lo, max) = self.extent();
        let cap = self.cap(max);
        let (scale, unit) = self.unit.scale(cap);
        let y = Axis::new(
            if self.starting_at_zero { lo.min(0.0) } else { lo } / scale,
            cap / scale,
            if height > 300.0 { 6 } else { 4 },
            true,
        );
        let labels: Vec<_> = y.ticks().into_iter().map(|tick| (tick, y.label(tick))).collect();
        let longest = labels.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(1);
        let left = 18.0 + longest as f64 * LETTER;
        let (legend, rows) = self.legend(width);
        let top = 46.0 + rows * 22.0;
        let steps = self.series.iter().flat_map(Series::finite).map(|(x, _)| x);
        let (first, last) = steps.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        let x = Axis::new(first, last, ((width - left) / 75.0) as usize, false);
        let frame = Frame { x, y, left, top, right: width - RIGHT, bottom: height - BOTTOM };
        let mut svg = format!(
            "<svg class=\"{}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\
             <text class=\"title\" x=\"14\" y=\"26\">{title}<tspan class=\"unit\" dx=\"6\">{unit}</tspan></text>{legend}",
            self.class,
            title = escape(self.title),
        );
        if first.is_finite() {
            svg += &grid(&frame, &labels);
            // Clipped because values may exceed the upper end. The id of the clip path must be unique on the page.
            let id = format!("{}-{width}", self.title.replace(' ', "-").to_lowercase());
            svg += &format!(
                "<clipPath id=\"{id}\"><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/></clipPath>\
                 <g clip-path=\"url(#{id})\">",
                frame.left - 5.0,
                frame.top - 5.0,
                frame.right - frame.left + 10.0,
                frame.bottom - frame.top + 10.0
            );
            svg.extend(self.series.iter().map(|series| drawn(series, scale, self.columns, &frame)));
            svg += "</g>";
            if cap < max {
                let note = format!("highest, not shown: {}", short(max));
                svg += &text("note", frame.right, frame.top - 6.0, "end", &note);
            }
        } else {
            svg += &text("note", width / 2.0, height / 2.0, "middle", "no values");
        }
        svg + "</svg>\n"
    }

    /// Returns the lowest and the highest value.
    fn extent(&self) -> (f64, f64) {
        let values = self.series.iter().flat_map(Series::finite).map(|(_, y)| y);
        let (lo, hi) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), y| (a.min(y), b.max(y)));
        if lo <= hi { (lo, hi) } else { (0.0, 1.0) }
    }

    /// Returns the upper end of the y axis. Outliers (a hundredth of the values, many times higher than all others) are cut off, so that the rest
    /// stays readable. It follows from the first line; a second one is its average.
    fn cap(&self, max: f64) -> f64 {
        let mut values: Vec<_> =
            self.series.iter().take(1).flat_map(Series::finite).map(|(_, y)| y).collect();
        values.sort_by(f64::total_cmp);
        let high = values.get(values.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(max);
        if high > 0.0 && max > 8.0 * high { 1.5 * high } else { max }
    }

    /// Draws the legend: next to the title if there is room, otherwise in rows below it.
    fn legend(&self, width: f64) -> (String, f64) {
        let named: Vec<_> = self
            .series
            .iter()
            .filter(|series| !series.name.is_empty() && series.finite().next().is_some())
            .collect();
        let entry = |series: &&Series| 36.0 + series.name.chars().count() as f64 * LETTER;
        let total: f64 = named.iter().map(entry).sum();
        let title = 80.0 + self.title.chars().count() as f64 * 9.0;
        let below = total + title > width;
        let (mut x, mut rows) = if below { (14.0, 1.0) } else { (width - RIGHT + 14.0 - total, 0.0) };
        let mut svg = String::new();
        for series in named {
            if below && x > 14.0 && x + entry(&series) > width {
                (x, rows) = (14.0, rows + 1.0);
            }
            let y = 26.0 + 22.0 * rows;
            svg += &format!("<path class=\"{}\" d=\"M{x:.1} {:.1}h16\"/>", series.class, y - 4.0);
            svg += &text("label", x + 22.0, y, "start", series.name);
            x += entry(&series);
        }
        (svg, rows)
    }
}

/// Draws grid lines and labels of the axes.
fn grid(frame: &Frame, labels: &[(f64, String)]) -> String {
    let mut svg = String::new();
    for (tick, label) in labels {
        let y = frame.y(*tick);
        svg += &format!("<path class=\"grid\" d=\"M{:.1} {y:.1}H{:.1}\"/>", frame.left, frame.right);
        svg += &text("label", frame.left - 8.0, y + 4.0, "end", label);
    }
    svg += &format!("<path class=\"axis\" d=\"M{:.1} {:.1}H{:.1}\"/>", frame.left, frame.bottom, frame.right);
    // Steps are integers, so ticks between them are left out.
    for tick in frame.x.ticks().into_iter().filter(|tick| tick.fract() == 0.0) {
        let x = frame.x(tick);
        svg += &format!("<path class=\"axis\" d=\"M{x:.1} {:.1}v5\"/>", frame.bottom);
        // The label of a tick at the edge would exceed the drawing.
        let anchor = if x > frame.right - 12.0 { "end" } else { "middle" };
        svg += &text(
            "label",
            if anchor == "end" { frame.right + 6.0 } else { x },
            frame.bottom + 19.0,
            anchor,
            &short(tick),
        );
    }
    svg + &text("note", (frame.left + frame.right) / 2.0, frame.bottom + 35.0, "middle", "step")
}

fn drawn(series: &Series, scale: f64, columns: usize, frame: &Frame) -> String {
    let mut path = String::new();
    let mut dots = String::new();
    for run in series.runs(columns) {
        for (i, (x, y)) in run.iter().enumerate() {
            let (x, y) = (frame.x(*x), frame.y(y / scale));
            path += &format!("{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
            // A point between two gaps is a line of length 0 and is drawn as a dot.
            if series.dots || run.len() == 1 {
                dots += &format!("M{x:.1} {y:.1}h0");
            }
        }
    }
    let dots =
        if dots.is_empty() { dots } else { format!("<path class=\"{} dots\" d=\"{dots}\"/>", series.class) };
    format!("<path class=\"{}\" d=\"{path}\"/>{dots}", series.class)
}

fn text(class: &str, x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(text)
    )
}
