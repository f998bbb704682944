--- `het.train`: what to train, on what, how. It returns a run; `hetrun` starts it, at the prompt `run:start()` does.
local average = require "het.train.average"
local define = require "het.language.define"
local errors = require "het.errors"
local generate = require "het.model.generate"
local handle = require "het.sandbox.handle"
local native = require "het.native"
local reference = require "het.train.reference"
local restoring = require "het.train.restoring"
local Run = require "het.train.run"
local suggest = require "het.language.suggest"
local text = require "het.text"
local together = require "het.train.together"
local validation = require "het.train.validation"

local function is_model(value) return define.kind_of(value) == "layer" end

-- Methods that check for recipes what the library does right.
local recipe_methods = {
  start = function(self, ...)
    if select("#", ...) > 0 then
      errors.usage("run:start takes no arguments, and %s was given; what a run does stands in het.train { ... }",
        text.value((...)))
    end
    return self:start()
  end,
  generate = function(self, options, emit)
    if emit ~= nil then define.expect("run:generate: the second argument", emit, "function") end
    return self:generate(options, emit)
  end,
  graph_of_sample = function(self, samples)
    if samples ~= nil and define.expect("run:graph_of_sample", samples, "integer") < 1 then
      errors.usage("run:graph_of_sample: %.14g samples are asked for; 1 is the least", samples)
    end
    return (self:graph_of_sample(samples))
  end,
  gather = function(self)
    local state = self:gather()
    return state and average.counted(self, state)
  end,
  use_plan = function(self, wanted)
    define.expect("run:use_plan", wanted, "plan")
    return self:use_plan(wanted)
  end,
  peak_memory = function(self)
    self:prepare()
    return self:peak_memory()
  end,
  asked_to_stop = function(self)
    self:prepare()
    return self:asked_to_stop()
  end,
}

-- All ranks call these at the same place; one that is alone in it finds others in the next step.
for _, name in ipairs { "generate", "save", "evaluate", "train_step", "use_plan", "snapshot", "restore", "model",
  "gather" } do
  recipe_methods[name] = together.expected("run:" .. name, recipe_methods[name] or Run[name])
end

