// Chat templates and what is made of lines of JSON; tests/reference/chat.py compares templates with
// transformers.
#include "core/data/chat.h"

#include <catch2/catch.hpp>
#include <cctype>

#include "core/data/corpus.h"
#include "core/data/examples.h"
#include "core/data/json_pieces.h"
#include "core/data/sampler.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::EndsWith;

namespace {

std::string rendered(const std::string& source, const char* variables = "{}") {
  const jinja::Value value = jinja::Value::from(parse_json(variables, "the variables"));
  return jinja::Template(source).render(*value.object()).text;
}
std::string refusal(const std::string& source, const char* variables = "{}") {
  return error_of([&] { rendered(source, variables); });
}

// As ChatML: Qwen's without what it says of tools.
const char* kChatMl =
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' "
    "+ "
    "'\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}";
// The last turn is closed otherwise than earlier ones, as Phi-3's.
const char* kClosing =
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}";
// What was thought is left out of earlier turns, as Qwen3's.
const char* kThinking =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content "
    "}}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// The system's message stands in the last turn only, as Mistral's.
const char* kLastSystem =
    "{% set all = messages[1:] %}{% for m in all %}{% if m.role == 'user' %}[{{ messages[0].content if "
    "loop.last }}"
    "{{ m.content }}]{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}";
const char* kMarked =
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }};{% endgeneration "
    "%}"
    "{% else %}U:{{ m.content }};{% endif %}{% endfor %}";

const char* kTalk = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d "}])";

std::vector<std::string> said(const char* source, const char* messages = kTalk) {
  const ChatTemplate chat(source, Json(), {"<|end|>", "<|endoftext|>", "<|im_end|>", "<|im_start|>"});
  Conversation conversation;
  conversation.messages = parse_json(messages, "the messages");
  const ChatText text = chat.conversation(conversation);
  std::vector<std::string> parts;
  for (const auto& [begin, end] : text.counted) parts.push_back(text.text.substr(begin, end - begin));
  return parts;
}

// Its characters (bytes); those that count are capital letters.
std::string text_of(const Example& example) {
  std::string text;
  for (int64_t i = 0; i < example.tokens.count; ++i) {
    const auto letter = static_cast<char>(example.tokens[i]);
    text += example.counted[i] != 0 ? static_cast<char>(std::toupper(letter)) : letter;
  }
  return text;
}

}  // namespace

TEST_CASE("templates write what Jinja writes") {
  CHECK(rendered("a{{ 1 + 2 * 3 }}b{{ 'x' ~ 4 }}") == "a7bx4");
  CHECK(rendered("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1.0 }}") ==
        "3 -4 2 3.5 8 1.0");
  CHECK(rendered("{{ x.y[0] }}{{ x['y'][-1] }}{{ x.z }}{{ x.y[1:] }}", R"({"x": {"y": [1, "b"]}})") ==
        "1b['b']");
  CHECK(rendered("{% for a in l if a > 1 %}{{ loop.index }}:{{ a }}{{ ',' if not loop.last }}{% else "
                 "%}none{% endfor %}",
                 R"({"l": [1, 2, 3]})") == "1:2,2:3");
  CHECK(rendered("{% for k, v in o.items() %}{{ k }}={{ v }};{% endfor %}",
                 R"({"o": {"b": 1, "a": null}})") == "b=1;a=None;");
  CHECK(rendered("{% set ns = namespace(n=0) %}{% for a in [1,2] %}{% set ns.n = ns.n + a %}{% set x = a "
                 "%}{% endfor %}"
                 "{{ ns.n }}{{ x is defined }}") == "3False");
  CHECK(rendered("{% macro f(a, b='!') %}<{{ a }}{{ b }}>{% endmacro %}{{ f('x') }}{{ f(1, b=2) }}") ==
        "<x!><12>");
  CHECK(rendered("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break "
                 "%}{% endif %}"
                 "{{ i }}{% endfor %}") == "02");
  CHECK(rendered("{{ o | tojson }} {{ o | tojson(indent=2) }}", R"({"o": {"a": [1, "é\n<"], "b": true}})") ==
        "{\"a\": [1, \"é\\n<\"], \"b\": true} {\n  \"a\": [\n    1,\n    \"é\\n<\"\n  ],\n  \"b\": true\n}");
  CHECK(rendered("{% raw %}{{ x }}{% endraw %}{# no #}{% set t %}a{{ 1 }}{% endset %}{{ t }}") ==
        "{{ x }}a1");
  CHECK(
      rendered(
          "{{ ' a,b '.strip().split(',') | join('-') | upper }}{{ l | selectattr('r', 'equalto', 1) | list | "
          "length }}{{ (l | map(attribute='r') | list)[1] }}",
          R"({"l": [{"r": 1}, {"r": 2}]})") == "A-B12");
  CHECK(rendered("{{ u is defined }}{{ u }}{{ u | default('d') }}{{ '' | default('e', true) }}{{ 'a' in "
                 "'cat' and 1 not "
                 "in [2] }}{{ none is none }}{{ 'x' is string }}") == "FalsedeTrueTrueTrue");
}

