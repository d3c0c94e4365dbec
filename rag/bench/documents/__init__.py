"""Questions over real documents of many formats; the documents come from the package registries."""
