"""The trainer's parts: packing, losses, the DeepSpeed engine, checkpoints and published weights."""
