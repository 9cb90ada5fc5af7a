# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the event source needs beside ansible-rulebook, and what is said where it is missing."""

from __future__ import annotations

import traceback
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary

__all__ = ["LIBRARY_ERROR", "prometheus_client", "required", "web"]

web: Any
prometheus_client: Any

try:
    import prometheus_client
    from aiohttp import web
except ImportError:
    web = prometheus_client = None
    LIBRARY_ERROR: Optional[str] = traceback.format_exc()
else:
    LIBRARY_ERROR = None


def required() -> None:
    if LIBRARY_ERROR:
        raise MissingLibrary("the event source needs the Python libraries aiohttp and prometheus-client", exception=LIBRARY_ERROR)
