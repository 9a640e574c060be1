# hadolint global ignore=DL3008
# The worker as an image: no weights inside but the demo model's 29 MB, a user without rights, all data below /base.
#
#     docker build -t darkroom .
#     docker run --gpus all -p 127.0.0.1:8000:8000 -e API_KEYS="$SECRET" -v "$PWD/base:/base" darkroom
#
# It listens on all addresses and so asks for a key (API_KEYS, API_KEYS_FILE), or for UNSECURED=true.
#
# Build arguments:
#
#     ACCELERATOR      cuda13 (default): NVIDIA driver 580 or newer, compute capability 7.5 or newer
#                      cuda12: NVIDIA driver 525 or newer; no Blackwell cards
#                      cpu: no GPU, a much smaller image
#     SYSTEM_PACKAGES  Ubuntu packages for node packs and torch.compile; empty leaves them out
#
# Every RUN step is a plain shell line that also runs by hand on Ubuntu 24.04; tests/test_install.py runs them in order.
# PyTorch's wheels contain their own CUDA libraries, so a base only has to make the devices visible and to name the driver.
#
# The bases are named by the digest of their index as well as by their tag. Every Python package has the hash that
# tools/locks names, except PyTorch's builds outside PyPI where tools/lock.sh could not reach their index.
ARG ACCELERATOR=cuda13

FROM ubuntu:24.04@sha256:4fbb8e6a8395de5a7550b33509421a2bafbc0aab6c06ba2cef9ebffbc7092d90 AS base-cpu

FROM ubuntu:24.04@sha256:4fbb8e6a8395de5a7550b33509421a2bafbc0aab6c06ba2cef9ebffbc7092d90 AS base-cuda12
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA="cuda>=12.0"

FROM nvidia/cuda:13.0.1-base-ubuntu24.04@sha256:f8ef28f579ea42a44b415d2c5d46f788e6a9b395c6c83f2929416e1fc192c143 AS base-cuda13

# hadolint ignore=DL3006
FROM base-${ACCELERATOR} AS base
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv bubblewrap && rm -rf /var/lib/apt/lists/*

# --- the wheel: everything that changes with each commit --------------------------------------------------------------
FROM base AS wheel
WORKDIR /build
RUN python3 -m venv /opt/builder
COPY tools/locks/build.txt build.txt
RUN /opt/builder/bin/python -m pip install --no-cache-dir --require-hashes --requirement build.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY darkroom darkroom
COPY worker worker
COPY engine engine
COPY modifiers modifiers
COPY host host
COPY contract contract
COPY misc misc
RUN /opt/builder/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# --- the image: layers in the order in which they change, the largest and stillest first ------------------------------
FROM base
ARG ACCELERATOR
ARG SYSTEM_PACKAGES="git ffmpeg libgl1 libegl1 libgles2 libgl1-mesa-dri libglib2.0-0t64 g++ python3-dev"
LABEL org.opencontainers.image.title="darkroom" \
      org.opencontainers.image.description="Serverless GPU worker for node-graph image generation" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN if [ -n "${SYSTEM_PACKAGES}" ]; then apt-get update && apt-get install -y --no-install-recommends ${SYSTEM_PACKAGES} && rm -rf /var/lib/apt/lists/*; fi
RUN python3 -m venv /opt/darkroom
WORKDIR /opt/install
COPY tools/locks/torch-${ACCELERATOR}.txt torch.txt
RUN /opt/darkroom/bin/python -m pip install --no-cache-dir --requirement torch.txt
COPY tools/locks/image.txt image.txt
RUN /opt/darkroom/bin/python -m pip install --no-cache-dir --no-deps --require-hashes --requirement image.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels /opt/darkroom/bin/python -m pip install --no-cache-dir --no-deps /wheels/darkroom_worker-*.whl
# What a child image or a node pack installs must fit what is here.
RUN /opt/darkroom/bin/python -m pip freeze --exclude darkroom-worker > constraints.txt && /opt/darkroom/bin/python -m pip check

# The user may not change the image. What `darkroom nodes install` fetches for it goes to /base/python, beside the packs.
RUN /opt/darkroom/bin/python -c "import pathlib, sysconfig as s; own = pathlib.Path(s.get_path('purelib')); (own / 'packs.pth').write_text(str(own).replace('/opt/darkroom', '/base/python'))"
RUN groupadd --gid 10001 darkroom && useradd --create-home --uid 10001 --gid 10001 darkroom && install -d -o 10001 -g 10001 /base
COPY --chown=10001:10001 tools/image_pip.conf /home/darkroom/.config/pip/pip.conf
USER 10001:10001
WORKDIR /home/darkroom
ENV PATH=/opt/darkroom/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BASE_DIRECTORY=/base \
    WORKER_HOST=0.0.0.0 \
    WORKER_PORT=8000
EXPOSE 8000
# Starting takes as long as the weights take to read; a worker that dies meanwhile ends the container by itself.
HEALTHCHECK --interval=15s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-m", "darkroom.probe", "health"]
STOPSIGNAL SIGTERM
CMD ["darkroom", "serve"]
