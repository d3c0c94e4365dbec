"""What the shipped reader learns from: sets divided by document, and questions made from manual pages."""
