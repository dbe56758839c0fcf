# syntax=docker/dockerfile:1
# holdfast on a CPU, or with CUDA:
#
#   docker build -t holdfast .
#   docker build -t holdfast:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 --build-arg EXTRAS=gpu .
#   docker run --rm -v "$PWD:/mnt" holdfast quickstart --output_dir quickstart
#   docker run --rm --gpus all -v "$PWD:/mnt" holdfast:cuda train --config run.yaml
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=

# a C compiler: the kernels of checkpoints and the loss are compiled on first use
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/holdfast
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url "$TORCH_INDEX" ".${EXTRAS:+[$EXTRAS]}"

RUN useradd --create-home user && chown user /mnt
USER user
WORKDIR /mnt
ENV HF_HOME=/mnt/.cache/huggingface
ENTRYPOINT ["holdfast"]
CMD ["--help"]
