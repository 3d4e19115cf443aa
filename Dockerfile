# headscope with PyTorch for CPUs, as a user who is not root. From the root of the repository:
#
#   docker build -t headscope .
#   docker run --rm -v "$PWD":/work headscope check ./model --for inference
#   docker run --rm -v headscope-cache:/home/headscope/.cache headscope inspect roberta-base
#
# The base image is named by its tag: pin it by the digest of the day when you build for others. Dependabot proposes new ones.
FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
RUN python -m venv /opt/headscope
ENV PATH=/opt/headscope/bin:$PATH
# PyTorch comes first: its layer stays when headscope changes. PyPI's build for Linux brings gigabytes of CUDA.
COPY constraints.txt ./
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY headscope ./headscope
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt .

FROM python:3.12-slim
RUN useradd --create-home --uid 1000 headscope \
    && install -d -o headscope -g headscope /home/headscope/.cache /work
COPY --from=build /opt/headscope /opt/headscope
ENV PATH=/opt/headscope/bin:$PATH
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["headscope"]
CMD ["--help"]
