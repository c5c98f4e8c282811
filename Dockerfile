# docker build --tag transformer_jax .
# docker build --tag transformer_jax:cuda --build-arg EXTRAS=train,report,cuda .
#
# mkdir -p runs   # otherwise Docker makes it, and it is root's
# docker run --rm --volume "$PWD/runs:/home/user/runs" transformer_jax train --config=preset:demo --workdir=runs/demo
# docker run --rm --gpus all ... transformer_jax:cuda ...   # the host needs NVIDIA's driver and container toolkit
#
# Both kinds have the same base: the CUDA libraries are Python packages, and the driver is the host's. docs/install.md says
# what was tested.
FROM python:3.12-slim-bookworm

ARG EXTRAS=train,report
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY transformer_jax /src/transformer_jax
COPY configs /src/configs
COPY experiments /src/experiments
RUN pip install --disable-pip-version-check -c /src/constraints.txt "/src[$EXTRAS]" && transformer-jax --version

# Runs belong to the user with this number: --build-arg UID=$(id -u)
ARG UID=1000
RUN useradd --create-home --uid "$UID" user && install --directory --owner=user /home/user/runs
USER $UID
WORKDIR /home/user
ENTRYPOINT ["transformer-jax"]
CMD ["--help"]