TEST_CASE("texts are stripped and cut as Python's") {
  CHECK(rendered("{{ ' \u3000a\u00a0 ' | trim }}.") == "a.");
  CHECK(rendered("{{ 'xxabyx'.strip('xy') }}{{ ' a '.lstrip() }}{{ ' a '.rstrip() }}.") == "aba  a.");
  CHECK(rendered("{{ ' a\u2003b  c '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b  c '.split(none, 1) }}") ==
        "['a', 'b', 'c']['a', 'b c']['a', 'b  c ']");
}

TEST_CASE("blanks around brackets are cut as transformers has it") {
  CHECK(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc");
  CHECK(rendered("a\n  {{ 1 }}\nb") == "a\n  1\nb");
  CHECK(rendered("a \n {{- 1 -}} \n b{# x #}\nc") == "a1bc");
  CHECK(rendered("a {%- if true -%} \n b {%- endif %}\n\nc") == "ab\nc");
  CHECK(rendered("x\n {%+ if true +%}\ny{% endif %}") == "x\n \ny");
}

TEST_CASE("templates say what is wrong with them, and where") {
  CHECK_THAT(refusal("a\n{% include 'x' %}"),
             Contains("line 2 of the chat template: the statement 'include'"));
  CHECK_THAT(refusal("{{ x | wordwrap }}"),
             Contains("line 1") && Contains("the filter 'wordwrap' is not supported"));
  CHECK_THAT(refusal("{% if false %}{{ x is sameas 1 }}{% endif %}"),
             Contains("the test 'sameas' is not supported"));
  CHECK_THAT(refusal("{% if x %}"), Contains("'endif' is missing"));
  CHECK_THAT(refusal("{{ x"), Contains("has no '}}'"));
  CHECK_THAT(refusal("{{ x y }}"), Contains("the end of the bracket is wanted, and 'y' stands there"));
  CHECK_THAT(refusal("\n{{ x.y.z }}", R"({"x": {}})"),
             Contains("line 2 of the chat template: '.z' of 'y', which is undefined"));
  CHECK_THAT(refusal("{{ raise_exception('no ' + 'system') }}"),
             Contains("refuses these messages: no system"));
  CHECK_THAT(refusal("{{ strftime_now('%d') }}"), Contains("must not depend on the day"));
  CHECK_THAT(refusal("{{ [1].append(2) }}"), Contains("'append' would change a list"));
  CHECK_THAT(refusal("{{ 'ä' | upper }}"), Contains("of ASCII only"));
  CHECK_THAT(refusal("{{ 'a' + 1 }}"), Contains("a string + a number"));
  CHECK_THAT(refusal("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
             Contains("steps"));
  CHECK_THAT(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), Contains("deep"));
  CHECK_THAT(refusal(std::string(5000, '(')), !Contains("{{"));  // it is text
  CHECK_THAT(refusal("{{ " + std::string(5000, '(') + " }}"), Contains("deep"));
}

TEST_CASE("what the assistant says is found with the token that closes its turn") {
  using Parts = std::vector<std::string>;
  CHECK(said(kChatMl) == Parts{"b<|im_end|>", "d <|im_end|>"});
  CHECK(said(kClosing) == Parts{"b<|end|>", "d <|end|>\n<|endoftext|>"});
  CHECK(said(kThinking) == Parts{"b<|im_end|>", "<think>\n\n</think>\n\nd <|im_end|>"});
  CHECK(said(kLastSystem, R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                              {"role": "assistant", "content": "b"}])") == Parts{"b<|end|>"});
  CHECK(said(kMarked) == Parts{"b;", "d ;"});
  CHECK_THAT(error_of([] {
               said(
                   "{{ messages | length }}{% for m in messages %}{{ m.content | length }}{{ m.content }}{% "
                   "endfor %}");
             }),
             Contains("{% generation %}"));
  CHECK_THAT(error_of([] { said(kChatMl, R"([{"role": "user", "content": "a"}])"); }),
             Contains("no message is the assistant's"));
}

TEST_CASE("lines of JSON become examples whose completion counts") {
  const Scratch scratch;
  const std::string path =
      scratch.put("a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n\n{\"text\": \"xyz\"}\r\n");
  const auto corpus = Corpus::from_examples({.path = path, .tokenizer = "byte", .holdout = 0, .ending = "."});
  REQUIRE(corpus->examples(Split::train) == 2);
  const Example first = corpus->example(Split::train, 0), second = corpus->example(Split::train, 1);
  CHECK(first.tokens.count == 5);
  CHECK(std::vector<uint8_t>(first.counted, first.counted + 5) == std::vector<uint8_t>{0, 0, 1, 1, 1});
  CHECK(second.tokens.count == 4);
  CHECK(second.tokens[3] == '.');

  Sampler sampler(corpus, {.context = 6, .batch = 2, .seed = 3});
  const Batch batch = sampler.next();
  CHECK(batch.labelled == 3 + 3);
  int64_t counted = 0;
  for (int64_t i = 0; i < 12; ++i) counted += batch.labels[0].at(i) != kIgnoredLabel ? 1 : 0;
  CHECK(counted == batch.labelled);
  Sampler cut(corpus, {.context = 2, .batch = 2, .seed = 3});
  CHECK(cut.next().labelled == 1 + 2);
  CHECK(cuts_of(*corpus, Split::train, 2).cut == 2);
  CHECK(cuts_of(*corpus, Split::train, 1).empty == 1);
  CHECK(cuts_of(*corpus, Split::train, 4).cut == 0);
}

TEST_CASE("a file of JSON that is one list holds its elements") {
  const auto pieces = [](const std::string& text) {
    std::string all;
    for (const JsonPiece& piece : json_pieces(text, "a.json"))
      all += fmt::format("{}:{};", piece.line, piece.text);
    return all;
  };
  CHECK(pieces("{\"a\": 1}\n\n {\"b\": 2}\r\n") == "1:{\"a\": 1};3: {\"b\": 2}\r;");
  CHECK(pieces(" [\n{\"a\": [1, 2]}, {\"b\":\n\"],\\\"{\"}\n,\n[3]\n]\n") ==
        "2:{\"a\": [1, 2]};2:{\"b\":\n\"],\\\"{\"};5:[3];");
  CHECK(pieces("\xEF\xBB\xBF[1]") == "1:1;");
  CHECK(pieces("[]").empty());
  CHECK(pieces("[1]") == "1:1;");
  for (const char* open : {"[", "[1", "[{]", "[\"]", "[\"\\", "[1,", "[[1]"})
    CHECK_THAT(error_of([&] { pieces(open); }), Contains("a.json: the list does not end"));
  CHECK_THAT(error_of([&] { pieces("[1,\n]"); }), Contains("a.json:2: there is no element before ']'"));
  CHECK_THAT(error_of([&] { pieces("[,1]"); }), Contains("a.json:1: there is no element before ','"));
  CHECK_THAT(error_of([&] { pieces("[{\"a\": 1}},\n{}]"); }),
             Contains("a.json:1: '}' stands where an element ends"));
  CHECK_THAT(error_of([&] { pieces("[1]\n[2]"); }),
             Contains("a.json:2: there is more behind the end of the list"));
}

TEST_CASE("conversations of ShareGPT's layout and instructions of Alpaca's are messages") {
  const Scratch scratch;
  ExampleCorpusOptions options{.tokenizer = "byte", .holdout = 0};
  options.chat_template =
      scratch.put("t",
                  "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
                  "{% endgeneration %}{% else %}{{ m.role[0] }}<{{ m.content }}>{% endif %}{% endfor %}");
  const auto examples = [&](const std::string& text) {
    options.path = scratch.put("a.json", text);
    const auto corpus = Corpus::from_examples(options);
    std::vector<std::string> texts;
    for (int64_t i = 0; i < corpus->examples(Split::train); ++i)
      texts.push_back(text_of(corpus->example(Split::train, i)));
    return texts;
  };
  using Texts = std::vector<std::string>;
  CHECK(examples(R"([{"conversations": [{"from": "system", "value": "a"}, {"from": "human", "value": "b"},
                      {"from": "gpt", "value": "c"}, {"from": "tool", "value": "d"}, {"from": "gpt", "value": "e"}]},
                     {"conversations": [{"role": "user", "content": "f"}, {"role": "assistant", "content": "g"}]}])") ==
        Texts{"s<a>u<b>C;t<d>E;", "u<f>G;"});
  CHECK(examples(R"([{"instruction": "a", "input": "b", "output": "c"}, {"instruction": "d", "output": "e"},
                     {"instruction": "f", "input": "", "output": "g", "system": "h"}])") ==
        Texts{"u<a\n\nb>C;", "u<d>E;", "s<h>u<f>G;"});
  CHECK(examples(R"([{"instruction": "a", "input": null, "output": "b", "system": null, "history": []},
                     {"instruction": "c", "output": "d", "system": "", "history": [["e", "f"]]},
                     {"instruction": "g", "output": "h", "text": "ij"},
                     {"text": "jk", "conversations": null},
                     {"system": "k", "conversations": [{"from": "human", "value": "l"}, {"from": "gpt", "value": "m"}]}])") ==
        Texts{"u<a>B;", "u<e>F;u<c>D;", "IJ", "JK", "s<k>u<l>M;"});
  const auto error = [&](const std::string& line) { return error_of([&] { examples(line); }); };
  CHECK_THAT(error(R"({"conversations": [{"from": "bot", "value": "a"}]})"),
             Contains("a.json:1: conversations[0] is from 'bot'; system, human (or user), gpt"));
  CHECK_THAT(error(R"({"conversations": [{"from": "gpt"}]})"),
             Contains("conversations[0] has no 'value' that is a string"));
  CHECK_THAT(error(R"({"instruction": "a", "output": "b", "history": [["c"]]})"),
             Contains("'history' is not a list of pairs of strings"));
  CHECK_THAT(
      error(R"([{"text": "ab"}, {"text": 1}, {"text": "cd"}, {"text": 2}])"),
      EndsWith("a.json:1 (element 2 of the list): 'text' is not a string; element 4 cannot be read either"));
  CHECK_THAT(error("[]"), EndsWith("holds no examples"));
  CHECK_THAT(error(R"({"conversations": []})"), Contains("'conversations' is not a list of messages"));
  CHECK_THAT(error(R"([{"instruction": "a", "output": "b"},
 {"instruction": "a", "input": 1, "output": "b"}])"),
             Contains("a.json:2 (element 2 of the list): 'input' is not a string"));
  CHECK_THAT(error(R"({"instruction": "a"})"), Contains("it has instruction; 'text', 'prompt' and"));
  options.chat_template = {};
  CHECK_THAT(error(R"({"instruction": "a", "output": "b"})"), Contains("needs a chat template"));
}

