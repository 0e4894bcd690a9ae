# A node with MetaX cards, which also builds: MetaX's image has its compiler, mxcc, and MetaX's torch, which stays.
#
#   docker build -f docker/worker-maca.Dockerfile -t sweep-runner-worker-maca .
#   docker run --device=/dev/dri --device=/dev/mxcd --group-add video … sweep-runner-worker-maca
#
# What head.Dockerfile says of Python, Ray and pip's settings holds here too. MetaX's registry may ask for a login. TileLang's own
# packages know no maca target, so that its port is built here from source, which takes a while.
ARG MACA_IMAGE=cr.metax-tech.com/public-library/maca-pytorch:3.8.0.11-torch2.10-py312-ubuntu24.04-amd64

FROM ${MACA_IMAGE} AS tilelang
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates cmake g++ git libedit-dev make zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG TILELANG_SOURCE=https://github.com/tile-ai/tilelang-metax.git
ARG TILELANG_COMMIT=f7451dfce010234f540472d442b3f68d4f94232e
ENV MACA_PATH=/opt/maca
WORKDIR /src
# Its build applies patches with git, which wants to know who does. MetaX's CUDA shim must not be taken for the host's compiler.
RUN git config --global user.name sweep-runner \
    && git config --global user.email sweep-runner@localhost \
    && git clone "$TILELANG_SOURCE" . \
    && git checkout "$TILELANG_COMMIT" \
    && git submodule update --init --recursive \
    && USE_MACA=ON CC=gcc CXX=g++ python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${MACA_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ procps \
    && rm -rf /var/lib/apt/lists/*

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /opt/sweep-runner
COPY pyproject.toml README.md constraints.txt ./
COPY docker/install.sh docker/
# pymxsml is how Ray counts MetaX's cards. Nothing below may replace MetaX's torch, and nothing does: this fails if something did.
COPY --from=tilelang /wheels /wheels
RUN before=$(python3 -c 'import importlib.metadata as m; print(m.version("torch"))') \
    && echo "torch==$before" >/tmp/torch.txt \
    && python3 -m pip install --no-cache-dir -c /tmp/torch.txt /wheels/*.whl /opt/maca/share/mxsml/pymxsml-*.whl \
    && docker/install.sh . \
    && test "$(python3 -c 'import importlib.metadata as m; print(m.version("torch"))')" = "$before"

COPY kernels kernels
COPY runner runner
COPY tracking tracking
RUN python3 -m pip install --no-cache-dir --no-deps --force-reinstall .
COPY docker/node.sh docker/worker.sh docker/

ENV MACA_PATH=/opt/maca CC=gcc CXX=g++
RUN useradd --uid 10001 --create-home --shell /bin/bash --groups video sweep
USER 10001
WORKDIR /home/sweep
ENTRYPOINT ["/opt/sweep-runner/docker/worker.sh"]
