"""Standard streams that never raise: whatever prints, and whatever the stream is."""

import json
import os
import subprocess
import sys

import pytest

PRINTING = """
import json, logging, os, sys, threading, warnings
from tqdm import tqdm
from transformer_jax.files import output
from transformer_jax.files.progress import counting, tell

output.use_in_this_command()
print("printed", "x" * 100_000)
warnings.warn("warned")
logging.error("logged")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
for _ in tqdm(range(3)):
    tell("told")
output.tell_in_handler("told in a handler")
with open(os.environ["FOUND"], "w") as file:
    failures = [stream.descriptor.failure for stream in (sys.stdout, sys.stderr)]
    json.dump({"errors": [error and error.errno for error in failures], "descriptor": file.fileno()}, file)
"""
TOLD = ("UserWarning: warned", "ERROR:root:logged", "ZeroDivisionError", "3/3", "told\n", "told in a handler\n")


def ended(script, redirections="", **environment):
    """A script that has ended, and what it printed."""
    line = f'exec {sys.executable} -c "$SCRIPT" {redirections}'
    env = {**os.environ, "SCRIPT": script, **environment}
    return subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("redirections", "errors"),
    [
        ("", [None, None]),
        ("<&- >&- 2>&-", [9, 9]),
        (">/dev/full 2>&1", [28, 28]),
        ("> >(head -c 1) 2>&1", [32, 32]),
        ("2>/dev/full", [None, 28]),
    ],
)
def test_nothing_that_prints_raises(tmp_path, redirections, errors):
    """And no file gets the number of a closed stream, to which other libraries may print."""
    done = ended(PRINTING, redirections, FOUND=str(tmp_path / "found"))
    found = json.loads((tmp_path / "found").read_text())
    assert done.returncode == 0 and found["errors"] == errors and found["descriptor"] > 2
    if not errors[0]:
        assert done.stdout == f"printed {'x' * 100_000}\n"
    if not any(errors):
        assert all(text in done.stderr for text in TOLD), done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "utf-16"])
def test_output_is_utf_8_whatever_the_locale(encoding):
    script = "from transformer_jax.files import output; output.use_in_this_command(); print('été 🦜', chr(0xDC80))"
    assert ended(script, PYTHONIOENCODING=encoding).stdout == "été 🦜 \\udc80\n"


def test_a_pipe_that_does_not_block_is_waited_for():
    script = "import os; from transformer_jax.files import output; os.set_blocking(1, False); "
    script += "output.use_in_this_command(); print('x' * 1_000_000)"
    assert ended(script, "| (sleep 0.5; wc -c)").stdout.strip() == "1000001"
