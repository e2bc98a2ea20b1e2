"""A whole model of transformers with its own rotation, with ours, and without any."""
