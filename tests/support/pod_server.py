"""The program of a pod that answers requests on port 8000 of the pod's address, which is its variable `POD_IP`."""

from __future__ import annotations

from typing import Final

SERVE: Final = """
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the pod")
http.server.HTTPServer((os.environ["POD_IP"], 8000), Answer).serve_forever()
"""
