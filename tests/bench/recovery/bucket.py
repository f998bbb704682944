#!/usr/bin/env python3
"""A server of S3's objects as files of a folder, for benchmarks and tests: put, in parts too, ranged get, head, list,
delete. Signatures are not looked at. usage: bucket.py ADDRESS PORT FOLDER"""

import hashlib
import os
import sys
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape


def tag_of(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


class Bucket(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    folder = Path()

    def log_message(self, *_):
        pass

    def answer(self, code, body=b'', headers=None):
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if 'Content-Length' not in (headers or {}):
            self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def parse(self):
        """The key, its file, and the query."""
        url = urllib.parse.urlsplit(self.path)
        _, bucket, *rest = urllib.parse.unquote(url.path).split('/')
        key = '/'.join(rest)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        return key, self.folder / bucket / key.replace('/', '%2F'), query

    def body(self):
        return self.rfile.read(int(self.headers.get('Content-Length', 0)))

    def do_PUT(self):
        _, path, query = self.parse()
        data = self.body()
        if 'partNumber' in query:
            path = self.folder / 'parts' / query['uploadId'] / f'{int(query["partNumber"]):06d}'
        elif self.headers.get('If-None-Match') == '*' and path.exists():
            return self.answer(412, b'<Error><Code>PreconditionFailed</Code></Error>')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return self.answer(200, headers={'ETag': tag_of(data)})

    def do_POST(self):
        key, path, query = self.parse()
        self.body()
        if 'uploads' in query:
            number = uuid.uuid4().hex
            (self.folder / 'parts' / number).mkdir(parents=True)
            return self.answer(200, f'<InitiateMultipartUploadResult><Key>{escape(key)}</Key><UploadId>{number}'
                                    '</UploadId></InitiateMultipartUploadResult>'.encode())
        parts = sorted((self.folder / 'parts' / query['uploadId']).iterdir())
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(f'{path}.new', 'wb') as whole:
            for part in parts:
                whole.write(part.read_bytes())
                part.unlink()
        os.rename(f'{path}.new', path)
        return self.answer(200, f'<CompleteMultipartUploadResult><Key>{escape(key)}</Key><ETag>"whole"</ETag>'
                                '</CompleteMultipartUploadResult>'.encode())

    def do_GET(self):
        key, path, query = self.parse()
        if not key:
            return self.list(path, query)
        if not path.is_file():
            return self.answer(404, b'<Error><Code>NoSuchKey</Code></Error>')
        size = path.stat().st_size
        begin, end = 0, size
        if given := self.headers.get('Range'):
            first, _, last = given.removeprefix('bytes=').partition('-')
            begin, end = int(first), min(size, int(last) + 1 if last else size)
        headers = {'Content-Length': str(end - begin), 'ETag': f'"{size}"'}
        if given:
            headers['Content-Range'] = f'bytes {begin}-{end - 1}/{size}'
        self.answer(206 if given else 200, headers=headers)
        if self.command == 'GET':
            with open(path, 'rb') as file:
                self.connection.sendfile(file, begin, end - begin)
        return None

    do_HEAD = do_GET

    def list(self, path, query):
        prefix, entries = query.get('prefix', ''), []
        for file in sorted(path.parent.glob('**/*')) if 'uploads' not in query else []:
            key = file.name.replace('%2F', '/')
            if file.is_file() and key.startswith(prefix) and not key.endswith('.new'):
                entries.append(f'<Contents><Key>{escape(key)}</Key><Size>{file.stat().st_size}</Size>'
                               '<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>')
        name = 'ListMultipartUploadsResult' if 'uploads' in query else 'ListBucketResult'
        return self.answer(200, f'<{name}><IsTruncated>false</IsTruncated>{"".join(entries)}</{name}>'.encode())

    def do_DELETE(self):
        _, path, _ = self.parse()
        path.unlink(missing_ok=True)
        return self.answer(204)


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass   # clients that vanish are what is measured


class SlowBucket:
    """A bucket on this machine whose snapshots arrive late. `wait` is called with the path of each before it is kept;
    `variables` of the environment lead to it."""

    def __init__(self, folder, wait):
        class Slow(Bucket):
            def do_PUT(self):
                if 'step-' in self.path:
                    wait(self.path)
                super().do_PUT()

        Slow.folder = folder
        self.server = Server(('127.0.0.1', 0), Slow)
        threading.Thread(target=self.server.serve_forever).start()
        self.variables = {'AWS_ENDPOINT_URL': f'http://127.0.0.1:{self.server.server_address[1]}', 'AWS_ACCESS_KEY_ID': 'key',
                          'AWS_SECRET_ACCESS_KEY': 'secret', 'AWS_REGION': 'us-east-1'}

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def main():
    address, port, folder = sys.argv[1:]
    Bucket.folder = Path(folder)
    Server((address, int(port)), Bucket).serve_forever()


if __name__ == '__main__':
    main()
