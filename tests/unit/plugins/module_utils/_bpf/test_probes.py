# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES, wanted

COPY = Copy("/usr/lib/libcuda.so.1", 0xFE00, 42, "ab" * 20, {"cuMemAlloc_v2": 4096, "cuMemFree_v2": 8192})
PROBE = PROBES["cuda_mem"]


def test_what_ends_a_call_or_a_process_is_attached_first():
    assert [link.program for link in wanted(PROBE, [COPY], multi=True, driver_tracepoint=True).values()] == [
        "on_exec",
        "on_exit",
        "leave",
        "enter",
    ]


def test_without_multi_each_function_has_a_link_of_its_own():
    links = wanted(PROBE, [COPY], multi=False, driver_tracepoint=True).values()
    assert [(link.program, link.functions) for link in links if link.copy] == [
        (program, (name,)) for program in ("leave", "enter") for name in ("cuMemAlloc_v2", "cuMemFree_v2")
    ]


def test_the_names_of_links_are_of_one_version_and_one_file():
    names = set(wanted(PROBE, [COPY], multi=True, driver_tracepoint=True))
    assert names.isdisjoint(wanted(replace(PROBE, cookies={**PROBE.cookies, "cuMemNew": 1}), [COPY], multi=True, driver_tracepoint=True))
    other = set(wanted(PROBE, [replace(COPY, inode=43)], multi=True, driver_tracepoint=True))
    assert {name.rsplit("_", 2)[1] for name in names & other} == {"on"}  # the kernel's, which no file has
    assert not [name for name in names if "." in name], "a bpf filesystem takes no dots"


@pytest.mark.parametrize("multi", [True, False])
def test_a_probe_sits_on_its_own_functions_alone_and_on_no_copy_that_has_none(multi):
    both = replace(COPY, sites={**COPY.sites, "cuLaunchKernel": 12288})
    launches = PROBES["cuda_launch"]
    assert {link.functions for link in wanted(launches, [both], multi=multi, driver_tracepoint=False).values()} == {("cuLaunchKernel",)}
    assert wanted(launches, [COPY], multi=multi, driver_tracepoint=False) == {}
    functions = {name for link in wanted(PROBE, [both], multi=multi, driver_tracepoint=False).values() for name in link.functions}
    assert functions == set(COPY.sites)
