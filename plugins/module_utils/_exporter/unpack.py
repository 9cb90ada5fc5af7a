# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""One file is right to install, but Python compiles what is in it anew at each start. Whoever starts often runs from an unpacked copy.

The copy is in memory: on a disk it could be torn by a power cut, and the node be without a reader from then on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path


def unpacked(program: str, cache: str) -> Path:
    """The program as a folder in `cache`, which has it alone: beside the sources there Python keeps what it has compiled.

    OSError where there is no room for it, and then nothing is left of it.
    """
    found = os.stat(program)
    os.makedirs(cache, mode=0o700, exist_ok=True)
    folder = Path(cache) / f"{found.st_ino}-{found.st_mtime_ns}"
    if not folder.is_dir():
        for old in Path(cache).iterdir():  # an earlier program, or what somebody left who died here
            shutil.rmtree(old)
        new = tempfile.mkdtemp(dir=cache)
        try:
            with zipfile.ZipFile(program) as archive:
                archive.extractall(new)
            os.rename(new, folder)
        except OSError:
            shutil.rmtree(new)
            raise
    return folder
