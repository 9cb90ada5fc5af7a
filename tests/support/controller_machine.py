# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A controller with systemd as process 1, laid out as the role responder wants it: every path is the default one.

Its GPU nodes are simulated on the same machine, and reached as real ones are: by SSH as root, with root's key. The port is in a vault, so that
no node is reached without the vault's password.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import alerts
import yaml
from gpusim import build
from loop import REPOSITORY, Run
from own_systemd import OwnSystemd, running_systemd
from ports import free_port
from trigger import TOKEN, request

VAULT = "the word that opens the vault"
USER = "gpuops"
PROGRAMS, COLLECTIONS = "/opt/gpuops", "/usr/share/ansible/collections"
OURS = f"{COLLECTIONS}/ansible_collections/gpuops/remediation"
CACHE = "/srv/cache"
_STAND = """
cd /var/lib/gpuops
[ "$(cat stand 2>/dev/null)" = "$HOST" ] || exit 0
trap '' HUP INT TERM
rm stand
echo $$ >standing
sleep 300
"""
_INCIDENTS = """
import json
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
rows = Ledger.open("sqlite:////var/lib/gpuops/ledger.db", check_mode=True).overview(closed=True)["incidents"]
print(json.dumps([[row["node"], row["state"]] for row in rows]))
"""


