# Head and GPU workers: driver, learner, engines, environments and graders.
# Build it with the repository as the context:
#     docker build -f cluster/image/gpu.Dockerfile -t registry.example.com/rlsys:0.1.0-gpu .
FROM python:3.12-slim-bookworm

# gcc: Triton compiles small C modules when a process starts. ibverbs: NCCL over InfiniBand.
# wget: KubeRay's default probes. No versions: Debian keeps only the newest build of a package.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        gcc ibverbs-providers libc6-dev libibverbs1 libnuma1 wget \
    && rm -rf /var/lib/apt/lists/*

COPY requirements/gpu.txt /opt/rlsys/requirements/gpu.txt
# DeepSpeed has no wheel, and its build reads the installed torch. Its own kernels are left out: rlsys uses
# torch's AdamW.
RUN pip install --no-cache-dir --no-deps --requirement /opt/rlsys/requirements/gpu.txt \
    && DS_BUILD_OPS=0 pip install --no-cache-dir --no-deps --no-build-isolation deepspeed==0.19.8

COPY pyproject.toml README.md LICENSE /opt/rlsys/
COPY actors /opt/rlsys/actors
COPY learner /opt/rlsys/learner
COPY rlsys /opt/rlsys/rlsys
RUN pip install --no-cache-dir --no-deps /opt/rlsys
COPY configs /opt/rlsys/configs
COPY cluster/image/stop_run.py /opt/rlsys/stop_run.py

RUN useradd --create-home --uid 1000 rlsys
USER 1000
WORKDIR /home/rlsys

ENV PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1
