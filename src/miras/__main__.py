"""``python -m miras``, and what torchrun and accelerate launch start."""

import sys

from .cli import main

sys.exit(main())
