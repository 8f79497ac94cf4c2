#!/usr/bin/env bash
# Creates a Python environment for the tests in target/serve-python and prints its path. It has clients of `netcl serve`, pytest and NumPy:
#
#     tools/serve_python.sh [all | page]     # by default, only the official client `openai`; takes some seconds
#                                            # page: only `playwright`, which drives a browser
#
# If pip cannot download, for example offline, or exceeds the tests' time limit, it says so and exits 1.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath -m "${CARGO_TARGET_DIR:-target}")/serve-python
packages=(openai pytest numpy)
case ${1:-} in
  all) packages+=(ollama litellm instructor jsonschema playwright) ;;
  page) packages=(playwright) ;;
esac
# Seconds for the environment and for the packages: tests have a time limit.
seconds=(20 60)
[ $# -eq 0 ] || seconds=(300 600)
has() { "$venv/bin/python" - "$@" <<<'import importlib.util, sys; sys.exit(any(importlib.util.find_spec(p) is None for p in sys.argv[1:]))'; }
if ! { [ -x "$venv/bin/python" ] && has "${packages[@]}"; } 2>/dev/null; then
  { [ -x "$venv/bin/pip" ] || timeout "${seconds[0]}" python3 -m venv "$venv"; } >&2 ||
    { echo "tools/serve_python.sh: python3 cannot create a virtual environment in ${seconds[0]} s (apt-get install python3-venv)" >&2; exit 1; }
  timeout "${seconds[1]}" "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 10 "${packages[@]}" >&2 ||
    { echo "tools/serve_python.sh: pip does not install ${packages[*]} here in ${seconds[1]} s" >&2; exit 1; }
fi
echo "$venv/bin/python"
