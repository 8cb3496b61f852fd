"""Compares accel with PyTorch's own test data: the operators, modules and optimizers that PyTorch tests itself with.

    make check-torch PYTHON=python3     # that has torch, numpy and expecttest
    ACCEL_RUN=build/accel-run python3 spec/support/check_torch/check.py [ENTRY ...]

PyTorch draws the samples of each entry of its databases (float32, float64, int64, bool, complex64 where the entry has
them); one accel-run process runs the same calls, as calls.py writes them; values, types, shapes and gradients are
compared. missing.txt lists the entries that accel does not have and differences.txt the samples that differ, each
with its reason. The check fails where a list and what was found differ, and where a sample is wrong.

SAMPLES=n: at most n samples for each entry and type (40), spread over those that there are; VERBOSE=1: what was
refused or wrong, call by call.
"""
import os
import sys
import warnings

try:
    import expecttest  # noqa: F401: torch.testing needs it
    import numpy  # noqa: F401
    import torch
except ImportError as problem:
    sys.exit(f"make check-torch: {sys.executable} has no {problem.name}; PYTHON=... names a Python with torch, numpy "
        "and expecttest (pip install torch numpy expecttest)")

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import modules  # noqa: E402
import operators  # noqa: E402
import optimizers  # noqa: E402
import report  # noqa: E402
from process import Accel  # noqa: E402


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    wanted = sys.argv[1:]
    accel = Accel(os.environ.get("ACCEL_RUN", "build/accel-run"))
    found = [entry for part in (operators, modules, optimizers) for entry in part.run(accel, wanted)]
    accel.close()
    sys.exit(report.show(found, complete=not wanted))


main()