class ControllerMachine:
    def __init__(self, systemd: OwnSystemd) -> None:
        self.systemd = systemd
        self.root = systemd.root
        self.port, self._ssh_port = free_port(), free_port()
        self._variables: dict[str, Any] = {
            "trigger_token": TOKEN,
            "trigger_port": self.port,
            "trigger_window_seconds": 0.1,
            "responder_credentials": [{"name": "vault", "path": "/etc/gpuops/vault", "environment": "ANSIBLE_VAULT_PASSWORD_FILE"}],
        }

    def lay_out(self, nodes: Sequence[str]) -> None:
        self._programs()
        self.systemd.run("groupadd", "--system", "--force", USER)
        self.systemd.run("install", "-d", "-o", "root", "-g", USER, "-m", "0750", "/etc/gpuops")
        self._ssh()
        self._hooks()
        vault = self.root / "etc/gpuops/vault"
        vault.write_text(VAULT)
        vault.chmod(0o600)
        encrypted = self.program("ansible-vault", "encrypt_string", "--vault-password-file=/etc/gpuops/vault", str(self._ssh_port)).output
        port = encrypted.partition("|")[2].split()
        for node in nodes:
            self._simulate(node)
        [hosts] = yaml.safe_load(self._gpusim("inventory"))["all"]["children"].values()
        reached = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_python_interpreter": f"{PROGRAMS}/bin/python"}
        for variables in hosts["hosts"].values():
            variables.update(reached, ansible_port={"__ansible_vault": "\n".join(port) + "\n"})
        everywhere = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": "/etc/gpuops/ssh_key",
            "gpuops_orchestrator": "none",
            "gpuops_ledger_url": "sqlite:////var/lib/gpuops/ledger.db",
        }
        self._share("inventory.yml", json.dumps({"all": {**hosts, "vars": everywhere}}))

    def _programs(self) -> None:
        """The tests' environment where the services see it: its scripts name their interpreter by its path."""
        scripts = self.root / PROGRAMS[1:] / "bin"
        shutil.copytree(Path(sys.prefix, "bin"), scripts, symlinks=True)
        shutil.copy(Path(sys.prefix, "pyvenv.cfg"), scripts.parent)
        for script in scripts.iterdir():
            if not script.is_symlink() and script.read_bytes().startswith(b"#!"):
                _first, rest = script.read_bytes().split(b"\n", 1)
                script.write_bytes(f"#!{PROGRAMS}/bin/python\n".encode() + rest)

    def _ssh(self) -> None:
        for key in ("/srv/host_key", "/etc/gpuops/ssh_key"):
            self.systemd.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        self.systemd.run("mv", "/etc/gpuops/ssh_key.pub", "/srv/authorized_keys")
        self._share("ssh_key")
        host_key = (self.root / "srv/host_key.pub").read_text()
        (self.root / "etc/ssh/ssh_known_hosts").write_text(f"[127.0.0.1]:{self._ssh_port} {host_key}")
        self.systemd.run("usermod", "--password=*", "root")  # a locked account is let in by no key
        options = {
            "ListenAddress": f"127.0.0.1:{self._ssh_port}",
            "HostKey": "/srv/host_key",
            "AuthorizedKeysFile": "/srv/authorized_keys",
            "PermitRootLogin": "prohibit-password",
            "UsePAM": "no",
            "Subsystem": "sftp internal-sftp",
        }
        (self.root / "run/systemd/system/node-sshd.service").write_text(
            "[Service]\nRuntimeDirectory=sshd\nExecStart=/usr/sbin/sshd -D -f /dev/null "
            + " ".join(f"'-o{name} {value}'" for name, value in options.items())
        )
        self.systemd.systemctl("start", "node-sshd")

    def _hooks(self) -> None:
        """Drop-ins that are there before systemd reads the units, since it must not be reloaded."""
        (self.root / "srv/stand").write_text(_STAND)
        before = json.dumps({"Begin diagnose": "sh /srv/stand"})
        drop_ins = {
            "gpuops-responder.service": f"[Service]\nEnvironment='TESTS_BEFORE_TASK={before}' ANSIBLE_CALLBACK_PLUGINS={OURS}/tests/support/callbacks\n",
            "gpuops-reconcile.timer": "[Timer]\nOnCalendar=\nOnCalendar=*:*:0/30\nRandomizedDelaySec=0\n",
        }
        for unit, text in drop_ins.items():
            folder = self.root / "run/systemd/system" / f"{unit}.d"
            folder.mkdir(parents=True)
            (folder / "tests.conf").write_text(text)

    def _share(self, name: str, text: str | None = None) -> None:
        """With the services' user, who may read it."""
        path = self.root / "etc/gpuops" / name
        if text is not None:
            path.write_text(text)
        self.systemd.run("chown", f"root:{USER}", f"/etc/gpuops/{name}")
        path.chmod(0o640)

    # --- the nodes

    def _gpusim(self, *arguments: str) -> str:
        environment = {"PYTHONPATH": f"{OURS}/roles/simulated_gpu_node/files"}
        command = [f"{PROGRAMS}/bin/python", "-m", "gpusim", "--root=/srv/nodes", f"--cache={CACHE}", *arguments]
        return self.systemd.run(*command, environment=environment).stdout

    def _simulate(self, name: str) -> None:
        """A node whose only GPU needs to be replaced, with a process on it."""
        self._gpusim("create", name, "--gpus=1")
        self._gpusim("process", name, "start", "--gpu=0")
        self._gpusim("inject", name, "--gpu=0", "xid", "48")
        self._gpusim("inject", name, "--gpu=0", "row-remap", "--failure")

    def node(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._gpusim("show", name)))

    def journal(self, name: str) -> list[dict[str, Any]]:
        lines = (self.root / "srv/nodes" / name / "var/lib/gpuops/journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    # --- the controller

    def program(self, name: str, *arguments: str, user: str = "root") -> Run:
        environment = {"HOME": "/root" if user == "root" else "/var/lib/gpuops", "ANSIBLE_NOCOLOR": "1"}
        done = self.systemd.run(f"{PROGRAMS}/bin/{name}", *arguments, user=user, environment=environment, check=False, timeout_seconds=300)
        return Run(done.returncode, done.stdout + done.stderr)

    def deploy(self, **more: Any) -> Run:
        """The role, with more of its variables, without their prefix gpuops_; they stay."""
        self._variables.update(more)
        # In a file: a command line is everybody's to see, and systemd writes it into its journal.
        (self.root / "srv/deploy.json").write_text(json.dumps({f"gpuops_{key}": value for key, value in self._variables.items()}))
        there = ["--inventory=localhost,", "--connection=local", "-e@/srv/deploy.json"]
        return self.program("ansible-playbook", "gpuops.remediation.deploy_controller", *there)

    def stand(self, node: str) -> None:
        """The node's next run comes to a task that does not end, not by SIGTERM either."""
        (self.root / "var/lib/gpuops/stand").write_text(node)
        (self.root / "var/lib/gpuops/standing").unlink(missing_ok=True)

    def standing(self) -> int:
        """Its process; 0 until it is there."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.root / "var/lib/gpuops/standing").read_text())
        return 0

    def mode(self, mode: str) -> None:
        """As an operator sets it: as the services' user."""
        extra = json.dumps({"gpuops_mode": mode, "gpuops_who": "tests", "gpuops_why": "the test needs it"})
        run = self.program("ansible-playbook", "gpuops.remediation.mode", "--inventory=/etc/gpuops/inventory.yml", f"-e{extra}", user=USER)
        assert run.ok, run.output

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return request(self.port, "GET", "/healthz", token=None)[0] == 200
        return False

    def post(self, node: str) -> list[int]:
        """An alert about the node's GPU; the rows of the inbox."""
        labels = {"node": node, "xid": "48", "gpu": "0", "gpu_uuid": self.node(node)["gpus"][0]["uuid"]}
        message = alerts.rewritten(alerts.recorded("firing-single"), labels, annotations={"xid": None})
        status, body = request(self.port, "POST", "/alerts", json.dumps(message).encode())
        assert status == 200, body
        return list(json.loads(body)["inbox_ids"])

    def incidents(self, node: str) -> list[str]:
        """Their states."""
        read = self.systemd.run(f"{PROGRAMS}/bin/python", "-c", _INCIDENTS, user=USER, environment={"PYTHONPATH": COLLECTIONS})
        return [state for name, state in json.loads(read.stdout) if name == node]


@contextlib.contextmanager
def running_controller(folder: Path, nodes: Sequence[str]) -> Iterator[ControllerMachine]:
    cache = build.default_cache()
    built = [build.nvml_library(cache), build.holder(cache)]  # there before the nodes are made, which cannot write where they lie
    collections = REPOSITORY / ".ansible" / "collections" / "ansible_collections"
    read_only = {
        REPOSITORY: OURS,
        collections / "kubernetes": f"{COLLECTIONS}/ansible_collections/kubernetes",
        Path(sys.prefix, "lib"): f"{PROGRAMS}/lib",
        built[0].parent.parent: f"{CACHE}/nvml",
    }
    folder.mkdir()
    with running_systemd(folder, read_only) as systemd:
        machine = ControllerMachine(systemd)
        machine.lay_out(nodes)
        yield machine
