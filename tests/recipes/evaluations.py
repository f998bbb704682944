#!/usr/bin/env python3
"""What follows from the loss of evaluations: early stopping, the best save and averaged parameters, over several ranks and after --resume.

usage: evaluations.py HETRUN [unittest arguments]
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'evaluations.lua').write_text((HERE / 'evaluations.lua').read_text())
        self.metrics = self.folder / 'metrics.jsonl'

    def run_recipe(self, *words, code=0, environment=None):
        """A run's standard error and its results."""
        launch = [word for word in words if word.startswith(('--workers', '--elastic'))]
        options = [word for word in words if word not in launch]
        done = subprocess.run([HETRUN, *launch, 'evaluations.lua', *options, f'--metrics={self.metrics}', '--json'],
                              cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stderr, json.loads(done.stdout.splitlines()[-1]) if code == 0 else None

    def validation(self):
        """The losses of the evaluations by step."""
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        return {line['step']: line['validation_loss'] for line in lines if 'validation_loss' in line}


class Ends(Case):
    def test_a_recipe_ends_its_run_and_uses_the_model(self):
        """run:stop(), run:model(), het.load with a description, and a reference of that kind."""
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local nn, x = het.nn, het.randn({ 64, 4 }, "f32", 1)
local function make() return nn.sequential { nn.linear(4, 8), nn.tanh(), nn.linear(8, 4) } end
local given = { data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 50, optimizer = het.optim.adamw { lr = 1e-2 },
  model = make(), save = "runs/own", ema = 0.5, on_step = function(run, step)
    local average, trained = run:gather():read "ema.linear.bias", run:gather():read "linear.bias"
    if step.step == 1 then assert(average[1] == trained[1], "the average counts the last step") end
    if step.step == 9 then run:stop() end
  end }
local run = het.train(given)
local results = run:start()
assert(run.step == 9 and results.stopped_early)
local probe = het.ones { 1, 4 }
local now, saved = run:model()(probe), het.load("runs/own", { model = make() })(probe)
assert(het.op.sum(het.op.abs(now - saved)):item() == 0, "the saved model is the run's")
print("called untrained:", select(2, pcall(given.model, probe)))
local student = { model = make(), reference = het.load("runs/own", { model = make() }), save = nil }
for _, name in ipairs { "data", "batch", "optimizer" } do student[name] = given[name] end
student.steps, student.evaluate = 300, { every = 300 }
student.loss = function(output, labels, scale, reference) return het.op.sum(het.op.square(output - reference)) * scale end
return het.train(student)''')
        done = subprocess.run([HETRUN, 'evaluations.lua', '--json', '--quiet'], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('called untrained:\tthe weights of a model that was trained are its run\'s: run:model()', done.stdout)
        self.assertLess(json.loads(done.stdout.splitlines()[-1])['validation_loss'], 0.01)


class Noise(Case):
    def test_layers_draw_other_numbers_in_each_step_and_the_same_under_every_plan(self):
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local opt = het.options { kind = { "normal", "" }, precision = { "f32", "", choices = { "f32", "bf16" } },
  microbatch = { 16, "" } }
return het.train { batch = 64, microbatch = opt.microbatch, steps = 6, precision = opt.precision,
  model = het.nn.layer { parameters = { w = { 1, init = "ones" } },
    forward = function(self, x) return self.builder[opt.kind](self.builder, x) * self.w end },
  data = het.data.pairs { inputs = het.randn({ 256, 40 }, "f32", 1), labels = het.zeros { 256, 40 }, holdout = 64 / 256 },
  evaluate = { every = 2, batches = 1 }, optimizer = het.optim.sgd { lr = 1e-30 } }''')

        def losses(*words):
            self.metrics.unlink(missing_ok=True)
            self.run_recipe('--quiet', *words)
            lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
            return [line['loss'] for line in lines if 'loss' in line], list(self.validation().values())
        for kind, square in (('normal', 1), ('uniform', 1 / 3)):   # the mean of 2,560 squares
            steps, held = losses(f'--kind={kind}')
            self.assertEqual(len(set(steps)), 6)
            self.assertEqual(len(set(held)), 1)
            for loss in steps + held:
                self.assertAlmostEqual(loss, square, delta=0.15 * square)
            for words in (('--workers=2',), ('--microbatch=4',)):
                others, holds = losses(f'--kind={kind}', *words)
                for one, two in zip(steps + held, others + holds):
                    self.assertAlmostEqual(one, two, delta=1e-6)
            for one, two in zip(steps, losses(f'--kind={kind}', '--precision=bf16')[0]):
                self.assertAlmostEqual(one, two, delta=1e-2)


