# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What goes wrong with MPS, by kind."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError


class MpsError(RemediationError):
    kind = "mps"


class BadValue(MpsError):
    """Refused by us: the daemon would take it, and do something else."""

    kind = "bad_value"


class NoProgram(MpsError):
    kind = "no_program"


class NoDaemon(MpsError):
    kind = "no_daemon"


class ControlHangs(MpsError):
    """The control daemon does one thing after the other, and waits in some of them for a client's end."""

    kind = "control_hangs"


class NotUnderstood(MpsError):
    """An answer of the control daemon that is none of those known."""

    kind = "not_understood"


class NoServer(MpsError):
    kind = "no_server"


class ServerFault(MpsError):
    kind = "server_fault"


class ClientStopped(MpsError):
    kind = "client_stopped"


class HasClients(MpsError):
    kind = "has_clients"


class ComputeModeRefused(MpsError):
    kind = "compute_mode"


class UnitError(MpsError):
    kind = "unit"
