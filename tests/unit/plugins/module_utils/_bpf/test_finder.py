# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import finder, libraries
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import SymbolMissing
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import REQUIRED
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy, Found, scan
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Two processes with a root of their own; what a file exports is its text."""

    def read(path, functions):
        status = os.stat(path)
        with open(path) as file:
            return Copy(path, status.st_dev, status.st_ino, "ab", dict.fromkeys(file.read().split(), 16))

    monkeypatch.setattr(Copy, "read", read)
    monkeypatch.setattr(libraries, "_PLACES", ("lib/libcuda.so*",))

    def process(pid, mapped, files, namespace):
        folder = tmp_path / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (folder / "root/lib").mkdir(parents=True)
        for name, exports in files.items():
            (folder / "root/lib" / name).write_text(exports)
        lines = [f"7f00-7f01 r-xp 00000000 fe:00 1 {path}\n" for path in mapped]
        (folder / "maps").write_text("".join(lines))
        return folder

    return tmp_path, process


def found_in(proc, pids):
    found = Found()
    scan(proc, pids, REQUIRED, found.add)
    return found


def test_places_and_maps_of_each_namespace(node):
    proc, process = node
    first = process(5, ["/lib/libcuda.so.1", "/gone/libcuda.so.1 (deleted)"], {"libcuda.so.1": " ".join(REQUIRED)}, 1)
    process(6, [], {"libcuda.so.1": "other"}, 2)
    (proc / "6/root/lib/libcuda.so").symlink_to("libcuda.so.1")
    found = found_in(proc, [5, 6, 7])
    assert [(copy.path, copy.pids) for copy in found.copies] == [(f"{first}/root/lib/libcuda.so.1", (5,))]
    assert found.deleted == [{"path": "/gone/libcuda.so.1", "pid": 5}]
    assert [each["path"] for each in found.not_probed] == [f"{proc}/6/root/lib/libcuda.so.1"]


def test_a_mapped_file_that_cannot_be_read_is_told(node):
    proc, process = node
    process(5, ["/lib/libcuda.so.9"], {}, 1)
    assert [each["path"] for each in found_in(proc, [5]).not_probed] == [f"{proc}/5/root/lib/libcuda.so.9"]


def test_the_search_is_done_by_a_child(node):
    proc, process = node
    process(5, [], {"libcuda.so.1": " ".join(REQUIRED)}, 1)
    assert [copy.path for copy in finder.find(ProcFs(str(proc)), StateDir(str(proc / "state")), 20).copies] == [
        f"{proc}/5/root/lib/libcuda.so.1"
    ]


def test_a_search_that_does_not_end_is_no_answer(node, monkeypatch):
    """Links of copies that were not found would be taken away."""
    proc, _process = node
    monkeypatch.setattr(finder, "scan", lambda *_given: 1 / 0)
    with pytest.raises(finder.SearchFailed):
        finder.find(ProcFs(str(proc)), StateDir(str(proc / "state")), 20)


def test_a_named_library_has_to_be_one(tmp_path):
    for name, text in (("none", None), ("text", "cuMemAlloc_v2")):
        if text:
            (tmp_path / name).write_text(text)
        with pytest.raises(SymbolMissing, match="not a library"):
            finder.named([str(tmp_path / name)])