class NoiseInText(Case):
    def test_a_model_that_draws_writes_text(self):
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local op = het.op
local corpus = het.data.text { path = "text.txt", tokenizer = "char" }
return het.train { data = corpus, batch = 4, steps = 3, optimizer = het.optim.sgd { lr = 0.1 }, evaluate = { every = 0 },
  model = het.nn.layer { parameters = { table = { corpus.vocab, 8 } }, forward = function(self, ids)
    local x = op.embedding(ids, self.table)
    return op.linear(x + 0.01 * self.builder:normal(x), self.table)
  end }, context = 16, sample = { prompt = "the ", tokens = 8 } }''')
        done = subprocess.run([HETRUN, 'evaluations.lua', '--quiet'], cwd=self.folder, capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith('the '), done.stdout)


class Shares(Case):
    def test_a_share_of_rows_is_as_many_rows_as_it_says(self):
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local labels = {}
for i = 1, 100 do labels[i] = { i } end
return het.train { batch = 1, steps = 1, optimizer = het.optim.sgd { lr = 1e-30 }, evaluate = { every = 1, batches = 100 },
  model = het.nn.layer { parameters = { w = { 1, 1, init = "zeros" } }, forward = function(self, x) return het.op.matmul(x, self.w) end },
  data = het.data.pairs { inputs = het.zeros { 100, 1 }, labels = het.tensor(labels), holdout = 29 / 100 } }''')
        squares = [i * i for i in range(72, 101)]   # of 29 rows; 0.29 times 100 is less than 29
        self.assertAlmostEqual(self.run_recipe('--quiet')[1]['validation_loss'], sum(squares) / len(squares), delta=0.1)

    def test_layers_that_know_where_tokens_stand_train_on_pairs(self):
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local x = het.randn({ 32, 6, 8 }, "f32", 1)
return het.train { model = het.nn.attention { width = 8, heads = 2, rotary = true }, batch = 8, steps = 2,
  data = het.data.pairs { inputs = x, labels = x, holdout = 8 / 32 }, optimizer = het.optim.sgd { lr = 0.1 },
  evaluate = { every = 1 } }''')
        self.assertEqual(self.run_recipe('--quiet')[1]['steps'], 2)


class OtherData(Case):
    """evaluate = { data = ... }: what is evaluated on is given beside the training data."""

    def test_it_is_the_same_as_holding_these_rows_out(self):
        words = ('--falls=6', '--patience=3')
        held = self.run_recipe(*words)[1]
        losses = self.validation()
        self.assertEqual(len(losses), 6)
        for more in ((), ('--workers=2',), ('--workers=2', '--stages'), ('--workers=2', '--sharded'),
                     ('--workers=3', '--elastic=1:3')):
            self.metrics.unlink()
            result = self.run_recipe('--apart', *words, *more)[1]
            self.assertEqual((result['steps'], result['best_validation_step']), (12, 6), more)
            found = self.validation()
            self.assertEqual(found.keys(), losses.keys())
            for step, loss in losses.items():
                self.assertAlmostEqual(found[step], loss, delta=1e-5 if more else 0, msg=more)
            self.assertAlmostEqual(result['train_loss'], held['train_loss'], delta=1e-5 if more else 0, msg=more)

    def test_a_lost_rank_changes_nothing(self):
        for at in ('0.05', '0.95'):
            _, result = self.run_recipe('--workers=3', '--elastic=1:3', '--apart', '--falls=6', '--patience=3',
                                        environment={'HETRUN_FAULT': f'rank=1 step=9 at={at}'})
            self.assertEqual((result['steps'], result['best_validation_step']), (12, 6), at)

    def test_a_run_that_goes_on_says_where_it_is_other_data(self):
        words = ('--apart', '--falls=6', '--patience=3', '--save=model')
        self.run_recipe(*words, '--steps=8')
        note = 'note: the run saved in model was evaluated on other data (8 samples then, 8 now); its lowest validation loss is forgotten\n'
        err, result = self.run_recipe(*words, '--resume')
        self.assertEqual((result['steps'], result['best_validation_step']), (12, 6))
        self.assertNotIn('note:', err)
        self.run_recipe('--apart', '--steps=12', '--save=other')
        err, result = self.run_recipe('--apart', '--label=3', '--steps=20', '--save=other', '--resume')
        self.assertIn(note.replace('model', 'other'), err)
        self.assertGreater(result['best_validation_step'], 12)
        err, _ = self.run_recipe('--steps=28', '--save=other', '--resume')
        self.assertIn('was trained on other data (40 samples then, 48 now)', err)

    def test_a_mixture_is_evaluated_whole_and_examples_that_are_cut_are_counted(self):
        for name, lengths in (('a', (4, 5, 6, 30)), ('b', (5, 20, 30)), ('c', (40, 6))):
            (self.folder / f'{name}.jsonl').write_text(''.join(json.dumps({'text': 'ab' * n}) + '\n' for n in lengths))
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local opt = het.options { holdout = { 0.0001, "" } }
local function corpus(name, from, holdout)
  return het.data.jsonl { path = name .. ".jsonl", tokenizer = "char", ending = "", vocabulary = from, holdout = holdout }
end
local first = corpus "a"
return het.train { data = first, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
  evaluate = { every = 1, data = het.data.mixture { { corpus("b", first, opt.holdout > 0.1 and opt.holdout or nil), 1 }, { corpus("c", first), 1 } } },
  model = het.nn.gpt { vocab = first.vocab, context = 16, width = 8, layers = 1, heads = 2 } }''')
        err, result = self.run_recipe()
        self.assertIn('1 of 4 examples of a.jsonl have more than the 16 tokens of the context', err)
        self.assertIn('3 of 5 examples of b.jsonl + c.jsonl have more than the 16 tokens of the context', err)
        self.assertGreater(result['validation_loss'], 0)
        err, _ = self.run_recipe('--holdout=0.5', code=2)
        self.assertIn('train.evaluate.data is evaluated on whole; leave out its holdout = 0.5', err)

    def test_text_is_evaluated_by_the_vocabulary_of_the_training_data(self):
        train, held = 'the quick brown fox jumps over the lazy dog. ' * 60, 'a lazy fox naps in the box. ' * 32
        for name, text in (('train', train), ('held', held), ('both', train + held)):
            (self.folder / f'{name}.txt').write_text(text)
            (self.folder / f'{name}.jsonl').write_text(''.join(json.dumps({'text': text[i:i + 20]}) + '\n' for i in range(0, len(text), 20)))
            (self.folder / f'{name}.bin').write_bytes(struct.pack(f'<{len(text)}H', *text.encode()))
        self.assertEqual((len(train), len(held)), (2700, 896))
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local nn, data = het.nn, het.data
local opt = het.options { kind = { "text", "" }, apart = { false, "" }, share = { 896 / 3596, "" } }
local share = not opt.apart and opt.share or nil
local ending = opt.kind == "jsonl" and "." or nil
local function corpus(name, vocabulary, holdout)
  if opt.kind == "tokens" then return data.tokens { path = name .. ".bin", vocab = 128, holdout = holdout } end
  if opt.kind == "jsonl" then
    return data.jsonl { path = name .. ".jsonl", tokenizer = "char", ending = ".", vocabulary = vocabulary, holdout = holdout }
  end
  return data[opt.kind] { path = name .. ".txt", tokenizer = "char", vocabulary = vocabulary, holdout = holdout }
