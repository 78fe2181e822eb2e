# turnsmith for machines without a GPU, from a clone: docker build -f docker/cpu.Dockerfile -t turnsmith:cpu .
FROM python:3.11-slim-bookworm
# bubblewrap is the sandbox for model-written code; it also needs user namespaces, which Docker has to allow.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /turnsmith
COPY locks locks
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir --no-deps -r locks/cpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --no-deps .
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["turnsmith"]
