# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import program
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control, find_program
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import (
    ControlHangs,
    MpsError,
    NoDaemon,
    NoProgram,
    NotUnderstood,
)
from fake_mps import UUID, FakeMps


@pytest.fixture
def control(tmp_path):
    def make(script, **options):
        path = tmp_path / "control"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return Control(str(path), str(tmp_path), **options)

    return make


def test_the_command_comes_by_standard_input_and_the_folder_by_the_environment(control, tmp_path):
    assert (
        control('read line; echo "$line in $CUDA_MPS_PIPE_DIRECTORY, $#"').ask("get_server_list") == f"get_server_list in {tmp_path}, 0\n"
    )


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo Cannot find MPS control daemon process >&2; exit 1", NoDaemon),
        ("echo something else >&2; exit 1", MpsError),
        ("exec sleep 60", ControlHangs),
        ("echo 'Unknown command \"ps\"'", NotUnderstood),
    ],
)
def test_each_failure_has_a_kind(control, script, error):
    with pytest.raises(error) as caught:
        control(script, timeout_seconds=0.2 if error is ControlHangs else 20).ask("ps")
    assert caught.value.kind == error.kind


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(NoProgram):
        find_program("no-such-control")
    with pytest.raises(NoProgram):
        Control(str(tmp_path / "gone"), str(tmp_path)).ask("ps")


def test_a_limit_is_set_under_both_names_of_the_device():
    mps = FakeMps()
    mps.set_defaults({"memory_limit_mib": 4096, "active_thread_percentage": 33.3, "client_priority": 1})
    assert mps.asked == [
        "set_default_device_pinned_mem_limit 0 4096M",
        f"set_default_device_pinned_mem_limit {UUID} 4096M",
        "set_default_active_thread_percentage 33.3",
        "set_default_client_priority 1",
    ]
    assert mps.defaults() == {"memory_limit_mib": 4096, "active_thread_percentage": 33.3, "client_priority": 1}
    mps.ask(f"set_default_device_pinned_mem_limit {UUID} 9G")
    assert mps.defaults()["memory_limit_mib"] != mps.defaults()["memory_limit_mib"], "neither of them"


def test_what_did_not_come_back_as_it_was_sent_is_an_error(monkeypatch):
    mps = FakeMps()
    monkeypatch.setattr(FakeMps, "set_defaults", lambda *_args: None)
    with pytest.raises(MpsError, match="100"):
        program.bring_defaults(mps, {"active_thread_percentage": 50.0})


def test_a_client_that_is_none_is_not_terminated():
    with pytest.raises(MpsError, match="Invalid process 9"):
        FakeMps({7: ("ACTIVE", [8])}).terminate_client(7, 9, 1)


def test_the_units_program_waits_sets_and_opens(control, tmp_path):
    """The daemon answers at the third question; then it has what it was told."""
    state = tmp_path / "state"
    script = f"""
read verb one two
n=$(cat {tmp_path}/n 2>/dev/null); echo $((n + 1)) >{tmp_path}/n
[ "${{n:-0}}" -ge 2 ] || {{ echo Cannot find MPS control daemon process >&2; exit 1; }}
case $verb in
    device_query) echo "0   0000:00.06.00  {UUID}  NVIDIA H200   N/A" ;;
    set_default_device_pinned_mem_limit) echo "$two" >{state} ;;
    get_default_device_pinned_mem_limit) cat {state} 2>/dev/null ;;
    get_default_active_thread_percentage) echo 100.0 ;;
    get_default_client_priority) echo 0 ;;
esac"""
    import json

    pipes = tmp_path / "pipes"
    pipes.mkdir(mode=0o700)
    config = tmp_path / "config.json"
    wanted = {"mps_control": control(script).program, "pipe_directory": str(pipes), "device": UUID}
    config.write_text(json.dumps({**wanted, "settings": {"memory_limit_mib": 512}}))
    said = []
    assert program.main(str(config), said.append) == 0, said
    assert state.read_text() == "512M\n" and pipes.stat().st_mode & 0o777 == 0o755
    pipes.chmod(0o700)
    config.write_text(json.dumps({**wanted, "settings": {"active_thread_percentage": 50.0}}))
    assert program.main(str(config), said.append) == 1 and "50.0" in said[0]
    assert pipes.stat().st_mode & 0o777 == 0o700, "closed, since the limit is not in force"
    assert program.main(str(tmp_path / "none"), said.append) == 1 and "cannot use" in said[1]
