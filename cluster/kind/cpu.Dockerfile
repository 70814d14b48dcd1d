# A small image for kind: the locked CPU stack, installed as `make setup` does it.
#     docker build -f cluster/kind/cpu.Dockerfile -t rlsys:cpu .
FROM python:3.11-slim-bookworm

COPY requirements/cpu.txt requirements/cpu-no-deps.txt /opt/rlsys/requirements/
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --requirement /opt/rlsys/requirements/cpu.txt \
    && pip install --no-cache-dir --no-deps --requirement /opt/rlsys/requirements/cpu-no-deps.txt \
    && DS_ACCELERATOR=cpu DS_BUILD_OPS=0 pip install --no-cache-dir --no-deps --no-build-isolation deepspeed==0.19.8

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
    RAY_USAGE_STATS_ENABLED=0
