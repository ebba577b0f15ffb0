"""Runs and checkpoints of Thinwire: load_run, load_checkpoint, and the module plots."""
from .checkpoints import load_checkpoint
from .runs import Run, load_run

__all__ = ["Run", "load_checkpoint", "load_run"]
