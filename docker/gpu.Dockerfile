# turnsmith for NVIDIA GPUs, from a clone: docker build -f docker/gpu.Dockerfile -t turnsmith:gpu .
# Run it with --gpus all --shm-size 16g. Nothing of turnsmith has been run on a GPU yet.
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /turnsmith
COPY locks locks
# torch and vLLM bring CUDA's libraries; the driver comes from the host.
RUN pip install --no-cache-dir --no-deps -r locks/vllm.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --no-deps .
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["turnsmith"]
