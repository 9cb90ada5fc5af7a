# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""libbpf by ctypes: loading an object (its offsets are fitted to this kernel) and, on kernels before 6.6, attaching it."""

from __future__ import annotations

import ctypes
import errno
import os
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import OtherLayout, ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary

_NAME = "libbpf.so.1"
_WARNING = 0
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result first
    "bpf_object__open_mem": (_POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    "bpf_object__load": (_INT, _POINTER),
    "bpf_object__close": (None, _POINTER),
    "bpf_object__next_map": (_POINTER, _POINTER, _POINTER),
    "bpf_object__find_program_by_name": (_POINTER, _POINTER, _TEXT),
    "bpf_map__name": (_TEXT, _POINTER),
    "bpf_map__set_pin_path": (_INT, _POINTER, _TEXT),
    "bpf_map__set_max_entries": (_INT, _POINTER, ctypes.c_uint32),
    "bpf_program__set_expected_attach_type": (_INT, _POINTER, _INT),
    "bpf_program__fd": (_INT, _POINTER),
    "bpf_program__attach_uprobe_opts": (_POINTER, _POINTER, _INT, _TEXT, ctypes.c_size_t, _POINTER),
    "bpf_link__pin": (_INT, _POINTER, _TEXT),
    "bpf_link__destroy": (_INT, _POINTER),
    "libbpf_set_print": (_POINTER, _PRINT),
}


class _UprobeOptions(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("ref_ctr_offset", ctypes.c_size_t),
        ("bpf_cookie", ctypes.c_uint64),
        ("retprobe", ctypes.c_bool),
        ("func_name", ctypes.c_char_p),
    ]


def require() -> None:
    """Raises where the library is missing."""
    _library()


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_NAME, use_errno=True)
    except OSError as error:
        raise MissingLibrary(f"{_NAME} is not on the node: {error}", exception=traceback.format_exc()) from error
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class LoadedObject:
    """An object whose maps are pinned in a folder: those that are there already are taken over with what they count."""

    def __init__(self, image: bytes, maps_dir: str, attach_types: Mapping[str, int], entries: Mapping[str, int]) -> None:
        self._library = _library()
        self._said: list[str] = []
        self._print = _PRINT(self._keep)  # kept alive as long as the object
        self._library.libbpf_set_print(self._print)
        self._object = self._library.bpf_object__open_mem(image, len(image), None)
        if not self._object:
            raise self._error("open the object", ctypes.get_errno())
        try:
            for name, attach_type in attach_types.items():
                self._library.bpf_program__set_expected_attach_type(self._program(name), attach_type)
            self._load(maps_dir, entries)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LoadedObject:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._object:
            self._library.bpf_object__close(self._object)
            self._object = None
        self._library.libbpf_set_print(_PRINT())

    def program_fd(self, name: str) -> int:
        return int(self._library.bpf_program__fd(self._program(name)))

    def attach_function(self, program: str, path: str, offset: int, cookie: int, *, returns: bool, pin: str) -> None:
        """One function by a perf event, which is what kernels before 6.6 have."""
        options = _UprobeOptions(ctypes.sizeof(_UprobeOptions), 0, cookie, returns, None)
        link = self._library.bpf_program__attach_uprobe_opts(self._program(program), -1, os.fsencode(path), offset, ctypes.byref(options))
        if not link:
            raise self._error("attach to a function of a library", ctypes.get_errno())
        try:
            code = self._library.bpf_link__pin(link, os.fsencode(pin))
            if code:
                raise self._error(f"pin {pin}", -code)
        finally:
            self._library.bpf_link__destroy(link)

    def _load(self, maps_dir: str, entries: Mapping[str, int]) -> None:
        there = os.path.isdir(maps_dir) and bool(os.listdir(maps_dir))
        each = self._library.bpf_object__next_map(self._object, None)
        while each:
            name = self._library.bpf_map__name(each).decode()
            if name in entries:
                self._library.bpf_map__set_max_entries(each, entries[name])
            self._library.bpf_map__set_pin_path(each, os.fsencode(os.path.join(maps_dir, name)))
            each = self._library.bpf_object__next_map(self._object, each)
        code = self._library.bpf_object__load(self._object)
        if code == -errno.EINVAL and there and any("parameter mismatch" in line for line in self._said):
            raise OtherLayout(f"the maps in {maps_dir} are of another version or size; state=restarted begins anew", said=self._said)
        if code:
            raise self._error("load the object", -code)

    def _program(self, name: str) -> Any:
        return self._library.bpf_object__find_program_by_name(self._object, name.encode())

    def _error(self, what: str, code: int) -> ProbeError:
        return ProbeError(f"libbpf cannot {what}: {os.strerror(code)}", said=self._said[-20:])

    def _keep(self, level: int, form: bytes, arguments: int) -> int:
        if level == _WARNING:
            buffer = ctypes.create_string_buffer(2048)
            ctypes.CDLL(None).vsnprintf(buffer, ctypes.c_size_t(len(buffer)), form, ctypes.c_void_p(arguments))
            self._said.append(buffer.value.decode(errors="replace").rstrip())
        return 0
