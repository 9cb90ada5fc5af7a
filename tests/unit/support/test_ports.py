# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nobody is given the port of another, though nothing listens there yet."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import ports
import pytest


def in_another_process(port):
    command = [sys.executable, "-c", f"from ports import free_port; print(free_port([{port}]))"]
    return subprocess.run(command, cwd=Path(ports.__file__).parent, capture_output=True, text=True, check=False)


def test_the_kernel_gives_it_to_nobody():
    with socket.create_server(("127.0.0.1", 0)) as any_of:
        assert any_of.getsockname()[1] not in ports.ports()
    assert ports.free_port() in ports.ports()


def test_nobody_else_is_given_it():
    port = ports.free_port()
    with pytest.raises(RuntimeError, match="no port is free"):
        ports.free_port([port])
    assert "no port is free" in in_another_process(port).stderr


def test_a_process_that_ends_gives_it_back():
    port = ports.free_port()
    ports._claims.pop().close()
    assert in_another_process(port).stdout == f"{port}\n"
    assert ports.free_port([port]) == port


def test_one_where_somebody_listens_is_left_out():
    port = ports.free_port()
    ports._claims.pop().close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(RuntimeError, match="no port is free"):
        ports.free_port([port])
