FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY counters counters
COPY journal_client journal_client
RUN python -m venv /opt/counters && /opt/counters/bin/pip install --no-cache-dir .

FROM python:3.13-slim
# git is for `counters load git`.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin counters
COPY --from=build /opt/counters /opt/counters
ENV PATH=/opt/counters/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
EXPOSE 5011 8080 9108
ENTRYPOINT ["counters"]
CMD ["--help"]
