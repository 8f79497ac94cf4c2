//! Defects that are planted in the kernels, one at a time, must be found by a check of the simulated GPU, or by the suite's comparison with
//! the f64 reference.
//!
//! A defect is an edit of a kernel's source on its way to the compiler. Some are planted in kernels that the device chooses by default.
//! Others are only in a variant or tuned value that it does not choose: the suite alone passes with those, and the suite with every variant
//! and tuned value finds them. `make mutants` prints how each was found.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // a test

use netcl_device::sim::SimDriver;
use netcl_device::{Device, Settings, SimSettings};
use netcl_tensor::DType;
use netcl_tensor::ops::OPS;
use netcl_tensor::suite::{Reach, SelfTest};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kind of defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    DroppedBarrier,
    OffByOne,
    SwappedIndex,
    MissingGuard,
    Race,
    Unwritten,
    WrongValue,
}
use Sort::{DroppedBarrier, MissingGuard, OffByOne, Race, SwappedIndex, Unwritten, WrongValue};

/// A planted defect: in a source that contains `within`, the first `from` after the start of `within` is replaced by `to`.
struct Mutant {
    sort: Sort,
    op: &'static str,
    /// Other strings that the source must contain: the name of a variant, or the define of a tuned value.
    with: &'static [&'static str],
    within: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn m(
    sort: Sort,
    op: &'static str,
    within: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { sort, op, with: &[], within, from, to }
}

/// Restricts a defect to sources that contain all of `with`.
const fn only(with: &'static [&'static str], mutant: Mutant) -> Mutant {
    Mutant { with, ..mutant }
}

/// A variant of the products that the suite's small products do not use by default.
const TILE: &str = "// matmul_tile\n";

const TURN: &str = "/* Transposes a tile of `height` rows and `width` columns. */";
const BARRIER: &str = "barrier(CLK_LOCAL_MEM_FENCE);";
const GROUP_SUM: &str = "static inline float group_sum(";
const GROUP_MAX: &str = "static inline float group_max(";
const COLUMN_SUM: &str = "static inline FV column_sum(";

