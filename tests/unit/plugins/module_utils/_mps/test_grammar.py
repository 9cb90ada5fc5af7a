# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import grammar
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue, NoServer, NotUnderstood

RECORD = json.loads((Path(__file__).parents[4] / "fixtures/mps/h200-580.json").read_text(encoding="utf-8"))
READERS = {
    "get_server_list": grammar.pids_of,
    "get_client_list": grammar.pids_of,
    "get_server_status": grammar.status_of,
    "get_default_active_thread_percentage": grammar.number_of,
    "get_active_thread_percentage": grammar.number_of,
    "get_default_client_priority": grammar.number_of,
    "get_default_device_pinned_mem_limit": grammar.memory_of,
    "ps": grammar.rows_of,
}


def recorded():
    for steps in RECORD["sections"].values():
        for step in steps:
            if step.get("answer") is not None and "\n" not in step["ask"]:
                yield step["ask"], re.sub(r"<[A-Za-z0-9]+>", "1000", step["answer"])


@pytest.mark.parametrize(
    ("ask", "answer"), sorted({(ask, answer) for ask, answer in recorded() if ask.split()[:1] and ask.split()[0] in READERS})
)
def test_every_recorded_answer_is_read(ask, answer):
    reader = READERS[ask.split()[0]]
    if answer.startswith("Server ") and ask.split()[0] != "ps":
        with pytest.raises(NoServer):
            reader(answer)
    else:
        reader(answer)


def test_memory_is_written_so_that_it_comes_back():
    assert [grammar.memory_of(text) for text in ("4G\n", "512M\n", "\n", "17179869183G\n")] == [4096, 512, None, 17592186043392]
    assert [grammar.memory_text(mib) for mib in (4096, 512, None)] == ["4096M", "512M", "0G"]


@pytest.mark.parametrize(
    ("reader", "answer"),
    [
        (grammar.memory_of, "4T"),
        (grammar.number_of, "half\n"),
        (grammar.pids_of, "None yet\n"),
        (grammar.status_of, "no such thing\n"),
        (grammar.rows_of, "646 train\n"),
        (grammar.pids_of, 'Unknown command "get_server_list"\n'),
    ],
)
def test_what_is_not_known_is_not_guessed(reader, answer):
    with pytest.raises(NotUnderstood):
        reader(answer)


def test_a_client_without_a_process_lingers():
    rows = grammar.rows_of(
        "PID ID SERVER DEVICE NAMESPACE COMMAND\n503 5 464 GPU-f09c ? ?\n504 6 464 GPU-f09c 4026531836 /usr/bin/python3\n"
    )
    assert [(row.pid, row.server, row.lingers) for row in rows] == [(503, 464, True), (504, 464, False)]


def test_the_device_has_two_names():
    one = "Default\nDevice Ordinal  PCI IDs  UUID  Name\n0   0000:00.06.00  GPU-1  NVIDIA H200   N/A\n"
    two = one + "1   0000:00.07.00  GPU-2  NVIDIA H200   N/A\n"
    assert grammar.devices_of(two, "GPU-2") == ("1", "GPU-2")
    assert grammar.devices_of(one, "MIG-9") == ("0", "MIG-9"), "the only one is meant, under whichever name it is told"
    with pytest.raises(BadValue):
        grammar.devices_of(two, "GPU-3")
    assert grammar.devices_of(one + "\nServer 7\n" + two, "GPU-1") == ("0", "GPU-1"), "the servers' tables repeat it"
