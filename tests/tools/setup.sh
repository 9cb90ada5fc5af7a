#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Installs what the demo and the tests need, once, in a cache outside the checkout: setup.sh demo|test
# A part is finished when its folder holds `.done`; whatever an interrupted run left is built again.
set -eu
cd "$(dirname "$0")/../.."
cache=${GPUOPS_CACHE:-$HOME/.cache/gpuops}
ansible_bundle=14.5.0 # the PyPI package whose wheel carries kubernetes.core
oldest_core=2.17.14   # the oldest ansible-core that galaxy.yml's collection supports
newest_core=2.21.5    # needs Python 3.12
sanity_pip=24.2       # what ansible-test of the ansible-core in requirements.txt bootstraps

say() { echo "setup: $*"; }

begin() { # FOLDER WHAT: true when it has to be built
    [ -e "$1/.done" ] && return 1
    say "$2"
    rm -rf "$1"
    mkdir -p "$1"
}

debian() { # PACKAGE COMMAND: notes the package as missing when the command fails
    sh -c "$2" >/dev/null 2>&1 || missing="$missing $1"
}

python_at_least() { # MINOR PYTHON...: the first of them that is 3.MINOR or later
    minor=$1
    shift
    for python in "$@"; do
        "$python" -c "import sys; assert sys.version_info >= (3, $minor)" 2>/dev/null && command -v "$python" && return
    done
    return 1
}

# pyenv's python3.x commands answer only for versions that are switched on.
if command -v pyenv >/dev/null; then
    PYENV_VERSION=$(pyenv versions --bare | paste -sd:)
    export PYENV_VERSION
fi

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9 # several checkouts share the cache

missing=
debian git 'command -v git'
debian gcc 'command -v gcc'
debian python3-venv 'test ! -x /usr/bin/python3 || /usr/bin/python3 -c "import ensurepip"; test -x /usr/bin/python3'
debian python3-dev 'ls /usr/include/python3*/Python.h'
if [ "$1" = test ]; then
    debian postgresql 'ls /usr/lib/postgresql/*/bin/initdb'
    debian openjdk-17-jre-headless 'java -version'
    debian prometheus 'command -v prometheus promtool'
    debian prometheus-alertmanager 'command -v prometheus-alertmanager amtool'
    debian shellcheck 'command -v shellcheck'
    debian systemd 'command -v systemd-analyze'
    debian dbus 'command -v dbus-daemon'
    debian clang 'command -v clang'
    debian llvm 'command -v llvm-strip'
    debian libbpf-dev 'test -e /usr/include/bpf/bpf_helpers.h'
    debian openssh-server 'test -x /usr/sbin/sshd'
    debian openssh-client 'command -v ssh ssh-keygen'
    debian qemu-system-x86 'command -v qemu-system-x86_64'
    debian mmdebstrap 'command -v mmdebstrap'
    debian cpio 'command -v cpio'
    debian zstd 'command -v zstd'
fi
if [ -n "$missing" ]; then
    say "Debian packages:$missing"
    policy=/usr/sbin/policy-rc.d # Debian would start each service that it installs
    if [ ! -e $policy ] && { printf '#!/bin/sh\nexit 101\n' >$policy; } 2>/dev/null; then
        trap 'rm -f $policy' EXIT
        chmod 755 $policy
    else
        policy=
    fi
    # shellcheck disable=SC2086 # several words on purpose
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing; } >"$cache/apt.log" 2>&1 9>&- || {
        tail -n 20 "$cache/apt.log"
        say "could not install$missing; install them by hand and start again"
        exit 1
    }
    [ -z "$policy" ] || rm -f "$policy" # the script ends in an exec, which runs no trap
fi

python=$(python_at_least 11 /usr/bin/python3 python3 python3.11 python3.12 python3.13) || { say "Python 3.11 or later is needed"; exit 1; }
lock=$(sha256sum <tests/requirements.txt | cut -c1-12)

venv() { # FOLDER PYTHON
    begin "$1" "Python packages for $("$2" -V)" || return 0
    "$2" -m venv "$1"
    "$1/bin/pip" -q --disable-pip-version-check install --require-hashes -r tests/requirements.txt
    touch "$1/.done"
}

venv=$cache/venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$lock
venv "$venv" "$python"
pip() { "$venv/bin/pip" -q --disable-pip-version-check "$@"; }

deps=$cache/collections-$ansible_bundle
if begin "$deps" "kubernetes.core from the wheel of ansible $ansible_bundle"; then
    pip download --no-deps --only-binary=:all: --python-version 3.12 -d "$deps" "ansible==$ansible_bundle"
    "$venv/bin/python" - "$deps" <<'PYTHON'
import glob, sys, zipfile

with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]) as wheel:
    wheel.extractall(sys.argv[1], [name for name in wheel.namelist() if name.startswith("ansible_collections/kubernetes/core/")])
PYTHON
    rm -f "$deps"/*.whl
    touch "$deps/.done"
fi

link() { # TARGET LINK
    mkdir -p "$(dirname "$2")"
    ln -sfn "$1" "$2"
}
link "$venv" .ansible/venv
link ../../../.. .ansible/collections/ansible_collections/gpuops/remediation
link "$deps/ansible_collections/kubernetes" .ansible/collections/ansible_collections/kubernetes
[ "$1" = demo ] && exit

# The oldest core lies over the same environment, in front of it on PYTHONPATH.
oldest=$cache/ansible-core-$oldest_core
if begin "$oldest" "ansible-core $oldest_core"; then
    pip install --no-deps --target "$oldest" "ansible-core==$oldest_core"
    touch "$oldest/.done"
fi
link "$oldest" .ansible/oldest-core

# The newest core has an environment of its own, where a Python for it is at hand.
rm -f .ansible/newest
if python=$(python_at_least 12 python3.13 python3.12 "$python"); then
    newest=$cache/venv-newest-$lock
    if [ ! -e "$newest/.done" ]; then
        venv "$newest" "$python"
        rm "$newest/.done"
        "$newest/bin/pip" -q --disable-pip-version-check install --no-deps "ansible-core==$newest_core"
        touch "$newest/.done"
    fi
    link "$newest" .ansible/newest
fi

# ansible-test bootstraps its environments with a script from the internet; this one does the same from PyPI's wheel.
sanity=$cache/sanity-pip-$sanity_pip
if begin "$sanity" "pip $sanity_pip for ansible-test"; then
    pip download --no-deps -d "$sanity" "pip==$sanity_pip"
    cat >"$sanity/get_pip.py" <<PYTHON
import glob, sys
sys.path.insert(0, glob.glob("$sanity/pip-*.whl")[0])
from pip._internal.cli.main import main
sys.exit(main(["install", "--no-index", "--find-links", "$sanity"] + [a for a in sys.argv[1:] if a not in ("--no-setuptools", "--no-wheel")]))
PYTHON
    touch "$sanity/.done"
fi
link "$sanity/get_pip.py" "$cache/home/.ansible/test/cache/get_pip_$(echo $sanity_pip | tr . _).py"

primed=$cache/sanity-primed-$lock
if begin "$primed" "ansible-test's environments"; then
    PATH=$venv/bin:$PATH tests/tools/sanity.sh --prime-venvs >"$primed/log" 2>&1 || { tail -n 20 "$primed/log"; exit 1; }
    touch "$primed/.done"
fi

PYTHONPATH=tests/support "$venv/bin/python" -m vm >/dev/null
PYTHONPATH=tests/support exec "$venv/bin/python" -m cluster build >/dev/null
