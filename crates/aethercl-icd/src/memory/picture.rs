//! Image descriptors: format, size and pitches.

use super::rect::Layout;
use crate::cl;
use crate::cl::Result;
use crate::limits::{MAX_BUFFER, MAX_LAYERS, MAX_PLANE, MAX_VOLUME};
use crate::raw::{ImageDescriptor, ImageFormat};
use aethercl::image::{Format, Image};
use aethercl::types::ImageKind;

/// `CL_MEM_OBJECT_IMAGE…` constants and their image kinds.
pub const TYPES: [(u32, ImageKind); 6] = [
    (cl::MEM_OBJECT_IMAGE1D, ImageKind::Line),
    (cl::MEM_OBJECT_IMAGE1D_BUFFER, ImageKind::Buffer),
    (cl::MEM_OBJECT_IMAGE1D_ARRAY, ImageKind::LineArray),
    (cl::MEM_OBJECT_IMAGE2D, ImageKind::Plane),
    (cl::MEM_OBJECT_IMAGE2D_ARRAY, ImageKind::PlaneArray),
    (cl::MEM_OBJECT_IMAGE3D, ImageKind::Volume),
];

/// Returns the image kind of a `CL_MEM_OBJECT_IMAGE…` constant.
pub fn kind_of(number: u32) -> Option<ImageKind> {
    TYPES.iter().find(|(own, _)| *own == number).map(|(_, kind)| *kind)
}

/// Format and layout of an image, without its address.
#[derive(Clone, Copy, Debug)]
pub struct Picture {
    /// Kind, format, extent and strides; the address is 0.
    pub shape: Image,
    /// The format in the form that the program passed.
    pub format: ImageFormat,
}

/// Looks up a format.
///
/// # Errors
/// `CL_INVALID_IMAGE_FORMAT_DESCRIPTOR` if it is invalid, `CL_IMAGE_FORMAT_NOT_SUPPORTED` if it is valid but not supported.
pub fn format_of(format: Option<ImageFormat>) -> Result<(Format, ImageFormat)> {
    let given = format.ok_or(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR)?;
    let exists = (0x10b0..=0x10c3).contains(&given.order) && (0x10d0..=0x10e0).contains(&given.channel);
    match Format::of(given.order, given.channel) {
        Some(format) => Ok((format, given)),
        None if exists => Err(cl::IMAGE_FORMAT_NOT_SUPPORTED),
        None => Err(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR),
    }
}

/// Returns the texels along each axis; layers are the last axis.
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
        // Sizes that this kind of image does not have are ignored.
        return Err(cl::INVALID_IMAGE_SIZE);
    }
    if (0..3).any(|i| extent[i] > most[i]) { Err(cl::INVALID_IMAGE_SIZE) } else { Ok(extent) }
}

impl Picture {
    /// Converts a descriptor. `pitched`: pitches may be given, because the image has a host pointer or is created from a buffer.
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

    /// Returns the same image without padding between rows and slices.
    pub fn packed(self) -> Self {
        let shape = Image::packed(0, self.shape.kind, self.shape.format, self.shape.extent);
        Self { shape, ..self }
    }

    /// Returns the bytes per texel.
    pub fn texel(&self) -> usize {
        self.shape.format.bytes() as usize
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        (self.shape.strides[2] * self.shape.extent[2]) as usize
    }

    /// Returns row pitch and slice pitch; the latter is 0 for images without slices.
    pub fn pitches(&self) -> (usize, usize) {
        let [_, s1, s2] = self.shape.strides.map(|n| n as usize);
        match self.shape.kind {
            ImageKind::Line | ImageKind::Buffer | ImageKind::Plane => (s1, 0),
            ImageKind::LineArray => (self.shape.extent[0] as usize * self.texel(), s1),
            ImageKind::PlaneArray | ImageKind::Volume => (s1, s2),
        }
    }

    /// Returns the layout of a region of the image.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` if it is empty or out of bounds.
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

    /// Returns the layout of a region in host memory with these pitches; 0 means tightly packed.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` if the pitches are too small.
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
        // RGBA, 8 bits per channel.
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
