//! Names of the language's types and its reserved words.

use crate::types::{ImageAccess, ImageKind, Scalar, Space, Type};

/// Returns a built-in named type: scalars, vectors, `size_t`, `event_t`, the atomic types.
pub(crate) fn type_named(word: &str) -> Option<Type> {
    if let Some(s) = scalar_named(word) {
        return Some(Type::Scalar(s));
    }
    match word {
        "void" => return Some(Type::Void),
        "event_t" => return Some(Type::Event),
        "sampler_t" => return Some(Type::Sampler),
        "atomic_flag" => return Some(Type::Atomic(Scalar::I32)),
        _ => {}
    }
    if let Some(kind) = ImageKind::ALL.into_iter().find(|kind| kind.name() == word) {
        return Some(Type::Image(kind, ImageAccess::Read));
    }
    if let Some(rest) = word.strip_prefix("atomic_") {
        let s = scalar_named(rest)?;
        return (s.size() >= 4).then_some(Type::Atomic(s));
    }
    let digits = word.find(|c: char| c.is_ascii_digit())?;
    let s = scalar_named(&word[..digits]).filter(|s| *s != Scalar::Bool && s.name() == &word[..digits])?;
    let lanes = match &word[digits..] {
        "2" => 2,
        "3" => 3,
        "4" => 4,
        "8" => 8,
        "16" => 16,
        _ => return None,
    };
    Some(Type::Vector(s, lanes))
}

fn scalar_named(word: &str) -> Option<Scalar> {
    Some(match word {
        "bool" | "_Bool" => Scalar::Bool,
        "char" => Scalar::I8,
        "uchar" => Scalar::U8,
        "short" => Scalar::I16,
        "ushort" => Scalar::U16,
        "int" | "memory_order" | "memory_scope" => Scalar::I32,
        "uint" | "cl_mem_fence_flags" => Scalar::U32,
        "long" | "ptrdiff_t" | "intptr_t" => Scalar::I64,
        "ulong" | "size_t" | "uintptr_t" => Scalar::U64,
        "half" => Scalar::F16,
        "float" => Scalar::F32,
        "double" => Scalar::F64,
        _ => return None,
    })
}

/// Returns a type of the language that this device does not support.
pub(super) fn unsupported_type(word: &str) -> Option<&'static str> {
    match word {
        "queue_t" | "clk_event_t" | "ndrange_t" | "reserve_id_t" | "pipe" => {
            Some("this device does not have pipes or device-side queues")
        }
        "complex" | "imaginary" | "quad" | "_Complex" | "_Imaginary" => Some("reserved by the language"),
        _ if word.starts_with("image") && word.ends_with("_t") && type_named(word).is_none() => {
            Some("this device does not have depth or multi-sampled images")
        }
        _ => None,
    }
}

/// Address space that a word names.
pub(super) fn space_named(word: &str) -> Option<Space> {
    Some(match word {
        "__private" | "private" => Space::Private,
        "__local" | "local" => Space::Local,
        "__constant" | "constant" => Space::Constant,
        "__global" | "global" => Space::Global,
        "__generic" | "generic" => Space::Generic,
        _ => return None,
    })
}

/// Words that cannot name a variable.
pub(super) fn is_reserved(word: &str) -> bool {
    const WORDS: [&str; 40] = [
        "break",
        "case",
        "const",
        "continue",
        "default",
        "do",
        "else",
        "enum",
        "extern",
        "for",
        "goto",
        "if",
        "inline",
        "register",
        "auto",
        "restrict",
        "return",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "volatile",
        "while",
        "kernel",
        "__kernel",
        "__attribute__",
        "asm",
        "__asm",
        "__asm__",
        "_Static_assert",
        "_Alignof",
        "vec_step",
        "typeof",
        "__typeof__",
        "_Noreturn",
        "_Generic",
    ];
    WORDS.contains(&word)
        || space_named(word).is_some()
        || type_named(word).is_some_and(|_| !word.contains('_'))
}
