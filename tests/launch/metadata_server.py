"""Imitates the metadata service of a cloud, as far as notices of preemption go, at 127.0.0.1.

usage: metadata_server.py --cloud aws|gcp|azure [--to-one] [--port N] --notice-file PATH [--name MACHINE]

Prints its address (for HETRUN_METADATA) when it listens; port 0, the default, takes any that is free. The notice is
there once PATH has content: the seconds until the machine goes, counted from when the file was written (GCP does not
say them); with --to-one, of AWS, for one client alone, as if the others asked later. Each acknowledgement by Azure's way is printed as "acknowledged EVENT".
"""
import argparse
import email.utils
import http.server
import json
import pathlib
import time
import urllib.parse

EVENT = '602d9444-d2cd-49c7-8624-8643e7171297'
TOKEN = 'AQAEAE4UUd-3NE5EEeYYXKxicVfDOHsx0YSHFFSuCvo2GfCcxzJsvg=='


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    options = None   # the command line's
    tokens = []      # of AWS, by client
    chosen = None    # that of the client which gets the notice

    def log_message(self, *_):
        pass

    def reply(self, status, body='', **headers):
        content = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def notice(self):
        """When the machine goes, in seconds of the wall clock; None: it stays."""
        try:
            text = self.options.notice_file.read_text().strip()
            return self.options.notice_file.stat().st_mtime + float(text) if text else None
        except FileNotFoundError:
            return None

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0))).decode()
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        getattr(self, self.options.cloud)(self.command, url.path, query, body)

    do_GET = do_PUT = do_POST = handle_request

    def aws(self, method, path, _query, _body):
        if (method, path) == ('PUT', '/latest/api/token'):
            known = 'X-aws-ec2-metadata-token-ttl-seconds' in self.headers
            self.tokens.append(f'{TOKEN}{len(self.tokens)}')
            return self.reply(200 if known else 400, self.tokens[-1] if known else '')
        if method != 'GET':
            return self.reply(405)
        token = self.headers.get('X-aws-ec2-metadata-token')
        if token not in self.tokens:
            return self.reply(401)
        at = self.notice()
        if at is not None and self.options.to_one:
            Service.chosen = Service.chosen or token
            at = at if token == Service.chosen else None
        if path != '/latest/meta-data/spot/instance-action' or at is None:
            return self.reply(404)
        return self.reply(200, json.dumps({'action': 'terminate',
                                           'time': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(at))}))

    def gcp(self, method, path, query, _body):
        if method != 'GET' or path != '/computeMetadata/v1/instance/preempted':
            return self.reply(404)
        if self.headers.get('Metadata-Flavor') != 'Google':
            return self.reply(403)
        tags = {True: 'b1', False: 'b0'}
        if query.get('wait_for_change') == 'true':
            until = time.monotonic() + float(query.get('timeout_sec', 'inf'))
            before = query.get('last_etag', tags[self.notice() is not None])
            while tags[self.notice() is not None] == before and time.monotonic() < until:
                time.sleep(0.02)
        taken = self.notice() is not None
        return self.reply(200, 'TRUE' if taken else 'FALSE', ETag=tags[taken], **{'Metadata-Flavor': 'Google'})

    def azure(self, method, path, query, body):
        if self.headers.get('Metadata', '').lower() != 'true' or 'api-version' not in query:
            return self.reply(400)
        if (method, path) == ('GET', '/metadata/instance/compute/name'):
            return self.reply(200, self.options.name)
        if path != '/metadata/scheduledevents':
            return self.reply(404)
        at = self.notice()
        if method == 'POST':
            for request in json.loads(body)['StartRequests']:
                print('acknowledged', request['EventId'], flush=True)
            return self.reply(200)
        events = [] if at is None else [{
            'EventId': EVENT, 'EventType': 'Preempt', 'EventStatus': 'Scheduled',
            'ResourceType': 'VirtualMachine', 'Resources': [self.options.name],
            'NotBefore': email.utils.formatdate(at, usegmt=True)}]
        return self.reply(200, json.dumps({'DocumentIncarnation': 1 + len(events), 'Events': events}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--cloud', choices=('aws', 'gcp', 'azure'), required=True)
    parser.add_argument('--to-one', action='store_true')
    parser.add_argument('--port', type=int, default=0)
    parser.add_argument('--notice-file', type=pathlib.Path, required=True)
    parser.add_argument('--name', default='machine-0')
    Service.options = parser.parse_args()
    with http.server.ThreadingHTTPServer(('127.0.0.1', Service.options.port), Service) as server:
        print(f'http://127.0.0.1:{server.server_port}', flush=True)
        server.serve_forever()


if __name__ == '__main__':
    main()
