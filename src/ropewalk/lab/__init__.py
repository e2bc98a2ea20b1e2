"""Experiments: real checkpoints stretched, small models trained side by side."""
