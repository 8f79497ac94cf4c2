//! The tensor cores of NVIDIA from sm_80 on, by instructions that its compiler knows.

use super::super::prelude::*;
use super::launch::{Epilogue, Unused, add_parts, bind, geometry};
use super::proof;
use super::view::{Matrix, Problem};
use netcl_device::MatmulPrecision;

pub(super) static MMA: Kernel = Kernel::new("matmul_mma_sm80", include_str!("../matmul_mma_sm80.cl"))
    .requires(|device| device.nvidia_cc >= 80);

/// Rows and columns of a tile.
const SIDE: usize = 128;
/// Groups that a multiprocessor holds.
const RESIDENT: usize = 2;

/// Whether tensor cores may take products of this type on this device.
pub(super) fn allowed(device: &Device, dtype: DType) -> bool {
    match dtype {
        DType::F16 | DType::Bf16 => true,
        DType::F32 => device.settings().matmul_precision == MatmulPrecision::High,
        DType::I32 | DType::U32 => false,
    }
}

/// Elements of 16 bytes.
pub(super) fn lanes(dtype: DType) -> usize {
    16 / dtype.size()
}

/// Whether x, of which `(stride along k, other stride)` are these, is read along k; `None` where its lines or batches do not
/// start at multiples of 16 bytes.
fn along_k(x: &Matrix, (k, other): (usize, usize), batch: [usize; 2]) -> Option<bool> {
    let lanes = lanes(x.tensor.dtype());
    let starts = [x.offset(), batch[0], batch[1]].iter().all(|v| v.is_multiple_of(lanes));
    match (k, other) {
        (1, other) if starts && other.is_multiple_of(lanes) => Some(true),
        (k, 1) if starts && k.is_multiple_of(lanes) => Some(false),
        _ => None,
    }
}

fn layouts(p: &Problem) -> Option<[bool; 2]> {
    let a = along_k(&p.a, (p.a.col_stride, p.a.row_stride), p.a_strides)?;
    let b = along_k(&p.b, (p.b.row_stride, p.b.col_stride), p.b_strides)?;
    Some([a, b])
}

/// Whether the kernel takes this product, and it is large enough to pay.
pub(super) fn fits(c: &Tensor, p: &Problem) -> bool {
    allowed(c.device(), c.dtype())
        && p.n.is_multiple_of(lanes(c.dtype()))
        && p.m * p.n >= 256
        && p.k >= 16
        && layouts(p).is_some()
}

/// `c = epilogue(a b)` without what needs another matrix, for products that [`fits`] accepts.
pub(super) fn run(c: &Tensor, p: &Problem, e: &Epilogue<'_>) -> Result<()> {
    let Some([a, b]) = layouts(p) else {
        return Err(Error::internal("matmul_mma_sm80: operands that it does not take"));
    };
    let block = 4 * lanes(c.dtype());
    let tiles = p.m.div_ceil(SIDE) * p.n.div_ceil(SIDE);
    let idle = RESIDENT * c.device().capabilities().compute_units as usize / (tiles * p.batch()).max(1);
    let most = (p.k / (4 * block)).clamp(1, 64);
    let k_part = p.k.div_ceil(idle.clamp(1, most)).next_multiple_of(block).max(block);
    let splits = p.k.div_ceil(k_part).max(1);
    let part = if splits > 1 { Some(c.empty_f32([splits, c.count()])?) } else { None };
    let launch = bind(MMA.launch("matmul_mma"), c, p, e)?.define("A_ALONG_K", a).define("B_ALONG_K", b);
    let launch = match &part {
        Some(part) => launch.write(part),
        None => launch.write_base(&Unused(c)),
    };
    let k_part = i32::try_from(k_part).unwrap_or(i32::MAX);
    let launch = geometry(launch, p).scalar(k_part).scalar(e.alpha).scalar(e.flags());
    launch.local([128, 1, 1]).groups3([tiles, splits, p.batch()]).run()?;
    part.map_or(Ok(()), |part| add_parts(&part, c, p, e, splits))
}

/// Whether small products are exact, in the layouts of a forward and of both gradients. See [`Tuning::proven`].
pub(super) fn proven(device: &Device) -> bool {
    Tuning::of(device).proven(device, &MMA, || {
        let dtypes = if allowed(device, DType::F32) { &[DType::Bf16, DType::F32][..] } else { &[DType::Bf16] };
        dtypes.iter().try_for_each(|dtype| {
            [[false, false], [false, true], [true, false]].into_iter().try_for_each(|turned| {
                proof::exact(device, *dtype, turned, |c, p| run(c, p, &Epilogue::NONE).map(|()| None))
            })
        })
    })
}
