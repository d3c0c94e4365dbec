"""One file per corpus format; a reader yields (position, document or bad record), one record at a time."""
