# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The settings of the NVIDIA Container Toolkit that decide who gets which GPU.

Its file is TOML, which Python reads by itself from 3.11 on; of the nodes' Pythons most are older. These settings are each one word on a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional, Union

Value = Union[bool, str]
_TABLE = re.compile(r"^\[([^\[\]]+)\]\s*(?:#.*)?$")
_SETTING = re.compile(r"""^"?([\w-]+)"?\s*=\s*(?:(true|false)|"([^"]*)"|'([^']*)')\s*(?:#.*)?$""")
ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
DEFAULTS: Mapping[str, Value] = {
    ENVVAR: True,
    MOUNTS: False,
    "nvidia-container-cli.no-cgroups": False,
    "nvidia-container-runtime.mode": "auto",
    "features.allow-cuda-compat-libs-from-container": False,
}


def parse(text: str) -> dict[str, Value]:
    """What is in force: of what the file does not set, the toolkit's own default."""
    found = dict(DEFAULTS)
    table = ""
    for line in map(str.strip, text.splitlines()):
        head = _TABLE.match(line)
        if head:
            table = head.group(1).strip() + "."
            continue
        setting = _SETTING.match(line)
        name = table + setting.group(1) if setting else ""
        if setting and name in DEFAULTS:
            found[name] = _value(setting.group(2), setting.group(3), setting.group(4))
    return found


def _value(word: Optional[str], double: Optional[str], single: Optional[str]) -> Value:
    if word is not None:
        return word == "true"
    return double if double is not None else str(single)
