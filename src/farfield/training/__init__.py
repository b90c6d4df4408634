"""The training loop, schedules and checkpoints."""
