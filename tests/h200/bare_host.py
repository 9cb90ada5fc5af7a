# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The loop on a real GPU, by hand: real CUDA processes, the real driver, real cgroups, the playbooks as they ship.

Wants root, a GPU that nobody else uses, cgroup v2, PyTorch, and ansible-core, SQLAlchemy, alembic and jsonschema beside it:

    PYTHONPATH=tests/support ANSIBLE_COLLECTIONS_PATH=... python3 tests/h200/bare_host.py OUTPUT.md

The driver's settings (MIG, compute mode, clocks, persistence) are left as they are and nothing is reset. A real application fault is caused;
a hardware fault cannot be, so its kernel-log line is written to /dev/kmsg, which is where the driver's own would be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alerts
import pynvml

HOLD = """
import time
import torch
x = torch.empty({gib} << 30, dtype=torch.uint8, device='cuda')
torch.cuda.synchronize()
print('ready', flush=True)
time.sleep(900)
"""
CRASH = """
import cupy
cupy.RawKernel('extern "C" __global__ void crash() { *(volatile int *) 0xdead0000b001ULL = 1; }', 'crash')((1,), (32,), ())
try:
    cupy.cuda.runtime.deviceSynchronize()
except Exception as error:
    print(error)
"""


def cgroup_root() -> Path:
    unified = Path("/sys/fs/cgroup/unified")
    return unified if unified.exists() else Path("/sys/fs/cgroup")


@contextmanager
def unit(name: str, program: str) -> Iterator[subprocess.Popen[str]]:
    """A program in a cgroup like that of a systemd unit, made and removed here."""
    leaf = cgroup_root() / "system.slice" / f"{name}.service"
    leaf.mkdir(parents=True)

    def enter() -> None:
        (leaf / "cgroup.procs").write_text(str(os.getpid()))

    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for _attempt in range(50):
            try:
                leaf.rmdir()
                break
            except OSError:
                time.sleep(0.1)


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: list[tuple[str, str]] = []
        pynvml.nvmlInit()
        self.gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid = pynvml.nvmlDeviceGetUUID(self.gpu)
        self.pci = pynvml.nvmlDeviceGetPciInfo(self.gpu).busId.lower()[4:]
        self.variables = {
            "gpuops_ledger_url": f"sqlite:///{directory}/ledger.db",
            "gpuops_orchestrator": "none",
            "gpuops_state_dir": str(directory / "state"),
            "gpuops_cgroup_root": str(cgroup_root()),
        }
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        self.inventory = directory / "inventory.json"
        self.inventory.write_text(json.dumps({"all": {"hosts": {"h200": host}, "vars": self.variables}}))

    def row(self, what: str, seen: object) -> None:
        self.rows.append((what, str(seen)))
        print(f"{what}: {seen}", flush=True)

    def ansible(self, *arguments: str) -> tuple[float, str]:
        began = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-m", "ansible", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            check=False,
        )
        if run.returncode:
            print(run.stdout[-4000:], run.stderr[-2000:], flush=True)
        return time.monotonic() - began, run.stdout

    def play(self, playbook: str, **variables: Any) -> float:
        extra = json.dumps({f"gpuops_{name}": value for name, value in variables.items()})
        return self.ansible("playbook", "-i", str(self.inventory), f"gpuops.remediation.{playbook}", "-e", extra)[0]

    def remediate(self, xid: int) -> tuple[float, dict[str, Any]]:
        labels = {"node": "h200", "gpu_uuid": self.uuid, "gpu": "0", "xid": str(xid)}
        message = alerts.rewritten(alerts.recorded("firing-single"), labels, annotations={"xid": None})
        path = self.directory / f"alert-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(message))
        seconds = self.play("remediate", alert_file=str(path))
        from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger

        ledger = Ledger.open(self.variables["gpuops_ledger_url"], check_mode=True)
        return seconds, ledger.story(ledger.overview(closed=True)["incidents"][0]["id"])

    def memory_used(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self.gpu).used)

    def log(self, text: str) -> None:
        Path("/dev/kmsg").write_text(f"<3>{text}\n")


