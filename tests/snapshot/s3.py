#!/usr/bin/env python3
"""Stores in buckets against a real server: moto's, behind a relay that fails; the objects are read with boto3, and every
signature is computed again by botocore. Skipped (exit code 77) where no Python has moto and boto3.

usage: s3.py STORE_TOOL [unittest arguments]
HETRUN_PYTHON names the Python. HETRUN_S3_ENDPOINT, with AWS's variables, names another server than moto's, such as Swift's.
"""
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

TOOL = str(pathlib.Path(sys.argv.pop(1)).resolve())
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PART = 5 << 20  # the least that servers take, but for the last
NEEDED = ('boto3', 'botocore', 'moto.server')


def find_python():
    """Go on with a Python that has what is needed; False: this one has."""
    try:
        for name in NEEDED:
            __import__(name)
        return
    except ImportError:
        pass
    given = os.environ.get('HETRUN_PYTHON')
    candidates = [given] if given else [str(ROOT / '.venv' / 'bin' / 'python')]
    for python in candidates:
        try:
            done = subprocess.run([python, '-c', f'import {", ".join(NEEDED)}'], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            os.execv(python, [python, __file__, TOOL, *sys.argv[1:]])
    print(f'skipped: neither this Python nor {" and ".join(candidates)} can import {", ".join(NEEDED)}; '
          "pip install 'moto[server]' boto3 brings them, HETRUN_PYTHON names another Python")
    sys.exit(77)


find_python()

import boto3  # noqa: E402  pylint: disable=wrong-import-position
import botocore.auth  # noqa: E402  pylint: disable=wrong-import-position
import botocore.awsrequest  # noqa: E402  pylint: disable=wrong-import-position
import botocore.credentials  # noqa: E402  pylint: disable=wrong-import-position
from relay import Relay  # noqa: E402  pylint: disable=wrong-import-position

ACCESS = os.environ.get('AWS_ACCESS_KEY_ID', 'an-access-key')
SECRET = os.environ.get('AWS_SECRET_ACCESS_KEY', 'this/is+very.secret')
REGION = os.environ.get('AWS_REGION', 'us-east-1')


def start_server():
    """(host, port) of the server under test."""
    if given := os.environ.get('HETRUN_S3_ENDPOINT'):
        url = urllib.parse.urlsplit(given)
        return url.hostname, url.port
    from moto.server import ThreadedMotoServer  # pylint: disable=import-outside-toplevel
    logging.getLogger('werkzeug').setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
    server.start()
    return server.get_host_and_port()


SERVER = start_server()


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.relay = Relay(*SERVER)
        self.addCleanup(self.relay.server_close)
        self.addCleanup(self.relay.shutdown)
        self.bucket = f'hetrun-{random.getrandbits(48):012x}'
        self.client = boto3.client('s3', endpoint_url=f'http://{SERVER[0]}:{SERVER[1]}', region_name=REGION,
                                   aws_access_key_id=ACCESS, aws_secret_access_key=SECRET)
        self.client.create_bucket(Bucket=self.bucket)
        self.url = f's3://{self.bucket}/runs/a b'

    def tool(self, *words, code=0, url=None):
        environment = {**os.environ, 'AWS_ACCESS_KEY_ID': ACCESS, 'AWS_SECRET_ACCESS_KEY': SECRET, 'AWS_REGION': REGION,
                       'AWS_ENDPOINT_URL': self.relay.url}
        command, *rest = map(str, words)
        done = subprocess.run([TOOL, f'--part={PART}', '--stall=20000', command, url or self.url, *rest], env=environment,
                              text=True, capture_output=True, timeout=200, check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        self.assertNotIn(SECRET, done.stdout + done.stderr)
        return done.stderr if code else done.stdout

    def file(self, size, seed=1, name='file'):
        path = self.folder / name
        path.write_bytes(random.Random(seed).randbytes(size))
        return path

    def stored(self, key):
        return self.client.get_object(Bucket=self.bucket, Key=f'runs/a b/{key}')['Body'].read()

    def fail_at_random(self, seed, odds, kinds=('503', 'lost', 'cut', 'short', 'unsent', 'slow')):
        draw = random.Random(seed)
        self.relay.fault = lambda method, target: draw.choice(kinds) if draw.random() < odds else None


class Objects(Case):
    def test_what_is_put_is_what_boto3_reads(self):
        for size in (0, 1, 100_000, PART, PART + 1, 3 * PART + 12345):
            path = self.file(size, size)
            key = f'{size}+x=y z~&<ä>@:,'
            self.assertEqual(self.tool('put', key, path).strip(), 'true')
            self.assertEqual(self.stored(key), path.read_bytes())
            self.assertEqual(int(self.tool('size', key)), size)
            self.tool('get', key, self.folder / 'back', size // 3, size // 2)
            self.assertEqual((self.folder / 'back').read_bytes(), path.read_bytes()[size // 3:size // 3 + size // 2])
        listed = [line.split(' ', 2) for line in self.tool('list').splitlines()]
        self.assertEqual(len(listed), 6)
        for size, modified, key in listed:
            self.assertTrue(key.startswith(f'{size}+x=y z~&<ä>@:,'), key)
            self.assertLess(abs(int(modified) - time.time()), 3600)
        self.assertIn('there is no object', self.tool('get', 'none', self.folder / 'back', 0, 1, code=2))
        self.tool('remove', listed[0][2])
        self.assertEqual(self.tool('size', listed[0][2]).strip(), '-1')

    def test_what_boto3_puts_is_read_and_a_put_of_what_is_there_is_refused(self):
        content = self.file(2 * PART + 99).read_bytes()
        self.client.put_object(Bucket=self.bucket, Key='runs/a b/theirs', Body=content)
        self.tool('get', 'theirs', self.folder / 'back', 0, len(content))
        self.assertEqual((self.folder / 'back').read_bytes(), content)
        self.assertIn('is truncated', self.tool('get', 'theirs', self.folder / 'back', 10, len(content), code=2))
        self.assertEqual(self.tool('put', 'theirs', self.file(5), 'new').strip(), 'false')
        self.assertEqual(self.stored('theirs'), content)
        self.assertEqual(self.tool('put', 'ours', self.file(5), 'new').strip(), 'true')

    def test_long_listings_come_in_pages(self):
        for i in range(1005):
            self.client.put_object(Bucket=self.bucket, Key=f'runs/a b/{i:05}', Body=b'')
        self.assertEqual([line.split(' ')[2] for line in self.tool('list').splitlines()], [f'{i:05}' for i in range(1005)])
        self.assertEqual(len(self.tool('list', '0100').splitlines()), 5)

    def test_every_request_is_signed_as_botocore_signs_it(self):
        key = "a+b=c:d@e f&g'(h)!*$,;ä~"
        self.tool('put', key, self.file(2 * PART + 1))
        self.tool('get', key, self.folder / 'back', 5, 100)
        self.tool('list', 'a+b=c:d@e')
        self.tool('unfinished', 0)
        self.tool('remove', key)
        self.assertGreaterEqual(len(self.relay.seen), 9)
        for method, target, headers, _ in self.relay.seen:
            given = {name.lower(): value for name, value in headers.items()}
            signed = given['authorization'].split('SignedHeaders=')[1].split(',')[0].split(';')
            request = botocore.awsrequest.AWSRequest(method, self.relay.url + target, {name: given[name] for name in signed})
            request.context['timestamp'] = given['x-amz-date']
            auth = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ACCESS, SECRET), 's3', REGION)
            wanted = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
            self.assertEqual(given['authorization'].split('Signature=')[1], wanted, f'{method} {target}')

    def test_errors_name_what_the_server_says(self):
        said = self.tool('put', 'a', self.file(5), code=2, url='s3://no-such-bucket-of-ours')
        self.assertIn('PUT of s3://no-such-bucket-of-ours/a was answered with status 404, NoSuchBucket: ', said)
        self.relay.fault = lambda method, target: '503'
        self.assertIn('was answered with status 503, SlowDown: Later (6 tries)', self.tool('list', code=75))


class Failures(Case):
    def test_transfers_survive_a_bad_line(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                self.fail_at_random(seed, 0.2)
                path = self.file(4 * PART + 777, seed)
                self.tool('put', f'o{seed}', path)
                self.assertEqual(self.stored(f'o{seed}'), path.read_bytes())
                self.tool('get', f'o{seed}', self.folder / 'back', 0, path.stat().st_size)
                self.assertEqual((self.folder / 'back').read_bytes(), path.read_bytes())
        self.relay.fault = lambda method, target: None
        self.assertEqual(len(self.tool('list').splitlines()), 6)

    def test_unfinished_uploads_are_given_up(self):
        for key in ('left', 'left too'):
            self.client.create_multipart_upload(Bucket=self.bucket, Key=f'runs/a b/{key}')
        self.client.create_multipart_upload(Bucket=self.bucket, Key='beside')
        self.assertEqual(self.tool('unfinished', 100 * 365 * 86400), '')  # moto's uploads are of 2010
        self.assertEqual(sorted(self.tool('unfinished', -100000).splitlines()), ['left', 'left too'])
        left = self.client.list_multipart_uploads(Bucket=self.bucket).get('Uploads', [])
        self.assertEqual([upload['Key'] for upload in left], ['beside'])


class Snapshots(Case):
    def sample(self, step, ranks=(0, 1)):
        return [self.tool('sample', step, rank, 2, url=self.folder).strip() for rank in ranks]

    def test_snapshots_go_up_come_back_and_are_collected_over_a_bad_line(self):
        self.fail_at_random(7, 0.1)
        sums = {}
        for step in (1, 2, 3):
            self.assertEqual(self.tool('upload', *self.sample(step)).count('sent'), 2)
            sums[step] = self.tool('read')
            self.assertEqual(sums[step].count(f'step {step} '), 2)
        self.tool('upload', *self.sample(4, (1,)))
        self.assertIn('passed over: the snapshot of step 4 is not complete: no file has a [0:32, :]', self.tool('read'))
        self.assertEqual(self.tool('upload', *self.sample(3)).count('was there'), 2)
        self.assertEqual(self.tool('collect', 2).split(), ['1'])
        self.assertTrue(self.tool('read').endswith(sums[3]))
        for name in self.folder.glob('step-3-*'):
            self.assertEqual(self.stored(name.name), name.read_bytes())


if __name__ == '__main__':
    unittest.main()
