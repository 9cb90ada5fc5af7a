# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import fcntl
import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import statedir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import NotAlone, StateDir, StateDirError


def test_written_whole_and_read_back(tmp_path):
    state = StateDir(str(tmp_path / "new" / "dir"))
    assert state.read("a.json", []) == []
    with state.locked():
        state.write("a.json", {"x": 1})
    assert state.read("a.json", None) == {"x": 1}
    assert os.listdir(state.path) == ["a.json"]
    assert oct(state.path.stat().st_mode & 0o777) == "0o700"


def test_what_is_not_json_is_an_error(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(StateDirError, match="cannot read"):
        StateDir(str(tmp_path)).read("a.json", {})


def test_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(statedir, "_PATIENCE_SECONDS", 0.1)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(StateDirError, match="another process"), StateDir(str(tmp_path)).locked():
        pass
    os.close(fd)
    with StateDir(str(tmp_path)).locked():
        pass


def test_alone_at_one_kind_of_work(tmp_path):
    """The folder can be written meanwhile, and other work done; who is at it is named."""
    state = StateDir(str(tmp_path))
    again = pytest.raises(NotAlone, match=f"pid {os.getpid()}")
    with state.alone("a.lock", 0), state.alone("b.lock", 0), state.locked(), again, state.alone("a.lock", 0.05):
        pass
    with state.alone("a.lock", 0):
        pass


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError, match="cannot use"), StateDir(str(tmp_path / "file")).locked():
        pass
    with pytest.raises(StateDirError, match="cannot write"):
        StateDir(str(tmp_path / "nowhere")).write("a.json", 1)
    with pytest.raises(StateDirError, match="cannot use"), StateDir(str(tmp_path / "file")).alone("a.lock", 0):
        pass
