#!/usr/bin/env python3
"""run:snapshot and run:restore, of one process, of ranks under several plans, and of elastic runs.

usage: steering.py HETRUN [unittest arguments]
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
GUIDE = pathlib.Path(__file__).resolve().parent.parent.parent / 'recipes/guide/snapshots.md'
RECIPE = '''local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options {
  steps = { 12, "steps" }, shot = { 5, "step of run:snapshot" }, back = { 0, "step of run:restore" },
  from = { "snaps", "what it restores", path = "read" }, only = { "", "of it" }, width = { 16, "of the model" },
  folder = { "snaps", "for snapshots", path = "write" }, every = { 1000, "steps between snapshots; 0: as pays" },
  breaks = { 0, "step after which the folder is a file" },
  save = { "", "folder", path = "write" }, lr = { 0.003, "learning rate" }, sharded = { false, "the optimizer, over 4 ranks" },
  pipeline = { false, "of two stages" }, seed = { 5, "of the run" },
}
local corpus = data.text { path = "text.txt", holdout = 0.1 }
local plan = opt.pipeline and het.plan { microbatch = 2,
    het.pipeline { microbatches = 4, het.stage { "a:0", layers = 2 }, het.stage { "a:1" } } }
  or opt.sharded and het.plan { microbatch = 2, sharded_optimizer = true, het.pipeline { het.stage { "a:0" } },
    het.pipeline { het.stage { "a:1" } }, het.pipeline { het.stage { "a:2" } }, het.pipeline { het.stage { "a:3" } } }
  or nil
local restored
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = opt.width, layers = 2, heads = 2, dropout = 0.1 },
  data = corpus, batch = 8, microbatch = 2, steps = opt.steps, seed = opt.seed, optimizer = optim.adamw { lr = opt.lr },
  plan = plan, evaluate = { every = 6, batches = 1 }, save = opt.save ~= "" and opt.save or nil,
  snapshot = opt.folder ~= "" and { folder = opt.folder, every = opt.every > 0 and opt.every or nil } or nil,
  on_step = function(run, step)
    if step.step == opt.breaks then os.execute("rm -rf snaps; touch snaps") end
    if step.step == opt.shot then
      local found = run:snapshot()
      if run.rank == 0 then print("snapshot", found.step, found.place, found.memory) end
    end
    if step.step == opt.back and not restored then
      restored = run:restore { from = opt.from, only = opt.only ~= "" and opt.only or nil }
      if run.rank == 0 then print("restored", restored.step, restored.parameters, run.step) end
    end
  end,
}
'''


class Steering(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)
        (self.folder / 'recipe.lua').write_text(RECIPE)

    def hetrun(self, *words, code=0, entered=None):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, text=True, capture_output=True, timeout=120,
                              check=False, input=entered)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout, done.stderr

    def undisturbed(self, *words):
        """The losses of a run whose snapshots are removed."""
        _, losses = self.train('--shot=0', *words)
        shutil.rmtree(self.folder / 'snaps')
        return losses

    def train(self, *words, ranks=(), code=0):
        """What is printed, and the losses of each step in their order."""
        (self.folder / 'metrics.jsonl').unlink(missing_ok=True)
        out, err = self.hetrun(*ranks, 'recipe.lua', '--metrics=metrics.jsonl', '--allow-write=snaps', *words, code=code)
        losses = {}
        metrics = self.folder / 'metrics.jsonl'
        for line in metrics.read_text().splitlines() if metrics.exists() else []:
            record = json.loads(line)
            if 'loss' in record:
                losses.setdefault(record['step'], []).append(record['loss'])
        return out + err, losses

    def assert_same(self, mine, right):
        for step, losses in mine.items():
            for loss in losses:
                self.assertAlmostEqual(loss, right[step][0], delta=2e-5 * right[step][0], msg=f'step {step}: {losses}')

    RANKS = {'one': ((), ()), 'replicas': (('--workers', 4), ()), 'pipeline': (('--workers', 2), ('--pipeline',)),
             'sharded': (('--workers', 4), ('--sharded',)), 'elastic': (('--workers', 4, '--elastic', '2:4'), ()),
             'elastic, sharded': (('--workers', 4, '--elastic', '2:4'), ('--sharded',))}

    def test_a_run_goes_back_to_its_snapshot_and_takes_the_same_steps_again(self):
        right = self.undisturbed()
        for name, (ranks, words) in self.RANKS.items():
            with self.subTest(name):
                shutil.rmtree(self.folder / 'snaps', ignore_errors=True)
                said, losses = self.train('--back=9', *words, ranks=ranks)
                self.assertIn(f'snapshot\t5\tsnaps\t{"true" if "elastic" in name else "false"}\n', said)
                self.assertRegex(said, r'restored\t5\t\d+\t5\n')
                self.assertIn('restored all of the state from the snapshot of step 5 in snaps; the run goes on after step 5\n', said)
                self.assertEqual({step: len(each) for step, each in losses.items()},
                                 {step: 2 if 5 < step <= 9 else 1 for step in range(1, 13)})
                self.assert_same(losses, right)

    def test_a_snapshot_is_restored_under_any_other_plan(self):
        right = self.undisturbed()
        self.train(*self.RANKS['pipeline'][1], ranks=self.RANKS['pipeline'][0])
        (self.folder / 'snaps').rename(self.folder / 'kept')
        for path in (self.folder / 'kept').glob('step-12-*'):   # of the run's end
            path.unlink()
        for name, (ranks, words) in self.RANKS.items():
            with self.subTest(name):
                shutil.rmtree(self.folder / 'snaps', ignore_errors=True)
                # At another rate the four steps before it are others.
                _, losses = self.train('--shot=0', '--back=3', '--from=kept', *words, ranks=ranks)
                self.assert_same({step: losses[step] for step in range(6, 13)}, right)

    def test_a_later_run_goes_on_with_what_was_restored_and_not_with_what_was_given_up(self):
        self.train('--lr=0.1', '--steps=5')
        (self.folder / 'snaps').rename(self.folder / 'kept')
        right = self.undisturbed('--back=1', '--from=kept')
        # After step 8 it goes back to step 5 of the other run, beside snapshots of steps 2 to 8.
        self.train('--shot=0', '--back=8', '--from=kept', '--every=2', '--steps=9')
        said, losses = self.train('--shot=0', '--resume', '--every=2')
        self.assertRegex(said, 'going on after step [6-9]')
        self.assert_same(losses, right)

    def test_only_some_weights_are_replaced(self):
        self.train('--steps=5')
        (self.folder / 'snaps').rename(self.folder / 'kept')
        for name, (ranks, words) in self.RANKS.items():
            with self.subTest(name):
                shutil.rmtree(self.folder / 'snaps', ignore_errors=True)
                said, losses = self.train('--seed=6', '--steps=3', '--shot=3', '--back=3', '--from=kept', '--only=blocks.*', *words, ranks=ranks)
                self.assertRegex(said, r'restored\t3\t24\t3\n')
                self.assertIn('restored 24 parameters from the snapshot of step 5 in kept; the run goes on after step 3\n', said)
                self.assertEqual(sorted(losses), [1, 2, 3])
        # In the prompt: what was named is equal bit by bit, the rest is not.
        lines = ['run = het.train { model = nn.gpt { vocab = 27, context = 16, width = 16, layers = 2, heads = 2, dropout = 0.1 }, '
                 'data = data.text { path = "text.txt", holdout = 0.1 }, batch = 8, steps = 3, optimizer = optim.adamw { lr = 1e-3 }, '
                 'snapshot = { folder = "mine" } }',
                 'print(run:restore { from = "kept", only = { "blocks.0.*", "*.mlp_norm.*" } }.step)', 'run:snapshot()',
                 'print(#het.snapshot.open "mine":diff(het.snapshot.open "kept"))',
                 'for _, d in ipairs(het.snapshot.open "mine":diff(het.snapshot.open "kept")) do print(d.name, d.most) end']
        lines[0] = lines[0].replace('vocab = 27', f'vocab = {self.vocab()}')
        out, _ = self.hetrun('--quiet', entered='\n'.join(lines) + '\n')
        differ = set(re.findall(r'^(\S+)\t', out, re.MULTILINE))
        weights = {name for name in differ if not name.startswith('adamw.')}
        self.assertFalse([name for name in weights if name.startswith('blocks.0.') or 'mlp_norm' in name])
        self.assertIn('blocks.1.attention.out.weight', weights)

    def vocab(self):
        return len(set((self.folder / 'text.txt').read_text()))

    def test_a_saved_model_is_restored(self):
        self.train('--save=saved', '--allow-write=saved', '--shot=0', '--steps=5')
        right = self.undisturbed()
        said, losses = self.train('--shot=0', '--back=8', '--from=saved', '--workers=2')
        self.assertIn('restored all of the state from the model in saved; the run goes on after step 5', said)
        self.assert_same(losses, right)
        self.assertEqual(len(losses[6]), 2)
        (self.folder / 'saved' / 'training.snapshot').unlink()
        shutil.rmtree(self.folder / 'snaps')
        said, _ = self.train('--shot=0', '--back=8', '--from=saved', code=2)
        self.assertIn('saved holds a model alone, without the state of its training; only = "*" takes its weights', said)
        self.assertIn('failed after step 8; its snapshot is in snaps', said)
        shutil.rmtree(self.folder / 'snaps')
        said, _ = self.train('--shot=0', '--back=8', '--from=saved', '--only=*')
        self.assertRegex(said, r'restored\t8\t\d+\t8\n')

    def test_what_cannot_be_restored_is_said_by_all_ranks_once(self):
        self.train('--steps=5')
        (self.folder / 'snaps').rename(self.folder / 'kept')
        for words, sentence in (
                (['--only=blok.*'], 'run:restore: only = "blok.*" matches no parameter of the model, which has blocks.0.'),
                (['--only=blocks.*', '--width=32'], "in the snapshot of step 5 in kept, this run's is "),
                (['--seed=6'], 'kept has seed = 5 and precision = f32, this run has seed = 6 and precision = f32; only = "*" takes the weights alone'),
                (['--from=nowhere'], "there is no file or folder 'nowhere'"),
                (['--from=s3://bucket/run'], 'asks to read snapshots in s3://bucket/run; a recipe may read files here alone: --trust lets it')):
            for ranks in ((), ('--workers', 2)):
                with self.subTest(words=words, ranks=ranks):
                    shutil.rmtree(self.folder / 'snaps', ignore_errors=True)   # where the run before was kept that failed
                    said, _ = self.train('--shot=0', '--back=2', '--from=kept', *words, ranks=ranks, code=2)
                    self.assertIn(sentence, said)
                    self.assertEqual(said.count('hetrun: '), 1, said)
        file = next((self.folder / 'kept').glob('*.snapshot'))
        content = bytearray(file.read_bytes())
        content[5000] ^= 1
        file.write_bytes(content)
        shutil.rmtree(self.folder / 'snaps')
        said, losses = self.train('--shot=0', '--back=2', '--from=kept', ranks=('--workers', 2), code=2)
        self.assertIn('does not match its checksum', said)

    def test_a_run_without_a_place_for_snapshots_says_so(self):
        said, _ = self.train('--folder=', '--shot=2', code=2)
        self.assertIn('run:snapshot: the run has no place for snapshots; het.train { snapshot = { folder = "runs/mine/snapshots" } } names one', said)

    def test_a_step_has_one_snapshot(self):
        self.train('--shot=4', '--every=4', '--steps=9')
        # The last one is of the run's end.
        self.assertEqual(sorted(int(path.name.split('-')[1]) for path in (self.folder / 'snaps').glob('*.snapshot')), [8, 9])

    def test_snapshots_are_as_far_apart_as_pays(self):
        for name in ('one', 'replicas', 'elastic'):
            with self.subTest(name):
                shutil.rmtree(self.folder / 'snaps', ignore_errors=True)
                ranks, words = self.RANKS[name]
                self.train('--shot=0', '--every=0', '--steps=60', *words, ranks=ranks)
                # Some steps are for measuring; the next one is 30 s later, and the last of the run's end.
                self.assertEqual({int(path.name.split('-')[1]) for path in (self.folder / 'snaps').glob('*.snapshot')}, {4, 60})

    def test_a_folder_that_is_none_any_more_is_an_error_at_the_end(self):
        said, losses = self.train('--trust', '--shot=0', '--every=0', '--steps=40', '--breaks=2', code=71)
        self.assertEqual(len(losses), 40)
        self.assertEqual(said.count('was not written'), 1, said)
        self.assertRegex(said, r'hetrun: the snapshot after step 40 is not complete: .*snaps')

    def test_what_several_ranks_cannot_write_is_said_once_and_then_now_and_then(self):
        said, losses = self.train('--trust', '--shot=0', '--every=2', '--steps=60', '--breaks=2', code=71,
                                  ranks=('--workers', 2, '--elastic', '1:2'))
        self.assertEqual(len(losses), 60)
        failed = re.findall(r'the snapshot on disk after step (\d+) was not written: (.*)', said)
        self.assertLessEqual(1, len(failed), said)
        self.assertLessEqual(len(failed), 4, said)
        self.assertTrue(failed[0][1].endswith('(on all ranks)'), said)
        for _, why in failed[1:]:
            self.assertRegex(why, r'; the (9|19|29) before failed as well$')

    def test_a_vocabulary_of_an_earlier_run_goes_with_its_snapshots(self):
        self.train('--steps=5')
        self.assertTrue((self.folder / 'snaps' / 'vocabulary.json').exists())
        recipe = (self.folder / 'recipe.lua').read_text()
        (self.folder / 'tokens.bin').write_bytes(bytes([1, 0, 2, 0, 3, 0]) * 400)
        (self.folder / 'recipe.lua').write_text(recipe.replace('data.text { path = "text.txt", holdout = 0.1 }',
                                                               'data.tokens { path = "tokens.bin", holdout = 0.1 }'))
        self.train('--steps=5', '--overwrite')
        self.assertFalse((self.folder / 'snaps' / 'vocabulary.json').exists())

    def test_what_a_run_writes_says_which_model_it_is_of(self):
        self.train('--steps=5')
        out, _ = self.hetrun('snapshot', 'export', 'snaps', 'model')
        self.assertIn('the model after step 5', out)
        # The vocabulary is beside the snapshots, and goes where they go.
        self.hetrun('snapshot', 'copy', 'snaps', 'elsewhere')
        words = [(self.folder / place / 'vocabulary.json').read_bytes() for place in ('snaps', 'elsewhere', 'model')]
        self.assertEqual(len(set(words)), 1)
        self.hetrun('snapshot', 'copy', 'snaps', f'file://{self.folder}/store')
        self.hetrun('snapshot', 'export', f'file://{self.folder}/store', 'from-store')
        self.assertEqual((self.folder / 'from-store/vocabulary.json').read_bytes(), words[0])
        out, _ = self.hetrun('snapshot', 'import', 'model', 'again')
        self.assertIn('step 5, ', out)
        lines = 's = het.snapshot.open "snaps"\nprint(s.model.model_type, s.ranks, s.holders[1].rank, s.holders[1].file)\n'
        out, _ = self.hetrun('--quiet', entered=lines)
        self.assertRegex(out, r'^gpt2\t1\t0\tsnaps/step-5-.*\n')

    def test_the_lines_of_the_guide_run(self):
        block = next(block for block in re.findall(r'```lua\n(.*?)```', GUIDE.read_text(), re.DOTALL) if 'run:restore' in block)
        self.train('--steps=5')
        (self.folder / 'runs' / 'mine').mkdir(parents=True)
        (self.folder / 'snaps').rename(self.folder / 'runs' / 'mine' / 'snapshots')
        text = RECIPE[:RECIPE.index('  on_step =')] + block + '}\n'
        (self.folder / 'recipe.lua').write_text(text.replace('local restored\n', '').replace('steps = { 12', 'steps = { 120'))
        said, losses = self.train()
        self.assertIn('restored 24 parameters from the snapshot of step 5 in runs/mine/snapshots', said)


if __name__ == '__main__':
    unittest.main()
