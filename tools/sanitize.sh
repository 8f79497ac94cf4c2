#!/usr/bin/env bash
# Runs the op suite on Oclgrind, a simulated OpenCL device, and fails if it reports anything: a data race, an access
# outside a buffer, a value that was never written, a barrier that not every work-item reached.
#
#     tools/sanitize.sh [FILTER]...     # FILTER: substrings of test names; [default: every test]
#
# Each test runs alone, with its own log, twice: optimized for races and bounds, and unoptimized for uninitialized values.
# Oclgrind's check for those does not support `freeze` and narrowing shuffles, which the optimizer generates. It also
# mistakes a new buffer at an old address for the old one, so nothing is freed in that run. See NETCL_EXACT_MEMORY.
# LLVM's loop analysis turns `x % 8` into integers of 3 bits, which Oclgrind 21.10 does not wrap: it then reads past buffers. So a test whose
# optimized run fails or has a report runs once more with the same checks, unoptimized, and that run counts (races-unoptimized).
# Needs the package oclgrind. OCLGRIND_ICD is the path of liboclgrind-rt-icd.so if it is not found. KEEP=DIR keeps the logs,
# LIMIT is the time limit of a test in seconds (1800). PACKAGES are the crates (netcl-tensor).
set -uo pipefail
cd "$(dirname "$0")/.."

icd=${OCLGRIND_ICD:-}
for f in /usr/lib/oclgrind /usr/lib/*/oclgrind /usr/lib /usr/lib/*-linux-gnu /usr/local/lib /opt/oclgrind/lib; do
  [ -z "$icd" ] && [ -e "$f/liboclgrind-rt-icd.so" ] && icd=$f/liboclgrind-rt-icd.so
done
[ -n "$icd" ] || { echo "sanitize: Oclgrind is not installed. Debian and Ubuntu: apt-get install oclgrind" >&2; exit 2; }

work=${KEEP:-$(mktemp -d)}
mkdir -p "$work"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT

# The `oclgrind` command preloads its own libOpenCL, which does not affect a program that loads the library at run time.
# These variables enable the same checks through the ICD loader.
mkdir -p "$work/icd" && echo "$icd" > "$work/icd/oclgrind.icd"
export OCL_ICD_VENDORS=$work/icd LD_LIBRARY_PATH=$(dirname "$icd")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OCLGRIND_CHECK_API=1 OCLGRIND_MAX_ERRORS=20 OCLGRIND_NUM_THREADS=1 RUST_BACKTRACE=0
# The size on NVIDIA's devices, the smallest of the large GPUs: Oclgrind's default of 32 KiB is too small for attention's widest heads.
export OCLGRIND_LOCAL_MEM_SIZE=$((48 << 10))
# Small groups execute the same barriers as larger ones, in a fraction of the time; the largest kernel needs 128. The
# race check scans all memory after each kernel, including staging memory, whose size depends on the device's.
export OCLGRIND_MAX_WGSIZE=128
export NETCL_CACHE_DIR=$work/cache NETCL_NO_CACHE=1

for package in ${PACKAGES:-netcl-tensor}; do
  # TEST_BINARY: tests from another build.
  binary=${TEST_BINARY:-$(cargo test --locked --package "$package" --lib --no-run --message-format=json 2>"$work/build.log" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)}
  [ -x "$binary" ] || { cat "$work/build.log" >&2; echo "sanitize: the tests of $package did not build" >&2; exit 1; }
  "$binary" --list --format terse 2>/dev/null | sed -n "s|: test$| $binary|p"
done > "$work/all"
filters=$(printf '%s\n' "$@")
if [ $# -gt 0 ]; then grep -F -e "$filters" "$work/all" > "$work/tests"; else cp "$work/all" "$work/tests"; fi
[ -s "$work/tests" ] || { echo "sanitize: no test matches" >&2; exit 2; }

# One line "<state> <reports> <seconds> <test> <check>". A test that does not use a device does not write a log, and counts as quiet.
run_one() {
  local work=$1 test=$2 binary=$3 check=$4 started=$SECONDS state=ok reports code=0
  local log=$work/${test//::/.}.$check
  local memory=$((64 << 20))
  # If its memory is exhausted, Oclgrind's allocations fail silently; these tests have millions of parameters.
  [[ $test == *optimizer* ]] && memory=$((1 << 30))
  case $check in
    races*) export OCLGRIND_DATA_RACES=1 OCLGRIND_GLOBAL_MEM_SIZE=$memory NETCL_EXACT_MEMORY=1
            [ "$check" = races ] || export OCLGRIND_BUILD_OPTIONS=-cl-opt-disable ;;
    unwritten) export OCLGRIND_UNINITIALIZED=1 OCLGRIND_GLOBAL_MEM_SIZE=$((1 << 30)) NETCL_EXACT_MEMORY=keep
               export OCLGRIND_BUILD_OPTIONS=-cl-opt-disable ;;
  esac
  OCLGRIND_LOG=$log.oclgrind timeout "${LIMIT:-1800}" "$binary" --exact "$test" --test-threads 1 > "$log.out" 2>&1 || code=$?
  [ $code -eq 0 ] || state=FAILED
  [ $code -ne 124 ] || state=TIMEOUT
  # A report starts a line with a capital; its details are indented.
  reports=$(grep -c '^[A-Z]' "$log.oclgrind" 2>/dev/null)
  [ "${reports:-0}" -gt 0 ] && state=REPORTS
  if [ "$check" = races ] && { [ $state = FAILED ] || [ $state = REPORTS ]; }; then
    echo "$state in the optimized run of $test (${reports:-0} reports); runs again unoptimized"
    run_one "$work" "$test" "$binary" races-unoptimized
    return
  fi
  printf '%-8s %4d %4ds  %s %s\n' $state "${reports:-0}" $((SECONDS - started)) "$test" $check | tee "$log.line"
}
export -f run_one
while read -r test binary; do
  printf '%s\0%s\0%s\0%s\0' "$work" "$test" "$binary" races "$work" "$test" "$binary" unwritten
done < "$work/tests" | xargs -0 -n 4 -P "$(nproc)" bash -c 'run_one "$@"' _

bad=0
for line in "$work"/*.line; do
  grep -q '^ok' "$line" && continue
  bad=$((bad + 1))
  echo; cat "$line"
  head -n 40 "${line%.line}.oclgrind" 2>/dev/null
  grep -Eq '^(FAILED|TIMEOUT)' "$line" && tail -n 20 "${line%.line}.out"
done
total=$(ls "$work"/*.line | wc -l)
echo; echo "Oclgrind: $((total - bad)) of $total runs without a report"
[ "$bad" -eq 0 ]
