#!/bin/bash
# Shows ptxas's results for the sm_90 kernels, without a GPU: registers, spills, instructions. Its notes C75xx (serialized wgmma) are failures.
# Compare the lists before and after a change of a kernel's source to see its cost.
#
#   cargo test -p netcl-tensor --lib -- --ignored texts_for_the_assembler    # writes the sources, prints the folder
#   PTXAS=/path/to/ptxas tools/ptx_check.sh FOLDER
#
# Needs clang 15 or newer (CLANG, default clang-15) and ptxas 12.4 or newer (PTXAS; pip package nvidia-cuda-nvcc). The driver
# has its own compiler, so its registers differ a little, but it uses the same assembler. ptxas takes at most 48 KiB of local memory, so
# arrays are declared shorter than they are; no instruction depends on their size.
# With nvdisasm (NVDISASM; next to ptxas in the CUDA toolkit), instructions are counted as well.
set -u
folder=${1:?the folder with the texts}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for text in "$folder"/*.cl; do
  name=$(basename "$text" .cl)
  "${CLANG:-clang-15}" -x cl -cl-std=CL1.2 -O3 --target=nvptx64-nvidia-nvcl -Xclang -target-cpu -Xclang sm_86 \
    -Xclang -target-feature -Xclang +ptx75 -Xclang -finclude-default-header -include "$here/ptx_check.h" -DNVIDIA_CC=90 -cl-mad-enable \
    -ffp-contract=fast -w -S -o "$work/a.ptx" "$text" 2>"$work/log" || { echo "$name: clang"; head -20 "$work/log"; failed=1; continue; }
  # Like Kernel::reload; clang omits .reqntid, so the source's first lines state the work-items of each kernel.
  awk -v items="$(sed -n 's,^// items ,,p' "$text")" '
    BEGIN { n = split(items, part, " "); for (i = 1; i <= n; i++) { split(part[i], kv, "="); count[kv[1]] = kv[2] } }
    { gsub("//@", "") }
    /^\.target/ { print ".target sm_90a"; next }
    /^\.version/ { print ".version 8.4"; next }
    /^[ \t]*\.shared/ { sub(/\[[0-9]+\];/, "[1024];") }
    /\.entry/ { match($0, /\.entry [A-Za-z0-9_]+/); entry = substr($0, RSTART + 7, RLENGTH - 7) }
    /^\{/ && entry != "" { r = int(65536 / count[entry] / 8) * 8; print ".reqntid " count[entry]; print ".maxnreg " (r < 168 ? r : 168); entry = "" }
    { print }' "$work/a.ptx" >"$work/b.ptx"
  "${PTXAS:-ptxas}" -arch=sm_90a -v -o "$work/out" "$work/b.ptx" >"$work/log" 2>&1 || { echo "$name: ptxas"; head -5 "$work/log"; failed=1; }
  grep -q "(C75" "$work/log" && failed=1
  : >"$work/sass"
  command -v "${NVDISASM:-nvdisasm}" >/dev/null && "${NVDISASM:-nvdisasm}" -c "$work/out" >"$work/sass" 2>/dev/null
  awk -v name="$name" '
    FILENAME ~ /sass$/ { if (/^\.text\./) { entry = substr($1, 7); sub(/:$/, "", entry) } else if (/^ +\/\*[0-9a-f]+\*\/ +[^ ]/ && !/ NOP/) count[entry]++; next }
    /Compiling entry/ { split($0, q, "\047"); entry = q[2] } /spill stores/ { spill = $5 }
    /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); printf "%s %s: %s registers, %s bytes spilled", name, entry, substr($0, RSTART + 5, RLENGTH - 5), spill
      if (entry in count) printf ", %d instructions", count[entry]
      print "" }
    /C75|error/ { print name ": " $0 }' "$work/sass" "$work/log"
done
exit $failed
