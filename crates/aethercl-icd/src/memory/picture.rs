//! What an image is beside its bytes: format, size and pitches, as programs describe them.

use super::rect::Layout;
use crate::cl;
use crate::cl::Result;
use crate::limits::{MAX_BUFFER, MAX_LAYERS, MAX_PLANE, MAX_VOLUME};
use crate::raw::{ImageDescriptor, ImageFormat};
use aethercl::image::{Format, Image};
use aethercl::types::ImageKind;

/// `CL_MEM_OBJECT_IMAGE…` and the kind that kernels have it as.
pub const TYPES: [(u32, ImageKind); 6] = [
    (cl::MEM_OBJECT_IMAGE1D, ImageKind::Line),
    (cl::MEM_OBJECT_IMAGE1D_BUFFER, ImageKind::Buffer),
    (cl::MEM_OBJECT_IMAGE1D_ARRAY, ImageKind::LineArray),
    (cl::MEM_OBJECT_IMAGE2D, ImageKind::Plane),
    (cl::MEM_OBJECT_IMAGE2D_ARRAY, ImageKind::PlaneArray),
    (cl::MEM_OBJECT_IMAGE3D, ImageKind::Volume),
];

/// The kind of a `CL_MEM_OBJECT_IMAGE…`.
pub fn kind_of(number: u32) -> Option<ImageKind> {
    TYPES.iter().find(|(own, _)| *own == number).map(|(_, kind)| *kind)
}

/// An image without its address.
#[derive(Clone, Copy, Debug)]
pub struct Picture {
    /// Kind, format, texels and the bytes between them; the address is 0.
    pub shape: Image,
    /// The format as programs give it.
    pub format: ImageFormat,
}

/// The format of a call.
///
/// # Errors
/// `CL_INVALID_IMAGE_FORMAT_DESCRIPTOR` where it is none, `CL_IMAGE_FORMAT_NOT_SUPPORTED` where devices here lack it.
pub fn format_of(format: Option<ImageFormat>) -> Result<(Format, ImageFormat)> {
    let given = format.ok_or(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR)?;
    let exists = (0x10b0..=0x10c3).contains(&given.order) && (0x10d0..=0x10e0).contains(&given.channel);
    match Format::of(given.order, given.channel) {
        Some(format) => Ok((format, given)),
        None if exists => Err(cl::IMAGE_FORMAT_NOT_SUPPORTED),
        None => Err(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR),
    }
}

/// Texels along each axis; layers are the last one.
fn extent(kind: ImageKind, d: &ImageDescriptor) -> Result<[usize; 3]> {
    let (extent, most) = match kind {
        ImageKind::Line => ([d.width, 1, 1], [MAX_PLANE, 1, 1]),
        ImageKind::Buffer => ([d.width, 1, 1], [MAX_BUFFER, 1, 1]),
        ImageKind::LineArray => ([d.width, d.layers, 1], [MAX_PLANE, MAX_LAYERS, 1]),
        ImageKind::Plane => ([d.width, d.height, 1], [MAX_PLANE, MAX_PLANE, 1]),
        ImageKind::PlaneArray => ([d.width, d.height, d.layers], [MAX_PLANE, MAX_PLANE, MAX_LAYERS]),
        ImageKind::Volume => ([d.width, d.height, d.depth], [MAX_VOLUME; 3]),
    };
    if extent.contains(&0) {
        // A size that the kind has not is no matter of its descriptor.
        return Err(cl::INVALID_IMAGE_SIZE);
    }
    if (0..3).any(|i| extent[i] > most[i]) { Err(cl::INVALID_IMAGE_SIZE) } else { Ok(extent) }
}

impl Picture {
    /// The image of a descriptor; `pitched`: there are bytes of the program or of a buffer, which its pitches are of.
    ///
    /// # Errors
    /// `CL_INVALID_IMAGE_DESCRIPTOR`, `CL_INVALID_IMAGE_SIZE`.
    pub fn new(
        (format, given): (Format, ImageFormat),
        descriptor: &ImageDescriptor,
        pitched: bool,
    ) -> Result<Self> {
        let wrong = Err(cl::INVALID_IMAGE_DESCRIPTOR);
        let Some(kind) = kind_of(descriptor.kind) else { return wrong };
        if descriptor.mip_levels != 0 || descriptor.samples != 0 {
            return wrong;
        }
        let extent = extent(kind, descriptor)?;
        let texel = format.bytes() as usize;
        let (row, slice) = (descriptor.row_pitch, descriptor.slice_pitch);
        if !pitched && (row != 0 || slice != 0) {
            return wrong;
        }
        let width = extent[0] * texel;
        let row = if row == 0 { width } else { row };
        let lines = if kind == ImageKind::LineArray { 1 } else { extent[1] };
        let least = row.checked_mul(lines).ok_or(cl::INVALID_IMAGE_SIZE)?;
        let slices = matches!(kind, ImageKind::LineArray | ImageKind::PlaneArray | ImageKind::Volume);
        let slice = if slice == 0 || !slices { least } else { slice };
        if row < width || row % texel != 0 || slice < least || slice % row != 0 {
            return wrong;
        }
        let strides = match kind {
            ImageKind::LineArray => [texel, slice, slice * extent[1]],
            _ => [texel, row, slice],
        };
        let whole = strides[2].checked_mul(extent[2]).ok_or(cl::INVALID_IMAGE_SIZE)?;
        if isize::try_from(whole).is_err() {
            return Err(cl::INVALID_IMAGE_SIZE);
        }
        let shape = Image {
            address: 0,
            kind,
            format,
            extent: extent.map(|n| n as u64),
            strides: strides.map(|n| n as u64),
        };
        Ok(Self { shape, format: given })
    }

