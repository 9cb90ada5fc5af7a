# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions of the role `ebpf_probes` that decide what is attached and what is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.budget import DEFAULT_CPU_PERCENT
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import BY_DEFAULT, PROBES
from expressions import evaluated

ROLE = Path(__file__).resolve().parents[3] / "roles/ebpf_probes"
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
SPEC = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]


def test_the_role_knows_every_probe():
    assert set(VARS["ebpf_probes_all"]) == set(PROBES)
    names = [entry["options"]["ebpf_probes_names"] for entry in SPEC.values()]
    assert all(set(name["choices"]) == set(PROBES) and name["default"] == list(BY_DEFAULT) for name in names)
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert evaluated(defaults["ebpf_probes_names"]) == list(BY_DEFAULT)
    assert evaluated(defaults["ebpf_probes_launch_cpu_percent"]) == DEFAULT_CPU_PERCENT


@pytest.mark.parametrize(
    "names, state, wanted",
    [
        (["gpu_xid"], "present", ["gpu_xid"]),
        ([], "present", []),
        (["gpu_xid"], "absent", []),
    ],
)
def test_what_is_wanted_no_more_goes(names, state, wanted):
    assert evaluated(VARS["ebpf_probes_wanted"], ebpf_probes_names=names, ebpf_probes_state=state) == wanted
    gone = evaluated(VARS["ebpf_probes_unwanted"], ebpf_probes_all=VARS["ebpf_probes_all"], ebpf_probes_wanted=wanted)
    assert set(gone) == set(PROBES) - set(wanted)


@pytest.mark.parametrize(
    "found, booted, start, starts",
    [(3, True, True, True), (3, False, True, False), (3, True, False, False), pytest.param(2, True, True, False, id="in check mode")],
)
def test_the_timer_is_started_where_systemd_runs_and_the_units_are_there(found, booted, start, starts):
    units = VARS["ebpf_probes_units"]
    told = {"results": [{"item": unit, "stat": {"exists": number < found}} for number, unit in enumerate(units)]}
    installed = evaluated(VARS["ebpf_probes_installed"], ebpf_probes_found=told)
    assert installed == list(units)[:found]
    known = {"ebpf_probes_units": units, "ebpf_probes_systemd": {"stat": {"exists": booted}}, "ebpf_probes_start": start}
    assert evaluated(VARS["ebpf_probes_may_start"], ebpf_probes_installed=installed, **known) is starts
