//! A convolution and the gradients of its image and its weights, over images stored as `(N, H, W, C)`.

use super::super::matmul::{Tree, linear, linear_into, matmul};
use super::super::prelude::*;
use super::algorithms::{CONV, ConvRequest, ConvWeights, GROUP_CHANNELS as DEPTHWISE, PixelPosition, Work};
use super::geometry::Geometry;

/// Returns `(N, C, H, W)` of any strides as `(N, H, W, C)`, contiguous and off the tape. Copies if the strides differ from this.
pub(super) fn channels_last(x: &Tensor) -> Result<Tensor> {
    x.detach().permute(&[0, 2, 3, 1])?.contiguous()
}

/// Views `(N, H, W, C)` as `(N, C, H, W)`.
pub(super) fn channels_first(x: &Tensor) -> Result<Tensor> {
    x.permute(&[0, 3, 1, 2])
}

/// Returns the weights; for a depthwise convolution, with adjacent channels, otherwise unchanged.
fn laid(g: &Geometry, w: &Tensor) -> Result<Tensor> {
    let w = w.detach();
    if g.groups > 1 && g.image == 1 && g.places == 1 {
        return w.permute(&[1, 2, 3, 0])?.contiguous()?.permute(&[3, 0, 1, 2]);
    }
    Ok(w)
}

/// Returns the weights of a convolution of `g` in the form that the kernels read.
fn view(g: &Geometry, w: &Tensor) -> ConvWeights {
    let strides = &w.layout().strides;
    ConvWeights {
        tensor: w.clone(),
        offset: w.layout().offset,
        strides: [g.places * strides[0], strides[0], strides[1], strides[2], strides[3]],
    }
}

/// Builds the request of `conv2d(x, w)` and returns the result of `f` for it. x `(N, G C, H, W)`, w `(G O, C, I, J)`; only copies run.
pub(super) fn request<R>(
    g: &Geometry,
    x: &Tensor,
    w: &Tensor,
    f: impl FnOnce(&ConvRequest<'_>) -> R,
) -> Result<R> {
    let (x, w) = (channels_last(x)?, laid(g, w)?);
    let [h, width] = g.sides;
    let y = Tensor::empty(x.device(), [g.batch, h.places, width.places, g.groups * g.places], x.dtype())?;
    Ok(f(&gather(g, &x, &view(g, &w), (None, None), &y)))
}

fn gather<'a>(
    g: &Geometry,
    x: &'a Tensor,
    w: &'a ConvWeights,
    (bias, tree): (Option<&'a Tensor>, Option<&'a Tree<'a>>),
    y: &'a Tensor,
) -> ConvRequest<'a> {
    let n = &y.layout().strides;
    let place = PixelPosition { offset: 0, strides: [n[0], n[1], n[2]] };
    ConvRequest {
        x,
        batch: g.batch,
        groups: g.groups,
        c: g.image,
        o: g.places,
        axes: g.sides.map(|side| side.forward()),
        work: Work::Gather { w, bias, tree, y, place },
    }
}

/// Computes the convolution: x `(N, H, W, G C)`, w `(G O, C, I, J)`, bias `(G O)` → `(N, places, places, G O)`.
pub(super) fn forward(g: &Geometry, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let [h, width] = g.sides;
    let shape = [g.batch, h.places, width.places, g.groups * g.places];
    let y = Tensor::empty(x.device(), shape, x.dtype())?;
    forward_into(g, (x, w, bias), &y, None)?;
    Ok(y)
}

/// Computes the convolution, or an expression of it, into the contiguous y.
pub(super) fn forward_into(
    g: &Geometry,
    (x, w, bias): (&Tensor, &Tensor, Option<&Tensor>),
    y: &Tensor,
    tree: Option<&Tree<'_>>,
) -> Result<()> {
    if y.count() == 0 {
        return Ok(());
    }
    if g.is_product() {
        let rows = y.count() / g.places;
        let w = w.detach().reshape([g.places, g.image])?.transpose(0, 1)?;
        return linear_into(&y.reshape([rows, g.places])?, (&x.reshape([rows, g.image])?, &w, bias), tree);
    }
    let (w, bias) = (laid(g, w)?, bias.map(Tensor::contiguous).transpose()?);
    CONV.run(&gather(g, x, &view(g, &w), (bias.as_ref(), tree), y))
}

