# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults, put in while others read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gpusim
import nvml_child
import pytest
from gpusim.node import Node, SimulatorError
from gpusim.state import StateFile

GIB = 1 << 30


def kernel_log(node: Node) -> list[str]:
    return [line.partition(";")[2] for line in node.kmsg.read_text(encoding="utf-8").splitlines()]


def test_a_child_of_who_has_nvml_open_is_refused(node: Node) -> None:
    """As on a H200. Once the parent has closed it there is nothing to inherit."""
    asked = nvml_child.ask(
        node.nvml_library,
        """
def of_a_child():
    there, here = os.pipe()
    if not os.fork():
        answer = ask(n.nvmlInit)
        os.write(here, json.dumps(answer or ask(n.nvmlDeviceGetCount)).encode())
        os._exit(0)
    return json.loads(os.read(there, 1000))

result = [of_a_child()]
n.nvmlShutdown()
result.append(of_a_child())
""",
    )
    assert asked == [{"error": "NVMLError_OperatingSystem: The operating system has blocked the request."}, 2]


def test_xid_is_an_event_and_a_line_of_the_kernel_log(node: Node) -> None:
    child = nvml_child.start(
        node.nvml_library,
        """
events = n.nvmlEventSetCreate()
for index in range(2):
    n.nvmlDeviceRegisterEvents(gpu(index), n.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
result = []
for _attempt in range(3):
    event = n.nvmlEventSetWait(events, 10000)
    result.append([n.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData, event.gpuInstanceId, event.computeInstanceId])
result.append(ask(n.nvmlEventSetWait, events, 10))
""",
    )
    assert child.stdout is not None
    child.stdout.readline()
    node.xid(1, 48)
    node.xid(0, 31, pid=525, name="crash")
    node.xid(1, 63)
    output, _errors = child.communicate(timeout=20)
    none = 0xFFFFFFFF
    assert json.loads(output) == [
        [1, 8, 48, none, none],
        [0, 8, 31, none, none],
        [1, 8, 63, none, none],
        {"error": "NVMLError_Timeout: Timeout"},
    ]

    gpus = node.state()["gpus"]
    assert kernel_log(node)[2:5] == [
        f"NVRM: GPU at PCI:0000:00:07: {gpus[1]['uuid']}",
        f"NVRM: GPU Board Serial Number: {gpus[1]['serial']}",
        "NVRM: Xid (PCI:0000:00:07): 48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer "
        "at partition 6, subpartition 0.",
    ]
    assert kernel_log(node)[7].startswith("NVRM: Xid (PCI:0000:00:06): 31, pid=525, name=crash, channel 0x")
    assert kernel_log(node)[8].startswith("NVRM: Xid (PCI:0000:00:07): 63, Row Remapper"), "a GPU is introduced once"


def test_kernel_log_has_the_grammar_of_dev_kmsg(node: Node) -> None:
    node.xid(0, 79)
    boot = node.state()["boot"]["time"]
    for expected, line in enumerate(node.kmsg.read_text(encoding="utf-8").splitlines()):
        priority, sequence, micros, flags = line.partition(";")[0].split(",")
        assert (priority in "356", int(sequence), flags) == (True, expected, "-")
        assert boot <= boot + int(micros) / 1e6 <= time.time()


def test_the_recorded_lines_can_be_given(node: Node) -> None:
    """What a real H200 wrote comes out as it was, so that a recording can be replayed."""
    recorded = (Path(__file__).parents[1] / "fixtures" / "nvml" / "h200-xid.dmesg").read_text(encoding="utf-8").splitlines()
    texts = [line.partition("] ")[2] for line in recorded]
    for text in texts:
        node.log(text)
    assert kernel_log(node)[2:] == texts


