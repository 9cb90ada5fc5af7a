# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds the simulated libnvidia-ml.so.1: nvml.h as its interface, library.py and what it imports inside (cffi's embedding mode).

It is built once per interpreter into a cache, and every simulated node has a copy: the library finds its node by its own path.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SONAME = "libnvidia-ml.so.1"
HERE = Path(__file__).parent
INSIDE = ("errors", "state", "capabilities", "mig", "core", "calls", "mig_calls", "library")  # in the order of their imports
LIBRARY_SOURCES = ("nvml.h", "build.py", *(f"{name}.py" for name in INSIDE))
ERROR_STRINGS = {
    0: "Success", 1: "Uninitialized", 2: "Invalid Argument", 3: "Not Supported", 4: "Insufficient Permissions", 5: "Already Initialized",
    6: "Not Found", 7: "Insufficient Size", 8: "Insufficient External Power", 9: "Driver Not Loaded", 10: "Timeout", 11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found", 13: "Function Not Found", 14: "Corrupted infoROM", 15: "GPU is lost", 16: "GPU requires restart",
    17: "The operating system has blocked the request.", 18: "RM has detected an NVML/RM version mismatch.", 19: "In use by another client",
    20: "Insufficient Memory", 21: "No data", 23: "Insufficient Resources", 25: "Argument version mismatch", 27: "System is not in ready state",
    28: "No GPUs were found", 29: "Invalid state",
}  # fmt: skip


def default_cache() -> Path:
    return Path(os.environ.get("GPUOPS_CACHE") or Path.home() / ".cache" / "gpuops")


def _key(*sources: str) -> str:
    """Names a build by all that goes into it, the interpreter included."""
    digest = hashlib.sha256(f"{sys.version} {os.path.realpath(sys.executable)} {sysconfig.get_platform()}".encode())
    for source in sources:
        digest.update((HERE / source).read_bytes())
    return digest.hexdigest()[:16]


def _into_cache(target: Path, produce: str, *command: str | Path) -> Path:
    """Run a compiler in a folder of its own and move the result into place: several may build at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        done = subprocess.run([*command, "-o", produce], cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]} could not build {produce}: {done.stderr.strip()[-2000:]}")
        os.replace(Path(scratch) / produce, target)
    return target


def nvml_library(cache: Path) -> Path:
    """The built library for the running interpreter."""
    target = cache / "nvml" / _key(*LIBRARY_SOURCES) / SONAME
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            source = Path(scratch) / "gpusim_nvml.c"
            _emit(source)
            # libpython is not linked: the process that loads the library is the interpreter, and there must be no second one in it.
            flags = ["-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{SONAME}", f"-I{sysconfig.get_path('include')}"]
            _into_cache(target, SONAME, "gcc", *flags, source)
    return target


def holder(cache: Path) -> Path:
    """The built program that stands for a process on a GPU."""
    target = cache / "nvml" / _key("holder.c", "build.py") / "holder"
    return target if target.exists() else _into_cache(target, "holder", "gcc", "-O1", "-Wall", HERE / "holder.c")


def _declarations() -> tuple[list[str], list[str]]:
    """nvml.h without its comments: types, and calls."""
    text = re.sub(r"/\*.*?\*/", "", (HERE / "nvml.h").read_text(encoding="utf-8"), flags=re.DOTALL)
    types: list[str] = []
    calls: list[str] = []
    for line in text.strip().splitlines():
        (calls if line.startswith("nvmlReturn_t nvml") else types).append(line)
    return types, calls


def symbols() -> list[str]:
    return [call.split()[1].partition("(")[0] for call in _declarations()[1]]


def _emit(source: Path) -> None:
    import cffi  # only who builds needs it

    types, calls = _declarations()
    ffi = cffi.FFI()
    ffi.embedding_api("\n".join(types))
    # "Python+C" makes them public symbols under their real names.
    ffi.cdef("\n".join(f'extern "Python+C" {call}' for call in calls))
    ffi.cdef("const char *gpusim_library_path(void);")
    cases = "".join(f'case {code}: return "{text}"; ' for code, text in ERROR_STRINGS.items())
    ffi.set_source(
        "_gpusim_nvml",
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n"
        + "\n".join(types)
        + f"""
        static const char *gpusim_library_path(void) {{ Dl_info info; return dladdr((void *)gpusim_library_path, &info) ? info.dli_fname : ""; }}
        const char *nvmlErrorString(nvmlReturn_t code) {{ switch (code) {{ {cases} default: return "Unknown Error"; }} }}
        """,
    )
    ffi.embedding_init_code(_init_code())
    with contextlib.redirect_stdout(io.StringIO()):  # it tells what it does
        ffi.emit_c_code(str(source))


def _init_code() -> str:
    """A package in memory: the library must not depend on where this checkout is, nor on anything beside it but the state."""
    sources = [(name, (HERE / f"{name}.py").read_text(encoding="utf-8")) for name in INSIDE]
    return f"""
import sys, types
package = types.ModuleType("gpusim_nvml")
package.__path__ = []
sys.modules["gpusim_nvml"] = package
for name, source in {sources!r}:
    module = types.ModuleType("gpusim_nvml." + name)
    module.__package__ = "gpusim_nvml"
    sys.modules[module.__name__] = module
    exec(compile(source, "{SONAME}/" + name + ".py", "exec"), module.__dict__)
"""


def copy(built: Path, target: Path) -> None:
    """Copy by replacing: a running process may have the old file mapped."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(built, temporary)
    os.replace(temporary, target)
