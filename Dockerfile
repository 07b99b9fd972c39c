# An image with dfl_jax whose default command is the job of `make run`.
#
#   docker build -t dfl_jax .                                    # for CPUs
#   docker build -t dfl_jax:cuda --build-arg EXTRA='[cuda]' .    # for NVIDIA GPUs (CUDA 12)
#   docker run --rm -v "$PWD/runs:/runs" dfl_jax                 # NTK-DFL on handwritten digits
#   docker run --rm --gpus all -v "$PWD/runs:/runs" dfl_jax:cuda run --algorithm=spark --out=/runs/spark
ARG PYTHON=3.13
FROM python:${PYTHON}-slim

# git: the version of the package is the tag of its commit
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*

ARG EXTRA=
COPY . /source
RUN pip install --no-cache-dir -c /source/constraints.txt "/source${EXTRA}" && rm -rf /source

RUN useradd --create-home user && install -d -o user /runs
USER user
WORKDIR /
VOLUME /runs
ENTRYPOINT ["dfl-jax"]
CMD ["run"]
