#!/usr/bin/env bash
# The MLflow server of a cluster, until it is asked to end. Settings; arguments are handed on to `mlflow server`:
#
#   MLFLOW_BACKEND_STORE_URI        the database (must be set), without its password:
#                                   postgresql+psycopg2://mlflow@postgres:5432/mlflow, or sqlite:////folder/mlflow.db
#   DATABASE_PASSWORD_FILE          the file with the database's password, where it has one
#   MLFLOW_ARTIFACTS_DESTINATION    ./mlartifacts: the folder or bucket where the server keeps artifacts; clients reach it alone
#   MLFLOW_HOST, MLFLOW_PORT        127.0.0.1 and 5000: where it listens
#   MLFLOW_WORKERS                  4 processes
#   MLFLOW_SERVER_ALLOWED_HOSTS     localhost and private addresses: what clients may call the server, with the port, as in
#                                   mlflow:5000,localhost:*,10.*. Any other name is refused with 403, since a page in somebody's
#                                   browser could reach the server by a name of its own. A list replaces all of the default
#   UPGRADE_DATABASE                nothing: 1 brings the database's tables to this MLflow's version first. Back it up before. Without
#                                   it a database of another version is refused
#
# The rest are MLflow's own: https://mlflow.org/docs/latest/self-hosting
set -euo pipefail

refuse() {
    echo "${0##*/}: $*" >&2
    exit 2
}

uri="${MLFLOW_BACKEND_STORE_URI:-}"
[ -n "$uri" ] || refuse "set MLFLOW_BACKEND_STORE_URI to the database, as in postgresql+psycopg2://mlflow@postgres:5432/mlflow"
[[ ! $uri =~ ://[^/@]*:[^/@]*@ ]] || refuse "MLFLOW_BACKEND_STORE_URI holds a password: put it into a file, and name that in DATABASE_PASSWORD_FILE"

export MLFLOW_BACKEND_STORE_URI MLFLOW_ARTIFACTS_DESTINATION="${MLFLOW_ARTIFACTS_DESTINATION:-./mlartifacts}"
export MLFLOW_DISABLE_TELEMETRY="${MLFLOW_DISABLE_TELEMETRY:-true}"
# Seven more processes, for evaluations of language models.
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION="${MLFLOW_SERVER_ENABLE_JOB_EXECUTION:-false}"

server=''
stopping=''
# shellcheck disable=SC2329  # by the trap
stop() {
    stopping=1
    [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || true
}
trap stop TERM INT

# libpq takes a password from a file in a form of its own, which nobody else may read: it is never in an argument or variable.
if [ -n "${DATABASE_PASSWORD_FILE:-}" ]; then
    [ -r "$DATABASE_PASSWORD_FILE" ] || refuse "DATABASE_PASSWORD_FILE: $DATABASE_PASSWORD_FILE cannot be read"
    IFS= read -r password <"$DATABASE_PASSWORD_FILE" || [ -n "$password" ] || refuse "$DATABASE_PASSWORD_FILE is empty"
    PGPASSFILE=$(mktemp)
    trap 'rm -f "$PGPASSFILE"' EXIT
    password=${password//\\/\\\\}
    printf '*:*:*:*:%s\n' "${password//:/\\:}" >"$PGPASSFILE"
    export PGPASSFILE
fi

if [ "${UPGRADE_DATABASE:-}" = 1 ]; then
    mlflow db upgrade "$uri"
else
    python3 "$(dirname "${BASH_SOURCE[0]}")/demand_schema.py" "$uri"
fi
[ -z "$stopping" ] || exit 0
mlflow server --serve-artifacts "$@" &
server=$!
while true; do
    status=0
    wait "$server" || status=$?
    kill -0 "$server" 2>/dev/null || break # else a signal ended the waiting, not the server
done
[ -z "$stopping" ] || exit 0
exit "$status"
