"""Training data of the shipped reader: sets divided by document, and questions made from manual pages."""
