//! The picture of `netcl devices --pool`: bytes over the load, and the blocks of each slab.

use super::device_pool::{Moment, PoolReport};
use netcl::device::human;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 90.0;
/// Top and bottom of the chart.
const CHART: (f64, f64) = (40.0, 260.0);
/// Height and distance of the rows of the map.
const ROW: (f64, f64) = (18.0, 24.0);
const COLORS: [&str; 3] = ["#8a8f98", "#c2571a", "#1f6feb"];

/// Draws a report as SVG.
pub fn draw(report: &PoolReport) -> String {
    let slabs: Vec<_> = report.map.iter().filter(|a| a.is_slab()).collect();
    let map_top = CHART.1 + 70.0;
    let height = map_top + ROW.1 * slabs.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>Memory pool of {} under a mixed load</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n",
        report.device.replace(['<', '&'], " ")
    );
    chart(&mut out, &report.trace);
    text(&mut out, LEFT, map_top - 14.0, "Slabs in the second pass: live blocks blue, free blocks gray");
    for (i, slab) in slabs.iter().enumerate() {
        let top = map_top + ROW.1 * i as f64;
        let scale = (WIDTH - LEFT - 20.0) / slab.bytes as f64;
        text(&mut out, 10.0, top + 14.0, &human(slab.bytes as u64));
        for (blocks, color) in [(&slab.free, "#d8dbe0"), (&slab.live, COLORS[2])] {
            for (start, bytes) in blocks {
                let (x, width) = (LEFT + *start as f64 * scale, (*bytes as f64 * scale).max(0.4));
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{}\" fill=\"{color}\"/>",
                    ROW.0
                );
            }
        }
    }
    out + "</svg>\n"
}

fn text(out: &mut String, x: f64, y: f64, words: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{words}</text>");
}

/// Draws reserved, occupied and requested bytes over the changes of the first pass.
fn chart(out: &mut String, trace: &[Moment]) {
    let (top, bottom) = CHART;
    let highest = trace.iter().map(|moment| moment.reserved).max().unwrap_or(0).max(1);
    let x = |i: usize| LEFT + (WIDTH - LEFT - 20.0) * i as f64 / trace.len().max(1) as f64;
    let y = |bytes: usize| bottom - (bottom - top) * bytes as f64 / highest as f64;
    let values = |m: &Moment| [("reserved", m.reserved), ("occupied", m.live), ("requested", m.requested)];
    let names = values(&Moment::default()).map(|(name, _)| name);
    for (line, (name, color)) in names.into_iter().zip(COLORS).enumerate() {
        let at = LEFT + 130.0 * line as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{at}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{color}\"/><text x=\"{}\" y=\"25\">{name}</text>",
            at + 18.0
        );
        // Every fifth moment is enough for the pixels of the picture.
        let points: Vec<String> = trace
            .iter()
            .enumerate()
            .step_by(5)
            .map(|(i, moment)| format!("{:.1},{:.1}", x(i), y(values(moment)[line].1)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
            points.join(" ")
        );
    }
    for part in 0..=4 {
        let bytes = highest * part / 4;
        text(out, 10.0, y(bytes) + 4.0, &human(bytes as u64));
    }
    text(out, LEFT, bottom + 20.0, &format!("{} allocations and frees", trace.len()));
}

#[cfg(test)]
mod tests {
    use super::super::device_pool::Allocation;
    use super::*;

    #[test]
    fn every_block_of_a_slab_is_drawn() {
        let slab = Allocation { bytes: 1 << 20, live: vec![(0, 256), (512, 256)], free: vec![(256, 256)] };
        let moment = Moment { requested: 300, live: 512, reserved: 1 << 20 };
        let report = PoolReport {
            device: "a<b".into(),
            requests: 3,
            peak: moment,
            driver_allocations: [1, 0],
            more_reserved: 0,
            trace: vec![moment; 10],
            map: vec![slab],
        };
        let svg = draw(&report);
        // Background, three keys, three blocks.
        assert_eq!((svg.matches("<rect").count(), svg.matches("<polyline").count()), (7, 3));
        assert!(svg.contains("1.0 MiB") && !svg.contains("a<b") && svg.ends_with("</svg>\n"));
    }
}
