"""One file per corpus format; each reader yields (position, document or bad record) and holds one record at a time."""
