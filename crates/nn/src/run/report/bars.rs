//! Bars: how the device's time is shared among kernels.

use super::{
    KernelTime,
    format::{duration, escape, integer},
};

/// Kernels with a bar of their own.
const MOST: usize = 14;
const ROW: f64 = 26.0;
const LABEL: f64 = 270.0;
const BAR: f64 = 560.0;
/// Letters of a name before it is cut, for `LABEL` at 7.3 a letter.
const LETTERS: usize = 34;

/// A bar for each of the longest, one for all others together.
pub(super) fn svg(kernels: &[KernelTime]) -> String {
    let mut sorted: Vec<_> = kernels.iter().filter(|kernel| kernel.seconds.is_finite()).cloned().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    let total: f64 = sorted.iter().map(|kernel| kernel.seconds).sum();
    if sorted.len() > MOST + 1 {
        let others = sorted.split_off(MOST);
        sorted.push(KernelTime {
            name: format!("{} others", others.len()),
            launches: others.iter().map(|kernel| kernel.launches).sum(),
            seconds: others.iter().map(|kernel| kernel.seconds).sum(),
        });
    }
    let longest = sorted.iter().map(|kernel| kernel.seconds).fold(f64::MIN_POSITIVE, f64::max);
    let launches: u64 = kernels.iter().map(|kernel| kernel.launches).sum();
    let height = 16.0 + ROW * sorted.len() as f64;
    let mut svg = format!(
        "<p class=\"remark\">{} in {} launches of the few steps that were measured</p><div class=\"wide\"><svg viewBox=\"0 0 1080 {height}\" role=\"img\" \
         aria-label=\"Time per kernel\">",
        duration(total),
        integer(launches)
    );
    for (i, kernel) in sorted.iter().enumerate() {
        let y = 8.0 + ROW * i as f64;
        let width = (kernel.seconds / longest * BAR).max(1.0);
        let share = if total > 0.0 { kernel.seconds / total * 100.0 } else { 0.0 };
        svg += &format!(
            "<g><title>{full}</title><text class=\"mono\" x=\"{label}\" y=\"{text:.1}\" text-anchor=\"end\">{name}</text>\
             <rect class=\"bar\" x=\"{start}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{thick}\" rx=\"3\"/>\
             <text class=\"label\" x=\"{end:.1}\" y=\"{text:.1}\">{share:.1} %<tspan class=\"unit\" dx=\"8\">{time}, {launches}×</tspan></text></g>",
            full = escape(&kernel.name),
            name = escape(&cut(&kernel.name)),
            label = LABEL - 12.0,
            text = y + 17.0,
            start = LABEL,
            top = y + 4.0,
            thick = ROW - 8.0,
            end = LABEL + width + 10.0,
            time = duration(kernel.seconds),
            launches = integer(kernel.launches),
        );
    }
    svg + "</svg></div>\n"
}

fn cut(name: &str) -> String {
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    name.chars().take(LETTERS - 1).chain(['…']).collect()
}
