# shellcheck shell=bash
# What head.sh and worker.sh share. Sourced, not run. The settings of a node of either kind, by environment variables:
#
#   RAY_AUTH_MODE           token. Without it, or with "disabled", whoever reaches the cluster runs code on it
#   RAY_AUTH_TOKEN_PATH     ~/.ray/auth_token: the file with the cluster's token (Ray's own; RAY_AUTH_TOKEN has it in place)
#   NODE_IP                 Ray's guess: the address that the other nodes reach this one by
#   NUM_CPUS                how many builds may run here at once (the head: 0; a worker: its processors)
#   NUM_GPUS                Ray's count: NVIDIA's driver tells, MetaX's pymxsml
#   MEASURES                nothing: the target that this node measures, cpu, cuda or maca (or several, by commas). Where any
#                           node of a cluster names a target, those that do not only build for it
#   AGENT_PORT              52365: where Ray's agent answers /api/local_raylet_healthz. Two nodes on one machine need two
#   WORKER_PORTS            Ray's choice, 10002-19999: the ports of Ray's worker processes, first and last
#   TEMP_DIR                /tmp/ray: Ray's logs and sockets; a short path, since sockets allow no long one
#
# Arguments are handed on to `ray start`.

export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
export RAY_USAGE_STATS_ENABLED="${RAY_USAGE_STATS_ENABLED:-0}"
# Nodes need one minor version of Python, and Ray would ask for one patch version: vendors' images bring their own.
export RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL="${RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL:-minor}"

say() { echo "${0##*/}: $*" >&2; }

refuse() {
    say "$*"
    exit 2
}

# Ray itself ends with pages of a stack where its token cannot be read.
demand_token() {
    local file="${RAY_AUTH_TOKEN_PATH:-${HOME:-}/.ray/auth_token}"
    if [ "$RAY_AUTH_MODE" = token ] && [ -z "${RAY_AUTH_TOKEN:-}" ] && ! grep -q . "$file" 2>/dev/null; then
        refuse "no token in $file: write the cluster's there (\`openssl rand -hex 32\` makes one), or name its file in RAY_AUTH_TOKEN_PATH"
    fi
}

options=() # of `ray start`: what the settings above come to

node_options() {
    options+=(--dashboard-agent-listen-port="${AGENT_PORT:-52365}" --temp-dir="${TEMP_DIR:-/tmp/ray}" --disable-usage-stats)
    [ -z "${NODE_IP:-}" ] || options+=(--node-ip-address="$NODE_IP")
    [ -z "${NUM_CPUS:-}" ] || options+=(--num-cpus="$NUM_CPUS")
    [ -z "${NUM_GPUS:-}" ] || options+=(--num-gpus="$NUM_GPUS")
    [ -z "${WORKER_PORTS:-}" ] || options+=(--min-worker-port="${WORKER_PORTS%-*}" --max-worker-port="${WORKER_PORTS#*-}")
    measured
}

measured() {
    local target resources='' measures="${MEASURES:-}"
    for target in ${measures//,/ }; do
        case $target in
            cpu | cuda | maca) resources+=", \"sweep-$target\": 1" ;;
            *) refuse "MEASURES is '$measures': it may name cpu, cuda and maca" ;;
        esac
    done
    [ -z "$resources" ] || options+=(--resources="{${resources#, }}")
}

ENDS_WITHIN=5 # seconds that `ray start` has after its raylet
node=''       # its process
stopping=''

# Asks Ray to end: it lets what runs here finish for RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S (30) seconds.
stop() {
    stopping=1
    [ -z "$node" ] || kill -TERM "$node" 2>/dev/null || true
}

# Runs `ray start --block` and answers with its status once it has ended. It ends by itself when its raylet crashes, but stays where that
# ended in good order, as when it was drained or stopped by hand: then there is no node, and nobody would start one. It may also hang
# while it ends. Its own end takes its children along, by the kernel.
run_ray() {
    local raylet='' well=$SECONDS status=0
    ray start --block "$@" &
    node=$!
    trap stop TERM INT
    while kill -0 "$node" 2>/dev/null; do
        [ -n "$raylet" ] || raylet=$(pgrep -P "$node" -x raylet || true)
        if [ -z "$raylet$stopping" ] || kill -0 "$raylet" 2>/dev/null; then
            well=$SECONDS
        elif [ $((SECONDS - well)) -gt "$ENDS_WITHIN" ]; then
            kill -KILL "$node" 2>/dev/null || true
        fi
        sleep 1 || true
    done
    wait "$node" || status=$?
    node=''
    return "$status"
}
