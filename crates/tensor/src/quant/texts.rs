//! OpenCL sources with which kernels read blocks. Each is followed by the source of the format that a launch names ([`of_format`]), or of several
//! formats.

use super::format::Format;
use super::formats::FORMATS;
use netcl_kernel::{CHOSEN, Launch, Text, Value, cl_file};

/// Unpacks elements. The format's source follows.
pub(crate) const UNPACK: [&str; 2] = [cl_file!("unpack.cl"), CHOSEN];
/// Codes for integer products: the source before the format's source, that source, and the source after it.
pub(crate) const CODES: [&str; 3] = [cl_file!("codes.cl"), CHOSEN, cl_file!("codes_dot.cl")];
/// Rows in planes: their codes and scales. The formats' sources follow.
pub(crate) const PLANES: [&str; 2] = [concat!(cl_file!("f16.cl"), cl_file!("planes.cl")), CHOSEN];

/// Define with the name of a format.
pub(crate) const FORMAT: &str = "FORMAT";
/// Define with the list of formats, a macro of a macro.
pub(crate) const FORMAT_LIST: &str = "FORMATS(OF)";

/// Returns every format's source with its name.
pub(crate) fn texts() -> Vec<(&'static str, &'static str)> {
    FORMATS.iter().filter_map(|format| Some((format.name, format.kernels.as_ref()?.text))).collect()
}

/// Prepares a launch for blocks of this format.
pub(crate) fn of_format(launch: Launch<'static>, format: &Format) -> Launch<'static> {
    launch.define("QUANT", true).define(FORMAT, format.name)
}

/// Returns the value of [`FORMAT_LIST`] for formats with these numbers: name and number of each.
pub(crate) fn list_of(numbers: impl Fn(u32) -> bool) -> Value {
    let wanted = FORMATS.iter().filter(|format| format.on_devices() && numbers(format.number));
    let rows: Vec<String> = wanted.map(|format| format!("OF({}, {})", format.name, format.number)).collect();
    Text::new(&rows.join(" ")).into()
}
