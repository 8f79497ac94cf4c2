//! Checks whether a command-line argument matches a kernel's parameter, and returns its bytes.

use super::arg::{KernelArg, Part, Value};
use super::number::Number;
use aethercl::types::{Scalar, Space, Type, Types};
use netcl::device::counted;

/// Returns the OpenCL C type of a number.
fn scalar(number: Number) -> Scalar {
    match number {
        Number::I8 => Scalar::I8,
        Number::U8 => Scalar::U8,
        Number::I16 => Scalar::I16,
        Number::U16 => Scalar::U16,
        Number::I32 => Scalar::I32,
        Number::U32 => Scalar::U32,
        Number::I64 => Scalar::I64,
        Number::U64 => Scalar::U64,
        Number::F16 => Scalar::F16,
        Number::F32 => Scalar::F32,
        Number::F64 => Scalar::F64,
    }
}

/// Returns the command-line name of a type.
fn given_as(s: Scalar) -> &'static str {
    match s {
        Scalar::Bool | Scalar::U8 => "u8",
        Scalar::I8 => "i8",
        Scalar::I16 => "i16",
        Scalar::U16 => "u16",
        Scalar::I32 => "i32",
        Scalar::U32 => "u32",
        Scalar::I64 => "i64",
        Scalar::U64 => "u64",
        Scalar::F16 => "f16",
        Scalar::F32 => "f32",
        Scalar::F64 => "f64",
    }
}

/// Integers of one width have the same bits; a float is not an integer.
fn same(a: Scalar, b: Scalar) -> bool {
    a.size() == b.size() && a.is_float() == b.is_float()
}

/// Returns the type of consecutive numbers in memory; `None` for structures and bytes without a type.
fn elements(types: &Types, ty: Type) -> Option<Scalar> {
    match ty {
        Type::Scalar(s) | Type::Vector(s, _) | Type::Atomic(s) => Some(s),
        Type::Array(id) => elements(types, types.array(id).of),
        _ => None,
    }
}

/// Checks that an argument matches a parameter of this type; returns the bytes of a value.
///
/// # Errors
/// The form that the parameter requires.
pub fn check(types: &Types, ty: Type, arg: &KernelArg) -> Result<Vec<u8>, String> {
    let pointee = types.pointee(ty);
    match (pointee, arg) {
        (Some(to), KernelArg::Null) if to.space != Space::Local => Ok(Vec::new()),
        (Some(to), KernelArg::Local(_)) if to.space == Space::Local => Ok(Vec::new()),
        (Some(to), _) if to.space == Space::Local => Err("it takes local:<type>:<count>".into()),
        (Some(to), KernelArg::Buffer { number, .. }) => match elements(types, to.to) {
            Some(s) if !same(s, scalar(*number)) => Err(format!(
                "it takes buffer:{}:<count>, not a buffer of {}",
                given_as(s),
                scalar(*number).name()
            )),
            _ => Ok(Vec::new()),
        },
        (Some(_), _) => Err("it takes buffer:<type>:<count> or null".into()),
        (None, KernelArg::Image(image)) if matches!(ty, Type::Image(..)) => {
            let Type::Image(kind, _) = ty else { return Err("it does not take an image".into()) };
            match kind.numbers() == image.sizes.len() {
                true => Ok(Vec::new()),
                false => Err(format!("an {} has {}", kind.name(), counted(kind.numbers(), "size"))),
            }
        }
        (None, KernelArg::Sampler(_)) if ty == Type::Sampler => Ok(Vec::new()),
        (None, KernelArg::Scalar(value)) => part(types, ty, &Part::Value(value.clone())),
        (None, KernelArg::Fields(list)) => part(types, ty, &Part::Fields(list.clone())),
        (None, _) => Err(format!("it takes {}", form(types, ty))),
    }
}

/// Returns the notation of a value of a type.
fn form(types: &Types, ty: Type) -> String {
    match ty {
        Type::Scalar(s) => format!("{}:<value>", given_as(s)),
        Type::Vector(s, n) => format!("{}x{n}:<values>", given_as(s)),
        Type::Record(id) => {
            let fields: Vec<String> =
                types.record(id).fields.iter().filter(|f| !f.inherited).map(|f| form(types, f.ty)).collect();
            format!("{{{}}}", fields.join(","))
        }
        Type::Array(id) => {
            let array = types.array(id);
            format!("{{{},… ({} of them)}}", form(types, array.of), array.len)
        }
        Type::Image(kind, _) => {
            let sizes = &["<width>", "<height>", "<depth>"][..kind.numbers().min(3)];
            format!("image:<channels>:<type>:{}", sizes.join("x"))
        }
        Type::Sampler => "sampler:<mode>,…".into(),
        _ => "a type that the command line does not support".into(),
    }
}

fn part(types: &Types, ty: Type, given: &Part) -> Result<Vec<u8>, String> {
    let wrong = || format!("it takes {}", form(types, ty));
    match (ty, given) {
        (Type::Scalar(s), Part::Value(v)) if v.lanes == 1 && same(s, scalar(v.number)) => Ok(v.bytes.clone()),
        (Type::Vector(s, n), Part::Value(Value { number, lanes, bytes }))
            if *lanes == usize::from(n) && same(s, scalar(*number)) =>
        {
            Ok(bytes.clone())
        }
        (Type::Array(id), Part::Fields(list)) => {
            let array = types.array(id);
            if list.len() as u64 != array.len {
                return Err(format!("{}; {}", counted(list.len(), "element"), wrong()));
            }
            let parts: Result<Vec<_>, _> = list.iter().map(|p| part(types, array.of, p)).collect();
            Ok(parts?.concat())
        }
        (Type::Record(id), Part::Fields(list)) => {
            let record = types.record(id);
            let mut fields: Vec<_> = record.fields.iter().filter(|f| !f.inherited).collect();
            if record.is_union {
                // Only the first member is given.
                fields.truncate(1);
            }
            if fields.len() != list.len() {
                return Err(format!("{}; {}", counted(list.len(), "field"), wrong()));
            }
            let mut bytes = vec![0; record.size as usize];
            for (field, given) in fields.into_iter().zip(list) {
                let value = part(types, field.ty, given).map_err(|e| format!("field {}: {e}", field.name))?;
                bytes[field.offset as usize..][..value.len()].copy_from_slice(&value);
            }
            Ok(bytes)
        }
        _ => Err(wrong()),
    }
}
