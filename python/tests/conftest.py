"""Tests run on the device in NETCL_TEST_DEVICE [default: `sim`]."""

import os
import signal

import netcl

# A shell that starts the tests in the background makes them ignore Ctrl-C, and child processes inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

netcl.set_default_device(os.environ.get("NETCL_TEST_DEVICE", "sim"))
