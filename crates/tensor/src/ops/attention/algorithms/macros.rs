//! Macros for attention's warpgroup matrix instructions on sm_90a.
//!
//! One asm statement holds a whole product: the fence, the 16-deep steps with their descriptor additions, the commit. With one statement per
//! instruction, the driver's compiler puts register moves between fence and product, and the assembler serializes the products (C7520): 414 instead
//! of 560 TFLOP/s at D = 128.

use std::fmt::Write as _;

/// Columns of a product: keys or queries of a block, or D.
const COLUMNS: [usize; 2] = [64, 128];
/// 16-deep steps of products over D.
const HEAD_STEPS: [usize; 5] = [4, 5, 6, 7, 8];
/// 16-deep steps of products over the 64 or 128 rows of a block.
const BLOCK_STEPS: [usize; 2] = [4, 8];
/// Heads above 128: D padded to whole halves, the steps over D, and the keys of a block in the forward.
const WIDE: [(usize, std::ops::RangeInclusive<usize>, usize); 2] = [(192, 9..=12, 96), (256, 13..=16, 80)];

/// Generates the macros for the kernels that include them:
///
/// - `SS_N<n>_K<k>(c, a, b, a_half, b_half)`: c = a bᵀ over 16 k columns. Both are in local memory in halves of 64 adjacent columns; the second
///   half of a starts `a_half` descriptor units (16 bytes) after the first.
/// - `RS_N<n>_K<k>(c, p, b, keep)`: c = p b, or c += p b if `keep` is not 0; p is in registers, b in local memory, 16 k rows.
/// - `BF16X3_SS(c, a, b)`, `BF16X3_RS(c, p, b)`: the same for 64 x 64 x 64 with each operand in three planes of bf16, as the six largest of nine
///   products. Planes are 8192 bytes apart, in unswizzled blocks of 64 x 64 (attention_bf16x3_sm90.cl). b in RS is stored by columns.
/// - `BY_BY_N<n>_K<k>(c, a, b, keep)`: c = aᵀ b, or c += aᵀ b; both are in local memory, 16 k rows of 64 and of n columns.
/// - `HOLD_F<n>(c)`, `HOLD_U<n>(p)`: instructions that use these registers do not move across it.
///
/// The kernel defines `WGMMA_TYPES` (`".f32.bf16.bf16"`).
pub(super) fn macros() -> String {
    let mut out = String::with_capacity(48 << 10);
    for n in COLUMNS {
        HEAD_STEPS.iter().for_each(|k| both_local(&mut out, n, *k));
        BLOCK_STEPS.iter().for_each(|k| from_registers(&mut out, n, *k));
        hold(&mut out, 'F', "+f", n / 2);
        hold(&mut out, 'U', "+r", n / 4);
    }
    by_columns(&mut out, 64, 8);
    bf16x3_local(&mut out);
    bf16x3_registers(&mut out);
    hold(&mut out, 'U', "+r", BF16X3_REGISTERS);
    out
}

/// Generates the same macros for heads of 129 to 256.
pub(super) fn wide_macros() -> String {
    let mut out = String::with_capacity(64 << 10);
    for (columns, head_steps, keys) in WIDE {
        for k in head_steps {
            both_local(&mut out, 64, k);
            both_local(&mut out, keys, k);
        }
        from_registers(&mut out, columns, keys / 16);
        from_registers(&mut out, columns, 4);
        by_columns(&mut out, columns, 4);
        hold(&mut out, 'F', "+f", keys / 2);
        hold(&mut out, 'U', "+r", keys / 4);
        hold(&mut out, 'F', "+f", columns / 2);
    }
    hold(&mut out, 'F', "+f", 32);
    hold(&mut out, 'U', "+r", 16);
    out
}

fn list(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}
fn registers(first: usize, count: usize) -> String {
    list(count, |i| format!("%{}", first + i))
}
fn operands(constraint: &str, name: char, count: usize) -> String {
    list(count, |i| format!("\"{constraint}\"(({name})[{i}])"))
}

const FENCE: &str = "\\n\\t//@wgmma.fence.sync.aligned;";
const COMMIT: &str = "\\n\\t//@wgmma.commit_group.sync.aligned;\\n\\t}";

