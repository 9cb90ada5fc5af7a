# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MPS on a real GPU, by hand: NVIDIA's control daemon, real CUDA clients, and the modules as they ship. Prints a Markdown table.

    PYTHONPATH=FOLDER_WITH_ANSIBLE python3 tests/h200/mps.py > evidence.md

Wants root, a GPU that nobody else uses, cgroup v2, nvidia-ml-py, and of ansible-core only `ansible/module_utils`. The daemon is started as the unit
does, with the unit's variables and the unit's program, since no systemd is needed here. The compute mode is left as it is, and nothing is reset.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checkout import ROOT, make_importable

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
PTX = b"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 nanoseconds) {
 .reg .u64 %start, %now, %wanted; .reg .pred %again;
 ld.param.u64 %wanted, [nanoseconds];
 mov.u64 %start, %globaltimer;
L: mov.u64 %now, %globaltimer; sub.u64 %now, %now, %start; setp.lt.u64 %again, %now, %wanted; @%again bra L;
 ret; }
.visible .entry crash() {
 .reg .u64 %a; .reg .u32 %v;
 mov.u64 %a, 0xdead0000b001; mov.u32 %v, 1;
 st.global.u32 [%a], %v; ret; }
\0"""


class Cuda:
    """A CUDA program by libcuda alone: it starts in a moment, and names each answer as CUDA does."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.module = ctypes.c_void_p()

    def call(self, function: str, *args: Any) -> str:
        code, name = getattr(self.cuda, function)(*args), ctypes.c_char_p()
        self.cuda.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"?").decode().replace("CUDA_", "").replace("ERROR_", "")

    def connect(self) -> dict[str, Any]:
        answer = self.call("cuInit", 0)
        if answer != "SUCCESS":
            return {"answer": answer}
        device, context, number = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        answer = self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuDeviceGetAttribute", ctypes.byref(number), MULTIPROCESSORS, device)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.call("cuModuleLoadData", ctypes.byref(self.module), PTX)
        return {"answer": answer, "multiprocessors": number.value, "free_mib": free.value >> 20}

    def alloc(self, mib: str) -> dict[str, Any]:
        pointer = ctypes.c_ulonglong()
        return {"answer": self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(int(mib) << 20))}

    def launch(self, kernel: str, milliseconds: str = "0") -> dict[str, Any]:
        function, value = ctypes.c_void_p(), ctypes.c_ulonglong(int(milliseconds) * 1_000_000)
        answer = self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
        if answer == "SUCCESS":
            parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
            answer = self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters if kernel == "spin" else None, None)
        return {"answer": answer}

    def sync(self) -> dict[str, Any]:
        return {"answer": self.call("cuCtxSynchronize")}

    def work(self) -> dict[str, Any]:
        """A kernel of 10 ms to its end."""
        launched = self.launch("spin", "10")
        return self.sync() if launched["answer"] == "SUCCESS" else launched


def obey() -> None:
    """What a client does: an order a line, a JSON answer a line."""
    cuda = Cuda()
    for line in sys.stdin:
        verb, *words = line.split()
        print(json.dumps(getattr(cuda, verb)(*words)), flush=True)


