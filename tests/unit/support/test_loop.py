# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A number says little about a process: it may be another's by now."""

from __future__ import annotations

import os
import shutil
import subprocess

from loop import alive


def test_alive(tmp_path):
    program = tmp_path / "nodes" / "bare-1" / "bin" / "train"
    program.parent.mkdir(parents=True)
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        assert alive(process.pid) and not alive(os.getpid())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not alive(process.pid), "nobody has waited for it yet, and it holds nothing any more"
