#!/usr/bin/env bash
# Installs the MPI implementations for the tests with several processes, Open MPI and MPICH, on Debian and Ubuntu:
#
#     tools/mpi.sh
#
# Without them, those tests report that they are skipped. On other systems, or if both are installed, it does nothing.
set -euo pipefail
if command -v mpirun.openmpi >/dev/null && command -v mpirun.mpich >/dev/null; then exit 0; fi
command -v apt-get >/dev/null || { echo "tools/mpi.sh: apt-get was not found; nothing is installed" >&2; exit 0; }
as_root=
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"
{ $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openmpi-bin mpich; } >&2