fn both_local(out: &mut String, n: usize, k: usize) {
    let count = n / 2;
    let (a, b, first_offset) = (count, count + 1, count + 2);
    let mut text = format!("{{\\n\\t//@.reg .b64 x, y;{FENCE}");
    for step in 0..k {
        let (x, y, keep) = (first_offset + step, first_offset + k + step, u8::from(step > 0));
        let _ = write!(
            text,
            "\\n\\t//@add.s64 x, %{a}, %{x};\\n\\t//@add.s64 y, %{b}, %{y};\\n\\t//@wgmma.mma_async.sync.aligned.m64n{n}k16\" \
             WGMMA_TYPES \" {{{}}}, x, y, {keep}, 1, 1, 0, 0;",
            registers(0, count)
        );
    }
    let offsets = |half: &str| list(k, |i| format!("\"n\"({} * ({half}) + {})", i / 4, i % 4 * 2));
    let _ = writeln!(
        out,
        "#define SS_N{n}_K{k}(c, a, b, a_half, b_half) asm volatile(\"{text}{COMMIT}\" : {} : \"l\"(a), \"l\"(b), {}, {} : \
         \"memory\")",
        operands("+f", 'c', count),
        offsets("a_half"),
        offsets("b_half")
    );
}

fn from_registers(out: &mut String, n: usize, k: usize) {
    let (count, parts) = (n / 2, 4 * k);
    let (b, keep) = (count + parts, count + parts + 1);
    let mut text =
        format!("{{\\n\\t//@.reg .pred p;\\n\\t//@.reg .b64 y;\\n\\t//@setp.ne.b32 p, %{keep}, 0;{FENCE}");
    for step in 0..k {
        let keep = if step == 0 { "p" } else { "1" };
        // 16 rows of 128 bytes: 128 descriptor units.
        let _ = write!(
            text,
            "\\n\\t//@add.s64 y, %{b}, {};\\n\\t//@wgmma.mma_async.sync.aligned.m64n{n}k16\" WGMMA_TYPES \" {{{}}}, {{{}}}, y, \
             {keep}, 1, 1, 1;",
            128 * step,
            registers(0, count),
            registers(count + 4 * step, 4)
        );
    }
    let _ = writeln!(
        out,
        "#define RS_N{n}_K{k}(c, p, b, keep) asm volatile(\"{text}{COMMIT}\" : {} : {}, \"l\"(b), \"r\"(keep) : \"memory\")",
        operands("+f", 'c', count),
        operands("r", 'p', parts)
    );
}

fn by_columns(out: &mut String, n: usize, k: usize) {
    let count = n / 2;
    let (a, b, keep) = (count, count + 1, count + 2);
    let mut text =
        format!("{{\\n\\t//@.reg .pred p;\\n\\t//@.reg .b64 x, y;\\n\\t//@setp.ne.b32 p, %{keep}, 0;{FENCE}");
    for step in 0..k {
        let keep = if step == 0 { "p" } else { "1" };
        // 16 rows of 128 bytes: 128 descriptor units.
        let _ = write!(
            text,
            "\\n\\t//@add.s64 x, %{a}, {0};\\n\\t//@add.s64 y, %{b}, {0};\\n\\t//@wgmma.mma_async.sync.aligned.m64n{n}k16\" \
             WGMMA_TYPES \" {{{1}}}, x, y, {keep}, 1, 1, 1, 1;",
            128 * step,
            registers(0, count)
        );
    }
    let _ = writeln!(
        out,
        "#define BY_BY_N{n}_K{k}(c, a, b, keep) asm volatile(\"{text}{COMMIT}\" : {} : \"l\"(a), \"l\"(b), \"r\"(keep) : \"memory\")",
        operands("+f", 'c', count)
    );
}

/// Planes of a and b of each product, the smallest first.
const BF16X3_PAIRS: [[usize; 2]; 6] = [[2, 0], [0, 2], [1, 1], [1, 0], [0, 1], [0, 0]];
/// Registers of an A operand of three planes of 64 columns.
const BF16X3_REGISTERS: usize = 48;
/// Descriptor units (16 bytes) between planes, and between groups of 16 columns or rows of a block.
const PLANE: usize = 512;
const BY_ROWS: usize = 128;
const BY_COLUMNS: usize = 16;

