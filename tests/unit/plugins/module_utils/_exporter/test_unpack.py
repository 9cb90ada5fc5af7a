# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import os
import zipfile

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.unpack import unpacked


def program(path, text):
    with zipfile.ZipFile(path.with_suffix(".new"), "w") as archive:
        archive.writestr("__main__.py", text)
    os.replace(path.with_suffix(".new"), path)
    return str(path)


def test_unpacked_once_and_anew_for_another_program(tmp_path):
    path, cache = tmp_path / "program", tmp_path / "cache"
    (cache / "half-done").mkdir(parents=True)  # by one who died here
    first = unpacked(program(path, "1"), str(cache))
    assert (first / "__main__.py").read_text() == "1" and list(cache.iterdir()) == [first]
    (first / "compiled").touch()
    assert unpacked(str(path), str(cache)) == first and (first / "compiled").exists()
    second = unpacked(program(path, "2"), str(cache))
    assert (second / "__main__.py").read_text() == "2" and list(cache.iterdir()) == [second]


def test_without_room_nothing_is_left_of_it(tmp_path, monkeypatch):
    path, cache = tmp_path / "program", tmp_path / "cache"

    def full(archive, folder):
        (tmp_path / folder / "half").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match="No space"):
        unpacked(program(path, "1"), str(cache))
    assert list(cache.iterdir()) == []
