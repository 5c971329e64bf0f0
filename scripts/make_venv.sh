#!/bin/sh
# Makes or renews the environment: make_venv.sh PYTHON VENV. Says what to do when it cannot.
set -eu
python=$1
venv=$2

fail() {
    printf 'make: %s\n' "$@" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || fail \
    "there is no '$python' here." \
    "Install Python 3.11, 3.12 or 3.13, or name one: make setup PYTHON=/path/to/python3"

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || fail \
    "vivace needs Python 3.11, 3.12 or 3.13; '$python' is $("$python" -V 2>&1)." \
    "Name another: make setup PYTHON=python3.12"

# Some distributions ship python3 without these two.
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail \
    "'$python' cannot make virtual environments: its venv or ensurepip module is missing." \
    "On Debian and Ubuntu: sudo apt install python3-venv. Or name another: make setup PYTHON=..."

echo "make: setting up $venv ($("$python" -V 2>&1)); the first time downloads torch and takes minutes"
# An environment of another Python, or one that was moved, is made anew.
if ! "$venv/bin/python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')')" 2>/dev/null; then
    "$python" -m venv --clear "$venv"
fi
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]' || fail \
    "pip could not install the packages (see above)." \
    "It needs a package registry: check the network or your pip configuration, then run make again."
