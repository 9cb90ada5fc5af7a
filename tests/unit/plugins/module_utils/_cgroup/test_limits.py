# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import (
    MAX,
    BadLimit,
    LimitBelowUse,
    State,
    Want,
    changes,
    parse,
    plan,
    predict,
    read_value,
    undo_of,
)

GIB = 1 << 30
UNLIMITED = {
    "memory_max": MAX,
    "memory_high": MAX,
    "memory_low": 0,
    "memory_swap_max": MAX,
    "memory_oom_group": False,
    "cpu_max": "max 100000",
    "cpu_weight": 100,
    "pids_max": MAX,
    "io_max": {},
}


def parsed(name, value):
    return parse({name: value}, 8 * GIB, lambda device: {"/dev/vda": "254:0"}[device])[name]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory_max", "2G", 2 * GIB),
        ("memory_max", "2GiB", 2 * GIB),
        ("memory_max", "2 gb", 2 * GIB),
        ("memory_max", "1.5g", 3 * GIB // 2),
        ("memory_max", "512M", GIB // 2),
        ("memory_high", "1048576", 1 << 20),
        ("memory_low", "4097", 4096),  # the kernel counts whole pages
        ("memory_low", "0", 0),
        ("memory_max", "max", MAX),
        ("memory_max", "50%", 4 * GIB),
        ("memory_swap_max", "100%", 8 * GIB),
        ("cpu_max", "150%", "150000 100000"),
        ("cpu_max", "50000 200000", "50000 200000"),
        ("cpu_max", "50000", "50000 100000"),
        ("cpu_max", "max", "max 100000"),
        ("cpu_max", "max 50000", "max 50000"),
        ("cpu_weight", 10, 10),
        ("pids_max", "4096", 4096),
        ("pids_max", "max", MAX),
        ("memory_oom_group", True, True),
        (
            "io_max",
            [{"device": "/dev/vda", "rbps": "1M", "wbps": None, "riops": "max", "wiops": "100"}],
            {"254:0": {"rbps": 1 << 20, "riops": MAX, "wiops": 100}},
        ),
    ],
)
def test_what_people_write(name, text, value):
    assert parsed(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("memory_max", "lots", "neither bytes, a size"),
        ("memory_max", "-1", "neither bytes, a size"),
        ("memory_max", "2X", "neither bytes, a size"),
        ("memory_max", "32", "leaves nothing to run in"),  # the G was forgotten
        ("memory_max", "101%", "more memory than there is"),
        ("cpu_max", "half", "neither a percentage"),
        ("cpu_max", "0%", "less than the kernel's least"),
        ("cpu_max", "5000 10", "not within 1000 to 1000000"),
        ("cpu_weight", 0, "not within 1 to 10000"),
        ("pids_max", "0", "not within 1"),
        ("pids_max", "10%", "is no number"),
        ("io_max", [{"device": "/dev/vda"}], "nothing is said about /dev/vda"),
        ("io_max", [{"device": "/dev/vda", "wbps": "0"}], "would stop all of it"),
    ],
)
def test_what_is_no_limit(name, text, why):
    with pytest.raises(BadLimit, match=why):
        parsed(name, text)


def test_what_is_not_said_is_not_wanted():
    assert parse({"memory_max": None, "pids_max": "5"}, 0, str) == {"pids_max": 5}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory_max", "max\n", MAX),
        ("memory_max", "4096\n", 4096),
        ("memory_oom_group", "1\n", True),
        ("cpu_max", "max 100000\n", "max 100000"),
        ("io_max", "", {}),
        (
            "io_max",
            "254:0 rbps=1048576 wbps=max riops=max wiops=9\n8:0 rbps=1 wbps=1 riops=1 wiops=1\n",
            {
                "254:0": {"rbps": 1048576, "wbps": MAX, "riops": MAX, "wiops": 9},
                "8:0": {"rbps": 1, "wbps": 1, "riops": 1, "wiops": 1},
            },
        ),
    ],
)
def test_what_the_kernel_says(name, text, value):
    assert read_value(name, text) == value


@pytest.mark.parametrize(
    ("have", "wanted", "differ"),
    [
        pytest.param({}, {"memory_max": GIB}, {"memory_max": GIB}, id="set"),
        pytest.param({"memory_max": GIB}, {"memory_max": GIB}, {}, id="so already"),
        pytest.param({"memory_max": GIB}, {"memory_max": MAX}, {"memory_max": MAX}, id="lifted"),
        pytest.param({"memory_max": None}, {"memory_max": MAX}, {}, id="no file is no limit"),
        pytest.param({"memory_low": None}, {"memory_low": 0}, {}, id="no file protects nothing"),
        pytest.param({"cpu_max": None}, {"cpu_max": "max 50000"}, {}, id="no file leaves all CPUs"),
        pytest.param({"memory_max": None}, {"memory_max": GIB}, {"memory_max": GIB}, id="no file yet"),
        pytest.param({}, {"io_max": {"254:0": {"wbps": MAX}}}, {}, id="a device that has no limit"),
        pytest.param(
            {"io_max": {"254:0": {"rbps": 1, "wbps": 2, "riops": MAX, "wiops": MAX}}},
            {"io_max": {"254:0": {"wbps": 2}, "8:0": {"wbps": 3}}},
            {"io_max": {"8:0": {"wbps": 3}}},
            id="of the devices those that differ",
        ),
    ],
)
def test_what_differs(have, wanted, differ):
    assert changes({**UNLIMITED, **have}, wanted) == differ


