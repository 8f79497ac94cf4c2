//! Types in OpenCL C notation, for messages.

use super::{Space, Type, Types};

impl Space {
    /// Returns the qualifier in source form.
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Private => "__private",
            Self::Local => "__local",
            Self::Constant => "__constant",
            Self::Global => "__global",
            Self::Generic => "__generic",
        }
    }
}

impl Types {
    /// Returns `ty` in OpenCL C notation: `__global const float4 *`.
    pub fn name(&self, ty: Type) -> String {
        match ty {
            Type::Void => "void".into(),
            Type::Scalar(s) => s.name().into(),
            Type::Vector(s, n) => format!("{}{n}", s.name()),
            Type::Atomic(s) => format!("atomic_{}", s.name()),
            Type::Event => "event_t".into(),
            Type::Image(kind, access) => format!("{} {}", access.keyword(), kind.name()),
            Type::Sampler => "sampler_t".into(),
            Type::Record(id) => {
                let r = self.record(id);
                let kind = if r.is_union { "union" } else { "struct" };
                format!("{kind} {}", if r.tag.is_empty() { "(unnamed)" } else { &r.tag })
            }
            Type::Array(_) => self.array_name(ty),
            Type::Pointer(id) => {
                let p = self.pointer(id);
                let constant = if p.is_const { "const " } else { "" };
                let volatile = if p.is_volatile { "volatile " } else { "" };
                let to = self.name(p.to);
                let star = if to.ends_with('*') { "*" } else { " *" };
                format!("{} {constant}{volatile}{to}{star}", p.space.keyword())
            }
        }
    }

    /// Returns `int[3][4]`: the dimensions follow the innermost element.
    fn array_name(&self, mut ty: Type) -> String {
        let mut dims = String::new();
        while let Type::Array(id) = ty {
            let a = self.array(id);
            dims.push_str(&format!("[{}]", a.len));
            ty = a.of;
        }
        self.name(ty) + &dims
    }
}