class Client:
    """A client in a cgroup like that of a systemd unit of its own, or, without a name, in ours."""

    def __init__(self, bench: Bench, unit: str | None) -> None:
        self.leaf = bench.cgroups / "system.slice" / f"{unit}.service" if unit else None
        if self.leaf:
            self.leaf.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "client"], env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(bench.pipes)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=self._enter,
        )  # fmt: skip
        self.hello = self("connect")
        self.named = {"pid": self.process.pid, "start_ticks": bench.ticks(self.process.pid)}

    def _enter(self) -> None:
        if self.leaf:
            (self.leaf / "cgroup.procs").write_text(str(os.getpid()))

    def __call__(self, order: str, seconds: float = 30) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            print(order, file=self.process.stdin, flush=True)
        return self.answer(seconds)

    def answer(self, seconds: float) -> dict[str, Any]:
        """What it says next; it says a line at a time and is never ahead of what was read."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return {"answer": f"nothing within {seconds:g} s"}
        try:
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())  # type: ignore[union-attr]
        except ValueError:
            return {"answer": f"ended with {self.process.wait(10)}"}
        return answer

    def says(self, order: str) -> str:
        return str(self(order)["answer"])

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(10)

    def freeze(self, frozen: bool) -> None:
        """And waits until the kernel says so."""
        if not self.leaf:
            raise ValueError("it has no cgroup of its own")
        (self.leaf / "cgroup.freeze").write_text(str(int(frozen)))
        for _attempt in range(100):
            if f"frozen {int(frozen)}" in (self.leaf / "cgroup.events").read_text():
                return
            time.sleep(0.01)

    @property
    def ended(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(1)
        return None


class Bench:
    def __init__(self, folder: Path) -> None:
        from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

        self.uuid = self.smi("uuid")
        self.folder, self.pipes, self.logs = folder, folder / "pipes", folder / "logs"
        unified = Path("/sys/fs/cgroup/unified")
        self.cgroups = unified if unified.exists() else Path("/sys/fs/cgroup")
        self.proc = ProcFs("/proc")
        self.rows: list[tuple[str, str]] = []
        self.clients: list[Client] = []

    @staticmethod
    def smi(*what: str) -> str:
        """By a program: a process that has NVML open cannot use it in the children in which our modules ask it."""
        command = ["nvidia-smi", f"--query-gpu={','.join(what)}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def row(self, what: str, *seen: object) -> None:
        self.rows.append((what, "; ".join(str(one) for one in seen)))
        print(f"{what}: {self.rows[-1][1]}", file=sys.stderr, flush=True)

    def ticks(self, pid: int) -> int | None:
        found = self.proc.process(pid)
        return found.start_ticks if found else None

    def client(self, unit: str | None = None) -> Client:
        self.clients.append(Client(self, unit))
        return self.clients[-1]

    def end_clients(self) -> None:
        for client in self.clients:
            if client.process.poll() is None:
                client.end(signal.SIGTERM)
            for _attempt in range(50):
                with contextlib.suppress(OSError):
                    if client.leaf and client.leaf.exists():
                        client.leaf.rmdir()
                    break
                time.sleep(0.1)
        self.clients = []

    # --- our modules ---

    def module(self, name: str, **params: Any) -> tuple[dict[str, Any], float]:
        import importlib

        from run_module import run_module

        main = importlib.import_module(f"ansible_collections.gpuops.remediation.plugins.modules.{name}").main
        given = {"state_dir": str(self.folder / "state"), "control_timeout_seconds": 3, **params}
        if name != "mps_info":
            given["cgroup_root"] = str(self.cgroups)
        began = time.monotonic()
        answer = run_module(main, **given)
        return answer, time.monotonic() - began

    def daemon(self, **params: Any) -> dict[str, Any]:
        return self.module("mps_daemon", device=self.uuid, managed_by="other", pipe_directory=str(self.pipes), **params)[0]

    def on_clients(self, state: str, **params: Any) -> tuple[dict[str, Any], float]:
        return self.module("mps_client", pipe_directory=str(self.pipes), state=state, **params)

    def info(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.module("mps_info", pipe_directories=[str(self.pipes)])[0]["daemons"][0]
        return answer

    def status(self) -> str:
        found = self.info()
        return ", ".join(one["status"] for one in found["servers"]) or str(found["error"])

    # --- the daemon, as the unit runs it ---

    @contextlib.contextmanager
    def running(self, memory_mib: int) -> Iterator[subprocess.Popen[bytes]]:
        from ansible_collections.gpuops.remediation.plugins.module_utils._mps import control, program, units

        self.pipes.mkdir(mode=0o700)
        self.logs.mkdir()
        mps = control.find_program("nvidia-cuda-mps-control")
        lines = units.variables(self.uuid, str(self.pipes), str(self.logs)).decode().splitlines()
        process = subprocess.Popen([mps, "-f"], env={**os.environ, **dict(line.split("=", 1) for line in lines)}, stdin=subprocess.DEVNULL)
        try:
            config = self.folder / "mps.json"
            settings = {"memory_limit_mib": memory_mib}
            config.write_text(
                json.dumps({"mps_control": mps, "pipe_directory": str(self.pipes), "device": self.uuid, "settings": settings})
            )
            began = time.monotonic()
            status = program.main(str(config), lambda line: print(line, file=sys.stderr))
            self.row("the unit's program: exit status, ms until the limits are read back, mode of the pipes' folder after it",
                     status, f"{(time.monotonic() - began) * 1e3:.0f}", oct(self.pipes.stat().st_mode & 0o777))  # fmt: skip
            yield process
        finally:
            self.end_clients()
            if process.poll() is None:
                process.kill()


def briefly(answer: dict[str, Any]) -> str:
    return str(answer["error_kind"] if answer.get("failed") else f"changed {answer['changed']}").lower()


def values(bench: Bench) -> None:
    before = bench.info()["defaults"]
    asked: list[dict[str, Any]] = [{"memory_limit": text} for text in ("banana", "1.5G", "1T", "4096", "9999G")]
    asked += [{"active_thread_percentage": number} for number in (250, 0)]
    for one in asked:
        bench.row(f"`{next(iter(one.values()))}` asked of the module", briefly(bench.daemon(**one)))
    bench.row("the daemon's defaults after all of them", "as before" if bench.info()["defaults"] == before else "changed")


def limits(bench: Bench) -> None:
    first, neighbour = bench.client("mps-a"), bench.client("mps-b")
    bench.row("limit 4G: free memory that a client sees (MiB)", first.hello["free_mib"])
    bench.row("it takes 3000 MiB, and 3000 MiB more", first.says("alloc 3000"), first.says("alloc 3000"))
    bench.row("its neighbour meanwhile: 3000 MiB, a kernel", neighbour.says("alloc 3000"), neighbour.says("work"))
    third = bench.client("mps-c")
    bench.row("a third process takes 3000 MiB", third.says("alloc 3000"))
    bench.row("GPU memory in use by the three under a limit of 4G each (MiB)", bench.smi("memory.used"))
    told = bench.daemon(tenant={"memory_budget": "8G", "clients": 2})
    bench.row("the module about a budget of 8G for 2 processes", briefly(told), json.dumps(told["tenant"]))
    changed = bench.daemon(memory_limit="8G")
    bench.row("limit 8G on the live server", briefly(changed), json.dumps(changed["seen_by"]))
    bench.row("the same again", briefly(bench.daemon(memory_limit="8G")))
    bench.row("the first client takes 3000 MiB more", first.says("alloc 3000"))
    later = bench.client("mps-d")
    bench.row("a new client: free memory (MiB), takes 6000 MiB", later.hello["free_mib"], later.says("alloc 6000"))
    bench.daemon(active_thread_percentage=25)
    quarter = bench.client("mps-e")
    bench.row("multiprocessors of a client before and after 25 %", later.hello["multiprocessors"], quarter.hello["multiprocessors"])
    for client in (third, later, quarter):
        client.end(signal.SIGTERM)


def termination(bench: Bench) -> None:
    noisy, neighbour = bench.client("mps-noisy"), bench.client("mps-neighbour")
    stray = bench.client()
    refused, _seconds = bench.on_clients("terminated", pids=[stray.named], end_process=True)
    bench.row("end a client that is in no unit of its own", briefly(refused), f"its next kernel {stray.says('work')}")
    noisy("launch spin 4000")
    done, seconds = bench.on_clients("terminated", pids=[noisy.named])
    bench.row("terminate a client with a kernel of 4 s in flight: module, seconds in all", briefly(done), f"{seconds:.3f}")
    bench.row("its next call, its process", noisy.says("sync"), "lives" if noisy.process.poll() is None else "ended")
    bench.row("its neighbour's next kernel, the server", neighbour.says("work"), bench.status())
    again, seconds = bench.on_clients("terminated", pids=[noisy.named])
    bench.row("the same again: module, seconds", briefly(again), f"{seconds:.3f}")
    ended, seconds = bench.on_clients("terminated", pids=[noisy.named], end_process=True)
    bench.row("and its process: module, seconds, its end", briefly(ended), f"{seconds:.3f}", noisy.ended)
    bench.row("its neighbour's next kernel, the server", neighbour.says("work"), bench.status())
    both = bench.client("mps-both")
    both("launch spin 4000")
    done, seconds = bench.on_clients("terminated", pids=[both.named], end_process=True)
    bench.row("both in one run, with a kernel in flight: actions, seconds", [one["action"] for one in done["actions"]], f"{seconds:.3f}")
    bench.row("its neighbour's next kernel, the server", neighbour.says("work"), bench.status())
    bench.end_clients()


def fault(bench: Bench) -> None:
    culprit, victim = bench.client("mps-culprit"), bench.client("mps-victim")
    bench.row(
        "a wild store: the culprit, the victim's next kernel", culprit("launch crash")["answer"], culprit.says("sync"), victim.says("work")
    )
    bench.row("the server; a new client", bench.status(), bench.client("mps-new").hello["answer"])
    refused, _seconds = bench.on_clients("terminated", pids=[victim.named])
    bench.row("terminate the victim then", briefly(refused))
    bench.row("set a limit then", briefly(bench.daemon(memory_limit="4G")))
    done, seconds = bench.on_clients("recovered")
    bench.row("recovered: module, seconds, the two ends", briefly(done), f"{seconds:.3f}", culprit.ended, victim.ended)
    bench.row("the server; a new client's kernel", bench.status(), bench.client("mps-after").says("work"))
    bench.row("recovered again", briefly(bench.on_clients("recovered")[0]))
    killed, witness = bench.client("mps-killed"), bench.client("mps-witness")
    killed("launch spin 2000")
    killed.end()
    bench.row(
        "for comparison, SIGKILL with a kernel in flight: a neighbour's next kernel, the server", witness.says("work"), bench.status()
    )
    done, seconds = bench.on_clients("recovered")
    bench.row("recovered: module, seconds, the server", briefly(done), f"{seconds:.3f}", bench.status())
    bench.end_clients()


def frozen(bench: Bench) -> None:
    """Whether a client that its cgroup's freezer holds, holds its neighbours or the server."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control, find_program
    from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import ControlHangs

    held, neighbour = bench.client("mps-held"), bench.client("mps-beside")
    for what, order in (("idle", None), ("with a kernel of 4 s in flight", "launch spin 4000")):
        if order:
            held(order)
        held.freeze(True)
        began = time.monotonic()
        bench.row(f"a client frozen {what}: its neighbour's next kernel, seconds, the server",
                  neighbour.says("work"), f"{time.monotonic() - began:.2f}", bench.status())  # fmt: skip
        held.freeze(False)
        bench.row("thawed: its own next kernel", held.says("work"))
    held.freeze(True)
    done, seconds = bench.on_clients("terminated", pids=[held.named])
    bench.row("terminate it while it is frozen: module, seconds", briefly(done), f"{seconds:.3f}")
    control = Control(find_program("nvidia-cuda-mps-control"), str(bench.pipes), 2)
    [server] = control.servers()
    try:
        control.terminate_client(server, held.process.pid, 2)
        told = "answered"
    except ControlHangs:
        told = "not answered within 2 s"
    bench.row("for comparison, the daemon told so past the module: its answer, the neighbour's next kernel",
              told, neighbour("work", 3)["answer"])  # fmt: skip
    held.freeze(False)
    bench.row("thawed: the neighbour's kernel, its own next kernel", neighbour.answer(5)["answer"], held("work", 5)["answer"])
    bench.row("the server, the neighbour's next kernel", bench.status(), neighbour("work", 3)["answer"])
    held.end()
    bench.row("its process ended: the server, the neighbour's next kernel", bench.status(), neighbour("work", 3)["answer"])
    bench.end_clients()


