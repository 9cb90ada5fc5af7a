# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import one_less, one_more, request_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want, WantedCompute, WantedInstance
from mig import layout

H200 = model_named("h200-141")
READING = Reading(
    0, "GPU-a", "0000:06:00.0", 0, "NVIDIA H200", DeviceId(0x233510DE), True, H200, layout(H200, "3g.71gb@4 2c@0 1c@2", "1g.18gb@0 -")
)
NO_MIG = replace(READING, model=None, layout=None)
HAVE = (WantedInstance("1g.18gb", 0, ()), WantedInstance("3g.71gb", 4, (WantedCompute(2, 0), WantedCompute(1, 2))))


def asked(reading=READING, **params):
    names = ("layouts", "counts", "instances", "mig_parted", "mig_parted_config", "mig_enabled")
    return request_of({**dict.fromkeys(names), **params})(reading)


def test_each_way_to_say_it():
    assert asked(counts={"3g.71gb": "1"}) == Want(True, (WantedInstance("3g.71gb"),)), "a template's number is a text"
    compute = [{"slices": 2, "start": 0}, {"slices": 1, "start": None}]
    wanted = WantedInstance("3g.71gb", 4, (WantedCompute(2, 0), WantedCompute(1)))
    assert asked(instances=[{"profile": "3g.71gb", "start": 4, "compute": compute}]) == Want(True, (wanted,))
    assert asked(instances=[]) == asked(counts={}) == Want(True)
    assert asked(mig_enabled=False) == Want(False) and asked(mig_enabled=True) == Want(True, HAVE)


def test_of_the_entries_that_name_a_gpu_the_last_counts():
    """As in a file of nvidia-mig-parted, and not one after the other."""

    def entry(**said):
        return {**dict.fromkeys(("counts", "instances", "mig_parted", "mig_parted_config", "mig_enabled")), "gpus": [], **said}

    every, mine, other = entry(counts={}), entry(gpus=["0000:06:00.0"], mig_enabled=False), entry(gpus=["GPU-b"], mig_enabled=True)
    document = {"version": "v1", "mig-configs": {"third": [{"devices": [3], "mig-enabled": True, "mig-devices": {"7g.141gb": 1}}]}}
    third = entry(mig_parted=document, mig_parted_config="third")
    assert asked(layouts=[every, mine, other, third]) == Want(False)
    assert asked(layouts=[mine, every]) == asked(replace(READING, uuid="GPU-c", index=3), layouts=[mine, every, other]) == Want(True)
    assert asked(layouts=[other, third]) is None
    assert asked(replace(READING, index=3), layouts=[mine, third]) == Want(True, (WantedInstance("7g.141gb"),))


def test_a_gpu_without_mig():
    """It falls short of a layout, and not of none."""
    assert asked(NO_MIG, mig_enabled=False) == Want(False)
    document = {
        "version": "v1",
        "mig-configs": {"off": [{"devices": "all", "mig-enabled": False}], "other": [{"devices": [3], "mig-enabled": False}]},
    }
    assert asked(NO_MIG, mig_parted=document, mig_parted_config="off") == Want(False)
    assert asked(NO_MIG, mig_parted=document, mig_parted_config="other") is None
    for params in ({"counts": {}}, {"instances": []}, {"mig_enabled": True}):
        with pytest.raises(Infeasible, match="has no MIG"):
            asked(NO_MIG, **params)


def test_one_more():
    """Beside what is there, which may move only with leave; none where there is one."""
    new = WantedInstance("2g.35gb")
    assert one_more(new, may_move=False)(READING) == Want(True, (*HAVE, new))
    assert one_more(new, may_move=True)(READING) == Want(True, (*(replace(one, start=None) for one in HAVE), new))
    half = WantedInstance("3g.71gb", None, (WantedCompute(1), WantedCompute(2, 0)))
    for there in (half, replace(half, start=4), WantedInstance("1g.18gb", 0, ())):
        assert one_more(there, may_move=False)(READING) == Want(True, HAVE)
    for other in (replace(half, start=0), WantedInstance("3g.71gb"), WantedInstance("1g.18gb")):
        assert one_more(other, may_move=False)(READING) == Want(True, (*HAVE, other))
    assert one_more(new, may_move=False)(replace(READING, layout=Layout(False))) == Want(True, (new,))


def test_one_less():
    assert one_less("3g.71gb", 4)(READING) == Want(None, HAVE[:1])
    assert one_less("3g.71gb", 0)(READING) == Want(None, HAVE)
    assert one_less("3g.71gb", 4)(replace(READING, layout=Layout(False))) == Want(None)
    with pytest.raises(Infeasible, match="has no profile"):
        one_less("3g.40gb", 4)(READING)