def stages(incident: dict[str, Any]) -> str:
    return ", ".join(f"{stage['stage']} {stage['outcome']} {stage['seconds']:.1f} s" for stage in incident["timeline"])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuops-h200-") as folder:
        bench = Bench(Path(folder))
        bench.row(
            "GPU, driver, kernel", f"{pynvml.nvmlDeviceGetName(bench.gpu)}, {pynvml.nvmlSystemGetDriverVersion()}, {os.uname().release}"
        )

        seconds, text = bench.ansible("adhoc", "h200", "-i", str(bench.inventory), "-m", "gpuops.remediation.gpu_info", "-a",
                                      f"state_dir={folder}/state cgroup_root={cgroup_root()}")  # fmt: skip
        info = json.loads(text.split("=>", 1)[1])
        [gpu] = info["gpus"]
        bench.row("gpu_info: seconds, missing sources, failed calls", f"{seconds:.1f} s, {info['missing']}, {gpu['errors']}")
        told = {name: gpu[name] for name in ("pci_bus_id", "memory_total_bytes", "ecc", "remapped_rows", "recovery_action", "mig", "lost")}
        bench.row("gpu_info: the GPU", json.dumps(told))

        bench.play("mode", mode="act", who="evidence", why="measured by hand")

        with unit("gpuops-crash", CRASH) as process:
            print(process.communicate(timeout=120)[0])
        seconds, incident = bench.remediate(31)
        bench.row(
            "a real application fault: state, taint or kill, Xids",
            f"{incident['state']}, {incident['changes']}, {incident['verdict']['xids']}",
        )
        bench.row("its reason", incident["verdict"]["reasons"][0])

        bench.log(f"NVRM: Xid (PCI:{bench.pci[:-2]}): 119, Timeout waiting for RPC from GSP (written by a test)")
        holder = subprocess.Popen([sys.executable, "-c", HOLD.format(gib=1)], stdout=subprocess.PIPE, text=True)
        try:
            holder.stdout.readline()
            incident = bench.remediate(119)[1]
            bench.row(
                "a holder in no unit of its own (S10): state, holder",
                f"{incident['state']}, {'alive' if holder.poll() is None else 'dead'}",
            )
            bench.row("why", incident["reason"])
        finally:
            holder.kill()
            holder.wait()

        idle = bench.memory_used()
        with unit("gpuops-train", HOLD.format(gib=40)) as process:
            process.stdout.readline()
            held = bench.memory_used()
            bench.log(f"NVRM: Xid (PCI:{bench.pci[:-2]}): 48, pid={process.pid}, name=python3, DBE (double bit error) (written by a test)")
            seconds, incident = bench.remediate(48)
            status = process.wait(timeout=10)
            bench.row("a hardware fault's line with a CUDA process on the GPU: state", incident["state"])
            bench.row(
                "the holder's end; GPU memory before, held, after (MiB)",
                f"signal {-status}; {idle >> 20}, {held >> 20}, {bench.memory_used() >> 20}",
            )
            bench.row(
                "alert to contained; whole run",
                f"{incident['budget']['spent_seconds']} s of {incident['budget']['seconds']}; {seconds:.1f} s",
            )
            bench.row("its stages", stages(incident))
        bench.play("release", incident_id=incident["id"])
        bench.row("release without a reset", bench_state(bench, incident))

        table = "\n".join(["| what | seen |", "| --- | --- |", *(f"| {what} | {seen.replace('|', '/')} |" for what, seen in bench.rows)])
        Path(sys.argv[1]).write_text(table + "\n")


def bench_state(bench: Bench, incident: dict[str, Any]) -> str:
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger

    return str(Ledger.open(bench.variables["gpuops_ledger_url"], check_mode=True).story(incident["id"])["state"])


if __name__ == "__main__":
    main()