define.object {
  name = "run",
  sentence = "What het.train returns: a model that can be trained, saved and asked for text.",
  members = {
    { "start", "run:start()", "Train. Returns the run's numbers as a table: steps, train_loss, validation_loss, "
      .. "best_validation_loss, best_validation_step, stopped_early, seconds, tokens_per_s, samples_per_s, mfu, "
      .. "peak_memory_bytes, sample, interrupted.",
      example = "print(run:start().validation_loss)" },
    { "generate", "run:generate { ... }", "A prompt and the text that follows it, by the weights as they are now. A "
      .. "second argument is a function that gets pieces of what follows as they come.",
      fields = generate.fields, example = 'run:generate { prompt = "ROMEO:", tokens = 100 }' },
    { "save", "run:save([folder[, { overwrite =, merge = }]])", "Save the model, its vocabulary and what is needed to "
      .. "go on exactly (default: the recipe's `save`). With overwrite = true it may replace a model that this run has "
      .. "not written; with merge = true it is the base model with what its adapters (nn.lora) add, from which no run "
      .. "goes on. Of several ranks the first writes; all call it.", example = 'run:save "runs/shakespeare"',
      how = 'save "folder"' },
    { "arguments", "run.arguments", "What het.train was given, with defaults: run.arguments.steps. Nothing can be "
      .. "set." },
    { "step", "run.step", "Steps done, of a run that was prepared." },
    { "loss", "run.loss", "The loss of the last step." },
    { "validation", "run.validation", "The loss of the last evaluation." },
    { "best", "run.best", "The lowest loss of an evaluation." },
    { "rank", "run.rank", "Which rank of the run this process is, from 0, of a run that was prepared." },
    { "ranks", "run.ranks", "How many ranks there are, of a run that was prepared; with --elastic it changes." },
    { "plan", "run.plan", "The het.plan that the ranks follow, of a run that was prepared; nil without one." },
    { "records", "run:records()", "What the metrics file holds so far: a list of tables, the objects of its lines. A "
      .. "step may be there twice: the last one counts.", example = "for _, each in ipairs(run:records()) do "
      .. "print(each.step, each.loss) end" },
    { "results", "run.results", "What run:start() returned, of a run that has ended." },
    { "fallbacks", "run.fallbacks", "Of a run with plan = het.plan.auto { fallbacks = n }: a list of { lost =, plan = "
      .. "} or { lost =, problems = }, planned ahead." },
    { "evaluate", "run:evaluate()", "The mean loss over the first batches of the holdout, or of `evaluate.data`, of a "
      .. "run that has begun; and that of the figures beside it, by name." },
    { "prepare", "run:prepare()", "Build everything that training needs, and compute nothing yet. start and generate "
      .. "call it." },
    { "train_step", "run:train_step()", "One step, of a run that was prepared: { step, loss, lr, gradient_norm, "
      .. "seconds, figures }, or nil when interrupted." },
    { "use_plan", "run:use_plan(plan)", "Go on by another plan, from the next step on: the state moves between the "
      .. "ranks, and training goes on as if nothing had changed. All ranks call it at the same place, as in on_step.",
      example = 'run:use_plan(het.plan { microbatch = 2, '
        .. 'het.pipeline { microbatches = 4, het.stage { "here:0" } } })' },
    { "snapshot", "run:snapshot()", "A snapshot now: on disk where the run has a `snapshot.folder`, of a run with "
      .. "--elastic also in memory. Returns { step, place, memory } when it is whole; het.snapshot.open(place) reads "
      .. "it. All ranks call it at the same place, as in on_step.",
      example = "print(run:snapshot().place)" },
    { "restore", "run:restore { ... }", "Weights, or without `only` all of the training state, from a snapshot or a "
      .. "saved model, whatever plan either has. The run goes on from there, and it returns { step, parameters }."
      .. " All ranks call it at the same place, and each reads `from`.", fields = restoring.fields,
      example = 'run:restore { from = "runs/mine/snapshots", only = "blocks.*" }' },
    { "model", "run:model()", "The model with the weights that the run has now, or where it saves averages, those: it "
      .. "is called on tensors. Later steps do not change it. Of several ranks the first gets it, others nil; all "
      .. "call it.", example = "print(run:model()(het.randn(1, 4)))" },
    { "gather", "run:gather()", "The weights and optimizer state on rank 0, wherever their parts are; nil on other "
      .. "ranks. All ranks call it." },
    { "graph_of_sample", "run:graph_of_sample([samples])", "The training graph of a micro-batch (default: of one "
      .. "sample), as planners count it; print it to read it." },
    { "peak_memory", "run:peak_memory()", "Bytes taken at most, of the GPU or by this process." },
    { "stop", "run:stop()", "End the training after this step, by a criterion of the recipe's: the run is saved and "
      .. "goes on to `after` as at its last step. All ranks call it at the same place, as in on_step.",
      example = "on_step = function(run, step) if step.loss < 0.1 then run:stop() end end" },
    { "asked_to_stop", "run:asked_to_stop()", "Whether Ctrl-C or SIGTERM was seen, by this rank or any other. All "
      .. "ranks call it." },
  },
  classes = { Run }, methods = recipe_methods,
}

define.object {
  name = "weights", kind = "state", sentence = "Weights and optimizer state of a run, as run:gather() returns them.",
  members = {
    { "names", "weights:names()", "What there is: a list of { name, dtype, shape, trained }." },
    { "read", "weights:read(name)", "A copy of one as a tensor.", example = 'run:gather():read "tokens.weight"' },
  },
  classes = { "state", average.Counted }, show = function() return "weights and optimizer state" end,
  methods = {
    names = function(state) return state:names() end,
    read = function(state, name) return state:read(define.expect("weights:read", name, "string")):clone() end,
  },
}

-- A graph prints, and that is all: its builder could make a program of it that no check foresaw.
handle.class({ kind = "graph" }, "graph")

-- Names that other libraries have for fields of `evaluate`.
local evaluate_instead = { dataset = "`data`", eval_dataset = "`data`",
  min_delta = "`min_change`", threshold = "`min_change`", steps = "`every`",
  early_stopping_patience = "`patience`" }

-- Of a step: sizes that are computed from it have to stay countable.
local most_tokens = 2 ^ 40

