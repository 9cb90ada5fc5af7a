# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: runbook
type: stdout
short_description: Show a run as its runbook reads
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - One line for each stage and node, with the seconds since the start; below it what was changed and what went wrong.
  - What only looked, was skipped or led to other tasks is not shown; the default callback shows it.
"""

import re
import time
from typing import Any, Optional

from ansible import constants as C
from ansible.plugins.callback import CallbackBase

# These only lead to other tasks, or keep what another task did.
_SILENT = ("include_role", "include_tasks", "import_role", "import_tasks", "set_fact", "add_host", "group_by", "meta", "assert")


# Some of what is shown was in a kernel log: it is read, and never steers the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpuops.remediation.runbook"

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._stage: dict[str, str] = {}  # by host, since hosts go at their own pace

    def v2_playbook_on_include(self, included_file: Any) -> None:
        task = included_file._task
        if task.action.endswith("include_role") and ":" in task.get_name():
            for host in included_file._hosts:
                if self._stage.get(host.name) != task.get_name():
                    self._stage[host.name] = task.get_name()
                    self._line(host.name, task.get_name(), C.COLOR_HIGHLIGHT)

    def v2_runner_on_ok(self, result: Any) -> None:
        task, answer = result._task, result._result
        action = task.action.rsplit(".", 1)[-1]
        if action == "debug":
            self._display.display(_plain(answer.get("msg", "")))
        elif answer.get("changed") and action not in _SILENT:
            self._line(result._host.name, f"  changed  {self._name(task)}", C.COLOR_CHANGED)
            self._diffs(answer)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        answer = result._result
        self._line(result._host.name, f"  failed   {self._name(result._task)}: {answer.get('msg', 'no message')}", C.COLOR_ERROR)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self.v2_runner_on_failed(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._line(result._host.name, f"  silent   {result._result.get('msg', 'unreachable')}", C.COLOR_UNREACHABLE)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._display.display("No node has anything to do.", color=C.COLOR_SKIP)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        failed = [host for host in stats.processed if stats.summarize(host)["failures"] or stats.summarize(host)["unreachable"]]
        ending = f"failed on {', '.join(sorted(failed))}" if failed else "done"
        self._line("", ending, C.COLOR_ERROR if failed else C.COLOR_OK)

    def _diffs(self, answer: dict[str, Any]) -> None:
        if self._display.verbosity or C.DIFF_ALWAYS:
            diff: Optional[Any] = answer.get("diff")
            if diff:
                self._display.display(self._get_diff(diff))

    @staticmethod
    def _name(task: Any) -> str:
        return str(task.get_name(include_role_fqcn=False)).split(" : ", 1)[-1]

    def _line(self, host: str, text: str, color: Optional[str] = None) -> None:
        self._display.display(_plain(f"{time.monotonic() - self._began:6.1f} s  {host:<10} {text}"), color=color)


def _plain(text: Any) -> str:
    return _CONTROL.sub("\ufffd", str(text))
