# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import hang
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


@pytest.mark.parametrize("name", ["maps", "cmdline"])
def test_the_process_that_hangs_is_named(tmp_path, name):
    """A pipe that nobody writes to blocks its reader, as the lock would. The one before it ends meanwhile."""
    for pid in (5, 7, 9):
        (tmp_path / str(pid)).mkdir()
        for each in ("maps", "cmdline") if pid != 5 else ():
            (tmp_path / str(pid) / each).touch()
    state = StateDir(str(tmp_path / "state"))
    hang.require_none(ProcFs(str(tmp_path)), state, 20)
    (tmp_path / "7" / name).unlink()
    os.mkfifo(tmp_path / "7" / name)
    with pytest.raises(hang.HungProcess, match="memory map of pid 7 cannot be read") as raised:
        hang.require_none(ProcFs(str(tmp_path)), state, 1)
    assert raised.value.details == {"pid": 7}
