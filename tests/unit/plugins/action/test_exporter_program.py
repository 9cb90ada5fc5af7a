# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that a node gets: whole, the same each time, and without the controller's packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.gpuops.remediation.plugins.action import exporter_program
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
        assert done.returncode == 1 and starts_and_says(done.stderr), "it gets as far as its configuration"


def starts_and_says(text):
    """One line, an error in the journal, and no traceback."""
    return re.fullmatch(r"<3>.*none\.json.*\n", text)


def started(path, cache):
    words = [path, "state", str(path.parent / "none.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={program.UNPACK_DIR: str(cache), "PATH": os.defpath})
    assert done.returncode == 1 and starts_and_says(done.stderr), done.stderr


def test_with_a_cache_it_runs_unpacked(path, tmp_path):
    started(path, tmp_path / "cache")
    assert list((tmp_path / "cache").rglob("_exporter/__pycache__/state.*.pyc")), "what it compiled is kept"


def test_without_room_for_a_cache_it_runs_as_it_is(path):
    started(path, "/proc/no-folder-can-be-here")


def test_a_library_that_the_controller_lacks_is_named():
    with pytest.raises(ImportError) as missing:
        _program.build(program.__name__, sys.executable, ["no_such_library"])
    assert missing.value.name == "no_such_library"


def test_what_is_missing_is_named_by_its_package_or_as_it_was_said():
    said = "there is no pynvml here"
    assert "has no nvidia-ml-py: " in exporter_program.missing(ImportError(said, name="pynvml"))
    assert exporter_program.missing(ImportError(said)) == f"the program cannot be made: {said}"
