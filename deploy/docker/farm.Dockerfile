# syntax=docker/dockerfile:1
# The farm: gateways, Ray's head and workers, `helm test`'s compile. Two variants by the build of
# torch that comes; build from the repository's root:
#
#   docker build -f deploy/docker/farm.Dockerfile --build-arg PYTHON_DIGEST=sha256:… \
#     --build-arg TORCH_INDEX=<an index of CPU wheels> -t fusec-farm .
#   docker build -f deploy/docker/farm.Dockerfile --build-arg PYTHON_DIGEST=sha256:… \
#     --target gpu-worker -t fusec-gpu-worker .
#
# Both must have one version of torch and of fusec: these enter the keys. The digest is that of the
# tag in FROM: `docker buildx imagetools inspect python:3.13-slim-bookworm`.
ARG PYTHON_DIGEST
ARG TORCH=torch==2.13.0

FROM python:3.13-slim-bookworm@${PYTHON_DIGEST} AS source
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY fusec ./fusec
COPY farm ./farm
COPY cache ./cache
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

# What runs: a C compiler, which the farm's kernels and Triton's launchers need; bash and wget, by
# which KubeRay starts Ray and asks for its health.
FROM python:3.13-slim-bookworm@${PYTHON_DIGEST} AS base
LABEL org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008,SC2016
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bash gcc libc6-dev wget \
 && rm -rf /var/lib/apt/lists/* \
 && echo 'PATH=/opt/fusec/bin:$PATH' > /etc/profile.d/fusec.sh
# /tmp is the one place to write: the root file system may be read-only.
ENV PATH=/opt/fusec/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /tmp
STOPSIGNAL SIGTERM

FROM base AS cpu-build
ARG TORCH
ARG TORCH_INDEX=""
RUN python -m venv /opt/fusec \
 && /opt/fusec/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH}"
COPY --from=source /wheel /wheel
RUN wheel="$(echo /wheel/*.whl)" \
 && /opt/fusec/bin/pip install --no-cache-dir "${wheel}[kuberay,gpu,tracing]" "${TORCH}"

# torch with CUDA: it brings the Triton that fits it.
FROM base AS gpu-build
ARG TORCH
RUN python -m venv /opt/fusec \
 && /opt/fusec/bin/pip install --no-cache-dir "${TORCH}"
COPY --from=source /wheel /wheel
RUN wheel="$(echo /wheel/*.whl)" \
 && /opt/fusec/bin/pip install --no-cache-dir "${wheel}[kuberay,tracing]" "${TORCH}"

FROM base AS gpu-worker
LABEL org.opencontainers.image.title="fusec GPU worker"
COPY --from=gpu-build /opt/fusec /opt/fusec
# The driver is the node's, mounted for these; which GPUs are seen is the device plugin's to say.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["python", "-m", "farm"]
CMD ["serve"]

FROM base AS farm
LABEL org.opencontainers.image.title="fusec farm"
COPY --from=cpu-build /opt/fusec /opt/fusec
USER 65532:65532
EXPOSE 8701
ENTRYPOINT ["python", "-m", "farm"]
CMD ["serve"]
