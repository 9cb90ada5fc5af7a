# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A role's expressions without a run, with Ansible's own filters."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from ansible.plugins.filter.core import FilterModule
from ansible.plugins.filter.mathstuff import FilterModule as SetFilterModule
from jinja2 import ChainableUndefined, StrictUndefined
from jinja2.nativetypes import NativeEnvironment


class _Undefined(ChainableUndefined, StrictUndefined):
    """As Ansible's: it may be looked into and have a default, and is nothing else."""


def evaluated(expression: Any, **given: Any) -> Any:
    """What Ansible makes of it where these variables are set."""
    environment = NativeEnvironment(undefined=_Undefined)
    known = {**SetFilterModule().filters(), **FilterModule().filters(), **environment.filters}
    environment.filters = {name: _unrolled(filter_) for name, filter_ in known.items()}
    return environment.from_string(str(expression).strip()).render(given)


def _unrolled(function: Callable[..., Any]) -> Callable[..., Any]:
    """What Ansible makes of Jinja's generators: lists."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        answer = function(*arguments, **options)
        return list(answer) if isinstance(answer, types.GeneratorType) else answer

    return call
