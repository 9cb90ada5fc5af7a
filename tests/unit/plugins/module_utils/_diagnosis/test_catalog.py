# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What becomes of each code of NVIDIA's catalog, alone on a GPU that is otherwise well, against the catalog's own word."""

from __future__ import annotations

import csv
import re

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.verdict import diagnose
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from gpu_evidence import FIXTURES, POLICY_FILE, ROOT, evidence, gpu, xid

POLICY = load_policy(str(POLICY_FILE))
DRIVERS = {"ours": "none", "no_word_of_the_driver": None}  # column of differences.csv -> what NVML reads as the recovery action

# The decisions that each word comes to in ours; a person's hand is a hold.
NVIDIA = {
    "IGNORE": r"(none|observe)/.*",
    "RESTART_APP": r"(none|observe)/restart_app",
    "RESET_GPU": r"quarantine_gpu/reset_gpu",
    "RESTART_BM": r"quarantine_gpu/reboot_node",
    "RESTART_VM": r"quarantine_gpu/reboot_node",
    "SUPPORT": r"hold/.*",
    "CHECK_MECHANICALS": r"hold/.*",
    "CHECK_UVM": r"hold/.*",
    "UPDATE_SWFW": r"hold/.*",
    "XID_154": r"hold/.*",  # only where the text is missing, which else decides
    "WORKFLOW_XID_45": r"restart Fabric Manager",  # no word of ours
    "WORKFLOW_XID_48": r"quarantine_gpu/reset_gpu",  # alone
    "WORKFLOW_NVLINK_ERR": r"hold/.*",
    "WORKFLOW_NVLINK5_ERR": r"hold/.*",  # by the line's own word, of which there is none here
    "unstated": r".*",  # our choice
}


def table(name):
    with open(FIXTURES / name, newline="") as stream:
        return list(csv.DictReader(stream))


def decided(code, recovery_action="none", text="as the driver prints it"):
    gpus = [gpu(index, recovery_action=recovery_action) for index in range(8)]
    verdict = diagnose(evidence(xid(code, text), gpus=gpus), POLICY)
    return f"{verdict['action']}/{verdict['repair']}"


def agrees(entry, decision):
    return re.fullmatch(NVIDIA[entry["immediate"]], decision) is not None


def test_every_difference_from_nvidia_is_listed_with_its_reason():
    catalog = table("nvidia_actions.csv")
    assert [int(entry["code"]) for entry in catalog] == list(range(1, 174))
    different = {}
    for entry in catalog:
        verdicts = {column: decided(int(entry["code"]), action) for column, action in DRIVERS.items()}
        if not all(agrees(entry, decision) for decision in verdicts.values()):
            different[entry["code"]] = {"nvidia": entry["immediate"], **verdicts}
    listed = table("differences.csv")
    assert different == {entry["code"]: {name: entry[name] for name in ("nvidia", *DRIVERS)} for entry in listed}
    assert all(len(entry["why"]) > 20 for entry in listed)


def test_the_differences_are_in_the_documentation():
    page = (ROOT / "docs" / "xid-policy.md").read_text()
    for entry in table("differences.csv"):
        assert f"| {' | '.join(entry.values())} |" in page


@pytest.mark.parametrize(
    "code", [int(entry["code"]) for entry in table("nvidia_actions.csv") if entry["immediate"] == "WORKFLOW_NVLINK5_ERR"]
)
def test_a_fifth_generation_link_goes_by_the_lines_own_word(code):
    assert [decided(code, text=f"LINK_EVT {word} XC0 i0 Link 09") for word in ("Fatal", "Nonfatal")] == [
        "quarantine_gpu/reset_gpu",
        "observe/none",
    ]
