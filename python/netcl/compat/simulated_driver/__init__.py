"""The names and messages of a test harness for a simulated driver: ``GPUManager``, ``GPU``, ``simulated_matrix_multiply`` and ``read_data``.

``python -m netcl.compat.simulated_driver.app`` runs the harness. The messages are those of that program, in German. Differences: the driver is
netcl's simulated GPU, with 2560 modeled compute units, so no library is loaded from a file. The product is computed by a kernel in OpenCL C, not
on the host. Lines of the driver start with ``[AetherCL]`` and describe the steps of that machine. ``read_data`` does not free the memory that it
reads. For new programs use ``netcl.aethercl``.
"""

from __future__ import annotations

import atexit
from typing import Any, List, Optional, Sequence

import numpy as np

from ... import _netcl
from ...aethercl import GPU as _GPU

COMPUTE_UNITS = 2560
"""Compute units of each GPU."""
_managers: List[GPUManager] = []


def load_driver() -> None:
    """Reports the driver, and registers its shutdown at exit."""
    print(f"Versuche, simulierten Treiber zu laden von: {_netcl.__file__}")
    print("Simulierter Treiber erfolgreich geladen.")
    print("C-Funktionssignaturen erfolgreich definiert.")
    atexit.register(shutdown_driver)
    print("Treiber-Shutdown-Funktion für atexit registriert.")


def shutdown_driver() -> None:
    """Closes all GPUs. Further calls have no effect."""
    while _managers:
        _managers.pop().shutdown()


class GPU(_GPU):
    """A simulated GPU that reports each request. ``verbose`` is ``False`` for none, or a level of the driver's trace."""

    def __init__(self, index: int = 0, compute_units: int = COMPUTE_UNITS, verbose: Any = "steps"):
        self._verbose = bool(verbose)
        level = verbose if isinstance(verbose, str) else "steps" if verbose else "off"
        super().__init__(index, compute_units=compute_units, trace=level, on_trace=lambda line: print(f"[AetherCL] {line}"))
        self.initialized = False
        self._say(f"GPU Objekt {index} erstellt (CUs: {compute_units}).")

    def _say(self, line: str) -> None:
        if self._verbose:
            print(line)

    def initialize(self) -> bool:
        """Reports that the driver is ready."""
        self._say(f"GPU {self.index}: Fordere Initialisierung über Treiber an...")
        self.synchronize()
        self.initialized = True
        self._say(f"GPU {self.index}: Treiber-Initialisierung erfolgreich.")
        return True

    def allocate(self, bytes: int, tag: str = "simulated") -> int:
        """Allocates device memory and returns its address."""
        if tag == "product":
            return super().allocate(bytes, tag)
        self._say(f"GPU {self.index}: Fordere Allokation von {bytes} Bytes an...")
        address = super().allocate(bytes, tag)
        self._say(f"GPU {self.index}: Allokation erfolgreich, Adresse erhalten: {address}")
        return address

    allocate_memory = allocate

    def write_data(self, address: int, data: Any) -> None:
        """Copies an array to device memory."""
        array = np.asarray(data)
        self._say(f"GPU {self.index}: Fordere Schreiben von {array.nbytes} Bytes an Adresse {address} an...")
        super().write_data(address, array)
        self._say(f"GPU {self.index}: Schreibanforderung gesendet.")

    def simulated_matrix_multiply(
        self, address_a: int, address_b: int, size_a: int, size_b: int, shape_a: Sequence[int], shape_b: Sequence[int]
    ) -> int:
        """Multiplies two matrices in device memory and returns the address of the result."""
        self._say(f"GPU {self.index}: Fordere Ausführung von Kernel 'matrix_multiply' an...")
        address = super().simulated_matrix_multiply(address_a, address_b, size_a, size_b, shape_a, shape_b)
        self._say(f"GPU {self.index}: Kernel 'matrix_multiply' erfolgreich (simuliert), Ergebnisadresse: {address}")
        return address

    def read_data(self, address: int, shape: Any, dtype: Any = np.float64) -> "np.ndarray[Any, Any]":
        """Copies device memory to a new array."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._say(f"GPU {self.index}: Fordere Lesen von {size} Bytes von Adresse {address} an...")
        array = super().read_data(address, shape, dtype)
        self._say(f"GPU {self.index}: Leseanforderung abgeschlossen.")
        return array

    def free(self, address: int, bytes: Optional[int] = None) -> None:
        """Frees device memory."""
        self._say(f"GPU {self.index}: Fordere Freigabe von {bytes or 'allen'} Bytes an Adresse {address} an...")
        super().free(address, bytes)

    free_memory = free


class GPUManager:
    """Finds the simulated GPUs and creates their objects. The number of GPUs is 1 by default."""

    def __init__(self, count: int = 1, verbose: Any = "steps"):
        say = print if verbose else lambda line: None
        say("Initialisiere GPUManager...")
        say(f"Simuliere GPU-Anzahl (fest auf {count}).")
        say(f"Manager: {count} GPU(s) gefunden (simuliert).")
        self.gpus: List[GPU] = []
        for index in range(count):
            say(f"Simuliere CU-Anzahl für GPU {index} (fest auf {COMPUTE_UNITS}).")
            say(f"Manager: Erstelle GPU-Objekt für Index {index} mit {COMPUTE_UNITS} CUs.")
            self.gpus.append(GPU(index, COMPUTE_UNITS, verbose))
        _managers.append(self)
        say("GPUManager Initialisierung abgeschlossen.")

    def get_gpu(self, index: int = 0) -> GPU:
        """Returns a GPU by its index."""
        return self.gpus[index]

    def __len__(self) -> int:
        return len(self.gpus)

    def shutdown(self) -> None:
        """Closes the GPUs."""
        for gpu in self.gpus:
            gpu.close()


__all__ = ["COMPUTE_UNITS", "GPU", "GPUManager", "load_driver", "shutdown_driver"]
