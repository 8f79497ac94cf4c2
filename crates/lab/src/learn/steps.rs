//! The ladders as data: each step's source, its requirements, and its launches.

use super::problem::{Size, Work};
use netcl::device::Capabilities;
use netcl::kernel::{Kernel, cl_file};
use netcl::prelude::*;

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum Arg {
    /// One of the problem's inputs.
    Input(usize),
    /// The matrix of scores (H,T,T), f32, which only this step stores.
    Scores,
    /// Like [`Arg::Scores`], but the launch writes it.
    WriteScores,
    /// The result.
    Output,
    /// A `uint`.
    Extent(fn(Size) -> usize),
    /// A `float`: the factor of the scores, 1/√D.
    Scale,
}

/// Work-groups and the work-items per group.
pub struct Grid {
    pub groups: [usize; 3],
    pub local: [usize; 3],
}

/// One launch of a step.
pub struct Launch {
    pub entry: &'static str,
    /// Computed from the problem's size and the define SIDE.
    pub grid: fn(Size, usize) -> Grid,
    pub args: &'static [Arg],
}

/// A step of a ladder.
pub struct Step {
    pub title: &'static str,
    /// Path of the source in the repository.
    pub file: &'static str,
    pub text: &'static str,
    pub kernel: Kernel,
    /// Description of the requirements of `kernel`.
    pub needs: &'static str,
    pub work: Work,
    /// Storage type of inputs and result.
    pub dtype: DType,
    /// Empty if the step is netcl's own operation.
    pub launches: &'static [Launch],
    /// Bytes of local memory per group.
    pub local_bytes: fn(Size, usize) -> usize,
}

/// Steps that solve one problem.
pub struct Ladder {
    pub name: &'static str,
    pub about: &'static str,
    /// Meaning of the numbers of a size.
    pub axes: &'static str,
    /// Sizes for a simulated device, a CPU, a GPU, and a GPU with 32 compute units or more.
    sizes: [Size; 4],
    pub steps: &'static [Step],
}

/// All ladders.
pub static LADDERS: [Ladder; 2] = [
    Ladder {
        name: "matmul",
        about: "one matrix product, C (M,N) = A (M,K) B (K,N), from three loops to the persistent kernel of sm_90",
        axes: "MxNxK",
        sizes: [[128, 128, 128], [512, 512, 512], [1024, 1024, 1024], [4096, 4096, 4096]],
        steps: &MATMUL,
    },
    Ladder {
        name: "attention",
        about: "the softmax of scores (H*T,T), then o = softmax(q kᵀ / √D) v of q, k, v (H,T,D), from three passes to one",
        axes: "HxTxD",
        sizes: [[2, 128, 32], [8, 512, 64], [16, 1024, 64], [32, 2048, 64]],
        steps: &ATTENTION,
    },
];

macro_rules! step {
    ($work:expr, $name:literal, $file:literal, $title:literal, $launches:expr) => {
        Step {
            title: $title,
            file: concat!("examples/kernels/", $file),
            text: include_str!(concat!("../../../../examples/kernels/", $file)),
            kernel: Kernel::new($name, cl_file!(concat!("../../../../examples/kernels/", $file))),
            needs: "",
            work: $work,
            dtype: DType::F32,
            launches: $launches,
            local_bytes: |_, _| 0,
        }
    };
}
macro_rules! product {
    ($name:literal, $file:literal, $title:literal, $grid:expr) => {
        step!(Work::Product, $name, $file, $title, &[launch("matmul", $grid, &PRODUCT_ARGS)])
    };
}

const PRODUCT_ARGS: [Arg; 6] = [
    Arg::Input(0),
    Arg::Input(1),
    Arg::Output,
    Arg::Extent(|[m, _, _]| m),
    Arg::Extent(|[_, n, _]| n),
    Arg::Extent(|[_, _, k]| k),
];

