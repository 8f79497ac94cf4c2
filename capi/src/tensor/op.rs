//! Operations, called by name.

use super::state::{TENSORS, dtype, netcl_tensor, recording};
use crate::edge::{edge, value};
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::tensor::Tensor;
use netcl::tensor::ops::call::{Arity, Call, Value};
use netcl::tensor::ops::{call, calls, find};
use std::ffi::{CString, c_char, c_int};
use std::sync::LazyLock;

/// No value, for an optional attribute.
pub const NETCL_NONE: c_int = 0;
/// A floating-point number, in `number`.
pub const NETCL_NUMBER: c_int = 1;
/// An integer, in `integer`.
pub const NETCL_INTEGER: c_int = 2;
/// A Boolean, in `integer`: 0 is false.
pub const NETCL_BOOL: c_int = 3;
/// An array of `count` integers at `integers`, such as a shape, axes or lengths.
pub const NETCL_INTEGERS: c_int = 4;
/// A string, in `text`.
pub const NETCL_TEXT: c_int = 5;
/// A storage type, in `integer`: `NETCL_F32`, ….
pub const NETCL_DTYPE: c_int = 6;

/// An attribute of an operation: an argument that is not a tensor. Only the fields that belong to `kind` are read.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_attribute {
    /// Name of the attribute.
    pub name: *const c_char,
    /// Kind of the value: `NETCL_NUMBER`, `NETCL_INTEGER`, ….
    pub kind: c_int,
    /// Integer, Boolean or storage type.
    pub integer: i64,
    /// Floating-point number.
    pub number: f64,
    /// String.
    pub text: *const c_char,
    /// Array of integers.
    pub integers: *const i64,
    /// Number of elements of `integers`.
    pub count: usize,
}

/// Returns the name and value of an attribute.
///
/// # Safety
/// The attribute's pointers match its kind.
unsafe fn attribute(given: &netcl_attribute) -> Result<(&str, Value)> {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { pointers::text("name of an attribute", given.name) }?;
    let small = || c_int::try_from(given.integer).unwrap_or(c_int::MAX);
    let value = match given.kind {
        NETCL_NONE => Value::None,
        NETCL_NUMBER => Value::Float(given.number),
        NETCL_INTEGER => Value::Int(given.integer),
        NETCL_BOOL => Value::Bool(given.integer != 0),
        NETCL_INTEGERS => {
            // SAFETY: likewise.
            Value::Ints(
                unsafe { pointers::slice("integers of an attribute", given.integers, given.count) }?.to_vec(),
            )
        }
        // SAFETY: likewise.
        NETCL_TEXT => Value::Text(unsafe { pointers::text("text of an attribute", given.text) }?.to_owned()),
        NETCL_DTYPE => Value::DType(dtype(small())?),
        kind => {
            return Err(Failure::argument(format!("attribute {name} has kind {kind}, expected 0 to 6")));
        }
    };
    Ok((name, value))
}

/// Runs the operation `name` on `input_count` tensors and `attribute_count` attributes. Pass NULL for an optional input that is omitted.
/// Attributes that are not given have their default values. The results are stored as handles in `outputs`, which points to space for `room`.
/// `output_count` receives their number and may be NULL. Gradients flow through the operation, unless the thread is in a scope of
/// `netcl_no_grad_begin`. `netcl_op_describe` describes the inputs and attributes of an operation.
///
/// # Safety
/// `name` is a string; the arrays have the given lengths, and the attributes' pointers match their kinds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_op(
    name: *const c_char,
    inputs: *const *mut netcl_tensor,
    input_count: usize,
    attributes: *const netcl_attribute,
    attribute_count: usize,
    outputs: *mut *mut netcl_tensor,
    room: usize,
    output_count: *mut usize,
) -> NetclStatus {
    edge("netcl_op", || {
        // SAFETY: guaranteed by this function's caller.
        let (name, inputs) =
            unsafe { (pointers::text("name", name)?, pointers::slice("inputs", inputs, input_count)?) };
        // SAFETY: likewise.
        let attributes = unsafe { pointers::slice("attributes", attributes, attribute_count) }?;
        // SAFETY: likewise.
        let outputs = unsafe { pointers::slice_mut("outputs", outputs, room) }?;
        let tensor = |handle: &*mut netcl_tensor| {
            if handle.is_null() { Ok(None) } else { TENSORS.get(*handle).map(Some) }
        };
        let tensors = inputs.iter().map(tensor).collect::<Result<Vec<Option<Tensor>>>>()?;
        let tensors: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
        // SAFETY: likewise.
        let attributes = attributes.iter().map(|a| unsafe { attribute(a) }).collect::<Result<Vec<_>>>()?;
        let made = recording(|| call(name, &tensors, &attributes))?;
        if !output_count.is_null() {
            // SAFETY: likewise.
            unsafe { pointers::put("output_count", output_count, made.len()) }?;
        }
        if made.len() > room {
            return Err(Failure::argument(format!(
                "{name} has {} results, but outputs has room for {room}",
                made.len()
            )));
        }
        for (to, made) in outputs.iter_mut().zip(made) {
            *to = TENSORS.insert(made)?;
        }
        Ok(())
    })
}

/// Names and descriptions of all operationsas C strings.
static TEXTS: LazyLock<Vec<[CString; 2]>> = LazyLock::new(|| {
    let text = |text: String| CString::new(text).unwrap_or_default();
    calls().iter().map(|call| [text(call.name.to_owned()), text(described(call))]).collect()
});

/// Formats the description: a line with inputs, attributes and results, followed by a paragraph.
fn described(call: &Call) -> String {
    let inputs = call.inputs.iter().map(|input| match input.arity {
        Arity::One => input.name.to_owned(),
        Arity::Optional => format!("[{}]", input.name),
        Arity::List => format!("{}…", input.name),
    });
    let attributes = call.attributes.iter().map(|attribute| match &attribute.default {
        Some(_) => format!("{}=", attribute.name),
        None => attribute.name.to_owned(),
    });
    let arguments: Vec<String> = inputs.chain(attributes).collect();
    format!("{}({}) -> {}\n{}", call.name, arguments.join(", "), call.results.join(", "), call.doc)
}

/// Returns the number of operations.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_op_count() -> usize {
    value("netcl_op_count", 0, || Ok(calls().len()))
}

/// Returns the name of an operation by its index, which starts at 0, or NULL after the last one. The string is valid until the program
/// ends.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_op_name(index: usize) -> *const c_char {
    value("netcl_op_name", std::ptr::null(), || {
        let there = calls().len();
        let text = TEXTS
            .get(index)
            .ok_or_else(|| Failure::argument(format!("operation {index} is out of range; {there} exist")))?;
        Ok(text[0].as_ptr())
    })
}

/// Returns a description of the operation `name`: a line with inputs, attributes and results, and a paragraph. Returns NULL if the
/// operation does not exist. The string is valid until the program ends.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_op_describe(name: *const c_char) -> *const c_char {
    value("netcl_op_describe", std::ptr::null(), || {
        // SAFETY: guaranteed by this function's caller.
        let name = unsafe { pointers::text("name", name) }?;
        let wanted = find(name)?;
        let at = calls().iter().position(|call| std::ptr::eq(call, wanted)).unwrap_or(0);
        Ok(TEXTS.get(at).map_or(std::ptr::null(), |text| text[1].as_ptr()))
    })
}
