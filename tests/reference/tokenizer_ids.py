#!/usr/bin/env python3
"""Token ids of hetrun equal those of the `tokenizers` package, for tokenizers built as those of the families are: GPT-2's, Llama 2's and
3's, Qwen's, Gemma's, GPT-NeoX's, SmolLM's, Phi's, BERT's, T5's, XLM-R's, ALBERT's, and Unigram's. English, code, Chinese, emoji, random characters and bytes; and what is decoded is the
same.

usage: tokenizer_ids.py HETRUN [--megabytes N] [names]    (exit code 77: tokenizers is not installed)
"""
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print('tokenizers is not installed: skipped')
    sys.exit(77)
try:
    import sentencepiece as spm
except ImportError:
    spm = None

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = '\u2581'


def texts(size):
    """By name, about `size` bytes each."""
    draw = random.Random(1)
    words = ('the of and to in a is that it was for on are with as at be this have from or had by not but what all were when '
             "we there can an your which their said if do will each about how up out them then she many don't it's we'll I'd "
             'He\'S THEY\'RE supercalifragilistic 1984 3.14159 12,345,678 e-mail naïve café').split()
    made = {'English': ''.join(draw.choice(words) + draw.choice([' '] * 12 + ['. ', ', ', '\n', '\n\n', '  ', '? ', ' — '])
                               for _ in range(size // 6))}
    sources = sorted((HERE.parent.parent / 'core').rglob('*.cpp')) + sorted((HERE.parent.parent / 'lua').rglob('*.lua'))
    made['code'] = ''.join(path.read_text() for path in sources)[:size]
    common = ''.join(chr(draw.randrange(0x4E00, 0x5600)) for _ in range(600))
    made['Chinese'] = ''.join(draw.choice(common) if draw.random() < 0.9 else draw.choice('，。！？、「」的是不我有 \n１２345abcＡ')
                              for _ in range(size // 3))
    marks = ['\u200d', '\ufe0f', '\U0001F3FB', '\U0001F3FF', ' ', 'a', '\n', '🇩🇪', '👩‍👩‍👧‍👦', '❤️', '1️⃣']
    made['emoji'] = ''.join(chr(draw.randrange(0x1F300, 0x1F700)) if draw.random() < 0.6 else draw.choice(marks)
                            for _ in range(size // 5))
    # What Unicode 14 has: later characters are in other classes for each of the two.
    assigned = [c for c in range(1, 0x30000) if unicodedata.category(chr(c)) not in ('Cn', 'Cs', 'Co')]
    made['characters'] = ''.join(chr(draw.choice(assigned)) for _ in range(size // 4))
    marked = [c for c in assigned if unicodedata.combining(chr(c)) or unicodedata.decomposition(chr(c)) or 0x1100 <= c < 0x1200]
    made['marks'] = ''.join(draw.choice('aeoüñÅ가각') if draw.random() < 0.4 else chr(draw.choice(marked)) for _ in range(size // 4))
    made['bytes'] = draw.randbytes(size // 2).decode('utf-8', 'replace')
    spaces = [' ', '  ', '\t', '\n', '\r\n', '\u00a0', '\u3000', '\u2028', '\x85', '\u200b', 'x', '7', '.', MARK, "'s", "'S", "'ſ", '<s>',
              '</s>', '<unk>', '<0x0A>', '<|end|>', ' <|end|> ', 'mask', '<mask>', ' <mask> ', 'a<mask>b', '<|end|><|end|>']
    made['spaces and tokens'] = ''.join(draw.choice(spaces) for _ in range(size // 4))
    return made


def byte_level(pattern=None, normalizer=None, before=(), whole=False, prefix=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    if normalizer:
        tokenizer.normalizer = normalizer
    steps = list(before)
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), 'isolated', invert=False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                          show_progress=False)


def sentencepiece(normalizer, pre_tokenizer, decoder, fallback=True, fuse=True):
    tokenizer = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=fallback, fuse_unk=fuse))
    tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokens = ['<unk>', '<s>', '</s>'] + ([f'<0x{b:02X}>' for b in range(256)] if fallback else [])
    return tokenizer, trainers.BpeTrainer(vocab_size=1500, special_tokens=tokens, limit_alphabet=300, show_progress=False)


def word_piece(**how):
    tokenizer = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tokenizer.normalizer = normalizers.BertNormalizer(**how)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=how.get('lowercase', True))
    return tokenizer, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
                                                limit_alphabet=300, show_progress=False)


def fields(message):
    """(number, content) of what has a length in a protocol buffer's message."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            number()
        else:
            size = number() if tag & 7 == 2 else {1: 8, 5: 4}[tag & 7]
            if tag & 7 == 2:
                yield tag >> 3, message[at:at + size]
            at += size


def precompiled(rule):
    """The map of a SentencePiece model: ModelProto.normalizer_spec.precompiled_charsmap."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(['the of and to in a is that'] * 20), model_writer=model, vocab_size=20,
                                   hard_vocab_limit=False, normalization_rule_name=rule, minloglevel=2)
    spec = dict(fields(model.getvalue()))[3]
    return normalizers.Precompiled(dict(fields(spec))[2])


def albert():
    return normalizers.Sequence([
        normalizers.Replace('``', '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase(), precompiled('nmt_nfkc_cf'), normalizers.Replace(Regex(' {2,}'), ' ')])


def xlm_r():
    return normalizers.Sequence([precompiled('nmt_nfkc'), normalizers.Strip(left=False, right=True),
                                 normalizers.Replace(Regex(' {2,}'), MARK)])


def unigram(normalizer=None, fallback=False, before=()):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, pre_tokenizers.Metaspace(MARK)])
    tokenizer.decoder = llama2_decoder() if fallback else decoders.Metaspace(MARK)
    tokens = ['<s>', '</s>', '<unk>'] + ([f'<0x{b:02X}>' for b in range(256)] if fallback else [])
    return tokenizer, trainers.UnigramTrainer(vocab_size=1500, unk_token='<unk>', special_tokens=tokens, show_progress=False)


def llama2_decoder():
    return decoders.Sequence([decoders.Replace(MARK, ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)])


def prepend():
    return normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(' ', MARK)])


CASES = {
    'GPT-2': byte_level,
    'GPT-NeoX': lambda: byte_level(normalizer=normalizers.NFC()),
    'RoBERTa': lambda: byte_level(prefix=True),
    'Llama 3': lambda: byte_level(LLAMA3, whole=True),
    'Qwen': lambda: byte_level(QWEN, normalizers.NFC()),
    'Tekken': lambda: byte_level(TEKKEN),
    'SmolLM': lambda: byte_level(before=[pre_tokenizers.Digits(individual_digits=True)]),
    'StarCoder': lambda: byte_level(before=[pre_tokenizers.Digits(individual_digits=False)]),
    'Llama 2': lambda: sentencepiece(prepend(), None, llama2_decoder()),
    'Llama 2, unknown characters': lambda: sentencepiece(prepend(), None, llama2_decoder(), fallback=False),
    'Llama 2, each unknown character': lambda: sentencepiece(prepend(), None, llama2_decoder(), fallback=False, fuse=False),
    **{f'Metaspace {scheme}{" cut" if split else ""}': (lambda scheme=scheme, split=split: sentencepiece(
        None, pre_tokenizers.Metaspace(MARK, scheme, split), llama2_decoder()))
       for scheme in ('always', 'first', 'never') for split in (False, True)},
    'Gemma': lambda: sentencepiece(normalizers.Replace(' ', MARK), pre_tokenizers.Split(' ', 'merged_with_previous', invert=False),
                                   decoders.Sequence([decoders.Replace(MARK, ' '), decoders.ByteFallback(), decoders.Fuse()])),
    'words': lambda: sentencepiece(None, pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]),
                                   decoders.Fuse()),
    'BERT': word_piece,
    'BERT, cased': lambda: word_piece(lowercase=False),
    'BERT, only lower case': lambda: word_piece(clean_text=False, handle_chinese_chars=False, strip_accents=False),
    'Unigram': unigram,
    'Unigram of lower case': lambda: unigram(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                                                   normalizers.Strip()])),
    'Unigram with bytes': lambda: unigram(fallback=True),
    'Unigram, NFKC': lambda: unigram(normalizers.NFKC()),
}
if spm:
    CASES.update({
        'T5': lambda: unigram(precompiled('nmt_nfkc'), before=[pre_tokenizers.WhitespaceSplit()]),
        'XLM-R': lambda: unigram(xlm_r()),
        'ALBERT': lambda: unigram(albert()),
        'SentencePiece, NFKC of lower case': lambda: unigram(precompiled('nfkc_cf')),
    })
else:
    print('sentencepiece is not installed: T5, XLM-R and ALBERT are left out')


def make(case, training, folder):
    tokenizer, trainer = case()
    # Unigram takes every character that it sees into its vocabulary.
    tokenizer.train_from_iterator(training[:2] if isinstance(trainer, trainers.UnigramTrainer) else training, trainer)
    if isinstance(tokenizer.model, models.Unigram):   # the trainer does not ask whether bytes are fallen back to
        as_json = json.loads(tokenizer.to_str())
        as_json['model']['byte_fallback'] = tokenizer.token_to_id('<0x00>') is not None
        tokenizer = Tokenizer.from_str(json.dumps(as_json))
    begin = '<|begin|>'
    tokenizer.add_special_tokens([begin, '<|end|>'])
    tokenizer.add_tokens([AddedToken('<mask>', lstrip=True, rstrip=True), AddedToken('mask', single_word=True, normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single=f'{begin} $A', special_tokens=[(begin, tokenizer.token_to_id(begin))])
    tokenizer.save(str(folder / 'tokenizer.json'))
    return tokenizer


def old(text):
    """Without the characters that the package, whose categories for BERT are of Unicode 8, takes for others than we do."""
    return ''.join(c for c in text if unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c))


def compare(hetrun, name, case, given, folder):
    if name.startswith('BERT'):
        given = {kind: old(text) for kind, text in given.items()}
    (folder / 'model').mkdir()
    tokenizer = make(case, [text[:200000] for text in given.values()], folder / 'model')
    files = []
    for number, text in enumerate(given.values()):
        files.append(folder / f'{number}.txt')
        files[-1].write_bytes(text.encode())
    done = subprocess.run([hetrun, '--quiet', '--trust', str(HERE / 'tokenizer_ids.lua'), '--tokenizer=model',
                           '--texts=' + ','.join(path.name for path in files)],
                          cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        return [f'{name}: {done.stderr}']
    about, *speeds = done.stdout.splitlines()
    problems = []
    wanted = {'prefix': [tokenizer.token_to_id('<|begin|>')], 'vocabulary': tokenizer.get_vocab_size()}
    if json.loads(about) != wanted:
        problems.append(f'{name}: {about}, {wanted} is wanted')
    count = 0
    for (kind, text), path in zip(given.items(), files):
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        ours = [int(word) for word in pathlib.Path(f'{path}.ids').read_text().split()]
        count += len(theirs)
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            problems.append(f'{name}, {kind}: {len(ours)} and {len(theirs)} ids, which differ at {at}: '
                            f'{[tokenizer.id_to_token(i) for i in ours[at - 3:at + 5]]} for '
                            f'{[tokenizer.id_to_token(i) for i in theirs[at - 3:at + 5]]}')
            continue
        decoded = pathlib.Path(f'{path}.decoded').read_bytes()
        if decoded.decode('utf-8', 'replace') != tokenizer.decode(theirs, skip_special_tokens=False):
            problems.append(f'{name}, {kind}: what is decoded differs')
    rates = ', '.join(f'{kind} {line.rsplit(": ", 1)[1]}' for kind, line in zip(given, speeds))
    print(f'{"FAIL" if problems else "ok  "}  {name}: {count} ids; {rates}')
    return problems


def main():
    words = sys.argv[1:]
    hetrun = str(pathlib.Path(words.pop(0)).resolve())
    megabytes = 0.1
    if words[:1] == ['--megabytes']:
        megabytes = float(words[1])
        words = words[2:]
    given, problems = texts(int(megabytes * 1e6)), []
    for name, case in CASES.items():
        if words and name not in words:
            continue
        with tempfile.TemporaryDirectory() as folder:
            problems += compare(hetrun, name, case, given, pathlib.Path(folder))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