TEST_CASE("each example comes once in an epoch, and those held out once") {
  const Scratch scratch;
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += fmt::format("{{\"text\": \"{}{}\"}}\n", static_cast<char>('a' + i), i % 3 ? "xy" : "");
  const auto corpus = Corpus::from_examples(
      {.path = scratch.put("a.jsonl", lines), .tokenizer = "byte", .holdout = 0.25, .ending = "."});
  REQUIRE(corpus->examples(Split::train) == 15);
  Sampler sampler(corpus, {.context = 4, .batch = 5, .seed = 9});
  std::string seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::string order;
    for (int i = 0; i < 3; ++i) {
      const Batch batch = sampler.next();
      for (int64_t r = 0; r < 5; ++r) order += static_cast<char>(static_cast<int>(batch.inputs[0].at(4 * r)));
    }
    CHECK(order != seen);
    seen = order;
    std::sort(order.begin(), order.end());
    CHECK(order == "abcdefghijklmno");
  }
  Sampler holdout(corpus, {.context = 4, .batch = 3, .split = Split::holdout});
  CHECK(holdout.next().labelled > 0);
  const Batch last = holdout.next();  // two examples and a row without one
  CHECK(last.labels[0].at(8) == kIgnoredLabel);
  CHECK(holdout.next().labelled == 0);

  SamplerOptions whole{.context = 4, .batch = 6, .seed = 9, .ahead = 0}, part = whole;
  part.first = 4;
  part.count = 2;
  part.microbatch = 1;
  const Batch all = make_batch(*corpus, whole, 12), mine = make_batch(*corpus, part, 12);
  CHECK(all.labelled == mine.labelled);
  for (int64_t i = 0; i < 4; ++i) {
    CHECK(mine.inputs[0].at(i) == all.inputs[0].at(16 + i));
    CHECK(mine.labels[1].at(i) == all.labels[0].at(20 + i));
  }
}

