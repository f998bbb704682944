--- `hetrun generate FOLDER` and `hetrun eval FOLDER`: text from a saved model, and how well it predicts a text.
local native = require "het.native"
local errors = require "het.errors"
local files = require "het.model.folder"
local loader = require "het.model.load"
local generate = require "het.model.generate"
local graphs = require "het.train.graphs"
local subcommand = require "het.program.subcommand"
local suggest = require "het.language.suggest"
local text = require "het.text"
local tokenizer = require "het.model.tokenizer"

local command = {}

local of_models = {
  { "recipe", "FILE", "recipe of the model, where the folder holds one that only a recipe describes; its options may "
    .. "follow, also one that this command has, given once more", path = "read" },
  { "base", "FOLDER", "the base model of a folder with adapters (default: the one that adapter_config.json names)",
    path = "read" },
  { "precision", "f32", "dtype of weight matrices and activations: f32 or bf16" },
}

local to_generate = {
  { "prompt", "TEXT", "text to begin with (default: a line break)" },
  { "chat", nil, "answer the prompt by the model's chat template; without --prompt each line of the input, as one "
    .. "conversation" },
  { "tokens", "300", "how many tokens to write at most; the model's end token ends the text earlier" },
  { "context", "N", "tokens that it looks back at (default: the model's context)" },
  { "temperature", "0.8", "0: greedy; 1: the model's own distribution" },
  { "top_k", "N", "choose among this many of the likeliest (default: all)" },
  { "top_p", "1", "choose among the likeliest that have this share of the probability" },
  { "seed", "1337", "of the sampling" },
  of_models[1], of_models[2], of_models[3],
}

local to_evaluate = {
  { "text", "FILE", "the text", path = "read" },
  { "context", "N", "tokens of a window (default: the model's context, at most 2048)" },
  of_models[1], of_models[2], of_models[3],
}

local function say(format, ...)
  native.write("stdout", (select("#", ...) == 0 and format or format:format(...)) .. "\n")
end

local function help(name, about, options)
  for _, line in ipairs(about) do say("%s", line) end
  say ""
  for _, option in ipairs(options) do
    say("  %-20s %s", "--" .. option[1] .. (option[2] and "=" .. option[2] or ""), option[3])
  end
  say("  %-20s %s", "--json", name == "generate" and "print one JSON object instead: prompt, text, tokens, seconds"
    or "print one JSON object instead: loss, perplexity, tokens, windows, context, seconds")
  return 0
end

