# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import programs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import PROGRAM, Watchdog


def test_its_status_and_its_words():
    told = []
    assert programs.run(["/bin/sh", "-c", "echo well; echo or not >&2; exit 3"], told.append) == (3, "well\nor not")
    assert [list(one) for one in told] == [[PROGRAM]]


def test_one_that_is_late_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run(["/bin/sleep", "60"], lambda _item: None, 0.1)


def test_one_dies_with_the_child_that_runs_it(tmp_path):
    """The child is killed for being late; its program would else go on resetting a GPU beside the next one."""
    command = ["/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"]
    answers, abandoned = Watchdog(StateDir(str(tmp_path)), 1.5).collect({"mig": lambda emit: programs.run(command, emit)})
    assert answers["mig"].why == "did not answer within 1.5 s" and answers["mig"].items == [] and abandoned == []
    found = ProcFs("/proc").process(int((tmp_path / "pid").read_text()))
    assert found is None or found.state == "Z"


def test_s20_one_that_outlives_it_is_written_down_and_no_second_child_started(tmp_path):
    """As one in the driver does."""
    stubborn = subprocess.Popen(["/bin/sleep", "60"])
    try:
        ticks = ProcFs("/proc").process(stubborn.pid).start_ticks
        tell = {"mig": lambda emit: emit({PROGRAM: [stubborn.pid, ticks]})}
        _answers, abandoned = Watchdog(StateDir(str(tmp_path)), 0.5).collect(tell)
        assert [(one["source"], one["pid"]) for one in abandoned] == [("mig", stubborn.pid)]
        again, _abandoned = Watchdog(StateDir(str(tmp_path)), 0.5).collect({"mig": lambda emit: os.abort()})
        assert again["mig"].why.startswith(f"an earlier reader, pid {stubborn.pid}, hangs")
    finally:
        stubborn.kill()
        stubborn.wait()
