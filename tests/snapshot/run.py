#!/usr/bin/env python3
"""Snapshots as a user meets them: `hetrun snapshot`, and het.snapshot at the prompt and in recipes.

usage: run.py HETRUN [unittest arguments]
"""
import importlib.util
import json
import logging
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
GUIDE = pathlib.Path(__file__).resolve().parent.parent.parent / 'recipes/guide/snapshots.md'
RECIPE = '''local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local corpus = data.text { path = "text.txt", holdout = 0.1 }
return het.train {
  model = nn.%s { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2 },
  data = corpus, batch = 4, steps = %d, seed = 5, optimizer = optim.adamw { lr = 1e-2 }, save = "saved",
}
'''


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)

    def hetrun(self, *words, code=0, entered=None):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, text=True, capture_output=True, timeout=120,
                              check=False, input=entered)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout, done.stderr

    def refused(self, *words):
        return self.hetrun(*words, code=2)[1]

    def json_of(self, *words):
        return json.loads(self.hetrun(*words, '--json')[0].splitlines()[-1])

    def prompt(self, *lines, code=0, words=()):
        return self.hetrun('--quiet', *words, entered='\n'.join(lines) + '\n', code=code)

    def train(self, model='gpt', steps=3):
        (self.folder / 'train.lua').write_text(RECIPE % (model, steps))
        return self.hetrun('train.lua', '--quiet', '--allow-write=saved', '--overwrite')

    def only_file(self, folder='kept'):
        files = list((self.folder / folder).rglob('*.snapshot'))
        self.assertEqual(len(files), 1)
        return files[0]

    def damage(self, at):
        file = self.only_file()
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        file.write_bytes(content)


