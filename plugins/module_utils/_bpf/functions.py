# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The functions of libcuda that begin or end memory, and what each does. The numbers are those of bpf/gpuops.h."""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    ALLOCATE = 1
    ALLOCATE_PITCH = 2
    ALLOCATE_MANAGED = 3
    ALLOCATE_HOST = 4
    ALLOCATE_ASYNC = 5
    FREE = 6
    HANDLE_CREATE = 7
    HANDLE_IMPORT = 8
    HANDLE_RETAIN = 9
    HANDLE_RELEASE = 10
    MAP = 11
    UNMAP = 12
    POINTER_IMPORT = 13
    CONTEXT_CREATE = 14
    CONTEXT_SET = 15
    CONTEXT_PUSH = 16
    CONTEXT_POP = 17
    CONTEXT_DESTROY = 18
    PRIMARY_RETAIN = 19
    PRIMARY_RELEASE = 20
    PRIMARY_RESET = 21


ALLOCATING = (
    Operation.ALLOCATE,
    Operation.ALLOCATE_PITCH,
    Operation.ALLOCATE_MANAGED,
    Operation.ALLOCATE_HOST,
    Operation.ALLOCATE_ASYNC,
    Operation.HANDLE_CREATE,
)
NARROW = 0x100

_BY_OPERATION: dict[Operation, tuple[str, ...]] = {
    Operation.ALLOCATE: ("cuMemAlloc_v2",),
    Operation.ALLOCATE_PITCH: ("cuMemAllocPitch_v2",),
    Operation.ALLOCATE_MANAGED: ("cuMemAllocManaged",),
    Operation.ALLOCATE_HOST: ("cuMemAllocHost_v2", "cuMemHostAlloc"),
    Operation.ALLOCATE_ASYNC: ("cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"),
    Operation.FREE: ("cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemFreeHost", "cuIpcCloseMemHandle"),
    Operation.HANDLE_CREATE: ("cuMemCreate",),
    Operation.HANDLE_IMPORT: ("cuMemImportFromShareableHandle",),
    Operation.HANDLE_RETAIN: ("cuMemRetainAllocationHandle",),
    Operation.HANDLE_RELEASE: ("cuMemRelease",),
    Operation.MAP: ("cuMemMap",),
    Operation.UNMAP: ("cuMemUnmap",),
    Operation.POINTER_IMPORT: ("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuMemPoolImportPointer"),
    Operation.CONTEXT_CREATE: ("cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4"),
    Operation.CONTEXT_SET: ("cuCtxSetCurrent",),
    Operation.CONTEXT_PUSH: ("cuCtxPushCurrent", "cuCtxPushCurrent_v2"),
    Operation.CONTEXT_POP: ("cuCtxPopCurrent", "cuCtxPopCurrent_v2"),
    Operation.CONTEXT_DESTROY: ("cuCtxDestroy", "cuCtxDestroy_v2"),
    Operation.PRIMARY_RETAIN: ("cuDevicePrimaryCtxRetain",),
    Operation.PRIMARY_RELEASE: ("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"),
    Operation.PRIMARY_RESET: ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"),
}
_NARROW_BY_OPERATION: dict[Operation, tuple[str, ...]] = {
    Operation.ALLOCATE: ("cuMemAlloc",),
    Operation.ALLOCATE_PITCH: ("cuMemAllocPitch",),
    Operation.FREE: ("cuMemFree",),
}

COOKIES: dict[str, int] = {
    **{name: int(operation) for operation, names in _BY_OPERATION.items() for name in names},
    **{name: operation | NARROW for operation, names in _NARROW_BY_OPERATION.items() for name in names},
}
REQUIRED = ("cuMemAlloc_v2", "cuMemFree_v2")  # every libcuda since CUDA 3.2 has them; a file without them is none
