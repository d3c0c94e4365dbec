"""People's own files (PDF, Office, HTML, EPUB, Markdown, e-mail, code …) as blocks over one clean
text.
"""
