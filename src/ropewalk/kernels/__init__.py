"""Fast forms of the rotation. They import nothing else of this package, and each is loaded only when it is called."""
