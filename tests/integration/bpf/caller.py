# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A process that calls a library as it is told: caller.py LIBRARY. Lines of JSON in, [FUNCTION, ARGUMENT...]; out, the result and what was written.

An argument of null is a place for a result. One that is a list is bytes in memory, and one that is an object {"mapped": [...]} bytes in a file that
is mapped, and in no page of memory before somebody reads them.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile


def mapped(data):
    with tempfile.TemporaryFile() as file:
        file.write(bytes(data))
        file.flush()
        return (ctypes.c_ubyte * len(data)).from_buffer(mmap.mmap(file.fileno(), len(data)))


library = ctypes.CDLL(sys.argv[1])
print(os.getpid(), flush=True)
for line in sys.stdin:
    name, *arguments = json.loads(line)
    places = [ctypes.c_uint64() for each in arguments if each is None]
    free = iter(places)
    passed = [
        ctypes.byref(next(free))
        if each is None
        else (ctypes.c_ubyte * len(each))(*each)
        if isinstance(each, list)
        else mapped(each["mapped"])
        if isinstance(each, dict)
        else ctypes.c_uint64(each)
        for each in arguments
    ]
    result = getattr(library, name)(*passed)
    print(json.dumps([result, *(place.value for place in places)]), flush=True)
