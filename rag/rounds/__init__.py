"""Search, label, train, again: retrievers taught round by round by a reader or by answers."""
