# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes compiled objects as a Python file: embed.py OBJECT..."""

from __future__ import annotations

import base64
import sys
import textwrap
import zlib
from pathlib import Path

HEADER = '''# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The compiled programs of bpf/, written by its Makefile: zlib, then base64."""

from __future__ import annotations

OBJECTS = {'''


def embed(paths: list[Path]) -> str:
    entries = []
    for path in paths:
        text = base64.b64encode(zlib.compress(path.read_bytes(), 9)).decode()
        lines = "\n".join(textwrap.wrap(text, 120))
        entries.append(f'    "{path.stem}": """\n{lines}\n""",')
    return "\n".join([HEADER, *entries, "}\n"])


if __name__ == "__main__":
    sys.stdout.write(embed([Path(name) for name in sys.argv[1:]]))
