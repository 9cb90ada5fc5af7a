# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that a node gets: whole, the same each time, and without the controller's packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.gpuops.remediation.plugins.action.exporter_program import LIBRARIES
from ansible_collections.gpuops.remediation.plugins.module_utils import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import program


def built(python=sys.executable):
    return _program.build(program.__name__, f"{python} -I", tuple(LIBRARIES))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "gpuops-exporter"
    path.write_bytes(built())
    path.chmod(0o755)
    return path


def test_the_same_bytes_each_time():
    assert built() == built()
    assert built("/opt/python").startswith(b"#!/opt/python -I\n")


def test_all_that_it_imports_is_in_it(path, tmp_path):
    """The interpreter has no packages at all."""
    names = zipfile.ZipFile(path).namelist()
    assert {"pynvml.py", "prometheus_client/exposition.py", "__main__.py"} <= set(names)
    assert not [name for name in names if "/_kube/" in name or "/_ledger/" in name or name.startswith("ansible/")], "no more than it needs"
    for command in ("export", "state"):
        words = [sys.executable, "-I", "-S", path, command, str(tmp_path / "none.json")]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={}, cwd="/")
        assert (done.returncode, done.stderr) == (1, "") and "none.json" in done.stdout, "it gets as far as its configuration"


def test_with_a_cache_it_runs_unpacked(path, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    words = [path, "state", str(tmp_path / "none.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"CACHE_DIRECTORY": str(cache), "PATH": os.defpath})
    assert (done.returncode, done.stderr) == (1, "") and "none.json" in done.stdout
    assert list(cache.rglob("_exporter/__pycache__/state.*.pyc")), "what it compiled is kept"


def test_a_library_that_the_controller_lacks_is_named():
    with pytest.raises(ImportError) as missing:
        _program.build(program.__name__, sys.executable, ["no_such_library"])
    assert missing.value.name == "no_such_library"