-- The options given and the folder; all mistakes at once.
local function take(name, options, words)
  local given, problems = subcommand.take(options, words, true)
  local names = {}
  for i, option in ipairs(options) do names[i] = "--" .. option[1] end
  for _, word in ipairs(not given.recipe and native.arguments or {}) do
    local option = word:match "^[^=]+"
    problems[#problems + 1] = given[option:sub(3)] and ("%s is given twice"):format(option)
      or ("there is no option %s%s"):format(option, suggest.sentence(option, names))
  end
  for i = 2, #words do
    problems[#problems + 1] = ("unexpected argument '%s'; options are --name=value"):format(words[i])
  end
  if not words[1] then
    problems[#problems + 1] = ("the folder of the model is missing: hetrun %s FOLDER"):format(name)
  end
  given.precision = given.precision or "f32"
  if given.precision ~= "f32" and given.precision ~= "bf16" then
    problems[#problems + 1] = ("--precision=%s is neither f32 nor bf16"):format(given.precision)
  end
  if given.recipe and given.base then
    problems[#problems + 1] = "--recipe and --base: the recipe says what the base model is"
  end
  if #problems > 0 then errors.usage("hetrun %s:\n  %s", name, table.concat(problems, "\n  ")) end
  subcommand.name_path(words[1], "read")
  return given, words[1]
end

-- The number of an option; nil where it is not given.
local function number_of(given, name)
  local word = given[name]
  if word == nil then return nil end
  local number = tonumber(word)
  if not number then errors.usage("--%s=%s is not a number", name, word) end
  return number
end

-- What a folder holds: { model, state, tokenizer, context, vocab, loss }. Nil: only the help of the recipe was wanted.
local function open(program, folder, given)
  local opened = {}
  if given.recipe then
    local run = program.load(given.recipe)
    if not run then return nil end
    local a = run.arguments
    local problem = generate.problem(a.model, a.data)
    if problem then errors.usage("%s: %s", given.recipe, problem) end
    opened.model, opened.loss, opened.vocab = a.model, a.loss, a.data.vocab
    opened.context = a.context or a.model.arguments.context
    local vocabulary = files.vocabulary(folder) or a.data:vocabulary()
    opened.tokenizer, opened.ends = generate.tokenizer_of(folder, vocabulary), tokenizer.ends_by_name(vocabulary)
  else
    local model = loader.load(folder, given.base and { base = given.base } or nil)
    require("het.language.mistakes").raise()
    local problem, left_out = generate.problem(model), loader.left_out(model)
    if problem then errors.usage("%s: %s", folder, problem) end
    if left_out and not native.settings.quiet then native.write("stderr", left_out .. "\n") end
    opened.model, opened.vocab, opened.context = model, model.arguments.vocab, model.arguments.context
    opened.tokenizer = generate.tokenizer_of(folder, rawget(model, "saved_vocabulary"))
  end
  opened.state = generate.state_of(folder, opened.model)
  return opened
end

-- Write a text, as it comes unless the result is JSON. Returns it, the number of its tokens, and whether it was
-- interrupted.
local function write_text(generator, opened, a)
  local settings, pieces, count = native.settings, {}, 0
  local function emit(piece)
    pieces[#pieces + 1] = piece
    if not settings.json then native.write("stdout", piece) end
  end
  local ok, problem = pcall(generator.text, generator, opened.tokenizer, a, emit, function() count = count + 1 end)
  if not settings.json then native.write("stdout", "\n") end
  local interrupted = not ok and select(2, errors.describe(problem)) == "interrupted"
  if not ok and not interrupted then error(problem, 0) end
  return table.concat(pieces), count, interrupted
end

-- A conversation: answers to the prompt, or to each line of the input.
local function converse(generator, opened, a, folder)
  local asked, messages, at_terminal = a.prompt, {}, native.is_terminal "stdin" and native.is_terminal "stderr"
  local function next_line()
    if at_terminal then native.write("stderr", "> ") end
    return io.read "*l"
  end
  local words = asked or next_line()
  local result = {}
  while words and not result[3] do
    messages[#messages + 1] = { role = "user", content = words }
    a.prompt = opened.tokenizer:chat({ messages = messages }, true)
    if not a.prompt then errors.usage("%s has no chat template; without --chat the prompt is continued", folder) end
    a.begins = true
    result = { write_text(generator, opened, a) }
    messages[#messages + 1] = { role = "assistant", content = result[1] }
    words = not asked and not result[3] and next_line() or nil
  end
  return unpack(result, 1, 3)
end

--- `hetrun generate FOLDER`. Returns the exit code.
function command.generate(program, ...)
  local settings = native.settings
  if settings.help and not (native.arguments or {})[1] then
    return help("generate", { "hetrun generate FOLDER [--name=value ...] writes what follows a prompt, by the model of "
      .. "a folder that hetrun", "saved, or of Hugging Face's." }, to_generate)
  end
  local given, folder = take("generate", to_generate, { ... })
  local options = { prompt = given.prompt }
  for _, name in ipairs { "tokens", "context", "temperature", "top_k", "top_p", "seed" } do
    options[name] = number_of(given, name)
  end
  local a = generate.arguments(options)
  local opened = open(program, folder, given)
  if not opened then return 0 end
  local generator = generate.new { model = opened.model, state = opened.state, precision = given.precision,
    context = opened.context, vocab = opened.vocab, ends = opened.ends }
  if given.chat and settings.json and not given.prompt then
    errors.usage "--chat --json prints one answer: give --prompt=TEXT"
  end
  generator:check_context(a.context)   -- before the prompt is written
  local started = native.clock()
  local answer, count, interrupted
  if given.chat then
    answer, count, interrupted = converse(generator, opened, a, folder)
  else
    a.prompt = a.prompt or generate.default_prompt(opened.tokenizer)
    opened.tokenizer:encode(a.prompt)   -- refused before anything is written
    if not settings.json then native.write("stdout", a.prompt) end
    answer, count, interrupted = write_text(generator, opened, a)
  end
  if settings.json then
    say("%s", native.json_encode { prompt = given.prompt or a.prompt, text = answer, tokens = count,
      seconds = native.clock() - started })
  end
  return interrupted and errors.exit_codes.interrupted or 0
end

-- Windows of `context` tokens, each beginning at the last label of the one before: every token but the first is
-- predicted once. Behind the end stand labels that do not count.
local ignored = -100
local function window(ids, first, context)
  local inputs, labels = {}, {}
  for i = 1, context do
    inputs[i], labels[i] = ids[first + i - 1] or 0, ids[first + i] or ignored
  end
  return inputs, labels
end

-- How far an evaluation is. Says so a second after its first window and every five seconds from then on.
local function progress_of(tokens)
  local progress = { done = 0, sum = 0 }   -- tokens, and their summed loss
  local began, said
  function progress.start() began = began or native.clock() end
  function progress.add(count, sum)
    progress.done, progress.sum = progress.done + count, progress.sum + sum
    local now = native.clock()
    if native.settings.quiet or progress.done >= tokens or now - (said or began) < (said and 5 or 1) then return end
    said = now
    native.write("stderr", ("%d of %d tokens  loss %.4f  %s tokens/s  %s left\n"):format(progress.done, tokens,
      progress.sum / progress.done, text.count(progress.done / (now - began)),
      text.duration((tokens - progress.done) * (now - began) / progress.done)))
  end
  -- Ends with the loss up to here.
  function progress.interrupt()
    local loss = progress.sum / progress.done
    if progress.done > 0 and native.settings.json then
      say("%s", native.json_encode { loss = loss, perplexity = math.exp(loss), tokens = progress.done,
        interrupted = true })
    elseif progress.done > 0 then
      say("loss %.6f, perplexity %.6g over the first %d tokens", loss, math.exp(loss), progress.done)
    end
    errors.raise("interrupted", "interrupted")
  end
  return progress
end

-- Adds the loss of all windows, `samples` of them at once, to a progress.
local function add_losses(progress, opened, ids, context, samples, precision)
  local made = graphs.evaluation { model = opened.model, loss = opened.loss, inputs = { "i32", { samples, context } },
    labels = { "i32", { samples, context } }, precision = precision, seed = 0 }
  local executor = native.executor(native.program(made.graph, { microbatches = 1 }), opened.state)
  if made.positions then executor:write("positions", native.arange(context, "i32")) end
  executor:write("scale", native.tensor({ 1 }, "f32"))
  progress.start()
  for first = 1, #ids - 1, samples * context do
    local inputs, labels = {}, {}
    for s = 1, samples do inputs[s], labels[s] = window(ids, first + (s - 1) * context, context) end
    executor:write("inputs", native.tensor(inputs, "i32", { samples, context }), 1)
    executor:write("labels", native.tensor(labels, "i32", { samples, context }), 1)
    if made.counter then executor:write("counter", native.tensor({ 0, (first - 1) / context }, "i64"), 1) end
    if not executor:run() then progress.interrupt() end
    progress.add(math.min(samples * context, #ids - first), executor:number "loss")
  end
end

-- The summed loss; a last window that the model computes as a short text, and the others not, is not filled up.
local function summed_loss(opened, ids, context, samples, precision)
  local rest, most_short = (#ids - 1) % context, generate.most_short(opened.model)
  local progress = progress_of(#ids - 1)
  if rest == 0 or rest > most_short or context <= most_short then
    add_losses(progress, opened, ids, context, samples, precision)
    return progress.sum
  end
  local whole, last = {}, {}
  for i, id in ipairs(ids) do
    if i <= #ids - rest then whole[#whole + 1] = id end
    if i >= #ids - rest then last[#last + 1] = id end
  end
  if #whole > 1 then add_losses(progress, opened, whole, context, samples, precision) end
  add_losses(progress, opened, last, rest, 1, precision)
  return progress.sum
end

--- `hetrun eval FOLDER --text=FILE`. Returns the exit code.
function command.eval(program, ...)
  local settings = native.settings
  if settings.help and not (native.arguments or {})[1] then
    return help("eval", { "hetrun eval FOLDER --text=FILE [--name=value ...] prints the mean loss of a token, in nats, "
      .. "and the perplexity of", "a text, by the model of a folder that hetrun saved, or of Hugging Face's. Windows "
      .. "of `context` tokens follow", "each other; each token but the first is predicted once, from those before it "
      .. "in its window." }, to_evaluate)
  end
  local given, folder = take("eval", to_evaluate, { ... })
  if not given.text then errors.usage("hetrun eval:\n  the text is missing: hetrun eval %s --text=FILE", folder) end
  local wanted = number_of(given, "context")
  if wanted and (wanted < 1 or wanted % 1 ~= 0) then
    errors.usage("--context=%s is not a whole number above 0, such as --context=512", given.context)
  end
  local words = native.read_text(given.text)
  local opened = open(program, folder, given)
  if not opened then return 0 end
  local context = wanted or opened.context and math.min(opened.context, 2048)
  if not context then errors.usage "this model does not say how many tokens it sees at once; give --context=N" end
  if opened.context and context > opened.context then
    errors.usage("--context=%d is more than the model's context = %d", context, opened.context)
  end
  local ids = opened.tokenizer:prefix()
  for _, id in ipairs(opened.tokenizer:encode(words)) do ids[#ids + 1] = id end
  if #ids < 2 then errors.usage("%s has %d tokens; there is nothing to predict", given.text, #ids) end
  for _, id in ipairs(ids) do
    if id >= opened.vocab then errors.usage("%s has token %d, the model knows %d", given.text, id, opened.vocab) end
  end
  context = math.min(context, #ids - 1)
  local windows = math.ceil((#ids - 1) / context)
  local samples = math.max(1, math.min(windows, math.floor(512 / context)))   -- short ones together
  local started = native.clock()
  local loss = summed_loss(opened, ids, context, samples, given.precision) / (#ids - 1)
  local found = { loss = loss, perplexity = math.exp(loss), tokens = #ids - 1, windows = windows, context = context,
    seconds = native.clock() - started }
  if settings.json then
    say("%s", native.json_encode(found))
  else
    say("loss %.6f, perplexity %.6g over %d tokens in %d windows of %d", loss, found.perplexity, found.tokens, windows,
      context)
  end
  return 0
end

return command
