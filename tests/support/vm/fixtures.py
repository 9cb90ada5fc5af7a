# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""pytest fixtures; a conftest imports those that it offers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vm.machine import Machine, running_machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """The one virtual machine of a test session: a test cleans up after itself."""
    with running_machine() as machine:
        yield machine
