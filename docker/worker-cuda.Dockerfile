# A node with NVIDIA cards, which also builds: nvcc is there.
#
#   docker build -f docker/worker-cuda.Dockerfile -t sweep-runner-worker-cuda .
#
# What head.Dockerfile says of Python, Ray and pip's settings holds here too. The driver of the machine must be as new as the toolkit. An
# image that brings torch keeps it: --build-arg CUDA_IMAGE=… names one, with Python 3.12.
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04
FROM ${CUDA_IMAGE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ procps python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Ubuntu's Python takes no packages of others. What the image installed for it is seen all the same.
RUN python3 -m venv --system-site-packages /opt/venv
ENV PATH=/opt/venv/bin:$PATH

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /opt/sweep-runner
COPY pyproject.toml README.md constraints.txt ./
COPY docker/install.sh docker/
RUN docker/install.sh .

COPY kernels kernels
COPY runner runner
COPY tracking tracking
RUN python3 -m pip install --no-cache-dir --no-deps --force-reinstall .
COPY docker/node.sh docker/worker.sh docker/

RUN useradd --uid 10001 --create-home --shell /bin/bash sweep
USER 10001
WORKDIR /home/sweep
ENTRYPOINT ["/opt/sweep-runner/docker/worker.sh"]