def test_counts_and_verdicts(node: Node) -> None:
    node.ecc(1, corrected=3, uncorrected=2)
    node.row_remap(1, correctable=1, uncorrectable=2, pending=True, failure=True)
    node.recovery_action(1, "drain_and_reset")
    node.temperature(1, 91)
    body = """
g = gpu(1)
result = [
    [[n.nvmlDeviceGetTotalEccErrors(g, e, c) for c in (0, 1)] for e in (0, 1)],
    [n.nvmlDeviceGetMemoryErrorCounter(g, 1, 0, where) for where in (n.NVML_MEMORY_LOCATION_DRAM, n.NVML_MEMORY_LOCATION_L2_CACHE)],
    n.nvmlDeviceGetDetailedEccErrors(g, 1, 1), n.nvmlDeviceGetRemappedRows(g), n.nvmlDeviceGetRowRemapperHistogram(g).none,
    [f.value.uiVal for f in n.nvmlDeviceGetFieldValues(g, [4, 6, 142, 143, 144, 145, 230])],
    n.nvmlDeviceGetTemperature(g, 0), n.nvmlDeviceGetMarginTemperature(g), n.nvmlDeviceGetTotalEccErrors(gpu(0), 1, 0)]
"""
    detailed = {"l1Cache": 0, "l2Cache": 0, "deviceMemory": 2, "registerFile": 0}
    assert nvml_child.ask(node.nvml_library, body) == [
        [[3, 3], [2, 2]], [2, 0], detailed, [1, 2, 1, 1], 1, [2, 2, 1, 2, 1, 1, 4], 91, -4, 0,
    ]  # fmt: skip
    assert kernel_log(node)[-1].endswith("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")


def test_on_chip_memory(node: Node) -> None:
    node.ecc(1, sram_threshold_exceeded=True)
    body = """
status, result = n.c_nvmlEccSramErrorStatus_v1_t(), []
for index in (0, 1):
    n.nvmlDeviceGetSramEccErrorStatus(gpu(index), ctypes.byref(status))
    result.append(status.bThresholdExceeded)
status.version = 1
result.append(ask(n.nvmlDeviceGetSramEccErrorStatus, gpu(), ctypes.byref(status)))
"""
    mismatch = {"error": "NVMLError_ArgumentVersionMismatch: Argument version mismatch"}
    assert nvml_child.ask(node.nvml_library, body) == [0, 1, mismatch]
    node.reset(1)
    assert node.state()["gpus"][1]["ecc"]["sram_threshold_exceeded"], "the board keeps it"


@pytest.mark.parametrize(
    ("inject", "expected"),
    [
        (lambda node: node.lost(1), ["GpuIsLost", "GpuIsLost", "GpuIsLost", 0]),
        (lambda node: node.no_permission("nvmlDeviceGetSerial"), ["ok", "NoPermission", "ok", "NoPermission"]),
        (lambda node: node.no_permission("nvmlDeviceGetSerial", 1), ["ok", "NoPermission", "ok", 0]),
        (lambda node: node.driver_not_loaded(), ["DriverNotLoaded"] * 4),
    ],
)
def test_errors(node: Node, inject: Callable[[Node], None], expected: list[object]) -> None:
    """Faults reach a process that had its handles before, and one GPU's faults are not its neighbour's."""
    child = nvml_child.start(
        node.nvml_library,
        """
one, zero = gpu(1), gpu(0)
print("ready", flush=True)
sys.stdin.readline()
def short(answer):
    return answer["error"].split(":")[0].replace("NVMLError_", "") if isinstance(answer, dict) and "error" in answer else "ok"
result = [short(ask(f, *a)) for f, a in ((n.nvmlDeviceGetHandleByIndex, (1,)), (n.nvmlDeviceGetSerial, (one,)),
                                          (n.nvmlDeviceGetMemoryInfo, (one,)), (n.nvmlDeviceGetSerial, (zero,)))]
""",
    )
    assert child.stdout is not None and child.stdin is not None
    child.stdout.readline()
    inject(node)
    output, _errors = child.communicate("\n", timeout=20)
    assert json.loads(output) == ["ok" if answer == 0 else answer for answer in expected]


def test_init_without_driver(node: Node) -> None:
    node.driver_not_loaded()
    with pytest.raises(AssertionError):
        nvml_child.ask(node.nvml_library, "result = 1")


def test_calls_before_init_and_after_shutdown(node: Node) -> None:
    body = "n.nvmlShutdown()\nresult = [ask(n.nvmlDeviceGetCount)]\nn.nvmlInit()\nresult.append(ask(n.nvmlDeviceGetCount))"
    assert nvml_child.ask(node.nvml_library, body) == [{"error": "NVMLError_Uninitialized: Uninitialized"}, 2]


def test_error_strings(node: Node) -> None:
    body = "result = [n.nvmlErrorString(code) for code in (0, 3, 15, 19, 999)]"
    assert nvml_child.ask(node.nvml_library, body) == [
        "Success",
        "Not Supported",
        "GPU is lost",
        "In use by another client",
        "Unknown Error",
    ]


TIMED = "began = time.monotonic()\nn.nvmlDeviceGetMemoryInfo(gpu(%d))\nresult = time.monotonic() - began"


