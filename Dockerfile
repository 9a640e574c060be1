# The worker as an image: no weights inside but the demo model's 29 MB, a user without rights, the base directory as a volume.
#
#     docker build -t darkroom .
#     docker run --gpus all -p 127.0.0.1:8000:8000 -e API_KEYS="$SECRET" -v "$PWD/base:/base" darkroom
#
# It listens on all addresses and so asks for a key (API_KEYS, API_KEYS_FILE), or for UNSECURED=true.
#
# Every RUN step is a plain shell line that also runs by hand on Ubuntu 24.04; tests/test_install.py runs them in order.
# The PyTorch wheel brings its own CUDA 13 libraries, so the base image only has to say which driver they need (580 or
# newer) and make the devices visible.
#
# The base is named by the digest of its index as well as by its tag, and every package of Python's has the hash that
# misc/locks names: `misc/lock.sh --hashes` writes those anew.

# --- the wheel: everything that changes with each commit --------------------------------------------------------------
FROM nvidia/cuda:13.0.1-base-ubuntu24.04@sha256:f8ef28f579ea42a44b415d2c5d46f788e6a9b395c6c83f2929416e1fc192c143 AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml setup.py README.md LICENSE ./
COPY darkroom darkroom
COPY worker worker
COPY engine engine
COPY modifiers modifiers
COPY machine machine
COPY names names
COPY benchmark benchmark
COPY misc misc
RUN python3 -m venv /opt/builder
RUN /opt/builder/bin/python -m pip install --no-cache-dir --require-hashes --requirement misc/locks/build.txt
RUN /opt/builder/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# --- the image: layers in the order in which they change, the largest and stillest first ------------------------------
FROM nvidia/cuda:13.0.1-base-ubuntu24.04@sha256:f8ef28f579ea42a44b415d2c5d46f788e6a9b395c6c83f2929416e1fc192c143
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv bubblewrap && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/darkroom
WORKDIR /opt/install
COPY misc/locks/torch.txt torch.txt
RUN /opt/darkroom/bin/python -m pip install --no-cache-dir --require-hashes --requirement torch.txt
COPY misc/locks/image.txt image.txt
RUN /opt/darkroom/bin/python -m pip install --no-cache-dir --require-hashes --requirement image.txt
COPY --from=wheel /wheels /wheels
RUN /opt/darkroom/bin/python -m pip install --no-cache-dir --no-deps /wheels/darkroom-*.whl

RUN useradd --create-home --uid 10001 darkroom && mkdir /base && chown darkroom:darkroom /base
USER darkroom
WORKDIR /home/darkroom
ENV PATH=/opt/darkroom/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BASE_DIRECTORY=/base \
    WORKER_HOST=0.0.0.0 \
    WORKER_PORT=8000
VOLUME /base
EXPOSE 8000
# Starting takes as long as the weights take to read; a worker that dies meanwhile ends the container by itself.
HEALTHCHECK --interval=15s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-c", "import os, ssl, urllib.request as web; scheme = 'https' if os.environ.get('USE_SSL', '').lower() in ('true', '1', 'yes', 'on') else 'http'; web.urlopen(scheme + '://127.0.0.1:' + os.environ['WORKER_PORT'] + '/health', timeout=4, context=ssl._create_unverified_context())"]
STOPSIGNAL SIGTERM
CMD ["darkroom", "serve"]
