#!/usr/bin/env bash
# Builds parts of the OpenCL conformance tests, runs each test separately on AetherCL through ocl-icd, and prints a table.
#
#     tools/cts.sh CHECKOUT [SUITE …]      # CHECKOUT: of KhronosGroup/OpenCL-CTS; SUITE [default: all in the list below]
#                                          # CL_HEADERS, SPIRV_HEADERS: checkouts of OpenCL-Headers and SPIRV-Headers
#                                          # AETHERCL: the driver (target/aethercl/libaethercl.so, built by `make aethercl`)
#                                          # PROFILE: the simulated device (teaching); LIMIT: seconds per test (60); JOBS: parallel tests (2)
#                                          # ONLY: a pattern for names of tests (.)
#
# Needs cmake, a C++ compiler and the OpenCL loader to link with (apt-get install cmake g++ ocl-icd-opencl-dev). The build is in target/cts/build, and each
# test's output in target/cts/SUITE/TEST.log. A test that exceeds its limit counts as failed and is marked `time`. Ends with 1 below 99 %.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$(realpath "${1:?a checkout of KhronosGroup/OpenCL-CTS}")
shift
work=$PWD/target/cts
driver=$(realpath "${AETHERCL:-target/aethercl/libaethercl.so}")
limit=${LIMIT:-60} jobs=${JOBS:-2}
export AETHERCL_PROFILES=${PROFILE:-teaching} OCL_ICD_FILENAMES=$driver OCL_ICD_VENDORS=$work/vendors/ AETHERCL_QUIET=${AETHERCL_QUIET-1} CL_WIMPY_MODE=1

mkdir -p "$work/vendors"
echo "$driver" > "$work/vendors/aethercl.icd"

# Suite, the target that builds it, and its options. CL_WIMPY_MODE: suites that test all bit patterns only test a sample.
suites="api test_api
basic test_basic
buffers test_buffers
events test_events
compiler test_compiler
computeinfo test_computeinfo
integer_ops test_integer_ops
relationals test_relationals
select test_select
commonfns test_commonfns
geometrics test_geometrics
conversions test_conversions -[1024]
math_brute_force test_bruteforce -[1024]
image_info test_cl_get_info
image_methods test_kernel_image_methods
image_copy test_cl_copy_images small_images
image_fill test_cl_fill_images small_images
image_transfer test_cl_read_write_images small_images
image_samplerless test_samplerless_reads small_images"

if [ ! -f "$work/build/Makefile" ]; then
  library=$(dirname "$(find /usr/lib /usr/local/lib -name libOpenCL.so 2> /dev/null | head -n 1)")
  cmake -S "$source" -B "$work/build" -DCL_INCLUDE_DIR="${CL_HEADERS:-/usr/include}" -DCL_LIB_DIR="$library" \
    -DSPIRV_INCLUDE_DIR="${SPIRV_HEADERS:-/usr}" -DOPENCL_LIBRARIES=OpenCL -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF \
    -DCMAKE_CXX_FLAGS="-O1 -w" -DCMAKE_C_FLAGS="-O1 -w" > "$work.cmake.log"
fi

# Runs one test in a separate folder, because some write files: one PROGRAM SUITE TEST OPTIONS.
one() {
  local program=$1 out=$work/$2/$3 code=0
  shift 2
  mkdir -p "$out"
  cd "$out"
  CL_CONFORMANCE_RESULTS_FILENAME=$out/result.json timeout -k 5 "$limit" "$program" "$@" > "$out.log" 2>&1 < /dev/null || code=$?
  local answer=crash
  if [ -s result.json ]; then answer=$(grep -oE '"(pass|fail|skip)"' result.json | tr -d '"' | sort -u | head -n 1); fi
  if [ "$code" = 124 ] || [ "$code" = 137 ]; then answer="time"; fi
  cd "$work" && rm -rf "$out"
  echo "$1 $answer" > "$out.result"
}
export -f one
export work limit

# Prints the names of a program's tests. Names of conversions combine types, saturation and rounding; combinations that do not exist run nothing.
names() {
  if [ "$2" != conversions ]; then
    "$1" -h 2> /dev/null | sed '1,/Test names:/d' | awk '{print $1}' | grep -xE '[A-Za-z0-9_]+'
    return
  fi
  local types="uchar char ushort short uint int ulong long float double" to from sat round
  for to in $types; do
    for sat in "" _sat; do
      case $to$sat in float_sat | double_sat) continue ;; esac
      for round in "" _rte _rtz _rtp _rtn; do
        for from in $types; do echo "$to$sat${round}_$from"; done
      done
    done
  done
}

echo "$suites" | while read -r suite target options; do
  if [ $# -gt 0 ] && [[ " $* " != *" $suite "* ]]; then continue; fi
  cmake --build "$work/build" --target "$target" -j "$jobs" > "$work/$suite.build.log" 2>&1 || { tail "$work/$suite.build.log"; exit 2; }
  program=$(find -L "$work/build" -name "$target" -type f -perm -u+x | head -n 1)
  mkdir -p "$work/$suite"
  find "$work/$suite" -name '*.result' -delete
  names "$program" "$suite" | { grep -E "${ONLY:-.}" || true; } | sort -u |
    xargs -P "$jobs" -I @ bash -c "one $program $suite @ $options"
done

printf '%-18s %7s %7s %7s %7s\n' suite passed failed skipped share
echo "$suites" | {
  all=0 good=0
  while read -r suite _; do
    ls "$work/$suite"/*.result > /dev/null 2>&1 || continue
    if [ $# -gt 0 ] && [[ " $* " != *" $suite "* ]]; then continue; fi
    passed=$(cat "$work/$suite"/*.result | grep -c ' pass$' || true)
    skipped=$(cat "$work/$suite"/*.result | grep -c ' skip$' || true)
    failed=$(cat "$work/$suite"/*.result | grep -cvE ' (pass|skip)$' || true)
    printf '%-18s %7d %7d %7d %6d‰\n' "$suite" "$passed" "$failed" "$skipped" $((1000 * passed / (passed + failed + (passed + failed == 0))))
    all=$((all + passed + failed)) good=$((good + passed))
  done
  printf '%-18s %7d %7d %7s %6d‰\n' all "$good" $((all - good)) "" $((1000 * good / (all + (all == 0))))
  cat "$work"/*/*.result | grep -vE ' (pass|skip)$' > "$work/failed.txt" || true
  [ $((100 * good)) -ge $((99 * all)) ] || { echo "below 99 %; $work/failed.txt names what failed"; exit 1; }
}
