//! Data series of charts: points with gaps for missing values, thinned to the resolution of a screen.

/// A point: step and value.
pub(super) type Point = (f64, f64);

/// A named line.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Name for the legend; empty for the only line of a chart.
    pub name: &'static str,
    /// CSS class.
    pub class: &'static str,
    /// Points in order of steps; non-finite values are gaps.
    pub points: Vec<Point>,
    /// Whether to draw a dot at each point if there are few.
    pub dots: bool,
}

impl Series {
    /// Creates the main line of a chart.
    pub fn line(name: &'static str, points: Vec<Point>) -> Self {
        Self { name, class: "first", points, dots: false }
    }
    /// Creates a faint line in the same color, below the main line.
    pub fn faint(name: &'static str, points: Vec<Point>) -> Self {
        Self { name, class: "first faint", points, dots: false }
    }
    /// Creates the second line of a chart.
    pub fn second(name: &'static str, points: Vec<Point>) -> Self {
        let dots = points.len() <= 60;
        Self { name, class: "second", points, dots }
    }

    /// Returns the finite values.
    pub fn finite(&self) -> impl Iterator<Item = Point> + '_ {
        self.points.iter().copied().filter(|(_, y)| y.is_finite())
    }

    /// Returns the segments without gaps, thinned to the extremes of each column, so that peaks of a single step stay visible.
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
    // The first and the last point are kept.
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

/// Returns the moving average over a thirtieth of the points; gaps are kept. `None` if there are too few points to smooth.
pub(super) fn smooth(points: &[Point]) -> Option<Vec<Point>> {
    if points.len() < 100 {
        return None;
    }
    let reach = points.len() / 60;
    // Prefix sums and counts, so that a window needs two lookups.
    let mut sums = vec![(0.0, 0usize)];
    for (_, y) in points {
        let (sum, count) = sums[sums.len() - 1];
        sums.push(if y.is_finite() { (sum + y, count + 1) } else { (sum, count) });
    }
    let average = |(i, &(x, y)): (usize, &Point)| {
        // The window shrinks symmetrically at the start, where the curve is steep, and is only cut off at the end.
        let back = reach.min(i);
        let (from, to) = (sums[i - back], sums[i + back.min(points.len() - 1 - i) + 1]);
        let mean = (to.0 - from.0) / (to.1 - from.1).max(1) as f64;
        (x, if y.is_finite() { mean } else { f64::NAN })
    };
    Some(points.iter().enumerate().map(average).collect())
}
