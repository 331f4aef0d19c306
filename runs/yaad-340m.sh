#!/bin/sh
# yaad-340m on the GPUs of one machine; started again, it goes on. On several machines: torchrun's --nnodes and --rdzv-endpoint.
exec torchrun --standalone --nproc-per-node "${GPUS:-8}" -m miras train \
    --config configs/yaad-340m.yaml --run.folder out/yaad-340m --resume "$@"
