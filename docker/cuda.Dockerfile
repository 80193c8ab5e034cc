# aiacc for GPUs, with MPICH and NCCL, and with torch or TensorFlow:
#
#     docker build -f docker/cuda.Dockerfile --target torch -t aiacc:cuda-torch .
#     docker build -f docker/cuda.Dockerfile --target tensorflow -t aiacc:cuda-tensorflow .
#
# Two images: torch brings NCCL for CUDA 13 and TensorFlow that for CUDA 12, as the same files.

ARG CUDA=13.0.1
ARG SYSTEM=ubuntu24.04

# Compiles the wheel, with nvcc.
FROM nvidia/cuda:${CUDA}-devel-${SYSTEM} AS build
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

# What both images share. The libraries of CUDA come as wheels, with the framework.
FROM nvidia/cuda:${CUDA}-base-${SYSTEM} AS system
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      ca-certificates openssh-client openssh-server python3 python3-venv \
 # Whoever starts a container brings keys; those of an image would be everybody's.
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 # Ubuntu's image has a user of this number.
 && userdel --remove ubuntu \
 && useradd --create-home --uid 1000 --password '*' --shell /bin/bash mpiuser \
 && install -d -m 700 -o mpiuser -g mpiuser /home/mpiuser/.ssh
RUN python3 -m venv /opt/aiacc
ENV PATH=/opt/aiacc/bin:$PATH
COPY docker/ssh_config /etc/ssh/ssh_config.d/aiacc.conf
COPY docker/sshd_config /home/mpiuser/.sshd_config
COPY docker/run.txt /opt/aiacc/
COPY examples /opt/aiacc/examples
# sshd of the workers: /usr/sbin/sshd -De -f /home/mpiuser/.sshd_config
EXPOSE 2222
HEALTHCHECK --interval=5m --timeout=1m CMD ["aiaccrun", "--check-build"]
ENTRYPOINT ["aiaccrun"]
CMD ["--check-build"]

FROM system AS tensorflow
ARG TENSORFLOW=tensorflow[and-cuda]==2.21.0
RUN pip install --no-cache-dir "${TENSORFLOW}"
RUN --mount=type=bind,from=build,source=/wheels,target=/tmp/wheels \
    pip install --no-cache-dir -r /opt/aiacc/run.txt /tmp/wheels/*.whl
USER mpiuser
WORKDIR /home/mpiuser

FROM system AS torch
ARG TORCH=torch==2.13.0
RUN pip install --no-cache-dir "${TORCH}"
RUN --mount=type=bind,from=build,source=/wheels,target=/tmp/wheels \
    pip install --no-cache-dir -r /opt/aiacc/run.txt /tmp/wheels/*.whl
USER mpiuser
WORKDIR /home/mpiuser
