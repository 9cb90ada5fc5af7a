# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""python -m vm: builds the image if it is missing, and says where it is."""

from __future__ import annotations

import sys

from vm.image import image
from vm.qemu import VmError

try:
    print(image())
except VmError as error:
    sys.exit(f"vm: {error}")
