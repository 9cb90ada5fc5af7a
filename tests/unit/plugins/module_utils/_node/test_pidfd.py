# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import pidfd


def test_exactly_the_process_that_was_looked_at():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    descriptor = pidfd.open_pid(process.pid)
    assert pidfd.send(descriptor, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert not pidfd.send(descriptor, signal.SIGTERM), "it is gone, and its pid may be another's"
    os.close(descriptor)


def test_no_such_process():
    assert pidfd.open_pid(999999999) is None


def test_other_errors_are_not_hidden():
    with pytest.raises(OSError, match="Bad file descriptor"):
        pidfd.send(999, signal.SIGTERM)


def test_a_kernel_without(monkeypatch):
    monkeypatch.setattr(pidfd, "_PIDFD_OPEN", 100_000)
    with pytest.raises(pidfd.PidfdUnavailable, match="no pidfd"):
        pidfd.open_pid(os.getpid())
    assert errno.ENOSYS