def test_a_call_hangs_for_a_time(node: Node) -> None:
    node.hang("nvmlDeviceGetMemoryInfo", 0.5, 1)
    assert nvml_child.ask(node.nvml_library, TIMED % 1) >= 0.5
    assert nvml_child.ask(node.nvml_library, TIMED % 0) < 0.4, "only that GPU"


def test_everything_hangs_for_ever_until_cleared(node: Node) -> None:
    node.hang("all", None)
    child = nvml_child.start(node.nvml_library, "result = n.nvmlDeviceGetCount()")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.7)
    node.clear()
    assert json.loads(child.communicate(timeout=10)[0]) == 2


def test_a_fault_needs_a_call_that_exists(node: Node) -> None:
    with pytest.raises(SimulatorError, match="no call nvmlDeviceGetMemoryinfo"):
        node.hang("nvmlDeviceGetMemoryinfo", None)


def test_events_by_type(node: Node) -> None:
    """Each type is delivered to those who asked for it; a type that the GPU does not have is refused."""
    body = """
xids, verdicts = n.nvmlEventSetCreate(), n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(gpu(), n.nvmlEventTypeXidCriticalError, xids)
n.nvmlDeviceRegisterEvents(gpu(), n.nvmlEventTypeGpuRecoveryAction | n.nvmlEventTypeDoubleBitEccError, verdicts)
print("ready", flush=True)
result = [[n.nvmlEventSetWait(each, 10000).eventData for turn in range(2)] for each in (verdicts, xids)]
result.append(ask(n.nvmlDeviceRegisterEvents, gpu(), 1 << 40, xids))
n.nvmlEventSetFree(xids)
result.append(ask(n.nvmlEventSetWait, xids, 10))
"""
    child = nvml_child.start(node.nvml_library, body)
    assert child.stdout is not None
    child.stdout.readline()
    node.xid(0, 48)
    node.ecc(0, uncorrected=1)
    node.recovery_action(0, "node_reboot")
    wrong = [{"error": "NVMLError_NotSupported: Not Supported"}, {"error": "NVMLError_InvalidArgument: Invalid Argument"}]
    assert json.loads(child.communicate(timeout=20)[0]) == [[0, 2], [48, 154], *wrong]


def test_persistence(node: Node) -> None:
    assert (
        nvml_child.ask(node.nvml_library, "n.nvmlDeviceSetPersistenceMode(gpu(), 0)\nresult = n.nvmlDeviceGetPersistenceMode(gpu())") == 0
    )
    assert [gpu["persistence"] for gpu in node.state()["gpus"]] == [0, 1]


def test_which_gpu(node: Node) -> None:
    gpu = node.state()["gpus"][1]
    body = f"""
result = [n.nvmlDeviceGetIndex(device) for device in (n.nvmlDeviceGetHandleByUUID(b"{gpu["uuid"]}"), n.nvmlDeviceGetHandleBySerial(b"{gpu["serial"]}"),
          *(n.nvmlDeviceGetHandleByPciBusId(address) for address in (b"0000:00:07.0", b"00000000:00:07.0", b"00:07.0", b"0000:00:07")))]
result += [ask(n.nvmlDeviceGetHandleByUUID, b"GPU-1"), ask(n.nvmlDeviceGetHandleByPciBusId, b"seven"), ask(n.nvmlDeviceGetHandleByIndex, 2)]
"""
    invalid = {"error": "NVMLError_InvalidArgument: Invalid Argument"}
    assert nvml_child.ask(node.nvml_library, body) == [1] * 6 + [{"error": "NVMLError_NotFound: Not Found"}, invalid, invalid]


def test_clear_takes_back_what_was_injected(node: Node) -> None:
    before = node.state()
    node.lost(1)
    node.ecc(1, uncorrected=1)
    node.row_remap(0, failure=True)
    node.clear(1)
    assert node.state()["gpus"][0]["remapped_rows"]["failure"], "the other GPU's fault stays"
    node.clear()
    assert [{**gpu, "events": []} for gpu in node.state()["gpus"]] == before["gpus"]


def test_reset_is_recorded_and_clears_what_is_volatile(node: Node) -> None:
    node.ecc(0, uncorrected=1)
    node.row_remap(0, uncorrectable=1, pending=True, failure=True)
    node.recovery_action(0, "gpu_reset")
    node.lost(0)
    node.reset(0)
    gpu = node.state()["gpus"][0]
    assert (gpu["lost"], gpu["recovery_action"], gpu["ecc"]["uncorrected_volatile"], gpu["ecc"]["uncorrected_aggregate"]) == (
        False,
        "none",
        0,
        1,
    )
    assert gpu["remapped_rows"] == {"correctable": 0, "uncorrectable": 1, "pending": False, "failure": True}, (
        "a failure to remap is for ever"
    )
    assert [reset["boot_id"] for reset in gpu["resets"]] == [node.state()["boot"]["id"]]
    assert kernel_log(node)[-2:] == ["nvidia 0000:00:06.0: resetting", "nvidia 0000:00:06.0: reset done"]


