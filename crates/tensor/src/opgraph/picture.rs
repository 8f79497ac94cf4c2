//! Draws a graph of operations: for Graphviz, or as SVG with its own layout.
//!
//! Each operation is below its inputs. Within a row, boxes are sorted by the mean position of their neighbors in a few passes (Sugiyama,
//! Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981). Weights are listed in their operation's
//! box.

use super::OpGraph;
use super::show::kernels;
use super::spec::Spec;
use std::fmt::Write;

/// A box: an input, an operation or a result of the graph.
struct Shown {
    lines: Vec<String>,
    kind: Kind,
    /// Boxes from which arrows come, each with a description of the value.
    from: Vec<(usize, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    Operation,
    Output,
}

/// Returns inputs, operations and results with their arrows.
fn boxes(spec: &Spec) -> Vec<Shown> {
    let forms = spec.forms();
    let mut out: Vec<Shown> = Vec::new();
    for input in &spec.inputs {
        let lines = vec![input.name.clone(), input.form.to_string()];
        out.push(Shown { lines, kind: Kind::Input, from: Vec::new() });
    }
    // Box that produces each value; `None` for weights.
    let mut maker: Vec<Option<usize>> = (0..spec.inputs.len()).map(Some).collect();
    maker.extend(spec.weights.iter().map(|_| None));
    let arrow = |maker: &[Option<usize>], id: usize| {
        maker.get(id).copied().flatten().map(|from| (from, forms[id].to_string()))
    };
    for node in &spec.nodes {
        let mut lines = vec![node.op.clone()];
        if !node.layer.is_empty() {
            lines[0] = format!("{} · {}", node.op, node.layer);
        }
        let weight = |id: &usize| spec.weights.get(id.checked_sub(spec.inputs.len())?);
        let weights: Vec<String> = node
            .inputs
            .iter()
            .flatten()
            .filter_map(weight)
            .map(|w| format!("{} {:?}", w.name, w.dims))
            .collect();
        lines.extend(weights);
        let used = kernels(node);
        if !used.is_empty() {
            lines.push(used);
        }
        let from = node.inputs.iter().flatten().filter_map(|id| arrow(&maker, *id)).collect();
        maker.extend(node.results.iter().map(|_| Some(out.len())));
        out.push(Shown { lines, kind: Kind::Operation, from });
    }
    for (i, id) in spec.outputs.iter().enumerate() {
        let lines = vec![format!("result {i}"), forms[*id].to_string()];
        out.push(Shown { lines, kind: Kind::Output, from: arrow(&maker, *id).into_iter().collect() });
    }
    out
}

/// Shortens a line to the width of a box.
fn short(line: &str) -> String {
    const MAX_LINE_LENGTH: usize = 46;
    if line.chars().count() <= MAX_LINE_LENGTH {
        return line.to_owned();
    }
    line.chars().take(MAX_LINE_LENGTH - 1).chain(['…']).collect()
}

const LINE: f64 = 15.0;
const LETTER: f64 = 6.9;
const GAP: (f64, f64) = (28.0, 44.0);

/// Position of a box: horizontal center, top, width and height.
#[derive(Clone, Copy, Default)]
struct BoxPosition {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Returns rows of boxes from top to bottom, each in order.
fn layered(boxes: &[Shown]) -> Vec<Vec<usize>> {
    let mut depth = vec![0usize; boxes.len()];
    for (i, shown) in boxes.iter().enumerate() {
        depth[i] = shown.from.iter().map(|(from, _)| depth[*from] + 1).max().unwrap_or(0);
    }
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); depth.iter().max().map_or(0, |d| d + 1)];
    depth.iter().enumerate().for_each(|(i, d)| rows[*d].push(i));
    let mut to: Vec<Vec<usize>> = vec![Vec::new(); boxes.len()];
    for (i, shown) in boxes.iter().enumerate() {
        shown.from.iter().for_each(|(from, _)| to[*from].push(i));
    }
    let mut at = vec![0.0f64; boxes.len()];
    for sweep in 0..8 {
        for row in &rows {
            let middle = row.len() as f64 / 2.0;
            row.iter().enumerate().for_each(|(i, b)| at[*b] = i as f64 - middle);
        }
        for row in &mut rows {
            let mean = |b: &usize| {
                let above: Vec<usize> = boxes[*b].from.iter().map(|(from, _)| *from).collect();
                let beside = if sweep % 2 == 0 { &above } else { &to[*b] };
                match beside.len() {
                    0 => at[*b],
                    n => beside.iter().map(|o| at[*o]).sum::<f64>() / n as f64,
                }
            };
            let mut keyed: Vec<(f64, usize)> = row.iter().map(|b| (mean(b), *b)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            *row = keyed.into_iter().map(|(_, b)| b).collect();
        }
    }
    rows
}

/// Returns the position of each box, and the picture's width and height.
fn places(boxes: &[Shown]) -> (Vec<BoxPosition>, f64, f64) {
    let rows = layered(boxes);
    let mut places = vec![BoxPosition::default(); boxes.len()];
    for (place, shown) in places.iter_mut().zip(boxes) {
        let longest = shown.lines.iter().map(|line| short(line).chars().count()).max().unwrap_or(0);
        place.width = longest as f64 * LETTER + 20.0;
        place.height = shown.lines.len() as f64 * LINE + 12.0;
    }
    let wide = |row: &Vec<usize>| row.iter().map(|b| places[*b].width + GAP.0).sum::<f64>();
    let width = rows.iter().map(wide).fold(0.0, f64::max) + GAP.0;
    let starts: Vec<f64> = rows.iter().map(|row| (width - wide(row) + GAP.0) / 2.0).collect();
    let mut y = GAP.1 / 2.0;
    for (row, start) in rows.iter().zip(starts) {
        let mut x = start;
        for b in row {
            places[*b].x = x + places[*b].width / 2.0;
            places[*b].y = y;
            x += places[*b].width + GAP.0;
        }
        y += row.iter().map(|b| places[*b].height).fold(0.0, f64::max) + GAP.1;
    }
    (places, width, y)
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Kind {
    fn colours(self) -> (&'static str, &'static str) {
        match self {
            Self::Input => ("#e3f0e3", "#3c763d"),
            Self::Operation => ("#eef2f8", "#44597a"),
            Self::Output => ("#f6ead8", "#8a6d3b"),
        }
    }
}

impl Spec {
    /// Formats the graph for Graphviz: `dot -Tpdf`.
    pub fn to_dot(&self) -> String {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut out = String::from(
            "digraph graph_of_operations {\n  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n",
        );
        for (i, shown) in boxes(self).iter().enumerate() {
            let lines: Vec<String> = shown.lines.iter().map(|line| quoted(line)).collect();
            let (fill, line) = shown.kind.colours();
            let _ = writeln!(
                out,
                "  n{i} [label=\"{}\", fillcolor=\"{fill}\", color=\"{line}\"];",
                lines.join("\\n")
            );
            for (from, what) in &shown.from {
                let _ = writeln!(out, "  n{from} -> n{i} [label=\"{}\"];", quoted(what));
            }
        }
        out.push_str("}\n");
        out
    }

    /// Draws the graph as an SVG document.
    pub fn to_svg(&self) -> String {
        let boxes = boxes(self);
        let (places, width, height) = places(&boxes);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
             markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#667\"/></marker></defs>\n<rect width=\"100%\" height=\"100%\" \
             fill=\"white\"/>\n"
        );
        for (to, shown) in places.iter().zip(&boxes) {
            for (from, what) in &shown.from {
                let from = places[*from];
                let (start, end) = (from.y + from.height, to.y - 1.0);
                let middle = f64::midpoint(start, end);
                let _ = writeln!(
                    out,
                    "<path d=\"M{:.1} {start:.1}C{:.1} {middle:.1} {:.1} {middle:.1} {:.1} {end:.1}\" fill=\"none\" stroke=\"#889\" \
                     marker-end=\"url(#a)\"><title>{}</title></path>",
                    from.x,
                    from.x,
                    to.x,
                    to.x,
                    escaped(what)
                );
            }
        }
        for (place, shown) in places.iter().zip(&boxes) {
            let (fill, line) = shown.kind.colours();
            let left = place.x - place.width / 2.0;
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"6\" fill=\"{fill}\" stroke=\"{line}\"/>",
                place.y, place.width, place.height
            );
            for (i, text) in shown.lines.iter().enumerate() {
                let weight = if i == 0 { " font-weight=\"bold\"" } else { "" };
                let y = place.y + LINE * (i as f64 + 1.0) + 2.0;
                let text = escaped(&short(text));
                let _ = writeln!(
                    out,
                    "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\"{weight}>{text}</text>",
                    place.x
                );
            }
        }
        out.push_str("</svg>\n");
        out
    }
}

impl OpGraph {
    /// [`Spec::to_dot`].
    pub fn to_dot(&self) -> String {
        self.spec.to_dot()
    }
    /// [`Spec::to_svg`].
    pub fn to_svg(&self) -> String {
        self.spec.to_svg()
    }
}
