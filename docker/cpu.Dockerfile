# aiacc for CPUs, with torch, TensorFlow and MPICH:
#
#     docker build -f docker/cpu.Dockerfile -t aiacc:cpu .

ARG BASE=debian:bookworm-20250520-slim

# Compiles the wheel.
FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /venv
ENV PATH=/venv/bin:$PATH
COPY docker/build.txt /src/docker/
RUN pip install --no-cache-dir -r /src/docker/build.txt
COPY CMakeLists.txt LICENSE MANIFEST.in README.md pyproject.toml setup.py /src/
COPY cmake /src/cmake
COPY csrc /src/csrc
COPY aiacc /src/aiacc
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels /src

# Only installs it.
FROM ${BASE}
ARG TORCH=torch==2.13.0+cpu
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG TENSORFLOW=tensorflow-cpu==2.21.0
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      ca-certificates openssh-client openssh-server python3 python3-venv \
 # Whoever starts a container brings keys; those of an image would be everybody's.
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 && useradd --create-home --uid 1000 --password '*' --shell /bin/bash mpiuser \
 && install -d -m 700 -o mpiuser -g mpiuser /home/mpiuser/.ssh
RUN python3 -m venv /opt/aiacc
ENV PATH=/opt/aiacc/bin:$PATH
# torch and TensorFlow come first and pinned: whatever depends on them must not choose others.
RUN pip install --no-cache-dir --extra-index-url "${TORCH_INDEX_URL}" "${TORCH}" \
 && pip install --no-cache-dir "${TENSORFLOW}"
COPY docker/run.txt /opt/aiacc/
RUN --mount=type=bind,from=build,source=/wheels,target=/tmp/wheels \
    pip install --no-cache-dir -r /opt/aiacc/run.txt /tmp/wheels/*.whl
COPY docker/ssh_config /etc/ssh/ssh_config.d/aiacc.conf
COPY docker/sshd_config /home/mpiuser/.sshd_config
COPY examples /opt/aiacc/examples

USER mpiuser
WORKDIR /home/mpiuser
# sshd of the workers: /usr/sbin/sshd -De -f /home/mpiuser/.sshd_config
EXPOSE 2222
HEALTHCHECK --interval=5m --timeout=1m CMD ["aiaccrun", "--check-build"]
ENTRYPOINT ["aiaccrun"]
CMD ["--check-build"]
