# syntax=docker/dockerfile:1
# The cache service, its collector and `python -m cache check`: no torch, no compiler, no shell
# scripts. Build from the repository's root:
#
#   docker build -f deploy/docker/cache.Dockerfile --build-arg PYTHON_DIGEST=sha256:… -t fusec-cache .
#
# The digest is that of the tag in FROM: `docker buildx imagetools inspect python:3.13-slim-bookworm`.
ARG PYTHON_DIGEST

FROM python:3.13-slim-bookworm@${PYTHON_DIGEST} AS build
WORKDIR /build
COPY deploy/docker/cache-requirements.txt ./
RUN python -m venv /opt/fusec \
 && /opt/fusec/bin/pip install --no-cache-dir -r cache-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY fusec ./fusec
COPY farm ./farm
COPY cache ./cache
# What fusec needs beside the service (torch) is left out: the service imports `cache` alone.
RUN /opt/fusec/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
 && /opt/fusec/bin/pip install --no-cache-dir --no-deps /wheel/*.whl \
 && /opt/fusec/bin/pip uninstall --yes pip

FROM python:3.13-slim-bookworm@${PYTHON_DIGEST}
LABEL org.opencontainers.image.title="fusec cache" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/fusec /opt/fusec
# /tmp is the one place to write: the root file system may be read-only.
ENV PATH=/opt/fusec/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8700
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "cache"]
CMD ["serve"]
