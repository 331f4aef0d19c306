#!/bin/sh
# yaad-small on one device: runs/small.sh --data.path some/text --model.name moneta-small
exec python -m miras train --config configs/yaad-small.yaml "$@"
