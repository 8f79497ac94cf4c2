"""The test harness: multiplies two matrices on the simulated GPU, reads the product back, and compares it with NumPy.

``python -m netcl.compat.simulated_driver.app`` exits with 0 if they agree, and with 1 otherwise.
"""

from __future__ import annotations

import sys

import numpy as np

from . import GPUManager, load_driver, shutdown_driver


def main() -> int:
    """Runs the harness and returns its exit code."""
    load_driver()
    print("\n--- Start des Hauptprogramms (mit mmap-basiertem Treiber) ---")
    manager = GPUManager()
    print(f"\nVerfügbare GPUs im Manager: {len(manager)}")
    gpu = manager.get_gpu(0)

    print(f"\n--- Operationen auf GPU {gpu.index} ---")
    gpu.initialize()

    print("\nHost: Erstelle Matrizen...")
    a, b = np.random.rand(5, 4), np.random.rand(4, 6)
    print(f"Host: Matrix A (shape={a.shape}, dtype={a.dtype})")
    print(f"Host: Matrix B (shape={b.shape}, dtype={b.dtype})")

    print("\nHost: Alloziere Speicher auf GPU für Matrizen...")
    at_a, at_b = gpu.allocate(a.nbytes), gpu.allocate(b.nbytes)
    print(f"Host: 'GPU'-Adressen erhalten: A={at_a}, B={at_b}")

    print("\nHost: Schreibe Daten in den GPU-Speicher...")
    gpu.write_data(at_a, a)
    gpu.write_data(at_b, b)
    print("Host: Daten erfolgreich zur GPU geschrieben (simuliert).")

    print("\nHost: Starte Kernel 'matrix_multiply' auf GPU...")
    at_c = gpu.simulated_matrix_multiply(at_a, at_b, a.nbytes, b.nbytes, a.shape, b.shape)
    print(f"Host: Kernel beendet. Ergebnis an GPU-Adresse: {at_c}")

    print("\nHost: Lese Ergebnis von GPU zurück zum Host...")
    c = gpu.read_data(at_c, shape=(a.shape[0], b.shape[1]), dtype=a.dtype)
    print("\n--- Ergebnis der Matrixmultiplikation (vom simulierten Treiber berechnet/gelesen) ---")
    print(f"Shape: {c.shape}, Dtype: {c.dtype}")
    print(c)

    print("\nHost: Verifiziere mit NumPy...")
    agrees = bool(np.allclose(c, a @ b))
    if agrees:
        print("VERIFIKATION ERFOLGREICH: Ergebnis vom Treiber stimmt mit NumPy überein.")
    else:
        print(f"VERIFIKATION FEHLGESCHLAGEN: größte Abweichung {np.abs(c - a @ b).max():.3g}.")

    print("\nHost: Gebe Speicher auf GPU frei...")
    for address, array in ((at_c, c), (at_a, a), (at_b, b)):
        gpu.free(address, array.nbytes)
    shutdown_driver()
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
