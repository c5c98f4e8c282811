"""How long `import transformer_jax` takes beyond `import jax, flax.linen`: the median of nine fresh processes.

python benchmarks/import_time.py
"""

import statistics
import subprocess
import sys

CODE = """
import time, jax, flax.linen
start = time.perf_counter()
import transformer_jax
transformer_jax.Transformer
print(time.perf_counter() - start)
"""

if __name__ == "__main__":
    seconds = [float(subprocess.check_output([sys.executable, "-P", "-c", CODE])) for _ in range(9)]
    print(f"import transformer_jax: {statistics.median(seconds) * 1000:.0f} ms beyond jax and flax (median of 9)")