TEST_CASE("a pair of answers is two rows of a batch, and the answers count") {
  const Scratch scratch;
  const std::string lines =
      R"({"prompt": "ab", "chosen": "cd", "rejected": "e"})"
      "\n"
      R"({"chosen": "he said no", "rejected": "he said yes"})"
      "\n"
      R"({"prompt": [{"role": "user", "content": "q"}], )"
      R"("chosen": [{"role": "assistant", "content": "r"}], "rejected": [{"role": "assistant", "content": "s"}]})"
      "\n"
      R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "t"}], )"
      R"("rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "u"}]})"
      "\n";
  ExampleCorpusOptions options{.path = scratch.put("a.jsonl", lines), .tokenizer = "byte", .holdout = 0.25};
  options.ending = ".";
  options.preferences = true;
  options.chat_template = scratch.put(
      "t",
      "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% else %}{% generation %}"
      "{{ m.content }};{% endgeneration %}{% endif %}{% endfor %}");
  const auto corpus = Corpus::from_examples(options);
  CHECK(corpus->rows() == 2);
  REQUIRE(corpus->examples(Split::train) == 3);
  REQUIRE(corpus->examples(Split::holdout) == 1);
  const auto rows_of = [&](Split split, int64_t index) {
    return text_of(corpus->example(split, index, 0)) + "|" + text_of(corpus->example(split, index, 1));
  };
  CHECK(rows_of(Split::train, 0) == "abCD.|abE.");
  CHECK(rows_of(Split::train, 1) == "he said NO.|he said YES.");
  CHECK(rows_of(Split::train, 2) == "<q>R;|<q>S;");
  CHECK(rows_of(Split::holdout, 0) == "<q>T;|<q>U;");

  Sampler holdout(corpus, {.context = 6, .batch = 2, .split = Split::holdout});
  const Batch batch = holdout.next();  // a pair, and none
  CHECK(batch.inputs[0].shape() == Shape{4, 6});
  CHECK(batch.labelled == 1);
  CHECK(batch.inputs[0].at(3) == 'T' - 'A' + 'a');
  CHECK(batch.inputs[0].at(6 + 3) == 'u');
  CHECK(batch.labels[0].at(12) == kIgnoredLabel);
  CHECK(cuts_of(*corpus, Split::train, 4).cut == 1);  // "he said yes."
  CHECK(cuts_of(*corpus, Split::train, 4).empty == 1);

  // Of an answer that begins with a long message nothing fits, though of the other one all does.
  options.holdout = 0;
  options.path = scratch.put(
      "half.jsonl",
      R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "r"}], )"
      R"("rejected": [{"role": "user", "content": "long"}, {"role": "assistant", "content": "s"}]})"
      "\n");
  const auto half = Corpus::from_examples(options);
  CHECK(cuts_of(*half, Split::train, 5).cut == 1);
  CHECK(cuts_of(*half, Split::train, 5).empty == 1);
  CHECK(cuts_of(*half, Split::train, 9).empty == 0);
  const Batch none = make_batch(*half, {.context = 5, .batch = 1}, 0);
  CHECK(none.labelled == 0);
  for (int64_t i = 0; i < 10; ++i) CHECK(none.labels[0].at(i) == kIgnoredLabel);
  const Batch one = make_batch(*half, {.context = 9, .batch = 1}, 0);
  CHECK(one.labelled == 1);
  CHECK(one.labels[0].at(2) == 'r');
  CHECK(one.labels[0].at(9 + 8) == 's');
  CHECK_THAT(error_of([&] {
               Corpus::from_mixture({{corpus, 1}, {Corpus::from_ids({0, 1, 2}, 256, 0), 1}});
             }),
             Contains("do not mix"));
}

