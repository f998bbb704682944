#!/usr/bin/env python3
"""Chat templates written by hetrun equal those written by transformers (apply_chat_template), for templates built as those of Llama 3,
Qwen 2.5 and 3, Mistral, Gemma, Phi-3 and OLMo 2 are, with ids, and with labels where transformers' mask of the assistant's tokens is.
Other templates are compared by hand: --template=FILE.

usage: chat.py HETRUN [--template=FILE] [names]    (exit code 77: transformers or tokenizers is not installed)
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from huggingface import transformers
from tokenizer_ids import CASES, make, texts

HERE = pathlib.Path(__file__).resolve().parent
CONTEXT = 512

# <<< and >>> stand where {% generation %} and {% endgeneration %} do.
CHATML = r'''{%- for m in messages %}
{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}<<<{{- m.content + '<|im_end|>' }}>>>{{- '\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}'''

QWEN25 = r'''{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\n\nTools:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' }}<<<
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' if message.content or not loop.first else '<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}>>>{{- '\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
'''

QWEN3 = r'''{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not
           (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}<<<
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>' }}>>>{{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}'''

LLAMA3 = r'''{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "1 Jan 2024" %}
{%- endif %}
{#- What the system says goes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'assistant' and 'tool_calls' not in message %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}<<<{{- message['content'] | trim + '<|eot_id|>' }}>>>
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}<<<
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}>>>
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
'''

MISTRAL = r'''{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if m["role"] == "user" %}
        {%- if system is defined and m == users[0] %}
            {{- "[INST] " + system + "\n\n" + m["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + m["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        <<<{{- " " + m["content"]|trim + eos_token }}>>>
    {%- endif %}
{%- endfor %}
'''

GEMMA = r'''{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}
{%- if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{- '<start_of_turn>' + role + '\n' }}{% if role == 'model' %}<<<{{ message['content'] | trim + '<end_of_turn>' }}>>>{{ '\n' }}
{%- else %}{{ message['content'] | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}'''

PHI3 = r'''{% for m in messages %}{% if m['role'] == 'system' and m['content'] %}{{'<|system|>
' + m['content'] + '<|end|>
'}}{% elif m['role'] == 'user' %}{{'<|user|>
' + m['content'] + '<|end|>
'}}{% elif m['role'] == 'assistant' %}{{'<|assistant|>
' + m['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}'''
# The end of the text belongs to the last turn.
PHI3_MARKED = r'''{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|assistant|>\n' }}<<<{{ m.content + '<|end|>' }}{% if loop.last %}
{{- '\n' + eos_token }}{% endif %}>>>{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}
{%- endif %}{% endfor %}'''

OLMO2 = r'''{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>
' + message['content'] + '
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' + message['content'] + '
' }}{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\n' }}<<<{{ message['content'] + eos_token }}>>>{% if not loop.last %}{{ '
' }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}{% endfor %}'''

MACROS = r'''{% macro turn(role, content='', sep='\n') -%}
<|im_start|>{{ role }}{{ sep }}{{ content }}<|im_end|>
{% endmacro %}
{%- set names = {'assistant': 'bot', 'user': "it's"} %}
{%- for m in messages if m.role != 'system' %}
{%- set shown %}{{ loop.index }}/{{ loop.length }} {{ m.content | replace('a', 'A') }}{{ m.role | upper }}{% endset %}
{{- turn(names.get(m.role, 'other'), shown, sep=': ') }}{% if loop.first %}{% continue %}{% endif %}
{%- for key, value in m.items() %}{{ key ~ '=' ~ value|length }}{{ ', ' if not loop.last else ';' }}{% endfor %}
  {% if loop.index > 3 %}
    {% break %}
  {% endif %}
{% else %}none{% endfor %}
{{- (messages | map(attribute='role') | list) ~ [1, 2.5, none, true] ~ names }}
{{- messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | join(' | ') }}
{{- 7 // 2 ~ 7 % 4 ~ 2 ** 3 ~ (1 / 4) ~ 'x' * 3 }}{{ range(3) | list }}{{ 'b' in 'abc' and 2 not in [1] or false }}
{{- messages[-1].content[:5][::-1] }}{{ messages[0].missing is defined }}{{ messages[0].missing | default('d') }}
{{- messages | tojson }}{{ {'b': [], 'a': {}} | tojson(indent=2) }}'''

SPECIAL = ['<|im_start|>', '<|im_end|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>', '[INST]', '[/INST]', '<start_of_turn>',
           '<end_of_turn>', '<|system|>', '<|user|>', '<|assistant|>']
# Name: template, tokenizer, template with marks.
FAMILIES = {
    'ChatML': (CHATML, 'SmolLM', None), 'Qwen 2.5': (QWEN25, 'Qwen', None), 'Qwen 3': (QWEN3, 'Qwen', None),
    'Llama 3': (LLAMA3, 'Llama 3', None), 'Mistral': (MISTRAL, 'Llama 2', None), 'Gemma': (GEMMA, 'Gemma', None),
    'Phi-3': (PHI3, 'Llama 2', PHI3_MARKED), 'OLMo 2': (OLMO2, 'GPT-2', None),
}


def message(role, content, **others):
    return {'role': role, 'content': content, **others}


TOOLS = [{'type': 'function', 'function': {'name': 'weather', 'description': 'Tells <it> & "more" — naïve', 'parameters': {
    'type': 'object', 'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer', 'default': 3, 'share': 0.5}}}}}]
CALL = [{'type': 'function', 'function': {'name': 'weather', 'arguments': {'city': 'Zürich', 'days': 2, 'now': True}}}]
TALKS = [
    [message('user', 'What is 2 + 2?'), message('assistant', 'It is 4.')],
    [message('system', 'Be brief. '), message('user', ' Hello\n'), message('assistant', 'Hi there!'), message('user', 'And?'),
     message('assistant', '没有 🇩🇪 naïve\n\nend')],
    [message('user', 'a'), message('assistant', 'b'), message('user', 'c'), message('assistant', 'd'), message('user', 'e'),
     message('assistant', 'b')],
    [message('user', 'x'), message('assistant', '<think>\nthe thought\n</think>\n\nanswer one'), message('user', 'y'),
     message('assistant', '<think>\nanother\n</think>\n\nanswer two')],
    # As a token that ends a turn does, and a line break that is a token with what follows it.
    [message('user', 'x'), message('assistant', '>\ty'), message('user', 'z'), message('assistant', '\n\nend  ')],
    [message('user', '\u3000wide\xa0'), message('assistant', '\u2003space\u3000 ')],
    [message('user', "code:\n```\nfor i in x:\n    y\n```\n"), message('assistant', '  indented\n\n\nlines  x')],
]
TOOL_TALKS = [
    [message('user', 'Weather?'), message('assistant', '', tool_calls=CALL), message('tool', 'sunny'), message('assistant', 'Sunny.')],
    [message('system', 's'), message('user', 'Weather?'), message('assistant', 'One moment.', tool_calls=CALL),
     message('tool', '{"t": 21.5}'), message('tool', 'second'), message('assistant', 'Warm.'), message('user', 'Thanks'),
     message('assistant', 'Sure.')],
]
WRONG = [message('user', 'a'), message('user', 'b'), message('assistant', 'c')]


def plain(template):
    return template.replace('<<<', '').replace('>>>', '')


def marked(template):
    return template.replace('<<<', '{%- generation %}').replace('>>>', '{%- endgeneration %}')


def expected_text(tokenizer, template, case):
    try:
        return {'text': tokenizer.apply_chat_template(
            case['messages'], tools=case.get('tools'), chat_template=template, tokenize=False,
            add_generation_prompt=case.get('ask', False), **case.get('variables', {}))}
    except Exception as error:   # pylint: disable=broad-except
        return {'error': str(error)}


def row_of(ids, mask):
    inputs, labels = ids[:-1][:CONTEXT], [i if m else -100 for i, m in zip(ids, mask)][1:][:CONTEXT]
    rest = CONTEXT - len(inputs)
    return inputs + [0] * rest, labels + [-100] * rest


def hetrun_writes(hetrun, folder, template, cases, lines, loss='completion'):
    (folder / 'template.jinja').write_text(template)
    (folder / 'cases.jsonl').write_text(''.join(json.dumps({**case, 'template': template}) + '\n' for case in cases))
    (folder / 'lines.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in [lines[0], *lines]))
    done = subprocess.run([hetrun, '--trust', str(HERE / 'chat.lua'), '--folder=tokenizer', f'--loss={loss}', f'--context={CONTEXT}'],
                          cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return json.loads((folder / 'out.json').read_text())


def problems_of_texts(tokenizer, template, cases, ours):
    found = []
    for case, our in zip(cases, ours):
        theirs = expected_text(tokenizer, template, case)
        good = our == theirs if 'text' in theirs else theirs['error'] in our.get('error', '')
        if not good:
            found.append(f'{case}:\n  theirs {theirs}\n  ours   {our}')
    return found


def check(hetrun, folder, tokenizer, template, with_marks):
    """What differs between hetrun and transformers."""
    tools = 'tools' in template
    talks = TALKS + (TOOL_TALKS if tools else [])
    cases = [{'messages': talk, 'ask': ask} for talk in talks for ask in (False, True)]
    cases += [{'messages': TALKS[0], 'variables': {'date_string': '2 Feb', 'enable_thinking': False}, 'ask': True},
              {'messages': WRONG}, {'messages': TALKS[1][:2], 'ask': True}]
    if tools:
        cases += [{'messages': talk, 'tools': TOOLS} for talk in TOOL_TALKS]
    lines = []
    for talk in talks:
        if 'text' in expected_text(tokenizer, plain(template), {'messages': talk}):
            lines.append({'messages': talk})
    lines.append({'prompt': TALKS[2][:3], 'completion': TALKS[2][3:]})
    rows = []
    for line in lines:
        messages = line.get('messages') or line['prompt'] + line['completion']
        made = tokenizer.apply_chat_template(messages, chat_template=with_marks, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        mask = made['assistant_masks']
        if 'prompt' in line:   # the last two of three turns
            first = [i for i, m in enumerate(mask) if m and not mask[i - 1]][1]
            mask = [m if i >= first else 0 for i, m in enumerate(mask)]
        rows.append(row_of(made['input_ids'], mask))
        if made['input_ids'] != tokenizer.apply_chat_template(messages, chat_template=plain(template), return_dict=True)['input_ids']:
            raise RuntimeError(f'the marks change what is written: {messages}')
    problems = []
    for own in (plain(template), with_marks):
        ours = hetrun_writes(hetrun, folder, own, cases, lines)
        problems += problems_of_texts(tokenizer, own, cases, ours['texts'])
        for line, row, inputs, labels in zip(lines, rows, ours['inputs'], ours['labels']):
            if list(row) != [inputs, labels]:
                shown = [tokenizer.convert_ids_to_tokens([i for i in each if i != -100 and i]) for each in (row[1], labels)]
                problems.append(f'{line}: the inputs are {"" if row[0] == inputs else "not "}equal; labels\n  {shown[0]}\n  {shown[1]}')
    return problems


def tokenizer_of(name, given, folder, eos='<|end|>'):
    made = make(CASES[name], given, folder)
    made.add_special_tokens(SPECIAL)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token='<|begin|>', eos_token=eos)
    tokenizer.save_pretrained(folder)
    return tokenizer


def check_texts_and_completions(hetrun, folder, tokenizer):
    """Lines without messages: a prefix and an end token."""
    lines = [{'text': 'the of it'}, {'text': 'ends<|end|>'}, {'prompt': 'What is it? ', 'completion': 'It was for.'},
             {'prompt': 'What is it?', 'completion': ' It was for.'}]
    ours = hetrun_writes(hetrun, folder, CHATML.replace('<<<', '').replace('>>>', ''), [], lines)
    problems = []
    for line, inputs, labels in zip(lines, ours['inputs'], ours['labels']):
        text = line.get('text') or line['prompt'] + line['completion']
        ids = tokenizer(text if text.endswith('<|end|>') else text + '<|end|>')['input_ids']
        # A token that holds the end of the prompt and the beginning of the completion counts.
        prompt = tokenizer(line['prompt'])['input_ids'] if 'prompt' in line else []
        known = next((i for i, (one, other) in enumerate(zip(prompt, ids)) if one != other), len(prompt))
        if list(row_of(ids, [i >= known for i in range(len(ids))])) != [inputs, labels]:
            problems.append(f'{line}: {ids}\n  {inputs}\n  {labels}')
    return problems


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    wanted = [word for word in sys.argv[2:] if not word.startswith('--')]
    given, failed = list(texts(20000).values()), 0
    jobs = {name: (tokenizer, lambda h, f, t, family=(template, marks): check(h, f, t, family[0], marked(family[1] or family[0])))
            for name, (template, tokenizer, marks) in FAMILIES.items()}
    jobs['texts and completions'] = ('Llama 3', check_texts_and_completions)
    jobs['macros and filters'] = ('Qwen', lambda h, f, t: problems_of_texts(
        t, MACROS, [{'messages': talk} for talk in TALKS],
        hetrun_writes(h, f, MACROS, [{'messages': talk} for talk in TALKS], [{'text': 'a'}])['texts']))
    for word in sys.argv[2:]:
        if word.startswith('--template='):
            own = pathlib.Path(word.split('=')[1]).read_text()
            jobs = {word: ('Llama 3', lambda h, f, t, own=own: problems_of_texts(
                t, own, [{'messages': talk} for talk in TALKS + TOOL_TALKS],
                hetrun_writes(h, f, own, [{'messages': talk} for talk in TALKS + TOOL_TALKS], [{'text': 'a'}])['texts']))}
    for name, (tokenizer, job) in jobs.items():
        if wanted and not any(name.startswith(word) for word in wanted):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            (folder / 'tokenizer').mkdir()
            problems = job(hetrun, folder, tokenizer_of(tokenizer, given, folder / 'tokenizer'))
        print(f'{"FAIL" if problems else "ok  "}  {name}')
        for problem in problems:
            print(re.sub('^', '      ', problem, flags=re.M))
        failed += bool(problems)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
