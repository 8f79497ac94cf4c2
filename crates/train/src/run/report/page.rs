//! HTML and style sheet of the page around the charts.

use super::format::{escape, integer};

const STYLE: &str = "
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --edge: #e3e6ea; --text: #1c2128; --dim: #667080;
  --grid: #e9ecef; --first: #2368c4; --second: #d9730d; --bar: #5b8fd6; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2126; --edge: #30363d; --text: #e6e9ee;
  --dim: #98a2b0; --grid: #2b3138; --first: #6aa9ff; --second: #ffa657; --bar: #4a7fc7; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, 'Segoe UI', Roboto, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 10px; }
p { margin: 4px 0 0; }
p.status, p.remark, footer { color: var(--dim); }
p.remark { margin: -4px 0 8px; }
footer { margin-top: 36px; font-size: 13px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 14px; margin: 22px 0 14px; }
.tile, svg.full, svg.half, .bars, details, .columns > div { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 23px; line-height: 1.35; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { display: block; color: var(--dim); font-size: 13px; }
section { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
section > * { grid-column: 1 / -1; min-width: 0; }
section > h2 { margin-bottom: -4px; }
svg { width: 100%; height: auto; display: block; }
section > svg.half { grid-column: auto; }
.narrow { display: none; }
@media (max-width: 760px) { section > svg.half { grid-column: 1 / -1; } .broad { display: none; } .narrow { display: block; } }
svg text { font-size: 12px; fill: var(--text); font-variant-numeric: tabular-nums; }
svg .title { font-size: 15px; font-weight: 600; }
svg .unit, svg .note { fill: var(--dim); font-weight: 400; font-size: 12px; }
svg .label { fill: var(--text); }
svg path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--dim); stroke-width: 1; }
svg .first { stroke: var(--first); stroke-width: 2; } svg .second { stroke: var(--second); stroke-width: 2; }
svg .faint { stroke-opacity: .32; stroke-width: 1.2; } svg .dots { stroke-width: 6.5; }
.bars { padding: 10px 16px; }
.kernel { display: grid; grid-template-columns: minmax(0, 17em) minmax(0, 1fr) 14em; gap: 0 12px; align-items: center; padding: 3px 0; }
.kernel .name { font: 13px/1.5 ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', monospace; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.kernel .track i { display: block; height: 17px; border-radius: 3px; background: var(--bar); }
.kernel .value { font-size: 13px; font-variant-numeric: tabular-nums; } .kernel small { color: var(--dim); font-size: 12px; }
@media (max-width: 760px) { .kernel { grid-template-columns: minmax(0, 1fr) minmax(0, 11em); padding: 5px 0; }
  .kernel .name { grid-column: 1 / -1; white-space: normal; overflow-wrap: anywhere; } }
details { padding: 10px 16px; } summary { cursor: pointer; color: var(--dim); }
pre { margin: 10px 0 4px; font: 13px/1.5 ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; max-height: 30em; overflow: auto; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(310px, 1fr)); gap: 14px; margin-top: 32px; align-items: start; }
.columns > div { padding: 4px 16px 12px; min-width: 0; } .columns h2 { margin: 10px 0 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td { padding: 4px 0; border-top: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
td:first-child { color: var(--dim); padding-right: 16px; white-space: nowrap; width: 1%; }
td:last-child { font-variant-numeric: tabular-nums; }
";

/// Returns the whole document.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}<footer>Written by netcl {}</footer>\n</main>\n</body>\n</html>\n",
        escape(title),
        env!("CARGO_PKG_VERSION")
    )
}

/// Returns the top of the page.
pub(super) fn header(title: &str, status: &str) -> String {
    format!("<h1>{}</h1>\n<p class=\"status\">{}</p>\n", escape(title), escape(status))
}

/// Returns the key figures: name, value, remark.
pub(super) fn tiles(tiles: &[[String; 3]]) -> String {
    let tile = |[what, value, remark]: &[String; 3]| {
        format!(
            "<div class=\"tile\"><span>{}</span><b>{}</b><span>{}</span></div>\n",
            escape(what),
            escape(value),
            escape(remark)
        )
    };
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.iter().map(tile).collect::<String>())
}

/// Returns a section of the page; `html` is inserted unescaped.
pub(super) fn section(heading: &str, html: &str) -> String {
    let heading = if heading.is_empty() { String::new() } else { format!("<h2>{}</h2>", escape(heading)) };
    format!("<section>{heading}\n{html}</section>\n")
}

/// Returns a text generated by the model.
pub(super) fn sample(step: u64, text: &str, open: bool) -> String {
    let open = if open { " open" } else { "" };
    format!("<details{open}><summary>step {}</summary><pre>{}</pre></details>\n", integer(step), escape(text))
}

/// Returns a row of blocks.
pub(super) fn columns(blocks: impl Iterator<Item = String>) -> String {
    format!("<div class=\"columns\">\n{}</div>\n", blocks.collect::<String>())
}

/// Returns a table of names and values.
pub(super) fn table(heading: &str, rows: &[(String, String)]) -> String {
    let row = |(name, value): &(String, String)| {
        format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(name), escape(value))
    };
    format!(
        "<div><h2>{}</h2><table>\n{}</table></div>\n",
        escape(heading),
        rows.iter().map(row).collect::<String>()
    )
}
