#!/usr/bin/env bash
# Installs the MPI implementations that the tests of several processes run under, Open MPI and MPICH, on Debian and Ubuntu:
#
#     tools/mpi.sh
#
# Without them those tests say that they are skipped. Elsewhere, and where both are there, nothing happens.
set -euo pipefail
if command -v mpirun.openmpi >/dev/null && command -v mpirun.mpich >/dev/null; then exit 0; fi
command -v apt-get >/dev/null || { echo "tools/mpi.sh: no apt-get here, MPI is left as it is" >&2; exit 0; }
as_root=
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"
{ $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openmpi-bin mpich; } >&2