#[rustfmt::skip]
const MUTANTS: [Mutant; 53] = [
    m(DroppedBarrier, "softmax::Softmax", GROUP_SUM, BARRIER, ""),
    m(DroppedBarrier, "softmax::Softmax", GROUP_SUM, "s[l] = v;\n  barrier(CLK_LOCAL_MEM_FENCE);", "s[l] = v;"),
    m(DroppedBarrier, "softmax::LogSoftmax", GROUP_SUM, "s[l] += s[l + h];\n    barrier(CLK_LOCAL_MEM_FENCE);", "s[l] += s[l + h];"),
    m(DroppedBarrier, "cross_entropy::CrossEntropy", GROUP_MAX, "s[l + h]);\n    barrier(CLK_LOCAL_MEM_FENCE);", "s[l + h]);"),
    m(DroppedBarrier, "layer_norm::LayerNorm", COLUMN_SUM, "s[at + h * across];\n    barrier(CLK_LOCAL_MEM_FENCE);", "s[at + h * across];"),
    m(DroppedBarrier, "view::Permute", TURN, "= part[i][j];\n  }\n  barrier(CLK_LOCAL_MEM_FENCE);", "= part[i][j];\n  }"),
    m(DroppedBarrier, "argmax::ArgMax", "__kernel void argmax(", "indices[l] = best_at;\n    barrier(CLK_LOCAL_MEM_FENCE);", "indices[l] = best_at;"),
    m(DroppedBarrier, "argmax::ArgMax", "__kernel void argmax(", "      }\n      barrier(CLK_LOCAL_MEM_FENCE);", "      }"),
    m(DroppedBarrier, "matmul::MatMul", "__kernel void matmul_tile(", "KEEP_BOTH(0)\n  barrier(CLK_LOCAL_MEM_FENCE);", "KEEP_BOTH(0)"),
    m(DroppedBarrier, "matmul::MatMul", "__kernel void matmul_tile(", "    barrier(CLK_LOCAL_MEM_FENCE);\n    s ^= 1;", "    s ^= 1;"),
    m(DroppedBarrier, "attention::Attention", "void attention_fwd(", "barrier(CLK_LOCAL_MEM_FENCE);\n    float s[RQ][RK];", "float s[RQ][RK];"),
    m(DroppedBarrier, "attention::Attention", "void attention_fwd(", "barrier(CLK_LOCAL_MEM_FENCE);\n    load_keys(tk, BK, v", "load_keys(tk, BK, v"),
    m(DroppedBarrier, "attention::Attention", "void attention_fwd(", "barrier(CLK_LOCAL_MEM_FENCE);\n    ACC_TILE(", "ACC_TILE("),
    m(DroppedBarrier, "topk::TopK", "__kernel void topk(", "bins[b] = 0;\n    barrier(CLK_LOCAL_MEM_FENCE);", "bins[b] = 0;"),
    m(DroppedBarrier, "multinomial::Multinomial", "__kernel void multinomial(", "ends[l] = sum;\n  barrier(CLK_LOCAL_MEM_FENCE);", "ends[l] = sum;"),
    m(DroppedBarrier, "embedding::Embedding", "static inline uint2 running_sum(", "s[l] = v;\n  barrier(CLK_LOCAL_MEM_FENCE);", "s[l] = v;"),
    m(OffByOne, "layer_norm::LayerNorm", "__kernel void norm_fwd(", "row < end", "row <= end"),
    m(OffByOne, "layer_norm::LayerNorm", "__kernel void norm_fwd(", "rstd[row] = r", "rstd[row + 1] = r"),
    m(OffByOne, "softmax::Softmax", "static inline float2 softmax_share(", "k < n && k < i + VW", "k <= n && k < i + VW"),
    m(OffByOne, "cross_entropy::CrossEntropy", "__kernel void cross_entropy_mean(", "row < rows", "row <= rows"),
    m(OffByOne, "reduce::Sum", "__kernel void reduce_rows(", "OUT_1(y, row, total", "OUT_1(y, row + 1, total"),
    m(OffByOne, "softmax::LogSoftmax", GROUP_SUM, "h = WG / 2", "h = WG / 4"),
    m(OffByOne, "matmul::MatMul", "__kernel void matmul_tile(", "if (m0 + row < m) UNROLL", "if (m0 + row <= m) UNROLL"),
    m(OffByOne, "matmul::MatMul", "#define FETCH(", "at < (lines)", "at <= (lines)"),
    m(SwappedIndex, "view::Permute", TURN, "= tile[c * PITCH + r]", "= tile[r * PITCH + c]"),
    m(SwappedIndex, "layer_norm::LayerNorm", COLUMN_SUM, "s[at + h * across]", "s[at + h]"),
    m(SwappedIndex, "embedding::Embedding", "__kernel void embedding_fwd(", "(ulong)id * c", "(ulong)id * n"),
    m(SwappedIndex, "attention::Attention", "#define ACC_TILE(", "(p)[((y) + i * TY) * (ps) + k]", "(p)[k * (ps) + (y) + i * TY]"),
    m(SwappedIndex, "matmul::MatMul", "static inline void finish(", "c + row * n + column;", "c + column * n + row;"),
    m(MissingGuard, "softmax::Softmax", "__kernel void softmax_fwd(", "k < n && k < i + VW", "k < i + VW"),
    m(MissingGuard, "view::Permute", TURN, " && r < height) part", ") part"),
    m(MissingGuard, "view::Permute", TURN, " && c < width", ""),
    m(MissingGuard, "attention::Attention", "void attention_fwd(", "if (row >= n) continue;", ""),
    m(MissingGuard, "attention::Attention", "#define LOAD_TILE(", "row < (n) && d < D", "d < D"),
    m(MissingGuard, "embedding::Embedding", "__kernel void embedding_ranks(", "t < v && b < blocks", "b < blocks"),
    m(MissingGuard, "embedding::Embedding", "__kernel void embedding_order(", "if (i >= n) return;", ""),
    m(Race, "matmul::MatMul", "__kernel void matmul_tile(", "KEEP_BOTH(s ^ 1)", "KEEP_BOTH(s)"),
    m(Race, "embedding::Embedding", "__kernel void embedding_count(", "atomic_inc(counts + i / per * v + ids[i])", "counts[i / per * v + ids[i]]++"),
    m(DroppedBarrier, "fused_linear::FusedLinear", "void matmul_gemv(", "        barrier(CLK_LOCAL_MEM_FENCE);\n      }\n#if B_ALONG_K", "      }\n#if B_ALONG_K"),
    m(MissingGuard, "matmul::MatMul", "void matmul_gemv(", "if (column < n) {", "{"),
    m(SwappedIndex, "matmul::MatMul", "void matmul_gemv(", "sum += from[j * LINES];", "sum += from[j];"),
    m(DroppedBarrier, "decode_attention::DecodeAttention", "void decode_attention(", "    barrier(CLK_LOCAL_MEM_FENCE);\n    if (line < LINES) {", "    if (line < LINES) {"),
    m(OffByOne, "decode_attention::DecodeAttention", "void decode_attention(", "s0 + i < seen.p ?", "s0 + i <= seen.p ?"),
    m(Unwritten, "topk::TopK", "__kernel void topk(", "if (l == 0) found = 0;", ""),
    m(Unwritten, "layer_norm::LayerNorm", "__kernel void norm_bwd(", "sg[k] = 0.0f;", ""),
    m(DroppedBarrier, "route::Route", "static inline void exponentials(", "top = fmax(top, p[e]);\n  barrier(CLK_LOCAL_MEM_FENCE);", "top = fmax(top, p[e]);"),
    m(OffByOne, "balance_loss::BalanceLoss", "__kernel void balance_count(", "if (row < end)", "if (row <= end)"),
    m(DroppedBarrier, "experts::Experts", "static inline void place_block(", "chunk[l] = bin;\n    barrier(CLK_LOCAL_MEM_FENCE);", "chunk[l] = bin;"),
    m(Race, "experts::Experts", "static inline void count_block(", "atomic_inc(bins + bin_of(ids[p]))", "bins[bin_of(ids[p])]++"),
    m(SwappedIndex, "experts::Experts", "__kernel void combine(", "places[token * K + k]", "places[k * K + token]"),
    m(DroppedBarrier, "experts::Experts", "#define MULTIPLY", BARRIER, ""),
    m(OffByOne, "experts::Experts", "__kernel void grouped_rows(", "(int)offsets[expert + 1]", "(int)offsets[expert + 1] + 1"),
    m(MissingGuard, "experts::Experts", "static inline void keep_tile(", "row < m_end ? min(n - column, 4) : 0", "min(n - column, 4)"),
];

