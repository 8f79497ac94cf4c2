//! What a chart draws: points, with gaps where a number is missing, thinned to what a screen can show.

/// A point: step and value.
pub(super) type Point = (f64, f64);

/// A named line.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// For the legend; empty for a chart's only one.
    pub name: &'static str,
    /// Class in the style sheet.
    pub class: &'static str,
    /// In the order of the steps; a value that is not finite is a gap.
    pub points: Vec<Point>,
    /// Draws a dot at each point, where there are few.
    pub dots: bool,
}

impl Series {
    /// The line of a chart.
    pub fn line(name: &'static str, points: Vec<Point>) -> Self {
        Self { name, class: "first", points, dots: false }
    }
    /// The same colour, behind it.
    pub fn faint(name: &'static str, points: Vec<Point>) -> Self {
        Self { name, class: "first faint", points, dots: false }
    }
    /// The other line of a chart.
    pub fn second(name: &'static str, points: Vec<Point>) -> Self {
        let dots = points.len() <= 60;
        Self { name, class: "second", points, dots }
    }

    /// The values that can be drawn.
    pub fn finite(&self) -> impl Iterator<Item = Point> + '_ {
        self.points.iter().copied().filter(|(_, y)| y.is_finite())
    }

    /// Runs of points without gaps, of each of so many columns only the extremes: a peak of one step is still seen.
    pub fn runs(&self, columns: usize) -> Vec<Vec<Point>> {
        let column = self.points.len().div_ceil(columns).max(1);
        let runs = self.points.split(|(_, y)| !y.is_finite()).filter(|run| !run.is_empty());
        runs.map(|run| if column > 2 { thin(run, column) } else { run.to_vec() }).collect()
    }
}

fn thin(run: &[Point], column: usize) -> Vec<Point> {
    let mut thinned = Vec::new();
    for points in run.chunks(column) {
        let by_value = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let (low, high) = (points.iter().min_by(by_value), points.iter().max_by(by_value));
        let mut both: Vec<Point> = low.into_iter().chain(high).copied().collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both.dedup();
        thinned.extend(both);
    }
    // The ends carry the start and the result.
    let ends = [run.first(), run.last()];
    if let [Some(first), Some(last)] = ends {
        if thinned.first() != Some(first) {
            thinned.insert(0, *first);
        }
        if thinned.last() != Some(last) {
            thinned.push(*last);
        }
    }
    thinned
}

/// The average of a thirtieth of the points around each, gaps left as they are; `None` for so few that there is nothing
/// to smooth.
pub(super) fn smooth(points: &[Point]) -> Option<Vec<Point>> {
    if points.len() < 100 {
        return None;
    }
    let reach = points.len() / 60;
    // Sums and counts up to each point, so that a window is two look-ups.
    let mut sums = vec![(0.0, 0usize)];
    for (_, y) in points {
        let (sum, count) = sums[sums.len() - 1];
        sums.push(if y.is_finite() { (sum + y, count + 1) } else { (sum, count) });
    }
    let average = |(i, &(x, y)): (usize, &Point)| {
        // Centred at the start, which is steep; only cut off at the end, which is not.
        let back = reach.min(i);
        let (from, to) = (sums[i - back], sums[i + back.min(points.len() - 1 - i) + 1]);
        let mean = (to.0 - from.0) / (to.1 - from.1).max(1) as f64;
        (x, if y.is_finite() { mean } else { f64::NAN })
    };
    Some(points.iter().enumerate().map(average).collect())
}
