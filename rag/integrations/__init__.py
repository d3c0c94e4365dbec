"""This system within others: retrievers of LangChain, LlamaIndex and Haystack, and an MCP server."""
