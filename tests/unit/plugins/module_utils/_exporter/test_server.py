# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page's server on loopback, as clients meet it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.server import Server, tls
from cluster import certificate
from cluster.objects import wait_until

PAGE = b"gpuops_nvml_up 1.0\n"


@contextlib.contextmanager
def serving(context=None, **more):
    with Server("127.0.0.1", 0, lambda: PAGE, context, **more) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def get(port, path="/metrics", scheme="http", context=None):
    with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}{path}", timeout=10, context=context) as answer:
        return answer.read(), answer.headers["Content-Type"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    certificate.write(folder / "key.pem", folder / "cert.pem")
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_the_page_and_nothing_else():
    with serving() as port:
        assert get(port) == (PAGE, "text/plain; version=0.0.4; charset=utf-8")
        assert get(port, "/metrics?node=gpu-1")[0] == PAGE
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/")


def closed(connection):
    connection.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        return connection.recv(1) == b""
    return False


def test_clients_that_say_nothing_hold_nobody_up_and_take_no_end():
    """Beyond the limit connections are closed; when the silent ones are gone, there is room again."""
    with serving() as port:
        with contextlib.ExitStack() as silent:

            def refused():
                return closed(silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))

            for _client in range(15):
                silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            assert get(port)[0] == PAGE
            wait_until(refused, "a connection too many", 8)

        def answered():
            with contextlib.suppress(OSError):
                return get(port)[0] == PAGE

        wait_until(answered, "room again")


def trickled(port):
    """How long a client may go on that says one byte after the other."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client, contextlib.suppress(OSError):
        client.sendall(b"\x16\x03\x01\x3f\xff")  # to TLS the head of a long record, to HTTP of a long line
        while time.monotonic() - begun < 20 and not closed(client):
            client.sendall(b"x")
    return time.monotonic() - begun


def test_a_client_that_trickles_is_cut_off(files):
    """With TLS its hands are never shaken; without, its line never ends."""
    for context in (None, tls(*files, "")):
        with serving(context, client_seconds=1.0) as port:
            assert 0.9 < trickled(port) < 10


def test_tls(files):
    with serving(tls(*files, "")) as port, socket.create_connection(("127.0.0.1", port), timeout=10):  # who never shakes hands
        assert get(port, scheme="https", context=ssl.create_default_context(cafile=files[0]))[0] == PAGE
        with pytest.raises(OSError):
            get(port)


def test_tls_with_certificates_of_clients(files):
    with serving(tls(*files, files[0])) as port:
        context = ssl.create_default_context(cafile=files[0])
        with pytest.raises(OSError):
            get(port, scheme="https", context=context)
        context.load_cert_chain(*files)
        assert get(port, scheme="https", context=context)[0] == PAGE


def test_no_tls_without_a_certificate():
    assert tls("", "", "") is None


def test_a_file_that_cannot_be_read_is_named(files):
    certfile, keyfile = files
    for wrong in ("/no/such.pem", __file__):
        for given in ((wrong, keyfile, ""), (certfile, wrong, ""), (certfile, keyfile, wrong)):
            with pytest.raises(OSError, match=wrong):
                tls(*given)
