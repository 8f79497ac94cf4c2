//! Functions of images.

use super::super::bytecode::{File, ImageRead, ImageWrite, Inst};
use super::super::lanes::Widen;
use super::{Lower, Val, Value};
use crate::hir::{Expr, ImageQuery};
use crate::types::{ImageKind, Scalar, Type};

/// Elements of an image in registers: its address, then six words.
mod part {
    pub const ADDRESS: usize = 0;
    pub const WIDTH: usize = 1;
    pub const HEIGHT: usize = 2;
    pub const DEPTH: usize = 3;
    pub const LAYERS: usize = 4;
    pub const ORDER: usize = 5;
    pub const CHANNEL: usize = 6;
}

fn kind_of(image: &Expr) -> ImageKind {
    match image.ty {
        Type::Image(kind, _) => kind,
        _ => ImageKind::Plane,
    }
}

impl Lower<'_> {
    /// Returns the numbers of a coordinate; components that the image lacks are 0.
    fn coordinate(&mut self, kind: ImageKind, e: &Expr) -> Value {
        let mut numbers = self.value(e);
        numbers.truncate(kind.numbers());
        numbers.resize(3, Val::Const(0));
        numbers
    }

    pub(super) fn read_image(&mut self, args: &[Expr], e: &Expr) -> Value {
        let kind = kind_of(&args[0]);
        let image = self.value(&args[0])[part::ADDRESS];
        let sampled = args.len() == 3;
        let sampler = if sampled { self.scalar(&args[1]) } else { Val::Const(0) };
        let last = &args[args.len() - 1];
        let at = self.coordinate(kind, last);
        let colour: Value = (0..4).map(|_| Val::Reg(self.e.temporary(File::Word))).collect();
        let operands: Value = colour.iter().copied().chain([image, sampler]).chain(at).collect();
        let list = self.e.list(&operands);
        let read = ImageRead {
            floats: last.ty.element() == Some(Scalar::F32),
            sampled,
            half: e.ty.element() == Some(Scalar::F16),
        };
        // Only the format, known later, determines the size of a texel.
        self.e.code.granule = 1;
        self.effect(Inst::ReadImage { read, list });
        colour
    }

    pub(super) fn write_image(&mut self, args: &[Expr]) -> Value {
        let kind = kind_of(&args[0]);
        let image = self.value(&args[0])[part::ADDRESS];
        let at = self.coordinate(kind, &args[1]);
        let colour = self.value(&args[2]);
        let operands: Value = [image].into_iter().chain(at).chain(colour).collect();
        let list = self.e.list(&operands);
        let write = ImageWrite { half: args[2].ty.element() == Some(Scalar::F16) };
        self.e.code.granule = 1;
        self.effect(Inst::WriteImage { write, list })
    }

    pub(super) fn image_query(&mut self, what: ImageQuery, args: &[Expr], e: &Expr) -> Value {
        let image = self.value(&args[0]);
        match what {
            ImageQuery::Width => vec![image[part::WIDTH]],
            ImageQuery::Height => vec![image[part::HEIGHT]],
            ImageQuery::Depth => vec![image[part::DEPTH]],
            ImageQuery::Order => vec![image[part::ORDER]],
            ImageQuery::Channel => vec![image[part::CHANNEL]],
            ImageQuery::Layers => vec![self.e.widen(Widen::Zext, image[part::LAYERS])],
            ImageQuery::Size if e.ty.lanes() == 2 => vec![image[part::WIDTH], image[part::HEIGHT]],
            ImageQuery::Size => {
                vec![image[part::WIDTH], image[part::HEIGHT], image[part::DEPTH], Val::Const(0)]
            }
        }
    }
}
