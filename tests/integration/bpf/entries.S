/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The exported functions, with the first instructions that libcuda has: THUNK as driver 535, else as driver 580. */
.data
gate: .long 0
.text
.macro entry name
.globl \name
.type \name, @function
.balign 32
#ifdef THUNK
\name: cmpl $0x321cba00, gate(%rip)
    je 1f
    jmp impl_\name@PLT
    .balign 8
1:  jmp impl_\name@PLT
#else
\name: push %rbp
    mov %rsp, %rbp
    push %r12
    sub $8, %rsp
    cmpl $0x321cba00, gate(%rip)
    call impl_\name@PLT
    add $8, %rsp
    pop %r12
    pop %rbp
    ret
#endif
.size \name, . - \name
.endm

entry cuMemAlloc_v2
entry cuMemAlloc
entry cuMemAllocManaged
entry cuMemAllocAsync
entry cuMemAllocFromPoolAsync_ptsz
entry cuMemHostAlloc
entry cuMemAllocPitch_v2
entry cuMemFree_v2
entry cuMemFreeAsync
entry cuMemFreeHost
entry cuMemCreate
entry cuMemRelease
entry cuMemMap
entry cuMemUnmap
entry cuMemRetainAllocationHandle
entry cuCtxCreate_v2
entry cuCtxSetCurrent
entry cuCtxPushCurrent_v2
entry cuCtxPopCurrent_v2
entry cuCtxDestroy_v2
entry cuDevicePrimaryCtxRetain
entry cuDevicePrimaryCtxRelease_v2
entry cuDevicePrimaryCtxReset_v2
entry cuIpcOpenMemHandle_v2
entry cuIpcCloseMemHandle
entry cuLaunchKernel
entry cuLaunchKernelEx_ptsz
entry cuLaunchCooperativeKernel
entry cuGraphLaunch
.section .note.GNU-stack, "", @progbits
