# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import CopyChanged
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy, Found, Mapped, mapped

COPY = Copy("/usr/lib/libcuda.so.1", 0xFE00, 42, "ab" * 20, {"cuMemAlloc_v2": 4096, "cuMemFree_v2": 8192})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "7f00-7f01 r-xp 00001000 fe:00 42                         /usr/lib/libcuda.so.580.1",
            Mapped(42, "/usr/lib/libcuda.so.580.1", False),
        ),
        ("7f00-7f01 r-xp 00001000 fe:00 42   /opt/a b/libcuda.so (deleted)", Mapped(42, "/opt/a b/libcuda.so", True)),
        ("7f00-7f01 r-xp 00001000 fe:00 42   /usr/lib/libcudart.so.12", None),
        ("7f00-7f01 r-xp 00001000 fe:00 42   /usr/lib/libcuda.so.d/other", None),
        ("7f00-7f01 rw-p 00000000 00:00 0 ", None),
    ],
)
def test_what_is_mapped(line, found):
    assert mapped([f"{line}\n"]) == ({found} if found else set())


def test_a_file_overwritten_in_place_is_another_copy():
    assert COPY.key == "254-0-42-abababababab"
    assert replace(COPY, build_id="cd" * 20).key != COPY.key


@pytest.fixture
def library(tmp_path):
    """A copy in a container's root; any library does."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(
        next(Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line),
        root / "libcuda.so.1",
    )
    return Copy.read(f"{root}/libcuda.so.1", ("malloc", "free"), root=str(root))


def swap(path):
    """For a link to a file of the host with the same contents."""
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def replace_it(path):
    shutil.copy(path, path.with_name("new"))
    path.with_name("new").rename(path)


def write_to_it(path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b"malloc\0", b"mallox\0"))


def test_the_very_file_that_was_found_is_opened_again(library):
    fd = library.open_again(("malloc", "free"))
    assert os.fstat(fd).st_ino == library.inode
    os.close(fd)


@pytest.mark.parametrize("change", [swap, replace_it, write_to_it, Path.unlink])
def test_another_file_in_its_place_is_not(library, change):
    change(Path(library.path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CopyChanged):
        library.open_again(("malloc", "free"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_copy_under_two_paths_is_one():
    found = Found()
    for path, pids in (("/usr/lib/libcuda.so.1", [3]), ("/proc/5/root/usr/lib/libcuda.so.1", [5])):
        found.add({"copy": {**asdict(COPY), "path": path, "pids": pids}})
    assert [(copy.path, copy.pids) for copy in found.copies] == [("/usr/lib/libcuda.so.1", (3, 5))]
