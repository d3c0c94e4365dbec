"""Retriever classes for LangChain, LlamaIndex and Haystack, and an MCP server."""
