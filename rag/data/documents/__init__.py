"""Files of people (PDF, Office, HTML, EPUB, Markdown, e-mail, code …) as blocks over one clean
text.
"""
