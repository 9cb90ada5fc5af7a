#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# ansible-test sanity on every supported Python found here; arguments are passed on.
# It insists on a real folder .../ansible_collections/gpuops/remediation, so it gets a copy of the checkout.
set -eu
cache=${GPUOPS_CACHE:-$HOME/.cache/gpuops}
copy=$cache/sanity-$(pwd | cksum | cut -d' ' -f1)/ansible_collections/gpuops/remediation
rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard --deduplicate | xargs -0 -r ls -d 2>/dev/null | tar -cf - -T - | tar -xf - -C "$copy"
cd "$copy"
# It clears the environment, so that pyenv's python3.x commands would answer only for the versions switched on: name their folders.
if command -v pyenv >/dev/null; then
    PATH=$(dirname "$(command -v ansible-test)"):$(printf '%s:' "$(pyenv root)"/versions/3.*/bin)$PATH
fi
# Its home is ours, because it holds our pip bootstrap; pip's settings are the user's.
ln -sfn "$HOME/.config" "$cache/home/.config"
HOME=$cache/home exec ansible-test sanity --color no "$@"
