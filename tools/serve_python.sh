#!/usr/bin/env bash
# Creates a Python environment for the tests in target/serve-python and prints its path. It has clients of `netcl serve`, pytest and NumPy:
#
#     tools/serve_python.sh [all]     # by default, only the official client `openai`; takes some seconds
#
# If pip cannot download, for example offline, or exceeds the tests' time limit, it says so and exits 1.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath -m "${CARGO_TARGET_DIR:-target}")/serve-python
packages=(openai pytest numpy)
[ "${1:-}" = all ] && packages+=(ollama litellm instructor jsonschema playwright)
has() { "$venv/bin/python" - "$@" <<<'import importlib.util, sys; sys.exit(any(importlib.util.find_spec(p) is None for p in sys.argv[1:]))'; }
if ! { [ -x "$venv/bin/python" ] && has "${packages[@]}"; } 2>/dev/null; then
  { [ -x "$venv/bin/pip" ] || timeout 20 python3 -m venv "$venv"; } >&2 ||
    { echo "tools/serve_python.sh: python3 cannot create a virtual environment" >&2; exit 1; }
  timeout "$([ "${1:-}" != all ] && echo 60 || echo 600)" "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 10 "${packages[@]}" >&2 ||
    { echo "tools/serve_python.sh: pip does not install ${packages[*]} here" >&2; exit 1; }
fi
echo "$venv/bin/python"
