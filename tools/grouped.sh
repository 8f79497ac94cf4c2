#!/usr/bin/env bash
# Runs cargo-nextest with one process for each group of tests that compile kernels:
#
#     tools/grouped.sh cargo nextest run --workspace
#
# PoCL parses its library of built-in functions in each process (0.55 s), and preprocesses each source that the process has not built before. A
# process per test pays for both again and again. This script is the runner of the test binaries: it lists a group as one test, named by its first
# and last module, and runs the tests of a group one after the other. A failure names its test. Binaries that are not listed below have a process
# per test. The last line has the numbers of tests and processes.
set -uo pipefail

if [ -z "${NETCL_TEST_COUNTS:-}" ]; then
  host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z.-' 'A-Z__')
  NETCL_TEST_COUNTS=$(mktemp) || exit
  trap 'rm -f "$NETCL_TEST_COUNTS"' EXIT
  export NETCL_TEST_COUNTS "CARGO_TARGET_${host}_RUNNER=$(realpath "$0")"
  "$@"
  status=$?
  awk '{ tests += $1 } END { print "Tests: " tests + 0 " in " NR " processes" }' "$NETCL_TEST_COUNTS"
  exit $status
fi

binary=$1
shift
size=16 # Tests of a group at most. Larger groups leave one core without work at the end.

case $(basename "$binary") in
  netcl_tensor-* | netcl_model-* | netcl_llm-* | netcl_train-* | netcl_lab-* | engine-* | goldens-* | masks-* | opgraph-* | optimizer-*) ;;
  *)
    [ "${1:-}" != --exact ] || echo 1 >>"$NETCL_TEST_COUNTS"
    exec "$binary" "$@"
    ;;
esac

case " $* " in
  *" --ignored "*) exec "$binary" "$@" ;;
  *" --list "* | *" --exact "*) ;;
  *) exec "$binary" "$@" ;;
esac
ignored=$("$binary" --list --format terse --ignored) || exit
all=$("$binary" --list --format terse) || exit

# Prints `group<tab>test`. Modules are the first two parts of a name; a group has whole modules, unless one alone is larger than a group.
groups() {
  grep -vxF -e "$ignored" <<<"$all" | sed -n 's/: test$//p' | LC_ALL=C sort | awk -v size="$size" '
    function flush(  i, name) {
      if (!count) return
      name = first == last ? first : first ".." last
      if (seen[name]++) name = name "#" seen[name]
      for (i = 1; i <= count; i++) print name "\t" group[i]
      count = 0
    }
    function add(i) { if (!count) first = module; last = module; group[++count] = tests[i] }
    function close_module(  i) {
      if (count + n > size) flush()
      for (i = 1; i <= n; i++) { if (count == size) flush(); add(i) }
      n = 0
    }
    { parts = split($0, part, "::"); of = part[1] (parts > 2 ? "::" part[2] : "") }
    of != module { close_module(); module = of }
    { tests[++n] = $0 }
    END { close_module(); flush() }'
}

if [ "$1" = --list ]; then
  groups | cut -f 1 | uniq | sed 's/$/: test/'
  [ -z "$ignored" ] || printf '%s\n' "$ignored"
  exit
fi
mapfile -t tests < <(groups | awk -F '\t' -v group="$2" '$1 == group { print $2 }')
[ "${#tests[@]}" -gt 0 ] || { echo "grouped.sh: there is no group '$2' in $binary"; exit 1; }
echo "${#tests[@]}" >>"$NETCL_TEST_COUNTS"
exec "$binary" --exact --test-threads 1 "${tests[@]}"