-- What depends on evaluations needs some.
local function check_evaluate(a, report)
  local evaluate = a.evaluate
  if evaluate.min_change and not evaluate.patience then
    report("evaluate.min_change", "train.evaluate.min_change needs 'patience': with how many evaluations without a "
      .. "lower loss the run ends")
  end
  local name = evaluate.patience and "evaluate.patience" or a.keep_best and "keep_best"
  if name and evaluate.every == 0 then
    report(name, ("train.%s needs evaluations, and with evaluate.every = 0 there is none"):format(name))
  elseif name and not evaluate.data and not a.data:has_holdout() then
    report(name, ("train.%s needs evaluations, and this data holds nothing out for them; with holdout = 0.1 it does, "
      .. "or evaluate = { data = ... }"):format(name))
  end
end

-- Parameters are by the names of layers: one layer under two names would not share its weights.
local function check_names(model, report)
  local paths, found = {}, false
  model:walk(function(inner, path)
    if paths[inner] and not found and inner:count() > 0 then
      found = true
      report("model", ("train.model: '%s' and '%s' are the same %s, but each name has separate weights; make another "
        .. "%s, or to share the weights call one name several times in the forward of an nn.layer"):format(paths[inner],
        path, inner.class.name, inner.class.name))
    end
    paths[inner] = path
  end)
end

-- Why pairs are no rows of tokens with their labels, for a language model; nil where they are.
local function rows_problem(data, context)
  local inputs, labels = data.arguments.inputs, data.arguments.labels
  local are_rows = type(inputs) ~= "table" and inputs.dtype == "i32" and labels.dtype == "i32" and #inputs.shape == 2
    and text.shape(inputs.shape) == text.shape(labels.shape)
  if not are_rows then
    return "a language model is trained on data.text, data.jsonl, data.preferences, data.tokens or data.masked; or on "
      .. "data.pairs of token ids and labels, both i32[samples, tokens]"
  elseif inputs.shape[2] > context then
    return ("samples of the data are %d tokens, the model's context is %d"):format(inputs.shape[2], context)
  end
end

-- What is trained on pairs of answers, and beside a reference.
local function check_reference(a, report)
  if define.kind_of(a.data) == "corpus" and a.data.native.rows > 1 and not a.loss then
    report("loss", "train.data is of preferences, which need a `loss` that compares answers; recipes/dpo.lua has one")
  end
  if not a.reference then return end
  if not a.loss then
    report("reference", "train.reference needs a `loss`, which gets its output")
  elseif not reference.is_shared(a) and not rawget(a.reference, "folder") then
    report("reference", "train.reference has no weights: it has to be what het.load returns, or the model that nn.lora "
      .. "was given")
  end
  if reference.is_shared(a) then return end
  for _, name in ipairs { "save", "keep_best" } do
    for _, folder in ipairs { rawget(a.reference, "folder"), rawget(a.reference, "base_folder") } do
      if a[name] and native.resolve(a[name]) == native.resolve(folder) then
        report(name, ("train.%s is the folder of the reference, which would be replaced; name another"):format(name))
      end
    end
  end
end