/// Computes the gradient of the image, or a transposed convolution: dy `(N, places, places, G O)`, w `(G O, C, I, J)`, bias `(G C)` →
/// `(N, H, W, G C)`. There is one launch per class of pixels that the same taps reach.
pub(super) fn backward(g: &Geometry, dy: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let [h, width] = g.sides;
    let shape = [g.batch, h.image, width.image, g.groups * g.image];
    if g.is_product() {
        let w = w.detach().reshape([g.places, g.image])?;
        return linear(&dy.reshape([g.batch * h.image * width.image, g.places])?, &w, bias)?.reshape(shape);
    }
    let classes = h
        .backward()
        .into_iter()
        .flat_map(|down| width.backward().into_iter().map(move |across| [down, across]));
    // Pixels that no tap reaches are zero; one fill sets them all.
    let (reached, unreached): (Vec<_>, Vec<_>) =
        classes.partition(|class| bias.is_some() || class.iter().all(|phase| phase.axis.taps > 0));
    let dx = match unreached.is_empty() {
        true => Tensor::empty(dy.device(), shape, dy.dtype())?,
        false => Tensor::zeros(dy.device(), shape, dy.dtype())?,
    };
    if dx.count() == 0 {
        return Ok(dx);
    }
    let (w, bias) = (laid(g, w)?, bias.map(Tensor::contiguous).transpose()?);
    let (strides, to) = (&w.layout().strides, dx.layout().strides.clone());
    for [down, across] in reached {
        let taps = down.tap * strides[2] + across.tap * strides[3];
        let weights = ConvWeights {
            tensor: w.clone(),
            offset: w.layout().offset + taps,
            strides: [
                g.places * strides[0],
                strides[1],
                strides[0],
                down.every * strides[2],
                across.every * strides[3],
            ],
        };
        let place = PixelPosition {
            offset: down.first * to[1] + across.first * to[2],
            strides: [to[0], h.stride * to[1], width.stride * to[2]],
        };
        CONV.run(&ConvRequest {
            x: dy,
            batch: g.batch,
            groups: g.groups,
            c: g.places,
            o: g.image,
            axes: [down.axis, across.axis],
            work: Work::Gather { w: &weights, bias: bias.as_ref(), tree: None, y: &dx, place },
        })?;
    }
    Ok(dx)
}

/// Computes the gradient of weights `(G O, C, I, J)` from x `(N, H, W, G C)` and dy `(N, places, places, G O)`. If `w` is stored with its channels
/// last, so is the gradient.
pub(super) fn weights(g: &Geometry, x: &Tensor, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    let [h, width] = g.sides;
    let shape = [g.groups * g.places, g.image, h.taps, width.taps];
    if g.is_product() {
        let rows = g.batch * h.image * width.image;
        let dy = dy.reshape([rows, g.places])?.transpose(0, 1)?;
        return matmul(&dy, &x.reshape([rows, g.image])?)?.reshape(shape);
    }
    let pixels = g.batch * h.places * width.places;
    if pixels == 0 || shape.contains(&0) {
        return Tensor::zeros(x.device(), shape, x.dtype());
    }
    let parts = parts((x.device(), x.dtype()), pixels, g.groups, [h.taps * width.taps, g.image], g.places);
    let part = x.empty_f32([parts, g.groups, h.taps, width.taps, g.image, g.places])?;
    CONV.run(&ConvRequest {
        x,
        batch: g.batch,
        groups: g.groups,
        c: g.image,
        o: g.places,
        axes: g.sides.map(|side| side.forward()),
        work: Work::Weights { dy, part: &part, parts },
    })?;
    let sum = part.sum(&[0], false)?.to_dtype(x.dtype())?;
    if w.permute(&[0, 2, 3, 1])?.is_contiguous() && !w.is_contiguous() {
        // (G, I, J, C, O) → (G, O, I, J, C)
        let last = [shape[0], shape[2], shape[3], shape[1]];
        return sum.permute(&[0, 4, 1, 2, 3])?.contiguous()?.reshape(last)?.permute(&[0, 3, 1, 2]);
    }
    // (G, I, J, C, O) → (G, O, C, I, J)
    sum.permute(&[0, 4, 3, 1, 2])?.contiguous()?.reshape(shape)
}

/// Returns the number of parts into which the pixels of a weight gradient's sum are divided. On CPUs it depends on the shape alone, so that results
/// have the same bits for any number of cores.
fn parts(
    (device, dtype): (&Device, DType),
    pixels: usize,
    groups: usize,
    [taps, c]: [usize; 2],
    o: usize,
) -> usize {
    let lines = taps * c;
    let capabilities = device.capabilities();
    let most = (pixels / 256).max(1);
    if capabilities.is_cpu() {
        let work = (groups * lines * o / 4096).max(1);
        return (16 / work).clamp(1, 8).min(most);
    }
    // Tile sizes of the f32 kernels, and of the tensor-core kernels.
    let (side, limit) = if dtype == DType::F32 { (128, 512) } else { (64, 64) };
    // A tile of a depthwise convolution covers several groups.
    let (tiles, limit) = match groups > 1 && c == 1 && o == 1 {
        true => (groups.div_ceil(DEPTHWISE), 1024),
        false => (groups * lines.div_ceil(side) * o.div_ceil(side), limit),
    };
    (4 * capabilities.compute_units.max(1) as usize / tiles.max(1)).clamp(1, most.min(limit))
}
