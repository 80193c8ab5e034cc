# The source tree with everything that its tests need, built:
#
#     docker build -f docker/test.Dockerfile -t aiacc:test .
#     docker run --shm-size=2g aiacc:test                  # make test
#     docker run --shm-size=2g aiacc:test test-cpp

ARG BASE=debian:bookworm-20250520-slim

FROM ${BASE} AS tools
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      ca-certificates g++ git iproute2 libgtest-dev libopenmpi-dev make nftables openmpi-bin \
      procps python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 --password '*' --shell /bin/bash mpiuser \
 && install -d -o mpiuser -g mpiuser /src
USER mpiuser
WORKDIR /src
COPY --chown=mpiuser:mpiuser Makefile ./
RUN PIP_EXTRA_INDEX_URL="${TORCH_INDEX_URL}" make build/stamps/tools

FROM tools
COPY --chown=mpiuser:mpiuser . ./
RUN make build
HEALTHCHECK --interval=5m --timeout=1m CMD ["/src/.venv/bin/aiaccrun", "--check-build"]
ENTRYPOINT ["make"]
CMD ["test"]