/// Returns tiles of C of `tile` by `tile`, columns along dimension 0.
fn tiles([m, n, _]: Size, tile: usize, local: [usize; 3]) -> Grid {
    Grid { groups: [n.div_ceil(tile), m.div_ceil(tile), 1], local }
}

fn register_tiles(size: Size, side: usize) -> Grid {
    tiles(size, 8 * side, [side, side, 1])
}

static MATMUL: [Step; 9] = [
    product!("learn_matmul_1", "matmul/1_loops.cl", "three loops", |[m, n, _], _| Grid {
        groups: [m.div_ceil(16), n.div_ceil(16), 1],
        local: [16, 16, 1]
    }),
    product!("learn_matmul_2", "matmul/2_coalesced.cl", "coalesced access", |size, _| tiles(
        size,
        16,
        [16, 16, 1]
    )),
    product!("learn_matmul_3", "matmul/3_local_tiles.cl", "tiles in local memory", |size, _| tiles(
        size,
        16,
        [16, 16, 1]
    )),
    product!("learn_matmul_4", "matmul/4_register_tiles.cl", "register tiles", register_tiles),
    product!("learn_matmul_5", "matmul/5_vectors.cl", "vector loads", register_tiles),
    product!("learn_matmul_6", "matmul/6_double_buffer.cl", "double buffering", register_tiles),
    product!("learn_matmul_7", "matmul/7_async.cl", "asynchronous copies", register_tiles),
    Step {
        kernel: Kernel::new("learn_matmul_8", cl_file!("../../../../examples/kernels/matmul/8_mma.cl"))
            .requires(|device| device.sm() >= Some(80)),
        needs: "NVIDIA sm_80 or later: mma.sync, ldmatrix and cp.async",
        dtype: DType::Bf16,
        ..product!("learn_matmul_8", "matmul/8_mma.cl", "tensor cores (mma.sync)", |size, _| tiles(
            size,
            128,
            [256, 1, 1]
        ))
    },
    Step {
        kernel: Kernel::new("matmul", "").requires(|device| device.sm() == Some(90)),
        needs: "NVIDIA sm_90: wgmma, TMA and setmaxnreg",
        dtype: DType::Bf16,
        launches: &[],
        ..product!("matmul", "matmul/9_persistent.cl", "persistent, wgmma (netcl's own)", register_tiles)
    },
];

const fn launch(entry: &'static str, grid: fn(Size, usize) -> Grid, args: &'static [Arg]) -> Launch {
    Launch { entry, grid, args }
}

const TOKENS: Arg = Arg::Extent(|[_, t, _]| t);
const ROWS: Arg = Arg::Extent(|[h, t, _]| h * t);
const SOFTMAX_ARGS: [Arg; 4] = [Arg::Input(0), Arg::Output, ROWS, TOKENS];
const ATTENTION_ARGS: [Arg; 6] =
    [Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output, TOKENS, Arg::Scale];

/// Returns groups of 128 items, one per row.
fn group_a_row([h, t, _]: Size, _: usize) -> Grid {
    Grid { groups: [h * t, 1, 1], local: [128, 1, 1] }
}

/// Returns groups of 64 items, one per `N` queries of a head.
const fn queries<const N: usize>([h, t, _]: Size, _: usize) -> Grid {
    Grid { groups: [t.div_ceil(N), h, 1], local: [64, 1, 1] }
}