end
local first = corpus(opt.apart and "train" or "both", nil, share)
local other = opt.apart and corpus("held", opt.kind ~= "tokens" and first or nil) or nil
return het.train { data = first, batch = 4, steps = 4, optimizer = het.optim.adamw { lr = 1e-2 }, evaluate = { data = other, every = 2 },
  model = (opt.kind == "masked" and nn.bert or nn.gpt) { vocab = first.vocab, context = 8, width = 8, layers = 1, heads = 2 } }''')
        for kind, share in (('text', 896 / 3596), ('masked', 896 / 3596), ('tokens', 896 / 3596), ('jsonl', 45 / 180)):
            losses = []
            for words in ((f'--share={share}',), ('--apart',), ('--apart', '--workers=2')):
                self.metrics.unlink(missing_ok=True)
                result = self.run_recipe(f'--kind={kind}', *words)[1]
                losses.append((result['train_loss'], *self.validation().values()))
            self.assertEqual(len(losses[0]), 3)
            self.assertEqual(losses[0], losses[1], kind)
            for one, two in zip(losses[0], losses[2]):
                self.assertAlmostEqual(one, two, delta=1e-5, msg=kind)


class Collectives(Case):
    def test_one_that_not_all_ranks_call_is_named(self):
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local x = het.randn({ 64, 8 }, "f32", 1)
local opt = het.options { call = { "gather", "" } }
return het.train { model = het.nn.linear(8, 8), data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 6,
  evaluate = { every = 5 }, optimizer = het.optim.adamw { lr = 0.1 }, on_step = function(run, step)
    if step.step == 3 and run.rank == 0 then
      run[opt.call](run)
    end
  end }''')
        for name in ('gather', 'model', 'evaluate'):
            err, _ = self.run_recipe('--workers=2', f'--call={name}', code=75)
            self.assertRegex(err, rf'evaluations\.lua:7: run:{name} is called here, and (rank 1|another rank) does something else, '
                                  'such as the next step; all ranks call it at the same place\n', name)


