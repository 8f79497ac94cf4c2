//! Trees over images whose channels are neighbours in memory: tensors `(N, C, H, W)`, nodes `(N, H, W, C)`. So what follows a convolution
//! stays as convolutions read and write it, and bias and scale of a channel are columns of rows of pixels.

use crate::{Layout, Result, Shape, Tensor};

/// Where axes of the nodes are among those of tensors, and the other way round.
const ORDER: [usize; 4] = [0, 2, 3, 1];
const BACK: [usize; 4] = [0, 3, 1, 2];

/// Whether a tensor `(N, C, H, W)` lies as `(N, H, W, C)` and not as `(N, C, H, W)` too.
pub(super) fn is_image(layout: &Layout) -> bool {
    let [n, c, h, w] = layout.strides[..] else { return false };
    let [_, channels, height, width] = *layout.shape.dims() else { return false };
    !layout.is_contiguous() && [c, w, h, n] == [1, channels, width * channels, height * width * channels]
}

/// The layout that nodes have of a tensor of at most four axes.
fn nodes_layout(layout: &Layout) -> Layout {
    let missing = 4 - layout.shape.rank().min(4);
    let dims: Vec<usize> =
        std::iter::repeat_n(1, missing).chain(layout.shape.dims().iter().copied()).collect();
    let strides: Vec<usize> = std::iter::repeat_n(0, missing).chain(layout.strides.iter().copied()).collect();
    let shape = Shape::from(ORDER.map(|axis| dims[axis]));
    Layout { shape, strides: ORDER.map(|axis| strides[axis]).to_vec(), offset: layout.offset }
}

/// The shape of a tensor's node.
pub(super) fn nodes_shape(x: &Tensor) -> Shape {
    nodes_layout(x.layout()).shape
}

/// A tensor of at most four axes as its node, off the tape.
pub(super) fn as_nodes(x: &Tensor) -> Tensor {
    x.with_layout(nodes_layout(x.layout()))
}

/// `(N, H, W, C)`, contiguous, as the tensor `(N, C, H, W)`, off the tape, without its first axes, of size 1, where it has fewer than four.
pub(super) fn as_tensor(y: &Tensor, rank: usize) -> Tensor {
    let Layout { shape, strides, offset } = y.layout();
    let kept = &BACK[4 - rank.min(4)..];
    let shape: Vec<usize> = kept.iter().map(|axis| shape.dims()[*axis]).collect();
    let strides = kept.iter().map(|axis| strides[*axis]).collect();
    y.with_layout(Layout { shape: shape.into(), strides, offset: *offset })
}

/// Whether elements of this shape lie alike in both orders: one axis of them.
pub(super) fn is_line(shape: &Shape) -> bool {
    shape.rank() <= 4 && shape.dims().iter().filter(|size| **size != 1).count() <= 1
}

/// A gradient of a node's shape as that of a tensor of `shape`.
pub(super) fn gradient(grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    as_tensor(grad, 4).reshape(shape)
}

/// The shape of a new tensor's memory.
pub(super) fn memory(shape: &Shape) -> Shape {
    nodes_layout(&Layout::contiguous(shape.clone())).shape
}
