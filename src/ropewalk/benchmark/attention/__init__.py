"""Attention with an encoding: how much longer it takes than plain causal attention, and how much memory it needs."""
