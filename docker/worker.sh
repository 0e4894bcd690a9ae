#!/usr/bin/env bash
# A node that builds and measures, until it is asked to end. It waits for the head, and joins again whenever Ray has ended here: a
# raylet ends itself when its head was started anew, or was out of reach for a minute. Settings, beside those of docker/node.sh:
#
#   HEAD_ADDRESS    the head's address and HEAD_PORT, as in 10.0.0.1:6379 (must be set)
#   MAX_PAUSE       60: seconds at most between two tries. The pause begins at one second, doubles with each try, and begins again
#                   after a node that has lasted a minute
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=node.sh
. "$(dirname "${BASH_SOURCE[0]}")/node.sh"

address="${HEAD_ADDRESS:-}"
[[ $address == ?*:+([0-9]) ]] || refuse "HEAD_ADDRESS is '$address': set it to the head's address and port, as in 10.0.0.1:6379"
demand_token
node_options

# Within five seconds: a machine that is cut off would wait for minutes.
# shellcheck disable=SC2016  # the inner shell expands them
head_answers() { timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "${address%:*}" "${address##*:}" 2>/dev/null; }

rest() {
    local end=$((SECONDS + $1))
    while [ -z "$stopping" ] && [ $SECONDS -lt $end ]; do sleep 1 || true; done
}

trap stop TERM INT
pause=1
while [ -z "$stopping" ]; do
    if ! head_answers; then
        [ -n "${waiting:-}" ] || say "waiting for the head at $address"
        waiting=1
        rest 2
        continue
    fi
    waiting=''
    began=$SECONDS status=0
    run_ray --address="$address" "${options[@]}" "$@" || status=$?
    [ -z "$stopping" ] || break
    [ $((SECONDS - began)) -lt 60 ] || pause=1
    say "Ray ended here with $status: joining again in $pause s"
    rest "$pause"
    pause=$((2 * pause < ${MAX_PAUSE:-60} ? 2 * pause : ${MAX_PAUSE:-60}))
done
