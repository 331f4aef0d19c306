#!/bin/sh
# yaad-tiny on one device, a minute
exec python -m miras train --config configs/yaad-tiny.toml "$@"
