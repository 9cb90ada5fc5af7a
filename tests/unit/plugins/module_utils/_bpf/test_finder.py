# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import files, finder, libraries
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import SymbolMissing
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import REQUIRED
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy, Found, scan
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Two processes with a root of their own; what a file exports is its text."""

    def of(fd, path, functions, root):
        status = os.fstat(fd)
        return Copy(path, status.st_dev, status.st_ino, "ab", dict.fromkeys(os.pread(fd, 4096, 0).decode().split(), 16), root=root)

    monkeypatch.setattr(Copy, "of", of)
    monkeypatch.setattr(libraries, "_PLACES", ("lib/libcuda.so*",))

    def process(pid, mapped, files, namespace):
        folder = tmp_path / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (folder / "root/lib").mkdir(parents=True)
        for name, exports in files.items():
            (folder / "root/lib" / name).write_text(exports)
        lines = [f"7f00-7f01 r-xp 00000000 fe:00 {77 if 'deleted' in path else 76} {path}\n" for path in mapped]
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
    assert found.in_use == {77}, "an inode alone would keep the links of an image's earlier containers"
    assert [each["path"] for each in found.not_probed] == [f"{proc}/6/root/lib/libcuda.so.1"]


def test_what_a_container_has_mapped_from_a_volume_is_left_alone(node, monkeypatch):
    """Not so on the host, in a usual place, or where a usual place has the same file."""
    proc, process = node
    exports = {"libcuda.so.1": " ".join(REQUIRED)}
    for pid, namespace in ((1, 1), (5, 1), (6, 2), (7, 3)):
        root = process(pid, ["/data/libcuda.so.1"], exports if pid == 7 else {}, namespace) / "root"
        (root / "data").mkdir()
        if pid == 7:
            os.link(root / "lib/libcuda.so.1", root / "data/libcuda.so.1")
        else:
            (root / "data/libcuda.so.1").write_text(exports["libcuda.so.1"])
    monkeypatch.setattr(files, "mount_of", lambda fd: "volume" if "data" in os.readlink(f"/proc/self/fd/{fd}").split("/") else "root")
    found = found_in(proc, [1, 5, 6, 7])
    assert {pid for copy in found.copies for pid in copy.pids} == {1, 5, 7}
    assert [(each["path"], "volume" in each["why"]) for each in found.not_probed] == [(f"{proc}/6/root/data/libcuda.so.1", True)]


def test_a_file_that_cannot_be_read_is_tried_again_and_keeps_what_it_has(node, monkeypatch):
    proc, process = node
    inode = (process(5, ["/lib/libcuda.so.1"], {"libcuda.so.1": " ".join(REQUIRED)}, 1) / "root/lib/libcuda.so.1").stat().st_ino
    real, failures = Copy.of, iter([OSError("input/output error")])

    def of(*given):
        for failure in failures:
            raise failure
        return real(*given)

    monkeypatch.setattr(Copy, "of", of)
    found = found_in(proc, [5])
    assert inode in found.in_use and len(found.not_probed) == 1
    assert [copy.inode for copy in found.copies] == [inode]


def test_a_mapped_file_that_cannot_be_read_is_told(node):
    proc, process = node
    process(5, ["/lib/libcuda.so.9"], {}, 1)
    found = found_in(proc, [5])
    assert [each["path"] for each in found.not_probed] == [f"{proc}/5/root/lib/libcuda.so.9"]
    assert found.in_use == {76}


def test_whatever_a_container_puts_in_the_place_is_told_and_the_rest_found(node, tmp_path):
    """A pipe would block whoever opens it, a device may act, and a link out of the root leads to a file of the host."""
    proc, process = node
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "libcuda.so.1").write_text(" ".join(REQUIRED))
    good = process(5, ["/lib/libcuda.so.1"], {"libcuda.so.1": " ".join(REQUIRED)}, 1)
    pipe = process(6, ["/lib/libcuda.so.1"], {}, 2) / "root/lib/libcuda.so.1"
    os.mkfifo(pipe)
    link = process(7, ["/lib/libcuda.so.1"], {}, 3) / "root/lib/libcuda.so.1"
    link.symlink_to(outside / "libcuda.so.1")
    folder = process(8, ["/lib/libcuda.so.1"], {}, 4) / "root/lib"
    folder.rmdir()
    folder.symlink_to(outside)
    found = found_in(proc, [5, 6, 7, 8])
    assert [copy.path for copy in found.copies] == [f"{good}/root/lib/libcuda.so.1"]
    assert {each["path"]: each["why"].split("]")[1] for each in found.not_probed} == {
        str(pipe): " not a regular file: '/lib/libcuda.so.1'",
        str(link): " not a regular file: '/lib/libcuda.so.1'",
        f"{folder}/libcuda.so.1": " No such file or directory: '/lib/libcuda.so.1'",
    }


def test_a_folder_in_a_container_is_searched_in_its_own_root(node):
    proc, process = node
    root = process(5, [], {"libcuda.so.1": " ".join(REQUIRED)}, 1) / "root"
    (root / "lib").rename(root / "elsewhere")
    (root / "lib").symlink_to("/elsewhere")
    assert [copy.path for copy in found_in(proc, [5]).copies] == [f"{root}/lib/libcuda.so.1"]


def test_the_search_is_done_by_a_child(node):
    proc, process = node
    process(5, [], {"libcuda.so.1": " ".join(REQUIRED)}, 1)
    assert [copy.path for copy in finder.find(ProcFs(str(proc)), StateDir(str(proc / "state")), 20).copies] == [
        f"{proc}/5/root/lib/libcuda.so.1"
    ]


def test_the_search_has_only_so_much_memory(node, monkeypatch):
    proc, _process = node
    monkeypatch.setattr(finder, "scan", lambda *_given: bytearray(1 << 30))
    with pytest.raises(finder.SearchFailed, match="MemoryError"):
        finder.find(ProcFs(str(proc)), StateDir(str(proc / "state")), 20)


def test_a_search_that_does_not_end_is_no_answer(node, monkeypatch):
    """Links of copies that were not found would be taken away."""
    proc, _process = node
    monkeypatch.setattr(finder, "scan", lambda *_given: 1 / 0)
    with pytest.raises(finder.SearchFailed, match="on the host"):
        finder.find(ProcFs(str(proc)), StateDir(str(proc / "state")), 20)


def test_a_search_that_hangs_tells_where(node):
    proc, process = node
    maps = process(5, [], {}, 1) / "maps"
    maps.unlink()
    os.mkfifo(maps)
    with pytest.raises(finder.SearchFailed, match="at pid 5: did not answer"):
        finder.find(ProcFs(str(proc)), StateDir(str(proc / "state")), 1)


def test_a_named_library_has_to_be_one(tmp_path):
    for name, text in (("none", None), ("text", "cuMemAlloc_v2")):
        if text:
            (tmp_path / name).write_text(text)
        with pytest.raises(SymbolMissing, match="not a library"):
            finder.named([str(tmp_path / name)])
