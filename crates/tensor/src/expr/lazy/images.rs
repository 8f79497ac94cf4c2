//! Trees over images with adjacent channels in memory: tensors `(N, C, H, W)`, nodes `(N, H, W, C)`. The ops after a convolution keep the
//! layout that convolutions read and write, and a channel's bias and scale are columns of rows of pixels.

use crate::{Layout, Result, Shape, Tensor};

/// Positions of the nodes' axes in the tensors' axes, and the reverse.
const ORDER: [usize; 4] = [0, 2, 3, 1];
const BACK: [usize; 4] = [0, 3, 1, 2];

/// Returns whether a tensor `(N, C, H, W)` is stored as `(N, H, W, C)`, but not also as `(N, C, H, W)`.
pub(super) fn is_image(layout: &Layout) -> bool {
    let [n, c, h, w] = layout.strides[..] else { return false };
    let [_, channels, height, width] = *layout.shape.dims() else { return false };
    !layout.is_contiguous() && [c, w, h, n] == [1, channels, width * channels, height * width * channels]
}

/// Returns the layout of the node of a tensor with at most four axes.
fn nodes_layout(layout: &Layout) -> Layout {
    let missing = 4 - layout.shape.rank().min(4);
    let dims: Vec<usize> =
        std::iter::repeat_n(1, missing).chain(layout.shape.dims().iter().copied()).collect();
    let strides: Vec<usize> = std::iter::repeat_n(0, missing).chain(layout.strides.iter().copied()).collect();
    let shape = Shape::from(ORDER.map(|axis| dims[axis]));
    Layout { shape, strides: ORDER.map(|axis| strides[axis]).to_vec(), offset: layout.offset }
}

/// Returns the shape of a tensor's node.
pub(super) fn nodes_shape(x: &Tensor) -> Shape {
    nodes_layout(x.layout()).shape
}

/// Views a tensor with at most four axes as its node, off the tape.
pub(super) fn as_nodes(x: &Tensor) -> Tensor {
    x.with_layout(nodes_layout(x.layout()))
}

/// Views a contiguous `(N, H, W, C)` as the tensor `(N, C, H, W)`, off the tape. If `rank` is less than four, leading axes of size 1 are
/// removed.
pub(super) fn as_tensor(y: &Tensor, rank: usize) -> Tensor {
    let Layout { shape, strides, offset } = y.layout();
    let kept = &BACK[4 - rank.min(4)..];
    let shape: Vec<usize> = kept.iter().map(|axis| shape.dims()[*axis]).collect();
    let strides = kept.iter().map(|axis| strides[*axis]).collect();
    y.with_layout(Layout { shape: shape.into(), strides, offset: *offset })
}

/// Returns whether elements of this shape have the same order in both layouts: only one axis is larger than 1.
pub(super) fn is_line(shape: &Shape) -> bool {
    shape.rank() <= 4 && shape.dims().iter().filter(|size| **size != 1).count() <= 1
}

/// Converts a gradient of a node's shape to the gradient of a tensor of `shape`.
pub(super) fn gradient(grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    as_tensor(grad, 4).reshape(shape)
}

/// Returns the shape of a new tensor's memory.
pub(super) fn memory(shape: &Shape) -> Shape {
    nodes_layout(&Layout::contiguous(shape.clone())).shape
}
