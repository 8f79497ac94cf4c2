"""Tests run on the device that NETCL_TEST_DEVICE names, or `sim`."""

import os

import netcl

netcl.set_default_device(os.environ.get("NETCL_TEST_DEVICE", "sim"))