def state(used=0, kept=None, **limits):
    usage = {"memory_current": used}
    return State("/a.slice", True, {**UNLIMITED, **limits}, usage, "cgroupfs" if kept is None else "systemd", kept)


def steps(have, wanted, **options):
    return [(step.action, step.before, step.after) for step in plan(have, Want(wanted, **options))]


def test_only_what_differs_is_set_and_can_be_undone():
    want = Want({"memory_max": GIB, "pids_max": 5, "io_max": {"254:0": {"wbps": 7}}})
    have = state(memory_max=GIB, io_max={"8:0": {"rbps": 1, "wbps": MAX, "riops": MAX, "wiops": MAX}})
    planned = plan(have, want)
    [step] = planned
    unlimited = {"device": "254:0", "rbps": MAX, "wbps": MAX, "riops": MAX, "wiops": MAX}
    assert step.after == {"pids_max": 5, "io_max": [{"device": "254:0", "wbps": 7}]}
    assert undo_of(planned) == {"pids_max": MAX, "io_max": [unlimited]}
    after = predict(have, planned, want)
    assert after.limits["io_max"] == {
        "8:0": {"rbps": 1, "wbps": MAX, "riops": MAX, "wiops": MAX},
        "254:0": {"rbps": MAX, "wbps": 7, "riops": MAX, "wiops": MAX},
    }
    assert plan(after, want) == []
    undone = parse(undo_of(planned), 0, str)
    assert predict(after, plan(after, Want(undone)), Want(undone)).limits == have.limits


def test_what_has_no_file_before_is_undone_to_no_limit():
    assert undo_of(plan(state(memory_max=None, cpu_weight=None), Want({"memory_max": GIB, "cpu_weight": 1}))) == {
        "memory_max": MAX,
        "cpu_weight": 100,
    }


@pytest.mark.parametrize("name", ["memory_max", "memory_high"])
def test_s15_a_limit_below_what_is_in_use_is_refused(name):
    with pytest.raises(LimitBelowUse, match=f"{name} {GIB} of /a.slice is below the {GIB + 1} bytes") as refused:
        plan(state(used=GIB + 1), Want({name: GIB}))
    assert refused.value.failure()["limit_bytes"] == GIB
    assert steps(state(used=GIB), {name: GIB}) == [("set", {name: MAX}, {name: GIB})]
    assert steps(state(used=GIB + 1), {name: GIB}, force=True) == [("set", {name: MAX}, {name: GIB})]


def test_s15_what_is_there_already_is_not_refused():
    """It may be over its soft limit, and that is no change of ours."""
    assert steps(state(used=2 * GIB, memory_high=GIB), {"memory_high": GIB}) == []


def test_s15_stepping_down_comes_first_and_goes_for_the_lowest():
    soft = (GIB - GIB // 16) // 4096 * 4096
    assert steps(state(used=3 * GIB), {"memory_max": 2 * GIB, "memory_high": GIB}, step_down=True) == [
        ("step_down", {"memory_high": MAX, "memory_current": 3 * GIB}, {"memory_high": soft, "memory_current": GIB}),
        ("set", {"memory_max": MAX, "memory_high": MAX}, {"memory_max": 2 * GIB, "memory_high": GIB}),
    ]
    assert [step[0] for step in steps(state(used=GIB), {"memory_max": GIB}, step_down=True)] == ["set"], "nothing to step down from"


def test_a_cgroup_is_made_and_removed():
    missing = State("/a.slice", False, {}, {})
    assert [step[0] for step in steps(missing, {"memory_max": GIB}, state="present")] == ["create", "set"]
    want = Want({"memory_max": GIB}, state="present")
    after = predict(missing, plan(missing, want), want)
    assert after.exists and after.show()["limits"]["memory_max"] == GIB
    assert steps(missing, {}, state="absent") == []
    gone = predict(state(), plan(state(), Want({}, state="absent")), Want({}, state="absent"))
    assert not gone.exists and gone.show()["limits"]["memory_max"] is None


@pytest.mark.parametrize(
    ("kept", "options", "writes"),
    [
        pytest.param({"memory_max": "runtime"}, {}, False, id="kept until the next boot"),
        pytest.param({"memory_max": "persistent"}, {}, False, id="kept longer than asked"),
        pytest.param({"memory_max": "runtime"}, {"persistent": True}, True, id="it is to outlive a boot"),
        pytest.param({"memory_max": "persistent"}, {"persistent": True}, False, id="it does"),
        pytest.param({}, {}, True, id="written past systemd, which would take it back"),
        pytest.param(None, {"persistent": True}, False, id="not systemd's"),
    ],
)
def test_what_systemd_would_forget_is_set_although_it_is_so(kept, options, writes):
    want = Want({"memory_max": GIB}, **options)
    have = state(kept=kept, memory_max=GIB)
    planned = plan(have, want)
    assert bool(planned) is writes
    assert plan(predict(have, planned, want), want) == []


def test_oom_group_is_no_property_of_systemds():
    assert plan(state(kept={}, memory_oom_group=True), Want({"memory_oom_group": True})) == []
