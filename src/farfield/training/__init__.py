"""The training loop, schedules and checkpoints."""


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is saved."""
