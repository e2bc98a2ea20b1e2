"""The explorer: a local page that shows why positional encodings work, and the same page as one file.

`server` hands out the page, on 127.0.0.1 only; `api` answers what needs Python; `export` writes the page as one file
that opens without a server. The page itself is in `static`: no framework, one module a view, the mathematics in `math`.
"""