/// Defects in kernels that the simulated GPU does not choose by default.
#[rustfmt::skip]
const CANDIDATES: [Mutant; 10] = [
    only(&[TILE], m(WrongValue, "matmul::MatMul", "static inline void finish(", "{alpha * sum.x,", "{alpha * sum.x + 1.0f,")),
    only(&[TILE], m(DroppedBarrier, "matmul::MatMul", "__kernel void matmul_tile(", "KEEP_BOTH(0)\n  barrier(CLK_LOCAL_MEM_FENCE);", "KEEP_BOTH(0)")),
    only(&[TILE], m(SwappedIndex, "matmul::MatMul", "static inline void finish(", "c + row * n + column;", "c + column * n + row;")),
    only(&[TILE, "#define BK 8\n"], m(WrongValue, "matmul::MatMul", "static inline void finish(", "alpha * sum.y,", "alpha * sum.y + 1.0f,")),
    only(&["#define WG 64\n"], m(WrongValue, "reduce::Sum", "__kernel void reduce_rows(", "total * scale", "total * scale + 1.0f")),
    only(&["#define VW 2\n"], m(WrongValue, "elementwise::Unary", "SIZES __global OUT_T", "OUT_V(yr, i, (FV)(EXPR));", "OUT_V(yr, i, (FV)(EXPR) + 1.0f);")),
    only(&["#define WG 128\n"], m(SwappedIndex, "view::Permute", "const ulong pieces", "to[k] = from[k];", "to[k] = from[0];")),
    only(&["#define WG 256\n"], m(OffByOne, "dropout::Dropout", "__kernel void dropout(", "* 64 < n; part +=", "* 64 + 64 < n; part +=")),
    only(&["#define CHUNK 4096\n#define GTYPE"], m(OffByOne, "optimizer::Update", "get_group_id(0) - row[FIRST]", "begin + CHUNK)", "begin + CHUNK - 1)")),
    only(&["#define GROUP 128\n"], m(SwappedIndex, "layer_norm::LayerNorm", "static inline void join_rows(", "s[at + i * ITEMS]", "s[at]")),
];

