//! Mapping between taps and input pixels: one description for the convolution, its gradients, and the transposed convolution.

use super::super::prelude::*;

/// One spatial axis: pixel `y` of the result and tap `i` use pixel `y * step + i * dilation + origin` of the input, which is 0 outside of the
/// image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConvAxis {
    pub input: usize,
    pub output: usize,
    pub taps: usize,
    pub step: usize,
    pub dilation: isize,
    pub origin: isize,
}

/// Stride, padding and dilation of one spatial axis, its sizes and the taps of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// Size of the image along the axis.
    pub image: usize,
    /// Number of positions of the kernel on the image.
    pub places: usize,
    pub taps: usize,
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
}

/// A class of pixels of the image that the same taps reach: those at `first`, `first + stride`, … of an axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    pub axis: ConvAxis,
    pub first: usize,
    /// The first tap that reaches them, and the distance between their taps.
    pub tap: usize,
    pub every: usize,
}

impl Side {
    /// Returns the number of positions of a kernel of `taps` on `image`, or `None` if it does not fit.
    pub fn places(
        image: usize,
        taps: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
    ) -> Option<usize> {
        let reach = dilation.checked_mul(taps.checked_sub(1)?)?.checked_add(1)?;
        let room = image.checked_add(padding.checked_mul(2)?)?.checked_sub(reach)?;
        room.checked_div(stride).map(|n| n + 1)
    }

    /// Returns the mapping from the image to the positions: the convolution.
    pub fn forward(&self) -> ConvAxis {
        ConvAxis {
            input: self.image,
            output: self.places,
            taps: self.taps,
            step: self.stride,
            dilation: self.dilation.cast_signed(),
            origin: -self.padding.cast_signed(),
        }
    }

    /// Returns the mapping from the positions back to the image, for each class of pixels: pixel `h` and tap `t` use position
    /// `(h + padding - t * dilation) / stride`, if this is an integer.
    pub fn backward(&self) -> Vec<Phase> {
        let (stride, padding) = (self.stride, self.padding);
        let every = stride / gcd(stride, self.dilation);
        let phase = |first: usize| {
            let meets = |tap: &usize| {
                let distance = (first + padding).cast_signed() - (tap * self.dilation).cast_signed();
                distance.rem_euclid(stride.cast_signed()) == 0
            };
            let tap = (0..every.min(self.taps)).find(meets);
            let at = tap.unwrap_or(0);
            let distance = (first + padding).cast_signed() - (at * self.dilation).cast_signed();
            let axis = ConvAxis {
                input: self.places,
                output: self.image.saturating_sub(first).div_ceil(stride),
                taps: tap.map_or(0, |tap| (self.taps - tap).div_ceil(every)),
                step: 1,
                dilation: -(every * self.dilation / stride).cast_signed(),
                origin: distance.div_euclid(stride.cast_signed()),
            };
            Phase { axis, first, tap: at, every }
        };
        (0..stride.min(self.image)).map(phase).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A convolution of images `(N, H, W, G * C)` with weights `(G * O, C, I, J)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Geometry {
    pub batch: usize,
    pub groups: usize,
    /// Channels of the image per group.
    pub image: usize,
    /// Channels of the result per group.
    pub places: usize,
    pub sides: [Side; 2],
}

impl Geometry {
    /// Returns whether it is a product of pixels `(N * H * W, C)` and weights `(C, O)`.
    pub fn is_product(&self) -> bool {
        let plain = |s: &Side| s.taps == 1 && s.stride == 1 && s.padding == 0;
        self.groups == 1 && self.sides.iter().all(plain)
    }
}

/// Options of a convolution. A single number applies to both axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Pixels between two positions of the kernel, along H and W.
    pub stride: [usize; 2],
    /// Zeros on each side of an axis.
    pub padding: [usize; 2],
    /// Pixels between two taps.
    pub dilation: [usize; 2],
    /// Number of groups into which the channels are divided; each is convolved separately.
    pub groups: usize,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Self { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

impl Conv2dOptions {
    /// Returns the options with this stride.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.stride = [stride; 2];
        self
    }
    /// Returns the options with this zero padding.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> Self {
        self.padding = [padding; 2];
        self
    }
    /// Returns the options with this distance between taps.
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.dilation = [dilation; 2];
        self
    }
    /// Returns the options with this number of groups of channels.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    pub(super) fn check(&self, op: &str) -> Result<()> {
        let Self { stride, padding: _, dilation, groups } = self;
        if *groups == 0 || stride.contains(&0) || dilation.contains(&0) {
            return Err(Error::shape(format!(
                "{op}: stride {stride:?}, dilation {dilation:?} and {groups} groups, expected at least 1 for each"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the forward and the backward use the same pairs of pixels and taps.
    #[test]
    fn phases_are_the_forward_seen_from_the_image() {
        for (image, taps, stride, padding, dilation) in [
            (7, 3, 1, 1, 1),
            (9, 3, 2, 1, 1),
            (11, 4, 3, 2, 2),
            (8, 1, 2, 0, 1),
            (13, 3, 4, 0, 2),
            (6, 5, 2, 4, 1),
            (12, 3, 2, 2, 2),
        ] {
            let places = Side::places(image, taps, stride, padding, dilation).unwrap();
            let side = Side { image, places, taps, stride, padding, dilation };
            let axis = side.forward();
            let mut there = Vec::new();
            for (y, tap) in (0..places).flat_map(|y| (0..taps).map(move |tap| (y, tap))) {
                let h = (y * axis.step).cast_signed() + tap.cast_signed() * axis.dilation + axis.origin;
                if (0..image.cast_signed()).contains(&h) {
                    there.push((h.cast_unsigned(), tap, y));
                }
            }
            let mut back = Vec::new();
            for Phase { axis, first, tap, every } in side.backward() {
                for (at, i) in (0..axis.output).flat_map(|at| (0..axis.taps).map(move |i| (at, i))) {
                    let y = at.cast_signed() + i.cast_signed() * axis.dilation + axis.origin;
                    if (0..places.cast_signed()).contains(&y) {
                        back.push((first + at * stride, tap + i * every, y.cast_unsigned()));
                    }
                }
            }
            there.sort_unstable();
            back.sort_unstable();
            assert_eq!(there, back, "{side:?}");
        }
    }

    #[test]
    fn a_kernel_that_does_not_fit_has_no_place() {
        assert_eq!(Side::places(4, 5, 1, 0, 1), None);
        assert_eq!(Side::places(4, 5, 1, 1, 1), Some(2));
        assert_eq!(Side::places(4, 0, 1, 1, 1), None);
        assert_eq!(Side::places(usize::MAX, 1, 1, 1, 1), None);
    }
}
