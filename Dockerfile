# syntax=docker/dockerfile:1
# The agent's image: built in two steps, without a compiler or pip in what runs. amd64 and arm64.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY rules rules
# The Kubernetes client's typed models and calls: loaded only when named, and only raw JSON goes through the client.
# Without them the package has 2 MB instead of 126; the import after that proves that nothing needed is gone.
RUN python -m venv /opt/faultline \
 && /opt/faultline/bin/pip install --no-cache-dir --no-compile . \
 && /opt/faultline/bin/pip uninstall --yes setuptools pip \
 && find /opt/faultline -name tests -type d -prune -exec rm -rf {} + \
 && find /opt/faultline/lib -regex '.*/kubernetes/\(aio/\)?client/\(models\|api\)/[^/]*\.py' ! -name __init__.py -delete \
 && /opt/faultline/bin/python -B -c 'import kubernetes.aio.config, kubernetes.aio.client.api_client, agent.kube' \
 && chmod -R a-w /opt/faultline

FROM ${BASE}
COPY --from=build /opt/faultline /opt/faultline
ENV PATH=/opt/faultline/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Root without capabilities: the kubelet's log files belong to root. The manifest drops everything but SYSLOG.
USER 0:0
EXPOSE 9753
ENTRYPOINT ["faultline"]
CMD ["run"]
