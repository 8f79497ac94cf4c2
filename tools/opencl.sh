#!/usr/bin/env bash
# Ensures that an OpenCL device exists:
#
#     tools/opencl.sh [NETCL]    # NETCL: the built program, which runs a kernel as a check; by default, only files are checked
#
# If none exists, it installs PoCL on Debian and Ubuntu, which runs OpenCL on the CPU. On other systems it prints the command
# and exits 1.
set -euo pipefail

works() {
  if [ $# -gt 0 ]; then
    "$1" doctor --quick >/dev/null 2>&1
  else
    [ -n "${NETCL_OPENCL_LIBRARY:-}" ] && return 0
    local vendors=${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}
    { [ -f "$vendors" ] || ls "$vendors"/*.icd; } >/dev/null 2>&1
  fi
}

works "$@" && exit 0
echo "No OpenCL device was found." >&2
packages="pocl-opencl-icd ocl-icd-libopencl1"
if command -v apt-get >/dev/null; then
  as_root=
  [ "$(id -u)" -eq 0 ] || as_root=sudo
  echo "Installing PoCL, which runs OpenCL on the processor: apt-get install $packages" >&2
  { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages; } >&2
else
  for line in "dnf:sudo dnf install pocl OpenCL-ICD-Loader" "pacman:sudo pacman -S pocl ocl-icd" \
              "zypper:sudo zypper install pocl libOpenCL1" "apk:sudo apk add pocl opencl-icd-loader" "brew:brew install pocl"; do
    if command -v "${line%%:*}" >/dev/null; then echo "Install one with: ${line#*:}" >&2; exit 1; fi
  done
  echo "Install PoCL (portablecl.org) or your GPU's OpenCL driver, and the OpenCL ICD loader." >&2
  exit 1
fi
works "$@" && exit 0
echo "Still no OpenCL device. netcl reports:" >&2
[ $# -gt 0 ] && "$1" doctor --quick >&2
exit 1
