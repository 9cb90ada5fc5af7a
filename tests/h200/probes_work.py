# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What probes.py watches: programs that use the GPU, step by step, and tell what they themselves know of it.

Each line out is what is true now, in JSON; each line in lets the program go on.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

SIZES = (3 << 20, 20 << 20, 500 << 20, 4 << 30, 512, 1 << 20, 700 << 20)  # small and large blocks; the pool of the driver counts in 512


def step(**told: Any) -> str:
    print(json.dumps(told), flush=True)
    return sys.stdin.readline()


def memory() -> None:
    """PyTorch's allocator, whichever PYTORCH_CUDA_ALLOC_CONF asks for."""
    import torch

    pooled = torch.cuda.get_allocator_backend() == "cudaMallocAsync"

    def tell(what: str) -> None:
        torch.cuda.synchronize()
        own = torch.cuda.memory_allocated() if pooled else torch.cuda.memory_reserved()
        step(what=what, own=own, reserved=torch.cuda.memory_reserved())

    torch.cuda.init()
    torch.cuda.synchronize()
    tell("context")
    held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in SIZES]
    tell("allocated")
    for _round in range(200):
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    tell("200 times 64 MiB and back")
    del held[1::2]
    torch.cuda.empty_cache()
    tell("every second one freed")
    try:
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        tell("16 TiB refused")
    del held
    torch.cuda.empty_cache()
    tell("all freed")
    matrix = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda")
    for _round in range(10):
        matrix = matrix @ matrix
    tell("matrix products")
    for _round in range(100):
        matrix = matrix @ matrix
    tell("100 more")
    del matrix
    gc.collect()
    torch.cuda.empty_cache()
    tell("freed")


def crash() -> None:
    """A wild store."""
    import cupy

    cupy.RawKernel('extern "C" __global__ void crash() { *(volatile int *) 0xdead0000b001ULL = 1; }', "crash")((1,), (32,), ())
    try:
        cupy.cuda.runtime.deviceSynchronize()
        step(error=None)
    except Exception as error:
        step(error=str(error))


def model() -> None:
    """A small LLM of random weights: each line in says how many tokens a sequence gets, and the answer how long that took."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        network = LlamaForCausalLM(config).eval()
        prompt = torch.randint(1000, (8, 32))
    wanted = step(parameters=sum(each.numel() for each in network.parameters()))
    while wanted:
        gc.collect()
        gc.disable()
        tokens = int(wanted)
        began = time.perf_counter()
        with torch.inference_mode():
            network.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        torch.cuda.synchronize()
        wanted = step(seconds=time.perf_counter() - began)


if __name__ == "__main__":
    {"memory": memory, "crash": crash, "model": model}[sys.argv[1]]()
