#!/bin/sh
# yaad-760m on the GPUs of one machine; started again, it goes on. On several machines: torchrun's --nnodes and --rdzv-endpoint.
exec torchrun --standalone --nproc-per-node "${GPUS:-8}" -m miras train \
    --config configs/yaad-760m.yaml --run.folder out/yaad-760m --resume "$@"
