"""Pictures, one kind a file. Each `draw` returns a matplotlib Figure, without a display; `style` is what all share."""
