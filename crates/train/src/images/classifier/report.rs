//! `report.html` of a classifier: one page without scripts.

use super::outcome::{ClassifierOutcome, Epoch};
use super::{ClassifierConfig, Description, Picture};
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
                     table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #ccc}\
                     td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto;border:1px solid #ccc}.right{font-weight:600}\
                     figure{display:inline-block;width:6rem;margin:.3rem;font-size:.75rem;vertical-align:top}\
                     figure img{width:100%;image-rendering:pixelated}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a summary of the epochs.
pub(super) fn headline(epochs: &[Epoch]) -> String {
    epochs.last().map_or("no epoch was finished".to_owned(), |e| {
        format!("accuracy {:.2} % after {} epochs, {:.0} s", 100.0 * e.accuracy, e.epoch, e.elapsed)
    })
}

/// Returns the page. `examples` are test images, `kernels` those of the first convolution.
pub(super) fn html(
    title: &str,
    config: &ClassifierConfig,
    about: &Description,
    outcome: &ClassifierOutcome,
    [examples, kernels]: &[Vec<Picture>; 2],
) -> String {
    let accuracy = headline(&outcome.epochs);
    let mut body = format!(
        "<h1>{}</h1><p>{}, {} classes: {accuracy}{}</p>",
        escape(title),
        escape(&about.network),
        about.classes.len(),
        if outcome.stopped { "; stopped early" } else { "" }
    );
    let losses: [Vec<f64>; 2] = [
        outcome.epochs.iter().map(|e| e.loss).collect(),
        outcome.epochs.iter().map(|e| e.test_loss).collect(),
    ];
    let shares = [outcome.epochs.iter().map(|e| 100.0 * e.accuracy).collect()];
    body += &chart("Loss: training (solid), test (dashed)", &losses);
    body += &chart("Accuracy on the test images, %", &shares);
    body +=
        "<h2>Epochs</h2><table><tr><th>epoch<th>loss<th>test loss<th>accuracy<th>images/s<th>seconds</tr>";
    for e in &outcome.epochs {
        let _ = write!(
            body,
            "<tr><td>{}<td>{:.4}<td>{:.4}<td>{:.2} %<td>{:.0}<td>{:.1}</tr>",
            e.epoch,
            e.loss,
            e.test_loss,
            100.0 * e.accuracy,
            e.images_per_s,
            e.elapsed
        );
    }
    body += "</table>";
    body += &ranks(outcome);
    body += &confusion(about, outcome);
    let (right, wrong): (Vec<&Picture>, Vec<&Picture>) = examples.iter().partition(|p| p.right);
    body += &gallery("Correctly classified test images", &right);
    body += &gallery("Wrongly classified test images", &wrong);
    body += &gallery("Kernels of the first convolution", &kernels.iter().collect::<Vec<_>>());
    body += &settings(config);
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{}</title><style>{STYLE}</style><body>{body}</body></html>\n",
        escape(title)
    )
}

/// Returns the times of each rank; empty for a run of one device.
fn ranks(outcome: &ClassifierOutcome) -> String {
    if outcome.ranks.is_empty() {
        return String::new();
    }
    let mut body = "<h2>Ranks</h2><table>".to_owned();
    for (i, rank) in outcome.ranks.iter().enumerate() {
        let _ = write!(body, "<tr><td>rank {i}, {}<td>{}</tr>", escape(&rank.device), escape(&rank.line()));
    }
    body + "</table>"
}

/// Returns the confusion matrix of the test images; empty without a test.
fn confusion(about: &Description, outcome: &ClassifierOutcome) -> String {
    if outcome.confusion.is_empty() {
        return String::new();
    }
    let mut body = "<h2>Confusion matrix</h2><table><tr><th>is".to_owned();
    for class in &about.classes {
        let _ = write!(body, "<th>{}", escape(class));
    }
    body += "</tr>";
    for (i, (class, row)) in about.classes.iter().zip(&outcome.confusion).enumerate() {
        let _ = write!(body, "<tr><td>{}", escape(class));
        for (j, count) in row.iter().enumerate() {
            let _ = write!(body, "<td{}>{count}", if i == j { " class=right" } else { "" });
        }
        body += "</tr>";
    }
    body + "</table>"
}

/// Returns pictures in a row, with their captions.
fn gallery(title: &str, pictures: &[&Picture]) -> String {
    if pictures.is_empty() {
        return String::new();
    }
    let mut body = format!("<h2>{}</h2><div>", escape(title));
    for picture in pictures {
        let _ = write!(
            body,
            "<figure><img src=\"{}\" alt=\"{}\"><figcaption>{1}</figcaption></figure>",
            picture.address(),
            escape(&picture.text)
        );
    }
    body + "</div>"
}

/// Returns the settings of the run.
fn settings(config: &ClassifierConfig) -> String {
    let mut body = String::new();
    let _ = write!(
        body,
        "<h2>Settings</h2><table><tr><td>network<td>{}</tr><tr><td>data<td>{}</tr><tr><td>epochs, batch<td>{}, {}</tr>\
         <tr><td>learning rate<td>{:e} to {:e}</tr><tr><td>weight decay<td>{}</tr><tr><td>moved by, mirrored<td>{}, {}</tr><tr><td>seed<td>{}</tr></table>",
        escape(&config.network),
        escape(&config.data),
        config.epochs,
        config.batch,
        config.lr,
        config.min_lr,
        config.weight_decay,
        config.shift,
        config.mirror,
        config.seed
    );
    body
}

/// Draws lines over epochs, scaled from their smallest to their largest value.
fn chart(title: &str, lines: &[Vec<f64>]) -> String {
    let finite = || lines.iter().flatten().copied().filter(|v| v.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    if low > high {
        return String::new();
    }
    let span = if high > low { high - low } else { 1.0 };
    let mut svg = format!("<h2>{}</h2><svg viewBox=\"0 0 800 240\">", escape(title));
    for (line, dash) in lines.iter().zip(["", " stroke-dasharray=\"6 4\""]) {
        let step = 720.0 / (line.len().max(2) - 1) as f64;
        let points = line.iter().enumerate().filter(|(_, v)| v.is_finite());
        let points: Vec<String> = points
            .map(|(i, v)| format!("{:.1},{:.1}", 60.0 + step * i as f64, 220.0 - 200.0 * (v - low) / span))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\"{dash} points=\"{}\"/>",
            points.join(" ")
        );
    }
    let _ =
        write!(svg, "<text x=\"4\" y=\"24\">{high:.3}</text><text x=\"4\" y=\"224\">{low:.3}</text></svg>");
    svg
}
