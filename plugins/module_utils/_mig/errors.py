# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Why no plan leads to the wanted layout."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError


class MigError(RemediationError):
    """The root of what the MIG planner refuses.

    `clean`: nothing was done, for certain. Of a driver that ran out of time, or does not know why, nobody can say that.
    """

    kind = "mig"
    clean = False


class Infeasible(MigError):
    """The GPU cannot have this layout, whatever is on it now.

    `reason` in the details is profile (it has none of that name), start, limit, slices, engine, placement, compute or mode.
    """

    kind = "mig_infeasible"
    clean = True


class Busy(MigError):
    """Instances that are busy would have to go, because the wanted layout does not hold them. They are `instances` in the details."""

    kind = "mig_busy"
    clean = True


class Fragmented(MigError):
    """The wanted layout holds every instance that has to stay, but `instances` stand where the rest of it has to be."""

    kind = "mig_fragmented"


class DriverTooOld(MigError):
    """The driver lacks a call without which nothing can be known or done."""

    kind = "driver_too_old"
    clean = True


class NotPermitted(MigError):
    """Reading places and changing anything takes root."""

    kind = "permission"
    clean = True


class Refused(MigError):
    """NVML refused a call for a reason that is none of the others; `call` and `nvml_error` in the details are its name and number."""

    kind = "nvml"


class ResetRequired(MigError):
    """The GPU was to be reset, and could not be: its mode stays as it is until it is."""

    kind = "reset_required"


class NotAsWanted(MigError):
    """NVML took a call, and what is there afterwards is something else; `differs` in the details says what."""

    kind = "mig_differs"


class UnknownGpu(MigError):
    """A GPU is named that the node does not have."""

    kind = "unknown_gpu"


class Gone(NotAsWanted):
    """What a step is about is not there any more, which was seen before anything was asked of the driver."""

    clean = True


class TimeIsUp(MigError):
    """No further step was begun, because there was no time left for it."""

    kind = "timeout"
