//! Kinds of images and their permitted accesses.

/// A kind of image. Its texels are counted along one to three axes; layers are the axis after the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageKind {
    /// `image1d_t`.
    Line,
    /// `image1d_buffer_t`: the elements of a buffer.
    Buffer,
    /// `image1d_array_t`.
    LineArray,
    /// `image2d_t`.
    Plane,
    /// `image2d_array_t`.
    PlaneArray,
    /// `image3d_t`.
    Volume,
}

impl ImageKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Line, Self::Buffer, Self::LineArray, Self::Plane, Self::PlaneArray, Self::Volume];

    /// Returns the name in OpenCL C.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Line => "image1d_t",
            Self::Buffer => "image1d_buffer_t",
            Self::LineArray => "image1d_array_t",
            Self::Plane => "image2d_t",
            Self::PlaneArray => "image2d_array_t",
            Self::Volume => "image3d_t",
        }
    }

    /// Returns the lanes of a coordinate in OpenCL C; three numbers use a vector of four.
    pub const fn lanes(self) -> u8 {
        match self {
            Self::Line | Self::Buffer => 1,
            Self::LineArray | Self::Plane => 2,
            Self::PlaneArray | Self::Volume => 4,
        }
    }

    /// Returns the number of axes along which texels are filtered.
    pub const fn axes(self) -> usize {
        match self {
            Self::Line | Self::Buffer | Self::LineArray => 1,
            Self::Plane | Self::PlaneArray => 2,
            Self::Volume => 3,
        }
    }

    /// Returns true if it has layers.
    pub const fn has_layers(self) -> bool {
        matches!(self, Self::LineArray | Self::PlaneArray)
    }

    /// Returns the number of components of a coordinate, including the layer.
    pub const fn numbers(self) -> usize {
        self.axes() + self.has_layers() as usize
    }
}

/// Permitted access of a kernel to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageAccess {
    /// `read_only`, also the default.
    Read,
    /// `write_only`.
    Write,
    /// `read_write`, since OpenCL C 2.0.
    Both,
}

impl ImageAccess {
    /// Returns the qualifier.
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Read => "read_only",
            Self::Write => "write_only",
            Self::Both => "read_write",
        }
    }

    /// Returns the access of a qualifier.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word.trim_start_matches('_') {
            "read_only" => Self::Read,
            "write_only" => Self::Write,
            "read_write" => Self::Both,
            _ => return None,
        })
    }
}
