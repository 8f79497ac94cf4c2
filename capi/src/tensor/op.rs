//! Every operation by its name.

use super::state::{TENSORS, dtype, netcl_tensor, recording};
use crate::edge::{edge, value};
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::tensor::Tensor;
use netcl::tensor::ops::call::{Arity, Call, Value};
use netcl::tensor::ops::{call, calls, find};
use std::ffi::{CString, c_char, c_int};
use std::sync::LazyLock;

/// No value, of an attribute that may go without.
pub const NETCL_NONE: c_int = 0;
/// A number, in `number`.
pub const NETCL_NUMBER: c_int = 1;
/// An integer, in `integer`.
pub const NETCL_INTEGER: c_int = 2;
/// Yes or no, in `integer`: 0 is no.
pub const NETCL_BOOL: c_int = 3;
/// `count` integers at `integers`: a shape, axes, lengths.
pub const NETCL_INTEGERS: c_int = 4;
/// A name, in `text`.
pub const NETCL_TEXT: c_int = 5;
/// A storage type, in `integer`: `NETCL_F32`, ….
pub const NETCL_DTYPE: c_int = 6;

/// What an operation takes beside tensors. Fields that the kind does not name are not looked at.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_attribute {
    /// Its name.
    pub name: *const c_char,
    /// `NETCL_NUMBER`, `NETCL_INTEGER`, ….
    pub kind: c_int,
    /// An integer, yes or no, or a storage type.
    pub integer: i64,
    /// A number.
    pub number: f64,
    /// A name.
    pub text: *const c_char,
    /// Integers.
    pub integers: *const i64,
    /// How many integers.
    pub count: usize,
}

/// Name and value.
///
/// # Safety
/// What the attribute points to is what it says.
unsafe fn attribute(given: &netcl_attribute) -> Result<(&str, Value)> {
    // SAFETY: as the caller vouches.
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
            return Err(Failure::argument(format!("attribute {name} is of kind {kind}; there are 0 to 6")));
        }
    };
    Ok((name, value))
}

/// Runs the operation called `name`: `input_count` tensors, NULL for an optional one that is left out; `attribute_count` attributes, those not given have
/// their defaults. Its results are handles at `outputs`, which has room for `room`; `output_count`, which may be NULL, says how many they are. Gradients
/// flow through it, unless the thread is in a scope of `netcl_no_grad_begin`. `netcl_op_describe` says what an operation takes.
///
/// # Safety
/// `name` is a text; the arrays are as long as said, and attributes point to what they say.
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
        // SAFETY: as this function's caller vouches.
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
                "{name} has {} results, there is room for {room}",
                made.len()
            )));
        }
        for (to, made) in outputs.iter_mut().zip(made) {
            *to = TENSORS.insert(made)?;
        }
        Ok(())
    })
}

/// Names and descriptions of all operations, as C reads them.
static TEXTS: LazyLock<Vec<[CString; 2]>> = LazyLock::new(|| {
    let text = |text: String| CString::new(text).unwrap_or_default();
    calls().iter().map(|call| [text(call.name.to_owned()), text(described(call))]).collect()
});

/// A line with what it takes and gives, then its paragraph.
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

/// How many operations there are.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_op_count() -> usize {
    value("netcl_op_count", 0, || Ok(calls().len()))
}

/// The name of one of them, counted from 0; NULL behind the last. It lasts as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_op_name(index: usize) -> *const c_char {
    value("netcl_op_name", std::ptr::null(), || {
        let there = calls().len();
        let text =
            TEXTS.get(index).ok_or_else(|| Failure::argument(format!("operation {index} of {there}")))?;
        Ok(text[0].as_ptr())
    })
}

/// What an operation takes and gives in one line, and a paragraph that describes it; NULL where there is none of that name. It lasts as long as the program.
///
/// # Safety
/// `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_op_describe(name: *const c_char) -> *const c_char {
    value("netcl_op_describe", std::ptr::null(), || {
        // SAFETY: as this function's caller vouches.
        let name = unsafe { pointers::text("name", name) }?;
        let wanted = find(name)?;
        let at = calls().iter().position(|call| std::ptr::eq(call, wanted)).unwrap_or(0);
        Ok(TEXTS.get(at).map_or(std::ptr::null(), |text| text[1].as_ptr()))
    })
}