fn bf16x3_steps() -> impl Iterator<Item = (usize, [usize; 2], usize)> {
    BF16X3_PAIRS
        .into_iter()
        .flat_map(|pair| (0..4).map(move |step| (pair, step)))
        .enumerate()
        .map(|(i, (pair, step))| (i, pair, step))
}

fn bf16x3_local(out: &mut String) {
    let mut text = format!("{{\\n\\t//@.reg .b64 x, y;{FENCE}");
    for (i, [a, b], step) in bf16x3_steps() {
        let _ = write!(
            text,
            "\\n\\t//@add.s64 x, %32, {};\\n\\t//@add.s64 y, %33, {};\\n\\t//@wgmma.mma_async.sync.aligned.m64n64k16\" \
             WGMMA_TYPES \" {{{}}}, x, y, {}, 1, 1, 0, 0;",
            a * PLANE + step * BY_ROWS,
            b * PLANE + step * BY_ROWS,
            registers(0, 32),
            u8::from(i > 0)
        );
    }
    let _ = writeln!(
        out,
        "#define BF16X3_SS(c, a, b) asm volatile(\"{text}{COMMIT}\" : {} : \"l\"(a), \"l\"(b) : \"memory\")",
        operands("+f", 'c', 32)
    );
}

fn bf16x3_registers(out: &mut String) {
    let b_at = 32 + BF16X3_REGISTERS;
    let mut text = format!("{{\\n\\t//@.reg .b64 y;{FENCE}");
    for (i, [a, b], step) in bf16x3_steps() {
        let _ = write!(
            text,
            "\\n\\t//@add.s64 y, %{b_at}, {};\\n\\t//@wgmma.mma_async.sync.aligned.m64n64k16\" WGMMA_TYPES \" {{{}}}, {{{}}}, y, {}, \
             1, 1, 1;",
            b * PLANE + step * BY_COLUMNS,
            registers(0, 32),
            registers(32 + a * 16 + 4 * step, 4),
            u8::from(i > 0)
        );
    }
    let _ = writeln!(
        out,
        "#define BF16X3_RS(c, p, b) asm volatile(\"{text}{COMMIT}\" : {} : {}, \"l\"(b) : \"memory\")",
        operands("+f", 'c', 32),
        operands("r", 'p', BF16X3_REGISTERS)
    );
}

fn hold(out: &mut String, kind: char, constraint: &str, count: usize) {
    let _ = writeln!(
        out,
        "#define HOLD_{kind}{count}(c) asm volatile(\"\" : {} :: \"memory\")",
        operands(constraint, 'c', count)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_numbered_as_they_are_listed() {
        let text = macros();
        assert!(text.contains("#define BY_BY_N64_K8(") && !text.contains("BY_BY_N256_K4("));
        let wide = wide_macros();
        let product = wide.lines().find(|l| l.starts_with("#define BY_BY_N256_K4(")).unwrap();
        // 128 registers, two descriptors, the predicate.
        assert!(product.contains("setp.ne.b32 p, %130, 0;"), "{product}");
        assert!(product.contains("add.s64 x, %128, 384;") && product.contains("add.s64 y, %129, 384;"));
        assert!(wide.lines().all(|l| l.matches('{').count() == l.matches('}').count()));
        let line = |name: &str| text.lines().find(|l| l.starts_with(&format!("#define {name}("))).unwrap();
        let product = line("SS_N64_K5");
        // 32 registers, two descriptors, five offsets of each.
        assert!(
            product.contains("add.s64 x, %32, %34;") && product.contains("add.s64 y, %33, %43;"),
            "{product}"
        );
        assert!(product.contains("\"n\"(1 * (a_half) + 0), \"n\"(0 * (b_half) + 0)"), "{product}");
        let product = line("RS_N64_K4");
        assert!(
            product.contains("setp.ne.b32 p, %49, 0;") && product.contains("{%44,%45,%46,%47}, y, 1"),
            "{product}"
        );
        assert_eq!(product.matches("wgmma.mma_async").count(), 4);
        assert!(text.lines().all(|l| l.matches('{').count() == l.matches('}').count()));
    }
}
