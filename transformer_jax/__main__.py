"""`python -P -m transformer_jax` is `transformer-jax`.

Without -P, Python imports from the current directory first, before anything here could prevent it: a copy of the
package that lies there, or a file called random.py, is run in place of what is installed.
"""

from transformer_jax.cli import entry

if __name__ == "__main__":
    entry()
