# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs modules without a playbook, and answers what a playbook would get."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from ansible.module_utils import basic


def run_module(main: Callable[[], None], check_mode: bool = False, **params: Any) -> dict[str, Any]:
    """In this process; one at a time."""
    output = io.StringIO()
    with _arguments({**params, "_ansible_check_mode": check_mode}), contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main()
    answer: dict[str, Any] = json.loads(output.getvalue())
    return answer


def run_beside(module: ModuleType, **params: Any) -> dict[str, Any]:
    """In a process of its own, so that several run at once."""
    command = (
        f"import json, sys, run_module, {module.__name__} as it; print(json.dumps(run_module.run_module(it.main, **json.load(sys.stdin))))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", command], input=json.dumps(params), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


@contextlib.contextmanager
def _arguments(arguments: dict[str, Any]) -> Iterator[None]:
    try:
        from ansible.module_utils.testing import patch_module_args
    except ImportError:  # before ansible-core 2.18
        with mock.patch.object(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()):
            yield
    else:
        with patch_module_args(arguments):
            yield