static ATTENTION: [Step; 6] = [
    step!(
        Work::Softmax,
        "learn_attention_1",
        "attention/1_softmax.cl",
        "softmax, one item per row",
        &[launch(
            "softmax",
            |[h, t, _], _| Grid { groups: [(h * t).div_ceil(64), 1, 1], local: [64, 1, 1] },
            &SOFTMAX_ARGS
        )]
    ),
    step!(
        Work::Softmax,
        "learn_attention_2",
        "attention/2_softmax_group.cl",
        "softmax, one group per row",
        &[launch("softmax", group_a_row, &SOFTMAX_ARGS)]
    ),
    step!(
        Work::Softmax,
        "learn_attention_3",
        "attention/3_softmax_online.cl",
        "online softmax",
        &[launch("softmax", group_a_row, &SOFTMAX_ARGS)]
    ),
    step!(
        Work::Attention { causal: false },
        "learn_attention_4",
        "attention/4_scores_stored.cl",
        "attention, scores stored",
        &[
            launch(
                "scores",
                |[h, t, _], _| Grid { groups: [t.div_ceil(16), t.div_ceil(16), h], local: [16, 16, 1] },
                &[Arg::Input(0), Arg::Input(1), Arg::WriteScores, TOKENS, Arg::Scale]
            ),
            launch(
                "softmax",
                |[h, t, _], _| Grid { groups: [t, h, 1], local: [128, 1, 1] },
                &[Arg::WriteScores, TOKENS]
            ),
            launch(
                "output",
                |[h, t, d], _| Grid { groups: [d.div_ceil(16), t.div_ceil(16), h], local: [16, 16, 1] },
                &[Arg::Scores, Arg::Input(2), Arg::Output, TOKENS]
            ),
        ]
    ),
    Step {
        local_bytes: |[_, _, d], _| 2 * 32 * 16 * d.div_ceil(4),
        ..step!(
            Work::Attention { causal: false },
            "learn_attention_5",
            "attention/5_one_pass.cl",
            "one pass over the keys",
            &[launch("attention", queries::<64>, &ATTENTION_ARGS)]
        )
    },
    Step {
        local_bytes: |[_, _, d], _| 2 * 32 * 16 * (d.div_ceil(32) * 8 + 1) + 4 * (32 * 36 + 32 * 9),
        ..step!(
            Work::Attention { causal: true },
            "learn_attention_6",
            "attention/6_register_tiles.cl",
            "register tiles, causal",
            &[launch("attention", queries::<32>, &ATTENTION_ARGS)]
        )
    },
];

impl Step {
    /// Returns why a device cannot run this step at this size; `None` if it can.
    pub fn refused(&self, size: Size, device: &Capabilities) -> Option<String> {
        if !self.kernel.runs_on(device) {
            return Some(format!("needs {}", self.needs));
        }
        let side = side(size, device);
        for launch in self.launches {
            let items: usize = (launch.grid)(size, side).local.iter().product();
            if items > device.max_group {
                return Some(format!(
                    "needs work-groups of {items} items; {} allows {}",
                    device.id, device.max_group
                ));
            }
        }
        let bytes = (self.local_bytes)(size, side);
        (bytes as u64 > device.local_mem).then(|| {
            format!("needs {bytes} bytes of local memory; a group of {} has {}", device.id, device.local_mem)
        })
    }

    /// Returns whether it stores attention's scores in memory.
    pub fn stores_scores(&self) -> bool {
        self.launches.iter().flat_map(|launch| launch.args).any(|arg| matches!(arg, Arg::WriteScores))
    }

    /// Returns its defines.
    pub fn defines(&self, [_, _, last]: Size, side: usize) -> [(&'static str, usize); 2] {
        match self.work {
            Work::Product => [("SIDE", side), ("DTYPE", self.dtype.code() as usize)],
            _ => [("D", last), ("DTYPE", self.dtype.code() as usize)],
        }
    }
}

impl Ladder {
    /// Returns a size at which a device shows the differences between steps within seconds.
    pub fn size_for(&self, device: &Capabilities) -> Size {
        let class = match device {
            d if d.simulated => 0,
            d if d.is_cpu() => 1,
            d => 2 + usize::from(d.compute_units >= 32),
        };
        self.sizes[class]
    }
}

/// Returns the items along each side of a group with register tiles of 8 by 8: 16 if all units of a GPU still get a tile, otherwise 8.
pub fn side([m, n, _]: Size, device: &Capabilities) -> usize {
    let tiles = m.div_ceil(128) * n.div_ceil(128);
    let large =
        device.compute_units >= 16 && tiles >= device.compute_units as usize && device.max_group >= 256;
    if large && !device.is_cpu() { 16 } else { 8 }
}