TEST_CASE("lines that hold no pair of answers are named") {
  const Scratch scratch;
  const auto error = [&](const std::string& line, bool preferences) {
    ExampleCorpusOptions options{.path = scratch.put("b.jsonl", line), .tokenizer = "byte"};
    options.preferences = preferences;
    return error_of([&] { Corpus::from_examples(options); });
  };
  const std::string user = R"([{"role": "user", "content": "a"}])";
  CHECK_THAT(error(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", false),
             Contains("data.preferences reads 'chosen' and 'rejected'"));
  CHECK_THAT(error(R"({"prompt": "a", "chosen": "b"})", true),
             Contains("b.jsonl:1: it has prompt, chosen; 'prompt', 'chosen' and 'rejected' are wanted"));
  CHECK_THAT(error(R"({"chosen": "b", "rejected": 1})", true),
             Contains("'rejected' is neither a string nor a list of messages"));
  CHECK_THAT(error(R"({"chosen": "b", "rejected": )" + user + "}", true),
             Contains("'chosen' is a string, 'rejected' a list of messages"));
  CHECK_THAT(error(R"({"chosen": )" + user + R"(, "rejected": "b"})", true),
             Contains("'chosen' is a list of messages, 'rejected' a string"));
  CHECK_THAT(error(R"({"prompt": )" + user + R"(, "chosen": "b", "rejected": "c"})", true),
             Contains("'prompt' is a list of messages, 'chosen' a string"));
  CHECK_THAT(error(R"({"prompt": "a", "chosen": "b", "rejected": "b"})", true),
             Contains("'chosen' and 'rejected' are the same"));
  CHECK_THAT(error(R"({"chosen": )" + user + R"(, "rejected": )" + user + "}", true),
             Contains("'chosen' and 'rejected' are the same"));
  CHECK_THAT(error(R"({"chosen": )" + user + R"(, "rejected": )" + user.substr(0, user.size() - 1) +
                       R"(, {"role": "assistant", "content": "b"}]})",
                   true),
             Contains("do not differ in a message"));
  const std::string other = R"([{"role": "user", "content": "b"}])";
  CHECK_THAT(error(R"({"chosen": )" + user + R"(, "rejected": )" + other + "}", true),
             Contains("begin with no message that both have, and there is no 'prompt'"));
  CHECK_THAT(error(R"({"prompt": "a", "chosen": )" + user + R"(, "rejected": )" + other + "}", true),
             Contains("both have; a 'prompt' beside messages is a list of messages"));
}

TEST_CASE("of several wrong lines the reason of the first is said and the others are named") {
  const Scratch scratch;
  const std::string good = "{\"text\": \"good\"}\n", wrong = "[1]\n{\"txt\": 1}\n";
  for (const char* tokenizer : {"byte", "char"}) {
    const auto error = [&](const std::string& lines) {
      const std::string path = scratch.put("b.jsonl", lines);
      return error_of([&] { Corpus::from_examples({.path = path, .tokenizer = tokenizer}); });
    };
    INFO(tokenizer);
    CHECK_THAT(error(good + "[1]\n" + good + "\n" + good), EndsWith("b.jsonl:2: a JSON object is wanted"));
    CHECK_THAT(error(good + wrong + good),
               EndsWith("b.jsonl:2: a JSON object is wanted; line 3 cannot be read either"));
    CHECK_THAT(error(good + wrong + good + "{\n"),
               EndsWith("b.jsonl:2: a JSON object is wanted; lines 3, 5 cannot be read either"));
    std::string many = good;
    for (int i = 0; i < 1000; ++i) many += "{\"text\": 1}\n" + good;
    CHECK_THAT(
        error(many),
        EndsWith("b.jsonl:2: 'text' is not a string; lines 4, 6, 8 and 996 more cannot be read either"));
  }
}

TEST_CASE("lines that are wrong are named") {
  const Scratch scratch;
  const auto error = [&](const std::string& line) {
    const std::string path = scratch.put("b.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n");
    return error_of([&] { Corpus::from_examples({.path = path, .tokenizer = "byte"}); });
  };
  CHECK_THAT(error("{\"text\": "), Contains("b.jsonl:3") && Contains("JSON"));
  CHECK_THAT(error("[1]"), Contains("b.jsonl:3: a JSON object is wanted"));
  CHECK_THAT(error("{\"txt\": 1, \"id\": 2}"), Contains("b.jsonl:3: it has txt, id; 'text', 'prompt' and"));
  CHECK_THAT(error("{\"text\": 1}"), Contains("b.jsonl:3: 'text' is not a string"));
  CHECK_THAT(error("{\"prompt\": \"a\"}"), Contains("b.jsonl:3: 'prompt' has no 'completion' beside it"));
  CHECK_THAT(error("{\"prompt\": \"a\", \"completion\": \"\"}"),
             Contains("b.jsonl:3: it has no token to learn"));
  CHECK_THAT(error("{\"messages\": []}"), Contains("'messages' is not a list of messages"));
  CHECK_THAT(error("{\"messages\": [{\"content\": \"a\"}]}"), Contains("messages[0] has no 'role'"));
  CHECK_THAT(error("{\"messages\": [{\"role\": \"user\"}]}"), Contains("messages[0] has no 'content'"));
  CHECK_THAT(error("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"),
             Contains("needs a chat template"));
  CHECK_THAT(
      error_of([&] { Corpus::from_examples({.path = scratch.put("c.jsonl", "\n"), .tokenizer = "byte"}); }),
      Contains("holds no examples"));
  const auto corpus = Corpus::from_examples(
      {.path = scratch.put("d.jsonl", "{\"text\": \"abc\"}"), .tokenizer = "byte", .holdout = 0});
  CHECK_THAT(error_of([&] { Sampler bad(corpus, {.context = 4, .split = Split::holdout}); }),
             Contains("1 example, none of them held out; holdout = 0 evaluates nothing"));
}
