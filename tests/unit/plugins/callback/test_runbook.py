# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.remediation.plugins.callback.runbook import CallbackModule


@pytest.fixture
def shown(monkeypatch):
    """A callback, and the lines that it shows."""
    callback, lines = CallbackModule(), []
    monkeypatch.setattr(callback, "_display", SimpleNamespace(display=lambda text, color=None: lines.append(text), verbosity=0))
    return callback, lines


def result(action, **answer):
    task = SimpleNamespace(action=action, get_name=lambda include_role_fqcn=True: "gpuops.remediation.incident : Show it")
    return SimpleNamespace(_task=task, _result=answer, _host=SimpleNamespace(name="gpu-1"))


def test_what_a_kernel_log_said_does_not_steer_the_terminal(shown):
    """A process may have any name, and the driver prints it."""
    callback, lines = shown
    callback.v2_runner_on_ok(result("ansible.builtin.debug", msg="why\tXid 13 (\x1b]0;owned\x07\x9b2Jtrain)\nnext"))
    callback.v2_runner_on_failed(result("gpuops.remediation.incident", msg="\x1b[2J"))
    assert lines[0] == "why\tXid 13 (\ufffd]0;owned\ufffd\ufffd2Jtrain)\nnext"
    assert lines[1].endswith("failed   Show it: \ufffd[2J")


def test_an_item_that_failed_says_why(shown):
    callback, lines = shown
    callback.v2_runner_item_on_failed(result("gpuops.remediation.incident", msg="the ledger cannot be used"))
    assert lines[0].endswith("failed   Show it: the ledger cannot be used")
