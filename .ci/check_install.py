"""Checks an installed package from another folder: where it is, that it works, and how long its import takes."""

import subprocess
import sys

import numpy as np

import jaxcascade as jc

MOST_SECONDS = 1.5
TIMER = """
import time
import jax
start = time.perf_counter()
import jaxcascade
print(time.perf_counter() - start)
"""

assert "site-packages" in jc.__file__, jc.__file__
assert "matplotlib" not in sys.modules, "matplotlib is imported although nothing was drawn"
seconds = min(
    float(subprocess.run([sys.executable, "-c", TIMER], capture_output=True, text=True, check=True).stdout)
    for _ in range(3)
)
assert seconds < MOST_SECONDS, f"import takes {seconds:.2f} s beyond jax's own, more than {MOST_SECONDS}"
study = jc.compare(jc.queueing.synthetic(), {"rand": jc.queueing.rand()}, num_steps=20, num_seeds=2)
assert np.isfinite(study.final("rand", "regret")).all()
assert subprocess.run(["jaxcascade", "list"], capture_output=True, check=True).stdout
print(f"installed package: works, imported in {seconds:.2f} s beyond jax's own")
