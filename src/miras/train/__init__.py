"""Training: one definition of the configuration, one loop, checkpoints that survive anything, on Hugging Face accelerate."""
