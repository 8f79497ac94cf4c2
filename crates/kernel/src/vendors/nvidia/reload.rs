//! Instructions of one architecture, through the driver's PTX output.
//!
//! NVIDIA's driver compiles OpenCL C for `sm_90`, but wgmma, setmaxnreg and others exist only on `sm_90a`. The driver's program binary is PTX text,
//! and the driver accepts such text as input. So a kernel writes those instructions after the PTX comment `//@` in its asm strings. The compiler
//! keeps them there and fills in their operands. [`patch`] uncomments them and sets the architecture. The driver's assembler supports that
//! architecture and builds the rest.

use crate::kernel::Reload;

/// Second build for kernels of sm_90a: activates instructions after `//@` in asm strings. A build whose matrix instructions the assembler serialized
/// counts as failed. The assembler's notes are in the build log only with `-cl-nv-verbose`.
pub static SM90A: Reload =
    Reload { name: "sm_90a", options: "-cl-nv-verbose", code: include_str!("reload.rs"), patch, complaint };

/// Maximum registers per work-item. The limit is the 65536 registers of a multiprocessor divided by the group size; more
/// than this does not make any of netcl's kernels faster.
const MAX_REGISTERS: usize = 168;

/// Returns the PTX with active `//@` instructions, for `sm_90a`, and with a register limit that lets the whole group start. `setmaxnreg` moves
/// registers between warpgroups only within such a limit.
fn patch(ptx: &str) -> String {
    let mut out = String::with_capacity(ptx.len() + 256);
    for line in ptx.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix(".target sm_90").filter(|rest| !rest.starts_with('a')) {
            out.push_str(".target sm_90a");
            out.push_str(rest);
            continue;
        }
        out.push_str(&line.replace("//@", ""));
        if let Some(items) = group_items(line) {
            let registers = (65_536 / items.max(1) / 8 * 8).min(MAX_REGISTERS);
            out.push_str(&format!(".maxnreg {registers}\n"));
        }
    }
    out
}

/// Returns the work-items per group from a line `.reqntid 384, 1, 1`.
fn group_items(line: &str) -> Option<usize> {
    let sizes = line.trim().strip_prefix(".reqntid")?;
    sizes.split(',').map(|n| n.trim().parse::<usize>().ok()).product()
}

/// Returns the line of a build log that says that the assembler serialized matrix instructions or ignored `setmaxnreg` (its notes C7500 to C7599).
/// Such a kernel is correct, but slower than the next variant in the list.
fn complaint(log: &str) -> Option<String> {
    let line =
        log.lines().find(|line| line.contains("(C75") || line.contains("instructions are serialized"))?;
    Some(format!("the assembler serialized matrix instructions: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.8\n.target sm_90, texmode_independent\n.entry gemm(\n)\n.reqntid 384, 1, 1\n{\n\
        // begin inline asm\n\t//@wgmma.fence.sync.aligned;\n\t// end inline asm\n}\n.entry sum()\n.reqntid 32, 16\n{ }\n";

    #[test]
    fn hidden_instructions_come_to_life() {
        let patched = patch(PTX);
        assert!(patched.contains("\n.target sm_90a, texmode_independent\n"), "{patched}");
        assert!(patched.contains("\n\twgmma.fence.sync.aligned;\n"), "{patched}");
        assert!(patched.contains(".reqntid 384, 1, 1\n.maxnreg 168\n"), "{patched}");
        assert!(patched.contains(".reqntid 32, 16\n.maxnreg 128\n"), "{patched}");
        assert_eq!(patched.lines().count(), PTX.lines().count() + 2, "comments stay comments");
    }

    #[test]
    fn an_architecture_that_is_named_stays() {
        assert_eq!(patch(".target sm_90a\n"), ".target sm_90a\n");
        assert_eq!(patch(".target sm_80\n"), ".target sm_80\n");
    }

    #[test]
    fn serialised_products_are_found() {
        let log = "ptxas info : 168 registers\nptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are \
            serialized due to insufficient register resources\n";
        assert!(complaint(log).is_some_and(|why| why.contains("C7510")));
        assert_eq!(complaint("ptxas info : Used 168 registers"), None);
    }
}
