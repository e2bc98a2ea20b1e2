"""Experiments with models: real checkpoints stretched, small ones trained side by side."""
