"""What is refused before or while ranks meet."""
import re
import signal
import socket

from case import Case, SECRET, TEXT, clients_of, last_words


class Mistakes(Case):
    def test_a_plan_for_more_devices(self):
        _, err = self.hetrun('lopsided.lua', '--spread', code=2)
        self.assertIn('the plan is for 5 devices, this process is alone; start the recipe with --workers 5', err)
        _, err = self.hetrun('--workers', 3, 'lopsided.lua', '--spread', code=2)
        self.assertEqual(err.count('the plan is for 5 devices, 3 ranks are here'), 1, err)

    def test_a_mistake_of_the_recipe_is_reported_once(self):
        _, err = self.hetrun('--workers', 3, 'lopsided.lua', '--stepz=3', code=2)
        self.assertEqual(err.count('did you mean --steps?'), 1, err)

    def test_times_and_places_that_cannot_be(self):
        for word, sentence in (('--timeout=nans', "timeout = 'nans' is not a time such as"),
                               ('--timeout=1e300s', 'timeout = 1e300s is above 1000000 s, the most'),
                               ('--warn-after=1us', 'warn_after = 1us is below 0.1 s, the least'),
                               ('--rendezvous=here', 'rendezvous = "here" is no place to meet'),
                               ('--rendezvous=etcd://head', "'head' is no endpoint")):
            process = self.start('lopsided.lua', word, WORLD_SIZE='2', RANK='0', LOCAL_RANK='0', **self.at_rank_0())
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 2, err)
            self.assertIn(sentence, err)
        _, err = self.hetrun('--rendezvous=etcd://127.0.0.1:2379', 'lopsided.lua', '--spread', code=2)
        self.assertIn('--rendezvous=etcd://127.0.0.1:2379 is where ranks meet; set RANK (from 0) and WORLD_SIZE for each process',
                      err)

    def test_ranks_that_run_different_recipes(self):
        where = self.at_rank_0()
        ranks = [self.start('lopsided.lua', f'--steps={10 + rank}', WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank),
                            **where) for rank in (0, 1)]
        for rank in ranks:
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 2, err)
            self.assertIn('recipe', err)
            own, other = (rf'rank {rank} on {re.escape(socket.gethostname())}' for rank in ('([01])', '([01])'))
            found = re.search(rf'{own} has the recipe with --steps = (\d+), but {other}, which came first, has the recipe with '
                              r'--steps = (\d+); all members need the same recipe', err)
            self.assertTrue(found, err)
            self.assertEqual({found[1]: found[2], found[3]: found[4]}, {'0': '10', '1': '11'})

    def test_ranks_that_run_different_functions_or_data(self):
        recipe = """local het = require "het"
local corpus = het.data.text {{ path = "{text}", tokenizer = "byte" }}
return het.train {{ model = het.nn.gpt {{ vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 }},
  data = corpus, batch = 2, steps = 1, optimizer = het.optim.adamw {{ lr = {lr} }} }}
"""
        (self.folder / 'short.txt').write_text('what is trained on, in few words. ' * 20)
        rates = ['function(step) return 1e-3 / step end', 'function(step) return 1e-2 / step end']
        for what, first, second, found in (
                ('recipe', {'lr': rates[0]}, {'lr': rates[1]}, r'optimizer\.lr = a function \(hash \w+\)'),
                ('data', {'text': 'text.txt'}, {'text': 'short.txt'}, r'tokens = \d+')):
            with self.subTest(what=what):
                where, ranks = self.at_rank_0(), []
                for rank, settings in enumerate((first, second)):
                    name = f'{what}{rank}.lua'
                    (self.folder / name).write_text(recipe.format(**{'text': 'text.txt', 'lr': '1e-3', **settings}))
                    ranks.append(self.start(name, WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank), **where))
                for rank in ranks:
                    _, err = rank.communicate(timeout=120)
                    self.assertEqual(rank.returncode, 2, err)
                    self.assertRegex(err, rf'has the {what} with {found}, but rank .*, which came first, has the {what} with '
                                          rf'{found}; all members need the same {what}')

    def test_a_rank_0_that_is_not_there(self):
        where = self.at_rank_0()
        rank = self.start('lopsided.lua', '--timeout=1s', WORLD_SIZE='2', RANK='1', LOCAL_RANK='1', **where)
        _, err = rank.communicate(timeout=120)
        self.assertEqual(rank.returncode, 75, err)
        self.assertIn(f'cannot connect to 127.0.0.1:{where["MASTER_PORT"]}: Connection refused; rank 0 should serve the store '
                      'there', err)

    def test_a_rank_with_another_secret_is_reported_by_both_sides(self):
        where = self.at_rank_0()
        first, second = (self.start('lopsided.lua', '--warn-after=1s', WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank),
                                    **{**where, 'HETRUN_SECRET': secret}) for rank, secret in enumerate((SECRET, SECRET + '?')))
        self.addCleanup(lambda: (first.kill(), first.communicate()))
        _, err = second.communicate(timeout=120)
        self.assertEqual(second.returncode, 2, err)
        self.assertIn('its shared secret is another one', err)
        said = next((line for line in first.stderr if 'missing: rank 1; the store turned away' in line), '')
        self.assertIn('who came from 127.0.0.1 with another secret', said)

    def test_ranks_that_wait_in_vain_for_another_say_the_same(self):
        common = {'WORLD_SIZE': '3', **self.at_rank_0()}
        ranks = [self.start('lopsided.lua', '--timeout=5s', RANK=str(rank), LOCAL_RANK=str(rank), **common)
                 for rank in (0, 1)]
        words = []
        for rank in ranks:
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 75, err)
            words.append(last_words(err))
        self.assertIn('2 of 3 members of run ', words[0])
        self.assertIn('missing: rank 2', words[0])
        self.assertEqual(words[0], words[1])

    def test_a_store_that_does_not_answer_is_waited_for_as_long_as_ranks_are(self):
        where = self.at_rank_0()
        first = self.start('lopsided.lua', WORLD_SIZE='2', RANK='0', LOCAL_RANK='0', **where)
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.until(lambda: clients_of(where['MASTER_PORT']) >= 3, 'the first rank serves no store')
        first.send_signal(signal.SIGSTOP)
        second = self.start('lopsided.lua', '--timeout=3s', WORLD_SIZE='2', RANK='1', LOCAL_RANK='1', **where)
        _, err = second.communicate(timeout=120)
        self.assertEqual(second.returncode, 75, err)
        self.assertIn('did not answer within 3000 ms', err)

    def test_ranks_whose_recipes_differ_in_anything_that_counts(self):
        text = (self.folder / 'lopsided.lua').read_text()
        changes = [('dropout = 0.1', 'dropout = 0.2'), ('data = corpus,', 'data = corpus, seed = 5,'),
                   ('microbatch = 2, steps', 'steps'), ('weight_decay = 0.1', 'weight_decay = 0.2'),
                   ('clip = 0.5', 'clip = 0.5, beta2 = 0.99'), ('clip = 0.5', 'clip = 0.6'),
                   ('warmup = 4', 'warmup = 3'), ('every = opt.every', 'every = 7'),
                   ('save_every = 3', 'save_every = 4'),
                   ('data = corpus,', 'data = corpus, loss = function(y, t, s) return (het.op.cross_entropy(y, t, s)) end,'),
                   ('tokens = 20', 'tokens = 21'), ('"stopped here"', '"stopped elsewhere"')]
        for old, new in changes:
            self.assertEqual(text.count(old), 1, old)
            (self.folder / 'other.lua').write_text(text.replace(old, new))
            for code, err in self.two_ranks(['lopsided.lua'], ['other.lua']):
                self.assertEqual(code, 2, f'{new}\n{err}')
                self.assertIn('has the recipe', err, new)

    def test_ranks_may_differ_in_what_is_the_machines_own(self):
        recipe = (self.folder / 'lopsided.lua').read_text()
        (self.folder / 'copy.txt').write_text(TEXT)
        (self.folder / 'other.lua').write_text(recipe.replace('"text.txt"', '"copy.txt"'))
        results = self.two_ranks(['lopsided.lua', '--save=one', '--metrics=one.jsonl', '--steps=2'],
                                 ['other.lua', '--save=two', '--threads=1', '--steps=2'])
        for code, err in results:
            self.assertEqual(code, 0, err)

    def test_ranks_with_texts_of_one_size(self):
        recipe = (self.folder / 'lopsided.lua').read_text()
        (self.folder / 'copy.txt').write_text(TEXT.replace('quick', 'kciuq'))
        (self.folder / 'other.lua').write_text(recipe.replace('"text.txt"', '"copy.txt"'))
        for code, err in self.two_ranks(['lopsided.lua'], ['other.lua']):
            self.assertEqual(code, 2, err)
            self.assertIn('has the data', err)
