"""The test harness of a simulated driver, with netcl's simulated GPU: ``python app.py``. It needs the Python package netcl."""

import sys

from netcl.compat.simulated_driver.app import main

sys.exit(main())