class Commands(Case):
    def test_a_saved_model_becomes_a_snapshot_and_the_same_model_again(self):
        for model in ('gpt', 'llama'):
            self.train(model)
            out, _ = self.hetrun('snapshot', 'import', 'saved', f'{model}.kept')
            self.assertIn(f'{model}.kept/step-3-generation-0-rank-0-of-1.snapshot: step 3, ', out)
            self.hetrun('snapshot', 'export', f'{model}.kept', f'{model}.out')
            for name in ('model.safetensors', 'vocabulary.json', 'config.json'):
                self.assertEqual((self.folder / f'{model}.out' / name).read_bytes(), (self.folder / 'saved' / name).read_bytes(),
                                 name)
            self.hetrun('snapshot', 'export', 'saved', f'{model}.same')   # without a folder of snapshots between
            self.assertEqual({path.name: path.read_bytes() for path in (self.folder / f'{model}.same').iterdir()},
                             {path.name: path.read_bytes() for path in (self.folder / f'{model}.out').iterdir()})
            self.assertFalse((self.folder / f'{model}.out/training.snapshot').exists())
            shutil.rmtree(self.folder / 'saved')

    def test_no_run_goes_on_from_a_model_without_its_optimizer(self):
        self.train()
        out, err = self.hetrun('snapshot', 'import', 'saved', 'whole')
        self.assertEqual(err, '')
        (self.folder / 'saved/training.snapshot').unlink()
        out, err = self.hetrun('snapshot', 'import', 'saved', 'kept')
        self.assertIn('note: these are weights alone; --resume needs what the optimizer keeps', err)
        recipe = (RECIPE % ('gpt', 9)).replace('save = "saved"', 'snapshot = { folder = "kept" }')
        (self.folder / 'on.lua').write_text(recipe)
        (self.folder / 'lion.lua').write_text(recipe.replace('adamw', 'lion').replace('"kept"', '"whole"'))
        for ranks in ((), ('--workers', 2), ('--workers', 2, '--elastic', '1:2')):
            err = self.refused(*ranks, 'on.lua', '--resume', '--allow-write=kept')
            self.assertEqual(err.count('hetrun: '), 1, err)
            self.assertIn('hetrun: kept holds the weights of a model (step 3) without what optim.adamw keeps', err)
            err = self.refused(*ranks, 'lion.lua', '--resume', '--allow-write=whole')
            self.assertRegex(err, r"hetrun: the snapshot of step 3 in whole has no 'lion\.m\..*', which optim\.lion keeps")

    def test_the_tokens_that_end_a_text_are_exported_as_they_were(self):
        self.train('llama')
        config = json.loads((self.folder / 'saved' / 'config.json').read_text())
        self.assertEqual((config['bos_token_id'], config['eos_token_id']), (None, None))   # of single characters
        config.update(bos_token_id=1, eos_token_id=[2, 3], pad_token_id=4)
        (self.folder / 'saved' / 'config.json').write_text(json.dumps(config))
        self.hetrun('snapshot', 'import', 'saved', 'kept')
        self.hetrun('snapshot', 'export', 'kept', 'out')
        exported = json.loads((self.folder / 'out' / 'config.json').read_text())
        self.assertEqual([exported[f'{which}_token_id'] for which in ('bos', 'eos', 'pad')], [1, [2, 3], 4])

    def test_show_has_every_tensor_and_where_the_run_was(self):
        self.train()
        self.hetrun('snapshot', 'import', 'saved', 'kept')
        out, _ = self.hetrun('snapshot', 'show', 'kept')
        self.assertRegex(out, r'(?m)^state +step 3, decided in generation 0; next sample 12, seed 5$')
        self.assertRegex(out, r'(?m)^parameters +28 tensors, ')
        self.assertRegex(out, r'(?m)^optimizer +56 tensors, ')
        self.assertRegex(out, r'(?m)^blocks.0.mlp.up.weight +f32\[64, 16\]$')
        self.assertRegex(out, r'(?m)^adamw.m.blocks.0.mlp.up.weight +f32\[64, 16\]$')
        reply = self.json_of('snapshot', 'show', 'kept')
        self.assertEqual((reply['step'], reply['cursor'], reply['whole'], len(reply['tensors'])), (3, 12, True, 84))
        self.assertEqual(self.json_of('snapshot', 'show', self.only_file())['step'], 3)
        self.assertEqual(self.json_of('snapshot', 'show', 'kept', '--step=3')['step'], 3)
        self.assertIn("'kept' holds no snapshot of step 4; it has steps 3", self.refused('snapshot', 'show', 'kept', '--step=4'))

    def test_list_has_the_newest_first(self):
        for steps in (3, 12):
            self.train(steps=steps)
            self.hetrun('snapshot', 'import', 'saved', 'kept')
        lines = self.hetrun('snapshot', 'list', 'kept')[0].splitlines()
        self.assertEqual([line.split()[0] for line in lines], ['step', '12', '3'])
        self.assertTrue(all(line.endswith('whole') for line in lines[1:]), lines)
        newest = next((self.folder / 'kept').glob('step-12-*'))
        newest.write_bytes(newest.read_bytes()[:5000])
        lines = self.hetrun('snapshot', 'list', 'kept')[0].splitlines()
        self.assertIn('is truncated: it has 5000 bytes', lines[1])
        out, err = self.hetrun('snapshot', 'show', 'kept')
        self.assertIn('the snapshot of step 12 is not complete', err)
        self.assertIn('an older one is opened', err)
        self.assertIn('step 3, decided', out)

    def test_verify_names_the_damage_and_copies_are_checked(self):
        self.train()
        self.hetrun('snapshot', 'import', 'saved', 'kept')
        self.assertIn('whole, and all data matches its checksums', self.hetrun('snapshot', 'verify', 'kept')[0])
        self.hetrun('snapshot', 'copy', 'kept', 'copied')
        self.assertEqual(self.only_file('copied').read_bytes(), self.only_file().read_bytes())
        self.damage(4096 + 7)
        for words in (('verify', 'kept'), ('copy', 'kept', 'again'), ('export', 'kept', 'out')):
            self.assertRegex(self.refused('snapshot', *words), r"is damaged: chunk 1 of 1 of '[\w.]+' \[[:, ]+\], at byte 4096, "
                                                              r'does not match its checksum')
        self.assertEqual([path for path in (self.folder / 'again').rglob('*') if path.is_file()], [])
        self.assertFalse((self.folder / 'out/model.safetensors').exists())

    def test_verify_refuses_a_newest_one_that_is_truncated(self):
        for steps in (3, 12):
            self.train(steps=steps)
            self.hetrun('snapshot', 'import', 'saved', 'kept')
        newest = next((self.folder / 'kept').glob('step-12-*'))
        newest.write_bytes(newest.read_bytes()[:5000])
        err = self.refused('snapshot', 'verify', 'kept')
        self.assertIn('the snapshot of step 12 is not complete', err)
        self.assertRegex(err, r'(?m)^snapshot of step 3.* is the latest complete one$')
        self.hetrun('snapshot', 'verify', 'kept', '--step=3')

    def test_a_store_is_written_and_read_as_a_folder_is(self):
        self.train()
        store = f'file://{self.folder}/store'
        out, _ = self.hetrun('snapshot', 'import', 'saved', f'{store}/imported')
        self.assertIn(f'{self.folder}/store/imported/step-3-generation-0-rank-0-of-1.snapshot: step 3, ', out)
        out, _ = self.hetrun('snapshot', 'copy', f'{store}/imported', f'{store}/copied')
        self.assertEqual(out, f'{self.folder}/store/copied/step-3-generation-0-rank-0-of-1.snapshot\n')
        self.assertEqual(self.only_file('store/copied').read_bytes(), self.only_file('store/imported').read_bytes())
        self.assertRegex(self.hetrun('snapshot', 'list', f'{store}/copied')[0], r'(?m)^3 +0 +1 .* whole$')
        self.assertIn('whole, and all data matches', self.hetrun('snapshot', 'verify', f'{store}/copied')[0])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir() if ':' in path.name), [])

    def test_bad_words_and_places_are_refused(self):
        for words, sentence in (
                ((), 'hetrun snapshot needs one of list, show, verify, copy, import, export; hetrun snapshot --help explains'),
                (('shwo', 'kept'), "needs one of list, show, verify, copy, import, export, not 'shwo'"),
                (('show',), 'hetrun snapshot show takes 1 path: hetrun snapshot show PLACE'),
                (('copy', 'kept'), 'hetrun snapshot copy takes 2 paths: hetrun snapshot copy PLACE FOLDER'),
                (('show', 'kept'), "there is no file or folder 'kept'"),
                (('show', 'kept', '--stp=20'), 'hetrun snapshot: there is no option --stp; there are --step, --json'),
                (('show', 'text.txt'), "'text.txt' is not a snapshot"),
                (('list', '.'), "'.' holds no snapshot"),
                (('import', 'kept', 'to'), "there is no folder 'kept'")):
            self.assertIn(sentence, self.refused('snapshot', *words))
        self.train()
        self.hetrun('snapshot', 'import', 'saved', 'kept')
        self.assertIn('saved holds a model of 3 steps; another folder keeps both',
                      self.refused('snapshot', 'export', 'kept', 'saved'))


