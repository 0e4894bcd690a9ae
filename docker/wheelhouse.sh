#!/usr/bin/env bash
# Fills a folder with the wheels of this project and of all that it needs, for nodes that reach no registry:
#
#   docker/wheelhouse.sh wheelhouse                                                   here, on a machine that reaches one
#   pip install --no-index --find-links wheelhouse 'sweep-runner[server]'           there, after the folder was copied
#
# Settings, by environment variables:
#
#   PYTHON        python3: of the same minor version as the nodes', on the same kind of machine
#   NODE_HAS      torch, in the version of constraints.txt: what the nodes have already, as name or name==version. It is left out, with
#                 what only it needs. Nodes with MetaX cards: NODE_HAS='torch==2.10.0 tilelang==0.1.9 apache-tvm-ffi==0.1.10'
#   CONSTRAINTS   constraints.txt: the versions to take
#
# Further arguments are requirements, in place of this project.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder="${1:-}"
if [ -z "$folder" ] || [ "${folder#-}" != "$folder" ]; then
    echo "usage: ${0##*/} FOLDER [REQUIREMENT…]" >&2
    exit 2
fi
shift
[ $# -gt 0 ] || set -- "${project}[server]"
python="${PYTHON:-python3}"
constraints="${CONSTRAINTS:-$project/constraints.txt}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A stand-in for a node: pip takes what it finds there for installed, and asks for the rest.
"$python" -m venv --without-pip "$scratch/node"
packages=$("$scratch/node/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$constraints" "$scratch/constraints.txt"
for had in ${NODE_HAS-torch}; do
    name=${had%%==*}
    version=${had#"$name"}
    version=${version#==}
    version=${version:-$(sed -n "s/^$name==\([^ ;]*\).*/\1/p" "$constraints")}
    mkdir "$packages/${name//-/_}-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$name" "$version" >"$packages/${name//-/_}-$version.dist-info/METADATA"
    sed -i "/^$name==/d" "$scratch/constraints.txt"
done

"$python" -m pip --python "$scratch/node/bin/python" install --quiet --dry-run --report "$scratch/report.json" \
    -c "$scratch/constraints.txt" "$@"
"$python" - "$scratch/report.json" >"$scratch/wanted.txt" <<'PYTHON'
import json
import sys
from urllib.parse import unquote, urlsplit

for item in json.load(open(sys.argv[1]))["install"]:
    source, found = item["download_info"], item["metadata"]
    print(unquote(urlsplit(source["url"]).path) if "dir_info" in source else f"{found['name']}=={found['version']}")
PYTHON
mkdir -p "$folder"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" -r "$scratch/wanted.txt"
echo "$(wc -l <"$scratch/wanted.txt") wheels in $folder"
