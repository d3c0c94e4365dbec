"""Question answering over HTTP: routes, batching, hot swap, security, metrics and the web page.

Start with `serve.settings.ServeSettings`, `serve.app.create_app` and `serve.run.run_server`;
importing this package itself imports nothing.
"""