/// Returns the source with the defect, if the place exists.
fn plant(mutant: &Mutant, source: &str) -> Option<String> {
    if !mutant.with.iter().all(|part| source.contains(part)) {
        return None;
    }
    let begin = source.find(mutant.within)?;
    let at = begin + source[begin..].find(mutant.from)?;
    Some([&source[..at], mutant.to, &source[at + mutant.from.len()..]].concat())
}

/// Returns the result of the op's suite on a device whose compiler plants the defect. If the device does not choose the defective kernel by
/// default, the suite runs with every variant and tuned value.
fn outcome(mutant: &'static Mutant) -> Result<String, String> {
    let settings = Settings {
        exact_memory: true,
        sim: SimSettings { check: vec!["all".into()], ..SimSettings::default() },
        ..Settings::default()
    };
    let planted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&planted);
    // The small device has too little local memory for some variants.
    let name = if mutant.with.is_empty() { "sim" } else { "sim:h200" };
    let driver = SimDriver::open(name, &settings.sim).unwrap().edit_sources(Box::new(move |source| {
        let edited = plant(mutant, source);
        count.fetch_add(usize::from(edited.is_some()), Ordering::Relaxed);
        edited
    }));
    let device = Device::from_driver(Box::new(driver), settings);
    let entry = OPS.iter().find(|e| e.name == mutant.op).unwrap();
    let outcome = match mutant.with {
        [] => entry.suite(&device, DType::F32).map_or_else(|e| Ok(e.message().to_owned()), Err),
        _ => {
            let verdict = SelfTest::new(&device, Reach::Values).run(entry, &[DType::F32], &|| ());
            assert_eq!(
                verdict.failure, None,
                "{:?}: the device's default kernel has the defect too",
                mutant.from
            );
            verdict.suspects.first().map_or(Err(verdict.cases), |s| Ok(s.why.clone()))
        }
    };
    let planted = planted.load(Ordering::Relaxed);
    assert!(planted > 0, "{:?}: {} builds no kernel with this place", mutant.from, mutant.op);
    outcome.map_err(|cases| format!("{cases} cases did not find it"))
}

/// Returns the number of defects found, and of all defects.
fn hunt(mutants: impl Iterator<Item = &'static Mutant>) -> (usize, usize) {
    let (mut found, mut all) = (0, 0);
    for mutant in mutants {
        all += 1;
        let edit = format!("{:?} in {} {:?}: {:?}", mutant.sort, mutant.op, mutant.with, mutant.from);
        match outcome(mutant) {
            Ok(how) => {
                found += 1;
                let check = how.contains("the simulator found");
                let line = how.lines().find(|l| l.contains("error") || l.contains("warning")).unwrap_or(&how);
                println!("found by {}  {edit}\n    {line}", if check { "check " } else { "result" });
            }
            Err(why) => println!("MISSED            {edit}: {why}"),
        }
    }
    println!("{found} of {all} planted defects found");
    (found, all)
}

#[test]
fn planted_defects_are_found() {
    let (found, all) = hunt(MUTANTS.iter());
    assert!(found * 100 >= all * 95, "{found} of {all}");
}

#[test]
fn defects_planted_in_a_variant_or_a_tuned_value_are_found() {
    let (found, all) = hunt(CANDIDATES.iter());
    assert_eq!(found, all);
}
