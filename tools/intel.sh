#!/usr/bin/env bash
# Runs a command with Intel's CPU runtime as the only visible OpenCL platform:
#
#     tools/intel.sh cargo nextest run -p netcl-tensor
#
# The runtime is in the Python environment NETCL_INTEL_VENV (default: netcl/intel in the cache folder), which is created
# at the first call (packages intel-opencl-rt and intel-cmplr-lib-rt, 830 MB). Needs python3 with venv; x86-64 only.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
venv=${NETCL_INTEL_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/netcl/intel}
library=$venv/lib/libintelocl.so

if [ ! -e "$library" ]; then
  echo "intel.sh: installing Intel's CPU runtime into $venv (once)" >&2
  python3 -m venv "$venv" || { echo "intel.sh: needs python3-venv (apt-get install python3-venv)" >&2; exit 1; }
  "$venv/bin/pip" install --quiet --disable-pip-version-check intel-opencl-rt intel-cmplr-lib-rt >&2
  [ -e "$library" ] || { echo "intel.sh: $library is missing after the installation" >&2; exit 1; }
fi

# The packages' own .icd files contain a path of the build machine and add an FPGA emulator, so write a correct one.
venv=$(cd "$venv" && pwd)
mkdir -p "$venv/netcl-icd"
echo "$venv/lib/libintelocl.so" > "$venv/netcl-icd/intel-cpu.icd.$$"
mv "$venv/netcl-icd/intel-cpu.icd.$$" "$venv/netcl-icd/intel-cpu.icd"
export OCL_ICD_VENDORS=$venv/netcl-icd
exec "$@"
