# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""python -m cluster build | up DIR | down DIR | status DIR"""

from __future__ import annotations

import argparse
import shutil
import sys

from cluster import Cluster, ClusterError
from cluster.programs import programs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster", description="A Kubernetes control plane on loopback.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build what is missing of the programs; say where they are")
    for name, text in (("up", "start one, wait for it"), ("down", "stop it"), ("status", "its processes; fails unless all run")):
        commands.add_parser(name, help=text).add_argument("directory")
    guard = commands.add_parser("guard", help="stop it when standard input ends: when the process that holds the other end is gone")
    guard.add_argument("directory")
    guard.add_argument("--remove", action="store_true", help="and its directory with it")
    asked = parser.parse_args()
    if asked.command == "build":
        for path in programs().values():
            print(path)
        return 0
    cluster = Cluster(asked.directory, detached=True)
    if asked.command == "up":
        cluster.start()
        print(f"KUBECONFIG={cluster.kubeconfig}")
    elif asked.command == "down":
        cluster.stop()
    elif asked.command == "guard":
        sys.stdin.read()
        cluster.stop()
        if asked.remove:
            shutil.rmtree(cluster.directory, ignore_errors=True)
    else:
        for component in cluster.components.values():
            print(f"{component.name}: {f'pid {component.pid}' if component.running else 'not running'}")
        return 0 if all(component.running for component in cluster.components.values()) else 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"cluster: {error}")
