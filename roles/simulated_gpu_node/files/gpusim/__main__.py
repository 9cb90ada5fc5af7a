# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""gpusim: simulated GPU nodes on this machine. `python -m gpusim --help`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import build, instances, kmsg, mps_ask
from .errors import CODES
from .node import MIB, MODEL_NAMES, POD_RESOURCES, Node, SimulatorError, nodes

DEFAULT_ROOT = Path("/var/tmp/gpusim")
EXAMPLES = """
examples:
  gpusim create gpu-1 --gpus 8                            a node with eight H200s
  gpusim process gpu-1 start --gpu 3 --name train --memory-mib 4096
  gpusim inject gpu-1 --gpu 3 xid 48                      event and kernel log line
  gpusim inject gpu-1 --gpu 3 row-remap --failure
  gpusim inject gpu-1 hang nvmlDeviceGetMemoryInfo --seconds forever
  gpusim inject gpu-1 fail nvmlGpuInstanceDestroy --error IN_USE --at 2
  gpusim mig gpu-1 --gpu 0 on ; gpusim mig gpu-1 --gpu 0 create 3g.71gb --start 4 ; gpusim mig gpu-1 show
  gpusim inventory > inventory.yml                        host entries for Ansible
  gpusim export                                           metrics of all nodes, for Prometheus
  gpusim reset gpu-1 --gpu 3 ; gpusim reboot gpu-1 ; gpusim destroy gpu-1
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gpusim", description="GPU nodes without GPUs: a real NVML library, kernel log, device files and processes for each.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help="folder of the simulated nodes (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=build.default_cache(), help="where built libraries are kept (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, node: str | None = "NODE") -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        if node:
            added.add_argument("node", metavar=node)
        return added

    create = command("create", "make a node; prints its folder")
    create.add_argument("--model", default="h200-141", help="GPU model: %s (default: h200-141)" % ", ".join(MODEL_NAMES))
    create.add_argument("--gpus", type=int, default=8, help="how many (default: 8)")
    command("show", "print a node's state as JSON")
    _inject_parser(command("inject", "put a fault in"))
    _process_parser(command("process", "processes that hold GPUs"))
    _mig_parser(command("mig", "MIG mode, GPU instances and compute instances"))
    _mps_parser(
        command("mps", "what CUDA programs do as clients of an MPS daemon, which NODE/sbin/nvidia-cuda-mps-control -f is", node=None)
    )
    clear = command("clear", "take injected faults back")
    clear.add_argument("--gpu", type=int, help="of this GPU only (default: all, and the node's own)")
    reset = command("reset", "reset a GPU, recorded in the state and the kernel log; refused while a process holds it")
    reset.add_argument("--gpu", type=int, required=True)
    reset.add_argument("--force", action="store_true", help="even with processes on it")
    command("reboot", "reboot the node: a new boot id, an empty kernel log, no process, no volatile fault")
    command("destroy", "end its processes and remove all that was made for it")
    inventory = command("inventory", "print host entries for Ansible (YAML)", node=None)
    inventory.add_argument("nodes", nargs="*", metavar="NODE", help="default: all")
    kubelet = command("kubelet", "play the kubelets' node side for the pods bound to simulated nodes, until SIGTERM or SIGINT", node=None)
    kubelet.add_argument("--kubeconfig", required=True, type=Path)
    kubelet.add_argument("--context")
    kubelet.add_argument("--dra", action="store_true", help="publish the GPUs in ResourceSlices (Dynamic Resource Allocation)")
    export = command("export", "serve the nodes' metrics to Prometheus, until SIGTERM or SIGINT", node=None)
    export.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    export.add_argument("--port", type=int, default=9410, help="default: %(default)s; 0 takes a free one and prints it")
    return parser


def _inject_parser(inject: argparse.ArgumentParser) -> None:
    inject.add_argument("--gpu", type=int, help="index of the GPU (hang, no-permission and fail: of the node when left out)")
    faults = inject.add_subparsers(dest="fault", required=True, metavar="FAULT")
    xid = faults.add_parser("xid", help="an Xid: NVML event and kernel log line")
    xid.add_argument("code", type=int)
    xid.add_argument("--text", help="what the line says (default: as drivers write this code)")
    xid.add_argument("--pid", type=int)
    xid.add_argument("--name", help="of the process")
    action = faults.add_parser("recovery-action", help="the driver's own verdict (NVML field 230, Xid 154)")
    action.add_argument("action", choices=list(kmsg.RECOVERY_TEXTS), type=lambda text: text.replace("-", "_").lower())
    remap = faults.add_parser("row-remap", help="rows of memory remapped")
    remap.add_argument("--correctable", type=int, default=0, metavar="N")
    remap.add_argument("--uncorrectable", type=int, default=0, metavar="N")
    remap.add_argument("--pending", action="store_true")
    remap.add_argument("--failure", action="store_true")
    ecc = faults.add_parser("ecc", help="ECC errors, volatile and aggregate")
    ecc.add_argument("--corrected", type=int, default=0, metavar="N")
    ecc.add_argument("--uncorrected", type=int, default=0, metavar="N")
    ecc.add_argument("--sram-threshold-exceeded", action="store_true", help="on-chip memory is worn out")
    faults.add_parser("temperature", help="of the GPU").add_argument("celsius", type=int)
    faults.add_parser("lost", help="'GPU is lost' from every call")
    hang = faults.add_parser("hang", help="a call does not return")
    hang.add_argument("function", help="name of the NVML call, or `all`")
    hang.add_argument("--seconds", default="forever", help="a number, or `forever` (default): until cleared")
    faults.add_parser("no-permission", help="a call is refused").add_argument("function")
    fail = faults.add_parser("fail", help="a call fails, the Nth time that anybody makes it from now on")
    fail.add_argument("function")
    fail.add_argument(
        "--error", default="UNKNOWN", choices=CODES, metavar="ERROR", help="NVML's, without NVML_ERROR_ (default: %(default)s)"
    )
    fail.add_argument("--at", type=int, default=1, metavar="N", help="(default: 1)")
    fail.add_argument("--times", default="1", help="how often, or `forever` (default: 1)")
    faults.add_parser("driver-not-loaded", help="as after rmmod nvidia")
    kubelet = faults.add_parser("pod-resources", help="the kubelet's PodResources API")
    kubelet.add_argument("how", choices=POD_RESOURCES)
    faults.add_parser("log", help="any other line of the kernel log").add_argument("text")


def _process_parser(process: argparse.ArgumentParser) -> None:
    verbs = process.add_subparsers(dest="verb", required=True, metavar="VERB")
    start = verbs.add_parser("start", help="start a real process, in a cgroup of its own; prints its pid")
    start.add_argument("--gpu", type=int, action="append", required=True, help="index; may be given more than once")
    start.add_argument("--name", default="train", help="its name and executable (default: %(default)s)")
    start.add_argument("--memory-mib", type=int, default=1024, help="GPU memory on each GPU (default: %(default)s)")
    start.add_argument("--cgroup", help="below the node's own (default: system.slice/NAME.service)")
    start.add_argument("--ends", default="normal", help="on SIGTERM: normal | late:SECONDS | never (not on SIGKILL either)")
    start.add_argument(
        "--type", choices=["compute", "graphics", "mps", "monitor"], default="compute", help="a monitor is in no list of NVML"
    )
    start.add_argument("--gi", type=int, help="number of the GPU instance that it is in")
    start.add_argument("--ci", type=int, help="number of the compute instance in it")
    for verb, text in (("grow", "it uses more GPU memory"), ("exit", "it ends now, also a `never`"), ("terminate", "send it SIGTERM")):
        added = verbs.add_parser(verb, help=text)
        added.add_argument("--pid", type=int, required=True)
        if verb == "grow":
            added.add_argument("--memory-mib", type=int, required=True, help="how much more")


def _mig_parser(mig: argparse.ArgumentParser) -> None:
    mig.add_argument("--gpu", type=int, help="index of the GPU (show: all when left out)")
    verbs = mig.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("show", help="memory slices, instances and who holds them")
    verbs.add_parser("on", help="MIG mode; tells what is in the way")
    verbs.add_parser("off", help="no MIG mode")
    create = verbs.add_parser("create", help="a GPU instance with a compute instance of its size; prints its number")
    create.add_argument("profile", help="such as 3g.71gb")
    create.add_argument("--start", type=int, help="its first memory slice (default: where the driver likes)")
    create.add_argument("--compute", metavar="PROFILES", help="other compute instances: 1c,2c, or nothing for none")
    destroy = verbs.add_parser("destroy", help="a GPU instance with all in it, or one compute instance")
    destroy.add_argument("gi", type=int)
    destroy.add_argument("ci", type=int, nargs="?")


def _mps_parser(mps: argparse.ArgumentParser) -> None:
    mps.add_argument("--pipe-directory", required=True, metavar="DIR", help="the daemon's")
    verbs = mps.add_subparsers(dest="verb", required=True, metavar="VERB")
    connect = verbs.add_parser("connect", help="start a process that is a client; prints its pid and its limits")
    connect.add_argument("--name", default="train", help="its name and executable (default: %(default)s)")
    connect.add_argument("--memory-mib", type=int, default=1024, help="what it takes (default: %(default)s)")
    connect.add_argument("--cgroup", help="below the node's own (default: system.slice/NAME.service)")
    connect.add_argument("--ends", default="normal", help="on SIGTERM: normal | late:SECONDS | never")
    work = verbs.add_parser("work", help="it has work on the GPU from now on, so that its end is a fault unless it was terminated")
    crash = verbs.add_parser("crash", help="it causes a fault, which all clients of its server have")
    for added in (work, crash):
        added.add_argument("pid", type=int)


def _mps(args: argparse.Namespace) -> None:
    order: dict[str, Any] = {"pid": args.pid} if args.verb != "connect" else {
        "name": args.name, "memory_bytes": args.memory_mib * MIB, "cgroup": args.cgroup, "ends": args.ends,
    }  # fmt: skip
    answer = mps_ask.play(args.pipe_directory, args.verb, **order)
    if "error" in answer:
        raise SimulatorError(answer["error"])
    print(json.dumps(answer))


def _mig(node: Node, args: argparse.Namespace) -> None:
    if args.verb == "show":
        chosen = range(len(node.state()["gpus"])) if args.gpu is None else [args.gpu]
        print("\n".join(instances.show(node, index) for index in chosen))
    elif args.gpu is None:
        raise SimulatorError(f"{args.verb} needs --gpu")
    elif args.verb in ("on", "off"):
        print(instances.set_mode(node, args.gpu, args.verb == "on"))
    elif args.verb == "create":
        compute = None if args.compute is None else tuple(filter(None, args.compute.split(",")))
        print(instances.create(node, args.gpu, args.profile, args.start, compute))
    else:
        instances.destroy(node, args.gpu, args.gi, args.ci)


def _inject(node: Node, args: argparse.Namespace) -> None:
    gpu = args.gpu
    if args.fault == "hang":
        node.hang(args.function, None if args.seconds == "forever" else float(args.seconds), gpu)
    elif args.fault == "no-permission":
        node.no_permission(args.function, gpu)
    elif args.fault == "fail":
        node.fail(args.function, args.error, args.at, None if args.times == "forever" else int(args.times), gpu)
    elif args.fault == "driver-not-loaded":
        node.driver_not_loaded()
    elif args.fault == "pod-resources":
        node.pod_resources(args.how)
    elif args.fault == "log":
        node.log(args.text)
    elif gpu is None:
        raise SimulatorError(f"{args.fault} needs --gpu")
    elif args.fault == "xid":
        node.xid(gpu, args.code, args.text, args.pid, args.name)
    elif args.fault == "recovery-action":
        node.recovery_action(gpu, args.action)
    elif args.fault == "row-remap":
        node.row_remap(gpu, args.correctable, args.uncorrectable, args.pending, args.failure)
    elif args.fault == "ecc":
        node.ecc(gpu, args.corrected, args.uncorrected, args.sram_threshold_exceeded)
    elif args.fault == "temperature":
        node.temperature(gpu, args.celsius)
    else:
        node.lost(gpu)


def _process(node: Node, args: argparse.Namespace) -> None:
    if args.verb == "start":
        print(node.start(args.gpu, args.name, args.memory_mib * MIB, args.cgroup, args.ends, args.type, gi=args.gi, ci=args.ci))
    elif args.verb == "grow":
        node.grow(args.pid, args.memory_mib * MIB)
    elif args.verb == "exit":
        node.exit(args.pid)
    else:
        node.terminate(args.pid)


def inventory(chosen: list[Node]) -> str:
    """Written by hand: JSON strings are YAML, and the interpreter of a node need not have a YAML library."""
    lines = ["---", "all:", "  children:", "    gpu_nodes:", "      hosts:"]
    for node in chosen:
        lines.append(f"        {json.dumps(node.name)}:")
        lines += [f"          {name}: {json.dumps(value)}" for name, value in node.host_variables().items()]
    return "\n".join(lines)


def run(args: argparse.Namespace) -> None:
    if args.command == "inventory":
        print(inventory([Node(args.root, name, args.cache) for name in args.nodes] or nodes(args.root, args.cache)))
        return
    if args.command == "kubelet":
        from .kubelet import serve  # needs the kubernetes client, which nothing else here does

        serve(args.root, args.cache, args.kubeconfig, args.context, args.dra)
        return
    if args.command == "mps":
        _mps(args)
        return
    if args.command == "export":
        from . import exporter  # needs prometheus_client, which nothing else here does

        exporter.serve(args.root, args.host, args.port)
        return
    node = Node(args.root, args.node, args.cache)
    simple: dict[str, Any] = {
        "clear": lambda: node.clear(args.gpu), "reset": lambda: node.reset(args.gpu, args.force), "reboot": node.reboot,
        "destroy": node.destroy, "inject": lambda: _inject(node, args), "process": lambda: _process(node, args),
        "mig": lambda: _mig(node, args), "show": lambda: print(json.dumps(node.summary(), indent=1)),
    }  # fmt: skip
    if args.command == "create":
        node.create(args.model, args.gpus)
        print(node.path)
    else:
        simple[args.command]()


def main() -> int:
    args = _parser().parse_args()
    try:
        run(args)
    except (SimulatorError, RuntimeError, OSError, ValueError) as error:
        print(f"gpusim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
