//! Bar chart of the device time per kernel. It uses HTML boxes instead of SVG, so that it adapts to the page width: on a narrow screen a kernel's
//! name is above its bar.

use super::{
    KernelTime,
    format::{duration, escape, integer},
};

/// Number of kernels with their own bar.
const MAX_BARS: usize = 14;

/// Returns a bar for each of the longest kernels, and one for all others together.
pub(super) fn html(kernels: &[KernelTime]) -> String {
    let mut sorted: Vec<_> = kernels.iter().filter(|kernel| kernel.seconds.is_finite()).cloned().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    let total: f64 = sorted.iter().map(|kernel| kernel.seconds).sum();
    if sorted.len() > MAX_BARS + 1 {
        let others = sorted.split_off(MAX_BARS);
        sorted.push(KernelTime {
            name: format!("{} others", others.len()),
            launches: others.iter().map(|kernel| kernel.launches).sum(),
            seconds: others.iter().map(|kernel| kernel.seconds).sum(),
        });
    }
    let longest = sorted.iter().map(|kernel| kernel.seconds).fold(f64::MIN_POSITIVE, f64::max);
    let launches: u64 = kernels.iter().map(|kernel| kernel.launches).sum();
    let mut html = format!(
        "<p class=\"remark\">{} in {} launches of the profiled steps</p><div class=\"bars\">\n",
        duration(total),
        integer(launches)
    );
    for kernel in &sorted {
        let share = if total > 0.0 { kernel.seconds / total * 100.0 } else { 0.0 };
        html += &format!(
            "<div class=\"kernel\"><span class=\"name\" title=\"{name}\">{name}</span><span class=\"track\">\
             <i style=\"width:{width:.1}%\"></i></span><span class=\"value\">{share:.1} % <small>{time}, {launches}×</small></span></div>\n",
            name = escape(&kernel.name),
            width = (kernel.seconds / longest * 100.0).clamp(0.2, 100.0),
            time = duration(kernel.seconds),
            launches = integer(kernel.launches),
        );
    }
    html + "</div>\n"
}
