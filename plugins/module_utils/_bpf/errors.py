# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What can be wrong with probes. Each says what has to be done about it."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError


class ProbeError(RemediationError):
    """The kernel or libbpf refused; the message has its own words."""

    kind = "probe_error"


class Unsupported(ProbeError):
    """This machine cannot have probes that stay."""

    kind = "unsupported"


class NoBpffs(ProbeError):
    kind = "no_bpffs"


class NotPermitted(ProbeError):
    kind = "not_permitted"


class SymbolMissing(ProbeError):
    """A library that was named is not one of the driver."""

    kind = "symbol_missing"


class CopyChanged(ProbeError):
    """The file at the path is not the one that was found there; a later run finds what is there now."""

    kind = "copy_changed"


class OtherLayout(ProbeError):
    """The pinned maps are of a version whose counts cannot be taken over."""

    kind = "other_layout"
