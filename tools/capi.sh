#!/usr/bin/env bash
# Builds and tests libnetcl: headers, libraries, pkg-config file and CMake package below target/capi, and examples. Then runs the C programs on the
# test device and the simulated GPU, under valgrind if it is installed, and tests through Python if it has NumPy.
#
#     tools/capi.sh                # PREFIX: installation folder (target/capi); NETCL_TEST_DEVICE: the device (auto); NETCL_PYTHON: a Python with NumPy
#                                  # MODEL: a model for netcl_generate [default: made by capi/tests/model.py]; CALLS: misuse calls (10000)
#                                  # BUILT: a folder with libnetcl_c.so and libnetcl_c.a from another build
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath -m "${PREFIX:-target/capi}") device=${NETCL_TEST_DEVICE:-auto} python=${NETCL_PYTHON:-python3} cargo=${CARGO:-cargo}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
mkdir -p "$prefix"/{include,lib/pkgconfig,lib/cmake/netcl,bin}

built=${BUILT:-target/release}
if [ -z "${BUILT:-}" ]; then
  NETCL_WRITE_HEADER=1 $cargo test --locked --quiet --package netcl-capi --test header made::
  $cargo rustc --locked --release --package netcl-capi --lib --crate-type cdylib,staticlib
fi
cp capi/include/*.h "$prefix/include/"
cp "$built/libnetcl_c.so" "$prefix/lib/libnetcl.so.0"
cp "$built/libnetcl_c.a" "$prefix/lib/libnetcl.a"
ln -sf libnetcl.so.0 "$prefix/lib/libnetcl.so"
ln -sf libnetcl.so.0 "$prefix/lib/driver.so" # the name that the seeds' programs load
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" capi/netcl.pc.in > "$prefix/lib/pkgconfig/netcl.pc"
cp capi/netclConfig.cmake "$prefix/lib/cmake/netcl/"
ls -l "$prefix/lib"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if command -v pkg-config > /dev/null; then flags=$(pkg-config --cflags --libs netcl); else flags="-I$prefix/include -L$prefix/lib -lnetcl"; fi
for source in capi/tests/*.c capi/examples/*.c; do
  # shellcheck disable=SC2086 # flags are several
  ${CC:-cc} -std=gnu11 -g -O1 -Wall -Wextra -Werror -o "$prefix/bin/$(basename "$source" .c)" "$source" $flags -lm -lpthread
done
# Links statically, and compiles as C++.
${CC:-cc} -std=gnu11 -o "$prefix/bin/multiply_static" capi/examples/multiply.c -I"$prefix/include" "$prefix/lib/libnetcl.a" -lm -ldl -lpthread
if command -v "${CXX:-c++}" > /dev/null; then
  for header in capi/include/*.h; do
    echo "#include <${header##*/}>" | "${CXX:-c++}" -x c++ -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" -
  done
fi
if command -v cmake > /dev/null; then
  work=$(mktemp -d)
  printf 'cmake_minimum_required(VERSION 3.10)\nproject(p C)\nfind_package(netcl REQUIRED)\nadd_executable(p %s)\ntarget_link_libraries(p netcl::netcl)\nadd_executable(s %s)\ntarget_link_libraries(s netcl::static)\n' \
    "$PWD/capi/examples/multiply.c" "$PWD/capi/examples/multiply.c" > "$work/CMakeLists.txt"
  cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" > "$work/log" && cmake --build "$work/build" >> "$work/log" || { cat "$work/log"; exit 1; }
  "$work/build/p" > /dev/null && "$work/build/s" > /dev/null && echo "CMake package: ok"
  cmake -S . -B "$work/own" -DNETCL_BUILT="$built" > "$work/log" && cmake --build "$work/own" >> "$work/log" &&
    cmake --install "$work/own" --prefix "$work/prefix" >> "$work/log" || { cat "$work/log"; exit 1; }
  cmp "$prefix/lib/libnetcl.so.0" "$work/prefix/lib/driver.so" && "$work/own/multiply" > /dev/null && echo "CMake build: ok"
  rm -rf "$work"
else
  echo "CMake package: skipped, cmake is not installed"
fi

for example in multiply multiply_static gradient race; do echo "== $example"; "$prefix/bin/$example"; done
model=${MODEL:-} expected=
if [ -z "$model" ] && command -v "$python" > /dev/null; then
  # The model continues each byte with the next one.
  model=$prefix/model expected="fghijklmnopqrstuvwxyz{|}"
  "$python" capi/tests/model.py "$model"
fi
programs() { # command prefix, number of calls, devices
  local before=$1 calls=$2
  shift 2
  for on in "$@"; do
    # shellcheck disable=SC2086 # a command and its options
    for run in "driver $on" "seeds $on" "tensors $on $model $expected" "misuse $on $calls" "threads $on"; do $before "$prefix/bin/"$run; done
  done
  # shellcheck disable=SC2086
  for run in simulated machine; do $before "$prefix/bin/$run"; done
}
programs "" "${CALLS:-10000}" "$device" sim
if command -v valgrind > /dev/null; then
  echo "== valgrind"
  # Valgrind supports fewer instructions than the CPU, and PoCL compiles for the CPU; with the simulated GPU, only netcl's own code runs.
  programs "valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --suppressions=capi/tests/valgrind.supp" 300 sim
fi
if "$python" -c 'import numpy' 2> /dev/null; then
  for on in "$device" sim; do
    for test in driver tensors; do "$python" "capi/tests/$test.py" "$prefix/lib/libnetcl.so" "$on"; done
  done
else
  echo "driver.py, tensors.py: skipped, $python does not have NumPy; set NETCL_PYTHON"
fi
echo "libnetcl: $prefix"
