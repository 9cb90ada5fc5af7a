#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Unpacks the QEMU of bookworm's backports into ./qemu. It needs the libraries of bookworm's own, which is installed, and nothing else.
set -eu
mkdir -p apt/lists/partial apt/cache/archives/partial qemu
# shellcheck disable=SC2016 # this is apt's
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Release: bookworm' | head -n 1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" >apt/sources.list
own="-o Dir::Etc::sourcelist=$PWD/apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt/cache"
# shellcheck disable=SC2086 # several words on purpose
apt-get --quiet=2 $own update
# shellcheck disable=SC2086
(cd apt && apt-get --quiet=2 $own -o APT::Sandbox::User=root download qemu-system-x86 qemu-system-common qemu-system-data seabios)
for package in apt/*.deb; do
    dpkg -x "$package" qemu
done
rm -r apt
qemu/usr/bin/qemu-system-x86_64 --version