class Groups(Case):
    """Parameter groups of an optimizer; tests/reference/optimizers.py compares them with PyTorch's."""

    def test_they_go_on_after_a_save_and_the_loss_of_a_rank(self):
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local nn, optim, x = het.nn, het.optim, het.randn({ 64, 4 }, "f32", 1)
local opt = het.options { until_step = { 12, "" }, save = { "", "", path = "write" }, grouped = { true, "" } }
local schedule = optim.cosine { peak = 1e-2, warmup = 2, steps = 12 }
local first
return het.train { model = nn.sequential { nn.linear(4, 8), nn.tanh(), nn.linear(8, 4), nn.linear(4, 4) }, batch = 8, steps = 12,
  data = het.data.pairs { inputs = x, labels = x }, evaluate = { every = 4 }, save = opt.save ~= "" and opt.save or nil,
  optimizer = optim.adamw { lr = schedule, weight_decay = 0.1, groups = opt.grouped and {
    { match = "^linear%.", lr = 0 }, { match = "^linear_2", lr = 5e-2, weight_decay = 0 },
    { match = "^linear_3.bias", lr = function(step) return step < 6 and 1e-1 or 1e-3 end } } or nil },
  on_step = function(run, step)
    if run.ranks == 1 then
      local bias = run:gather():read("linear.bias")[1]
      if not opt.grouped then return end
      assert(not first or first == bias, "a rate of 0 changes nothing")
      first = bias
    end
    if step.step == opt.until_step then run:stop() end
  end }''')

        def losses(*words, **more):
            self.metrics.unlink(missing_ok=True)
            self.run_recipe(*words, **more)
            lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
            return {line['step']: line['loss'] for line in lines if 'loss' in line}
        through = losses()
        self.assertEqual(len(through), 12)
        self.assertNotEqual(through, losses('--grouped=false'))
        first = losses('--save=model', '--until_step=5')
        self.assertEqual({**first, **losses('--save=model', '--resume')}, through)
        self.assertEqual(len(first), 5)
        found = losses('--workers=2', '--elastic=1:2', environment={'HETRUN_FAULT': 'rank=1 step=6 at=0.5'})
        for step, loss in through.items():
            self.assertAlmostEqual(found[step], loss, delta=1e-5)


class EarlyStopping(Case):
    def test_a_run_ends_when_no_loss_is_lower(self):
        err, result = self.run_recipe('--falls=6', '--patience=3', '--save=model')
        self.assertEqual((result['steps'], result['stopped_early'], result['best_validation_step']), (12, True, 6))
        losses = self.validation()
        self.assertEqual(list(losses), [2, 4, 6, 8, 10, 12])
        self.assertLess(losses[6], losses[4])
        self.assertEqual(result['best_validation_loss'], losses[6])
        self.assertIn(f'stopped early after step 12: 3 evaluations in a row found no loss below {losses[6]:.4f}\n', err)
        self.assertIn('(2 of 3 evaluations without a lower loss)', err)
        self.assertIn('saved after step 12 in model', err)

    def test_each_row_of_pairs_that_is_held_out_counts_once(self):
        """Rows have the loss i² and a figure i, i = 1, 2, ..., of a model that gives zeros; 10 of 30 are held out."""
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local opt = het.options { batch = { 4, "" }, microbatch = { 2, "" }, batches = { 20, "" }, kind = { "f32", "" } }
local labels = {}
for i = 1, 30 do labels[i] = opt.kind == "f32" and { i } or i % 5 == 0 and -100 or i % 3 end
local own = opt.kind == "f32" and function(output, labels, scale)
  local ones = output * 0 + labels
  return het.op.sum(het.op.square(output - labels)) * scale, { label = het.op.reshape(het.op.sum(ones) * scale, { shape = {} }) }
end or nil
return het.train { batch = opt.batch, microbatch = opt.microbatch, steps = 1, loss = own,
  model = het.nn.layer { parameters = { w = { 1, opt.kind == "f32" and 1 or 3, init = opt.kind == "f32" and "zeros" or nil } },
    forward = function(self, x) return het.op.matmul(x, self.w) end },
  data = het.data.pairs { inputs = het.randn({ 30, 1 }, "f32", 7), labels = het.tensor(labels, opt.kind), holdout = 10 / 30 },
  evaluate = { every = 1, batches = opt.batches }, optimizer = het.optim.sgd { lr = 1e-30 } }''')

        def loss_of(*words):
            return self.run_recipe('--quiet', *words)[1]['validation_loss']
        held = range(21, 31)
        for batch in (2, 4, 8, 16):
            self.assertAlmostEqual(loss_of(f'--batch={batch}'), sum(i * i for i in held) / 10, delta=1e-2, msg=f'batch {batch}')
            figures = [line['validation_figures'] for line in map(json.loads, self.metrics.read_text().splitlines()) if 'validation_loss' in line]
            self.assertAlmostEqual(figures[-1]['label'], sum(held) / 10, delta=1e-4)
        self.assertAlmostEqual(loss_of('--batches=2'), sum(i * i for i in held[:8]) / 8, delta=1e-2)
        self.assertAlmostEqual(loss_of('--workers=2', '--batch=16'), sum(i * i for i in held) / 10, delta=1e-2)
        # With labels that do not count among them, also as the last one.
        one = loss_of('--kind=i32', '--batch=10', '--microbatch=10')
        for batch in (4, 6, 16):
            self.assertAlmostEqual(loss_of('--kind=i32', f'--batch={batch}'), one, delta=1e-6, msg=f'batch {batch}')

    def test_evaluations_in_which_no_label_counts_have_no_lowest_loss(self):
        (self.folder / 'evaluations.lua').write_text('''local het = require "het"
local labels = {}
for i = 1, 24 do labels[i] = i > 16 and -100 or i % 3 end
return het.train { model = het.nn.linear(2, 3), batch = 4, steps = 4, evaluate = { every = 2 }, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn({ 24, 2 }, "f32", 1), labels = het.tensor(labels, "i32"), holdout = 8 / 24 } }
''')
        err, result = self.run_recipe()
        self.assertEqual((result['steps'], result['validation_loss'], result['best_validation_step']), (4, None, None))
        self.assertIn('step 2/4  validation loss nan: it is not finite, or no label counts\n', err)

    def test_without_patience_all_steps_are_done(self):
        err, result = self.run_recipe('--falls=6')
        self.assertEqual((result['steps'], result['stopped_early'], result['best_validation_step']), (40, False, 6))
        self.assertNotIn('early', err)

    def test_a_run_that_stops_at_its_last_step_has_not_stopped_early(self):
        err, result = self.run_recipe('--falls=6', '--patience=3', '--steps=12')
        self.assertEqual((result['steps'], result['stopped_early']), (12, False))
        self.assertNotIn('stopped early', err)

    def test_a_change_that_is_too_small_does_not_count(self):
        err, result = self.run_recipe('--patience=2', '--change=100')   # the first loss counts
        self.assertEqual(result['steps'], 6)
        losses = self.validation()
        self.assertEqual(result['best_validation_loss'], losses[6])
        self.assertIn(f'2 evaluations in a row found no loss lower than {losses[2]:.4f} by more than 100\n', err)
        # Small changes add up: they are compared with the last loss that counted.
        self.run_recipe('--steps=8')
        losses = self.validation()
        change = (losses[2] - losses[6] + losses[2] - losses[4]) / 2
        self.assertLess(losses[4] - losses[6], change)
        self.assertEqual(self.run_recipe('--patience=2', f'--change={change}', '--steps=6')[1]['stopped_early'], False)
        self.assertEqual(self.run_recipe('--patience=2', f'--change={change}', '--falls=6')[1]['steps'], 10)

    def test_a_run_that_goes_on_counts_on(self):
        words = ('--falls=6', '--patience=3', '--save=model')
        self.run_recipe(*words, '--steps=8')
        err, result = self.run_recipe(*words, '--resume')
        self.assertEqual((result['steps'], result['best_validation_step']), (12, 6))
        self.assertEqual(list(self.validation()), [2, 4, 6, 8, 10, 12])
        err, result = self.run_recipe(*words, '--resume')
        self.assertEqual((result['steps'], result['stopped_early']), (12, True))
        self.assertIn('already stopped early after step 12: 3 evaluations in a row found no loss below ', err)
        self.assertIn('; raise `evaluate.patience` to continue\n', err)
        self.assertNotIn('\nstopped early', err)
        err, result = self.run_recipe('--falls=6', '--patience=5', '--save=model', '--resume')
        self.assertEqual(result['steps'], 16)

    def test_a_run_that_fails_goes_on_from_its_last_save(self):
        words = ('--falls=6', '--patience=3', '--save=model', '--every=5')
        self.run_recipe(*words, '--fail=11', code=2)
        self.assertEqual(self.run_recipe(*words, '--resume')[1]['steps'], 12)

    def test_all_ranks_stop_together_under_any_plan(self):
        alone = self.run_recipe('--falls=6', '--patience=3')[1]
        for words in (('--workers=2',), ('--workers=2', '--stages'), ('--workers=3', '--elastic=1:3')):
            err, result = self.run_recipe(*words, '--falls=6', '--patience=3')
            self.assertEqual(result['steps'], 12, words)
            self.assertAlmostEqual(result['best_validation_loss'], alone['best_validation_loss'], delta=1e-5)
            self.assertEqual(err.count('stopped early'), 1)

    def test_a_lost_rank_changes_no_count(self):
        for step in (8, 9, 11):
            for at in ('0.05', '0.95'):
                err, result = self.run_recipe('--workers=3', '--elastic=1:3', '--falls=6', '--patience=3',
                                              environment={'HETRUN_FAULT': f'rank=1 step={step} at={at}'})
                self.assertIn('was killed by signal 9', err)
                self.assertEqual((result['steps'], result['best_validation_step']), (12, 6), (step, at))


