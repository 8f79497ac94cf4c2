//! Kinds of images and what programs may do with them.

/// A kind of image. Its texels are counted along one to three axes; layers are the axis behind the others.
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

    /// The name in OpenCL C.
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

    /// Lanes of a coordinate in OpenCL C; three numbers come in a vector of four.
    pub const fn lanes(self) -> u8 {
        match self {
            Self::Line | Self::Buffer => 1,
            Self::LineArray | Self::Plane => 2,
            Self::PlaneArray | Self::Volume => 4,
        }
    }

    /// Axes along which texels are filtered.
    pub const fn axes(self) -> usize {
        match self {
            Self::Line | Self::Buffer | Self::LineArray => 1,
            Self::Plane | Self::PlaneArray => 2,
            Self::Volume => 3,
        }
    }

    /// Whether it has layers.
    pub const fn has_layers(self) -> bool {
        matches!(self, Self::LineArray | Self::PlaneArray)
    }

    /// Numbers of a coordinate, a layer's included.
    pub const fn numbers(self) -> usize {
        self.axes() + self.has_layers() as usize
    }
}

/// What a kernel may do with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageAccess {
    /// `read_only`, also where nothing is said.
    Read,
    /// `write_only`.
    Write,
    /// `read_write`, since OpenCL C 2.0.
    Both,
}

impl ImageAccess {
    /// The qualifier.
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Read => "read_only",
            Self::Write => "write_only",
            Self::Both => "read_write",
        }
    }

    /// The access of a qualifier.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word.trim_start_matches('_') {
            "read_only" => Self::Read,
            "write_only" => Self::Write,
            "read_write" => Self::Both,
            _ => return None,
        })
    }
}
