//! Kernel source for reading blocks. Each entry is followed by the source of the format that a launch names ([`of_format`]), or of several
//! formats.

use super::format::Format;
use super::formats::FORMATS;
use netcl_kernel::{CHOSEN, Launch, Text, Value, cl_file};

/// Source that unpacks elements, followed by the format's source.
pub(crate) const UNPACK: [&str; 2] = [cl_file!("unpack.cl"), CHOSEN];
/// Source for codes that are multiplied as integers: before the format's source, the format's source, and after it.
pub(crate) const CODES: [&str; 3] = [cl_file!("codes.cl"), CHOSEN, cl_file!("codes_dot.cl")];
/// Source for codes and scales of rows in planes, followed by the formats' sources.
pub(crate) const PLANES: [&str; 2] = [concat!(cl_file!("f16.cl"), cl_file!("planes.cl")), CHOSEN];

/// The define that names a format.
pub(crate) const FORMAT: &str = "FORMAT";
/// The define that lists formats, as a macro that takes a macro.
pub(crate) const FORMAT_LIST: &str = "FORMATS(OF)";

/// Returns every format's source by its name.
pub(crate) fn texts() -> Vec<(&'static str, &'static str)> {
    FORMATS.iter().filter_map(|format| Some((format.name, format.kernels.as_ref()?.text))).collect()
}

/// Adds the format to a launch.
pub(crate) fn of_format(launch: Launch<'static>, format: &Format) -> Launch<'static> {
    launch.define("QUANT", true).define(FORMAT, format.name)
}

/// Returns the value of [`FORMAT_LIST`] for the selected formats: name and number of each.
pub(crate) fn list_of(numbers: impl Fn(u32) -> bool) -> Value {
    let wanted = FORMATS.iter().filter(|format| format.on_devices() && numbers(format.number));
    let rows: Vec<String> = wanted.map(|format| format!("OF({}, {})", format.name, format.number)).collect();
    Text::new(&rows.join(" ")).into()
}
