# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a module's main() in this process and answers its result, as a playbook would get it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ansible.module_utils import basic


def run_module(main: Callable[[], None], check_mode: bool = False, **params: Any) -> dict[str, Any]:
    output = io.StringIO()
    with _arguments({**params, "_ansible_check_mode": check_mode}), contextlib.redirect_stdout(output):
        try:
            main()
        except SystemExit:
            pass
    answer: dict[str, Any] = json.loads(output.getvalue())
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