class Saves(Case):
    def files_of(self, folder):
        return {path.name: path.read_bytes() for path in (self.folder / folder).iterdir()
                if path.is_file() and path.name != '.hetrun'}

    def tensors(self, folder):
        """The parameters of a saved model."""
        data = (self.folder / folder / 'model.safetensors').read_bytes()
        size = int.from_bytes(data[:8], 'little')
        entries = json.loads(data[8:8 + size])
        self.step = int(entries.pop('__metadata__')['step'])
        found = {}
        for name, entry in entries.items():
            first, last = entry['data_offsets']
            found[name] = struct.unpack(f'<{(last - first) // 4}f', data[8 + size + first:8 + size + last])
        return found

    def assert_same_tensors(self, folder, wanted, **more):
        found = self.tensors(folder)
        self.assertEqual(found.keys(), wanted.keys())
        for name, values in wanted.items():
            for a, b in zip(values, found[name], strict=True):
                self.assertAlmostEqual(a, b, msg=(folder, name), **more)


class KeepBest(Saves):
    RISES = ('--falls=6', '--rate=2', '--best=best')

    def test_the_best_parameters_are_those_of_a_run_that_ends_there(self):
        err, result = self.run_recipe(*self.RISES, '--steps=12', '--save=model')
        losses = self.validation()
        self.assertEqual(min(losses, key=losses.get), 6)
        self.assertGreater(losses[12], losses[6])
        self.assertEqual((result['steps'], result['best_validation_step']), (12, 6))
        self.assertIn(f'the parameters of step 6, with the lowest validation loss ({losses[6]:.4f}), are in best\n', err)
        self.run_recipe('--falls=6', '--steps=6', '--save=six')
        self.assertEqual(self.files_of('best'), self.files_of('six'))
        self.assertNotEqual(self.files_of('best'), self.files_of('model'))
        # A run goes on from it as from any save.
        self.run_recipe('--falls=6', '--save=best', '--steps=8', '--resume')
        self.run_recipe('--falls=6', '--save=six', '--steps=8', '--resume')
        self.assertEqual(self.files_of('best'), self.files_of('six'))

    def test_it_is_kept_beside_saves_of_the_same_steps(self):
        self.run_recipe(*self.RISES, '--steps=9', '--save=model', '--every=1')
        self.run_recipe('--falls=6', '--steps=6', '--save=six')
        self.run_recipe('--falls=6', '--rate=2', '--steps=9', '--save=nine')
        self.assertEqual(self.files_of('best'), self.files_of('six'))
        self.assertEqual(self.files_of('model'), self.files_of('nine'))

    def test_the_last_step_may_be_the_best(self):
        err, _ = self.run_recipe('--best=best', '--steps=6')   # without `save`
        self.assertIn('the parameters of step 6', err)
        self.tensors('best')
        self.assertEqual(self.step, 6)

    def test_a_run_that_goes_on_keeps_what_is_best_so_far(self):
        words = (*self.RISES, '--save=model')
        self.run_recipe(*words, '--steps=8')
        kept = self.files_of('best')
        err, _ = self.run_recipe(*words, '--steps=12', '--resume')
        self.assertEqual(self.files_of('best'), kept)
        self.assertIn('the parameters of step 6', err)
        self.assertEqual(self.tensors('best') and self.step, 6)
        self.run_recipe('--best=best', '--save=model', '--steps=60', '--resume')   # the loss falls again
        self.tensors('best')
        self.assertGreater(self.step, 12)

    def test_a_folder_without_the_best_is_named(self):
        self.run_recipe('--falls=6', '--rate=2', '--save=model', '--steps=8')
        err, _ = self.run_recipe('--falls=6', '--rate=2', '--save=model', '--best=best', '--steps=10', '--resume')
        self.assertRegex(err, r'best holds no model: the parameters of step 6, with the lowest validation loss \(\d\.\d{4}\), '
                              'are not there\n')
        self.run_recipe('--steps=20', '--best=later')
        err, _ = self.run_recipe('--falls=6', '--rate=2', '--save=model', '--best=later', '--steps=12', '--resume')
        self.assertRegex(err, 'later holds a model of 20 steps: the parameters of step 6, with .*, are not there\n')

    def test_all_plans_keep_the_same(self):
        self.run_recipe(*self.RISES, '--steps=12')
        alone = self.tensors('best')
        for i, (words, environment) in enumerate([
                (('--workers=2',), {}), (('--workers=2', '--stages'), {}),
                (('--workers=3', '--elastic=1:3'), {'HETRUN_FAULT': 'rank=1 step=7 at=0.05'}),
                (('--workers=3', '--elastic=1:3'), {'HETRUN_FAULT': 'rank=0 step=7 at=0.05'})]):
            place = f'best{i}'
            self.run_recipe(*words, '--falls=6', '--rate=2', f'--best={place}', '--steps=12', environment=environment)
            self.assert_same_tensors(place, alone, delta=1e-5)
            self.assertEqual(self.step, 6)

    def test_what_another_run_has_written_is_not_replaced(self):
        self.run_recipe('--best=best', '--steps=4')
        kept = self.files_of('best')
        err, _ = self.run_recipe('--best=best', '--steps=2', code=2)
        self.assertIn('best holds a model of 4 steps; --resume (resume = true) goes on with it, --overwrite replaces it, '
                      'another folder for `keep_best` keeps both', err)
        self.assertEqual(self.files_of('best'), kept)
        self.run_recipe('--best=best', '--steps=2', '--overwrite')
        self.tensors('best')
        self.assertEqual(self.step, 2)
        # Also of a run that goes on: the folder is another run's unless it holds the step that was the best.
        self.run_recipe('--falls=6', '--rate=2', '--steps=8', '--save=model', '--best=mine')
        for ranks in ([], ['--workers=2']):
            err, _ = self.run_recipe(*ranks, '--steps=12', '--save=model', '--best=best', '--resume', code=2)
            self.assertIn('best holds a model of 2 steps that this run has not written: its best step is 6; another folder '
                          'for `keep_best` keeps both', err)
            self.tensors('best')
            self.assertEqual(self.step, 2)
        self.run_recipe('--steps=40', '--save=model', '--best=mine', '--resume')
        # A model of a later step than the save may be the run's: it stays there, too.
        self.run_recipe('--steps=20', '--best=later')
        kept = self.files_of('later')
        self.run_recipe('--steps=6', '--save=short', '--best=short_best')
        err, _ = self.run_recipe('--steps=10', '--save=short', '--best=later', '--resume')
        self.assertIn('later holds a model of 20 steps that this run has not written: it is saved in later/interrupted', err)
        self.assertEqual(self.files_of('later'), kept)
        err, _ = self.run_recipe('--best=./one', '--save=one', '--steps=2', code=2)
        self.assertIn('`save` and `keep_best` are the same folder, one; another one keeps both', err)


