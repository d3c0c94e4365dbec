"""`python -m rag` is `rag`."""

from rag.cli.main import main

if __name__ == "__main__":
    main()
