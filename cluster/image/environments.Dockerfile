# CPU workers: environments and graders of a run, and the economics environment behind Ray Serve.
# Build it with the repository as the context:
#     docker build -f cluster/image/environments.Dockerfile -t registry.example.com/rlsys:0.1.0-environments .
FROM python:3.12-slim-bookworm

COPY requirements/environments.txt /opt/rlsys/requirements/environments.txt
RUN pip install --no-cache-dir --no-deps --requirement /opt/rlsys/requirements/environments.txt

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
