//! Texts by which kernels read blocks. Each is followed by the text of the format that a launch names ([`of_format`]), or of the formats.

use super::format::Format;
use super::formats::FORMATS;
use netcl_kernel::{CHOSEN, Launch, Text, Value, cl_file};

/// Unpacks elements. The format's text follows.
pub(crate) const UNPACK: [&str; 2] = [cl_file!("unpack.cl"), CHOSEN];
/// Codes that are multiplied in integers: the text before the format's, that text, the text after it.
pub(crate) const CODES: [&str; 3] = [cl_file!("codes.cl"), CHOSEN, cl_file!("codes_dot.cl")];
/// Rows in planes: their codes and scales. The formats' texts follow.
pub(crate) const PLANES: [&str; 2] = [concat!(cl_file!("f16.cl"), cl_file!("planes.cl")), CHOSEN];

/// The define that names a format.
pub(crate) const FORMAT: &str = "FORMAT";
/// The define that lists formats, a macro of a macro.
pub(crate) const FORMAT_LIST: &str = "FORMATS(OF)";

/// Every format's text by its name.
pub(crate) fn texts() -> Vec<(&'static str, &'static str)> {
    FORMATS.iter().filter_map(|format| Some((format.name, format.kernels.as_ref()?.text))).collect()
}

/// A launch by blocks of this format.
pub(crate) fn of_format(launch: Launch<'static>, format: &Format) -> Launch<'static> {
    launch.define("QUANT", true).define(FORMAT, format.name)
}

/// The value of [`FORMAT_LIST`] for formats of these numbers: name and number of each.
pub(crate) fn list_of(numbers: impl Fn(u32) -> bool) -> Value {
    let wanted = FORMATS.iter().filter(|format| format.on_devices() && numbers(format.number));
    let rows: Vec<String> = wanted.map(|format| format!("OF({}, {})", format.name, format.number)).collect();
    Text::new(&rows.join(" ")).into()
}
