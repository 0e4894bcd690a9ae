#!/usr/bin/env bash
# The head of a cluster, until it is asked to end: Ray's control, its job API and the drivers of sweeps. Settings, beside those
# of docker/node.sh:
#
#   HEAD_PORT                   6379: where the other nodes reach it
#   DASHBOARD_HOST              127.0.0.1: the interface of the dashboard and job API, where sweeps are submitted
#   DASHBOARD_PORT              8265
#   MLFLOW_TRACKING_URI         the MLflow server of sweeps that were submitted without one
#   MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD   where that server asks for them
#   RAY_JOB_STOP_WAIT_TIME_S    30: seconds that a cancelled sweep has to end its record
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=node.sh
. "$(dirname "${BASH_SOURCE[0]}")/node.sh"

demand_token
export RAY_JOB_STOP_WAIT_TIME_S="${RAY_JOB_STOP_WAIT_TIME_S:-30}"
NUM_CPUS="${NUM_CPUS:-0}" # a build beside the drivers would keep them from feeding the devices
port="${HEAD_PORT:-6379}"
node_options
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    say "something listens on port $port already: a head of this machine, or choose another HEAD_PORT"
    exit 3
fi
# An earlier head leaves it. With a worker on this machine that has not noticed yet, Ray takes that head for running still.
rm -f "${TEMP_DIR:-/tmp/ray}/ray_current_cluster"

status=0
run_ray --head --port="$port" --dashboard-host="${DASHBOARD_HOST:-127.0.0.1}" --dashboard-port="${DASHBOARD_PORT:-8265}" \
    "${options[@]}" "$@" || status=$?
[ -z "$stopping" ] || exit 0
say "Ray ended with $status"
exit 3
