#!/usr/bin/env bash
# Compiles every kernel source for devices that are not installed: AMD through clang's own code generator, Intel as SPIR.
#
#     tools/compile_check.sh [DIR]    # DIR/{cpu,gpu}: sources written by `netcl kernels --dump`; by default they are written now
#
# Sources for GPUs are compiled for every target, sources for CPUs for SPIR, which Intel's CPU runtime uses.
# Prints file by target, ok or FAIL, then the compiler's output; exit 1 if anything fails, 2 if nothing could be checked.
# LIMIT is the number of sources per kernel, evenly sampled (24); JOBS is the number of parallel compilations (all cores); NETCL is the program
# [default: built and run by cargo].
# CLANG is the compiler [default: the newest clang from 19 down to 14 that supports amdgcn] (gfx1100 needs 15). No device, driver or
# device library is needed: AMD stops at assembly (so local memory and registers are allocated), SPIR at LLVM's bitcode.
set -uo pipefail
cd "$(dirname "$0")/.."

cpus="gfx906 gfx90a gfx1030 gfx1100"
# A double in a float kernel costs a conversion if the device has fp64, and fails otherwise.
flags="-x cl -cl-std=CL1.2 -cl-mad-enable -O2 -Wall -Wno-unused -Wno-pass-failed -Werror=double-promotion -Werror=implicit-function-declaration"

find_clang() {
  local c
  for c in ${CLANG:-} clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 clang; do
    command -v "$c" >/dev/null && "$c" --print-targets 2>/dev/null | grep -q amdgcn && { echo "$c"; return; }
  done
  return 1
}

# One line "<ok or FAIL> <file> <target>", the compiler's output in <work>/<file>.<target>.log
compile_one() {
  local file=$1 target=$2 log=$3/$(basename "$(dirname "$1")").$(basename "$1").$2.log out=(-S)
  local to=(-target amdgcn-amd-amdhsa -mcpu="$target" -nogpulib)
  [ "$target" = spir64 ] && { to=(-target spir64-unknown-unknown); out=(-emit-llvm -c); }
  # shellcheck disable=SC2086
  if "$CLANG" $FLAGS "${to[@]}" "${out[@]}" -o /dev/null "$file" > "$log" 2>&1
  then echo "ok $file $target"; else echo "FAIL $file $target"; fi
}
export -f compile_one

CLANG=$(find_clang) || {
  echo "compile_check: no clang that supports amdgcn was found. Debian and Ubuntu: apt-get install clang-15 (or any from 14 to 19)" >&2; exit 2; }
export CLANG FLAGS=$flags
known=
for t in $cpus; do
  if echo | "$CLANG" -x cl -target amdgcn-amd-amdhsa -mcpu="$t" -nogpulib -S -o /dev/null - 2>/dev/null
  then known="$known $t"; else echo "compile_check: $CLANG does not know $t, left out" >&2; fi
done
if echo | "$CLANG" -x cl -target spir64-unknown-unknown -emit-llvm -c -o /dev/null - 2>/dev/null
then known="$known spir64"; else echo "compile_check: $CLANG does not know spir64, left out" >&2; fi
[ -n "$known" ] || { echo "compile_check: $CLANG does not support any of the targets" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sources=${1:-$work/sources}
if [ $# -eq 0 ]; then
  mkdir -p "$sources"
  netcl=${NETCL:-"cargo run --locked --quiet --package netcl-cli --"}
  for kind in cpu gpu; do
    # shellcheck disable=SC2086
    $netcl kernels --dump "$sources/$kind" --profile $kind --limit "${LIMIT:-24}" >> "$work/dump.log" 2>&1 ||
      { cat "$work/dump.log"; echo "compile_check: '$netcl kernels --dump' failed for $kind" >&2; exit 1; }
  done
  cat "$work/dump.log"
fi

find "$sources" -mindepth 2 -maxdepth 2 -name '*.cl' | sort > "$work/files"
[ -s "$work/files" ] || { echo "compile_check: no kernel sources in $sources" >&2; exit 2; }
while read -r f; do
  for t in $known; do
    case $f:$t in */cpu/*:gfx*) continue ;; esac
    printf '%s\0%s\0%s\0' "$f" "$t" "$work"
  done
done < "$work/files" | xargs -0 -n 3 -P "${JOBS:-$(nproc)}" bash -c 'compile_one "$@"' _ | sort > "$work/results"

awk -v targets="$known" '
  { n = $2; sub(/\.cl$/, "", n); m = split(n, part, "/"); n = part[m - 1] "/" part[m]; r[n, $3] = $1; if (!(n in seen)) { seen[n] = 1; names[++count] = n; if (length(n) > w) w = length(n) } }
  END {
    k = split(targets, t, " "); printf "%-" w "s", ""; for (i = 1; i <= k; i++) printf "  %-7s", t[i]; print ""
    for (j = 1; j <= count; j++) { printf "%-" w "s", names[j]; for (i = 1; i <= k; i++) printf "  %-7s", (names[j], t[i]) in r ? r[names[j], t[i]] : "-"; print "" }
  }' <(sort -k2 "$work/results")

bad=$(grep -c '^FAIL' "$work/results")
grep '^FAIL' "$work/results" | while read -r _ f t; do
  echo; echo "$(basename "$f") for $t:"; head -n 20 "$work/$(basename "$(dirname "$f")").$(basename "$f").$t.log"
done
warned=$(find "$work" -name '*.log' ! -name dump.log -size +0 | wc -l)
total=$(wc -l < "$work/results")
if [ "$warned" -gt "$bad" ]; then
  echo; echo "warnings:"; find "$work" -name '*.log' ! -name dump.log -exec grep -h 'warning:' {} + | sort | uniq -c | sort -rn | head -n 20
fi
echo; echo "$("$CLANG" --version | head -n 1): $((total - bad)) of $total compile"
[ "$bad" -eq 0 ]