def test_reboot(node: Node) -> None:
    pid = node.start([0], "train", GIB)
    node.xid(0, 79)
    node.lost(0)
    journal = node.path / "var/lib/gpuops/journal.jsonl"
    journal.write_text("{}\n", encoding="utf-8")
    before = (node.path / "proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    time.sleep(1.1)  # btime has whole seconds
    boot_time = node.state()["boot"]["time"]
    node.reboot()
    assert (node.path / "proc/sys/kernel/random/boot_id").read_text(encoding="utf-8") not in (before, "")
    assert (node.path / "proc/stat").read_text(encoding="utf-8") == f"btime {node.state()['boot']['time']}\n" != f"btime {boot_time}\n"
    assert len(kernel_log(node)) == 2 and node.kmsg.read_text(encoding="utf-8").startswith("5,0,")
    assert not node.state()["gpus"][0]["lost"]
    assert not (node.path / "proc" / str(pid)).is_symlink() and not Path(f"/proc/{pid}").exists()
    assert journal.exists(), "disks survive a reboot"


def test_mig_mode(make_node: Callable[..., Node]) -> None:
    """A Hopper changes at once when idle; an Ampere waits for a reset; a busy GPU says so and waits."""
    body = "result = [n.nvmlDeviceSetMigMode(gpu(), 1), n.nvmlDeviceGetMigMode(gpu()), n.nvmlDeviceGetMaxMigDeviceCount(gpu())]"
    hopper, ampere, busy = make_node("hopper", gpus=1), make_node("ampere", model_name="a100-40", gpus=1), make_node("busy", gpus=1)
    busy.start([0], "train", GIB)
    assert nvml_child.ask(hopper.nvml_library, body) == [0, [1, 1], 7]
    assert nvml_child.ask(ampere.nvml_library, body) == [16, [0, 1], 0]
    ampere.reset(0)
    assert nvml_child.ask(ampere.nvml_library, "result = n.nvmlDeviceGetMigMode(gpu())") == [1, 1]
    assert nvml_child.ask(busy.nvml_library, body) == [19, [0, 1], 0]


WRITER = """
import sys
from gpusim.state import StateFile
for _attempt in range(100):
    with StateFile(sys.argv[1]).update() as state:
        state["event_sequence"] += 1
"""


def test_many_writers_lose_nothing_and_readers_see_no_torn_state(node: Node) -> None:
    package = Path(gpusim.__file__).parents[1]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, node.file.path], cwd=package) for _writer in range(4)]
    reader, last = StateFile(node.file.path), 0
    while any(writer.poll() is None for writer in writers):
        now = reader.read()["event_sequence"]
        assert now >= last, "a newer state was followed by an older one"
        last = now
    assert [writer.returncode for writer in writers] == [0] * 4
    assert reader.read()["event_sequence"] == 400


def test_a_failed_change_leaves_the_state_alone(node: Node) -> None:
    with pytest.raises(ZeroDivisionError), node.change() as state:
        state["event_sequence"] = 1 // 0
    assert node.state()["event_sequence"] == 0


def test_no_second_interpreter_in_the_process(node: Node) -> None:
    body = (
        "result = [line.split()[-1] for line in open('/proc/self/maps') if 'libpython' in line and os.path.realpath(sys.executable) != '']"
    )
    shared = "import sysconfig\nresult = bool(sysconfig.get_config_var('Py_ENABLE_SHARED')) and 'libpython' in os.popen('ldd ' + sys.executable).read()"
    assert bool(nvml_child.ask(node.nvml_library, body)) is nvml_child.ask(node.nvml_library, shared)


def test_one_library_a_build_and_a_copy_a_node(make_node: Callable[..., Node]) -> None:
    one, two = make_node("one", gpus=1), make_node("two", gpus=3)
    assert one.nvml_library.read_bytes() == two.nvml_library.read_bytes()
    assert [nvml_child.ask(node.nvml_library, "result = n.nvmlDeviceGetCount()") for node in (one, two)] == [1, 3]
    assert one.state()["gpus"][0]["uuid"] != two.state()["gpus"][0]["uuid"]
