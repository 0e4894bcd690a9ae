#!/usr/bin/env bash
# Installs what an image's Python lacks of this project's dependencies, in the versions of constraints.txt. Run by the images' builds in
# the project's folder:
#
#   docker/install.sh '.[server]'
#
# What a vendor's image brings stays as it is, since no other build of it drives the vendor's cards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
python3 - >"$constraints" <<'PYTHON'
import re
from importlib import metadata

VENDORS = ("torch", "tilelang", "apache-tvm-ffi", "z3-solver")
for line in open("constraints.txt"):
    name = re.split(r"[^\w.-]", line)[0]
    try:
        print(f"{name}=={metadata.version(name)}" if name in VENDORS else line, end="\n" if name in VENDORS else "")
    except metadata.PackageNotFoundError:
        print(line, end="")
PYTHON
python3 -m pip install --no-cache-dir -c "$constraints" "$@"