    /// Without the gaps that the program's rows have.
    pub fn packed(self) -> Self {
        let shape = Image::packed(0, self.shape.kind, self.shape.format, self.shape.extent);
        Self { shape, ..self }
    }

    /// Bytes of a texel.
    pub fn texel(&self) -> usize {
        self.shape.format.bytes() as usize
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        (self.shape.strides[2] * self.shape.extent[2]) as usize
    }

    /// Bytes from row to row, and from slice to slice; 0 where there are none.
    pub fn pitches(&self) -> (usize, usize) {
        let [_, s1, s2] = self.shape.strides.map(|n| n as usize);
        match self.shape.kind {
            ImageKind::Line | ImageKind::Buffer | ImageKind::Plane => (s1, 0),
            ImageKind::LineArray => (self.shape.extent[0] as usize * self.texel(), s1),
            ImageKind::PlaneArray | ImageKind::Volume => (s1, s2),
        }
    }

    /// The rows of a part of the image.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` where it has no texel or reaches outside.
    pub fn part(&self, origin: [usize; 3], region: [usize; 3]) -> Result<Layout> {
        let extent = self.shape.extent.map(|n| n as usize);
        let inside =
            |d: usize| region[d] > 0 && origin[d].checked_add(region[d]).is_some_and(|end| end <= extent[d]);
        if !(0..3).all(inside) {
            return Err(cl::INVALID_VALUE);
        }
        let [texel, row, slice] = self.shape.strides.map(|n| n as usize);
        Ok(Layout {
            start: origin[0] * texel + origin[1] * row + origin[2] * slice,
            row,
            slice,
            region: [region[0] * texel, region[1], region[2]],
        })
    }

    /// The rows of the program's memory for a part of that size, at these pitches, of which 0 means without gaps.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` where rows do not hold the part.
    pub fn host(&self, region: [usize; 3], row: usize, slice: usize) -> Result<Layout> {
        let kind = self.shape.kind;
        let width = region[0] * self.texel();
        let slices = matches!(kind, ImageKind::LineArray | ImageKind::PlaneArray | ImageKind::Volume);
        if (row != 0 && row < width) || (slice != 0 && !slices) {
            return Err(cl::INVALID_VALUE);
        }
        let row = if row == 0 { width } else { row };
        let lines = if kind == ImageKind::LineArray { 1 } else { region[1] };
        let least = row.checked_mul(lines).ok_or(cl::INVALID_VALUE)?;
        if slice != 0 && slice < least {
            return Err(cl::INVALID_VALUE);
        }
        let slice = if slice == 0 { least } else { slice };
        let region = [width, region[1], region[2]];
        Ok(match kind {
            ImageKind::LineArray => Layout { start: 0, row: slice, slice: slice * region[1], region },
            _ => Layout { start: 0, row, slice, region },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(kind: u32, sizes: [usize; 4], pitches: [usize; 2]) -> Result<Picture> {
        let [width, height, depth, layers] = sizes;
        let [row_pitch, slice_pitch] = pitches;
        let d = ImageDescriptor {
            kind,
            width,
            height,
            depth,
            layers,
            row_pitch,
            slice_pitch,
            ..ImageDescriptor::default()
        };
        // RGBA of bytes.
        let format = format_of(Some(ImageFormat { order: 0x10b5, channel: 0x10d2 }))?;
        Picture::new(format, &d, true)
    }

    #[test]
    fn parts_lie_where_pitches_say() {
        let p = picture(cl::MEM_OBJECT_IMAGE3D, [5, 4, 3, 0], [24, 120]).unwrap();
        let part = p.part([1, 2, 1], [2, 2, 2]).unwrap();
        assert_eq!((part.start, part.row, part.slice, part.region), (172, 24, 120, [8, 2, 2]));
        assert_eq!((p.bytes(), p.pitches()), (360, (24, 120)));
        assert_eq!(p.packed().pitches(), (20, 80));
        let lines = picture(cl::MEM_OBJECT_IMAGE1D_ARRAY, [5, 0, 0, 3], [0, 40]).unwrap();
        assert_eq!(lines.part([0, 1, 0], [5, 2, 1]).map(|l| (l.start, l.row)), Ok((40, 40)));
        assert_eq!((lines.bytes(), lines.pitches()), (120, (20, 40)));
    }

    #[test]
    fn sizes_and_pitches_that_do_not_fit_are_refused() {
        let plane = |sizes, pitches| picture(cl::MEM_OBJECT_IMAGE2D, sizes, pitches).map(|_| ());
        assert_eq!(plane([4, 4, 0, 0], [0, 0]), Ok(()));
        assert_eq!(plane([0, 4, 0, 0], [0, 0]), Err(cl::INVALID_IMAGE_SIZE));
        assert_eq!(plane([MAX_PLANE + 1, 4, 0, 0], [0, 0]), Err(cl::INVALID_IMAGE_SIZE));
        assert_eq!(plane([4, 4, 0, 0], [12, 0]), Err(cl::INVALID_IMAGE_DESCRIPTOR));
        assert_eq!(plane([4, 4, 0, 0], [18, 0]), Err(cl::INVALID_IMAGE_DESCRIPTOR));
        let p = picture(cl::MEM_OBJECT_IMAGE2D, [4, 4, 0, 0], [0, 0]).unwrap();
        assert!(p.part([0, 0, 0], [4, 4, 1]).is_ok());
        assert_eq!(p.part([1, 0, 0], [4, 4, 1]), Err(cl::INVALID_VALUE));
        assert_eq!(p.part([0, 0, 0], [4, 4, 0]), Err(cl::INVALID_VALUE));
        assert_eq!(p.host([4, 4, 1], 8, 0), Err(cl::INVALID_VALUE));
    }
}
