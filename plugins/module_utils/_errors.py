# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The root of every error that this collection raises on purpose."""

from __future__ import annotations

from typing import Any


class RemediationError(Exception):
    """What went wrong, in words for the person who runs the playbook.

    `kind` is a stable identifier that playbooks may branch on (it becomes the result's `error_kind`);
    `details` goes into the module's result.
    """

    kind = "error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    def failure(self) -> dict[str, Any]:
        """Keyword arguments for `AnsibleModule.fail_json`."""
        return {"msg": str(self), "error_kind": self.kind, **self.details}


class MissingLibrary(RemediationError):
    """A Python library that the work needs is not installed; `exception` in the details is the import's traceback."""

    kind = "missing_library"