class Library(Case):
    def setUp(self):
        super().setUp()
        self.train()
        self.hetrun('snapshot', 'import', 'saved', 'kept')

    def test_a_snapshot_is_read_and_compared_at_the_prompt(self):
        self.train(steps=4)
        self.hetrun('snapshot', 'import', 'saved', 'later')
        out, _ = self.prompt(
            'a, b = het.snapshot.open "kept", het.snapshot.open "later"',
            'print(a.step, b.step, a.cursor, a.whole, #a:tensors(), #a:missing(), #a:verify())',
            'whole, part = a:read "tokens.weight", a:read("tokens.weight", "[2:5, 1:3]")',
            'print(whole:at(3, 2) == part:at(1, 1), whole:at(5, 3) == part:at(3, 2), #part.shape, part.shape[1], part.shape[2])',
            'print(#a:diff(a), #a:diff(b))',
            'for _, d in ipairs(a:diff(b)) do if d.name == "norm.weight" then print(d.most > 0, d.most < 1) end end')
        self.assertIn('3\t4\t12\ttrue\t84\t0\t0', out)
        self.assertIn('true\ttrue\t2\t3\t2', out)
        self.assertRegex(out, r'(?m)^0\t[1-9]\d*$')
        self.assertIn('true\ttrue\n', out)

    def test_the_lines_of_the_guide_run(self):
        self.hetrun('snapshot', 'copy', 'kept', 'backup')
        block = re.search(r'```lua\n(.*?)```', GUIDE.read_text(), re.DOTALL).group(1)
        out, _ = self.prompt(*block.replace('local ', '').splitlines())
        self.assertIn('3\ttrue\n', out)
        self.assertIn('tokens.weight\tf32\t1856\n', out)

    def test_mistakes_are_named(self):
        _, err = self.prompt('a = het.snapshot.open "kept"', 'a:read "tokens.wieght"', 'a:read("tokens.weight", "[0:900, :]")',
                             'a:read("tokens.weight", "rows")', 'a:diff(3)', 'a.step = 4', 'het.snapshot.open(7)', code=2)
        for sentence in ("the snapshot has no tensor 'tokens.wieght'; did you mean 'tokens.weight'?",
                         '[0:900, :]', 'rows', 'snapshot:diff compares with another snapshot',
                         'snapshot.step cannot be set', 'het.snapshot.open: 7 was given'):
            self.assertIn(sentence, err)

    def test_a_recipe_reads_only_what_it_may(self):
        outside = tempfile.TemporaryDirectory()
        self.addCleanup(outside.cleanup)
        shutil.copytree(self.folder / 'kept', f'{outside.name}/kept')
        (self.folder / 'open.lua').write_text((RECIPE % ('gpt', 1)).replace(
            'return', f'print(het.snapshot.open("{outside.name}/kept").cursor)\nreturn').replace(', save = "saved"', ''))
        self.assertIn('the recipe asks to read', self.refused('open.lua'))
        self.assertIn('12\n', self.hetrun('open.lua', f'--allow-read={outside.name}')[0])