local function check(a, report)
  check_evaluate(a, report)
  local other = a.evaluate.data
  if define.is_unknown(other) then
    report()
  elseif other then
    local field, problem = validation.problem(a, other)
    if problem then report(field, problem) end
  end
  check_names(a.model, report)
  if is_model(a.model) and rawget(a.model, "of_run") then
    report("model", "train.model is what run:model() returned, which is for calls; het.load has a saved one to train")
  end
  check_reference(a, report)
  -- Plans choose the size themselves; what simulates one may be given another with --plan.
  local by_plan = native.recipe_for == "plan" or native.recipe_for == "simulate"
  if a.batch % (a.microbatch or a.batch) ~= 0 and not by_plan then
    report("microbatch", ("train.microbatch = %d does not divide batch = %d; nearest that do: %s"):format(
      a.microbatch, a.batch, suggest.divisors(a.batch, a.microbatch)))
  end
  local corpus = define.kind_of(a.data) == "corpus"
  local named = not corpus and type(a.data.arguments.inputs) == "table"
  for _, model in ipairs(named and { a.model, a.reference } or {}) do
    if not model.class.own_forward then
      report("model", ("the data has inputs by name (%s), which nn.%s does not take; the forward of an nn.layer gets "
        .. "them as a table"):format(table.concat(text.keys(a.data.arguments.inputs), ", "),
        model.class.name:match "[^.]+$"))
      break
    end
  end
  local context = a.context or (is_model(a.model) and a.model.arguments.context)
  if corpus and not context then
    report(nil, "train needs 'context': this model does not say how many tokens it sees at once")
  end
  local share = corpus and a.data.objective == "masked" and a.data.arguments.mask_share
  if share and context and share * a.batch * context < 1 then
    report("data", ("data.masked.mask_share = %s hides less than one of the %d tokens of a step; %.2g and more work")
      :format(text.value(share), a.batch * context, 1 / (a.batch * context)))
  end
  local unpacked = corpus and is_model(a.model) and a.data:packs() and a.model:why_not_packed()
  if unpacked then report("model", "the data has packing = true: " .. unpacked) end
  if corpus and context and a.batch * context > most_tokens then
    report("batch", ("train.batch = %.14g samples of %.14g tokens are more than 2^40 tokens in a step"):format(a.batch,
      context))
  end
  if is_model(a.model) and a.model.class.model then
    local arguments = a.model.arguments
    if a.context and a.context > arguments.context then
      report("context", ("train.context = %d is more than the model's context = %d"):format(a.context,
        arguments.context))
    end
    if corpus and a.data.vocab > arguments.vocab then
      report("model", ("the data has %d different tokens, the model's vocab = %d; vocab = corpus.vocab fits"):format(
        a.data.vocab, arguments.vocab))
    end
    local problem = not corpus and not named and rows_problem(a.data, context)
    if problem then report("data", problem) end
  end
  local wordless = a.sample and generate.problem(a.model, a.data)
  if wordless then
    report("sample", "train.sample: " .. wordless)
  elseif corpus and a.sample and a.sample.prompt then
    local ok, problem = pcall(a.data.encode, a.data, a.sample.prompt)
    if not ok then report("sample.prompt", (errors.describe(problem))) end
  end
  if a.optimizer.arguments.rounding == "stochastic" and a.precision ~= "bf16" then
    report("optimizer", ("optim.%s.rounding = \"stochastic\" is of the bf16 copy of the weights, and with precision = "
      .. "%s there is none; precision = \"bf16\" or rounding = \"nearest\" works"):format(a.optimizer.name,
      a.precision))
  end
  if a.keep_best and a.keep_best == a.save then
    report("keep_best", ("train.keep_best and train.save are both %s; another folder, such as %s/best, works"):format(
      text.value(a.save), a.save))
  end
  if a.ema and a.optimizer.average then
    report("ema", ("train.ema: optim.%s evaluates and saves an average already; leave one of them out"):format(
      a.optimizer.name))
  end
  if a.resume and a.overwrite then
    report("overwrite", "resume = true goes on with a saved model, overwrite = true replaces it; take one")
  end
  for _, name in ipairs { "save", "keep_best", "from", "metrics" } do
    if a[name] == "" then report(name, ("train.%s is empty; give a path, or leave it out"):format(name)) end
  end
  if a.snapshot and a.snapshot.folder and a.snapshot.folder:find "^%w+://" then
    report("snapshot.folder", ("train.snapshot.folder = %q is a place of a store, which `store` takes; `folder` is a "
      .. "path"):format(a.snapshot.folder))
  end
  if a.snapshot and a.snapshot.store and not a.snapshot.folder then
    report("snapshot.store", "train.snapshot.store needs 'folder', where snapshots are written before they are sent")
  end
  if a.alone and a.plan then
    report("plan", "train.plan says who computes what, and with alone = true this process does everything; take one")
  end
  if a.alone and a.pace then
    report("pace", "train.pace slows the ranks of a plan, and with alone = true this process does everything; take one")
  end
  if a.resume and not a.save and not (a.snapshot and a.snapshot.folder) then
    report("resume", "train.resume needs 'save' or 'snapshot.folder', the folder to go on from")
  end
end

-- In place of names that other libraries have.
local clip = "`optimizer = optim.adamw { clip = 1 }`"
local evaluated = "`evaluate = { data = ... }`, or `holdout = 0.1` of the data"

