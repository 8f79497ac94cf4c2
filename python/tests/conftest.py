"""Tests run on the device that NETCL_TEST_DEVICE names, or `sim`."""

import os
import signal

import netcl

# A shell that starts the tests in the background has them ignore Ctrl-C, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

netcl.set_default_device(os.environ.get("NETCL_TEST_DEVICE", "sim"))
