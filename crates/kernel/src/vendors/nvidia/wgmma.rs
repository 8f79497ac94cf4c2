//! Macros for the warpgroup matrix instructions of sm_90a, because their operand lists are too long to write by hand.

use std::fmt::Write as _;

/// Returns `WGMMA_N<n>(c, a, b, keep)` for n in 64, 128, 192, 256: one `wgmma.mma_async` of 64 x n x 16 (x 8 for tf32). `c` is an array of n/2
/// floats, `a` and `b` are descriptors of blocks in local memory, and `keep` 0 overwrites c. The source that uses it defines `WGMMA_TYPES`
/// (`".f32.bf16.bf16"`), `WGMMA_TAIL` (transposition of a and b: `", 0, 1"`; empty for tf32), and `WGMMA_DEPTH` ("16" or "8").
pub fn wgmma_macros() -> String {
    let mut out = String::new();
    for n in [64usize, 128, 192, 256] {
        let count = n / 2;
        let list = |item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(",");
        let registers = list(&|i| format!("%{i}"));
        let operands = list(&|i| format!("\"+f\"((c)[{i}])"));
        let (a, b, keep) = (count, count + 1, count + 2);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "#define WGMMA_N{n}(c, a, b, keep) asm volatile(\"{{\\n\\t//@.reg .pred p;\\n\\t//@setp.ne.b32 p, %{keep}, 0;\\n\\t\
             //@wgmma.mma_async.sync.aligned.m64n{n}k\" WGMMA_DEPTH WGMMA_TYPES \" {{{registers}}}, %{a}, %{b}, p, 1, 1\" \
             WGMMA_TAIL \";\\n\\t}}\" : {operands} : \"l\"(a), \"l\"(b), \"r\"(keep))"
        );
    }
    out
}
