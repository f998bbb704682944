#!/usr/bin/env python3
"""Rows of several examples: packing.py HETRUN [unittest arguments]."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
# Tokens to predict of each example. They fill four rows of 32: 32; 20 and 12; 16, 10 and 6; 9, 9 and 9.
LENGTHS = [20, 9, 16, 6, 32, 9, 10, 12, 9]
MODELS = ('gpt', 'llama', 'own', 'experts', 'gemma', 'gemma2', 'gemma3_text', 'gpt_neox', 'granite', 'mistral', 'mixtral', 'olmo2', 'olmo3', 'olmoe',
          'phi3', 'qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe', 'smollm3', 'stablelm', 'starcoder2')


def example(number, length):
    """Of `length` tokens to predict, where a third does not count: its ending is the last."""
    text = ''.join(chr(ord('a') + (number * 7 + i * i) % 26) for i in range(length))
    prompt = length // 3
    return json.dumps({'prompt': text[:prompt], 'completion': text[prompt:]} if prompt else {'text': text})


def megatron_index(lengths, documents):
    """Of 16-bit tokens: the lengths of sequences, and the first sequence of each document."""
    starts = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    return (b'MMIDIDX\0\0' + struct.pack('<QBQQ', 1, 8, len(lengths), len(documents)) + struct.pack(f'<{len(lengths)}i', *lengths)
            + struct.pack(f'<{len(lengths)}q', *starts) + struct.pack(f'<{len(documents)}q', *documents))


class Packing(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'packing.lua').write_text((HERE / 'packing.lua').read_text())
        self.put('examples.jsonl', LENGTHS)

    def put(self, name, lengths):
        (self.folder / name).write_text(''.join(example(*each) + '\n' for each in enumerate(lengths)))

    def hetrun(self, *words, workers=(), code=0):
        done = subprocess.run([HETRUN, *workers, 'packing.lua', *words, '--metrics=metrics.jsonl'], cwd=self.folder,
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout + done.stderr

    def steps(self, *words, **settings):
        """(loss, gradient norm) of each step."""
        self.hetrun(*words, **settings)
        lines = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        return [(line['loss'], line['gradient_norm']) for line in lines if 'gradient_norm' in line]

    def assert_alike(self, wanted, found, message):
        self.assertEqual(len(wanted), len(found), message)
        for a, b in zip(wanted, found):
            for x, y in zip(a, b):
                self.assertAlmostEqual(x, y, delta=1e-5 * max(1, x), msg=f'{message}: {wanted} and {found}')

    def test_every_model_learns_alike_from_packed_rows(self):
        for model in MODELS:
            with self.subTest(model=model):
                alone = self.steps(f'--model={model}', f'--batch={len(LENGTHS)}')
                self.assertEqual(len(alone), 4)
                self.assertLess(alone[-1][0], alone[0][0])
                self.assert_alike(alone, self.steps(f'--model={model}', '--packing'), model)

    def weights(self, *words, **settings):
        """Of a save, by name: the weights after a step that takes their gradients away."""
        self.hetrun('--sgd', '--steps=1', '--save=step', '--overwrite', *words, **settings)
        data = (self.folder / 'step' / 'model.safetensors').read_bytes()
        size = struct.unpack('<Q', data[:8])[0]
        found = {}
        for name, about in json.loads(data[8:8 + size]).items():
            if name != '__metadata__':
                first, last = about['data_offsets']
                found[name] = struct.unpack(f'<{(last - first) // 4}f', data[8 + size + first:8 + size + last])
        return found

    def test_gradients_of_packed_rows_are_those_of_single_examples(self):
        for model in ('gpt', 'llama', 'gemma3_text'):
            alone = self.weights(f'--model={model}', f'--batch={len(LENGTHS)}')
            for plan in ('one', 'data', 'tensor', 'pipeline'):
                with self.subTest(model=model, plan=plan):
                    packed = self.weights(f'--model={model}', '--packing', f'--plan={plan}',
                                          workers=() if plan == 'one' else ('--workers=2',))
                    self.assertEqual(alone.keys(), packed.keys())
                    for name, values in alone.items():
                        apart = max(abs(a - b) for a, b in zip(values, packed[name], strict=True))
                        self.assertLess(apart, 1e-5, f'{name} of {model}, {plan}')

    def test_packed_rows_are_alike_under_any_plan(self):
        for model in ('gpt', 'llama', 'gemma2'):
            alone = self.steps(f'--model={model}', f'--batch={len(LENGTHS)}')
            for plan in ('data', 'tensor', 'pipeline'):
                with self.subTest(model=model, plan=plan):
                    packed = self.steps(f'--model={model}', '--packing', f'--plan={plan}', workers=('--workers=2',))
                    self.assert_alike(alone, packed, f'{model}, {plan}')

    def test_examples_that_share_a_row_without_being_kept_apart_would_show(self):
        """The comparison above can fail: the same rows without `starts` have other losses."""
        text = (self.folder / 'packing.lua').read_text()
        self.assertEqual(text.count('local y = starts and'), 1)
        alone = self.steps('--model=own', f'--batch={len(LENGTHS)}')
        (self.folder / 'packing.lua').write_text(text.replace('local y = starts and', 'local y = false and'))
        with self.assertRaises(AssertionError):
            self.assert_alike(alone, self.steps('--model=own', '--packing'), 'own')

    def test_a_packed_run_goes_on_under_another_plan(self):
        self.put('many.jsonl', [1 + i * 13 % 30 for i in range(60)])
        words = ('--packing', '--data=many.jsonl')
        whole = self.steps(*words, '--steps=9')
        found = self.steps(*words, '--steps=9', '--save=one')
        self.assert_alike(whole, found, 'saved')
        for first, then in (('one', 'pipeline'), ('tensor', 'data'), ('data', 'one')):
            with self.subTest(first=first, then=then):
                workers = {plan: () if plan == 'one' else ('--workers=2',) for plan in (first, then)}
                save = f'--save={first}-{then}'
                begun = self.steps(*words, '--steps=4', save, f'--plan={first}', workers=workers[first])
                rest = self.steps(*words, '--steps=9', save, '--resume', f'--plan={then}', workers=workers[then])
                self.assertEqual(len(begun), 4)
                self.assert_alike(whole, rest, f'{first}, then {then}')   # the metrics go on, too

    def test_a_mixture_packs_the_sources_that_say_so_and_goes_on_under_another_plan(self):
        self.put('many.jsonl', [1 + i * 13 % 30 for i in range(60)])
        self.put('others.jsonl', [1 + i * 7 % 15 for i in range(50)])
        runs = {}
        for mixed in ('packed', 'apart', 'text'):
            words = ('--packing', '--data=many.jsonl', f'--mixed={mixed}')
            runs[mixed] = whole = self.steps(*words, '--steps=6')
            self.assertIn('60 examples share' if mixed != 'packed' else '110 examples share', self.hetrun(*words, '--steps=1'))
            for first, then in (('one', 'data'), ('tensor', 'pipeline')):
                with self.subTest(mixed=mixed, first=first, then=then):
                    workers = {plan: () if plan == 'one' else ('--workers=2',) for plan in (first, then)}
                    save = f'--save={mixed}-{first}'
                    begun = self.steps(*words, '--steps=3', save, f'--plan={first}', workers=workers[first])
                    rest = self.steps(*words, '--steps=6', save, '--resume', f'--plan={then}', workers=workers[then])
                    self.assertEqual(len(begun), 3)
                    self.assert_alike(whole, rest, f'{mixed}: {first}, then {then}')
        self.assertNotEqual(runs['packed'], runs['apart'])
        self.assertIn('packed-one has sources 1, 2 packed of 2 in its mixture, this run source 1 packed of 2; go on with the same '
                      '`packing` of each', self.hetrun('--packing', '--data=many.jsonl', '--mixed=apart', '--save=packed-one',
                                                       '--steps=7', '--resume', code=2))

    def put_documents(self, texts):
        """The same documents as lines of JSON, in pieces that fit in a row of 32, as text, as tokens, and as tokens with an index."""
        pieces = [text[i:i + 33] for text in texts for i in range(0, len(text) - 1, 32)]
        (self.folder / 'pieces.jsonl').write_text(''.join(json.dumps({'text': piece}) + '\n' for piece in pieces))
        (self.folder / 'all.txt').write_text(''.join(texts))
        for name in ('all', 'indexed'):
            (self.folder / f'{name}.bin').write_bytes(struct.pack(f'<{len("".join(texts))}H', *''.join(texts).encode()))
        # The second document is two sequences.
        lengths = [len(texts[0]), 1, len(texts[1]) - 1, *map(len, texts[2:])]
        (self.folder / 'indexed.idx').write_bytes(megatron_index(lengths, [0, 1, *range(3, len(lengths) + 1)]))
        return len(pieces)

    def test_documents_of_text_and_token_files_are_packed_as_lines_of_json_are(self):
        pieces = self.put_documents([''.join(chr(ord('a') + (d * 5 + i * i) % 26) for i in range(4 + d * 29 % 90)) + '.' for d in range(30)])
        wanted = self.steps('--packing', '--data=pieces.jsonl', '--ending=', '--steps=6')
        for kind, file in (('text', 'all.txt'), ('tokens', 'all.bin'), ('tokens', 'indexed.bin'), ('tokens', 'indexed')):
            with self.subTest(file=file):
                self.assertEqual(wanted, self.steps(f'--kind={kind}', f'--data={file}', '--steps=6'))
        said = self.hetrun('--kind=text', '--data=all.txt', '--steps=1')
        self.assertRegex(said, f'{pieces} pieces of documents share [0-9]+ rows of 32 tokens')
        self.assertNotIn('left out', said)
        for first, then in (('one', 'pipeline'), ('tensor', 'data')):
            with self.subTest(first=first, then=then):
                workers = {plan: () if plan == 'one' else ('--workers=2',) for plan in (first, then)}
                words = ('--kind=tokens', '--data=indexed.bin', f'--save={first}')
                self.steps(*words, '--steps=3', f'--plan={first}', workers=workers[first])
                rest = self.steps(*words, '--steps=6', '--resume', f'--plan={then}', workers=workers[then])
                self.assert_alike(wanted, rest, f'{first}, then {then}')

    def test_documents_that_cannot_be_found_are_refused(self):
        self.put_documents(['abc.', 'de.', 'fghijk.'])
        recipe = 'return het.data.%s { %s, packing = true }'
        for kind, arguments, message in (
                ('text', 'path = "all.txt", tokenizer = "byte"', "packing of 'all.txt' needs 'ending', the token behind each document: the "
                 'tokenizer names none'),
                ('text', 'path = "all.txt", tokenizer = "byte", ending = "k."', 'ending = "k." is 2 tokens; one token stands behind each'),
                ('text', 'path = "all.txt", tokenizer = "byte", ending = "!"', "'all.txt' does not have the token 33, which 'ending' says stands behind"),
                ('tokens', 'path = "all.bin"', 'as a number: there is no vocabulary that names one'),
                ('tokens', 'path = "all.bin", ending = "."', 'ending = "." needs the vocabulary of \'all.bin\''),
                ('tokens', 'path = "all.bin", ending = -1', 'data.tokens.ending = -1 is no token')):
            with self.subTest(message=message):
                self.assertIn(message, self.refusal(recipe % (kind, arguments)))
        self.assertIn('data.text.ending is the token behind each document: it needs packing = true', self.refusal(
            'return het.data.text { path = "all.txt", tokenizer = "byte", ending = "." }'))
        (self.folder / 'indexed.idx').write_bytes(megatron_index([4, 3, 7], [0, 2, 1, 3]))
        self.assertIn("'indexed.idx' is damaged: document 2 begins with sequence 1 of 3, the one before it with 2",
                      self.refusal(recipe % ('tokens', 'path = "indexed.bin"')))

    def test_a_run_goes_on_with_the_rows_that_it_began_with(self):
        self.hetrun('--packing', '--save=rows', '--steps=2')
        self.assertIn('rows counts packed rows of 32 tokens, this run samples that are not packed; go on with the same `packing` and '
                      '`context`', self.hetrun('--save=rows', '--steps=3', '--resume', code=2))
        self.hetrun('--save=rows', '--steps=3', '--resume', '--packing')
        self.hetrun('--save=alone', '--steps=2')
        self.assertIn('alone counts samples that are not packed, this run packed rows of 32 tokens',
                      self.hetrun('--save=alone', '--steps=3', '--resume', '--packing', code=2))

    def test_what_packing_does_is_said(self):
        said = self.hetrun('--packing', '--steps=1')
        self.assertIn('9 examples share 4 rows of 32 tokens, and fill 96 % of them', said)
        self.assertNotIn('share', self.hetrun('--steps=1'))
        self.put('examples.jsonl', [*LENGTHS, 40])
        said = self.hetrun('--packing', '--steps=1')
        self.assertIn('10 examples share 5 rows', said)
        self.assertIn('1 of 10 examples of examples.jsonl have more than the 32 tokens of the context: their ends are left out', said)

    def refusal(self, recipe):
        (self.folder / 'packing.lua').write_text('local het = require "het"\n' + recipe)
        return self.hetrun(code=2)

    def test_what_cannot_be_packed_is_refused(self):
        train = ('local corpus = het.data.jsonl { path = "examples.jsonl", tokenizer = "byte", holdout = 0, packing = true }\n'
                 'return het.train { data = corpus, batch = 2, steps = 1, context = 32, optimizer = het.optim.sgd { lr = 0.1 }, model = '
                 '%s }\n')
        self.assertIn("unknown field 'packing'; use data.jsonl, data.text or data.tokens, whose examples and documents can share a row",
                      self.refusal('return het.data.masked { path = "examples.jsonl", packing = true }'))
        self.assertIn("unknown field 'packing'; use packing = true of the sources whose examples or documents shall share rows",
                      self.refusal('return het.data.mixture { { het.data.text "packing.lua", 1 }, packing = true }'))
        self.assertIn("the data has packing = true: the model, nn.bert, lets tokens see those of other examples; causal attention does not",
                      self.refusal(train % 'het.nn.bert { vocab = corpus.vocab, context = 32, width = 8, layers = 1, heads = 1 }'))
        own = 'het.nn.sequential { het.nn.embedding(corpus.vocab, 8), %s, het.nn.linear(8, corpus.vocab) }'
        said = self.refusal(train % (own % 'het.nn.layer { name = "mixing", forward = function(self, x) return het.op.cumsum(x, '
                                           '{ dim = 1 }) end }'))
        self.assertIn("layer 'mixing', nn.mixing, lets tokens see those of other examples; if it does not, it needs pointwise = true",
                      said)
        self.assertIn("the model has 'function', a function, which may let", self.refusal(train % (own % 'het.op.relu')))
        self.assertIn('data.jsonl.packing', self.refusal('return het.data.jsonl { path = "examples.jsonl", tokenizer = "byte", '
                                                         'packing = "yes" }'))
        (self.folder / 'examples.jsonl').write_text('\n')
        self.assertIn("'examples.jsonl' holds no examples", self.refusal(train % 'het.nn.linear(8, 8)'))


if __name__ == '__main__':
    unittest.main()