RUN = '''local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options { steps = { 12, "steps", min = 1 }, save = { "", "folder", path = "write" },
  kept = { "kept", "folder of snapshots", path = "write" }, store = { "", "of snapshots" } }
local corpus = data.text { path = "text.txt", holdout = 0.1 }
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2, dropout = 0.1 },
  data = corpus, batch = 4, steps = opt.steps, seed = 5, optimizer = optim.adamw { lr = 1e-2 },
  evaluate = { every = 0 }, save = opt.save ~= "" and opt.save or nil, metrics = "metrics.jsonl",
  snapshot = { folder = opt.kept, every = 5, store = opt.store ~= "" and opt.store or nil },
}
'''


class Runs(Case):
    def run_it(self, *words, code=0):
        (self.folder / 'run.lua').write_text(RUN)
        return self.hetrun('run.lua', '--kept=kept', '--allow-write=metrics.jsonl', *words, code=code)[1]

    def losses(self):
        records = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        return {record['step']: record['loss'] for record in records if 'loss' in record}

    def kept(self):
        """Steps of the snapshots, the newest first. One that is due while another is written comes later."""
        return [each['step'] for each in self.json_of('snapshot', 'list', 'kept')['snapshots']]

    def test_a_run_goes_on_from_its_snapshots_to_the_bit(self):
        self.run_it('--steps=40')
        whole = self.losses()
        listed = self.json_of('snapshot', 'list', 'kept')['snapshots']
        self.assertLessEqual(len(listed), 3)   # the newest two are kept, and one more while another is written
        self.assertTrue(all('problem' not in each for each in listed), listed)
        shutil.rmtree(self.folder / 'kept')
        self.run_it('--steps=13')
        step = self.kept()[0]
        err = self.run_it('--steps=40', '--resume')
        self.assertIn(f'restored the state after step {step}', err)
        self.assertIn(f'going on after step {step}', err)
        self.assertEqual({step: loss for step, loss in self.losses().items()},
                         {after: loss for after, loss in whole.items() if after in self.losses()})
        self.assertEqual(max(self.losses()), 40)

    def test_the_last_save_counts_where_it_has_had_more_steps(self):
        words = ('--save=model', '--allow-write=model')
        self.run_it('--steps=9', *words)
        self.assertIn('going on after step 9', self.run_it('--steps=10', '--resume', *words))
        shutil.rmtree(self.folder / 'model')
        step = self.kept()[0]
        self.assertIn(f'going on after step {step}', self.run_it('--steps=14', '--resume', *words))

    def test_snapshots_that_cannot_be_read_are_not_replaced(self):
        self.run_it()
        files = sorted((self.folder / 'kept').glob('*.snapshot'))
        for file in files:
            file.write_bytes(file.read_bytes()[:-100])
        err = self.run_it('--resume', code=2)
        self.assertRegex(err, r'kept holds snapshots up to step \d+, and none of them can be read')
        self.assertEqual(sorted((self.folder / 'kept').glob('*.snapshot')), files)

    def test_a_damaged_save_gives_way_to_snapshots(self):
        words = ('--save=model', '--allow-write=model')
        self.run_it('--steps=9', *words)
        step = self.kept()[0]
        training = self.folder / 'model/training.snapshot'
        training.write_bytes(training.read_bytes()[:-100])
        err = self.run_it('--steps=14', '--resume', *words)
        self.assertRegex(err, rf'truncated.*; the snapshots in kept, up to step {step}, are taken in its place')
        self.assertIn(f'going on after step {step}', err)
        self.assertIn('already trained for all 14 steps', self.run_it('--steps=14', '--resume', *words))

    def test_the_newest_of_folder_and_store_counts(self):
        words = ('--store=far', '--allow-write=far')
        self.run_it('--steps=20', *words)
        steps = sorted(each['step'] for each in self.json_of('snapshot', 'list', 'far')['snapshots'])
        for file in (self.folder / 'kept').glob(f'step-{steps[-1]}-*'):
            file.unlink()
        self.assertIn(f'restored the state after step {steps[-1]}', self.run_it('--steps=24', '--resume', *words))

    def test_snapshots_of_another_run_are_not_mixed_in(self):
        self.run_it()
        step = self.kept()[0]
        err = self.run_it(code=2)
        self.assertRegex(err, rf'kept holds snapshots up to step {step}; --resume goes on with them, --overwrite removes')
        self.run_it('--overwrite', '--steps=6')
        self.assertLess(self.kept()[0], 7)

    def test_a_run_does_not_begin_beside_a_store_that_does_not_answer(self):
        with socket.socket() as closed:   # bound, without listen()
            closed.bind(('127.0.0.1', 0))
            of_aws = mock.patch.dict(os.environ, AWS_ENDPOINT_URL=f'http://127.0.0.1:{closed.getsockname()[1]}',
                                     AWS_ACCESS_KEY_ID='key', AWS_SECRET_ACCESS_KEY='secret', AWS_REGION='here')
            of_aws.start()
            self.addCleanup(of_aws.stop)
            words = ('--trust', '--store=s3://bucket/mine', '--steps=3')
            for more, code in ((), 75), (('--resume',), 75), (('--resume', '--workers', '2', '--elastic', '1:2'), 71):
                with self.subTest(more=more):
                    err = self.run_it(*words, *more, code=code)
                    self.assertRegex(err, 'failed: .*; a run begins or goes on once its store says what it has')
                    self.assertFalse((self.folder / 'metrics.jsonl').exists())

    def test_a_snapshot_counts_that_is_on_disk_and_not_in_the_store(self):
        (self.folder / 'run.lua').write_text(RUN)
        words = ('run.lua', '--kept=kept', '--allow-write=metrics.jsonl', '--store=far', '--allow-write=far', '--workers=2')
        with open(self.folder / 'said', 'w', encoding='utf-8') as said:
            run = subprocess.Popen([HETRUN, *words, '--steps=100000000'], cwd=self.folder, stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + 60

            def until(is_so):
                while not is_so():
                    self.assertIsNone(run.poll(), (self.folder / 'said').read_text())
                    self.assertLess(time.monotonic(), deadline, (self.folder / 'said').read_text())
                    time.sleep(0.01)
            until(lambda: len(list(self.folder.glob('far/*.snapshot'))) >= 2)
            (self.folder / 'far').rename(self.folder / 'away')
            (self.folder / 'far').write_text('a file where the store was')
            until(lambda: 'is on disk, and not in the store: ' in (self.folder / 'said').read_text())
            lost = int(re.search(r'the snapshot after step (\d+) is on disk, and not in', (self.folder / 'said').read_text())[1])
            until(lambda: self.kept() and self.kept()[0] > lost)
        finally:
            run.terminate()
            run.wait()
        self.assertEqual(run.returncode, 130, (self.folder / 'said').read_text())
        self.assertNotIn('was not written', (self.folder / 'said').read_text())

    def test_one_run_at_a_time_has_a_folder(self):
        (self.folder / 'run.lua').write_text(RUN)
        words = ('run.lua', '--kept=kept', '--allow-write=metrics.jsonl', '--store=far', '--allow-write=far', '--save=model',
                 '--allow-write=model')
        other = subprocess.Popen([HETRUN, *words, '--steps=100000000'], cwd=self.folder, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while len(list(self.folder.glob('kept/*.snapshot'))) < 2:
                self.assertIsNone(other.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            for how in ('--resume', '--overwrite'):
                self.assertIn(f"'kept' is in use: process {other.pid} on ", self.run_it(how, code=2))
            _, err = self.hetrun('run.lua', '--kept=elsewhere', *words[2:], '--resume', code=2)
            self.assertRegex(err, rf"far' is in use: process {other.pid} on .* choose another `snapshot.store`")
            _, err = self.hetrun('run.lua', '--kept=elsewhere', '--save=model', '--allow-write=model',
                                 '--allow-write=metrics.jsonl', code=2)
            self.assertRegex(err, rf"'model' is in use: process {other.pid} on .* choose another `save`")
            err = self.run_it('--resume', '--workers', '2', code=2)
            self.assertIn(f'process {other.pid} on ', err)
            self.assertIsNone(other.poll())
        finally:
            other.kill()
            other.wait()
        step = self.kept()[0]
        err = self.run_it('--resume', f'--steps={step + 1}', '--store=far', '--allow-write=far', '--save=model', '--allow-write=model')
        self.assertIn('restored the state after step', err)
        self.assertTrue((self.folder / 'model/model.safetensors').exists())
        self.assertEqual(list(self.folder.glob('*/run.lock')), [])

    @unittest.skipUnless(importlib.util.find_spec('moto') and importlib.util.find_spec('boto3'), 'needs moto[server] and boto3')
    def test_one_run_at_a_time_has_a_bucket(self):
        logging.getLogger('werkzeug').setLevel(logging.ERROR)
        import boto3   # pylint: disable=import-outside-toplevel
        from moto.server import ThreadedMotoServer   # pylint: disable=import-outside-toplevel
        server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
        server.start()
        self.addCleanup(server.stop)
        at = 'http://{}:{}'.format(*server.get_host_and_port())
        environment = mock.patch.dict(os.environ, AWS_ENDPOINT_URL=at, AWS_ACCESS_KEY_ID='key', AWS_SECRET_ACCESS_KEY='secret',
                                      AWS_REGION='us-east-1')
        environment.start()
        self.addCleanup(environment.stop)
        bucket = boto3.client('s3', endpoint_url=at, region_name='us-east-1')
        bucket.create_bucket(Bucket='bucket')

        def claims():
            return [each['Key'] for each in bucket.list_objects_v2(Bucket='bucket', Prefix='mine/claims/').get('Contents', [])]
        words = ('--trust', '--store=s3://bucket/mine')
        (self.folder / 'run.lua').write_text(RUN)
        for ranks in ((), ('--workers', '2', '--elastic', '1:2')):
            with self.subTest(ranks=ranks):
                run = subprocess.Popen([HETRUN, *ranks, 'run.lua', '--kept=kept', *words, '--overwrite', '--steps=100000000'],
                                       cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    deadline = time.monotonic() + 60
                    while not claims() or not self.kept_files():
                        self.assertIsNone(run.poll())
                        self.assertLess(time.monotonic(), deadline)
                        time.sleep(0.05)
                    _, err = self.hetrun('run.lua', '--kept=elsewhere', *words, '--overwrite', code=2)
                    self.assertRegex(err, r"hetrun: 's3://bucket/mine' is in use: process \d+ on .* choose another `snapshot.store`")
                    self.assertEqual(len(claims()), 1)
                    self.assertIsNone(run.poll())
                finally:
                    run.terminate()
                    run.wait()
                self.assertEqual(claims(), [])
                run = subprocess.Popen([HETRUN, 'run.lua', '--kept=kept', *words, '--overwrite', '--steps=100000000'],
                                       cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                while not claims():
                    time.sleep(0.05)
                run.kill()
                run.wait()
                self.assertEqual(len(claims()), 1)
                self.run_it(*words, '--overwrite', '--steps=3')   # the process has ended
                self.assertEqual(claims(), [])

    def test_a_folder_that_was_removed_is_claimed_again(self):
        (self.folder / 'run.lua').write_text(RUN)
        words = ('run.lua', '--kept=kept', '--allow-write=metrics.jsonl', '--save=model', '--allow-write=model')
        run = subprocess.Popen([HETRUN, *words, '--steps=100000000'], cwd=self.folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 60

            def until(is_so):
                while not is_so():
                    self.assertIsNone(run.poll(), run.poll() is not None and run.stderr.read())
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.01)
            until(lambda: self.kept_files())
            shutil.rmtree(self.folder / 'kept', ignore_errors=True)
            shutil.rmtree(self.folder / 'kept', ignore_errors=True)   # what was written meanwhile
            until(lambda: self.kept_files())
            self.assertIn(f"'kept' is in use: process {run.pid} on ", self.run_it('--resume', code=2))
            (self.folder / 'model/run.lock').unlink()
        finally:
            run.terminate()
            _, err = run.communicate()
        self.assertIn('stopped and saved after step', err)
        self.assertEqual(run.returncode, 130, err)
        self.assertTrue((self.folder / 'model/model.safetensors').exists())
        self.assertTrue((self.folder / 'kept/vocabulary.json').exists())

    def kept_files(self):
        return list(self.folder.glob('kept/*.snapshot'))

    def test_who_looks_at_a_run_keeps_no_other_out(self):
        (self.folder / 'run.lua').write_text(RUN)
        model = 'nn.gpt { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2 }'
        out, err = self.prompt(
            'corpus = data.text { path = "text.txt", holdout = 0.1 }',
            f'run = het.train {{ model = {model}, data = corpus, batch = 4, steps = 9, optimizer = optim.adamw {{ lr = 1e-2 }}, '
            'save = "model", snapshot = { folder = "kept", every = 5 }, evaluate = { every = 0 } }',
            'for _ = 1, 3 do run:train_step() end',
            f'print(os.execute "{HETRUN} run.lua --quiet --kept=kept --allow-write=metrics.jsonl --save=model --allow-write=model")',
            'pcall(run.save, run)', 'for _ = 1, 2 do print(tostring(select(2, pcall(run.start, run)))) end', words=('--trust',))
        self.assertTrue((self.folder / 'model/model.safetensors').exists(), f'{out}\n{err}')
        refusals = re.findall(r'kept holds snapshots up to step \d+, which another run has written since this one was last there', out + err)
        self.assertEqual(len(refusals), 2, out + err)
        self.assertRegex(out + err, 'run:save: model holds a model of 12 steps that this run has not written')

    def started_at_prompt(self, *lines):
        model = 'nn.gpt { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2, dropout = 0.1 }'
        out, err = self.prompt(
            'corpus = data.text { path = "text.txt", holdout = 0.1 }',
            f'run = het.train {{ model = {model}, data = corpus, batch = 4, steps = 12, seed = 5, optimizer = optim.adamw {{ lr = 1e-2 }}, '
            'save = "model", resume = true, snapshot = { folder = "kept", every = 5 }, evaluate = { every = 0 } }',
            *lines, words=('--trust',))
        return out + err

    def test_a_run_that_was_restored_from_an_older_snapshot_starts(self):
        self.run_it()
        step = self.kept()[-1]   # of two
        self.assertLess(step, 12)
        said = self.started_at_prompt(f'run:restore {{ from = "kept", step = {step} }}', 'run:start()', 'print("step", run.step)')
        self.assertRegex(said, r'step\s+12')

    def test_what_another_run_has_saved_is_not_replaced(self):
        words = '--quiet --kept=kept --allow-write=metrics.jsonl --save=model --allow-write=model'
        self.run_it('--steps=6', '--save=model', '--allow-write=model')
        other = f'os.execute "{HETRUN} run.lua {words} --resume --steps=%d"'
        for before, step in (('run:prepare()', 30), ('run:start()', 60)):   # a resumed run that has no claim yet, and one that has none any more
            with self.subTest(before=before):
                said = self.started_at_prompt(before, other % step, 'print(select(2, pcall(run.start, run)))',
                                              'print(select(2, pcall(run.save, run)))')
                self.assertRegex(said, r'kept holds snapshots up to step \d+, which another run has written')
                self.assertIn(f'run:save: model holds a model of {step} steps that this run has not written', said)

    def test_a_save_needs_no_claim_on_snapshots(self):
        self.run_it('--steps=6')
        other = subprocess.Popen([HETRUN, 'run.lua', '--kept=kept', '--allow-write=metrics.jsonl', '--resume', '--steps=100000000'],
                                 cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not (self.folder / 'kept/run.lock').exists():
                self.assertIsNone(other.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            said = self.started_at_prompt('run:save()', 'print(select(2, pcall(run.snapshot, run)))')
        finally:
            other.kill()
            other.wait()
        self.assertIn(f"'kept' is in use: process {other.pid} on ", said)
        self.assertTrue((self.folder / 'model/model.safetensors').exists(), said)

    def test_a_store_gets_a_copy_and_gives_it_back(self):
        self.run_it('--store=far', '--allow-write=far')
        step = self.kept()[0]
        shutil.rmtree(self.folder / 'kept')
        err = self.run_it('--store=far', '--allow-write=far', '--steps=20', '--resume')
        self.assertRegex(err, rf'restored the state after step {step}: \S+ \S+ from store')

    def test_what_cannot_be_is_said(self):
        err = self.run_it('--store=s3://bucket/mine', code=2)
        self.assertIn('the recipe asks to send snapshots to s3://bucket/mine', err)
        (self.folder / 'plain').write_text('a file')
        self.assertIn("plain", self.run_it('--kept=plain', code=2))


if __name__ == '__main__':
    unittest.main()
