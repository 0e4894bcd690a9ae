# The head of a cluster, its MLflow server, and nodes that measure nothing but their processor: one image, an entry point each.
#
#   docker build -f docker/head.Dockerfile -t sweep-runner-head .
#
# Python is 3.12 in all three images, because it is in MetaX's: Ray takes no node of another minor version, nor of another Ray, which
# constraints.txt pins. pip's own settings are arguments of the build: with PIP_EXTRA_INDEX_URL naming PyTorch's index of builds for the
# CPU, the image is several gigabytes smaller; PIP_INDEX_URL may name a mirror.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
FROM ${PYTHON_IMAGE}

# g++ builds the host's part of a kernel wherever one is built or loaded; procps is worker.sh's.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ procps \
    && rm -rf /var/lib/apt/lists/*

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /opt/sweep-runner
COPY pyproject.toml README.md constraints.txt ./
COPY docker/install.sh docker/
RUN docker/install.sh '.[server]'

COPY kernels kernels
COPY runner runner
COPY tracking tracking
RUN python3 -m pip install --no-cache-dir --no-deps --force-reinstall .
COPY docker/node.sh docker/head.sh docker/worker.sh docker/mlflow.sh docker/demand_schema.py docker/

# What waits for MLflow, and what MLflow keeps, are volumes, which take their owner from the image.
RUN useradd --uid 10001 --create-home --shell /bin/bash sweep \
    && install -d -o sweep -g sweep /home/sweep/.sweep-runner /home/sweep/artifacts
USER 10001
WORKDIR /home/sweep
ENTRYPOINT ["/opt/sweep-runner/docker/head.sh"]
