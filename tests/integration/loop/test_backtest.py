# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A replay through the playbook: S1, and a controller that is as it was."""

from __future__ import annotations

import json

from alerts import recorded, rewritten
from loop import Controller


def tree(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if "ansible" not in path.parts and "tmp" not in path.parts}


def test_backtest(tmp_path):
    with Controller(tmp_path / "c") as controller:
        executed = tmp_path / "executed"
        canary = "{{ lookup('pipe', 'touch %s') }}" % executed
        recordings, log = tmp_path / "recordings", tmp_path / "kernel.log"
        recordings.mkdir()
        labels = {"node": "bare-1", "gpu_uuid": "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11", "gpu": None, "xid": "79", "pod": canary}
        message = rewritten(recorded("firing-single"), labels, annotations={"xid": None, "summary": canary})
        message["alerts"].append({"status": canary, "labels": {"node": canary}, "startsAt": canary})
        (recordings / "one.json").write_text(json.dumps(message))
        in_a_name = canary.replace(", ", ",")
        log.write_text(f"2026-11-29T20:00:00+00:00 h kernel: NVRM: Xid (PCI:0000:19:00): 13, pid=7, name={in_a_name}, {canary}\n")
        controller.inventory()
        before = tree(tmp_path)

        played = controller.play("backtest", recordings=str(recordings))
        assert played.ok and "quarantine_gpu" in played.output and "1 its status is neither firing nor resolved" in played.output
        played = controller.play("backtest", kernel_log=str(log), node="bare-1")
        assert played.ok and "touch" in played.output, played.output
        assert not executed.exists()
        after = tree(tmp_path)
        assert {path for path in after if after[path] != before.get(path)} <= {
            controller.directory,
            controller.directory / "inventory.json",
        }
        assert not controller.play("backtest").ok