def end(bench: Bench, process: subprocess.Popen[bytes]) -> None:
    from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control, find_program

    began = time.monotonic()
    Control(find_program("nvidia-cuda-mps-control"), str(bench.pipes)).quit()
    bench.row("quit without clients: ms, exit status", f"{(time.monotonic() - began) * 1e3:.0f}", process.wait(10))
    bench.row("mps_info after it", bench.info()["error"]["error_kind"])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuops-mps-") as name:
        folder = Path(name)
        make_importable(folder, ROOT / "tests/support")  # which runs modules without a playbook
        bench = Bench(folder)
        bench.row("GPU, driver, compute mode, kernel", bench.smi("name", "driver_version", "compute_mode"), os.uname().release)
        parts: list[Callable[[Bench], None]] = [values, limits, termination, fault, frozen]
        with bench.running(4096) as process:
            for part in parts:
                try:
                    part(bench)
                except Exception as error:  # the other parts are worth their time on the machine all the same
                    bench.row(f"{part.__name__} broke off", f"{type(error).__name__}: {error}")
                    bench.end_clients()
            bench.end_clients()
            end(bench, process)
        print("\n".join(["| what | seen |", "| --- | --- |", *(f"| {what} | {seen.replace('|', '/')} |" for what, seen in bench.rows)]))


if __name__ == "__main__":
    obey() if sys.argv[1:] == ["client"] else main()
