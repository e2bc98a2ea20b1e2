"""Pictures, one kind a file. Each `draw` returns a matplotlib Figure and needs no display; `style` is what all share."""