class Averages(Saves):
    def test_an_average_is_that_of_the_parameters_after_each_step(self):
        average = None
        for step in range(1, 6):
            self.run_recipe(f'--steps={step}', '--save=plain', '--overwrite')
            after = self.tensors('plain')
            average = after if average is None else {
                name: [0.8 * a + 0.2 * b for a, b in zip(values, after[name])] for name, values in average.items()}
        self.run_recipe('--steps=5', '--ema=0.8', '--save=model')
        self.assert_same_tensors('model', average, delta=1e-6)
        self.run_recipe('--steps=5', '--ema=0.8', '--saved=false', '--save=trained')
        self.assert_same_tensors('trained', after, delta=0)

    def test_averages_are_evaluated_and_change_no_training(self):
        def losses():
            lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
            return [line['loss'] for line in lines if 'loss' in line]
        self.run_recipe('--steps=6')
        plain, trained = losses(), self.validation()
        self.run_recipe('--steps=6', '--ema=0.8', '--save=model')
        averaged = self.validation()
        self.assertEqual(losses(), plain)
        self.assertGreater(averaged[6], trained[6] + 1e-3)   # which lags behind a loss that falls
        self.run_recipe('--steps=2', '--from=model', '--falls=0')   # at so small a rate it stays as it is
        self.assertAlmostEqual(self.validation()[2], averaged[6], delta=1e-6)
        self.run_recipe('--steps=6', '--ema=0.8', '--evaluated=false')
        self.assertEqual(self.validation(), trained)

    def test_a_run_that_goes_on_averages_on(self):
        for saved in ('true', 'false'):
            words = ('--ema=0.8', f'--saved={saved}')
            self.run_recipe(*words, '--steps=6', f'--save=whole_{saved}')
            whole = self.validation()
            self.run_recipe(*words, '--steps=4', f'--save=parts_{saved}')
            self.run_recipe(*words, '--steps=6', f'--save=parts_{saved}', '--resume')
            self.assertEqual(self.files_of(f'whole_{saved}'), self.files_of(f'parts_{saved}'))
            self.assertEqual(self.validation(), whole)
        # What is averaged later, or no more, trains on from the trained parameters.
        self.run_recipe('--steps=9', '--save=plain')
        self.run_recipe('--steps=9', '--save=parts_true', '--resume')
        self.assertEqual(self.files_of('plain'), self.files_of('parts_true'))
        self.run_recipe('--steps=3', '--save=later')
        self.run_recipe('--steps=4', '--ema=0.8', '--save=later', '--resume')   # the first ones count alone
        self.run_recipe('--steps=4', '--save=four')
        self.assert_same_tensors('later', self.tensors('four'), delta=1e-7)

    def test_the_best_are_averages(self):
        words = ('--falls=6', '--rate=2', '--ema=0.5')
        _, result = self.run_recipe(*words, '--best=best', '--steps=12')
        best = result['best_validation_step']
        self.assertLess(best, 12)
        self.run_recipe(*words, f'--steps={best}', '--save=there')
        self.assertEqual(self.files_of('best'), self.files_of('there'))

    def test_averages_begin_with_restored_parameters(self):
        for i, kind in enumerate(('--ema=0.8', '--free')):
            # The guide's recipe: what is saved then is the best, and not mixed with later averages.
            _, result = self.run_recipe(kind, f'--best=best{i}', f'--again=again{i}', '--falls=6', '--rate=2', '--steps=18')
            self.assertLess(result['best_validation_step'], 18)
            best = self.tensors(f'best{i}')
            self.assert_same_tensors(f'again{i}', best, delta=1e-6)
            # Training goes on from there: at so small a rate it stays as it is.
            for j, ranks in enumerate(([], ['--workers=2', '--stages'], ['--workers=2', '--sharded'])):
                self.run_recipe(*ranks, kind, f'--back=best{i}', '--falls=8', '--steps=12', f'--save=on{i}{j}')
                self.assert_same_tensors(f'on{i}{j}', best, delta=1e-5)

    def test_a_state_without_averages_is_not_enough(self):
        self.run_recipe('--steps=8', '--save=plain')
        for kind, needs in (('--ema=0.8', r"'ema\.[\w.]+', which `ema` needs"),
                            ('--free', r"'schedule_free\.[\w.]+', which the optimizer needs")):
            err, _ = self.run_recipe(kind, '--back=plain', '--only=', '--steps=9', code=2)
            self.assertRegex(err, f'run:restore: the model in plain has no {needs}; only = "\\*" takes the weights alone')

    def test_all_plans_average_alike(self):
        words = ('--steps=9', '--ema=0.8')
        self.run_recipe(*words, '--save=alone')
        alone, losses = self.tensors('alone'), self.validation()
        for i, (more, environment) in enumerate([
                (('--workers=2',), {}), (('--workers=2', '--stages'), {}), (('--workers=2', '--sharded'), {}),
                (('--workers=3', '--elastic=1:3'), {'HETRUN_FAULT': 'rank=1 step=6 at=0.5'})]):
            self.run_recipe(*words, *more, f'--save=ranks{i}', environment=environment)
            self.assert_same_tensors(f'ranks{i}', alone, delta=1e-5)
            for step, loss in self.validation().items():
                self.assertAlmostEqual(loss, losses[step], delta=1e-5 * losses[step])


class NotFinite(Case):
    def test_a_loss_that_is_not_finite_is_saved_and_resumed(self):
        for held in ('1e30', 'nan'):
            words = ('--save=' + held, f'--held={held}')
            _, result = self.run_recipe(*words, '--steps=4', '--every=3')
            self.assertIsNone(result['validation_loss'])
            self.assertIsNone(result['best_validation_loss'])
            self.assertIsNone(result['best_validation_step'])   # the key is there
            self.assertEqual(self.validation(), {2: None, 4: None})
            _, result = self.run_recipe(*words, '--steps=6', '--resume')
            self.assertEqual(result['steps'], 6)
            self.assertIsNone(result['best_validation_loss'])

    def test_it_is_no_lower_loss(self):
        err, result = self.run_recipe('--held=nan', '--patience=2')
        self.assertEqual((result['steps'], result['stopped_early']), (4, True))
        self.assertIn('stopped early after step 4: 2 evaluations in a row found no finite loss', err)


if __name__ == '__main__':
    unittest.main()
