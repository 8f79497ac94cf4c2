//! Functions that read, write and query images: 6.13.14 of OpenCL C 1.2.

use super::super::{Sema, fold};
use super::Call;
use crate::hir::{Builtin, Expr, ImageQuery};
use crate::types::{INT, ImageAccess, ImageKind, SIZE_T, Scalar, Type};

/// The function for a name.
#[derive(Clone, Copy)]
enum Function {
    Read(Scalar),
    Write(Scalar),
    Ask(ImageQuery),
}

fn named(name: &str) -> Option<Function> {
    let element = |suffix: &str| {
        Some(match suffix {
            "f" => Scalar::F32,
            "i" => Scalar::I32,
            "ui" => Scalar::U32,
            "h" => Scalar::F16,
            _ => return None,
        })
    };
    if let Some(rest) = name.strip_prefix("read_image") {
        return element(rest).map(Function::Read);
    }
    if let Some(rest) = name.strip_prefix("write_image") {
        return element(rest).map(Function::Write);
    }
    Some(Function::Ask(match name.strip_prefix("get_image_")? {
        "width" => ImageQuery::Width,
        "height" => ImageQuery::Height,
        "depth" => ImageQuery::Depth,
        "array_size" => ImageQuery::Layers,
        "channel_order" => ImageQuery::Order,
        "channel_data_type" => ImageQuery::Channel,
        "dim" => ImageQuery::Size,
        _ => return None,
    }))
}

/// Returns true if a name is one of these functions.
pub(super) fn is_known(name: &str) -> bool {
    named(name).is_some()
}

impl Sema<'_> {
    /// Analyzes a call of one of them.
    pub(super) fn call_image(&mut self, call: Call) -> Option<Expr> {
        let Some(Type::Image(kind, access)) = call.args.first().map(|image| image.ty) else {
            return self.no_match(&call);
        };
        match named(call.name)? {
            Function::Read(element) => self.read_image(call, kind, access, element),
            Function::Write(element) => self.write_image(call, kind, access, element),
            Function::Ask(what) => self.ask_image(call, kind, what),
        }
    }

    fn half_exists(&mut self, call: &Call, element: Scalar) -> Option<()> {
        if element == Scalar::F16 && !self.features.fp16 {
            return self.error(call.span, format!("'{}' requires cl_khr_fp16 to be enabled", call.name));
        }
        Some(())
    }

    fn read_image(
        &mut self,
        call: Call,
        kind: ImageKind,
        access: ImageAccess,
        element: Scalar,
    ) -> Option<Expr> {
        self.count_args(&call, 2, 3)?;
        self.half_exists(&call, element)?;
        if access == ImageAccess::Write {
            return self.error(call.span, format!("'{}' cannot read a write_only image", call.name));
        }
        let sampled = call.args.len() == 3;
        if sampled && (access == ImageAccess::Both || kind == ImageKind::Buffer) {
            let what = if kind == ImageKind::Buffer { kind.name() } else { access.keyword() };
            return self.error(call.span, format!("'{}' reads no {what} image by a sampler", call.name));
        }
        let (span, name) = (call.span, call.name);
        let mut args = call.args;
        let coordinate = args.pop()?;
        let coordinate = self.coordinate(name, coordinate, kind, sampled)?;
        if let Some(sampler) = args.get(1).cloned() {
            args[1] = self.implicit(sampler, Type::Sampler, "passing to parameter of type", span)?;
        }
        args.push(coordinate);
        Some(self.builtin(Builtin::ReadImage, args, Type::Vector(element, 4), span))
    }

    /// Converts a coordinate to the image's number of `int`s or, with a sampler, `float`s.
    fn coordinate(&mut self, name: &str, given: Expr, kind: ImageKind, floats: bool) -> Option<Expr> {
        let lanes = kind.lanes();
        match given.ty {
            Type::Scalar(s) if lanes == 1 && (s.is_integer() || floats) => {
                let to = if s.is_float() { Scalar::F32 } else { Scalar::I32 };
                Some(fold::convert(given, Type::Scalar(to)))
            }
            Type::Vector(Scalar::I32, n) if n == lanes => Some(given),
            Type::Vector(Scalar::F32, n) if n == lanes && floats => Some(given),
            ty => {
                let (ty, n) =
                    (self.type_name(ty), if lanes == 1 { String::new() } else { lanes.to_string() });
                let or = if floats { format!(" or 'float{n}'") } else { String::new() };
                let message = format!(
                    "'{name}' takes a coordinate of type 'int{n}'{or} for an {}, not '{ty}'",
                    kind.name()
                );
                self.error(given.span, message)
            }
        }
    }

    fn write_image(
        &mut self,
        call: Call,
        kind: ImageKind,
        access: ImageAccess,
        element: Scalar,
    ) -> Option<Expr> {
        self.count_args(&call, 3, 3)?;
        self.half_exists(&call, element)?;
        if access == ImageAccess::Read {
            return self.error(call.span, format!("'{}' cannot write to a read_only image", call.name));
        }
        let (span, name) = (call.span, call.name);
        let mut args = call.args;
        let colour = args.pop()?;
        let coordinate = args.pop()?;
        args.push(self.coordinate(name, coordinate, kind, false)?);
        args.push(self.implicit(colour, Type::Vector(element, 4), "passing to parameter of type", span)?);
        Some(self.builtin(Builtin::WriteImage, args, Type::Void, span))
    }

    fn ask_image(&mut self, call: Call, kind: ImageKind, what: ImageQuery) -> Option<Expr> {
        self.count_args(&call, 1, 1)?;
        let (flat, volume) = (kind.axes() == 2, kind == ImageKind::Volume);
        let ty = match what {
            ImageQuery::Width | ImageQuery::Order | ImageQuery::Channel => INT,
            ImageQuery::Height if flat || volume => INT,
            ImageQuery::Depth if volume => INT,
            ImageQuery::Layers if kind.has_layers() => SIZE_T,
            ImageQuery::Size if flat => Type::Vector(Scalar::I32, 2),
            ImageQuery::Size if volume => Type::Vector(Scalar::I32, 4),
            _ => return self.no_match(&call),
        };
        let span = call.span;
        Some(self.builtin(Builtin::ImageQuery(what), call.args, ty, span))
    }
}
