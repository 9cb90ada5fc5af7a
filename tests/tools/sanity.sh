#!/bin/sh
# ansible-test sanity on every supported Python found here; arguments are passed on.
# It insists on a real folder .../ansible_collections/gpuops/remediation, so it gets a copy of the checkout.
set -eu
cache=${GPUOPS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuops}
copy=$cache/sanity-$(pwd | cksum | cut -d' ' -f1)/ansible_collections/gpuops/remediation
rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard --deduplicate | xargs -0 -r ls -d 2>/dev/null | tar -cf - -T - | tar -xf - -C "$copy"
cd "$copy"
# pyenv's python3.x commands answer only for versions that are switched on.
if command -v pyenv >/dev/null; then
    PYENV_VERSION=$(pyenv versions --bare | paste -sd:)
    export PYENV_VERSION
fi
# An own home, because it holds our pip bootstrap; pip's settings and cache stay the user's.
export PIP_CONFIG_FILE="${PIP_CONFIG_FILE:-$HOME/.config/pip/pip.conf}" PIP_CACHE_DIR="${PIP_CACHE_DIR:-$HOME/.cache/pip}"
HOME=$cache/home exec ansible-test sanity --color no "$@"