return define.constructor {
  name = "train", kind = "run",
  sentence = "A run: what to train, on what, how. `hetrun` starts what a recipe returns; run:start() does so at the "
    .. "prompt.",
  instead = { epochs = "`steps`", num_epochs = "`steps`", max_steps = "`steps`", iterations = "`steps`",
    batch_size = "`batch`", lr = "`optimizer = optim.adamw { lr = ... }`", learning_rate =
    "`optimizer = optim.adamw { lr = ... }`", dataset = "`data`", dtype = "`precision`", output_dir = "`save`",
    checkpoint = "`save` or `from`", patience = "`evaluate = { patience = ... }`",
    save_best = "`keep_best`", load_best_model_at_end = "`keep_best` and run:restore in `after`",
    early_stopping = "`evaluate = { patience = ... }`", gradient_clip = clip, max_grad_norm = clip, clip = clip,
    gradient_accumulation = "`microbatch`", gradient_accumulation_steps = "`microbatch`", accumulate = "`microbatch`",
    validation = evaluated, validation_data = evaluated, val_data = evaluated, eval_data = evaluated,
    eval_dataset = evaluated,
    workers = "`hetrun --workers 2` for ranks; data is read beside the steps", num_workers =
    "`hetrun --workers 2` for ranks; data is read beside the steps", device = "`hetrun --device=cuda`",
    shuffle = "`seed` for another order; samples are shuffled in each epoch" },
  example = "return het.train { model = model, data = corpus, batch = 12, steps = 2000,\n"
    .. "                   optimizer = optim.adamw { lr = 1e-3 } }",
  fields = {
    { "model", "model", "what is trained", required = true },
    { "data", "corpus|pairs", "what it is trained on", required = true },
    { "optimizer", "optimizer", "how the weights change", required = true },
    { "batch", "integer", "samples of a step over all ranks (global batch size)", required = true, min = 1 },
    { "microbatch", "integer", "samples of a forward and backward pass; gradients are accumulated over the batch "
      .. "(default: batch; under a plan, the plan's)", min = 1 },
    { "steps", "integer", "steps in all", required = true, min = 1 },
    { "context", "integer", "sequence length (default: the model's context)", min = 1 },
    { "precision", "string", "dtype of weight matrices and activations; master weights and reductions are f32; f16 is "
      .. "for `hetrun plan` and `hetrun simulate` only", default = "f32", choices = { "f32", "bf16", "f16" } },
    { "seed", "integer", "of weights, sample order, dropout and stochastic rounding", default = 1337, min = 0 },
    { "loss", "function", "function(output, labels, scale, reference): the summed loss times scale, which is 1 / "
      .. "(labels of the batch that count, or pairs of data.preferences); then, if it has any, figures that are "
      .. "reported with it, by name: { accuracy = a }, each a sum times scale (default: cross-entropy, or squared "
      .. "error for labels with fractions)" },
    { "reference", "model", "a frozen model whose output `loss` gets too: one that het.load returns, or the base of a "
      .. "`model` with adapters (nn.lora), which then is in memory once" },
    { "evaluate", "record", "on the held-out part, or other data", default = {}, instead = evaluate_instead, fields = {
      { "data", "corpus|pairs", "what to evaluate on, all of it: of the vocabulary or the shapes of the training data. "
        .. "Training then uses all of `data` (default: what `data` holds out). data.cifar10 stays divided: its test "
        .. "images are evaluated, the others are trained on" },
      { "every", "integer", "steps between evaluations; 0: none", default = 250, min = 0 },
      { "batches", "integer", "batches of an evaluation", default = 20, min = 1 },
      { "patience", "integer", "the run ends early when so many evaluations in a row have found no lower loss "
        .. "(default: it does all steps)", min = 1 },
      { "min_change", "number", "with patience: by how much a loss has to be lower to count as lower (default: 0)",
        min = 0 },
    } },
    { "ema", "number|record", "exponential moving averages of the parameters, by this decay: evaluations and saves "
      .. "have them; a record says which", above = 0, below = 1, fields = {
      { "decay", "number", "share of the average that a step keeps", required = true, above = 0, below = 1 },
      { "evaluate", "boolean", "evaluate the averaged parameters", default = true },
      { "save", "boolean", "save the averaged parameters as the model; a run that goes on has the trained ones",
        default = true },
    } },
    { "sample", "record", "text to write at the end", fields = generate.fields },
    { "save", "string", "folder for the model, its vocabulary and the training state", path = "write" },
    { "save_every", "integer", "steps between saves, which are written in the background, from a copy in the "
      .. "host's memory (the steps wait where there is no room for one); 0: only at the end and when interrupted",
      default = 0, min = 0 },
    { "save_precision", "string", "of the weights in `save` and `keep_best`: f32, bf16 or f16, for who loads them; "
      .. "a run that goes on has f32 (default: as they are in the folder that the model was loaded from, f32 of a new "
      .. "model)", choices = { "f32", "bf16", "f16" } },
    { "keep_best", "string", "folder for the model as it was in the evaluation with the lowest loss, with its "
      .. "vocabulary and training state; written in the background", path = "write" },
    { "snapshot", "record", "checkpoints, taken in the background; with --elastic in memory, too", fields = {
      { "folder", "string", "where each rank writes its part to disk, a shared folder or one of its machine",
        path = "write" },
      { "every", "integer", "steps between snapshots in `folder` (default: by the measured cost of one and how often "
        .. "ranks are lost, 30 s at least)", min = 1 },
      { "keep", "integer", "complete snapshots that are kept in `folder` and `store`", default = 2, min = 1 },
      { "store", "string", "gets a copy of each: a bucket, as \"s3://bucket/mine\" (credentials as for AWS's tools)" },
      { "memory", "boolean", "with --elastic: in the hosts' memory, where too few hosts have a part of the state",
        default = true },
      { "memory_every", "integer", "steps between those in memory, 1: as often as they can be completed (default: by "
        .. "the measured cost of one and how often ranks are lost)", min = 1 },
      { "memory_limit", "string", "of a host's memory, for these snapshots and the copies of other hosts' (default: a "
        .. "quarter of what is free when the run begins)", unit = { parse = native.parse_bytes, such_as = '"8 GiB"' } },
      { "replicas", "integer", "hosts that should have each part of the state, the ranks that train it included",
        default = 2, min = 1 },
    } },
    { "resume", "boolean", "go on exactly where `save` stopped, if it is there (--resume)", default = false },
    { "overwrite", "boolean", "replace the model that `save` holds, as soon as this run is saved; without it and "
      .. "`resume` a folder with a model is refused. Recipes need --trust for it; on the command line: --overwrite",
      default = false },
    { "from", "string", "folder of a saved model whose weights it begins with", path = "read" },
    { "metrics", "string", "file for one JSON object per report", path = "write" },
    { "after", "function", "function(run), called at the end" },
    { "on_step", "function", "function(run, step), called after each step with { step, loss, lr, gradient_norm, "
      .. "seconds, figures }; with --elastic again, on all ranks, when the loss of a rank cut it off on one" },
    { "on_change", "function", "with --elastic: function(run, change), called on the first rank when ranks were lost "
      .. "or joined, for the plan of those that are there, and when others wait to join; nil is the default "
      .. "(?het.policy.on_change)" },
    { "on_notice", "function", "with --elastic: function(run, notice), called on the first rank while machines will be "
      .. "taken away: \"leave\", \"wait\" or \"stop\"; nil is the default (?het.policy.on_notice)" },
    { "rendezvous", "string", "where ranks on several machines find each other: \"etcd://host:2379\" (default: "
      .. "MASTER_ADDR and MASTER_PORT; HETRUN_RENDEZVOUS)" },
    { "name", "string", "of the run, by which its ranks find each other", default = "hetrun" },
    { "pace", "cluster", "slow each rank to the speed of its device in this cluster, and messages to that of its "
      .. "links: to try plans for a mixed cluster on one machine that is much faster" },
    { "runtime", "string", "how ranks wait for each other: overlapping (nothing waits before it must), or as other "
      .. "frameworks do, \"blocking\" (sends and receives block both ends), \"late-reduction\" (gradients are summed "
      .. "after the last backward pass) or \"blocking,late-reduction\", to measure what that costs",
      default = "overlapping", choices = { "overlapping", "blocking", "late-reduction", "blocking,late-reduction" } },
    { "alone", "boolean", "this process trains it by itself, though it is one of several ranks of another run, as to "
      .. "compare; --metrics and --trace are of the other run", default = false },
    { "plan", "plan", "who computes what (default: one device does everything; each device of a plan is a process, "
      .. "started by `hetrun --workers N`)" },
  },
  check = check,
  build = function(a)
    if a.evaluate.data then
      a.data, a.evaluate.data = a.data:undivided "train", a.evaluate.data:undivided "holdout"
    end
    if type(a.ema) == "number" then a.ema = { decay = a.ema, evaluate = true, save = true } end
    return setmetatable({ arguments = a }, Run)
  end,
}
