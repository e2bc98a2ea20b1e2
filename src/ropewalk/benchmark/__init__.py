"""How long things take, against the same work done by others and against moving the bytes: `ropewalk bench`."""
