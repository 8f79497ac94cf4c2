#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it into clean environments and tests it there.
#   tools/python.sh [PYTHON…]      the interpreters to test with [default: python3]
# The wheel remains in target/wheels. NETCL_TEST_DEVICE is the device of the tests [default: the simulated GPU].
set -euo pipefail
cd "$(dirname "$0")/.."
pythons=("$@")
[ ${#pythons[@]} -gt 0 ] || pythons=(python3)
work=target/python
mkdir -p "$work"
build=$work/build
[ -x "$build/bin/maturin" ] || { "${pythons[0]}" -m venv "$build"; "$build/bin/pip" install --quiet "maturin>=1.9,<2"; }
rm -f target/wheels/netcl-*.whl
"$build/bin/maturin" build --release --locked --quiet --manifest-path python/Cargo.toml --out target/wheels
wheel=$(ls target/wheels/netcl-*.whl)
echo "$wheel: $(du -k "$wheel" | cut -f1) KiB"
for python in "${pythons[@]}"; do
  venv=$work/test-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet "$wheel" pytest mypy
  # Runs in a folder without the sources, so that the wheel's contents are tested.
  (cd "$work" && "$PWD/${venv##*/}/bin/python" -m pytest --quiet --no-header -p no:cacheprovider ../../python/tests)
  (cd "$work" && "$PWD/${venv##*/}/bin/python" -m netcl._stubs --check)
  (cd python && "../$venv/bin/mypy" --cache-dir "../$work/mypy" netcl)
  # mypy has the standard library's types of later Python versions.
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || continue
  (cd "$work" && "$PWD/${venv##*/}/bin/stubtest" netcl --ignore-disjoint-bases --mypy-config-file ../../python/pyproject.toml)
done
